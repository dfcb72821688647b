/* ops/history.h - which tokens a sequence has seen, and what that does to the next logits.
 *
 * The repetition penalty counts prompt and output, presence and frequency the output alone. A branch of a tree pushes its
 * own path, asks for its changes, and pops it again, so every row is judged by its own text (promise 2). Memory is
 * taken at the start; pushing, popping and asking take none. Thread: the owner's. */
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
    const logit_bias *bias;      /* a token at most once */
    int               n_bias;
} penalty_params;

typedef struct history history;

bool history_new(history **out, int n_vocab, err *e);
void history_free(history *h); /* NULL is fine */
void history_clear(history *h);
void history_bias(history *h, const logit_bias *b, int n); /* a token at most once; until history_clear */
void history_ends(history *h, const int32_t *id, int n);   /* tokens that end an answer; until history_clear */
void history_prompt(history *h, const int32_t *id, size_t n);
void history_push(history *h, int32_t id); /* a token of the output */
void history_pop(history *h, int32_t id);  /* takes the latest push of it back */
bool penalty_is_off(const penalty_params *p);
bool penalty_counts(const penalty_params *p); /* the text matters: it is more than biases */
int  history_size(const history *h);          /* changes that one row can have at most */
/* The changes for one row of logits; returns how many. early: tokens that end an answer cannot be picked. */
int history_changes(const history *h, const penalty_params *p, int row, bool early, logit_change *out);
#endif
