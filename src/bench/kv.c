/* tandem bench kv: the types of K and V. For each type: bytes per token, rates after given contexts, perplexity of a
 * text, agreement with f32 about the likeliest token, and acceptance of drafts.
 *
 * The rates are those of bench/cells.h: a step of one row, and a chunk of a prompt, after a random context. The types
 * take turns. The text is that of a file, or the responses that f32 writes to the built-in prompts. The loop is opened
 * for each type in turn, over one copy of the weights. */
#include "base/file.h"
#include "bench/bare.h"
#include "bench/bench.h"
#include "bench/cells.h"
#include "bench/rig.h"
#include "figures/result.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TYPES = 16, MAX_CONTEXTS = 8, MAX_REPEATS = 100, PREFILL_TOKENS = 256, MAX_TEXT = 1 << 22, METHODS = 2 };
static const spec_method methods[METHODS] = {SPEC_DFLASH, SPEC_MTP};

static struct {
    generate_flags gen;
    shape_flags    shape;
    const char    *types, *contexts, *text, *json;
    int            repeats, window, steps;
    bool           everywhere, no_hash, cpu_time;
} flags = {.gen      = GENERATE_DEFAULTS,
           .shape    = SHAPE_DEFAULTS,
           .types    = "f16,q8_0,q8_0/q4_0,q4_0,q8_0/tq3,tq3",
           .contexts = "4096,32768,131072",
           .repeats  = 3,
           .window   = 1024,
           .steps    = 8};

static const option opts[] = {
    OPT_ENGINE(flags.gen.engine),
    OPT_SHAPE(flags.shape),
    OPT_DRAFT(flags.gen.draft),
    OPT_WORDS(
        "types", flags.types,
        "types of K and V, such as q8_0,q8_0/q4_0, and f16@0.05 for sparse attention (default: f16 and all others)"),
    OPT_WORDS("contexts", flags.contexts, "positions before the timed rows (default 4096,32768,131072)"),
    {.name = "everywhere",
     .kind = OPT_FLAG,
     .dest = &flags.everywhere,
     .help = "the types are also those of sliding layers and of drafters (default: f16)"},
    {.name = "text",
     .kind = OPT_STR,
     .dest = &flags.text,
     .arg  = "FILE",
     .help = "text for the perplexity (default: the responses of f32 to the built-in prompts)"},
    {.name = "window",
     .kind = OPT_INT,
     .dest = &flags.window,
     .arg  = "N",
     .min  = 16,
     .max  = 1 << 20,
     .help = "tokens of the text that are read together (default 1024)"},
    {.name   = "max-tokens",
     .letter = 'n',
     .kind   = OPT_INT,
     .dest   = &flags.gen.max_tokens,
     .arg    = "N",
     .min    = 1,
     .max    = 4096,
     .help   = "tokens of a response (default 128)"},
    OPT_REPEATS(flags.repeats, MAX_REPEATS, NULL, "measurements of each rate (default 3)"),
    OPT_CPU_TIME(flags.cpu_time),
    OPT_RESULT(flags.json, flags.no_hash),
    OPT_LOGGING,
};
static const opt_spec usage = {"bench kv", "bench kv [-m MODEL | --shape SHAPE] [--draft DRAFTER] [FLAGS]",
                               "Compares types of K and V: memory, speed, perplexity and acceptance of drafts.", opts,
                               COUNT(opts)};

typedef struct {
    cache_types        types;
    kv_types           kv;
    char               name[CACHE_TYPES_TEXT + SPARSE_TEXT];
    size_t             bytes, bytes_full; /* per token */
    double             decode_ms[MAX_CONTEXTS][MAX_REPEATS], prefill_ms[MAX_CONTEXTS][MAX_REPEATS];
    int                n_ms[MAX_CONTEXTS];
    double             nll; /* sum over the scored tokens */
    int64_t            n_scored, n_same;
    tandem_spec_counts counts[METHODS];
} measured;

typedef struct {
    opened_model g;
    provenance   from;
    prompt_set   prompts;
    bare         gen;
    tok_ids      text;               /* all windows, one after the other */
    size_t      *window, n_windows;  /* [n_windows + 1]: their beginnings in text */
    int32_t     *best;               /* [text.n]: the likeliest token by f32 */
    measured     f32, of[MAX_TYPES]; /* f32: the reference */
    int          n_types, n_contexts, context[MAX_CONTEXTS];
} bench;

/* --- the loop with one type -----------------------------------------------------------------------*/
static kv_types all_types(cache_types t)
{
    return flags.everywhere ? (kv_types){.full = t, .sliding = t, .draft = t} : kv_types_default(t);
}

static void close_loop(bench *b)
{
    spec_lane_free(b->g.lane);
    spec_free(b->g.spec);
    b->g.lane = NULL;
    b->g.spec = NULL;
}

static bool open_types(bench *b, const kv_types *kv, err *e)
{
    spec_options so = {.max_lanes = 1, .kv_type = *kv};
    close_loop(b);
    if (!open_loop(&b->g, &so, e) || !spec_lane_new(b->g.spec, &b->g.lane, e)) return false;
    cli_add_drafters(&b->g, &flags.gen.draft, kv->draft);
    return true;
}

/* --- the text -------------------------------------------------------------------------------------*/
static bool end_window(bench *b) { return (b->window[++b->n_windows] = b->text.n, true); }

static bool on_token(void *ctx, int32_t id) { return tok_ids_put(&((bench *)ctx)->text, id); }

/* Makes windows of the prompts and of the responses that f32 writes. */
static bool write_text(bench *b, err *e)
{
    for (int i = 0; i < b->prompts.n; i++) {
        const tok_ids *p = &b->prompts.prompt[i].ids;
        if (!tok_ids_put_n(&b->text, p->p, p->n) || !bare_run(&b->gen, p, e)) return false;
        end_window(b);
    }
    return true;
}

static bool read_text(bench *b, err *e)
{
    file_map m    = {0};
    tok_ids  all  = {0};
    bool     ok   = file_map_open(&m, flags.text, e);
    size_t   each = (size_t)flags.window;
    tok_ids_init(&all, MAX_TEXT);
    ok = ok && tok_encode(b->g.tok, &all, (str){m.p, m.n}, true, e);
    if (ok && all.n < 16) ok = err_set(e, ERR_INPUT, "%s has only %zu tokens", flags.text, all.n);
    for (size_t at = 0; ok && at + 16 <= all.n && b->n_windows < PROMPT_SET_MAX; at += each) {
        size_t n = all.n - at < each ? all.n - at : each;
        ok       = tok_ids_put_n(&b->text, all.p + at, n) && end_window(b);
    }
    tok_ids_deinit(&all);
    file_map_close(&m);
    return ok;
}

/* Adds the scores that the last step computed. from: the first token of the window in the text. */
static void add_scores(bench *b, measured *m, size_t from, bool reference)
{
    spec_scores s = spec_lane_scores(b->g.lane);
    for (int i = 0; i < s.n; i++) {
        const token_logprob *x  = s.item + (size_t)i * (size_t)s.stride;
        size_t               at = from + (size_t)s.first + (size_t)i;
        m->nll -= (double)x[0].logprob;
        if (reference) b->best[at] = x[1].id;
        m->n_same += x[1].id == b->best[at];
        m->n_scored++;
    }
}

static bool score_window(bench *b, measured *m, size_t w, bool reference, err *e)
{
    size_t       from = b->window[w], n = b->window[w + 1] - from, reused;
    spec_lane   *l  = b->g.lane;
    lane_request r  = {.opt      = {.params = {.top_p = 1}, .penalty = {.repeat = 1}, .n_top = 1, .score_prompt = true},
                       .prompt   = b->text.p + from,
                       .n_prompt = n,
                       .max_new  = 1};
    bool         ok = spec_lane_begin(l, &r, &reused, e);
    while (ok && !spec_lane_out(l)->n) {
        ok = spec_step_alone(b->g.spec, &l, 1, e);
        if (ok) add_scores(b, m, from, reference);
    }
    if (ok) spec_lane_keep(l, 1);
    spec_lane_end(l);
    return ok;
}

/* --- one type -------------------------------------------------------------------------------------*/
static bool draft_responses(bench *b, measured *m, err *e)
{
    for (int k = 0; k < METHODS; k++) {
        b->gen.lane.spec = (spec_settings){.method = (int)methods[k]};
        size_t was       = b->text.n;
        for (int i = 0; i < b->prompts.n && spec_has_drafter(b->g.spec, methods[k]); i++) {
            if (!bare_run(&b->gen, &b->prompts.prompt[i].ids, e)) return false;
            spec_counts_add(&m->counts[k], spec_lane_stats(b->g.lane));
            b->text.n = was;
        }
    }
    b->gen.lane.spec = (spec_settings){0};
    return true;
}

static bool measure_quality(bench *b, measured *m, bool reference, err *e)
{
    if (!open_types(b, &m->kv, e)) return false;
    for (int i = 0; i < b->g.model->n_kv_classes; i++) {
        const kv_class_spec *c = &b->g.model->kv_class[i];
        m->bytes += kv_bytes_per_pos(c);
        if (!c->window) m->bytes_full += kv_bytes_per_pos(c);
    }
    if (reference && b->prompts.n && !(flags.text ? read_text(b, e) : write_text(b, e))) return false;
    if (reference) b->best = xnew_n(int32_t, b->text.n + 1);
    for (size_t w = 0; w < b->n_windows; w++)
        if (!score_window(b, m, w, reference, e)) return false;
    return reference || draft_responses(b, m, e);
}

static bool run_cell(bench *b, cell_rig *rig, cell c, double *ms, err *e)
{
    ops_device d;
    return ops_device_find(&d, b->g.device.name, e) && cell_reserve(rig, &c, d.free_bytes, e) &&
           cell_run(rig, &c, ms, NULL, e);
}

/* Times both cells of a context. Leaves out, with a message, a context that the model or the memory does not hold. */
static bool time_context(bench *b, measured *m, int k, err *e)
{
    cell_rig *rig    = NULL;
    double    decode = 0, prefill = 0;
    int      *n  = &m->n_ms[k];
    bool      ok = cell_rig_new(&rig, b->g.model, &m->kv, NULL, e);
    if (ok && flags.cpu_time) cell_rig_use_cpu_time(rig);
    ok = ok && run_cell(b, rig, (cell){CELL_ROWS, 1, b->context[k], flags.steps}, &decode, e) &&
         run_cell(b, rig, (cell){CELL_PREFILL, PREFILL_TOKENS, b->context[k], 1}, &prefill, e);
    cell_rig_free(rig);
    if (ok) {
        m->decode_ms[k][*n]      = decode;
        m->prefill_ms[k][(*n)++] = prefill;
    }
    return ok;
}

static bool measure_rates(bench *b)
{
    for (int turn = 0; turn < flags.repeats; turn++)
        for (int k = 0; k < b->n_contexts; k++)
            for (int i = 0; i < b->n_types; i++) {
                err e = {0};
                if (!time_context(b, &b->of[i], k, &e) && !turn)
                    fprintf(stderr, "left out: %s after %d: %s\n", b->of[i].name, b->context[k], e.text);
            }
    return true;
}

/* --- results --------------------------------------------------------------------------------------*/
static double perplexity(const measured *m) { return exp(m->nll / (double)m->n_scored); }

static interval decode_rate(const measured *m, int k)
{
    interval ms = stats_median(m->decode_ms[k], m->n_ms[k]);
    return (interval){1e3 / ms.median, 1e3 / ms.high, 1e3 / ms.low};
}

static interval prefill_rate(const measured *m, int k)
{
    interval ms = stats_median(m->prefill_ms[k], m->n_ms[k]);
    return (interval){1e3 * PREFILL_TOKENS / ms.median, 1e3 * PREFILL_TOKENS / ms.high, 1e3 * PREFILL_TOKENS / ms.low};
}

static void print_type(const bench *b, const measured *m)
{
    printf("%-14s %8zu %8zu", m->name, m->bytes, m->bytes_full);
    for (int k = 0; k < b->n_contexts; k++)
        if (m->n_ms[k])
            printf(" %9.1f %9.1f", decode_rate(m, k).median, prefill_rate(m, k).median);
        else
            printf(" %9s %9s", "-", "-");
    if (m->n_scored)
        printf(" %10.4f %+8.3f%% %8.3f%%", perplexity(m), 100 * (perplexity(m) / perplexity(&b->f32) - 1),
               100 * (double)m->n_same / (double)m->n_scored);
    for (int k = 0; k < METHODS; k++)
        if (m->counts[k].drafted) printf(" %7.3f", spec_acceptance_length(&m->counts[k]));
    putchar('\n');
}

static void print_table(const bench *b)
{
    bench_print_engine(&b->g, flags.gen.engine.path, &b->of[0].kv);
    printf(" and others%s; medians of %d\n%-10s %8s %8s", flags.everywhere ? ", in all layers" : "", flags.repeats,
           "K/V", "B/token", "full");
    for (int k = 0; k < b->n_contexts; k++) printf("  %8d %9s", b->context[k], "prefill");
    if (b->n_windows) printf(" %10s %9s %9s", "perplexity", "to f32", "same top");
    for (int k = 0; k < METHODS; k++)
        if (b->of[0].counts[k].drafted) printf(" %7s", spec_method_names[methods[k]]);
    putchar('\n');
    if (b->n_windows)
        printf("%-14s %45s %lld tokens scored, perplexity of f32 %.4f\n", "", "", (long long)b->f32.n_scored,
               perplexity(&b->f32));
    for (int i = 0; i < b->n_types; i++) print_type(b, &b->of[i]);
}

static void put_type(json_writer *w, const bench *b, const measured *m)
{
    json_begin_object(w);
    json_member_str(w, "kv", m->name);
    json_member_int(w, "bytes_per_token", (int64_t)m->bytes);
    json_member_int(w, "bytes_per_token_full", (int64_t)m->bytes_full);
    json_key(w, "rates");
    json_begin_array(w);
    for (int k = 0; k < b->n_contexts; k++) {
        if (!m->n_ms[k]) continue;
        json_begin_object(w);
        json_member_int(w, "context", b->context[k]);
        result_interval(w, "decode_tok_s", decode_rate(m, k));
        result_interval(w, "prefill_tok_s", prefill_rate(m, k));
        json_end(w);
    }
    json_end(w);
    if (m->n_scored) {
        json_member_real(w, "perplexity", perplexity(m));
        json_member_real(w, "perplexity_to_f32", perplexity(m) / perplexity(&b->f32));
        json_member_real(w, "same_top", (double)m->n_same / (double)m->n_scored);
    }
    for (int k = 0; k < METHODS; k++)
        if (m->counts[k].drafted)
            json_member_real(w, methods[k] == SPEC_MTP ? "mtp_acceptance_length" : "dflash_acceptance_length",
                             spec_acceptance_length(&m->counts[k]));
    json_end(w);
}

static bool write_json(const bench *b, err *e)
{
    result_doc   doc;
    json_writer *w = result_begin(&doc, "kv");
    provenance_put(&b->from, w, &b->g, cli_path_name(flags.gen.engine.path), &b->of[0].kv);
    json_member_int(w, "tokens_scored", b->f32.n_scored);
    json_key(w, "types");
    json_begin_array(w);
    for (int i = 0; i < b->n_types; i++) put_type(w, b, &b->of[i]);
    json_end(w);
    return result_end(&doc, flags.json, e);
}

/* --- the command ----------------------------------------------------------------------------------*/
static void set_types(measured *m, cache_types t, const sparse_params *sparse)
{
    char share[SPARSE_TEXT];
    m->types     = t;
    m->kv        = all_types(t);
    m->kv.sparse = *sparse;
    cache_types_text(t, m->name);
    if (!sparse->drop) return;
    size_t n = strlen(m->name);
    snprintf(m->name + n, sizeof m->name - n, "@%s", sparse_text(sparse, share));
}

/* Parses types such as "q8_0/q4_0" or "f16@0.05". */
static bool parse_type(measured *m, str word, err *e)
{
    cache_types   t;
    sparse_params sparse = {0};
    const char   *at     = word.n ? memchr(word.s, '@', word.n) : NULL;
    str           types  = {word.s, at ? (size_t)(at - word.s) : word.n};
    if (at && !sparse_parse(&sparse, (str){at + 1, word.n - types.n - 1}, e)) return false;
    if (!cache_types_parse(&t, types, e)) return false;
    set_types(m, t, &sparse);
    return true;
}

static bool parse_types(bench *b, err *e)
{
    b->n_types = 0;
    for (const char *at = flags.types; *at;) {
        str word = str_next_word(&at);
        if (b->n_types == MAX_TYPES) return err_set(e, ERR_INPUT, "the list has more than %d types", MAX_TYPES);
        if (!parse_type(&b->of[b->n_types], word, e)) return false;
        b->n_types++;
    }
    set_types(&b->f32, cache_types_both(CACHE_F32), &(sparse_params){0});
    return b->n_types > 0 || err_set(e, ERR_INPUT, "the list is empty");
}

static bool fill_prompts(bench *b, err *e)
{
    prompt_source from = {.tok = b->g.tok, .format = b->g.format};
    if (!b->g.tok || b->g.no_format.code || flags.shape.given)
        return !flags.text || err_set(e, ERR_INPUT, "--text needs a model with a tokenizer and a chat template");
    return prompt_set_fill(&b->prompts, &from, e);
}

static bool measure_kv(void *ctx, err *e)
{
    bench *b                  = ctx;
    flags.gen.engine.text     = !flags.shape.given;
    flags.gen.engine.kv.types = b->f32.kv;
    if (!flags.gen.engine.n_ctx) flags.gen.engine.n_ctx = flags.window + 4 * flags.gen.max_tokens;
    if (!bench_choose_model(&flags.shape, &flags.gen.engine, e) ||
        !bench_choose_drafter(&flags.shape, &flags.gen.draft, e))
        return false;
    if (!bare_open(&b->g, &flags.gen, e) || !fill_prompts(b, e) || !bare_init(&b->gen, &b->g, b->g.tok, &flags.gen, e))
        return false;
    b->gen.on_token = on_token;
    b->gen.ctx      = b;
    if (flags.json && !provenance_file(&b->from, flags.shape.given ? NULL : flags.gen.engine.path, !flags.no_hash, e))
        return false;
    if (!measure_quality(b, &b->f32, true, e)) return false;
    for (int i = 0; i < b->n_types; i++)
        if (!measure_quality(b, &b->of[i], false, e)) return false;
    close_loop(b);
    if (!measure_rates(b)) return false;
    print_table(b);
    return !flags.json || write_json(b, e);
}

static bool check_flags(void *ctx)
{
    bench *b = ctx;
    err    e = {0};
    if (flags.gen.max_tokens < 0) flags.gen.max_tokens = 128;
    flags.gen.temp_given = true;
    if (!bench_check_shape(&flags.shape, flags.gen.engine.path, &usage)) return false;
    if (!parse_types(b, &e)) return opt_usage(&usage, "--types: %s", e.text), false;
    if (!result_numbers(flags.contexts, b->context, MAX_CONTEXTS, &b->n_contexts, 0, CELL_MAX_CONTEXT, &e))
        return opt_usage(&usage, "--contexts: %s", e.text), false;
    return true;
}

static const bench_command command = {
    .part = "kv", .usage = &usage, .check = check_flags, .measure = measure_kv, .json = &flags.json};

int bench_kv(int argc, char **args)
{
    bench *b  = xnew(bench);
    b->window = xnew_n(size_t, PROMPT_SET_MAX + 1);
    tok_ids_init(&b->text, MAX_TEXT);
    int code = bench_run(&command, &b->from, b, argc, args);
    bare_deinit(&b->gen);
    prompt_set_deinit(&b->prompts);
    tok_ids_deinit(&b->text);
    open_close(&b->g);
    shape_free(&flags.shape.target);
    shape_free(&flags.shape.drafter);
    provenance_deinit(&b->from);
    mem_free(b->best);
    mem_free(b->window);
    mem_free(b);
    return code;
}
