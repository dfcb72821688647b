#include "server/bench.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "chat/prompts.h"
#include "figures/measure.h"
#include "figures/result.h"
#include "server/admin.h"
#include "spec/counts.h"
#include "spec/method.h"
#include "store/results.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum {
    MAX_CELLS         = 16 * BENCH_MAX_METHODS,
    MAX_PROMPT_TOKENS = 4 << 20,
    MAX_REPLY         = 1 << 20,
    MAX_LIST          = 4 << 20,
    LOWEST            = -100
};

/* --- the request --------------------------------------------------------------------------------*/
typedef struct {
    int           n_lanes;
    tandem_method method;
    /* results */
    int                n_failed, n_answers;
    int64_t            tokens;
    tandem_spec_counts spec;
    int64_t            reasons[TANDEM_MAX_ROUTES]; /* rounds of all lanes by why their method was chosen */
    double            *rate;                       /* [repeats] tokens of all lanes per second */
    double            *gen;                        /* [repeats] mean of decode_rate over the responses of a repeat */
    int                n_rates;
    double            *first_s, *decode_rate; /* per response: seconds to the first token, tokens per second after it */
} bench_cell;

typedef struct {
    tandem_job *job; /* NULL: it waits for its next request */
    int         prompt;
    double      since;
} bench_lane;

struct bench_run {
    work_item    item;
    server      *s;
    server_call *call; /* NULL: the client disconnected */
    bool         with_worker, begun, stopped;
    server_error why;  /* status 0: no error */
    err          made; /* set by the worker; `why` is of the I/O thread */

    int        n_prompts, prompt_tokens, output_tokens, requests, repeats;
    bool       stream;
    float      temp;
    double     since;
    char       id[REPLY_ID_MAX];
    char       tenant[KEY_NAME_MAX + 1];    /* tenant of the request; empty: none */
    int32_t   *prompt;                      /* [n_prompts][prompt_tokens] */
    char      *question[BENCH_MAX_PROMPTS]; /* questions that the request has */
    tandem_ids asked[BENCH_MAX_PROMPTS];    /* prompts that ask them */
    int        n_questions;

    uint64_t    *text; /* [n_prompts] a hash of the first answer to each; 0: none yet */
    int          n_different;
    bench_cell   cell[MAX_CELLS]; /* the arms of the measurement */
    int          n_methods, n_cells;
    measure_loop loop;
    measure_run  now; /* the running cell */
    bool         complete;
    bench_lane   lane[TANDEM_MAX_LANES];
    int          n_next; /* prompt of the cell */
    double       cell_since;
    int64_t      cell_tokens, reasons_before[TANDEM_MAX_ROUTES];
    int          cell_answers; /* responses of the cell before this repeat */
    int          max_others;   /* max number of requests of other clients */
};

static bool refuse_plan(server_error *why, const char *param, const char *what)
{
    return error_set(why, 400, param, NULL, "'%s' %s", param, what);
}

static bool read_lanes(const bench_fields *f, int max_lanes, int *out, int *n, server_error *why)
{
    *n     = 1;
    out[0] = 1;
    char text[96];
    snprintf(text, sizeof text, "must be a list of whole numbers from 1 to %d, the server's lanes.", max_lanes);
    for (size_t i = 0; f->concurrency && i < f->concurrency->n; i++) {
        const json_value *v = &f->concurrency->item[i];
        if (v->kind != JSON_INT || v->i < 1 || v->i > max_lanes) return refuse_plan(why, "concurrency", text);
        out[i] = (int)v->i;
        *n     = (int)i + 1;
    }
    return true;
}

static bool has_drafter(const server *s, tandem_method m)
{
    tandem_drafter_info all[TANDEM_MAX_DRAFTERS];
    int                 n = tandem_drafters(s->engine, all);
    if (!spec_needs_file((spec_method)m)) return true;
    tandem_method owner = (tandem_method)spec_chain_method(spec_method_drafter((spec_method)m));
    for (int i = 0; i < n; i++)
        if (all[i].method == owner) return all[i].state == TANDEM_DRAFTER_OPEN || all[i].state == TANDEM_DRAFTER_LAZY;
    return false;
}

/* Checks that the limits of the server and the settings allow the method, so that the results are of that method. No
 * setting bars off and auto. */
static bool check_settings(const server *s, tandem_method m, int prompt_tokens, server_error *why)
{
    settings           now;
    char               bar[96] = "";
    bool               weights = spec_needs_file((spec_method)m);
    tandem_speculation limited = {.method = m};
    engine_limit_speculation(s->engine, &limited);
    if (limited.method != m)
        return error_set(why, 400, "methods", "method_barred", "'%s' would not be used: the server has --spec %s.",
                         tandem_method_name((int)m), tandem_method_name((int)limited.method));
    if (m == TANDEM_SPEC_OFF || m == TANDEM_SPEC_AUTO) return true;
    engine_get_settings(s->engine, &now);
    if (!now.dflash_enabled)
        snprintf(bar, sizeof bar, "dflash_enabled is false");
    else if (weights && now.dflash_max_concurrent == 0)
        snprintf(bar, sizeof bar, "dflash_max_concurrent is 0");
    else if (weights && now.dflash_max_ctx != SETTING_UNLIMITED && prompt_tokens >= now.dflash_max_ctx)
        snprintf(bar, sizeof bar, "dflash_max_ctx is %lld and prompts have %d tokens", (long long)now.dflash_max_ctx,
                 prompt_tokens);
    return !bar[0] || error_set(why, 400, "methods", "method_barred", "'%s' would not be used: %s.",
                                tandem_method_name((int)m), bar);
}

static bool read_method(const server *s, const json_value *v, tandem_method *out, server_error *why)
{
    for (int m = 0; v->kind == JSON_STRING && m <= TANDEM_SPEC_AUTO; m++) {
        if (!str_is(v->s, tandem_method_name(m))) continue;
        *out = (tandem_method)m;
        return has_drafter(s, *out) ||
               error_set(why, 400, "methods", NULL, "There is no drafter for '%s', or it is parked.",
                         tandem_method_name(m));
    }
    return refuse_plan(why, "methods", "must be a list of off, auto, dflash, tree, mtp and ngram.");
}

static bool read_methods(const server *s, const bench_fields *f, tandem_method *out, int *n, server_error *why)
{
    int                prompt_tokens = f->prompts ? 1 : (int)f->prompt_tokens;
    tandem_speculation best          = {.method = TANDEM_SPEC_AUTO};
    engine_limit_speculation(s->engine, &best);
    *n     = 3;
    out[0] = TANDEM_SPEC_OFF;
    out[1] = TANDEM_SPEC_OFF; /* the control */
    out[2] = best.method;
    for (size_t i = 0; f->methods && i < f->methods->n; i++) {
        if (!read_method(s, &f->methods->item[i], &out[i], why) || !check_settings(s, out[i], prompt_tokens, why))
            return false;
        *n = (int)i + 1;
    }
    return true;
}

static bool read_sizes(bench_run *x, const bench_fields *f, const tandem_info *info, server_error *why)
{
    x->prompt_tokens = f->prompts ? 1 : (int)f->prompt_tokens; /* the worker counts those of the request */
    x->output_tokens = (int)f->output_tokens;
    x->requests      = (int)f->requests;
    x->repeats       = (int)f->repeats;
    x->stream        = f->stream;
    x->temp          = isnan(f->temperature) ? 0 : (float)f->temperature;
    if (x->prompt_tokens + f->output_tokens > info->n_ctx)
        return error_set(why, 400, "prompt_tokens", "context_length_exceeded",
                         "'prompt_tokens' and 'output_tokens' together are over the context of %d tokens.",
                         info->n_ctx);
    return true;
}

static bool read_plan(bench_run *x, const bench_fields *f, server_error *why)
{
    tandem_info   info;
    int           lanes[16], n_lanes, n_methods;
    tandem_method methods[BENCH_MAX_METHODS];
    tandem_get_info(x->s->engine, &info);
    if (!read_sizes(x, f, &info, why) || !read_lanes(f, info.max_lanes, lanes, &n_lanes, why) ||
        !read_methods(x->s, f, methods, &n_methods, why))
        return false;
    x->n_methods = n_methods;
    for (int i = 0; i < n_lanes; i++) {
        if (lanes[i] * x->requests > x->n_prompts) x->n_prompts = lanes[i] * x->requests;
        for (int k = 0; k < n_methods; k++)
            x->cell[x->n_cells++] = (bench_cell){.n_lanes = lanes[i], .method = methods[k]};
    }
    measure_begin(&x->loop, &(measure_plan){.n_cells = 1,
                                            .n_arms  = x->n_cells,
                                            .n_turns = x->repeats,
                                            .end_at  = x->since + (double)f->max_seconds});
    return (int64_t)x->n_prompts * x->prompt_tokens <= MAX_PROMPT_TOKENS ||
           error_set(why, 400, "prompt_tokens", NULL, "The prompts would have more than %d tokens together.",
                     MAX_PROMPT_TOKENS);
}

/* Copies the questions of the request. */
static bool read_questions(bench_run *x, const bench_fields *f, server_error *why)
{
    for (size_t i = 0; f->prompts && i < f->prompts->n; i++) {
        str text = f->prompts->item[i].s;
        if (f->prompts->item[i].kind != JSON_STRING || !text.n || memchr(text.s, 0, text.n))
            return refuse_plan(why, "prompts", "must be a list of texts that are not empty.");
        char *copy = mem_try(text.n + 1);
        if (!copy) return error_no_memory(why);
        memcpy(copy, text.s, text.n);
        x->question[x->n_questions++] = copy;
    }
    return true;
}

/* --- on a worker --------------------------------------------------------------------------------*/
static void ask_questions(bench_run *x)
{
    tandem *t        = x->s->engine;
    x->prompt_tokens = 0;
    for (int i = 0; i < x->n_questions && !x->made.code; i++) {
        tandem_error why = {0};
        bool ok = tandem_chat_prompt(t, &(tandem_message){"user", x->question[i]}, 1, false, &x->asked[i], NULL, &why);
        if (!ok)
            err_set(&x->made, (err_code)why.code, "%s", why.text);
        else if (x->asked[i].n + (size_t)x->output_tokens > (size_t)engine_info(t)->n_ctx)
            err_set(&x->made, ERR_INPUT, "prompt %d and its response are over the context of %d tokens", i + 1,
                    engine_info(t)->n_ctx);
        x->prompt_tokens = max_int(x->prompt_tokens, (int)x->asked[i].n);
    }
}

static void make_prompts(work_item *item)
{
    bench_run *x = (bench_run *)item;
    if (x->n_questions) {
        ask_questions(x);
        return;
    }
    const tandem *t     = x->s->engine;
    prompt_maker  maker = {0};
    chat_options  format;
    tok_ids       ids;
    bool          ok = engine_format(t, &format, &x->made) &&
              prompts_init(&maker, engine_tok(t), &format, engine_info(t)->n_vocab, &x->made);
    tok_ids_init(&ids, MAX_PROMPT_TOKENS);
    for (int i = 0; ok && i < x->n_prompts; i++) {
        ok = prompts_next(&maker, &ids, x->prompt_tokens, &x->made);
        if (ok) memcpy(x->prompt + (size_t)i * (size_t)x->prompt_tokens, ids.p, ids.n * sizeof *ids.p);
    }
    tok_ids_deinit(&ids);
    prompts_deinit(&maker);
}

/* --- the end ------------------------------------------------------------------------------------*/
static void free_all(bench_run *x)
{
    for (int i = 0; i < x->n_cells; i++) {
        mem_free(x->cell[i].rate);
        mem_free(x->cell[i].gen);
        mem_free(x->cell[i].first_s);
        mem_free(x->cell[i].decode_rate);
    }
    for (int i = 0; i < x->n_questions; i++) {
        mem_free(x->question[i]);
        tandem_ids_free(&x->asked[i]);
    }
    mem_free(x->prompt);
    mem_free(x->text);
    mem_free(x);
}

static void free_bench(bench_run *x)
{
    x->s->bench = NULL;
    x->s->n_users--;
    free_all(x);
}

static void put_spread(json_writer *w, const char *key, double *x, int n)
{
    spread   s = n ? stats_spread(x, (size_t)n) : (spread){0};
    interval i = n ? stats_median(x, n) : (interval){0};
    json_key(w, key);
    json_begin_object(w);
    json_member_real(w, "mean", s.mean);
    result_interval(w, "median", i);
    json_member_real(w, "p95", s.p95);
    json_end(w);
}

static void put_reasons(json_writer *w, const int64_t *n)
{
    json_key(w, "reasons");
    json_begin_object(w);
    for (int i = 0; i < TANDEM_MAX_ROUTES; i++)
        if (n[i]) json_member_int(w, tandem_route_name(i), n[i]);
    json_end(w);
}

/* Writes the rates of a cell, and their ratios to those of base, repeat by repeat; 0 before the first repeat. */
static void put_rates(json_writer *w, const bench_cell *c, const bench_cell *base)
{
    int      pairs = min_int(c->n_rates, base->n_rates);
    interval none  = {0};
    result_interval(w, "tokens_per_s", c->n_rates ? stats_median(c->rate, c->n_rates) : none);
    result_interval(w, "ratio", pairs ? stats_ratio(c->rate, base->rate, pairs) : none);
    result_interval(w, "gen_tokens_per_s", c->n_rates ? stats_median(c->gen, c->n_rates) : none);
    result_interval(w, "gen_ratio", pairs ? stats_ratio(c->gen, base->gen, pairs) : none);
}

/* base: the result of the first method with as many lanes. */
static void put_cell(json_writer *w, bench_cell *c, const bench_cell *base)
{
    json_begin_object(w);
    json_member_int(w, "concurrency", c->n_lanes);
    json_member_str(w, "method", tandem_method_name((int)c->method));
    json_member_bool(w, "control", c != base && c->method == base->method);
    json_member_int(w, "answers", c->n_answers);
    json_member_int(w, "failed", c->n_failed);
    json_member_int(w, "tokens", c->tokens);
    put_rates(w, c, base);
    json_key(w, "tokens_per_s_each");
    json_begin_array(w);
    for (int i = 0; i < c->n_rates; i++) json_put_real(w, c->rate[i]);
    json_end(w);
    put_spread(w, "decode_tokens_per_s", c->decode_rate, c->n_answers);
    put_spread(w, "ttft_s", c->first_s, c->n_answers);
    live_put_drafts(w, c->spec.rounds, c->spec.drafted, c->spec.accepted);
    json_member_real(w, "accepted_share", spec_accepted_share(&c->spec));
    json_member_real(w, "tokens_per_round", spec_tokens_per_round(&c->spec));
    json_member_int(w, "plain_rounds", c->spec.plain_rounds);
    put_reasons(w, c->reasons);
    json_key(w, "methods");
    json_begin_object(w);
    for (int m = TANDEM_SPEC_OFF + 1; m < TANDEM_SPEC_METHODS; m++) {
        if (!c->spec.rounds_by_method[m]) continue;
        json_key(w, tandem_method_name(m));
        json_begin_object(w);
        live_put_drafts(w, c->spec.rounds_by_method[m], c->spec.drafted_by_method[m], c->spec.accepted_by_method[m]);
        json_end(w);
    }
    json_end(w);
    json_end(w);
}

static void put_result(bench_run *x, buf *out)
{
    json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_str(&w, "object", "bench");
    json_member_str(&w, "id", x->id);
    json_member_str(&w, "model", x->s->opt->model);
    json_member_int(&w, "prompt_tokens", x->prompt_tokens);
    json_member_int(&w, "prompts", x->n_questions);
    json_member_int(&w, "output_tokens", x->output_tokens);
    json_member_int(&w, "requests", x->requests);
    json_member_int(&w, "repeats", x->repeats);
    json_member_real(&w, "temperature", (double)x->temp);
    json_member_bool(&w, "complete", x->complete);
    json_member_bool(&w, "same_text", !x->n_different);
    json_member_int(&w, "others", x->max_others);
    json_member_real(&w, "seconds", clock_s() - x->since);
    json_key(&w, "cells");
    json_begin_array(&w);
    for (int i = 0; i < x->n_cells; i++) put_cell(&w, &x->cell[i], &x->cell[i - i % x->n_methods]);
    json_end(&w);
    json_end(&w);
}

static void put_event(bench_run *x, const char *name, const buf *data)
{
    buf out;
    buf_init(&out, MAX_REPLY + 64);
    buf_printf(&out, "event: %s\ndata: ", name);
    buf_put(&out, data->p, data->n);
    buf_puts(&out, "\n\n");
    http_put(x->call->http, buf_str(&out));
    buf_deinit(&out);
}

static void keep_result(bench_run *x, const buf *text)
{
    err e = {0};
    if (!x->s->results || text->failed) return;
    if (!results_add(x->s->results, (int64_t)time(NULL), buf_str(text), &e)) log_event(LOG_WARN, "bench", "%s", e.text);
}

/* Sends the result or the error. The call then belongs to its connection alone. */
static void reply_bench(bench_run *x)
{
    server_call *c = x->call;
    buf          body;
    buf_init(&body, MAX_REPLY);
    c->on_end = NULL;
    if (x->why.status && !x->begun) {
        call_refuse(x->s, c, &x->why);
    } else if (x->why.status) {
        reply_chat.put_error(&body, NULL, 0, &x->why);
        put_event(x, "error", &body);
        http_cut(c->http);
    } else if (x->begun) {
        put_result(x, &body);
        keep_result(x, &body);
        put_event(x, "result", &body);
        http_end(c->http);
    } else {
        put_result(x, &body);
        keep_result(x, &body);
        call_reply(x->s, c, 200, "application/json", buf_str(&body));
    }
    x->call = NULL;
    buf_deinit(&body);
}

/* --- a cell -------------------------------------------------------------------------------------*/
static int n_prompts_of(const bench_run *x, const bench_cell *c) { return c->n_lanes * x->requests; }

static bench_cell *cell_now(bench_run *x) { return &x->cell[x->now.arm]; }

/* Begins the next cell. Returns false after the last one or when the time is over. */
static bool open_cell(bench_run *x)
{
    tandem_stats now;
    if (!measure_next(&x->loop, &x->now)) return false;
    tandem_get_stats(x->s->engine, &now);
    memcpy(x->reasons_before, now.routes, sizeof x->reasons_before);
    x->n_next       = 0;
    x->cell_tokens  = 0;
    x->cell_answers = cell_now(x)->n_answers;
    x->cell_since   = clock_s();
    return true;
}

static void set_prompt(const bench_run *x, tandem_request *r)
{
    const tandem_ids *asked = &x->asked[x->n_questions ? x->n_next % x->n_questions : 0];
    r->ids                  = x->n_questions ? asked->p : x->prompt + (size_t)x->n_next * (size_t)x->prompt_tokens;
    r->n_ids                = x->n_questions ? asked->n : (size_t)x->prompt_tokens;
}

static bool submit_prompt(bench_run *x, bench_lane *l)
{
    bench_cell    *c = cell_now(x);
    tandem_request r;
    tandem_error   e = {0};
    char           tenant[96];
    snprintf(tenant, sizeof tenant, "%s/%zu", x->id, x->loop.n_begun);
    tandem_request_init(x->s->engine, &r);
    set_prompt(x, &r);
    r.max_tokens      = x->output_tokens;
    r.ignore_stop_ids = true;
    r.temp            = x->temp;
    r.has_seed        = true;
    r.seed            = (uint64_t)x->n_next;
    r.spec.method     = c->method;
    r.priority        = LOWEST;
    r.tenant          = tenant;
    r.kind            = "bench";
    r.id              = x->id;
    if (tandem_submit(x->s->engine, &r, &l->job, &e)) {
        l->prompt = x->n_next++;
        l->since  = clock_s();
        return true;
    }
    if (e.code == TANDEM_BUSY) return false; /* the queue is full: bench_pump tries again */
    err why = {.code = (err_code)e.code};
    memcpy(why.text, e.text, sizeof why.text);
    error_take(&x->why, &why, NULL, false);
    return false;
}

static uint64_t hash_text(tandem_job *j)
{
    tandem_token t[64];
    uint64_t     h = 1469598103934665603u;
    for (size_t n; (n = tandem_poll(j, t, COUNT(t)));)
        for (size_t i = 0; i < n; i++) h = (h ^ (uint64_t)t[i].id) * 1099511628211u;
    return h ? h : 1;
}

/* Records a response. The engine counts all of them, so each has a record (6), delivered with status 200. */
static void note_record(const bench_run *x, const bench_lane *l, const tandem_result *r)
{
    server_record rec = {.id        = x->id,
                         .endpoint  = "/api/bench",
                         .tenant    = x->tenant[0] ? x->tenant : NULL,
                         .status    = 200,
                         .delivered = true,
                         .total_s   = clock_s() - l->since,
                         .choice    = {r},
                         .n_choices = 1};
    server_note(x->s, &rec);
}

static void note_result(bench_run *x, bench_lane *l, const tandem_result *r)
{
    bench_cell         *c = cell_now(x);
    const tandem_usage *u = &r->usage;
    if (r->finish != TANDEM_FINISH_LENGTH) {
        c->n_failed++;
        return;
    }
    uint64_t text = hash_text(l->job);
    if (!x->text[l->prompt]) x->text[l->prompt] = text;
    x->n_different += x->text[l->prompt] != text;
    c->first_s[c->n_answers]     = u->queue_s + u->prefill_s;
    c->decode_rate[c->n_answers] = u->decode_s > 0 ? (u->completion_tokens - 1) / u->decode_s : 0;
    c->n_answers++;
    c->tokens += u->completion_tokens;
    x->cell_tokens += u->completion_tokens;
    spec_counts_add(&c->spec, &u->spec);
}

static int n_running(const bench_run *x)
{
    int n = 0;
    for (int i = 0; i < TANDEM_MAX_LANES; i++) n += x->lane[i].job != NULL;
    return n;
}

static void collect_results(bench_run *x)
{
    for (int i = 0; i < TANDEM_MAX_LANES; i++) {
        bench_lane          *l = &x->lane[i];
        const tandem_result *r = l->job ? tandem_job_result(l->job) : NULL;
        if (!r) continue;
        note_record(x, l, r);
        if (!x->stopped) note_result(x, l, r);
        tandem_release(l->job);
        l->job = NULL;
    }
}

static void send_progress(bench_run *x, bench_cell *c)
{
    json_writer w;
    buf         data;
    if (!x->begun) return;
    buf_init(&data, MAX_REPLY);
    json_writer_init(&w, &data);
    json_begin_object(&w);
    json_member_int(&w, "done", (int64_t)x->loop.n_begun);
    json_member_int(&w, "of", (int64_t)measure_total(&x->loop.plan));
    json_key(&w, "cell");
    put_cell(&w, c, &x->cell[(c - x->cell) / x->n_methods * x->n_methods]);
    json_end(&w);
    put_event(x, "progress", &data);
    buf_deinit(&data);
}

static double mean_of(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return n ? sum / n : 0;
}

static void close_cell(bench_run *x)
{
    bench_cell  *c    = cell_now(x);
    double       took = clock_s() - x->cell_since;
    tandem_stats now;
    tandem_get_stats(x->s->engine, &now);
    for (int i = 0; i < TANDEM_MAX_ROUTES; i++) c->reasons[i] += now.routes[i] - x->reasons_before[i];
    c->gen[c->n_rates]    = mean_of(c->decode_rate + x->cell_answers, c->n_answers - x->cell_answers);
    c->rate[c->n_rates++] = took > 0 ? (double)x->cell_tokens / took : 0;
    x->complete           = x->loop.n_begun == measure_total(&x->loop.plan);
    send_progress(x, c);
}

static void fill_lanes(bench_run *x)
{
    bench_cell *c = cell_now(x);
    for (int i = 0; i < c->n_lanes && x->n_next < n_prompts_of(x, c); i++)
        if (!x->lane[i].job && !submit_prompt(x, &x->lane[i])) return;
}

static void count_others(bench_run *x)
{
    tandem_stats st;
    tandem_get_stats(x->s->engine, &st);
    int others = st.running + st.queued - n_running(x);
    if (others > x->max_others) x->max_others = others;
}

/* --- the loop ----------------------------------------------------------------------------------*/
static void stop_bench(bench_run *x)
{
    x->stopped = true;
    for (int i = 0; i < TANDEM_MAX_LANES; i++)
        if (x->lane[i].job) tandem_cancel(x->lane[i].job);
}

/* Submits the requests of the current cell and of those after it, as far as lanes are free. */
static void run_cells(bench_run *x)
{
    while (!x->why.status) {
        bench_cell *c = cell_now(x);
        fill_lanes(x);
        if (x->n_next < n_prompts_of(x, c) || n_running(x)) return;
        close_cell(x);
        if (!open_cell(x)) return;
    }
}

static bool is_over(const bench_run *x)
{
    return x->stopped || x->why.status || x->complete || measure_time_over(&x->loop.plan);
}

static void pump_bench(bench_run *x)
{
    if (x->with_worker) return;
    collect_results(x);
    if (!is_over(x)) {
        count_others(x);
        run_cells(x);
    }
    if (!is_over(x)) return;
    stop_bench(x);
    if (x->call) reply_bench(x);
    if (!n_running(x)) free_bench(x);
}

void bench_pump(server *s)
{
    if (s->bench) pump_bench(s->bench);
}

void bench_cut(server *s)
{
    bench_run *x = s->bench;
    if (!x || x->stopped) return;
    if (!x->why.status) server_why_cancelled(s, &x->why);
    stop_bench(x);
}

static void bench_call_ended(void *owner)
{
    bench_run *x = owner;
    x->call      = NULL;
    if (!x->with_worker || work_withdraw(x->s->work, &x->item)) x->with_worker = false;
    stop_bench(x);
    pump_bench(x);
}

static void on_prompts_made(work_item *item)
{
    bench_run *x   = (bench_run *)item;
    x->with_worker = false;
    if (item->skipped) error_shutting_down(&x->why);
    if (x->made.code && !x->why.status)
        error_take(&x->why, &x->made, x->n_questions ? "prompts" : "prompt_tokens", false);
    if (x->call && x->stream && !is_over(x)) {
        call_begin_events(x->s, x->call);
        x->begun = true;
    }
    if (!is_over(x)) open_cell(x);
    pump_bench(x);
}

static bool read_request(bench_run *x, server_error *why)
{
    const json_value *v;
    bench_fields      f;
    arena             mem;
    arena_init(&mem, 4 << 20);
    bool ok = admin_read_body(http_call_request(x->call->http)->body, &mem, &v, why) &&
              fields_read(&f, &fields_bench, v, FIELD_BENCH, why) && read_plan(x, &f, why) &&
              read_questions(x, &f, why);
    arena_deinit(&mem);
    return ok;
}

static bool take_memory(bench_run *x, server_error *why)
{
    x->prompt = mem_try_n((size_t)x->n_prompts * (size_t)x->prompt_tokens, sizeof *x->prompt);
    x->text   = mem_try_n((size_t)x->n_prompts, sizeof *x->text);
    bool ok   = x->prompt && x->text;
    for (int i = 0; i < x->n_cells; i++) {
        bench_cell *c  = &x->cell[i];
        size_t      n  = (size_t)n_prompts_of(x, c) * (size_t)x->repeats;
        c->rate        = mem_try_n((size_t)x->repeats, sizeof *c->rate);
        c->gen         = mem_try_n((size_t)x->repeats, sizeof *c->gen);
        c->first_s     = mem_try_n(n, sizeof *c->first_s);
        c->decode_rate = mem_try_n(n, sizeof *c->decode_rate);
        ok &= c->rate && c->gen && c->first_s && c->decode_rate;
    }
    return ok || error_no_memory(why);
}

static bool can_start(server *s, server_error *why)
{
    if (!admin_takes(s, why)) return false;
    return !s->bench || error_set(why, 409, NULL, "bench_running", "Another benchmark is running.");
}

void bench_endpoint(server *s, server_call *c)
{
    server_error why;
    bench_run   *x = call_alloc(s, c, sizeof *x);
    if (!x) return;
    *x = (bench_run){.item  = {.run = make_prompts, .done = on_prompts_made, .kind = WORK_SLOW},
                     .s     = s,
                     .call  = c,
                     .since = clock_s()};
    memcpy(x->tenant, c->tenant, sizeof x->tenant);
    if (!can_start(s, &why) || !read_request(x, &why) || !take_memory(x, &why)) {
        free_all(x);
        call_refuse(s, c, &why);
        return;
    }
    reply_make_id(x->id, sizeof x->id, "bench_", 20);
    x->with_worker = true;
    c->on_end      = bench_call_ended;
    c->owner       = x;
    s->bench       = x;
    s->n_users++;
    work_put(s->work, &x->item);
}

/* --- earlier results ----------------------------------------------------------------------------*/
/* Appends a result to the list, unless the reply would become too long. */
static bool put_earlier(void *ctx, int64_t ts, str text)
{
    buf *out = ctx;
    if (out->n + text.n + 64 > MAX_LIST) return false;
    buf_printf(out, "%s{\"ts\":%lld,\"result\":", out->p[out->n - 1] == '[' ? "" : ",", (long long)ts);
    buf_put(out, text.s, text.n);
    return buf_putc(out, '}');
}

void bench_list(server *s, server_call *c)
{
    buf body;
    err e = {0};
    buf_init(&body, MAX_LIST + 64);
    buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    if (s->results && !results_each(s->results, put_earlier, &body, &e)) log_event(LOG_WARN, "bench", "%s", e.text);
    buf_puts(&body, "]}");
    if (body.failed)
        call_refuse_no_memory(s, c);
    else
        call_reply(s, c, 200, "application/json", buf_str(&body));
    buf_deinit(&body);
}
