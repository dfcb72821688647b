/* chat/gemma4.h - Gemma 4's chat format: its table, and types and functions shared by the files that render and parse
 * it. Other layers use gemma4_format only. */
#ifndef TANDEM_CHAT_GEMMA4_H
#define TANDEM_CHAT_GEMMA4_H
#include "chat/format.h"

extern const chat_format gemma4_format;

/* The published revisions of the template, by publisher and date: docs/chat.md. */
typedef enum {
    GEMMA4_GOOGLE_0402,
    GEMMA4_GOOGLE_0410,
    GEMMA4_GOOGLE_0428,
    GEMMA4_GOOGLE_0518,
    GEMMA4_GOOGLE_0709,
    GEMMA4_LLAMA_0404,
    GEMMA4_LLAMA_0410,
    GEMMA4_VLLM_0408,
    GEMMA4_VLLM_0510,
    GEMMA4_VLLM_0529,
    GEMMA4_VLLM_0616,
    GEMMA4_VLLM_0617,
    GEMMA4_UNSLOTH_0612,
    GEMMA4_REVISIONS,
} gemma4_revision;

/* The members of gemma4_format. */
const char                  *gemma4_revision_name(int revision);
chat_template                gemma4_detect(str template_text);
extern const chat_parser_ops gemma4_parser_ops;

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

str gemma4_marker_name(gemma4_marker m); /* text of its token, such as "<|turn>" */

/* Differences between the published revisions of the template; a revision is the set of rules that it follows. */
typedef enum {
    /* declarations and values */
    GEMMA4_SCHEMA_COMMAS = 1 << 0, /* all members of a declared parameter are separated, nullable after items */
    GEMMA4_KEEP_KEYWORDS = 1 << 1, /* parameters named like schema keywords are declared */
    GEMMA4_NULL          = 1 << 2, /* null is null, not Python's None */
    GEMMA4_ONLY_OBJECTS  = 1 << 3, /* arguments that are no object are refused */
    /* texts and media */
    GEMMA4_THINK_LINE    = 1 << 4, /* a newline after <|think|> */
    GEMMA4_SYSTEM_PARTS  = 1 << 5, /* a system text may come in parts */
    GEMMA4_MEDIA_LINES   = 1 << 6, /* blank lines around images and videos */
    GEMMA4_MEDIA_IS_LAST = 1 << 7, /* after a medium a message counts as ended by text, even when it has calls */
    /* answers of tools */
    GEMMA4_ANSWERS      = 1 << 8,  /* a tool message follows its call; without this rule it is a turn of its own */
    GEMMA4_ANSWER_MEDIA = 1 << 9,  /* media of an answer are shown after it */
    GEMMA4_UNNAMED      = 1 << 10, /* an answer may lack a name */
    GEMMA4_WAITS        = 1 << 11, /* an unanswered call leaves <|tool_response> open, and no turn is opened after it */
    /* turns of the model */
    GEMMA4_ONE_TURN         = 1 << 12, /* consecutive assistant messages share the opening of a turn */
    GEMMA4_ONE_TURN_TO_CALL = 1 << 13, /* a call right after answers kept with a call shares theirs */
    GEMMA4_END_BY_TEXT      = 1 << 14, /* an answered call's turn ends when text was written, not when some was given */
    GEMMA4_END_BEFORE_NEXT  = 1 << 15, /* or when another message follows */
    GEMMA4_JOIN             = 1 << 16, /* a turn stays open when the next message is the model's too */
    GEMMA4_JOIN_ANSWERED    = 1 << 17, /* also after an answered call */
    GEMMA4_JOIN_LINE        = 1 << 18, /* with a newline between */
    /* thoughts */
    GEMMA4_THOUGHTS     = 1 << 19, /* reasoning after the last user message is replayed before a call */
    GEMMA4_THOUGHTS_ALL = 1 << 20, /* and without a call */
    GEMMA4_PRESERVE     = 1 << 21, /* earlier reasoning is replayed on request, before a call */
    GEMMA4_PRESERVE_ALL = 1 << 22, /* and without a call, if GEMMA4_THOUGHTS_ALL */
    GEMMA4_THOUGHT_BARE = 1 << 23, /* no newline before <channel|> */
    GEMMA4_PAST_EMPTY   = 1 << 24, /* large models, thinking off: earlier turns begin with an empty thought */
    /* the end of the prompt */
    GEMMA4_EMPTY_AFTER_ANSWER = 1 << 25, /* large models, thinking off: an empty thought after a tool's answer too */
    GEMMA4_THINK_AGAIN        = 1 << 26, /* thinking on: an open thought after a tool's answer */
} gemma4_rule;
typedef uint32_t gemma4_rules;

gemma4_rules gemma4_rules_of(int revision); /* the set of gemma4_rule that the revision follows */

/* The output of the renderer. */
typedef struct {
    chat_out            to;
    const chat_options *opt;
    gemma4_rules        rules;
    int                 depth;   /* depth of nested values */
    arena               scratch; /* sorted members */
    buf                 text;    /* a value as Python prints it */
} gemma4_out;

void gemma4_put_marker(gemma4_out *o, gemma4_marker m); /* sends a marker */
void gemma4_put(gemma4_out *o, str text);               /* sends text */
void gemma4_puts(gemma4_out *o, const char *text);

/* Send JSON as the template writes it. quote_keys: keys are strings, as in schemas; else they are bare. */
/* Sends the members as key:V,key:V without braces, sorted by key without regard to case. */
void gemma4_put_members(gemma4_out *o, const json_value *object, bool quote_keys);
void gemma4_put_value(gemma4_out *o, const json_value *v, bool quote_keys); /* NULL is sent as a JSON null is */
/* Sends the declaration of a tool with its markers. */
void gemma4_put_declaration(gemma4_out *o, const chat_tool *tool);
#endif
