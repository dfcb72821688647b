/* chat/format.h - one model family's chat format: how its prompts are written and how its answers are read.
 *
 * The layers above see a chat_format and the functions of chat.h and parser.h; the functions of one family (gemma4.h)
 * are reached only through its table. */
#ifndef TANDEM_CHAT_FORMAT_H
#define TANDEM_CHAT_FORMAT_H
#include "chat/chat.h"
#include "chat/parser.h"

/* A sink receives the segments of a prompt in order. A text may come in several pieces. */
typedef struct {
    bool (*put)(void *ctx, const chat_segment *s, err *e);
    void *ctx;
} chat_sink;

/* The stream parser of a format. Each function is called through its namesake of parser.h. */
typedef struct {
    chat_parser *(*create)(const chat_parse_options *opt); /* NULL: no memory; chat_parser is its first member */
    void (*destroy)(chat_parser *p);
    void (*put_id)(chat_parser *p, int32_t id);
    void (*put_text)(chat_parser *p, str text);
    bool (*in_thought)(const chat_parser *p);
    bool (*undecided)(const chat_parser *p);
    bool (*finish)(chat_parser *p, err *e);
} chat_parser_ops;

struct chat_format {
    const char       *title;   /* name of the family in messages: "Gemma 4" */
    const tok_family *tokens;  /* the tokenizer it needs, its markers and how it writes a tool call */
    const char       *outline; /* the turns as a short Go template, shown for a model without a template */
    /* Compares a template's text with the published revisions of this format. */
    chat_template (*detect)(str template_text);
    const char *(*revision_name)(int revision); /* such as "google 2026-07-09" */
    bool (*render)(const chat *c, const chat_options *o, const chat_sink *sink, err *e);
    const chat_parser_ops *parser;
};
#endif
