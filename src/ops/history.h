/* ops/history.h - counts the tokens of a sequence and computes penalties from them.
 *
 * The repetition penalty counts prompt and output, presence and frequency penalties the output alone. A branch of a
 * tree pushes its path, reads its changes and pops the path, so that the penalties of a row follow from its own text
 * (promise 2). Only history_new allocates. Thread: the owner's. */
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
    const logit_bias *bias;      /* each token at most once */
    int               n_bias;
} penalty_params;

typedef struct history history;

bool history_new(history **out, int n_vocab, err *e);
void history_free(history *h); /* NULL is fine */
void history_clear(history *h);
void history_bias(history *h, const logit_bias *b, int n); /* each token at most once; until history_clear */
void history_ends(history *h, const int32_t *id, int n);   /* tokens that end an answer; until history_clear */
void history_prompt(history *h, const int32_t *id, size_t n);
void history_push(history *h, int32_t id); /* adds a token of the output */
void history_pop(history *h, int32_t id);  /* undoes the latest push of id */
bool penalty_is_off(const penalty_params *p);
bool penalty_counts(const penalty_params *p); /* returns whether the penalties depend on the text */
int  history_size(const history *h);          /* returns the maximum of changes per row */
/* Writes the changes for one row of logits and returns their number. early: tokens that end an answer cannot be
 * picked. */
int history_changes(const history *h, const penalty_params *p, int row, bool early, logit_change *out);
#endif
