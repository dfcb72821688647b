/* chat/answer.h - a response as its reader gets it: the events of a parser, with stop strings matched in the content.
 *
 * Thoughts and calls may contain a stop string; content ends before the first one. Content that may still become a stop
 * string is held back. The same tokens give the same events on the engine thread (chat_answer_on_token, which ends the
 * response with the token that completes a stop string) and where the response is shown. */
#ifndef TANDEM_CHAT_ANSWER_H
#define TANDEM_CHAT_ANSWER_H
#include "chat/parser.h"
#include "tok/stop.h"

typedef struct {
    chat_parser *parser;
    stop_match   stop;        /* filled by the caller with stop_add */
    bool         one_call;    /* the response ends with its first call */
    bool         over;        /* no more events are reported */
    bool         failed;      /* out of memory */
    int32_t      n_reasoning; /* tokens of thoughts, including markers */
    int32_t      n_undecided; /* tokens that are counted when they turn out to be a thought */
    bool         reasons;     /* a piece of reasoning came with this token */
    buf          safe;
    void (*on_event)(void *ctx, const chat_event *ev);
    void *ctx;
} chat_answer; /* must not move while it is in use */

/* Initializes it with the options of a parser; without on_event it only finds the end. Returns false when there is no
 * memory; chat_answer_finish then fails. */
bool chat_answer_init(chat_answer *a, const chat_parse_options *o);
void chat_answer_deinit(chat_answer *a); /* a may be zeroed */
void chat_answer_put(chat_answer *a, int32_t id);
bool chat_answer_finish(chat_answer *a, err *e);          /* reports held text */
bool chat_answer_on_token(void *chat_answer, int32_t id); /* adds the token; false: it ends the response */
#endif
