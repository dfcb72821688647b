/* tandem bench raw: the bare loop, and what the engine around it costs.
 *
 * Every prompt is answered by every method three times, in turns: by the bare loop on this thread, by the engine on its own
 * thread with this one as its reader, and by the bare loop again: what those two differ by is the noise. Both run on one
 * model and one set of pages. Times are those of the caller, from the request to the last token in its hands. */
#include "base/clock.h"
#include "bench/arms.h"
#include "bench/bare.h"
#include "bench/bench.h"
#include "bench/flags.h"
#include "bench/prompt_set.h"
#include "bench/result.h"

#include <stdio.h>

enum { MAX_PAIRS = 4096, RANDOM_PROMPTS = 4 };
enum { RAW, ENGINE, RAW_AGAIN, WAYS };

static struct {
    generate_flags gen;
    shape_flags    shape;
    const char    *methods, *prompts;
    int            repeats, n_prompt;
    bool           json, no_hash;
} flags = {.gen = GENERATE_DEFAULTS, .shape = SHAPE_DEFAULTS, .repeats = 3, .n_prompt = 128};

static const option opts[] = {
    OPT_GENERATE(flags.gen),
    OPT_SHAPE(flags.shape),
    {.name = "prompt-tokens",
     .kind = OPT_INT,
     .dest = &flags.n_prompt,
     .arg  = "N",
     .min  = 1,
     .max  = 1 << 20,
     .help = "length of the random prompts that a shape gets (default 128)"},
    OPT_WORDS("methods", flags.methods, ARMS_HELP),
    {.name = "prompts",
     .kind = OPT_STR,
     .dest = &flags.prompts,
     .arg  = "FILE",
     .help = "a prompt a line (default: some of our own)"},
    OPT_REPEATS(flags.repeats, 1000, NULL, "times that every prompt is answered every way (default 3)"),
    {.name = "json", .kind = OPT_FLAG, .dest = &flags.json, .help = "the results as JSON"},
    OPT_NO_HASH(flags.no_hash),
    OPT_LOGGING,
};
static const opt_spec usage = {"bench", "bench raw [-m MODEL | --shape SHAPE] [--draft DRAFTER] [FLAGS]",
                               "Times the bare loop and the engine at one lane, in interleaved pairs: the ratios of "
                               "their rates and of their times\n"
                               "to the first token with a 90% interval. Also checks that both write the same text.",
                               opts, COUNT(opts)};

typedef struct {
    double  wall_s, decode_s; /* decode: behind the first token, as the loop itself sees it */
    int64_t tokens;
} timing;

typedef struct {
    arm_choice choice;
    timing     sum[WAYS];
    double     wall[WAYS][MAX_PAIRS], decode[WAYS][MAX_PAIRS]; /* ratios of the bare loop's time to it */
    int        n;
} arm;

typedef struct {
    engine         g;
    tok           *t;
    bare           loop;
    sched         *sched;
    tandem_request request;
    tandem_bias    bias[TANDEM_MAX_BIAS];
    provenance     from;
    prompt_set     prompts;
    int            n_arms, n_different;
    arm            arms[ARMS_MAX];
    tok_ids        text, first_text;
    double         decode_s; /* of the last answer of the engine */
} bench;

/* --- both ways ------------------------------------------------------------------------------------*/
static bool on_token(void *ctx, int32_t id)
{
    bench *b = ctx;
    return tok_ids_put(&b->text, id);
}

static bool read_answer(bench *b, tandem_job *j, err *e)
{
    tandem_token x[64];
    for (;;) {
        tandem_wait(j, -1);
        const tandem_result *r = tandem_job_result(j);
        size_t               n = tandem_poll(j, x, COUNT(x));
        for (size_t i = 0; i < n; i++) on_token(b, x[i].id);
        if (!r || n == COUNT(x)) continue;
        b->decode_s = r->usage.decode_s;
        return r->finish != TANDEM_FINISH_ERROR || err_set(e, (err_code)r->error.code, "%s", r->error.text);
    }
}

static bool ask_engine(bench *b, const arm *a, const chat_prompt *p, err *e)
{
    tandem_job *j;
    b->request.ids              = p->ids.p;
    b->request.n_ids            = p->ids.n;
    b->request.spec.method      = (tandem_method)a->choice.spec.method;
    b->request.spec.draft_max   = a->choice.spec.draft_max;
    b->request.spec.tree_budget = a->choice.spec.tree_budget;
    if (!sched_submit(b->sched, &b->request, &j, e)) return false;
    bool ok = read_answer(b, j, e);
    tandem_release(j);
    return ok;
}

static bool answer(bench *b, const arm *a, const chat_prompt *p, int way, timing *out, err *e)
{
    double start      = clock_s();
    b->text.n         = 0;
    b->loop.lane.spec = a->choice.spec;
    if (!(way == ENGINE ? ask_engine(b, a, p, e) : bare_run(&b->loop, &p->ids, e))) return false;
    *out = (timing){clock_s() - start, way == ENGINE ? b->decode_s : b->loop.decode_s, (int64_t)b->text.n};
    return true;
}

static bool answer_all_ways(bench *b, arm *a, const chat_prompt *p, int turn, bool first, err *e)
{
    timing x[WAYS];
    for (int i = 0; i < WAYS; i++) {
        int way = (i + turn) % WAYS;
        if (!answer(b, a, p, way, &x[way], e)) return false;
        b->n_different += !arms_agree(&b->first_text, &b->text, first && i == 0);
    }
    if (x[RAW].tokens < 2 || a->n == MAX_PAIRS) return true; /* nothing was decoded */
    for (int way = 0; way < WAYS; way++) {
        a->sum[way].wall_s += x[way].wall_s;
        a->sum[way].decode_s += x[way].decode_s;
        a->sum[way].tokens += x[way].tokens;
        a->wall[way][a->n]   = x[RAW].wall_s / x[way].wall_s;
        a->decode[way][a->n] = x[RAW].decode_s / x[way].decode_s;
    }
    a->n++;
    return true;
}

static bool run_all(bench *b, err *e)
{
    progress_bar bar;
    int          turn = 0, total = (flags.repeats + 1) * b->prompts.n;
    progress_start(&bar, "measuring");
    bar.no_bytes = true;
    for (int r = -1; r < flags.repeats; r++) { /* once to warm up: drafters, pages, and what is known about costs */
        for (int i = 0; i < b->prompts.n; i++, turn++)
            for (int k = 0; k < b->n_arms; k++) {
                progress_show(&bar, (size_t)turn, (size_t)total);
                if (!answer_all_ways(b, &b->arms[k], &b->prompts.prompt[i], turn, k == 0, e)) return false;
            }
        for (int k = 0; r < 0 && k < b->n_arms; k++) {
            b->arms[k].n = 0;
            memset(b->arms[k].sum, 0, sizeof b->arms[k].sum);
        }
    }
    progress_end(&bar);
    return true;
}

/* --- results --------------------------------------------------------------------------------------*/
static double rate(const timing *x) { return (double)x->tokens / x->wall_s; }

static void print_table(bench *b)
{
    printf("%s, %d threads; %d prompts, %d pairs an arm\n", b->g.model->o->name, b->g.model->o->n_threads, b->prompts.n,
           b->arms[0].n);
    printf("%-12s %9s %9s   %-20s   %-20s   %-20s\n", "arm", "raw tok/s", "engine", "ratio [90%]", "decoding alone",
           "raw again");
    for (int k = 0; k < b->n_arms; k++) {
        arm     *a    = &b->arms[k];
        interval wall = stats_median(a->wall[ENGINE], a->n), again = stats_median(a->wall[RAW_AGAIN], a->n);
        interval decode = stats_median(a->decode[ENGINE], a->n);
        printf("%-12s %9.1f %9.1f   %5.3f [%.3f, %.3f]   %5.3f [%.3f, %.3f]   %5.3f [%.3f, %.3f]\n", a->choice.name,
               rate(&a->sum[RAW]), rate(&a->sum[ENGINE]), wall.median, wall.low, wall.high, decode.median, decode.low,
               decode.high, again.median, again.low, again.high);
    }
    printf("%s\n", b->n_different ? "THE TEXTS DIFFER" : "all wrote the same text");
}

static void put_arm(json_writer *w, arm *a)
{
    json_begin_object(w);
    result_str(w, "name", a->choice.name);
    result_int(w, "tokens", a->sum[RAW].tokens);
    result_real(w, "raw_tokens_per_second", rate(&a->sum[RAW]));
    result_real(w, "engine_tokens_per_second", rate(&a->sum[ENGINE]));
    result_interval(w, "ratio", stats_median(a->wall[ENGINE], a->n));
    result_interval(w, "decode_ratio", stats_median(a->decode[ENGINE], a->n));
    result_interval(w, "raw_again", stats_median(a->wall[RAW_AGAIN], a->n));
    json_end(w);
}

static void print_json(bench *b)
{
    buf         out;
    json_writer w;
    buf_init(&out, 1 << 24);
    json_writer_init(&w, &out);
    json_begin_object(&w);
    result_str(&w, "bench", "raw");
    provenance_put(&b->from, &w, &b->g, cli_path_name(flags.gen.engine.path), generate_kv_names[flags.gen.kv]);
    result_int(&w, "prompts", b->prompts.n);
    result_int(&w, "pairs", b->arms[0].n);
    result_int(&w, "different_texts", b->n_different);
    json_key(&w, "arms");
    json_begin_array(&w);
    for (int i = 0; i < b->n_arms; i++) put_arm(&w, &b->arms[i]);
    json_end(&w);
    json_end(&w);
    printf("%.*s\n", (int)out.n, out.p);
    buf_deinit(&out);
}

/* --- the command ----------------------------------------------------------------------------------*/
static bool open_engine(bench *b, err *e)
{
    sched_options so = {.spec        = b->g.spec,
                        .model       = b->g.model,
                        .tok         = b->t,
                        .n_ctx       = b->g.n_ctx,
                        .max_lanes   = 1,
                        .step_tokens = b->g.model->max_rows,
                        .wake_s      = 2e-3};
    settings_init(&so.settings);
    so.settings.default_max_tokens = b->g.n_ctx;
    job_request_init(&b->request, b->g.model);
    if (!generate_apply(&b->request, &flags.gen, b->g.model->n_vocab, b->bias, e)) return false;
    b->request.ignore_stop_ids = b->loop.ignore_eos;
    return sched_new(&b->sched, &so, e);
}

static bool open_all(bench *b, err *e)
{
    generate_flags *f = &flags.gen;
    arm_choice      choice[ARMS_MAX];
    f->method            = SPEC_AUTO; /* all drafters are wanted */
    f->engine.more_lanes = 1;
    if (!bench_open_model(&flags.shape, &f->engine, e) || !bench_open_drafter(&flags.shape, &f->draft, e) ||
        (!flags.shape.given && !open_tok(&b->t, f->engine.path, e)) || !bare_open(&b->g, f, e) ||
        !bare_init(&b->loop, &b->g, b->t, f, e) ||
        !arms_choose(choice, &b->n_arms, flags.methods, b->g.spec, &b->loop.lane.spec, e))
        return false;
    b->n_arms--; /* the bare loop again is what shows the noise */
    b->arms[0].choice = choice[0];
    for (int i = 1; i < b->n_arms; i++) b->arms[i].choice = choice[i + 1];
    b->loop.on_token   = on_token;
    b->loop.ctx        = b;
    b->loop.ignore_eos = flags.shape.given;
    return open_engine(b, e);
}

static bool choose_prompts(bench *b, err *e)
{
    const char *path = flags.shape.given ? NULL : flags.gen.engine.path;
    if (!bench_fill_prompts(&b->prompts, flags.prompts, b->t, b->g.model, path, RANDOM_PROMPTS, flags.n_prompt, e))
        return false;
    for (int i = 0; i < b->prompts.n; i++)
        if (!bare_check(&b->loop, &b->prompts.prompt[i].ids, e)) return false;
    return true;
}

static bool measure(bench *b, err *e)
{
    const char *model = flags.shape.given ? NULL : flags.gen.engine.path;
    if (!open_all(b, e)) return false;
    if (flags.json && !provenance_files(&b->from, model, &flags.gen.draft, !flags.no_hash, e)) return false;
    if (!choose_prompts(b, e) || !run_all(b, e)) return false;
    (flags.json ? print_json : print_table)(b);
    return b->n_different == 0 || err_set(e, ERR_FORMAT, "%d answers differ from the bare loop's", b->n_different);
}

/* What can be wrong with the flags: true, or a message was printed. */
static bool check_flags(void)
{
    err e = {0};
    if (!bench_check_generate(&flags.gen, &usage) || !bench_check_shape(&flags.shape, flags.gen.engine.path, &usage))
        return false;
    if (!arms_check(flags.methods, &e)) return opt_usage(&usage, "--methods: %s", e.text), false;
    if (flags.shape.given && flags.prompts)
        return opt_usage(&usage, "--prompts are texts, and a shape has none"), false;
    if (!flags.gen.seed_given) flags.gen.seed = 1, flags.gen.seed_given = true;
    if (flags.gen.max_tokens < 0) flags.gen.max_tokens = flags.shape.given ? 128 : 256;
    return true;
}

static void close_all(bench *b)
{
    prompt_set_deinit(&b->prompts);
    tok_ids_deinit(&b->text);
    tok_ids_deinit(&b->first_text);
    sched_free(b->sched);
    if (b->loop.g) bare_deinit(&b->loop);
    engine_close(&b->g);
    provenance_deinit(&b->from);
    shape_free(&flags.shape.target);
    shape_free(&flags.shape.drafter);
    tok_free(b->t);
    mem_free(b);
}

int bench_raw(int argc, char **args)
{
    int    n_args, code;
    err    e = {0};
    bench *b = xnew(bench);
    tok_ids_init(&b->text, GENERATE_MAX_CONTEXT);
    tok_ids_init(&b->first_text, GENERATE_MAX_CONTEXT);
    provenance_command(&b->from, "raw", argc, args);
    if (opt_parse(&usage, argc, args, &n_args, &code)) {
        if (n_args)
            code = opt_usage(&usage, "'%s' is not a flag", args[0]);
        else
            code = !check_flags() ? 2 : measure(b, &e) ? 0 : cli_fail(&e);
    }
    close_all(b);
    return code;
}
