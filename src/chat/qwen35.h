/* chat/qwen35.h - the chat format of Qwen 3.5, 3.6 and 3.8: its markers, and what the files that write and read it
 * share. */
#ifndef TANDEM_CHAT_QWEN35_H
#define TANDEM_CHAT_QWEN35_H
#include "chat/format.h"

extern const chat_format qwen35_format;

/* The published revisions of the template, by the models that they came with: docs/chat.md. */
typedef enum {
    QWEN35_SMALL, /* 3.5, 0.8B and 2B: no thinking unless asked for */
    QWEN35_LARGE, /* 3.5, from 4B on */
    QWEN36,
    QWEN38,
    QWEN35_REVISIONS,
} qwen35_revision;

/* The members of qwen35_format. */
bool                         qwen35_render(const chat *c, const chat_options *o, const chat_sink *sink, err *e);
extern const chat_parser_ops qwen35_parser_ops;
#endif
