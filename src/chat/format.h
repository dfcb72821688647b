/* chat/format.h - one model family's chat format: how its prompts are rendered and how its responses are parsed.
 *
 * The layers above see a chat_format and the functions of chat.h and stream.h; the functions of one family (gemma4.h)
 * are called only through its table. */
#ifndef TANDEM_CHAT_FORMAT_H
#define TANDEM_CHAT_FORMAT_H
#include "chat/chat.h"
#include "chat/parser.h"

/* A sink receives the segments of a prompt in order. A text may come in several pieces. The segment and its text are
 * valid only during put; `part` is the chat's. put returns false and sets e to stop: render then calls it no more and
 * returns false. */
typedef struct {
    bool (*put)(void *ctx, const chat_segment *s, err *e);
    void *ctx;
} chat_sink;

/* For `render`: sends segments to a sink. After a failure nothing more is sent, so a run of calls needs one check at
 * the end. */
typedef struct {
    const chat_sink *sink;
    err             *e;
    bool             failed;
} chat_out;
void chat_out_send(chat_out *o, const chat_segment *s);
void chat_out_text(chat_out *o, str text);   /* sends nothing if it is empty */
void chat_out_marker(chat_out *o, str name); /* sends the token of this name */
/* Records a failure, unless there was one before. */
void chat_out_fail(chat_out *o, err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Constant data; any thread may use it. */
struct chat_format {
    const char       *title;   /* name of the family in messages: "Gemma 4" */
    const tok_family *tokens;  /* the tokenizer it needs, its markers and how it writes a tool call */
    const char       *outline; /* the turns as a short Go template, shown for a model without a template */
    /* Compares a template's text with the published revisions of this format. Returns the same or the most similar
     * one, or for a text of another format the default (chat.h). */
    chat_template (*detect)(str template_text);
    /* Returns the name of chat_template.revision, a constant such as "google 2026-07-09". */
    const char *(*revision_name)(int revision);
    /* Writes the prompt of a chat to the sink, without the prefill, which the caller adds. */
    bool (*render)(const chat *c, const chat_options *o, const chat_sink *sink, err *e);
    const chat_parser_ops *parser;
};

/* For `detect`: appends a template without comments, white space and the tags around a training target, so that
 * published templates can be recognised by a hash. False when out is full. */
bool chat_template_compact(buf *out, str text);
#endif
