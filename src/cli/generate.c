#include "cli/generate.h"

#include "base/log.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

/* --- flags --------------------------------------------------------------------------------------*/
/* "5:1.5,9:-inf" */
static bool parse_bias(const char *text, tandem_bias *out, int *n, err *e)
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
            if (out[k].token == i) return err_set(e, ERR_INPUT, "token %lld appears twice", (long long)i);
        if (*n == TANDEM_MAX_BIAS) return err_set(e, ERR_INPUT, "the list has more than %d entries", TANDEM_MAX_BIAS);
        out[(*n)++] = (tandem_bias){(int32_t)i, (float)d};
    }
    return true;
}

void generate_init_stops(stop_match *m, const generate_flags *f)
{
    stop_init(m);
    for (int i = 0; i < f->stops.n; i++) stop_add(m, str_of(f->stops.item[i]));
}

static bool needs_drafter(const generate_flags *f) { return spec_needs_file((spec_method)f->spec.method); }

bool generate_check_flags(const generate_flags *f, const opt_spec *usage)
{
    tandem_bias bias[TANDEM_MAX_BIAS];
    int         n;
    err         e = {0};
    stop_match  m;
    stop_init(&m);
    if (!parse_bias(f->bias, bias, &n, &e)) return opt_usage(usage, "--logit-bias: %s", e.text), false;
    if (needs_drafter(f) && f->draft.paths.n == 1 && !strcmp(f->draft.paths.item[0], "none"))
        return opt_usage(usage, "--spec %s needs a drafter, and --draft is none", spec_method_names[f->spec.method]),
               false;
    for (int i = 0; i < f->draft.paths.n; i++)
        if (!f->draft.paths.item[i][0]) return opt_usage(usage, "--draft is empty"), false;
    for (int i = 0; i < f->stops.n; i++)
        if (!stop_add(&m, str_of(f->stops.item[i])))
            return opt_usage(usage, "--stop takes up to %d texts of 1 to %d bytes", STOP_MAX_STRINGS, STOP_MAX_BYTES),
                   false;
    return true;
}

tandem_speculation generate_speculation(const speculation_flags *f)
{
    tandem_speculation s = f->with;
    s.method             = (tandem_method)f->method;
    s.no_chain_seed      = !f->chain_seed;
    return s;
}

bool generate_apply(tandem_request *r, const generate_flags *f, int n_vocab, tandem_bias bias[TANDEM_MAX_BIAS], err *e)
{
    int n;
    if (!parse_bias(f->bias, bias, &n, e)) return false;
    for (int i = 0; i < n; i++)
        if (bias[i].token >= n_vocab)
            return err_set(e, ERR_INPUT, "--logit-bias: token %d is not in the vocabulary of %d", bias[i].token,
                           n_vocab);
    r->bias       = bias;
    r->n_bias     = (size_t)n;
    r->max_tokens = f->max_tokens;
    if (f->temp_given) r->temp = f->temp;
    if (f->top_k_given) r->top_k = f->top_k;
    if (f->top_p_given) r->top_p = f->top_p;
    if (f->min_p_given) r->min_p = f->min_p;
    r->has_seed          = f->seed_given;
    r->seed              = f->seed;
    r->repeat_penalty    = f->repeat;
    r->presence_penalty  = f->presence;
    r->frequency_penalty = f->frequency;
    r->logprobs          = f->logprobs;
    r->spec              = generate_speculation(&f->spec);
    return true;
}

bool generate_check(const tok_ids *prompt, int n_ctx, int n_vocab, int max_tokens, err *e)
{
    if (!prompt->n) return err_set(e, ERR_INPUT, "the prompt is empty");
    if (prompt->n >= (size_t)n_ctx && max_tokens != 0)
        return err_set(e, ERR_INPUT, "the prompt has %zu tokens and the context holds %d: use a larger --ctx",
                       prompt->n, n_ctx);
    for (size_t i = 0; i < prompt->n; i++)
        if (prompt->p[i] >= n_vocab)
            return err_set(e, ERR_INPUT,
                           "the tokenizer produces token %d, but the model has only %d: they do not match",
                           prompt->p[i], n_vocab);
    return true;
}

/* --- opening ------------------------------------------------------------------------------------*/
bool generate_uses_drafters(const speculation_flags *f) { return f->method != SPEC_OFF && f->method != SPEC_NGRAM; }

void generate_check_method(const tandem *t, const speculation_flags *f)
{
    tandem_info i;
    tandem_get_info(t, &i);
    if (spec_needs_file((spec_method)f->method) && !(f->method == SPEC_MTP ? i.has_mtp : i.has_dflash))
        log_event(LOG_WARN, "draft", "there is no drafter for --spec %s: decoding without speculation",
                  spec_method_names[f->method]);
}

void generate_set_kv(tandem_options *o, const kv_types *types, kv_texts text)
{
    o->kv_type    = cache_types_text(types->full, text[0]);
    o->kv_sliding = cache_types_text(types->sliding, text[1]);
    o->kv_draft   = cache_types_text(types->draft, text[2]);
    o->sparse_fa  = sparse_text(&types->sparse, text[3]);
}

static void set_options(tandem_options *o, generate_flags *f)
{
    /* Uses one lane, whose own prefix alone is cached, and allows it the whole K/V memory. */
    static const tandem_setting alone[] = {{"kv_cap", "1"}, {"default_max_tokens", "16777216"}};
    tandem_options_init(o);
    o->path      = f->engine.path;
    o->mmproj    = cli_encoder(f->engine.path, f->engine.mmproj);
    o->name      = cli_path_name(f->engine.path);
    o->device    = engine_devices[f->engine.device];
    o->n_threads = cli_threads(f->engine.n_threads);
    o->n_ctx     = f->engine.n_ctx;
    generate_set_kv(o, &f->engine.kv.types, f->kv_text);
    o->kv_bytes    = f->engine.kv_bytes;
    o->max_lanes   = 1;
    o->session_dir = f->session_dir;
    o->settings    = alone;
    o->n_settings  = (int)COUNT(alone);
}

void generate_set_drafters(tandem_options *o, const draft_options *d, tandem_drafter room[OPT_LIST_MAX])
{
    o->drafters   = room;
    o->n_drafters = d->paths.n;
    for (int i = 0; i < d->paths.n; i++)
        room[i] = (tandem_drafter){.path     = d->paths.item[i],
                                   .name     = cli_path_name(d->paths.item[i]),
                                   .quantise = d->quantise_given ? open_draft_quants[d->quantise] : NULL,
                                   .n_ctx    = d->n_ctx,
                                   .window   = d->window,
                                   .lazy     = d->lazy};
}

/* Resolves the drafters, unless the method needs none, and chooses the method if none was given. */
static bool choose_drafters(generate_flags *f, const checkpoint *files, err *e)
{
    if (f->spec.method_given && !generate_uses_drafters(&f->spec)) return true;
    f->draft.search = true;
    if (!cli_resolve_drafters(&f->draft, f->engine.path, files, e)) return false;
    if (!f->spec.method_given) f->spec.method = f->draft.paths.n ? SPEC_AUTO : SPEC_OFF;
    return !needs_drafter(f) || f->draft.paths.n ||
           err_set(e, ERR_INPUT, "--spec %s needs a drafter: none was found next to the model, give --draft",
                   spec_method_names[f->spec.method]);
}

bool generate_open(tandem **out, generate_flags *f, const checkpoint *files, const char *need_tok, err *e)
{
    tandem_drafter drafters[OPT_LIST_MAX];
    tandem_options o;
    progress_bar   bar;
    *out = NULL;
    if (!choose_drafters(f, files, e)) return false;
    set_options(&o, f);
    if (generate_uses_drafters(&f->spec)) generate_set_drafters(&o, &f->draft, drafters);
    o.progress     = progress_show;
    o.progress_ctx = &bar;
    progress_start(&bar, "loading");
    bool ok = engine_open(out, &o, &(engine_extra){.files = files, .need_tok = need_tok}, e);
    progress_end(&bar);
    if (!ok) return false;
    generate_check_method(*out, &f->spec);
    return true;
}

/* --- an answer ----------------------------------------------------------------------------------*/
bool generator_init(generator *a, tandem *t, const generate_flags *f, err *e)
{
    *a = (generator){.t = t, .tok = engine_tok(t)};
    tandem_request_init(t, &a->request);
    return generate_apply(&a->request, f, engine_info(t)->n_vocab, a->bias, e);
}

/* {"id":5,"text":"a","logprob":-0.1,"top":[{"id":5,"text":"a","logprob":-0.1}, ...]} */
static void put_logprob(json_writer *w, const generator *a, const tandem_logprob *x)
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

static void print_logprobs(const generator *a, const tandem_logprob *x)
{
    buf         line;
    json_writer w;
    buf_init(&line, 1 << 20);
    json_writer_init(&w, &line);
    json_begin_object(&w);
    put_logprob(&w, a, &x[0]);
    json_key(&w, "top");
    json_begin_array(&w);
    for (int i = 1; i <= a->request.logprobs && x[i].id >= 0; i++) {
        json_begin_object(&w);
        put_logprob(&w, a, &x[i]);
        json_end(&w);
    }
    json_end(&w);
    json_end(&w);
    fprintf(stderr, "%.*s\n", (int)line.n, line.p);
    buf_deinit(&line);
}

/* Handles Ctrl-C; a second one ends the process. Tokens produced before are still shown. */
static _Atomic(tandem_job *) current;
static void                  on_interrupt(int sig)
{
    (void)sig;
    tandem_cancel(current);
}

/* Reads tokens until the end of the response. */
static bool show_tokens(generator *a, tandem_job *j, err *e)
{
    tandem_token x[64];
    for (;;) {
        tandem_wait(j, -1);
        bool   last = tandem_job_result(j);
        size_t n    = tandem_poll(j, x, COUNT(x));
        for (size_t i = 0; i < n; i++) {
            if (x[i].logprobs) print_logprobs(a, x[i].logprobs);
            a->on_token(a->ctx, x[i].id, x[i].is_stop);
        }
        if (!cli_flush(e)) return false;
        if (last && n < COUNT(x)) return true;
    }
}

static bool take_result(generator *a, const tandem_result *r, err *e)
{
    a->result = *r;
    return r->finish != TANDEM_FINISH_ERROR || err_set(e, (err_code)r->error.code, "%s", r->error.text);
}

bool generate(generator *a, const tok_ids *prompt, err *e)
{
    struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND | SA_RESTART}, before;
    tandem_job      *j;
    a->request.ids   = prompt->p;
    a->request.n_ids = prompt->n;
    if (!engine_submit(a->t, &a->request, a->media, NULL, &j, e)) return false;
    current = j;
    sigaction(SIGINT, &act, &before);
    bool ok = show_tokens(a, j, e) && take_result(a, tandem_job_result(j), e);
    sigaction(SIGINT, &before, NULL);
    tandem_cancel(j); /* the callback of the job must not be called after this returns */
    for (tandem_token rest[64]; !tandem_job_result(j); tandem_poll(j, rest, COUNT(rest))) tandem_wait(j, -1);
    tandem_release(j);
    return ok;
}

/* --- numbers about an answer --------------------------------------------------------------------*/
static void print_methods(const tandem_usage *u)
{
    fputs("rounds:", stderr);
    for (int m = SPEC_OFF + 1; m < SPEC_COUNTED; m++)
        if (u->spec.rounds_by_method[m])
            fprintf(stderr, " %s %lld,", spec_method_name(m), (long long)u->spec.rounds_by_method[m]);
    fprintf(stderr, " plain %lld; draft %.3f s, verify %.3f s, commit %.3f s\n", (long long)u->spec.plain_rounds,
            u->spec.draft_s, u->spec.verify_s, u->spec.commit_s);
}

static void print_acceptance(const tandem_usage *u)
{
    double rounds = (double)u->spec.rounds, accepted = (double)u->spec.accepted;
    if (!u->spec.rounds) return;
    fprintf(stderr, "drafted %lld, accepted %lld (%.1f%%), acceptance length %.2f; accepted by position:",
            (long long)u->spec.drafted, (long long)u->spec.accepted, 100 * accepted / (double)u->spec.drafted,
            1 + accepted / rounds);
    for (int i = 0; i < TANDEM_MAX_DRAFT && u->spec.tried_at[i]; i++)
        fprintf(stderr, " %.2f", (double)u->spec.right_at[i] / rounds);
    fputc('\n', stderr);
}

void generate_print_stats(const generator *a)
{
    const tandem_usage *u     = &a->result.usage;
    int                 n_run = u->prompt_tokens - u->cached_tokens, n_out = u->completion_tokens;
    fprintf(stderr, "prompt %d tokens in %.2f s (%.1f tok/s), answer %d tokens in %.2f s (%.1f tok/s)", n_run,
            u->prefill_s, n_run / u->prefill_s, n_out, u->decode_s, n_out > 1 ? (n_out - 1) / u->decode_s : 0.0);
    if (u->cached_tokens) fprintf(stderr, ", %d tokens reused", u->cached_tokens);
    fputc('\n', stderr);
    print_methods(u);
    print_acceptance(u);
}

/* --- showing an answer --------------------------------------------------------------------------*/
static void show_text(answer_view *v, chat_event_kind kind, str text)
{
    bool dim = kind == CHAT_EVENT_REASONING;
    if (v->started && kind != v->last) fputs(v->last == CHAT_EVENT_REASONING ? "\n\n" : "\n", stdout);
    if (dim && v->colour) fputs("\033[2m", stdout);
    cli_print(text);
    if (dim && v->colour) fputs("\033[0m", stdout);
    v->started = true;
    v->last    = kind;
}

/* Shows a tool call as text: name and arguments. */
static void view_on_event(void *ctx, const chat_event *ev)
{
    answer_view *v = ctx;
    if (ev->kind == CHAT_EVENT_REASONING) {
        buf_put(&v->reasoning, ev->text.s, ev->text.n);
        if (v->show_thoughts) show_text(v, CHAT_EVENT_REASONING, ev->text);
    } else if (ev->kind == CHAT_EVENT_CONTENT) {
        buf_put(&v->content, ev->text.s, ev->text.n);
        show_text(v, CHAT_EVENT_CONTENT, ev->text);
    } else if (ev->kind != CHAT_EVENT_CALL_DONE) {
        buf_put(&v->content, ev->text.s, ev->text.n);
        show_text(v, CHAT_EVENT_CALL_NAME, ev->text);
    }
}

void view_init(answer_view *v, const tok *t, const generate_flags *f, const chat_options *o, bool in_thought)
{
    *v = (answer_view){.show_thoughts = o->thinking, .colour = isatty(STDOUT_FILENO)};
    buf_init(&v->content, TOK_MAX_INPUT);
    buf_init(&v->reasoning, TOK_MAX_INPUT);
    chat_parse_options p = {.format     = o->format,
                            .on_event   = view_on_event,
                            .ctx        = v,
                            .tok        = t,
                            .in_thought = in_thought,
                            .thinking   = o->thinking};
    chat_stream_init(&v->answer, &p);
    generate_init_stops(&v->answer.stop, f);
}

void view_deinit(answer_view *v)
{
    chat_stream_deinit(&v->answer);
    buf_deinit(&v->content);
    buf_deinit(&v->reasoning);
}

void view_put(answer_view *v, int32_t id) { chat_stream_put(&v->answer, id); }

bool view_finish(answer_view *v, err *e)
{
    bool ok = chat_stream_finish(&v->answer, e);
    putchar('\n');
    ok = cli_flush(ok ? e : NULL) && ok;
    if (!v->show_thoughts && v->reasoning.n && !v->content.n)
        fprintf(stderr, "tandem: the response is only a thought (--think shows it)\n");
    return ok;
}

void generate_watch(chat_stream *a, const tok *t, const generate_flags *f, const chat_options *o, bool in_thought)
{
    chat_stream_init(
        a, &(chat_parse_options){.format = o->format, .tok = t, .in_thought = in_thought, .thinking = o->thinking});
    generate_init_stops(&a->stop, f);
}
