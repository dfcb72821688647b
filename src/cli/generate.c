#include "cli/generate.h"

#include "base/clock.h"
#include "base/log.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

const char *const generate_kv_names[] = {"f16", "f32", NULL};

/* --- the loop -----------------------------------------------------------------------------------*/
static volatile sig_atomic_t interrupted;
static void                  on_interrupt(int sig) { interrupted = sig; }

static sample_params choose_params(const target *m, const generate_flags *f)
{
    sample_params p = m->defaults;
    if (f->temp_given) p.temp = f->temp;
    if (f->top_k_given) p.top_k = f->top_k;
    if (f->top_p_given) p.top_p = f->top_p;
    if (f->min_p_given) p.min_p = f->min_p;
    p.seed = f->seed;
    if (!f->seed_given && getrandom(&p.seed, sizeof p.seed, 0) != sizeof p.seed) p.seed = (uint64_t)clock_ns();
    return p;
}

/* "5:1.5,9:-inf" */
static bool parse_bias(const char *text, logit_bias *out, int *n, err *e)
{
    *n = 0;
    for (const char *at = text; at && *at;) {
        str         word  = str_next_word(&at);
        const char *colon = memchr(word.s, ':', word.n);
        str         id    = {word.s, colon ? (size_t)(colon - word.s) : 0};
        str         value = {word.s + id.n + 1, colon ? word.n - id.n - 1 : 0};
        int64_t     i;
        double      d = -INFINITY;
        if (!colon || !str_to_i64(id, &i) || i < 0 || i > INT32_MAX ||
            (!str_is(value, "-inf") && !str_to_f64(value, &d)))
            return err_set(e, ERR_INPUT, "'%.*s' is not ID:BIAS", STR_ARG(word));
        for (int k = 0; k < *n; k++)
            if (out[k].token == i) return err_set(e, ERR_INPUT, "token %lld is there twice", (long long)i);
        if (*n == GENERATE_MAX_BIAS) return err_set(e, ERR_INPUT, "there are over %d entries", GENERATE_MAX_BIAS);
        out[(*n)++] = (logit_bias){(int32_t)i, (float)d};
    }
    return true;
}

void generate_add_stops(stop_match *m, const generate_flags *f)
{
    stop_init(m);
    for (int i = 0; i < f->stops.n; i++) stop_add(m, str_of(f->stops.item[i]));
}

static bool needs_drafter(const generate_flags *f)
{
    return f->method == SPEC_DFLASH || f->method == SPEC_TREE || f->method == SPEC_MTP;
}

bool generate_check_flags(const generate_flags *f, const opt_spec *usage)
{
    logit_bias bias[GENERATE_MAX_BIAS];
    int        n;
    err        e = {0};
    stop_match m;
    stop_init(&m);
    if (!parse_bias(f->bias, bias, &n, &e)) return opt_usage(usage, "--logit-bias: %s", e.text), false;
    if (needs_drafter(f) && !f->draft.paths.n && f->engine.path && strcmp(f->engine.path, "nano") != 0)
        return opt_usage(usage, "--spec %s needs a drafter: give --draft", spec_method_names[f->method]), false;
    for (int i = 0; i < f->draft.paths.n; i++)
        if (!f->draft.paths.item[i][0]) return opt_usage(usage, "--draft is empty"), false;
    for (int i = 0; i < f->stops.n; i++)
        if (!stop_add(&m, str_of(f->stops.item[i])))
            return opt_usage(usage, "--stop takes up to %d texts of 1 to %d bytes", STOP_MAX_STRINGS, STOP_MAX_BYTES),
                   false;
    return true;
}

/* The user's biases, and a ban on what the model's files say is never to be picked. */
static bool init_penalty(generator *a, const generate_flags *f, err *e)
{
    const target *m = a->g->model;
    int           n;
    if (!parse_bias(f->bias, a->bias, &n, e)) return false;
    for (int i = 0; i < n; i++)
        if (a->bias[i].token >= m->n_vocab)
            return err_set(e, ERR_INPUT, "--logit-bias: token %d is not in the vocabulary of %d", a->bias[i].token,
                           m->n_vocab);
    for (int i = 0; i < m->n_suppress_ids; i++) {
        int k = 0;
        while (k < n && a->bias[k].token != m->suppress_id[i]) k++;
        a->bias[k] = (logit_bias){m->suppress_id[i], -INFINITY};
        n += k == n;
    }
    a->lane.penalty = (penalty_params){f->repeat, f->presence, f->frequency, a->bias, n};
    return true;
}

bool generator_init(generator *a, engine *g, const tok *t, const generate_flags *f, err *e)
{
    *a                         = (generator){.g          = g,
                                             .lane       = {.params = choose_params(g->model, f), .n_top = f->logprobs, .spec = f->spec},
                                             .max_tokens = f->max_tokens,
                                             .tok        = t};
    a->lane.spec.method        = f->method;
    a->lane.spec.no_chain_seed = !f->chain_seed;
    tok_ids_init(&a->stops, 1024);
    for (int i = 0; i < g->model->n_stop_ids; i++) tok_ids_put(&a->stops, g->model->stop_id[i]);
    if (t) tok_stop_ids(t, &a->stops);
    return init_penalty(a, f, e);
}

void generator_deinit(generator *a) { tok_ids_deinit(&a->stops); }

/* --- opening ------------------------------------------------------------------------------------*/
/* A drafter of the wrong kind is no reason to give no answer: the text is the same without. */
static void check_method(const engine *g, const generate_flags *f)
{
    if (needs_drafter(f) && !spec_has_drafter(g->spec, (spec_method)f->method))
        log_event(LOG_WARN, "draft", "there is no drafter for --spec %s: decoding plainly",
                  spec_method_names[f->method]);
}

bool generate_open(engine *g, generate_flags *f, err *e)
{
    bool nano         = cli_is_nano(f->engine.path);
    f->engine.kv_type = f->kv == 0 ? QUANT_F16 : QUANT_F32;
    if (!f->method_given) f->method = f->draft.paths.n || nano ? SPEC_AUTO : SPEC_OFF;
    if (!engine_open_loop(g, &f->engine, e)) return false;
    if (f->method == SPEC_OFF || f->method == SPEC_NGRAM) return true;
    if (!cli_resolve_drafters(&f->draft, nano, e)) return false;
    if (engine_add_drafters(g, &f->draft, f->engine.kv_type)) check_method(g, f);
    return true;
}

/* --- the loop -----------------------------------------------------------------------------------*/
bool generate_check(const generator *a, const tok_ids *prompt, err *e)
{
    const engine *g = a->g;
    if (!prompt->n) return err_set(e, ERR_INPUT, "the prompt is empty");
    if (prompt->n >= (size_t)g->n_ctx && a->max_tokens != 0)
        return err_set(e, ERR_INPUT, "the prompt has %zu tokens and the context holds %d: use a larger --ctx",
                       prompt->n, g->n_ctx);
    for (size_t i = 0; i < prompt->n; i++)
        if (prompt->p[i] >= g->model->n_vocab)
            return err_set(e, ERR_INPUT,
                           "the tokenizer gives token %d, but the model has only %d: they do not belong together",
                           prompt->p[i], g->model->n_vocab);
    return true;
}

static bool is_stop(const generator *a, int32_t id)
{
    for (size_t i = 0; i < a->stops.n; i++)
        if (a->stops.p[i] == id) return true;
    return false;
}

/* {"id":5,"text":"a","logprob":-0.1,"top":[{"id":5,"text":"a","logprob":-0.1}, ...]} */
static void put_logprob(json_writer *w, const generator *a, const token_logprob *x)
{
    json_key(w, "id");
    json_put_int(w, x->id);
    if (a->tok) {
        json_key(w, "text");
        json_put_str(w, tok_bytes(a->tok, x->id));
    }
    json_key(w, "logprob");
    json_put_real(w, x->logprob);
}

static void print_logprobs(const generator *a, const token_logprob *x)
{
    buf         line;
    json_writer w;
    buf_init(&line, 1 << 20);
    json_writer_init(&w, &line);
    json_begin_object(&w);
    put_logprob(&w, a, &x[0]);
    json_key(&w, "top");
    json_begin_array(&w);
    for (int i = 1; i <= a->lane.n_top && x[i].id >= 0; i++) {
        json_begin_object(&w);
        put_logprob(&w, a, &x[i]);
        json_end(&w);
    }
    json_end(&w);
    json_end(&w);
    fprintf(stderr, "%.*s\n", (int)line.n, line.p);
    buf_deinit(&line);
}

static int token_limit(const generator *a) { return a->max_tokens >= 0 ? a->max_tokens : INT_MAX; }

/* One token of the answer; false when it is the last. */
static bool take_token(generator *a, int32_t id, const token_logprob *probs)
{
    a->n_out++;
    if (a->lane.n_top >= 0) print_logprobs(a, probs);
    bool stop = !a->ignore_eos && is_stop(a, id), more = a->on_token(a->ctx, id, stop);
    return !stop && more && a->n_out < token_limit(a);
}

/* The tokens of one step, each charged by itself: those after the last one of the answer never were. */
static bool take_tokens(generator *a)
{
    const spec_out *out  = spec_lane_out(a->g->lane);
    bool            more = a->n_out < token_limit(a);
    int             n    = 0;
    for (; more && n < out->n; n++) more = take_token(a, out->token[n], out->logprob[n]);
    spec_lane_keep(a->g->lane, n);
    return more;
}

static bool run_lane(generator *a, err *e)
{
    spec_lane *l     = a->g->lane;
    double     start = clock_s();
    bool       more  = true;
    while (more && !interrupted && !(a->full = spec_lane_full(l))) {
        spec_lane_limit(l, token_limit(a) - a->n_out);
        bool prompt = a->n_out == 0;
        if (!spec_step_alone(a->g->spec, &l, 1, e)) return false;
        if (prompt) a->prefill_s = clock_s() - start;
        if (spec_lane_out(l)->problem) return err_set(e, ERR_FORMAT, "%s", spec_lane_out(l)->problem);
        more = spec_lane_out(l)->n == 0 || take_tokens(a);
        if (!cli_flush(e)) return false;
    }
    a->decode_s = clock_s() - start - a->prefill_s;
    return true;
}

bool generate(generator *a, const tok_ids *prompt, err *e)
{
    /* A write that is under way goes on, so that no token is lost; a second Ctrl-C ends us. */
    struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND | SA_RESTART}, before;
    interrupted          = 0;
    a->n_out             = 0;
    a->full              = false;
    a->n_prompt          = prompt->n;
    sigaction(SIGINT, &act, &before);
    lane_request r = {
        .opt = a->lane, .prompt = prompt->p, .n_prompt = prompt->n, .max_new = a->max_tokens > 0 ? a->max_tokens : 0};
    bool ok = spec_lane_begin(a->g->lane, &r, &a->n_reused, e) && run_lane(a, e);
    sigaction(SIGINT, &before, NULL);
    a->interrupted = interrupted;
    return ok;
}

/* --- numbers about an answer --------------------------------------------------------------------*/
static void print_methods(const spec_stats *s)
{
    fputs("rounds:", stderr);
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++)
        if (s->by_method[m]) fprintf(stderr, " %s %lld,", spec_method_names[m], (long long)s->by_method[m]);
    fprintf(stderr, " plain %lld; draft %.3f s, verify %.3f s, commit %.3f s\n", (long long)s->plain, s->draft_s,
            s->verify_s, s->commit_s);
}

static void print_acceptance(const spec_stats *s)
{
    if (!s->rounds) return;
    fprintf(stderr, "drafted %lld, accepted %lld (%.1f%%), acceptance length %.2f; accepted by position:",
            (long long)s->drafted, (long long)s->accepted, 100 * spec_acceptance_rate(s), spec_acceptance_length(s));
    for (int i = 0; i < DRAFT_MAX && s->tried_at[i]; i++)
        fprintf(stderr, " %.2f", (double)s->right_at[i] / (double)s->rounds);
    fputc('\n', stderr);
}

void generate_print_stats(const generator *a)
{
    size_t n_run = a->n_prompt - a->n_reused;
    fprintf(stderr, "prompt %zu tokens in %.2f s (%.1f tok/s), answer %d tokens in %.2f s (%.1f tok/s)", n_run,
            a->prefill_s, (double)n_run / a->prefill_s, a->n_out, a->decode_s,
            a->n_out > 1 ? (a->n_out - 1) / a->decode_s : 0.0);
    if (a->n_reused) fprintf(stderr, ", %zu tokens reused", a->n_reused);
    fputc('\n', stderr);
    print_methods(spec_lane_stats(a->g->lane));
    print_acceptance(spec_lane_stats(a->g->lane));
}

/* --- showing an answer --------------------------------------------------------------------------*/
static void show(answer_view *v, gemma4_event_kind kind, str text)
{
    bool dim = kind == GEMMA4_REASONING;
    if (v->started && kind != v->last) fputs(v->last == GEMMA4_REASONING ? "\n\n" : "\n", stdout);
    if (dim && v->colour) fputs("\033[2m", stdout);
    cli_print(text);
    if (dim && v->colour) fputs("\033[0m", stdout);
    v->started = true;
    v->last    = kind;
}

static void show_content(answer_view *v)
{
    if (!v->shown.n) return;
    buf_put(&v->content, v->shown.p, v->shown.n);
    show(v, GEMMA4_CONTENT, buf_str(&v->shown));
}

/* A call cannot be answered here: it is shown as the model's text, name and arguments. */
static void on_event(void *ctx, const gemma4_event *ev)
{
    answer_view *v = ctx;
    if (ev->kind == GEMMA4_REASONING) {
        buf_put(&v->reasoning, ev->text.s, ev->text.n);
        if (v->show_thoughts) show(v, GEMMA4_REASONING, ev->text);
    } else if (ev->kind == GEMMA4_CONTENT) {
        buf_clear(&v->shown);
        stop_put(&v->stop, ev->text, &v->shown);
        show_content(v);
    } else if (ev->kind != GEMMA4_CALL_DONE) {
        buf_put(&v->content, ev->text.s, ev->text.n);
        show(v, GEMMA4_CALL_NAME, ev->text);
    }
}

void view_init(answer_view *v, const tok *t, const generate_flags *f, bool in_thought, bool show_thoughts)
{
    *v = (answer_view){.show_thoughts = show_thoughts, .colour = isatty(STDOUT_FILENO)};
    buf_init(&v->content, TOK_MAX_INPUT);
    buf_init(&v->reasoning, TOK_MAX_INPUT);
    buf_init(&v->shown, TOK_MAX_INPUT);
    generate_add_stops(&v->stop, f);
    v->parser =
        gemma4_parser_new(&(gemma4_parse_options){.on_event = on_event, .ctx = v, .tok = t, .in_thought = in_thought});
}

void view_deinit(answer_view *v)
{
    gemma4_parser_free(v->parser);
    buf_deinit(&v->content);
    buf_deinit(&v->reasoning);
    buf_deinit(&v->shown);
}

bool view_put(answer_view *v, int32_t id)
{
    gemma4_parse_id(v->parser, id);
    return !v->stop.found;
}

bool view_finish(answer_view *v, err *e)
{
    bool ok = gemma4_parse_finish(v->parser, e);
    buf_clear(&v->shown);
    stop_finish(&v->stop, &v->shown);
    show_content(v);
    putchar('\n');
    ok = cli_flush(ok ? e : NULL) && ok;
    if (!v->show_thoughts && v->reasoning.n && !v->content.n)
        fprintf(stderr, "tandem: the answer is all thinking (--think shows it)\n");
    return ok;
}

/* --- the prompt format --------------------------------------------------------------------------*/
bool generate_chat_options(chat_options *o, const engine *g, const char *path, err *e)
{
    buf text;
    buf_init(&text, 1 << 24);
    bool          ok = chat_template_load(&text, path, e);
    chat_template t  = chat_detect(buf_str(&text));
    *o               = (chat_options){.revision              = t.known ? t.revision : CHAT_REV_A,
                                      .empty_thought         = t.known ? t.empty_thought : g->model->empty_thought,
                                      .add_generation_prompt = true};
    if (ok && !t.known)
        log_event(text.n ? LOG_WARN : LOG_INFO, "chat", "%s: prompts are written as for Gemma 4, first revision",
                  text.n ? "the model's chat template is not known" : "the model has no chat template");
    buf_deinit(&text);
    return ok;
}
