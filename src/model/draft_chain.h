/* model/draft_chain.h - for drafters that draft token by token: the rounds of several jobs together.
 *
 * The jobs of a group share passes: pass i makes draft token i of each job that wants as many. */
#ifndef TANDEM_MODEL_DRAFT_CHAIN_H
#define TANDEM_MODEL_DRAFT_CHAIN_H
#include "model/drafter.h"

/* Jobs that share passes, longest first, so that a finished job is always the last row. */
typedef struct {
    draft_job *job[HEAD_ROWS];
    int        n;
} draft_group;

typedef struct {
    drafter      *d;
    draft_picker *pick;
    int           max_rows; /* rows of a pass, up to HEAD_ROWS */
    dev           logits;   /* [max_rows][n_vocab of the target]: of the last pass */
    dev           token;    /* int32 [max_rows]: the tokens of the next pass, one per row */
    dev           hidden;   /* [max_rows][d->n_draft_hidden]: copied to d->draft_hidden if that is set */
    bool (*can_draft)(const draft_job *job);
    /* Prepares pass `nth`, counted from 0: uploads rows, for the first pass with their tokens, and sets *r to them. */
    bool (*begin)(drafter *d, const draft_group *g, int nth, step_rows *r, err *e);
    /* Enqueues a pass, which writes logits and hidden. */
    void (*run)(drafter *d, kv_pool *kv, const step_rows *r, int nth);
    void (*end)(drafter *d, const draft_group *g); /* after the last pass of a group, or a failure; may be NULL */
} draft_chain;

/* Drafts for all jobs, as drafter->draft. */
bool draft_chain_run(const draft_chain *c, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e);
#endif
