/* tandem bench pick: the time to pick tokens from logits, by the kind of sampling and the number of rows.
 *
 * A measurement is a number of picks, one after another, recorded where the backend can. Its time is the queue's own.
 * The kinds take turns, so that disturbances affect all of them alike. */
#include "base/mem.h"
#include "base/num.h"
#include "bench/bench.h"
#include "bench/rig.h"
#include "figures/result.h"
#include "figures/stats.h"
#include "ops/sampling_math.h"

#include <stdio.h>

enum { MAX_LIST = 16, MAX_REPEATS = 1000, PICKS = 16, CHANGES = 512, SHOWN = 5, TREE_TOP = 8 };

static struct {
    const char *rows;
    int         device, n_threads, n_vocab, repeats;
} flags = {.rows = "1,16", .n_vocab = 262144, .repeats = 9};

static const option opts[] = {
    OPT_THREADS(flags.n_threads),
    OPT_DEVICE(flags.device),
    OPT_WORDS("rows", flags.rows, "default 1,16"),
    {.name = "vocab",
     .kind = OPT_INT,
     .dest = &flags.n_vocab,
     .arg  = "N",
     .min  = 1024,
     .max  = 1 << 19,
     .help = "tokens of the vocabulary (default 262144)"},
    OPT_REPEATS(flags.repeats, MAX_REPEATS, NULL, "measurements of each cell (default 9)"),
    OPT_LOGGING,
};
static const opt_spec usage = {"bench pick", "bench pick [FLAGS]",
                               "Times picks from random logits in microseconds, by the kind of sampling and the rows "
                               "of a step.",
                               opts, COUNT(opts)};

typedef enum { PICK_SAMPLE, PICK_PENALTIES, PICK_TOP, PICK_LOGPROBS } pick_op;
static const struct {
    const char   *name;
    pick_op       op;
    sample_params p;
} kinds[] = {
    {"greedy", PICK_SAMPLE, {.top_p = 1}},
    {"top-k 64, top-p 0.95, temperature 1", PICK_SAMPLE, {.temp = 1, .top_p = 0.95f, .top_k = 64}},
    {"the same with 512 penalties a row", PICK_PENALTIES, {.temp = 1, .top_p = 0.95f, .top_k = 64}},
    {"temperature 1", PICK_SAMPLE, {.temp = 1, .top_p = 1}},
    {"temperature 1, top-p 0.95", PICK_SAMPLE, {.temp = 1, .top_p = 0.95f}},
    {"temperature 1, min-p 0.05", PICK_SAMPLE, {.temp = 1, .top_p = 1, .min_p = 0.05f}},
    {"temperature 1, top-k 1000, top-p 0.95", PICK_SAMPLE, {.temp = 1, .top_p = 0.95f, .top_k = 1000}},
    {"the 8 best, greedy, for trees", PICK_TOP, {.top_p = 1}},
    {"log-probabilities of the 5 best", PICK_LOGPROBS, {.top_p = 1}},
};
enum { KINDS = COUNT(kinds) };

typedef struct {
    ops   *o;
    queue *q;
    dev    logits, id, params, changes, out;
    int    rows[MAX_LIST], n_rows, max_rows;
    double us[KINDS][MAX_LIST][MAX_REPEATS];
} bench;

/* Returns a number like those of a normal distribution with a deviation of 3: the sum of 12 even ones. */
static float random_logit(uint64_t seed)
{
    double sum = -6;
    for (uint64_t i = 0; i < 12; i++) sum += (double)(sampling_mix(seed * 12 + i) >> 11) * 0x1p-53;
    return (float)(3 * sum);
}

static bool alloc_buffers(bench *b, err *e)
{
    size_t rows = (size_t)b->max_rows, logits = rows * (size_t)flags.n_vocab * sizeof(float);
    return b->o->alloc(b->o, &b->logits, logits, e) && b->o->alloc(b->o, &b->id, rows * sizeof(int32_t), e) &&
           b->o->alloc(b->o, &b->params, KINDS * rows * sizeof(sample_params), e) &&
           b->o->alloc(b->o, &b->changes, rows * CHANGES * sizeof(logit_change), e) &&
           b->o->alloc(b->o, &b->out, rows * SAMPLE_TOP_MAX * sizeof(token_logprob), e);
}

static dev params_of(const bench *b, int kind)
{
    return dev_at(b->params, (size_t)kind * (size_t)b->max_rows * sizeof(sample_params));
}

static void upload_inputs(bench *b)
{
    size_t        V   = (size_t)flags.n_vocab;
    float        *row = xnew_n(float, V);
    logit_change *c   = xnew_n(logit_change, CHANGES);
    for (int r = 0; r < b->max_rows; r++) {
        for (size_t i = 0; i < V; i++) row[i] = random_logit((uint64_t)r * V + i);
        for (int i = 0; i < CHANGES; i++)
            c[i] = (logit_change){.row = r, .token = i * (flags.n_vocab / CHANGES), .repeat = 1.1f, .minus = 0.1f};
        b->o->upload(b->q, dev_at_f32(b->logits, (size_t)r * V), row, V * sizeof *row);
        b->o->upload(b->q, dev_at(b->changes, (size_t)r * CHANGES * sizeof *c), c, CHANGES * sizeof *c);
        for (int k = 0; k < KINDS; k++) {
            sample_params p = kinds[k].p;
            p.seed          = 1;
            p.pos           = r;
            b->o->upload(b->q, dev_at(params_of(b, k), (size_t)r * sizeof p), &p, sizeof p);
        }
        b->o->sync(b->q);
    }
    mem_free(row);
    mem_free(c);
}

static void pick_once(bench *b, int kind, int n_rows)
{
    const ops *o = b->o;
    int        V = flags.n_vocab;
    switch (kinds[kind].op) {
    case PICK_SAMPLE: o->sample(b->q, b->id, b->logits, params_of(b, kind), n_rows, V); break;
    case PICK_PENALTIES:
        o->change_logits(b->q, b->logits, V, b->changes, n_rows * CHANGES);
        o->sample(b->q, b->id, b->logits, params_of(b, kind), n_rows, V);
        o->restore_logits(b->q, b->logits, V, b->changes, n_rows * CHANGES);
        break;
    case PICK_TOP: o->sample_top(b->q, b->out, b->logits, params_of(b, kind), n_rows, V, TREE_TOP, 1); break;
    case PICK_LOGPROBS: o->logprobs(b->q, b->out, b->logits, b->id, n_rows, V, SHOWN); break;
    }
}

static bool measure_pick(bench *b, int kind, int n_rows, double *us, err *e)
{
    uint64_t key = graph_key(graph_key(1, (uint64_t)kind), (uint64_t)n_rows);
    b->o->mark(b->q, 0);
    for (bool done = b->o->replay(b->q, key); !done; done = b->o->record_end(b->q))
        for (int i = 0; i < PICKS; i++) pick_once(b, kind, n_rows);
    b->o->mark(b->q, 1);
    b->o->sync(b->q);
    *us = 1e6 * b->o->between_s(b->q, 0, 1) / PICKS;
    return b->o->check(b->q, e);
}

static bool measure_all(bench *b, err *e)
{
    enum { WARM_UP = 2 }; /* the second is recorded */
    double us;
    for (int turn = -WARM_UP; turn < flags.repeats; turn++)
        for (int k = 0; k < KINDS; k++)
            for (int i = 0; i < b->n_rows; i++) {
                if (!measure_pick(b, k, b->rows[i], &us, e)) return false;
                if (turn >= 0) b->us[k][i][turn] = us;
            }
    return true;
}

static void print_table(const bench *b)
{
    printf("picks from %d logits on %s%s%s, us; medians of %d\n%-40s", flags.n_vocab, b->o->name,
           b->o->kernels ? ":" : "", b->o->kernels ? b->o->kernels : "", flags.repeats, "rows");
    for (int i = 0; i < b->n_rows; i++) printf("%10d", b->rows[i]);
    for (int k = 0; k < KINDS; k++) {
        printf("\n%-40s", kinds[k].name);
        for (int i = 0; i < b->n_rows; i++) printf("%10.1f", stats_median(b->us[k][i], flags.repeats).median);
    }
    putchar('\n');
}

static bool run(bench *b, err *e)
{
    if (!result_numbers(flags.rows, b->rows, MAX_LIST, &b->n_rows, 1, HEAD_ROWS, e)) return err_wrap(e, "--rows");
    for (int i = 0; i < b->n_rows; i++) b->max_rows = max_int(b->max_rows, b->rows[i]);
    queue_limits lim = {.max_rows = b->max_rows, .max_in = 32, .max_vocab = flags.n_vocab};
    if (!ops_open(&b->o, engine_devices[flags.device], flags.n_threads, e) || !b->o->queue_new(b->o, &b->q, &lim, e) ||
        !alloc_buffers(b, e))
        return false;
    upload_inputs(b);
    if (!measure_all(b, e)) return false;
    print_table(b);
    return cli_flush(e);
}

static void close_all(bench *b)
{
    const dev bufs[] = {b->logits, b->id, b->params, b->changes, b->out};
    for (size_t i = 0; b->o && i < COUNT(bufs); i++) b->o->free(b->o, bufs[i]);
    if (b->o) b->o->queue_free(b->q);
    ops_close(b->o);
    mem_free(b);
}

int bench_pick(int argc, char **args)
{
    int n_args, code;
    err e = {0};
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (n_args) return opt_usage(&usage, "'%s' is not a flag", args[0]);
    bench *b  = xnew(bench);
    bool   ok = run(b, &e);
    close_all(b);
    return ok ? 0 : cli_fail(&e);
}
