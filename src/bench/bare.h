/* bench/bare.h - the decoding loop without the engine: one lane, on the caller's thread. `tandem bench` uses it to
 * measure speculation, and as the baseline of the engine. */
#ifndef TANDEM_BENCH_BARE_H
#define TANDEM_BENCH_BARE_H
#include "cli/generate.h"
#include "sched/job.h"

typedef struct {
    opened_model *g;
    tok_ids       stops;
    lane_options  lane;       /* from the flags */
    int           max_tokens; /* -1: no limit */
    /* set by the caller after bare_init */
    bool ignore_eos;                         /* stop tokens do not end the response */
    bool (*on_token)(void *ctx, int32_t id); /* required; false ends the response */
    void      *ctx;
    logit_bias bias[JOB_MAX_BIAS]; /* storage of lane.penalty.bias */
    /* results of the last response */
    size_t n_prompt, n_reused;  /* tokens of the prompt; those of them that were cached */
    int    n_out;               /* tokens of the response, the last one included */
    double prefill_s, decode_s; /* until the first token, and after it */
} bare;                         /* must not move after bare_init */

/* Opens the model of f->engine, whose path is resolved, the loop with one lane, and the drafters of f->draft, which it
 * resolves. A drafter that cannot be used is logged. After a failure, too, the caller calls open_close. */
bool bare_open(opened_model *g, generate_flags *f, err *e);
/* Sets all fields from the flags. Borrows g. t may be NULL: then only the stop tokens of the model are used. After a
 * failure, too, call bare_deinit. */
bool bare_init(bare *a, opened_model *g, const tok *t, const generate_flags *f, err *e);
void bare_deinit(bare *a);
bool bare_check(const bare *a, const tok_ids *prompt, err *e); /* as generate_check */
/* Runs the prompt and then one step after another until a stop token, the limit, the end of the context or a false of
 * on_token. */
bool bare_run(bare *a, const tok_ids *prompt, err *e);
#endif
