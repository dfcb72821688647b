/* bench/rig.h - shared by the parts of `tandem bench` that compare methods: the frame of a command, the model with its
 * loop and texts, and the engine.
 *
 *   bench_run(&command, &b->rig.from, b, argc, args)
 *   rig_open(&b->rig, &flags.with, true, e) && rig_fill_prompts(...) && rig_serve(...)   in measure
 *   rig_close(&b->rig, &flags.with)                                                      after it, however it ended */
#ifndef TANDEM_BENCH_RIG_H
#define TANDEM_BENCH_RIG_H
#include "base/bell.h"
#include "bench/arms.h"
#include "bench/flags.h"
#include "figures/measure.h"
#include "figures/stats.h"
#include "sched/sched.h"

typedef struct {
    const char     *part; /* its name */
    const opt_spec *usage;
    bool (*check)(void *ctx);           /* checks the flags; false after printing a message */
    bool (*measure)(void *ctx, err *e); /* measures and prints */
    const char *const *json;            /* the flag with the output file of results; NULL: not supported */
    const char        *stray;           /* message for a positional argument; NULL: "is not a flag" */
} bench_command;
/* Records the arguments in `from`, parses and checks them, and measures. ctx is passed to check and measure. Returns
 * the exit code. */
int bench_run(const bench_command *c, provenance *from, void *ctx, int argc, char **args);
/* Calls measure_arm for each run of the plan, and shows a progress bar. Stops at the first failure and returns it. */
bool bench_measure(const measure_plan *plan, bool (*measure_arm)(void *ctx, const measure_run *at, err *e), void *ctx,
                   err *e);

/* Prints a space and "MEDIAN [LOW, HIGH]", right-aligned, with as many digits after the point. */
void bench_print_interval(interval i, int width, int digits);

typedef struct {
    opened_model   g;
    provenance     from;
    prompt_set     prompts;
    sched         *sched;                 /* NULL: rig_serve was not called */
    tandem_request request;               /* set by rig_serve from the flags, without a prompt */
    tandem_bias    bias[TANDEM_MAX_BIAS]; /* storage of request.bias */
} bench_rig;                              /* zeroed storage is an empty one; must not move after rig_serve */

/* Opens the model, its loop, all its drafters and, unless it is a shape, its tokenizer. with_texts: fails if a model
 * that is not a shape has no tokenizer. f must live until rig_close. e is not NULL. */
bool rig_open(bench_rig *r, method_flags *f, bool with_texts, err *e);
/* Records the files of the model and its drafters, for results. */
bool rig_note_files(bench_rig *r, const method_flags *f, err *e);
/* Chooses the arms that --methods names; other flags of speculation apply to all of them. */
bool rig_choose_arms(const bench_rig *r, const method_flags *f, arm_choice out[ARMS_MAX], int *n, err *e);
/* Reads the prompts of a file, or the built-in ones, in the model's chat format; for a shape, generates n_random
 * prompts of n_tokens random ids. */
bool rig_fill_prompts(bench_rig *r, const method_flags *f, int n_random, int n_tokens, err *e);
/* Starts the scheduler on the loop, with the default settings and no limit of tokens except the context. Requests of a
 * shape ignore stop tokens. lanes: at most those of the loop. news, unless NULL, is rung when a reader is woken. */
bool rig_serve(bench_rig *r, const method_flags *f, int lanes, bell *news, err *e);
void rig_close(bench_rig *r, method_flags *f); /* frees all, also the generated shapes of f; accepts an empty rig */
#endif
