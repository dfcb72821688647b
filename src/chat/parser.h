/* chat/parser.h - parses a response as it is generated: reasoning, content and tool calls.
 *
 * Markers are recognised by token id: the same characters in ordinary text are text. Events depend only on the tokens,
 * not on how the response was split: consecutive events of one kind must be joined. The arguments of a call are
 * reported as JSON text, strings as they grow, other values when complete; joined they are one object that json/
 * accepts.
 *
 * All text that is not markup is reported exactly once: as reasoning, as content, in a name or in arguments.
 *
 * Threads: a parser belongs to one thread at a time. */
#ifndef TANDEM_CHAT_PARSER_H
#define TANDEM_CHAT_PARSER_H
#include "chat/chat.h"

typedef enum {
    CHAT_EVENT_REASONING,
    CHAT_EVENT_CONTENT,
    CHAT_EVENT_CALL_NAME, /* a call begins */
    CHAT_EVENT_CALL_ARGS, /* a piece of its arguments, as JSON text */
    CHAT_EVENT_CALL_DONE,
} chat_event_kind;

typedef struct {
    chat_event_kind kind;
    int             call; /* index of the call in the response, from 0 */
    str             text; /* valid until the callback returns */
    bool            cut;  /* CHAT_EVENT_CALL_DONE: the response ended before the arguments did */
} chat_event;

typedef struct {
    const chat_format *format;
    void (*on_event)(void *ctx, const chat_event *ev);
    void      *ctx;
    const tok *tok; /* required by put_id */
    /* The request, may be NULL. Argument values are converted to the types that its tools declare, where possible; with
     * a prefill the response begins in content. */
    const chat *chat;
    bool        in_thought; /* the prompt ended inside a thought: chat_prompt.in_thought */
    bool        thinking;   /* the prompt asked for a thought, so one may begin without its marker */
} chat_parse_options;

typedef struct chat_parser chat_parser;
/* The stream parser of a chat format (format.h). */
typedef struct {
    /* Returns a struct of the format whose first member is a chat_parser with these ops; NULL: no memory. */
    chat_parser *(*create)(const chat_parse_options *opt);
    void (*destroy)(chat_parser *p);
    void (*put_id)(chat_parser *p, int32_t id); /* parses a token and reports its events */
    /* Returns true when the next text would be reasoning. */
    bool (*in_thought)(const chat_parser *p);
    /* Returns true while the text so far may turn out to be a thought that began without its marker. */
    bool (*undecided)(const chat_parser *p);
    /* Ends the response: reports held text and closes an open call. False when memory ran out. */
    bool (*finish)(chat_parser *p, err *e);
} chat_parser_ops;

struct chat_parser {
    const chat_parser_ops *ops;
};
#endif
