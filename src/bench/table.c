/* tandem bench table: what a user waits for, by context size and by way of decoding.
 *
 * Every prompt is new and exactly as long as its row says; the answer has a fixed length. All arms answer the same prompt,
 * one after the other in an order that turns, plain decoding twice (bench/arms.h), and what they write is compared.
 *
 *  clean     every answer starts from nothing: a new lane
 *  session   an arm answers one prompt of each size in one lane, the sizes ascending, and then a probe: a new prompt of the
 *            smallest size, which must be as fast as the first one was
 *
 *      |<------ ttft ------>|<-- decoding -->|       pp_tps      = prompt tokens / ttft
 *      prompt               first token  ... last    gen_tps     = tokens after the first / decoding; tpot is its inverse
 *      |<---------------- e2e -------------->|       wall_tg_tps = answer tokens / e2e
 *
 * Ratios compare the same metric of the same prompt's answers, pair by pair. */
#include "bench/arms.h"
#include "bench/bare.h"
#include "bench/bench.h"
#include "bench/flags.h"
#include "bench/prompts.h"
#include "bench/provenance.h"
#include "bench/result.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_SIZES = 16, MAX_CELLS = MAX_SIZES + 1, MAX_REPEATS = 1000, ANSWER = 128 };

static struct {
    generate_flags gen;
    shape_flags    shape;
    const char    *methods, *contexts, *json;
    int            repeats;
    bool           session, no_hash;
} flags = {.gen = GENERATE_DEFAULTS, .shape = SHAPE_DEFAULTS, .contexts = "512,2048", .repeats = 9};

static const option opts[] = {
    OPT_GENERATE(flags.gen),
    OPT_SHAPE(flags.shape),
    OPT_WORDS("methods", flags.methods, ARMS_HELP),
    OPT_WORDS("contexts", flags.contexts, "prompt sizes in tokens (default 512,2048)"),
    OPT_REPEATS(flags.repeats, MAX_REPEATS, NULL, "prompts of each size (default 9)"),
    {.name = "session",
     .kind = OPT_FLAG,
     .dest = &flags.session,
     .help = "all sizes in one conversation's memory, ascending, then the smallest again"},
    OPT_RESULT(flags.json, flags.no_hash),
    OPT_LOGGING,
};
static const opt_spec usage = {
    "bench", "bench [table] [-m MODEL | --shape SHAPE] [--draft DRAFTER] [FLAGS]",
    "Measures prompts and answers by context size and by method, in interleaved pairs: time to the first token and "
    "per\n"
    "token, rates, the whole answer, memory, acceptance; medians with 90% intervals. -n is 128 here. Other parts:\n"
    "bench rows (steps by number of rows), bench spec (methods on short prompts), bench plot (results as SVG), bench "
    "shape (a made-up model as a file).",
    opts, COUNT(opts)};

typedef enum { TTFT, PP, TPOT, GEN, WALL, E2E, THROUGHPUT, GEN_RATIO, WALL_RATIO, METRICS } metric;
static const char *const metric_names[METRICS] = {"ttft_ms", "pp_tps",         "tpot_ms",   "gen_tps",   "wall_tg_tps",
                                                  "e2e_ms",  "throughput_tps", "gen_ratio", "wall_ratio"};

/* The answers of one arm to the prompts of one size. */
typedef struct {
    double     x[METRICS][MAX_REPEATS];
    int        n;
    size_t     reused;     /* prompt tokens that an earlier answer had left, at most */
    size_t     peak_bytes; /* of this process */
    size_t     device_bytes;
    spec_stats stats;
} tally;

typedef struct {
    engine       g;
    tok         *tok;
    bare         gen;
    prompt_maker prompts;
    provenance   from;
    arm_choice   arm[ARMS_MAX];
    int          n_arms, n_different;
    int          size[MAX_CELLS], n_sizes, n_cells; /* a session's probe is the last cell */
    tok_ids      prompt[MAX_CELLS], first_text[MAX_CELLS], text;
    tally       *tally[MAX_CELLS]; /* [n_arms] */
} bench;

/* --- memory ---------------------------------------------------------------------------------------*/
/* Starts the kernel's record of the largest resident size anew. */
static void clear_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = write(fd, "5", 1);
    (void)n; /* where it is not allowed the figure is that of the whole run */
    close(fd);
}

static size_t read_peak(void)
{
    char          line[256];
    unsigned long kib = 0;
    FILE         *f   = fopen("/proc/self/status", "r");
    while (f && !kib && fgets(line, sizeof line, f)) sscanf(line, "VmHWM: %lu", &kib);
    if (f) fclose(f);
    return (size_t)kib << 10;
}

static size_t device_used(const bench *b)
{
    ops_device d;
    return strncmp(b->g.device.name, "cuda", 4) || !ops_device_find(&d, b->g.device.name, NULL)
               ? 0
               : d.total_bytes - d.free_bytes;
}

/* --- running --------------------------------------------------------------------------------------*/
static bool on_token(void *ctx, int32_t id)
{
    bench *b = ctx;
    return tok_ids_put(&b->text, id);
}

static bool renew_lane(bench *b, err *e)
{
    spec_lane_free(b->g.lane);
    b->g.lane = NULL;
    spec_forget(b->g.spec);
    return spec_lane_new(b->g.spec, &b->g.lane, e);
}

static void note(bench *b, tally *t)
{
    const bare *a                 = &b->gen;
    size_t      n_run             = a->n_prompt - a->n_reused;
    double      e2e               = a->prefill_s + a->decode_s;
    double      values[GEN_RATIO] = {[TTFT]       = 1e3 * a->prefill_s,
                                     [PP]         = (double)n_run / a->prefill_s,
                                     [TPOT]       = 1e3 * a->decode_s / (a->n_out - 1),
                                     [GEN]        = (a->n_out - 1) / a->decode_s,
                                     [WALL]       = a->n_out / e2e,
                                     [E2E]        = 1e3 * e2e,
                                     [THROUGHPUT] = ((double)n_run + a->n_out) / e2e};
    size_t      peak = read_peak(), device = device_used(b);
    for (int m = 0; m < GEN_RATIO; m++) t->x[m][t->n] = values[m];
    t->n++;
    if (a->n_reused > t->reused) t->reused = a->n_reused;
    if (peak > t->peak_bytes) t->peak_bytes = peak;
    if (device > t->device_bytes) t->device_bytes = device;
    spec_stats_add(&t->stats, spec_lane_stats(b->g.lane));
}

static bool answer(bench *b, int arm, int cell, tally *t, err *e)
{
    b->gen.lane.spec = b->arm[arm].spec;
    b->text.n        = 0;
    clear_peak();
    if (!bare_check(&b->gen, &b->prompt[cell], e) || !bare_run(&b->gen, &b->prompt[cell], e)) return false;
    if (b->gen.n_out < 2) return err_set(e, ERR_INPUT, "the context leaves no room for an answer: use a larger --ctx");
    if (t) note(b, t);
    return true;
}

static void note_ratios(bench *b, int cell)
{
    tally *t = b->tally[cell];
    int    n = t->n - 1;
    for (int k = 0; k < b->n_arms; k++) {
        t[k].x[GEN_RATIO][n]  = t[k].x[GEN][n] / t[0].x[GEN][n];
        t[k].x[WALL_RATIO][n] = t[k].x[WALL][n] / t[0].x[WALL][n];
    }
}

/* New prompts for the cells first .. last, answered by every arm in a lane of its own. */
static bool run_unit(bench *b, int first, int last, int turn, err *e)
{
    for (int c = first; c <= last; c++)
        if (!prompts_next(&b->prompts, &b->prompt[c], b->size[c], e)) return false;
    for (int i = 0; i < b->n_arms; i++) {
        int k = (i + turn) % b->n_arms;
        if (!renew_lane(b, e)) return false;
        for (int c = first; c <= last; c++) {
            if (!answer(b, k, c, &b->tally[c][k], e)) return false;
            b->n_different += !arms_agree(&b->first_text[c], &b->text, i == 0);
        }
    }
    for (int c = first; c <= last; c++) note_ratios(b, c);
    return true;
}

/* Drafters, pages, and what auto knows about costs. */
static bool warm_up(bench *b, err *e)
{
    if (!prompts_next(&b->prompts, &b->prompt[0], b->size[0], e)) return false;
    for (int k = 0; k < b->n_arms; k++)
        if (!renew_lane(b, e) || !answer(b, k, 0, NULL, e)) return false;
    return true;
}

static bool run_all(bench *b, err *e)
{
    progress_bar bar;
    int          units = flags.session ? 1 : b->n_cells, turn = 0;
    if (!warm_up(b, e)) return false;
    progress_start(&bar, "measuring");
    bar.no_bytes = true;
    for (int u = 0; u < units; u++)
        for (int r = 0; r < flags.repeats; r++) {
            progress_show(&bar, (size_t)turn, (size_t)(units * flags.repeats));
            if (!run_unit(b, u, flags.session ? b->n_cells - 1 : u, turn++, e)) return false;
        }
    progress_end(&bar);
    return true;
}

/* --- results --------------------------------------------------------------------------------------*/
static interval of(tally *t, metric m) { return stats_median(t->x[m], t->n); }
static bool     is_probe(const bench *b, int cell) { return cell == b->n_sizes; }

static void print_arm(bench *b, int cell, int k)
{
    tally   *t   = &b->tally[cell][k];
    interval gen = of(t, GEN_RATIO), wall = of(t, WALL_RATIO);
    char     size[24];
    snprintf(size, sizeof size, "%d%s", b->size[cell], is_probe(b, cell) ? " probe" : "");
    printf("%-12s %-12s %9.1f %8.1f %8.2f %8.1f %5.2f [%.2f, %.2f] %8.1f %5.2f [%.2f, %.2f] %8.0f %8.1f %8.0f", size,
           b->arm[k].name, of(t, TTFT).median, of(t, PP).median, of(t, TPOT).median, of(t, GEN).median, gen.median,
           gen.low, gen.high, of(t, WALL).median, wall.median, wall.low, wall.high, of(t, E2E).median,
           of(t, THROUGHPUT).median, (double)(t->device_bytes ? t->device_bytes : t->peak_bytes) / 1e6);
    if (t->stats.rounds)
        printf(" %6.2f %5.1f%%", spec_acceptance_length(&t->stats), 100 * spec_acceptance_rate(&t->stats));
    putchar('\n');
}

static void print_table(bench *b)
{
    const ops *o = b->g.model->o;
    printf("%s on %s (%s kernels), %d threads, K/V %s, %s, answers of %d tokens, temperature %g; medians of %d, ratios "
           "to off with "
           "90%% intervals\n",
           cli_path_name(flags.gen.engine.path), b->g.device.name, o->kernels ? o->kernels : "its own", o->n_threads,
           generate_kv_names[flags.gen.kv], flags.session ? "one session" : "clean", b->gen.max_tokens,
           (double)b->gen.lane.params.temp, flags.repeats);
    printf("%-12s %-12s %9s %8s %8s %8s %-18s %8s %-18s %8s %8s %8s %6s %6s\n", "context", "arm", "ttft ms", "pp tok/s",
           "tpot ms", "gen_tps", "ratio [90%]", "wall_tg", "ratio [90%]", "e2e ms", "all/s", "peak MB", "length",
           "rate");
    for (int c = 0; c < b->n_cells; c++)
        for (int k = 0; k < b->n_arms; k++) print_arm(b, c, k);
    printf("%s\n", b->n_different ? "THE TEXTS DIFFER" : "all arms wrote the same text");
}

static void put_arm(json_writer *w, const arm_choice *a, tally *t)
{
    json_begin_object(w);
    result_str(w, "name", a->name);
    result_str(w, "kv", generate_kv_names[flags.gen.kv]);
    result_int(w, "answers", t->n);
    result_int(w, "reused_tokens", (int64_t)t->reused);
    for (int m = 0; m < METRICS; m++) result_interval(w, metric_names[m], of(t, (metric)m));
    result_int(w, "peak_bytes", (int64_t)t->peak_bytes);
    result_int(w, "device_bytes", (int64_t)t->device_bytes);
    result_int(w, "drafted", t->stats.drafted);
    result_int(w, "accepted", t->stats.accepted);
    result_real(w, "acceptance_length", spec_acceptance_length(&t->stats));
    result_real(w, "acceptance_rate", spec_acceptance_rate(&t->stats));
    arms_put_rounds(w, &t->stats);
    json_end(w);
}

static void put_cell(json_writer *w, bench *b, int cell)
{
    json_begin_object(w);
    result_int(w, "context", b->size[cell]);
    json_key(w, "probe");
    json_put_bool(w, is_probe(b, cell));
    json_key(w, "arms");
    json_begin_array(w);
    for (int k = 0; k < b->n_arms; k++) put_arm(w, &b->arm[k], &b->tally[cell][k]);
    json_end(w);
    json_end(w);
}

static bool write_json(bench *b, err *e)
{
    buf         out;
    json_writer w;
    buf_init(&out, 1 << 24);
    json_writer_init(&w, &out);
    json_begin_object(&w);
    result_str(&w, "bench", "table");
    result_str(&w, "mode", flags.session ? "session" : "clean");
    provenance_put(&b->from, &w, &b->g, cli_path_name(flags.gen.engine.path), generate_kv_names[flags.gen.kv]);
    result_int(&w, "answer_tokens", b->gen.max_tokens);
    result_int(&w, "repeats", flags.repeats);
    result_real(&w, "temperature", (double)b->gen.lane.params.temp);
    result_int(&w, "different_texts", b->n_different);
    json_key(&w, "cells");
    json_begin_array(&w);
    for (int c = 0; c < b->n_cells; c++) put_cell(&w, b, c);
    json_end(&w);
    json_end(&w);
    bool ok = result_write(flags.json, buf_str(&out), e);
    buf_deinit(&out);
    return ok;
}

/* --- the command ----------------------------------------------------------------------------------*/
static int ascending(const void *x, const void *y) { return *(const int *)x - *(const int *)y; }

static bool choose_sizes(bench *b, err *e)
{
    if (!result_numbers(flags.contexts, b->size, MAX_SIZES, &b->n_sizes, 1, GENERATE_MAX_CONTEXT / 2, e)) return false;
    qsort(b->size, (size_t)b->n_sizes, sizeof *b->size, ascending);
    b->n_cells = b->n_sizes;
    if (flags.session) b->size[b->n_cells++] = b->size[0];
    return true;
}

static bool open_all(bench *b, err *e)
{
    generate_flags *f = &flags.gen;
    f->method         = SPEC_AUTO; /* all drafters are wanted */
    f->method_given   = true;
    if (!f->engine.n_ctx) f->engine.n_ctx = b->size[b->n_sizes - 1] + f->max_tokens + 1;
    if (!bare_open(&b->g, f, e) ||
        !bench_open_prompts(&b->prompts, &b->tok, b->g.model, flags.shape.given ? NULL : f->engine.path, e) ||
        !bare_init(&b->gen, &b->g, b->tok, f, e))
        return false;
    b->gen.on_token   = on_token;
    b->gen.ctx        = b;
    b->gen.ignore_eos = true;
    if (!arms_choose(b->arm, &b->n_arms, flags.methods, b->g.spec, &b->gen.lane.spec, e)) return false;
    for (int c = 0; c < b->n_cells; c++) b->tally[c] = xnew_n(tally, (size_t)b->n_arms);
    return true;
}

static bool note_files(bench *b, err *e)
{
    const char *model = flags.shape.given ? NULL : flags.gen.engine.path;
    return !flags.json || provenance_files(&b->from, model, &flags.gen.draft, !flags.no_hash, e);
}

static bool measure(bench *b, err *e)
{
    if ((flags.json && !cli_check_output(flags.json, e)) || !bench_open_model(&flags.shape, &flags.gen.engine, e) ||
        !bench_open_drafter(&flags.shape, &flags.gen.draft, e))
        return false;
    if (!open_all(b, e) || !note_files(b, e) || !run_all(b, e)) return false;
    print_table(b);
    if (flags.json && !write_json(b, e)) return false;
    return b->n_different == 0 || err_set(e, ERR_FORMAT, "%d answers differ from the first arm's", b->n_different);
}

/* What can be wrong with the flags: true, or a message was printed. */
static bool check_flags(bench *b)
{
    err e = {0};
    if (!bench_check_generate(&flags.gen, &usage) || !bench_check_shape(&flags.shape, flags.gen.engine.path, &usage))
        return false;
    if (!arms_check(flags.methods, &e)) return opt_usage(&usage, "--methods: %s", e.text), false;
    if (!choose_sizes(b, &e)) return opt_usage(&usage, "--contexts: %s", e.text), false;
    if (flags.gen.max_tokens < 0) flags.gen.max_tokens = ANSWER;
    if (!flags.gen.seed_given) flags.gen.seed = 1, flags.gen.seed_given = true;
    return true;
}

static void close_all(bench *b)
{
    for (int c = 0; c < MAX_CELLS; c++) {
        tok_ids_deinit(&b->prompt[c]);
        tok_ids_deinit(&b->first_text[c]);
        mem_free(b->tally[c]);
    }
    tok_ids_deinit(&b->text);
    if (b->gen.g) bare_deinit(&b->gen);
    prompts_deinit(&b->prompts);
    provenance_deinit(&b->from);
    engine_close(&b->g);
    shape_free(&flags.shape.target);
    shape_free(&flags.shape.drafter);
    tok_free(b->tok);
    mem_free(b);
}

int bench_table(int argc, char **args)
{
    int    n_args, code;
    err    e = {0};
    bench *b = xnew(bench);
    provenance_command(&b->from, "table", argc, args);
    tok_ids_init(&b->text, GENERATE_MAX_CONTEXT);
    for (int c = 0; c < MAX_CELLS; c++) {
        tok_ids_init(&b->prompt[c], GENERATE_MAX_CONTEXT);
        tok_ids_init(&b->first_text[c], GENERATE_MAX_CONTEXT);
    }
    if (opt_parse(&usage, argc, args, &n_args, &code)) {
        if (n_args)
            code = opt_usage(
                &usage, "'%s' is no part of bench: there are table, rows, spec, raw, lanes, plot and shape", args[0]);
        else
            code = !check_flags(b) ? 2 : measure(b, &e) ? 0 : cli_fail(&e);
    }
    close_all(b);
    return code;
}
