#include "base/clock.h"
#include "chat/gemma4.h"
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <sys/random.h>

enum { MAX_CONTEXT = 1 << 24 };

static struct {
    engine_options engine;
    int            max_tokens, kv, spec;
    float          temp, top_p, min_p;
    int            top_k;
    uint64_t       seed;
    const char    *ids;
    bool           temp_given, top_k_given, top_p_given, min_p_given, seed_given;
    bool           raw, print_ids, ignore_eos, stats;
} flags;

static const char *const kv_names[]   = {"f16", "f32", NULL};
static const char *const spec_names[] = {"off", NULL};

static const option opts[] = {
    {.name   = "model",
     .letter = 'm',
     .kind   = OPT_STR,
     .dest   = &flags.engine.path,
     .arg    = "MODEL",
     .help   = "GGUF file or Hugging Face directory"},
    {.name   = "max-tokens",
     .letter = 'n',
     .kind   = OPT_INT,
     .dest   = &flags.max_tokens,
     .arg    = "N",
     .min    = 0,
     .max    = MAX_CONTEXT,
     .help   = "stop after N tokens (default: until the answer or the context ends)"},
    {.name = "ctx",
     .kind = OPT_INT,
     .dest = &flags.engine.n_ctx,
     .arg  = "N",
     .min  = 1,
     .max  = MAX_CONTEXT,
     .help = "positions of context (default: the model's, at most 8192)"},
    {.name = "threads",
     .kind = OPT_INT,
     .dest = &flags.engine.n_threads,
     .arg  = "N",
     .min  = 1,
     .max  = 256,
     .help = "processor threads (default: all that this process may use)"},
    {.name = "device",
     .kind = OPT_STR,
     .dest = &flags.engine.device,
     .arg  = "NAME",
     .help = "auto, cpu, or ref (slow, exact)"},
    {.name    = "kv",
     .kind    = OPT_CHOICE,
     .dest    = &flags.kv,
     .arg     = "TYPE",
     .choices = kv_names,
     .help    = "K/V cache: f16 or f32"},
    {.name    = "spec",
     .kind    = OPT_CHOICE,
     .dest    = &flags.spec,
     .arg     = "METHOD",
     .choices = spec_names,
     .help    = "speculation: off"},
    {.name  = "temp",
     .kind  = OPT_REAL,
     .dest  = &flags.temp,
     .arg   = "T",
     .min   = 0,
     .max   = 100,
     .given = &flags.temp_given,
     .help  = "temperature; 0 is greedy (default: the model's)"},
    {.name  = "top-k",
     .kind  = OPT_INT,
     .dest  = &flags.top_k,
     .arg   = "K",
     .min   = 0,
     .max   = 1 << 22,
     .given = &flags.top_k_given,
     .help  = "keep the K likeliest tokens; 0: all"},
    {.name  = "top-p",
     .kind  = OPT_REAL,
     .dest  = &flags.top_p,
     .arg   = "P",
     .min   = 0,
     .max   = 1,
     .given = &flags.top_p_given,
     .help  = "keep the likeliest tokens that reach P together; 1: all"},
    {.name  = "min-p",
     .kind  = OPT_REAL,
     .dest  = &flags.min_p,
     .arg   = "P",
     .min   = 0,
     .max   = 1,
     .given = &flags.min_p_given,
     .help  = "drop tokens under P times the likeliest; 0: none"},
    {.name  = "seed",
     .kind  = OPT_U64,
     .dest  = &flags.seed,
     .arg   = "N",
     .given = &flags.seed_given,
     .help  = "decides the text together with model, prompt and options"},
    {.name = "raw", .kind = OPT_FLAG, .dest = &flags.raw, .help = "no chat format: continue the text"},
    {.name = "ids",
     .kind = OPT_STR,
     .dest = &flags.ids,
     .arg  = "LIST",
     .help = "token ids such as 2,15,9 instead of a prompt"},
    {.name = "print-ids", .kind = OPT_FLAG, .dest = &flags.print_ids, .help = "print token ids instead of text"},
    {.name = "ignore-eos", .kind = OPT_FLAG, .dest = &flags.ignore_eos, .help = "go on after an end-of-answer token"},
    {.name = "stats", .kind = OPT_FLAG, .dest = &flags.stats, .help = "rates and counts on stderr at the end"},
    OPT_LOGGING,
};
static const opt_spec spec = {
    "run", "run -m MODEL [FLAGS] [PROMPT]",
    "Answers one prompt, streamed to standard output. Without PROMPT and --ids, standard input is the prompt.", opts,
    COUNT(opts)};

/* --- the prompt ---------------------------------------------------------------------------------*/
static bool make_prompt(tok_ids *out, const engine *g, const tok *t, int n_args, char **args, err *e)
{
    buf text;
    if (flags.ids) return cli_parse_ids(out, str_of(flags.ids), g->model->n_vocab, e);
    buf_init(&text, TOK_MAX_INPUT);
    bool ok = cli_input(&text, n_args, args, e);
    if (ok && flags.raw) {
        if (tok_add_bos(t) && tok_bos(t) >= 0) tok_ids_put(out, tok_bos(t));
        ok = tok_encode(t, out, buf_str(&text), false, e);
    } else if (ok) {
        ok = gemma4_user_prompt(out, t, buf_str(&text), g->model->empty_thought, e);
    }
    buf_deinit(&text);
    return ok;
}

static bool check_prompt(const tok_ids *prompt, const engine *g, err *e)
{
    if (!prompt->n) return err_set(e, ERR_INPUT, "the prompt is empty");
    if (prompt->n >= (size_t)g->n_ctx && flags.max_tokens != 0)
        return err_set(e, ERR_INPUT, "the prompt has %zu tokens and the context holds %d: use a larger --ctx",
                       prompt->n, g->n_ctx);
    for (size_t i = 0; i < prompt->n; i++)
        if (prompt->p[i] >= g->model->n_vocab)
            return err_set(e, ERR_INPUT,
                           "the tokenizer gives token %d, but the model has only %d: they do not belong together",
                           prompt->p[i], g->model->n_vocab);
    return true;
}

/* --- the answer ---------------------------------------------------------------------------------*/
static volatile sig_atomic_t interrupted;
static void                  on_interrupt(int sig) { interrupted = sig; }

typedef struct {
    engine       *g;
    const tok    *tok; /* NULL: ids only */
    tok_stream    stream;
    buf           text;
    tok_ids       stops;
    sample_params params;
    int           n_out;
    double        prefill_s, decode_s;
} answer;

static sample_params choose_params(const target *m)
{
    sample_params p = m->defaults;
    if (flags.temp_given) p.temp = flags.temp;
    if (flags.top_k_given) p.top_k = flags.top_k;
    if (flags.top_p_given) p.top_p = flags.top_p;
    if (flags.min_p_given) p.min_p = flags.min_p;
    p.seed = flags.seed;
    if (!flags.seed_given && getrandom(&p.seed, sizeof p.seed, 0) != sizeof p.seed) p.seed = (uint64_t)clock_ns();
    return p;
}

static bool is_stop(const answer *a, int32_t id)
{
    for (size_t i = 0; i < a->stops.n; i++)
        if (a->stops.p[i] == id) return true;
    return false;
}

static void print_token(answer *a, int32_t id)
{
    if (flags.print_ids) {
        printf("%s%d", a->n_out > 1 ? " " : "", id);
    } else {
        buf_clear(&a->text);
        tok_stream_put(&a->stream, id, &a->text);
        fwrite(a->text.p, 1, a->text.n, stdout);
    }
    fflush(stdout);
}

/* One token after another until a stop token, the limit, the end of the context, or the user. */
static bool decode(answer *a, err *e)
{
    engine *g     = a->g;
    int     limit = flags.max_tokens >= 0 ? flags.max_tokens : g->n_ctx;
    while (a->n_out < limit && !interrupted) {
        int32_t id;
        if (!engine_pick(g, &a->params, &id, e)) return false;
        a->n_out++;
        bool stop = !flags.ignore_eos && is_stop(a, id);
        if (!stop || flags.print_ids) print_token(a, id);
        if (stop || a->n_out == limit) return true;
        if (kv_seq_len(g->seq) == g->n_ctx) {
            fprintf(stderr, "\ntandem: the context of %d is full (--ctx)\n", g->n_ctx);
            return true;
        }
        if (!engine_feed(g, &id, 1, e)) return false;
    }
    return true;
}

static void print_stats(const answer *a, size_t n_prompt)
{
    fprintf(stderr, "prompt %zu tokens in %.2f s (%.1f tok/s), answer %d tokens in %.2f s (%.1f tok/s)\n", n_prompt,
            a->prefill_s, (double)n_prompt / a->prefill_s, a->n_out, a->decode_s,
            a->n_out > 1 ? (a->n_out - 1) / a->decode_s : 0.0);
}

static bool run_answer(answer *a, const tok_ids *prompt, err *e)
{
    struct sigaction act = {.sa_handler = on_interrupt,
                            .sa_flags   = (int)SA_RESETHAND}; /* a second one ends the process */
    double           t0  = clock_s();
    sigaction(SIGINT, &act, NULL);
    if (!engine_feed(a->g, prompt->p, (int)prompt->n, e)) return false;
    a->prefill_s = clock_s() - t0;
    t0           = clock_s();
    bool ok      = decode(a, e);
    a->decode_s  = clock_s() - t0;
    if (!flags.print_ids) {
        buf_clear(&a->text);
        tok_stream_finish(&a->stream, &a->text);
        fwrite(a->text.p, 1, a->text.n, stdout);
    }
    putchar('\n');
    fflush(stdout);
    return ok;
}

static bool answer_prompt(engine *g, const tok *t, const tok_ids *prompt, err *e)
{
    answer a = {.g = g, .tok = t, .params = choose_params(g->model)};
    buf_init(&a.text, 1 << 20);
    tok_ids_init(&a.stops, 1024);
    for (int i = 0; i < g->model->n_stop_ids; i++) tok_ids_put(&a.stops, g->model->stop_id[i]);
    if (t) {
        tok_stop_ids(t, &a.stops);
        tok_stream_init(&a.stream, t, false);
    }
    bool ok = run_answer(&a, prompt, e);
    if (ok && flags.stats) print_stats(&a, prompt->n);
    if (ok && a.params.temp > 0 && !flags.seed_given) fprintf(stderr, "seed %llu\n", (unsigned long long)a.params.seed);
    tok_ids_deinit(&a.stops);
    buf_deinit(&a.text);
    return ok;
}

static bool run(int n_args, char **args, err *e)
{
    bool    need_text = !flags.ids || !flags.print_ids, ok = false;
    tok    *t = NULL;
    engine  g = {0};
    tok_ids prompt;
    tok_ids_init(&prompt, MAX_CONTEXT);
    if (need_text && !cli_open_tok(&t, flags.engine.path, e)) {
        err_wrap(e, "no text without a tokenizer (--ids and --print-ids do without)");
        goto done;
    }
    if (!engine_open(&g, &flags.engine, e)) goto done;
    if (!make_prompt(&prompt, &g, t, n_args, args, e) || !check_prompt(&prompt, &g, e)) goto done;
    ok = answer_prompt(&g, t, &prompt, e);
done:
    tok_ids_deinit(&prompt);
    engine_close(&g);
    tok_free(t);
    return ok;
}

int cmd_run(int argc, char **args)
{
    int n_args, code;
    err e            = {0};
    flags.max_tokens = -1;
    if (!opt_parse(&spec, argc, args, &n_args, &code)) return code;
    if (!flags.engine.path) return opt_usage(&spec, "which model? Give -m MODEL");
    if (flags.ids && n_args)
        return opt_usage(&spec, "--ids takes the place of a prompt, but '%s' was given too", args[0]);
    flags.engine.kv_type = flags.kv == 0 ? QUANT_F16 : QUANT_F32;
    return run(n_args, args, &e) ? 0 : cli_fail(&e);
}
