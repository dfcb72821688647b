/* tandem bench raw: the bare loop, and the overhead of the engine.
 *
 * Every method runs every prompt three times, in turns: by the bare loop on this thread, by the engine on its own
 * thread with this one as reader, and by the bare loop again, which shows the noise. All use one model and one set of
 * pages. Times are measured by the caller, from the request to the last token. */
#include "base/clock.h"
#include "bench/arms.h"
#include "bench/bare.h"
#include "bench/bench.h"
#include "bench/rig.h"
#include "figures/result.h"

#include <stdio.h>

enum { MAX_PAIRS = 4096, RANDOM_PROMPTS = 4 };
enum { RAW, ENGINE, RAW_AGAIN, WAYS };

static struct {
    method_flags with;
    int          repeats, n_prompt;
    bool         json;
} flags = {.with = METHOD_DEFAULTS, .repeats = 3, .n_prompt = 128};

static const option opts[] = {
    OPT_GENERATE(flags.with.gen),
    OPT_SHAPE(flags.with.shape),
    OPT_PROMPT_TOKENS(flags.n_prompt, 1 << 20, NULL, "length of the random prompts that a shape gets (default 128)"),
    OPT_WORDS("methods", flags.with.methods, ARMS_HELP),
    OPT_PROMPTS(flags.with.prompts, PROMPTS_HELP),
    OPT_REPEATS(flags.repeats, 1000, NULL, "times that every prompt is answered every way (default 3)"),
    {.name = "json", .kind = OPT_FLAG, .dest = &flags.json, .help = "the results as JSON"},
    OPT_NO_HASH(flags.with.no_hash),
    OPT_LOGGING,
};
static const opt_spec usage = {
    "bench raw", "bench raw [-m MODEL | --shape SHAPE] [--draft DRAFTER] [FLAGS]",
    "Times the bare loop and the engine at one lane, in interleaved pairs. For each method: "
    "tokens per second of both, and ratios\n"
    "with 90% intervals of whole answers, of decoding after the first token, and of the bare "
    "loop to itself.\n"
    "Checks that all write the same text.",
    opts, COUNT(opts)};

typedef struct {
    double  wall_s, decode_s; /* decode: after the first token, measured by the loop */
    int64_t tokens;
} timing;

typedef struct {
    arm_choice choice;
    timing     sum[WAYS];
    double     wall[WAYS][MAX_PAIRS], decode[WAYS][MAX_PAIRS]; /* seconds of each pair */
    int        n;
} arm;

typedef struct {
    bench_rig rig;
    bare      loop;
    int       n_arms, n_different;
    arm       arms[ARMS_MAX];
    tok_ids   text, first_text;
    timing    now[WAYS]; /* times in the current pair */
    double    decode_s;  /* last response of the engine */
} bench;

/* --- both ways ------------------------------------------------------------------------------------*/
static bool note_token(void *ctx, int32_t id)
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
        for (size_t i = 0; i < n; i++) note_token(b, x[i].id);
        if (!r || n == COUNT(x)) continue;
        b->decode_s = r->usage.decode_s;
        return r->finish != TANDEM_FINISH_ERROR || err_set(e, (err_code)r->error.code, "%s", r->error.text);
    }
}

static bool ask_engine(bench *b, const arm *a, const chat_prompt *p, err *e)
{
    tandem_job *j;
    b->rig.request.ids   = p->ids.p;
    b->rig.request.n_ids = p->ids.n;
    b->rig.request.spec  = a->choice.spec;
    if (!sched_submit(b->rig.sched, &b->rig.request, &j, e)) return false;
    bool ok = read_answer(b, j, e);
    tandem_release(j);
    return ok;
}

static bool answer_prompt(bench *b, const arm *a, const chat_prompt *p, int way, timing *out, err *e)
{
    double start      = clock_s();
    b->text.n         = 0;
    b->loop.lane.spec = job_spec_settings(&a->choice.spec);
    if (!(way == ENGINE ? ask_engine(b, a, p, e) : bare_run(&b->loop, &p->ids, e))) return false;
    *out = (timing){clock_s() - start, way == ENGINE ? b->decode_s : b->loop.decode_s, (int64_t)b->text.n};
    return true;
}

static void note_pair(arm *a, const timing x[WAYS])
{
    if (x[RAW].tokens < 2) return; /* nothing was decoded */
    for (int way = 0; way < WAYS; way++) {
        a->sum[way].wall_s += x[way].wall_s;
        a->sum[way].decode_s += x[way].decode_s;
        a->sum[way].tokens += x[way].tokens;
        a->wall[way][a->n]   = x[way].wall_s;
        a->decode[way][a->n] = x[way].decode_s;
    }
    a->n++;
}

/* Answers the prompt of the turn with a method (the cell) in one way (the arm). */
static bool measure_way(void *ctx, const measure_run *at, err *e)
{
    bench             *b      = ctx;
    int                n      = b->rig.prompts.n;
    const chat_prompt *prompt = &b->rig.prompts.prompt[(at->turn + n) % n];
    if (!answer_prompt(b, &b->arms[at->cell], prompt, at->arm, &b->now[at->arm], e)) return false;
    b->n_different += !arms_agree(&b->first_text, &b->text, at->first && at->cell == 0);
    if (at->last && !at->warm_up) note_pair(&b->arms[at->cell], b->now);
    return true;
}

/* Every prompt runs once to warm up drafters, pages and the cost model. */
static bool measure_ways(bench *b, err *e)
{
    int          n    = flags.repeats * b->rig.prompts.n;
    measure_plan plan = {.n_cells    = b->n_arms,
                         .n_arms     = WAYS,
                         .n_turns    = n < MAX_PAIRS ? n : MAX_PAIRS,
                         .n_warm_up  = b->rig.prompts.n,
                         .interleave = true};
    return bench_measure(&plan, measure_way, b, e);
}

/* --- results --------------------------------------------------------------------------------------*/
static double tokens_per_second(const timing *x) { return (double)x->tokens / x->wall_s; }

/* Returns the ratio of the time of the bare loop to that of another way. */
static interval speedup(double s[WAYS][MAX_PAIRS], int way, int n) { return stats_ratio(s[RAW], s[way], n); }

static void print_table(bench *b)
{
    printf("%s, %d threads; %d prompts, %d pairs an arm\n", b->rig.g.model->o->name, b->rig.g.model->o->n_threads,
           b->rig.prompts.n, b->arms[0].n);
    printf("%-12s %9s %9s   %-20s   %-20s   %-20s\n", "arm", "raw tok/s", "engine", "ratio [90%]", "decoding alone",
           "raw again");
    for (int k = 0; k < b->n_arms; k++) {
        arm     *a    = &b->arms[k];
        interval wall = speedup(a->wall, ENGINE, a->n), raw_again = speedup(a->wall, RAW_AGAIN, a->n);
        interval decode = speedup(a->decode, ENGINE, a->n);
        printf("%-12s %9.1f %9.1f   %5.3f [%.3f, %.3f]   %5.3f [%.3f, %.3f]   %5.3f [%.3f, %.3f]\n", a->choice.name,
               tokens_per_second(&a->sum[RAW]), tokens_per_second(&a->sum[ENGINE]), wall.median, wall.low, wall.high,
               decode.median, decode.low, decode.high, raw_again.median, raw_again.low, raw_again.high);
    }
    printf("%s\n", b->n_different ? "THE TEXTS DIFFER" : "all wrote the same text");
}

static void put_arm(json_writer *w, arm *a)
{
    json_begin_object(w);
    json_member_str(w, "name", a->choice.name);
    json_member_int(w, "tokens", a->sum[RAW].tokens);
    json_member_real(w, "raw_tokens_per_second", tokens_per_second(&a->sum[RAW]));
    json_member_real(w, "engine_tokens_per_second", tokens_per_second(&a->sum[ENGINE]));
    result_interval(w, "ratio", speedup(a->wall, ENGINE, a->n));
    result_interval(w, "decode_ratio", speedup(a->decode, ENGINE, a->n));
    result_interval(w, "raw_again", speedup(a->wall, RAW_AGAIN, a->n));
    json_end(w);
}

static bool print_json(bench *b, err *e)
{
    result_doc   doc;
    json_writer *w = result_begin(&doc, "raw");
    provenance_put(&b->rig.from, w, &b->rig.g, cli_path_name(flags.with.gen.engine.path),
                   &flags.with.gen.engine.kv.types);
    json_member_int(w, "prompts", b->rig.prompts.n);
    json_member_int(w, "pairs", b->arms[0].n);
    json_member_int(w, "different_texts", b->n_different);
    json_key(w, "arms");
    json_begin_array(w);
    for (int i = 0; i < b->n_arms; i++) put_arm(w, &b->arms[i]);
    json_end(w);
    return result_end(&doc, NULL, e);
}

/* --- the command ----------------------------------------------------------------------------------*/
static bool open_bench(bench *b, err *e)
{
    arm_choice choice[ARMS_MAX];
    flags.with.gen.engine.more_lanes = 1;
    if (!rig_open(&b->rig, &flags.with, true, e) || !bare_init(&b->loop, &b->rig.g, b->rig.g.tok, &flags.with.gen, e) ||
        !rig_choose_arms(&b->rig, &flags.with, choice, &b->n_arms, e))
        return false;
    b->n_arms--; /* the bare loop again is what shows the noise */
    b->arms[0].choice = choice[0];
    for (int i = 1; i < b->n_arms; i++) b->arms[i].choice = choice[i + 1];
    b->loop.on_token   = note_token;
    b->loop.ctx        = b;
    b->loop.ignore_eos = flags.with.shape.given;
    return rig_serve(&b->rig, &flags.with, 1, NULL, e);
}

static bool choose_prompts(bench *b, err *e)
{
    if (!rig_fill_prompts(&b->rig, &flags.with, RANDOM_PROMPTS, flags.n_prompt, e)) return false;
    for (int i = 0; i < b->rig.prompts.n; i++)
        if (!bare_check(&b->loop, &b->rig.prompts.prompt[i].ids, e)) return false;
    return true;
}

static bool measure_raw(void *ctx, err *e)
{
    bench *b = ctx;
    if (!open_bench(b, e) || (flags.json && !rig_note_files(&b->rig, &flags.with, e)) || !choose_prompts(b, e) ||
        !measure_ways(b, e))
        return false;
    if (!flags.json) print_table(b);
    if (flags.json && !print_json(b, e)) return false;
    return b->n_different == 0 || err_set(e, ERR_FORMAT, "%d answers differ from the bare loop's", b->n_different);
}

static bool check_flags(void *ctx)
{
    (void)ctx;
    return bench_check_methods(&flags.with, 0, &usage);
}

static const bench_command command = {.part = "raw", .usage = &usage, .check = check_flags, .measure = measure_raw};

int bench_raw(int argc, char **args)
{
    bench *b = xnew(bench);
    tok_ids_init(&b->text, GENERATE_MAX_CONTEXT);
    tok_ids_init(&b->first_text, GENERATE_MAX_CONTEXT);
    int code = bench_run(&command, &b->rig.from, b, argc, args);
    if (b->loop.g) bare_deinit(&b->loop);
    rig_close(&b->rig, &flags.with);
    tok_ids_deinit(&b->text);
    tok_ids_deinit(&b->first_text);
    mem_free(b);
    return code;
}
