/* ops/history.h - counts the tokens of a sequence and computes from them the changes of logits by bias and penalties.
 *
 * The repetition penalty counts prompt and output, presence and frequency penalties the output alone. A branch of a
 * tree pushes its path, reads its changes and pops the path, so that the penalties of a row follow from its own text
 * (promise 2). Only history_new allocates. Token ids must be in the vocabulary (asserted). One thread at a time. */
#ifndef TANDEM_OPS_HISTORY_H
#define TANDEM_OPS_HISTORY_H
#include "ops/ops.h"

typedef struct {
    int32_t token;
    float   bias;
} logit_bias;
typedef struct {
    float             repeat;    /* 1: off */
    float             presence;  /* 0: off */
    float             frequency; /* 0: off */
    const logit_bias *bias;      /* each token at most once; takes effect through history_bias */
    int               n_bias;
} penalty_params;

typedef struct history history;

bool history_new(history **out, int n_vocab, err *e); /* on failure *out is NULL */
void history_free(history *h);                        /* h may be NULL */
void history_clear(history *h);                       /* removes all tokens, biases and ends */
/* Set biases, and the tokens that end a response, until history_clear. Copied. */
void history_bias(history *h, const logit_bias *b, int n);
void history_ends(history *h, const int32_t *id, int n);
void history_prompt(history *h, const int32_t *id, size_t n); /* adds tokens of the prompt */
void history_push(history *h, int32_t id);                    /* adds a token of the output */
void history_pop(history *h, int32_t id);                     /* undoes a push of id */
bool penalty_is_off(const penalty_params *p);                 /* no penalty and no bias */
bool penalty_counts(const penalty_params *p);                 /* returns whether the penalties depend on the text */
int  history_size(const history *h); /* returns the maximum number of changes that history_changes would write now */
/* Writes the changes for row `row` of the logits and returns their number. early: tokens of history_ends get a bias of
 * -infinity, so that they are not picked. Uses the penalties of *p and the biases of history_bias. */
int history_changes(const history *h, const penalty_params *p, int row, bool early, logit_change *out);
#endif
