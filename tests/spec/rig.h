/* tests/spec/rig.h - nano with its drafters and the held-out prompts, for the programs that try speculation at length. */
#ifndef TANDEM_TESTS_SPEC_RIG_H
#define TANDEM_TESTS_SPEC_RIG_H
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
    spec_options loop;
} rig_options;
/* Ends the program when something is not there. */
void rig_open(rig *g, const rig_options *o);
void rig_close(rig *g);
/* The parts of it: a path below the repository's root; prompts into g->samples, g->mem is there. */
#define RIG_SAMPLES "tests/golden/nano/dflash-acceptance.json"
const char *rig_path(const char *path, char out[4096]);
void        rig_read_samples(rig *g, const char *path);

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
