/* bench/rig.h - what the parts of `tandem bench` that compare methods stand on: the frame of a command, the model with its
 * loop and texts, and the engine around that loop.
 *
 *   bench_run(&command, &b->rig.from, b, argc, args)
 *   rig_open(&b->rig, &flags.with, true, e) && rig_fill_prompts(...) && rig_serve(...)   in measure
 *   rig_close(&b->rig, &flags.with)                                                      after it, however it ended */
#ifndef TANDEM_BENCH_RIG_H
#define TANDEM_BENCH_RIG_H
#include "base/bell.h"
#include "bench/arms.h"
#include "bench/flags.h"
#include "sched/sched.h"

typedef struct {
    const char     *part; /* its name */
    const opt_spec *usage;
    bool (*check)(void *ctx); /* what can be wrong with the flags: true, or a message was printed */
    bool (*measure)(void *ctx, err *e);
    const char *const *json;  /* the file that results go to; NULL: none can be named */
    const char        *stray; /* what is said of an argument; NULL: it is not a flag */
} bench_command;
/* Notes the arguments, parses and checks them, measures. The exit code. */
int bench_run(const bench_command *c, provenance *from, void *ctx, int argc, char **args);

typedef struct {
    opened_model   g;
    provenance     from;
    prompt_set     prompts;
    sched         *sched;   /* NULL: not served */
    tandem_request request; /* as the flags have it */
    tandem_bias    bias[TANDEM_MAX_BIAS];
} bench_rig; /* zeroed storage is an empty one */

/* The model, its loop and all its drafters; with_texts: its tokenizer too, unless it is a shape. */
bool rig_open(bench_rig *r, method_flags *f, bool with_texts, err *e);
/* The files of the model and its drafters, for results. */
bool rig_note_files(bench_rig *r, const method_flags *f, err *e);
/* Chooses the arms that --methods names; other flags of speculation apply to all of them. */
bool rig_choose_arms(const bench_rig *r, const method_flags *f, arm_choice out[ARMS_MAX], int *n, err *e);
/* The prompts of a file, or our own, in the model's chat format; for a shape n_random of n_tokens random ids. */
bool rig_fill_prompts(bench_rig *r, const method_flags *f, int n_random, int n_tokens, err *e);
/* The engine around the loop, with so many lanes, as tandem_open has it. news, unless NULL, is rung for every reader. */
bool rig_serve(bench_rig *r, const method_flags *f, int lanes, bell *news, err *e);
void rig_close(bench_rig *r, method_flags *f);
#endif
