#include "cli/generate.h"

#include "base/clock.h"
#include "base/log.h"

#include <signal.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

const char *const generate_kv_names[]   = {"f16", "f32", NULL};
const char *const generate_spec_names[] = {"off", NULL};

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

void generator_init(generator *a, engine *g, const tok *t, const generate_flags *f)
{
    *a = (generator){.g = g, .params = choose_params(g->model, f), .max_tokens = f->max_tokens};
    tok_ids_init(&a->stops, 1024);
    tok_ids_init(&a->cached, (size_t)g->n_ctx);
    for (int i = 0; i < g->model->n_stop_ids; i++) tok_ids_put(&a->stops, g->model->stop_id[i]);
    if (t) tok_stop_ids(t, &a->stops);
}

void generator_deinit(generator *a)
{
    tok_ids_deinit(&a->stops);
    tok_ids_deinit(&a->cached);
}

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

/* Feeds ids and notes that the cache has them; after a failure it has what it had. */
static bool feed(generator *a, const int32_t *id, size_t n, err *e)
{
    if (!engine_feed(a->g, id, (int)n, e)) {
        kv_seq_cut(a->g->seq, (int32_t)a->cached.n);
        return false;
    }
    for (size_t i = 0; i < n; i++)
        if (!tok_ids_put(&a->cached, id[i])) return err_set(e, ERR_LIMIT, "no memory for %zu ids", a->cached.n);
    return true;
}

/* Keeps what the cache and the prompt have in common; the last token is always run, for its logits. */
static bool prefill(generator *a, const tok_ids *prompt, err *e)
{
    size_t same = 0, most = (size_t)a->g->model->max_rows;
    while (same + 1 < prompt->n && same < a->cached.n && a->cached.p[same] == prompt->p[same]) same++;
    kv_seq_cut(a->g->seq, (int32_t)same);
    a->cached.n = a->n_reused = same;
    while (a->cached.n < prompt->n && !interrupted) {
        size_t n = prompt->n - a->cached.n < most ? prompt->n - a->cached.n : most;
        if (!feed(a, prompt->p + a->cached.n, n, e)) return false;
    }
    return true;
}

static bool decode(generator *a, err *e)
{
    int limit = a->max_tokens >= 0 ? a->max_tokens : a->g->n_ctx;
    while (a->n_out < limit && !interrupted) {
        int32_t id;
        if (!engine_pick(a->g, &a->params, &id, e)) return false;
        a->n_out++;
        bool stop = !a->ignore_eos && is_stop(a, id);
        a->on_token(a->ctx, id, stop);
        if (stop || a->n_out == limit) return true;
        if (kv_seq_len(a->g->seq) == a->g->n_ctx) {
            a->full = true;
            return true;
        }
        if (!feed(a, &id, 1, e)) return false;
    }
    return true;
}

bool generate(generator *a, const tok_ids *prompt, err *e)
{
    struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND},
                     before; /* a second one ends us */
    double t0   = clock_s();
    interrupted = 0;
    a->n_out    = 0;
    a->full     = false;
    a->n_prompt = prompt->n;
    sigaction(SIGINT, &act, &before);
    bool ok      = prefill(a, prompt, e);
    a->prefill_s = clock_s() - t0;
    t0           = clock_s();
    ok           = ok && decode(a, e);
    a->decode_s  = clock_s() - t0;
    sigaction(SIGINT, &before, NULL);
    a->interrupted = interrupted;
    return ok;
}

void generate_print_stats(const generator *a)
{
    size_t n_run = a->n_prompt - a->n_reused;
    fprintf(stderr, "prompt %zu tokens in %.2f s (%.1f tok/s), answer %d tokens in %.2f s (%.1f tok/s)", n_run,
            a->prefill_s, (double)n_run / a->prefill_s, a->n_out, a->decode_s,
            a->n_out > 1 ? (a->n_out - 1) / a->decode_s : 0.0);
    if (a->n_reused) fprintf(stderr, ", %zu tokens reused", a->n_reused);
    fputc('\n', stderr);
}

/* --- showing an answer --------------------------------------------------------------------------*/
static void show(answer_view *v, gemma4_event_kind kind, str text)
{
    bool dim = kind == GEMMA4_REASONING;
    if (v->started && kind != v->last) fputs(v->last == GEMMA4_REASONING ? "\n\n" : "\n", stdout);
    if (dim && v->colour) fputs("\033[2m", stdout);
    fwrite(text.s, 1, text.n, stdout);
    if (dim && v->colour) fputs("\033[0m", stdout);
    fflush(stdout);
    v->started = true;
    v->last    = kind;
}

/* A call cannot be answered here: it is shown as the model's text, name and arguments. */
static void on_event(void *ctx, const gemma4_event *ev)
{
    answer_view *v = ctx;
    if (ev->kind == GEMMA4_REASONING) {
        buf_put(&v->reasoning, ev->text.s, ev->text.n);
        if (v->show_thoughts) show(v, GEMMA4_REASONING, ev->text);
    } else if (ev->kind != GEMMA4_CALL_DONE) {
        buf_put(&v->content, ev->text.s, ev->text.n);
        show(v, ev->kind == GEMMA4_CONTENT ? GEMMA4_CONTENT : GEMMA4_CALL_NAME, ev->text);
    }
}

void view_init(answer_view *v, const tok *t, bool in_thought, bool show_thoughts)
{
    *v = (answer_view){.show_thoughts = show_thoughts, .colour = isatty(STDOUT_FILENO)};
    buf_init(&v->content, TOK_MAX_INPUT);
    buf_init(&v->reasoning, TOK_MAX_INPUT);
    v->parser =
        gemma4_parser_new(&(gemma4_parse_options){.on_event = on_event, .ctx = v, .tok = t, .in_thought = in_thought});
}

void view_deinit(answer_view *v)
{
    gemma4_parser_free(v->parser);
    buf_deinit(&v->content);
    buf_deinit(&v->reasoning);
}

void view_put(answer_view *v, int32_t id) { gemma4_parse_id(v->parser, id); }

bool view_finish(answer_view *v, err *e)
{
    bool ok = gemma4_parse_finish(v->parser, e);
    putchar('\n');
    fflush(stdout);
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
