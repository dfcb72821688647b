/* tandem bench rows: the time of a step by its rows and its context.
 *
 * The cells (bench/cells.h) run in turns, repeatedly, so that disturbances affect all of them alike. The result is the
 * median of each with a 90% interval. With --ask the cells are read from standard input, so that another program can
 * interleave its own measurements. */
#include "bench/bench.h"
#include "bench/cells.h"
#include "bench/rig.h"
#include "figures/result.h"
#include "ops/profile.h"

#include <math.h>
#include <stdio.h>

enum { MAX_LIST = 32, MAX_CELLS = 256, MAX_REPEATS = 1000, MAX_LINE = 256 };

static struct {
    engine_options engine;
    shape_flags    shape;
    const char    *rows, *contexts, *prefill, *json, *label;
    int            steps, repeats;
    bool           chain, tree, ask, profile, repeats_given, no_hash, cpu_time;
} flags = {.engine   = {.kv = {.types = KV_TYPES_ALL(CACHE_F16)}},
           .shape    = SHAPE_DEFAULTS,
           .rows     = "1,2,4,8,16,32",
           .contexts = "512",
           .prefill  = "512",
           .label    = "tandem",
           .steps    = 8,
           .repeats  = 9};

static const option opts[] = {
    OPT_ENGINE(flags.engine),
    OPT_SHAPE(flags.shape),
    OPT_WORDS("rows", flags.rows, "default 1,2,4,8,16,32"),
    OPT_WORDS("contexts", flags.contexts, "positions before the rows (default 512)"),
    OPT_WORDS("prefill", flags.prefill, "prompts to time (default 512; 0: none)"),
    {.name = "chain",
     .kind = OPT_FLAG,
     .dest = &flags.chain,
     .help = "all rows in one lane, as drafts are verified; otherwise a lane for each row"},
    {.name = "tree", .kind = OPT_FLAG, .dest = &flags.tree, .help = "all rows in one lane, as a tree of drafts"},
    {.name = "steps",
     .kind = OPT_INT,
     .dest = &flags.steps,
     .arg  = "N",
     .min  = 1,
     .max  = CELL_MAX_STEPS,
     .help = "steps that make one measurement (default 8)"},
    OPT_REPEATS(flags.repeats, MAX_REPEATS, &flags.repeats_given,
                "measurements of each cell (default 9, with --profile 1)"),
    OPT_KV(flags.engine),
    OPT_CPU_TIME(flags.cpu_time),
    OPT_RESULT(flags.json, flags.no_hash),
    {.name = "label",
     .kind = OPT_STR,
     .dest = &flags.label,
     .arg  = "TEXT",
     .help = "name of the curves (default tandem)"},
    {.name = "profile",
     .kind = OPT_FLAG,
     .dest = &flags.profile,
     .help = "time each op by itself, which slows the steps down, and list them"},
    {.name = "ask",
     .kind = OPT_FLAG,
     .dest = &flags.ask,
     .help =
         "cells from standard input, such as `rows 8 512 4` (rows, context, steps), `chain 8 512 4`, `tree 8 512 4`, "
         "`prefill 512`; "
         "a JSON line for each"},
    OPT_LOGGING,
};
static const opt_spec usage = {"bench rows", "bench rows [-m MODEL | --shape SHAPE] [FLAGS]",
                               "Times steps of 1 to 32 rows after given contexts, and prompts; counts the experts that "
                               "they touch.\nThe contexts are random, not computed.",
                               opts, COUNT(opts)};

typedef struct {
    cell            c;
    double          ms[MAX_REPEATS];
    int             n;
    experts_touched experts;
} measured;

typedef struct {
    opened_model g;
    provenance   from;
    cell_rig    *rig;
    measured    *cells;
    int          n_cells, n_contexts, context[MAX_LIST];
    double       roof; /* bytes per second that the device reads and writes; 0: not known */
} bench;

static ops *profiled;
static ops *wrap_ops(ops *inner)
{
    if (flags.profile) inner = profiled = ops_profile(inner);
    return experts_watch(inner);
}

/* Measures the rate of memory: the best of several sums of two arrays that no cache holds. Returns 0 when there is no
 * room for them. */
static double measure_roof(target *m)
{
    enum { N = 1 << 26, TURNS = 5 };
    const ops *o    = m->o;
    double     best = 0;
    dev        a = {0}, b = {0};
    if (o->alloc(o, &a, N * sizeof(float), NULL) && o->alloc(o, &b, N * sizeof(float), NULL))
        for (int i = 0; i < TURNS; i++) {
            o->mark(m->q, 0);
            o->add(m->q, a, a, b, N, 1);
            o->mark(m->q, 1);
            o->sync(m->q);
            best = fmax(best, 3.0 * N * sizeof(float) / o->between_s(m->q, 0, 1));
        }
    o->free(o, a);
    o->free(o, b);
    return best;
}

/* --- cells ----------------------------------------------------------------------------------------*/
static cell_kind kind_of_rows(void) { return flags.tree ? CELL_TREE : flags.chain ? CELL_CHAIN : CELL_ROWS; }

static bool reserve_cell(bench *b, const cell *c, err *e)
{
    ops_device d;
    return ops_device_find(&d, b->g.device.name, e) && cell_reserve(b->rig, c, d.free_bytes, e);
}

/* Reports and skips cells that do not fit into memory. */
static void add_cell(bench *b, cell c)
{
    err e = {0};
    if (reserve_cell(b, &c, &e))
        b->cells[b->n_cells++].c = c;
    else
        fprintf(stderr, "left out: %s of %d after %d: %s\n", cell_kinds[c.kind], c.rows, c.context, e.text);
}

static bool choose_cells(bench *b, err *e)
{
    int       rows[MAX_LIST], prompt[MAX_LIST], n_rows, n_prompts;
    cell_kind kind = kind_of_rows();
    if (!result_numbers(flags.rows, rows, MAX_LIST, &n_rows, 1, CELL_MAX_ROWS, e)) return err_wrap(e, "--rows");
    if (!result_numbers(flags.contexts, b->context, MAX_LIST, &b->n_contexts, 0, CELL_MAX_CONTEXT, e))
        return err_wrap(e, "--contexts");
    if (!result_numbers(flags.prefill, prompt, MAX_LIST, &n_prompts, 0, CELL_MAX_CONTEXT, e))
        return err_wrap(e, "--prefill");
    if (n_rows * b->n_contexts + n_prompts > MAX_CELLS) return err_set(e, ERR_INPUT, "over %d cells", MAX_CELLS);
    if (!b->rig) return true; /* nothing to run */
    for (int k = 0; k < b->n_contexts; k++)
        for (int i = 0; i < n_rows; i++) add_cell(b, (cell){kind, rows[i], b->context[k], flags.steps});
    for (int i = 0; i < n_prompts; i++)
        if (prompt[i]) add_cell(b, (cell){CELL_PREFILL, prompt[i], 0, 1});
    return b->n_cells > 0 || err_set(e, ERR_INPUT, "nothing is left to measure");
}

static bool measure_cell(void *ctx, const measure_run *at, err *e)
{
    bench    *b       = ctx;
    measured *x       = &b->cells[at->arm];
    bool      experts = x->n == 0 && x->c.kind != CELL_PREFILL;
    if (!cell_run(b->rig, &x->c, &x->ms[x->n++], experts ? &x->experts : NULL, e)) return false;
    if (!profiled) return true;
    printf("%s of %d after %d: %.3f ms\n", cell_kinds[x->c.kind], x->c.rows, x->c.context, x->ms[x->n - 1]);
    ops_profile_print(profiled, b->roof, stdout);
    return true;
}

/* The cells are the arms; cell_run does the warm-up. */
static bool measure_cells(bench *b, err *e)
{
    measure_plan plan = {.n_cells = 1, .n_arms = b->n_cells, .n_turns = flags.repeats};
    return bench_measure(&plan, measure_cell, b, e);
}

/* --- results --------------------------------------------------------------------------------------*/
static interval rate_of(const cell *c, interval ms)
{
    return (interval){cell_rate(c, ms.median), cell_rate(c, ms.high), cell_rate(c, ms.low)};
}

static void print_cell(const measured *x)
{
    interval ms = stats_median(x->ms, x->n), rate = rate_of(&x->c, ms);
    printf("%-8s %6d %8d %10.3f %9.1f [%.1f, %.1f]", cell_kinds[x->c.kind], x->c.rows, x->c.context, ms.median,
           rate.median, rate.low, rate.high);
    if (x->experts.n_layers)
        printf("  %.1f, %d to %d (%.1f) of %d", x->experts.distinct, x->experts.min, x->experts.max, x->experts.uniform,
               x->experts.n_experts);
    putchar('\n');
}

static void print_table(bench *b)
{
    bench_print_engine(&b->g, flags.engine.path, &flags.engine.kv.types);
    printf("; median of %d with a 90%% interval, %d steps each\n", flags.repeats, flags.steps);
    printf("%-8s %6s %8s %10s %9s %s\n", "kind", "rows", "context", "ms", "tok/s",
           "[90%]  experts touched per layer: mean, minimum to maximum (if drawn evenly)");
    for (int i = 0; i < b->n_cells; i++) print_cell(&b->cells[i]);
}

static void put_point(json_writer *w, const measured *x)
{
    interval ms = stats_median(x->ms, x->n);
    json_begin_object(w);
    json_member_int(w, x->c.kind == CELL_PREFILL ? "tokens" : "rows", x->c.rows);
    result_interval(w, "ms", ms);
    result_interval(w, "tok_s", rate_of(&x->c, ms));
    if (x->experts.n_layers) {
        json_member_int(w, "experts", x->experts.n_experts);
        json_member_real(w, "experts_touched", x->experts.distinct);
        json_member_int(w, "experts_least", x->experts.min);
        json_member_int(w, "experts_most", x->experts.max);
        json_member_real(w, "experts_uniform", x->experts.uniform);
    }
    json_end(w);
}

/* A curve: the cells of one kind and context. */
static void put_series(json_writer *w, bench *b, cell_kind kind, int context)
{
    char label[160];
    snprintf(label, sizeof label, "%.100s, %s, context %d", flags.label, cell_kinds[kind], context);
    json_begin_object(w);
    json_member_str(w, "label", label);
    json_member_str(w, "kind", cell_kinds[kind]);
    json_member_int(w, "context", context);
    json_key(w, "points");
    json_begin_array(w);
    for (int i = 0; i < b->n_cells; i++)
        if (b->cells[i].c.kind == kind && b->cells[i].c.context == context) put_point(w, &b->cells[i]);
    json_end(w);
    json_end(w);
}

static bool write_json(bench *b, err *e)
{
    result_doc   doc;
    json_writer *w = result_begin(&doc, "rows");
    provenance_put(&b->from, w, &b->g, cli_path_name(flags.engine.path), &flags.engine.kv.types);
    json_member_int(w, "steps", flags.steps);
    json_member_int(w, "repeats", flags.repeats);
    json_key(w, "series");
    json_begin_array(w);
    for (int k = 0; k < b->n_contexts; k++) put_series(w, b, kind_of_rows(), b->context[k]);
    put_series(w, b, CELL_PREFILL, 0);
    json_end(w);
    return result_end(&doc, flags.json, e);
}

/* --- cells from standard input ---------------------------------------------------------------------*/
static void answer_line(bench *b, str line, buf *out)
{
    cell        c;
    double      ms;
    err         e = {0};
    json_writer w;
    bool        ok = cell_parse(&c, line, &e) && reserve_cell(b, &c, &e) && cell_run(b->rig, &c, &ms, NULL, &e);
    buf_clear(out);
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_key(&w, "cell");
    json_put_str(&w, line);
    if (ok) {
        json_member_real(&w, "ms", ms);
        json_member_real(&w, "tok_s", cell_rate(&c, ms));
    } else
        json_member_str(&w, "error", e.text);
    json_end(&w);
    printf("%.*s\n", (int)out->n, out->p);
}

static bool answer_stdin(bench *b, err *e)
{
    char text[MAX_LINE];
    buf  out;
    bool ok = true;
    buf_init(&out, 1 << 16);
    while (ok && fgets(text, sizeof text, stdin)) {
        str line = {text, strcspn(text, "\r\n")};
        if (!line.n) continue;
        answer_line(b, line, &out);
        ok = cli_flush(e);
    }
    buf_deinit(&out);
    return ok;
}

/* --- the command ----------------------------------------------------------------------------------*/
static bool measure_rows(void *ctx, err *e)
{
    bench *b = ctx;
    if (!bench_choose_model(&flags.shape, &flags.engine, e)) return false;
    flags.engine.wrap  = wrap_ops;
    flags.engine.n_ctx = 1; /* the cells have pages of their own */
    if (!cli_open_pages(&b->g, &flags.engine, e) ||
        !cell_rig_new(&b->rig, b->g.model, &flags.engine.kv.types, profiled, e))
        return false;
    if (flags.cpu_time) cell_rig_use_cpu_time(b->rig);
    if (profiled) b->roof = measure_roof(b->g.model);
    if (flags.ask) return answer_stdin(b, e);
    if (flags.json && !provenance_file(&b->from, flags.shape.given ? NULL : flags.engine.path, !flags.no_hash, e))
        return false;
    if (!choose_cells(b, e) || !measure_cells(b, e)) return false;
    print_table(b);
    return !flags.json || write_json(b, e);
}

static bool check_flags(void *ctx)
{
    bench *b = ctx;
    err    e = {0};
    if (!bench_check_shape(&flags.shape, flags.engine.path, &usage)) return false;
    if (flags.chain && flags.tree) return opt_usage(&usage, "--chain and --tree exclude each other"), false;
    if (flags.ask && (flags.json || flags.profile))
        return opt_usage(&usage, "--ask excludes --json and --profile"), false;
    if (!choose_cells(b, &e)) return opt_usage(&usage, "%s", e.text), false;
    if (flags.profile && !flags.repeats_given) flags.repeats = 1;
    return true;
}

static const bench_command command = {
    .part = "rows", .usage = &usage, .check = check_flags, .measure = measure_rows, .json = &flags.json};

int bench_rows(int argc, char **args)
{
    bench *b = xnew(bench);
    b->cells = xnew_n(measured, MAX_CELLS);
    int code = bench_run(&command, &b->from, b, argc, args);
    cell_rig_free(b->rig);
    open_close(&b->g);
    shape_free(&flags.shape.target);
    provenance_deinit(&b->from);
    mem_free(b->cells);
    mem_free(b);
    return code;
}
