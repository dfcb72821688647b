/* bench/bare.h - the decoding loop without the engine: one lane, on the caller's thread. It measures speculation, and
 * is the baseline of the engine. */
#ifndef TANDEM_BENCH_BARE_H
#define TANDEM_BENCH_BARE_H
#include "cli/generate.h"
#include "sched/job.h"

typedef struct {
    opened_model *g;
    tok_ids       stops;
    lane_options  lane;
    int           max_tokens; /* -1: no limit */
    bool          ignore_eos;
    bool (*on_token)(void *ctx, int32_t id); /* false ends the response */
    void      *ctx;
    logit_bias bias[JOB_MAX_BIAS];
    /* results of the last response */
    size_t n_prompt, n_reused;
    int    n_out;
    double prefill_s, decode_s;
} bare;

/* Opens the model, the loop and its drafters. */
bool bare_open(opened_model *g, generate_flags *f, err *e);
/* Sets the stop tokens. t may be NULL: then only those of the model are used. */
bool bare_init(bare *a, opened_model *g, const tok *t, const generate_flags *f, err *e);
void bare_deinit(bare *a);
bool bare_check(const bare *a, const tok_ids *prompt, err *e); /* as generate_check */
/* Runs the prompt and then one token after another until a stop token, the limit or the end of the context. */
bool bare_run(bare *a, const tok_ids *prompt, err *e);
#endif
