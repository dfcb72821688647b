/* tests/spec/rig.h - a model with its drafters and prompts, for the programs that try speculation at length. */
#ifndef TANDEM_TESTS_SPEC_RIG_H
#define TANDEM_TESTS_SPEC_RIG_H
#include "bench/oracle.h"
#include "spec/spec.h"
#include "json/json.h"

enum { RIG_MAX_TOKENS = 512 };

typedef struct {
    str      kind;
    int32_t *prompt, *answer;
    int      n_prompt, n_answer;
    double   mean_round; /* tokens per round of the reference's drafter */
    int      n_rounds;
} sample;

/* A model to test. Drafters of random weights are never right, so an oracle replaces their draft tokens: most are right,
 * and in trees the second candidate often is where the first is wrong. */
typedef struct {
    const char *name, *model, *drafters[2]; /* the second NULL: there is one */
    const char *samples;                    /* NULL: RIG_SAMPLES, with ids that its vocabulary has */
    bool        random;                     /* random weights */
} rig_model;
const rig_model *rig_find_model(const char *name);       /* ends the program when there is none */
oracle          *rig_oracle_new(const rig_model *m);     /* NULL unless the weights are random */
drafter         *rig_oracle_wrap(void *ctx, drafter *d); /* as oracle_wrap */

typedef struct {
    target *model;
    spec   *spec;
    sample *samples;
    int     n_samples;
    arena   mem;
} rig;

/* Paths are relative to the repository's root, or absolute. */
typedef struct {
    const char  *device;                        /* as ops_open; NULL: the best there is */
    int          n_threads;                     /* 0: all */
    const char  *model, *drafters[2], *samples; /* NULL: nano, its drafters, the held-out prompts */
    int          n_drafters;                    /* 0: both; -1: none */
    int          draft_ctx;
    oracle      *oracle;  /* wraps the drafters; NULL: none */
    int          n_vocab; /* prompts get ids below it; 0: unchanged */
    spec_options loop;
} rig_options;
/* Ends the program when something is not there. */
void rig_open(rig *g, const rig_options *o);
void rig_close(rig *g);
/* The parts of it: a path below the repository's root; prompts into g->samples, g->mem is there. */
#define RIG_SAMPLES "tests/golden/nano/dflash-acceptance.json"
const char *rig_path(const char *path, char out[4096]);
void        rig_read_samples(rig *g, const char *path);
void        rig_limit_ids(rig *g, int n_vocab); /* replaces ids of prompts and answers by ids from 2 to n_vocab - 1 */

typedef struct {
    int32_t            token[RIG_MAX_TOKENS];
    float              logprob[RIG_MAX_TOKENS];
    int                n;
    tandem_spec_counts stats;
} answer;

/* Tells how many of the n tokens just decided are kept, at least one; NULL: all. */
typedef int keep_fn(void *ctx, int n);
/* The answer to a prompt: until a stop token or max_tokens. */
void rig_answer(rig *g, spec_lane *l, const lane_options *o, const sample *s, int max_tokens, keep_fn *keep, void *ctx,
                answer *out);
bool rig_is_stop(const rig *g, int32_t id);
#endif
