/* load/body.h - writes the body of a request of a load test, as JSON. */
#ifndef TANDEM_LOAD_BODY_H
#define TANDEM_LOAD_BODY_H
#include "load/drive.h"

/* A conversation: the turns of a prompt, and the responses so far. */
typedef struct {
    uint64_t number;              /* number of the prompt, as for load_body_put */
    int      turn;                /* the one to ask next, or being asked */
    buf      said;                /* the responses to the turns before, one after the other */
    size_t   end[LOAD_MAX_TURNS]; /* where each response ends */
} load_talk;
/* Returns whether a turn follows the current one. */
bool load_talk_goes_on(const load_talk *t, const load_ask *ask);
/* Appends the body of the request for the current turn, as load_body_put. */
bool load_talk_put(buf *out, const load_ask *ask, const char *model, const load_talk *t, err *e);
/* Appends the body of request `number`. Its prompt has n_words generated words (0: ask->n_words), or if both are 0 it
 * is the prompt number modulo ask->prompts->n. max_tokens: 0: ask->output_len. Fails with ERR_INPUT when the prompt has
 * messages and ask is not for chat, with ERR_TOO_LARGE when out is full; out then has a part. */
bool load_body_put(buf *out, const load_ask *ask, const char *model, uint64_t number, int n_words, int max_tokens,
                   err *e);
#endif
