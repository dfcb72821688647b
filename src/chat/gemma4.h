/* chat/gemma4.h - Gemma 4's markers, and what the files that write and read its format share. */
#ifndef TANDEM_CHAT_GEMMA4_H
#define TANDEM_CHAT_GEMMA4_H
#include "chat/chat.h"

typedef enum {
    GEMMA4_BOS,
    GEMMA4_EOS,
    GEMMA4_TURN,
    GEMMA4_TURN_END,
    GEMMA4_THINK,
    GEMMA4_TOOL,
    GEMMA4_TOOL_END,
    GEMMA4_CALL,
    GEMMA4_CALL_END,
    GEMMA4_RESPONSE,
    GEMMA4_RESPONSE_END,
    GEMMA4_QUOTE,
    GEMMA4_CHANNEL,
    GEMMA4_CHANNEL_END,
    GEMMA4_IMAGE,
    GEMMA4_AUDIO,
    GEMMA4_VIDEO,
    GEMMA4_MARKERS,
} gemma4_marker;

str gemma4_marker_name(gemma4_marker m); /* "<|turn>" */

/* For the tokenizer: which tokens a prompt or an answer is structured with. */
extern const tok_family gemma4_family;

/* Where a renderer writes. After a failure nothing more is sent, so a run of puts needs one check at the end. */
typedef struct {
    const chat_sink    *sink;
    const chat_options *opt;
    err                *e;
    bool                failed;
    int                 depth;   /* of nested values */
    arena               scratch; /* sorted members */
    buf                 text;    /* a value as Python prints it */
} gemma4_out;

void gemma4_mark(gemma4_out *o, gemma4_marker m);
void gemma4_put(gemma4_out *o, str text);
void gemma4_puts(gemma4_out *o, const char *text);
void gemma4_fail(gemma4_out *o, err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* key:V,key:V in the template's order: by key, whatever the case. */
void gemma4_put_members(gemma4_out *o, const json_value *object, bool quote_keys);
void gemma4_put_value(gemma4_out *o, const json_value *v, bool quote_keys); /* NULL as null */
void gemma4_put_declaration(gemma4_out *o, const chat_tool *tool);
#endif
