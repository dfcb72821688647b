/* server/answer.h - one answer of a reply: a job of the engine, and its tokens as they are taken apart.
 *
 * Of a chat the answer is told as reasoning, content and calls (chat/answer.h), of a text completion as content alone. What is
 * told depends on the tokens, not on when they were polled.
 *
 * Thread: the I/O thread's, but for what looks at tokens where they are decided, which is the engine's until the job is done. */
#ifndef TANDEM_SERVER_ANSWER_H
#define TANDEM_SERVER_ANSWER_H
#include "chat/answer.h"
#include "server/record.h"
#include "server/request.h"

typedef struct server_choice server_choice;
typedef struct {
    void (*on_progress)(void *ctx, server_choice *c,
                        const tandem_progress *p); /* with the prompt, where it is wanted */
    /* Before all else, where the request has echo: so many tokens of the prompt; from 0: and its text. */
    void (*on_prompt)(void *ctx, server_choice *c, size_t from, size_t n);
    void (*on_event)(void *ctx, server_choice *c, const chat_event *ev);
    void (*on_token)(void *ctx, server_choice *c,
                     const tandem_token *x); /* after what it told; with log-probabilities, or of /completion;
                                                of an end-of-answer token only with echo */
    void *ctx;
} choice_sink;

enum { CHOICE_PARTS = 5 };
struct server_choice {
    int                   index;
    const server_request *request;
    const tok            *tok;
    choice_sink           sink;
    tandem_job           *job;    /* NULL: not submitted */
    const tandem_result  *result; /* NULL until all its tokens were taken */

    chat_answer watch, answer; /* of a chat: where tokens are decided, where they are shown */
    tok_stream  text;          /* of a text completion */
    stop_match  stop;
    buf         decoded, safe;

    /* what the form of the reply keeps of it */
    buf     part[CHOICE_PARTS];
    int     open;    /* the part that grows */
    int     n_calls; /* that were told; not yet the one whose name is being told */
    bool    begun, ended, echoed;
    bool    new_line;            /* its text has one */
    bool    lost;                /* some of it found no room */
    size_t  n_chars;             /* told, of a text completion */
    size_t  sent, sent_logprobs; /* bytes of the open item, of a response */
    int     n_items, n_events;   /* closed, blocks of a message too; told */
    double  polled_s;            /* when there were tokens last; 0: never */
    int32_t n_tokens;
    size_t  n_echoed; /* tokens of the prompt that were told */
    int32_t n_done;   /* tokens of the prompt that the client was told of; -1: none yet */
};

/* False: there is no memory. */
bool choice_init(server_choice *c, const server_request *r, const tok *t, int index, const choice_sink *sink);
/* The job must be done, if there is one. */
void choice_deinit(server_choice *c);
bool choice_submit(server_choice *c, tandem *t, err *e);
/* Takes apart what is new, at most about `most` tokens; returns how many there were. */
int         choice_poll(server_choice *c, int most);
bool        choice_is_echoing(const server_choice *c);    /* some of its prompt is to be told yet: poll it again soon */
const char *choice_finish_reason(const server_choice *c); /* of one that ended well; NULL: it did not */
/* The prompt that it answers, and what is known of its tokens: 1 + logprobs items of each, NULL: nothing. Choices of a request lie
 * side by side: the first one to each prompt has these. */
const server_prompt  *choice_prompt(const server_choice *c);
const tandem_logprob *choice_prompt_logprobs(const server_choice *c);
/* Exact: of a chat's answer. */
int32_t choice_reasoning_tokens(const server_choice *c);
/* What came of those that had a lane and are done, for the log, the metrics and the usage alike. */
void choices_record(const server_choice *all, int n, server_record *out);
#endif
