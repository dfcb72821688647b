/* server/choice.h - one choice of a response: a job of the engine, and its tokens parsed into events.
 *
 * A chat has events for reasoning, content and calls (chat/stream.h), a text completion only for content. The events
 * depend on the tokens, not on when they are polled.
 *
 * One thread at a time uses a choice: a worker initialises and may submit it, then it belongs to the I/O thread. Only
 * `watch` is used by the engine thread, until the job is done. */
#ifndef TANDEM_SERVER_CHOICE_H
#define TANDEM_SERVER_CHOICE_H
#include "chat/stream.h"
#include "server/record.h"
#include "server/request.h"

typedef struct reply reply;

enum { CHOICE_PARTS = 5 };
typedef struct {
    int                   index;
    reply                *reply; /* its format receives the events */
    const server_request *request;
    tandem_job           *job;    /* NULL: not submitted */
    const tandem_result  *result; /* NULL until all its tokens were polled */

    chat_stream watch;  /* parses a chat on the engine thread, to stop it */
    chat_stream events; /* parses a chat on the I/O thread, and calls the reply format */
    tok_stream  text;   /* decodes a text completion */
    stop_match  stop;
    buf         decoded, safe;

    /* State of the reply format. */
    buf     part[CHOICE_PARTS];
    int     open;    /* the part that text is appended to */
    int     drafted; /* tandem_method that drafted the token that is being parsed */
    bool    begun, ended, echoed;
    bool    new_line;            /* its text contains a newline */
    bool    lost;                /* part of it was lost for lack of memory */
    size_t  n_chars;             /* characters sent, of a text completion */
    size_t  sent, sent_logprobs; /* bytes sent of the open item, of a response */
    int     n_items, n_events;   /* closed items or blocks; events sent */
    double  polled_s;            /* clock_s of the last poll that had tokens; 0: none */
    int32_t n_tokens;            /* tokens polled */
    size_t  n_echoed;            /* tokens of the prompt sent by echo */
    int32_t n_done;              /* progress through the prompt that was sent; -1: none */
} server_choice;                 /* must not move after choice_init */

/* Sets all fields: choice number `index` of the request of r. Borrows r. Returns false without memory; choice_deinit
 * applies then, too. */
bool choice_init(server_choice *c, reply *r, int index);
void choice_deinit(server_choice *c); /* releases the job, which must have ended or not been submitted */
/* Submits the job; sets c->job. Errors as engine_submit. */
bool choice_submit(server_choice *c, tandem *t, err *e);
/* Parses new tokens, about max_tokens at a time, calls the reply format with their events, and returns their number.
 * Sets `result` after the last one. */
int  choice_poll(server_choice *c, int max_tokens);
bool choice_is_echoing(const server_choice *c); /* part of the echoed prompt has not been sent: poll again soon */
const char *choice_finish_reason(const server_choice *c); /* NULL: it has not ended, or failed */
/* Return its prompt, and the log-probabilities of the prompt's tokens: 1 + logprobs items each; NULL: none. The
 * choices of a request must be one array, since the first choice of each prompt has the log-probabilities. */
const server_prompt  *choice_prompt(const server_choice *c);
const tandem_logprob *choice_prompt_logprobs(const server_choice *c);
/* Returns the number of reasoning tokens of a chat. */
int32_t choice_reasoning_tokens(const server_choice *c);
/* Appends the results of choices that had a lane and have ended to *out, for log, metrics and usage. They are valid
 * until choice_deinit. */
void choices_record(const server_choice *all, int n, server_record *out);
#endif
