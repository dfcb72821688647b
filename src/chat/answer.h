/* chat/answer.h - an answer as its reader gets it: what a parser tells, with stop strings looked for in the content alone.
 *
 * What the model thinks and what it calls may hold a stop string; what it says to the user ends before the first one. Content that
 * may still become one is held back. The same tokens give the same events wherever they are looked at: where they are
 * decided (chat_answer_on_token, so that the answer ends with the token that completes one) and where they are shown. */
#ifndef TANDEM_CHAT_ANSWER_H
#define TANDEM_CHAT_ANSWER_H
#include "chat/parser.h"
#include "tok/stop.h"

typedef struct {
    chat_parser *parser;
    stop_match   stop;        /* filled by the owner: stop_add */
    bool         one_call;    /* the answer ends with its first call */
    bool         over;        /* nothing more is told */
    bool         failed;      /* some of it found no memory */
    int32_t      n_reasoning; /* tokens of thoughts, their markers counted in */
    int32_t      n_undecided; /* tokens that are counted when they turn out to be a thought */
    bool         reasons;     /* a piece of reasoning came with this token */
    buf          safe;
    void (*on_event)(void *ctx, const chat_event *ev);
    void *ctx;
} chat_answer; /* must not move while it is in use */

/* As a parser's; without on_event it only finds the end. False: there is no memory; the answer then fails when it is finished. */
bool chat_answer_init(chat_answer *a, const chat_parse_options *o);
void chat_answer_deinit(chat_answer *a); /* zeroed storage is fine */
void chat_answer_put(chat_answer *a, int32_t id);
bool chat_answer_finish(chat_answer *a, err *e);          /* what is held comes out */
bool chat_answer_on_token(void *chat_answer, int32_t id); /* puts the token; false: it ends the answer */
#endif
