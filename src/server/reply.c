#include "server/reply.h"

#include <math.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

void reply_make_id(char *out, size_t cap, const char *prefix, int n)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    unsigned char     noise[64] = {0};
    int               at        = snprintf(out, cap, "%s", prefix);
    if (getrandom(noise, sizeof noise, 0) < 0) clock_gettime(CLOCK_REALTIME, (struct timespec *)(void *)noise);
    for (int i = 0; i < n && (size_t)at + 1 < cap; i++) out[at++] = letters[noise[i % 64] % (sizeof letters - 1)];
    out[at] = 0;
}

/* --- usage and timings --------------------------------------------------------------------------*/
static void sum_choices(record_sums *out, const server_choice *all, int n)
{
    server_record r = {0};
    choices_record(all, n, &r);
    record_sum(out, &r);
}

static void put_usage(buf *out, const server_choice *all, int n)
{
    record_sums s;
    long long   reasoning = 0;
    sum_choices(&s, all, n);
    for (int i = 0; i < n; i++) reasoning += choice_reasoning_tokens(&all[i]);
    buf_printf(out,
               "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%lld},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":%lld}}",
               (long long)s.prompt_tokens, (long long)s.completion_tokens,
               (long long)(s.prompt_tokens + s.completion_tokens), (long long)s.cached_tokens, reasoning);
}

static void put_int(json_writer *w, const char *key, int64_t x)
{
    json_key(w, key);
    json_put_int(w, x);
}

/* Three digits behind the point: of milliseconds, that is the clock's. */
static void put_real(json_writer *w, const char *key, double x)
{
    json_key(w, key);
    json_put_real(w, round(x * 1e3) / 1e3);
}

static void put_rates(json_writer *w, const char *what, int64_t n, double seconds, double rate)
{
    static const char *const name[] = {"n", "ms", "per_token_ms", "per_second"};
    double                   ms     = seconds * 1e3;
    char                     key[4][40];
    for (int i = 0; i < 4; i++) snprintf(key[i], sizeof key[i], "%s_%s", what, name[i]);
    put_int(w, key[0], n);
    put_real(w, key[1], ms);
    put_real(w, key[2], n ? ms / (double)n : 0);
    put_real(w, key[3], rate);
}

/* Of all drafts of all answers: the share whose guess at this place was accepted. */
static void put_positions(json_writer *w, const server_choice *all, int n, int64_t rounds)
{
    json_key(w, "accepted_per_position");
    json_begin_array(w);
    for (int at = 0; at < TANDEM_MAX_DRAFT; at++) {
        int64_t tried = 0, right = 0;
        for (int i = 0; i < n; i++) {
            if (!all[i].result) continue;
            tried += all[i].result->usage.tried_at[at];
            right += all[i].result->usage.right_at[at];
        }
        if (!tried) break;
        json_put_real(w, round(1e3 * (double)right / (double)rounds) / 1e3);
    }
    json_end(w);
}

static void put_timings(buf *out, const server_choice *all, int n)
{
    record_sums s;
    json_writer w;
    int64_t     run;
    sum_choices(&s, all, n);
    run = s.prompt_tokens - s.cached_tokens;
    buf_puts(out, "\"timings\":");
    json_writer_init(&w, out);
    json_begin_object(&w);
    put_int(&w, "cache_n", s.cached_tokens);
    put_rates(&w, "prompt", run, s.prefill_s, s.prefill_s > 0 ? (double)run / s.prefill_s : 0);
    put_rates(&w, "predicted", s.completion_tokens, s.decode_s, s.decode_rate);
    put_real(&w, "queue_ms", s.queue_s * 1e3);
    put_int(&w, "draft_n", s.drafted);
    put_int(&w, "draft_n_accepted", s.accepted);
    put_int(&w, "draft_rounds", s.rounds);
    put_real(&w, "acceptance_length", s.acceptance_length);
    put_positions(&w, all, n, s.rounds);
    json_key(&w, "route");
    json_put_str(&w, str_of(tandem_method_name(s.route)));
    json_key(&w, "route_reason");
    json_put_str(&w, str_of(s.route_reason));
    json_end(&w);
}

/* --- what every object has ----------------------------------------------------------------------*/
static void put_head(reply *r, const char *model)
{
    char id[REPLY_ID_MAX];
    reply_make_id(id, sizeof id, r->form->id_prefix, 24);
    if (r->stream) buf_puts(&r->head, "data: ");
    buf_printf(&r->head, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", id,
               r->stream ? r->form->chunk_object : r->form->object, (long long)time(NULL));
    buf_put_json_string(&r->head, str_of(model));
    buf_puts(&r->head, ",\"choices\":[");
}

void reply_init(reply *r, const server_request *q, const tok *t, const char *model)
{
    *r = (reply){.form          = q->where == FIELD_CHAT ? &reply_chat : &reply_text,
                 .tok           = t,
                 .stream        = q->f.stream,
                 .with_usage    = q->f.include_usage,
                 .with_logprobs = q->ask.logprobs >= 0};
    buf_init(&r->out, (size_t)1 << 31);
    buf_init(&r->head, 1 << 16);
    buf_init(&r->tail, 1 << 16);
    put_head(r, model);
}

void reply_deinit(reply *r)
{
    buf_deinit(&r->out);
    buf_deinit(&r->head);
    buf_deinit(&r->tail);
}

static void on_event(void *ctx, server_choice *c, const gemma4_event *ev)
{
    reply *r = ctx;
    r->form->on_event(r, c, ev);
}

static void on_token(void *ctx, server_choice *c, const tandem_token *x)
{
    reply *r = ctx;
    r->form->on_token(r, c, x);
}

choice_sink reply_sink(reply *r) { return (choice_sink){.on_event = on_event, .on_token = on_token, .ctx = r}; }

bool reply_lost(const reply *r, const server_choice *all, int n)
{
    bool lost = r->head.failed || r->tail.failed || r->out.failed;
    for (int i = 0; i < n; i++) {
        lost |= all[i].lost;
        for (int k = 0; k < CHOICE_PARTS; k++) lost |= all[i].part[k].failed;
    }
    return lost;
}

/* --- for the forms ------------------------------------------------------------------------------*/
/* Digits by hand: printf is a third of what a chunk costs. */
static void put_index(buf *out, int i)
{
    if (i >= 10) buf_putc(out, (char)('0' + i / 10));
    buf_putc(out, (char)('0' + i % 10));
}

void reply_put_part(reply *r, server_choice *c, int part)
{
    buf *b = &c->part[part];
    buf_put(&r->out, b->p, b->n);
    c->lost |= b->failed;
    buf_clear(b);
}

void reply_chunk(reply *r, const server_choice *c)
{
    buf_put(&r->out, r->head.p, r->head.n);
    buf_puts(&r->out, "{\"index\":");
    put_index(&r->out, c->index);
    buf_putc(&r->out, ',');
}

static void put_tail(reply *r)
{
    if (r->tail.n) buf_putc(&r->out, ',');
    buf_put(&r->out, r->tail.p, r->tail.n);
    buf_puts(&r->out, r->stream ? "}\n\n" : "}");
}

void reply_chunk_end(reply *r, const char *reason)
{
    buf_puts(&r->out, ",\"finish_reason\":");
    if (reason)
        buf_put_json_string(&r->out, str_of(reason));
    else
        buf_puts(&r->out, "null");
    buf_puts(&r->out, r->with_usage ? "}],\"usage\":null" : "}]");
    put_tail(r);
}

void reply_put_token(json_writer *w, const tok *t, int32_t id)
{
    str bytes = tok_bytes(t, id);
    json_put_str(w, bytes.n ? bytes : tok_text(t, id));
}

double reply_logprob(double x) { return x > -9999 ? x : -9999; }

/* --- a stream -----------------------------------------------------------------------------------*/
void reply_begin(reply *r, server_choice *c)
{
    if (!c->begun && r->form->begin) r->form->begin(r, c);
    c->begun = true;
}

void reply_flush(reply *r, server_choice *c) { r->form->flush(r, c); }

void reply_end(reply *r, server_choice *c, const server_choice *all, int n, bool last)
{
    r->form->flush(r, c);
    if (last && !r->with_usage) put_timings(&r->tail, all, n);
    r->form->end(r, c, choice_finish_reason(c));
    c->ended = true;
}

static void put_usage_event(reply *r, const server_choice *all, int n)
{
    buf_put(&r->out, r->head.p, r->head.n);
    buf_puts(&r->out, "],");
    put_usage(&r->out, all, n);
    buf_clear(&r->tail);
    put_timings(&r->tail, all, n);
    put_tail(r);
}

void reply_done(reply *r, const server_choice *all, int n)
{
    if (r->with_usage) put_usage_event(r, all, n);
    buf_puts(&r->out, "data: [DONE]\n\n");
}

void reply_fail(reply *r, const server_choice *all, int n, const server_error *why)
{
    put_usage_event(r, all, n);
    buf_puts(&r->out, "data: ");
    error_put_body(&r->out, why);
    buf_puts(&r->out, "\n\n");
}

void reply_ping(reply *r) { buf_puts(&r->out, ": ping\n\n"); }

/* --- one object ---------------------------------------------------------------------------------*/
void reply_whole(reply *r, server_choice *all, int n)
{
    buf_put(&r->out, r->head.p, r->head.n);
    for (int i = 0; i < n; i++) {
        buf_printf(&r->out, "%s{\"index\":%d,", i ? "," : "", all[i].index);
        r->form->put_whole(r, &all[i], choice_finish_reason(&all[i]));
        buf_putc(&r->out, '}');
    }
    buf_puts(&r->out, "],");
    put_usage(&r->out, all, n);
    put_timings(&r->tail, all, n);
    put_tail(r);
}

void reply_error(buf *out, const server_choice *all, int n, const server_error *why)
{
    buf_puts(out, "{\"error\":");
    error_put(out, why);
    if (n) {
        buf_putc(out, ',');
        put_usage(out, all, n);
    }
    buf_putc(out, '}');
}
