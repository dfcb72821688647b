/* chat/parser.h - parses a response while it is generated into events: reasoning, content and tool calls. Callers use
 * chat/stream.h, which adds stop strings.
 *
 * Markers are recognised by token id: the same characters in ordinary text are text. Events depend only on the tokens,
 * not on how the response was split: consecutive events of one kind must be joined. The arguments of a call are
 * reported as JSON text, strings as they grow, other values when complete; joined they are one object that json/
 * accepts.
 *
 * All text that is not markup is reported exactly once: as reasoning, as content, in a name or in arguments.
 *
 * One thread at a time uses a parser. */
#ifndef TANDEM_CHAT_PARSER_H
#define TANDEM_CHAT_PARSER_H
#include "chat/chat.h"

typedef enum {
    CHAT_EVENT_REASONING,
    CHAT_EVENT_CONTENT,
    CHAT_EVENT_CALL_NAME, /* a call begins; text: its whole name */
    CHAT_EVENT_CALL_ARGS, /* a piece of its arguments, as JSON text */
    CHAT_EVENT_CALL_DONE, /* the call ends; no text */
} chat_event_kind;

typedef struct {
    chat_event_kind kind;
    int             call; /* index of the call in the response, from 0; no meaning for reasoning and content */
    str             text; /* valid until the callback returns */
    bool            cut;  /* CHAT_EVENT_CALL_DONE: the response ended before the arguments did */
} chat_event;

typedef struct {
    const chat_format *format;
    void (*on_event)(void *ctx, const chat_event *ev); /* required; called by put_id and finish */
    void      *ctx;
    const tok *tok; /* required by put_id */
    /* The request, may be NULL. Argument values are converted to the types that its tools declare, where possible; with
     * a prefill the response begins in content. */
    const chat *chat;
    bool        in_thought; /* the prompt ended inside a thought: chat_prompt.in_thought */
    /* The prompt asked for a thought: at the start of the response its label alone, without the marker, begins one. If
     * false, text after such a label is held back until it is known to be a thought. */
    bool thinking;
} chat_parse_options;

typedef struct chat_parser chat_parser;
/* The stream parser of a chat format (format.h). */
typedef struct {
    /* Returns a struct of the format whose first member is a chat_parser with these ops; NULL: no memory. Copies *opt,
     * and borrows its pointers until destroy. */
    chat_parser *(*create)(const chat_parse_options *opt);
    void (*destroy)(chat_parser *p);            /* p is not NULL */
    void (*put_id)(chat_parser *p, int32_t id); /* parses a token and reports its events */
    /* Returns true when the next text would be reasoning. */
    bool (*in_thought)(const chat_parser *p);
    /* Returns true while the text so far may turn out to be a thought that began without its marker. */
    bool (*undecided)(const chat_parser *p);
    /* Ends the response: reports held text and closes an open call. Called once. Returns false (ERR_UNAVAILABLE) when
     * memory ran out, now or earlier: events are then missing. */
    bool (*finish)(chat_parser *p, err *e);
} chat_parser_ops;

struct chat_parser {
    const chat_parser_ops *ops;
};
#endif
