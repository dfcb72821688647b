/* tandem bench table: latency and throughput by context size and method.
 *
 * Every prompt is new and has exactly the length of its row; the response has a fixed length. All arms run the same
 * prompt in rotating order, plain decoding twice (bench/arms.h), and their texts are compared.
 *
 *  clean     every answer starts from nothing: a new lane
 *  session   an arm answers one prompt of each size in one lane, the sizes ascending, and then a probe: a new prompt
 *            of the smallest size, which must be as fast as the first one was
 *
 *      |<------ ttft ------>|<-- decoding -->|       pp_tps      = prompt tokens / ttft
 *      prompt               first token  ... last    gen_tps     = tokens after the first / decoding; tpot: 1 / gen_tps
 *      |<---------------- e2e -------------->|       wall_tg_tps = answer tokens / e2e
 *
 * Ratios compare the same metric of the same prompt's answers, pair by pair. */
#include "bench/arms.h"
#include "bench/bare.h"
#include "bench/bench.h"
#include "bench/rig.h"
#include "chat/prompts.h"
#include "figures/result.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_SIZES = 16, MAX_CELLS = MAX_SIZES + 1, MAX_REPEATS = 1000, ANSWER = 128 };

static struct {
    method_flags with;
    const char  *contexts, *json;
    int          repeats;
    bool         session;
} flags = {.with = METHOD_DEFAULTS, .contexts = "512,2048", .repeats = 9};

static const option opts[] = {
    OPT_GENERATE(flags.with.gen),
    OPT_SHAPE(flags.with.shape),
    OPT_WORDS("methods", flags.with.methods, ARMS_HELP),
    OPT_WORDS("contexts", flags.contexts, "prompt sizes in tokens (default 512,2048)"),
    OPT_REPEATS(flags.repeats, MAX_REPEATS, NULL, "prompts of each size (default 9)"),
    {.name = "session",
     .kind = OPT_FLAG,
     .dest = &flags.session,
     .help = "all sizes in one conversation's memory, ascending, then the smallest again"},
    OPT_RESULT(flags.json, flags.with.no_hash),
    OPT_LOGGING,
};
static const opt_spec usage = {
    "bench", "bench [table] [-m MODEL | --shape SHAPE] [--draft DRAFTER] [FLAGS]",
    "Measures prompts and answers by context size and by method, in interleaved pairs: time to the first token and "
    "per\n"
    "token, rates, the whole answer, memory, acceptance; medians with 90% intervals. -n is 128 here. Other parts:\n"
    "bench rows (steps by number of rows), bench spec (methods on short prompts), bench raw (the engine against "
    "the bare loop), bench lanes\n"
    "(rates by number of users), bench kv (types of K and V), bench pick (picking tokens from logits), bench plot "
    "(results as SVG),\n"
    "bench shape (a made-up model as a file), bench serve (a server with simulated acceptance).",
    opts, COUNT(opts)};

typedef enum { TTFT, PP, TPOT, GEN, WALL, E2E, THROUGHPUT, METRICS } metric;
static const char *const metric_names[METRICS] = {"ttft_ms",     "pp_tps", "tpot_ms",       "gen_tps",
                                                  "wall_tg_tps", "e2e_ms", "throughput_tps"};

/* The answers of one arm to the prompts of one size. */
typedef struct {
    double             x[METRICS][MAX_REPEATS];
    int                n;
    size_t             reused;     /* maximum of prompt tokens reused from earlier responses */
    size_t             peak_bytes; /* peak memory of this process */
    size_t             device_bytes;
    tandem_spec_counts stats;
} tally;

typedef struct {
    bench_rig    rig;
    bare         gen;
    prompt_maker prompts;
    arm_choice   arm[ARMS_MAX];
    int          n_arms, n_different;
    int          size[MAX_CELLS], n_sizes, n_cells; /* a session's probe is the last cell */
    tok_ids      prompt[MAX_CELLS], first_text[MAX_CELLS], text;
    tally       *tally[MAX_CELLS]; /* [n_arms] */
} bench;

/* --- memory ---------------------------------------------------------------------------------------*/
/* Resets the kernel's record of the peak resident size. */
static void clear_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = write(fd, "5", 1);
    (void)n; /* if not permitted, the peak is that of the whole run */
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
    return strncmp(b->rig.g.device.name, "cuda", 4) || !ops_device_find(&d, b->rig.g.device.name, NULL)
               ? 0
               : d.total_bytes - d.free_bytes;
}

/* --- running --------------------------------------------------------------------------------------*/
static bool note_token(void *ctx, int32_t id)
{
    bench *b = ctx;
    return tok_ids_put(&b->text, id);
}

static bool renew_lane(bench *b, err *e)
{
    spec_lane_free(b->rig.g.lane);
    b->rig.g.lane = NULL;
    spec_forget(b->rig.g.spec);
    return spec_lane_new(b->rig.g.spec, &b->rig.g.lane, e);
}

static void note_answer(bench *b, tally *t)
{
    const bare *a               = &b->gen;
    size_t      n_run           = a->n_prompt - a->n_reused;
    double      e2e             = a->prefill_s + a->decode_s;
    double      values[METRICS] = {[TTFT]       = 1e3 * a->prefill_s,
                                   [PP]         = (double)n_run / a->prefill_s,
                                   [TPOT]       = 1e3 * a->decode_s / (a->n_out - 1),
                                   [GEN]        = (a->n_out - 1) / a->decode_s,
                                   [WALL]       = a->n_out / e2e,
                                   [E2E]        = 1e3 * e2e,
                                   [THROUGHPUT] = ((double)n_run + a->n_out) / e2e};
    size_t      peak = read_peak(), device = device_used(b);
    for (int m = 0; m < METRICS; m++) t->x[m][t->n] = values[m];
    t->n++;
    if (a->n_reused > t->reused) t->reused = a->n_reused;
    if (peak > t->peak_bytes) t->peak_bytes = peak;
    if (device > t->device_bytes) t->device_bytes = device;
    spec_counts_add(&t->stats, spec_lane_stats(b->rig.g.lane));
}

static bool answer_prompt(bench *b, int arm, int cell, tally *t, err *e)
{
    b->gen.lane.spec = job_spec_settings(&b->arm[arm].spec);
    b->text.n        = 0;
    clear_peak();
    if (!bare_check(&b->gen, &b->prompt[cell], e) || !bare_run(&b->gen, &b->prompt[cell], e)) return false;
    if (b->gen.n_out < 2) return err_set(e, ERR_INPUT, "the context leaves no room for an answer: use a larger --ctx");
    if (t) note_answer(b, t);
    return true;
}

/* Makes the prompts of a turn for the cells first .. last. */
static bool renew_prompts(bench *b, int first, int last, err *e)
{
    for (int c = first; c <= last; c++)
        if (!prompts_next(&b->prompts, &b->prompt[c], b->size[c], e)) return false;
    return true;
}

/* Answers the prompts of a turn with one arm, in a new lane: of one cell, or of all cells in a session. */
static bool measure_arm(void *ctx, const measure_run *at, err *e)
{
    bench *b    = ctx;
    int    last = flags.session ? b->n_cells - 1 : at->cell;
    if ((at->first && !renew_prompts(b, at->cell, last, e)) || !renew_lane(b, e)) return false;
    for (int c = at->cell; c <= last; c++) {
        if (!answer_prompt(b, at->arm, c, &b->tally[c][at->arm], e)) return false;
        b->n_different += !arms_agree(&b->first_text[c], &b->text, at->first);
    }
    return true;
}

/* Answers a prompt of the smallest size, which warms up drafters, pages and the cost model of auto. */
static bool warm_up_arm(void *ctx, const measure_run *at, err *e)
{
    bench *b = ctx;
    return (!at->first || renew_prompts(b, 0, 0, e)) && renew_lane(b, e) && answer_prompt(b, at->arm, 0, NULL, e);
}

static bool measure_arms(bench *b, err *e)
{
    measure_plan first = {.n_cells = 1, .n_arms = b->n_arms, .n_turns = 1};
    measure_plan plan  = {.n_cells = flags.session ? 1 : b->n_cells, .n_arms = b->n_arms, .n_turns = flags.repeats};
    return bench_measure(&first, warm_up_arm, b, e) && bench_measure(&plan, measure_arm, b, e);
}

/* --- results --------------------------------------------------------------------------------------*/
static interval median_of(const tally *t, metric m) { return stats_median(t->x[m], t->n); }
/* Returns the ratio of an arm to plain decoding, which is the first arm of the cell. */
static interval ratio_of(const tally *t, const tally *plain, metric m)
{
    return stats_ratio(t->x[m], plain->x[m], t->n);
}
static bool is_probe(const bench *b, int cell) { return cell == b->n_sizes; }

static void print_arm(bench *b, int cell, int k)
{
    const tally *t = &b->tally[cell][k], *plain = &b->tally[cell][0];
    interval     gen = ratio_of(t, plain, GEN), wall = ratio_of(t, plain, WALL);
    char         size[24];
    snprintf(size, sizeof size, "%d%s", b->size[cell], is_probe(b, cell) ? " probe" : "");
    printf("%-12s %-12s %9.1f %8.1f %8.2f %8.1f %5.2f [%.2f, %.2f] %8.1f %5.2f [%.2f, %.2f] %8.0f %8.1f %8.0f", size,
           b->arm[k].name, median_of(t, TTFT).median, median_of(t, PP).median, median_of(t, TPOT).median,
           median_of(t, GEN).median, gen.median, gen.low, gen.high, median_of(t, WALL).median, wall.median, wall.low,
           wall.high, median_of(t, E2E).median, median_of(t, THROUGHPUT).median,
           (double)(t->device_bytes ? t->device_bytes : t->peak_bytes) / 1e6);
    if (t->stats.rounds)
        printf(" %6.2f %5.1f%%", spec_acceptance_length(&t->stats), 100 * spec_acceptance_rate(&t->stats));
    putchar('\n');
}

static void print_table(bench *b)
{
    bench_print_engine(&b->rig.g, flags.with.gen.engine.path, &flags.with.gen.engine.kv.types);
    printf(", %s, answers of %d tokens, temperature %g; medians of %d, ratios to off with 90%% intervals\n",
           flags.session ? "one session" : "clean", b->gen.max_tokens, (double)b->gen.lane.params.temp, flags.repeats);
    printf("%-12s %-12s %9s %8s %8s %8s %-18s %8s %-18s %8s %8s %8s %6s %6s\n", "context", "arm", "ttft ms", "pp tok/s",
           "tpot ms", "gen_tps", "ratio [90%]", "wall_tg", "ratio [90%]", "e2e ms", "all/s", "peak MB", "length",
           "rate");
    for (int c = 0; c < b->n_cells; c++)
        for (int k = 0; k < b->n_arms; k++) print_arm(b, c, k);
    printf("%s\n", b->n_different ? "THE TEXTS DIFFER" : "all arms wrote the same text");
}

static void put_arm(json_writer *w, const arm_choice *a, const tally *t, const tally *plain)
{
    char kv[KV_TYPES_TEXT];
    json_begin_object(w);
    json_member_str(w, "name", a->name);
    json_member_str(w, "kv", kv_types_text(&flags.with.gen.engine.kv.types, kv));
    json_member_int(w, "answers", t->n);
    json_member_int(w, "reused_tokens", (int64_t)t->reused);
    for (int m = 0; m < METRICS; m++) result_interval(w, metric_names[m], median_of(t, (metric)m));
    result_interval(w, "gen_ratio", ratio_of(t, plain, GEN));
    result_interval(w, "wall_ratio", ratio_of(t, plain, WALL));
    json_member_int(w, "peak_bytes", (int64_t)t->peak_bytes);
    json_member_int(w, "device_bytes", (int64_t)t->device_bytes);
    json_member_int(w, "drafted", t->stats.drafted);
    json_member_int(w, "accepted", t->stats.accepted);
    json_member_real(w, "acceptance_length", spec_acceptance_length(&t->stats));
    json_member_real(w, "acceptance_rate", spec_acceptance_rate(&t->stats));
    arms_put_rounds(w, &t->stats);
    json_end(w);
}

static void put_cell(json_writer *w, bench *b, int cell)
{
    json_begin_object(w);
    json_member_int(w, "context", b->size[cell]);
    json_key(w, "probe");
    json_put_bool(w, is_probe(b, cell));
    json_key(w, "arms");
    json_begin_array(w);
    for (int k = 0; k < b->n_arms; k++) put_arm(w, &b->arm[k], &b->tally[cell][k], b->tally[cell]);
    json_end(w);
    json_end(w);
}

static bool write_json(bench *b, err *e)
{
    result_doc   doc;
    json_writer *w = result_begin(&doc, "table");
    json_member_str(w, "mode", flags.session ? "session" : "clean");
    provenance_put(&b->rig.from, w, &b->rig.g, cli_path_name(flags.with.gen.engine.path),
                   &flags.with.gen.engine.kv.types);
    json_member_int(w, "answer_tokens", b->gen.max_tokens);
    json_member_int(w, "repeats", flags.repeats);
    json_member_real(w, "temperature", (double)b->gen.lane.params.temp);
    json_member_int(w, "different_texts", b->n_different);
    json_key(w, "cells");
    json_begin_array(w);
    for (int c = 0; c < b->n_cells; c++) put_cell(w, b, c);
    json_end(w);
    return result_end(&doc, flags.json, e);
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

static bool open_bench(bench *b, err *e)
{
    generate_flags *f = &flags.with.gen;
    if (!f->engine.n_ctx) f->engine.n_ctx = b->size[b->n_sizes - 1] + f->max_tokens + 1;
    if (!rig_open(&b->rig, &flags.with, false, e) || !bench_init_prompts(&b->prompts, &b->rig.g, e) ||
        !bare_init(&b->gen, &b->rig.g, b->rig.g.tok, f, e))
        return false;
    b->gen.on_token   = note_token;
    b->gen.ctx        = b;
    b->gen.ignore_eos = true;
    if (!rig_choose_arms(&b->rig, &flags.with, b->arm, &b->n_arms, e)) return false;
    for (int c = 0; c < b->n_cells; c++) b->tally[c] = xnew_n(tally, (size_t)b->n_arms);
    return true;
}

static bool measure_table(void *ctx, err *e)
{
    bench *b = ctx;
    if (!open_bench(b, e) || (flags.json && !rig_note_files(&b->rig, &flags.with, e)) || !measure_arms(b, e))
        return false;
    print_table(b);
    if (flags.json && !write_json(b, e)) return false;
    return b->n_different == 0 || err_set(e, ERR_FORMAT, "%d answers differ from the first arm's", b->n_different);
}

static bool check_flags(void *ctx)
{
    bench *b = ctx;
    err    e = {0};
    if (!bench_check_methods(&flags.with, ANSWER, &usage)) return false;
    return choose_sizes(b, &e) || (opt_usage(&usage, "--contexts: %s", e.text), false);
}

static void each_text(bench *b, void (*f)(tok_ids *ids))
{
    f(&b->text);
    for (int c = 0; c < MAX_CELLS; c++) {
        f(&b->prompt[c]);
        f(&b->first_text[c]);
    }
}

static void begin_text(tok_ids *ids) { tok_ids_init(ids, GENERATE_MAX_CONTEXT); }

static const bench_command command = {
    .part    = "table",
    .usage   = &usage,
    .check   = check_flags,
    .measure = measure_table,
    .json    = &flags.json,
    .stray   = "is not a part of bench, expected table, rows, spec, raw, lanes, kv, pick, plot, shape or serve"};

int bench_table(int argc, char **args)
{
    bench *b = xnew(bench);
    each_text(b, begin_text);
    int code = bench_run(&command, &b->rig.from, b, argc, args);
    each_text(b, tok_ids_deinit);
    for (int c = 0; c < MAX_CELLS; c++) mem_free(b->tally[c]);
    if (b->gen.g) bare_deinit(&b->gen);
    prompts_deinit(&b->prompts);
    rig_close(&b->rig, &flags.with);
    mem_free(b);
    return code;
}
