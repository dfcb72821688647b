/* chat/stream.h - turns the tokens of a response into events (thoughts, content, calls) and ends its content before a
 * stop string.
 *
 * Thoughts and calls may contain a stop string; content ends before the first one. Content that may still become a
 * stop string is held back. The same tokens give the same events on the engine thread (chat_stream_on_token, which
 * ends the response with the token that completes a stop string) and where the response is shown. */
#ifndef TANDEM_CHAT_STREAM_H
#define TANDEM_CHAT_STREAM_H
#include "chat/parser.h"
#include "tok/stop.h"

typedef struct {
    chat_parser *parser;
    stop_match   stop;        /* the caller adds strings with stop_add after chat_stream_init */
    bool         one_call;    /* set by the caller after chat_stream_init: the response ends with its first call */
    bool         over;        /* the response has ended: later tokens are parsed and counted, but report no events */
    bool         failed;      /* out of memory */
    int          n_calls;     /* calls reported, without the one whose name is being reported */
    int32_t      n_reasoning; /* tokens of thoughts, including markers */
    int32_t      n_undecided; /* tokens that may be a thought: later added to n_reasoning, or dropped */
    bool         reasons;     /* internal: the current token reported reasoning */
    buf          safe;        /* internal: content that cannot become a stop string any more */
    void (*on_event)(void *ctx, const chat_event *ev); /* from the options; NULL: only the end is found */
    void *ctx;
} chat_stream; /* must not move while it is in use */

/* Sets all fields and creates the parser. Takes on_event and ctx from o. Returns false without memory: then s ignores
 * tokens and chat_stream_finish fails. */
bool chat_stream_init(chat_stream *s, const chat_parse_options *o);
void chat_stream_deinit(chat_stream *s);          /* s may be zeroed */
void chat_stream_put(chat_stream *s, int32_t id); /* adds a token and reports its events */
/* Ends the response: reports the text that was held back. Returns false if the parser failed or memory was missing. */
bool chat_stream_finish(chat_stream *s, err *e);
/* Calls chat_stream_put, as a callback of the engine. Returns false when the response is over, not when memory is
 * missing. */
bool chat_stream_on_token(void *stream, int32_t id);
#endif
