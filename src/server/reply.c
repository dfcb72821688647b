#include "server/reply.h"

#include "base/clock.h"

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
void reply_sum(reply_usage *out, const server_choice *all, int n)
{
    server_record r = {0};
    *out            = (reply_usage){0};
    choices_record(all, n, &r);
    record_sum(&out->sums, &r);
    for (int i = 0; i < n; i++) out->reasoning_tokens += choice_reasoning_tokens(&all[i]);
}

void reply_put_media(buf *out, const reply_usage *u)
{
    if (u->sums.image_tokens || u->sums.video_tokens)
        buf_printf(out, ",\"image_tokens\":%lld,\"video_tokens\":%lld", (long long)u->sums.image_tokens,
                   (long long)u->sums.video_tokens);
}

/* Writes a number with three decimal places: for milliseconds, the resolution of the clock. */
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
    json_member_int(w, key[0], n);
    put_real(w, key[1], ms);
    put_real(w, key[2], n ? ms / (double)n : 0);
    put_real(w, key[3], rate);
}

/* Writes the share of the drafts whose token at each position was accepted. */
static void put_positions(json_writer *w, const tandem_spec_counts *c)
{
    json_key(w, "accepted_per_position");
    json_begin_array(w);
    for (int i = 0; i < TANDEM_MAX_DRAFT && c->tried_at[i]; i++)
        json_put_real(w, round(1e3 * (double)c->right_at[i] / (double)c->rounds) / 1e3);
    json_end(w);
}

void reply_put_timings(buf *out, const server_choice *all, int n)
{
    reply_usage u;
    json_writer w;
    reply_sum(&u, all, n);
    record_sums s   = u.sums;
    int64_t     run = s.prompt_tokens - s.cached_tokens;
    buf_puts(out, "\"timings\":");
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_int(&w, "cache_n", s.cached_tokens);
    put_rates(&w, "prompt", run, s.prefill_s, s.prefill_s > 0 ? (double)run / s.prefill_s : 0);
    put_rates(&w, "predicted", s.completion_tokens, s.decode_s, s.decode_rate);
    put_real(&w, "queue_ms", s.queue_s * 1e3);
    json_member_int(&w, "draft_n", s.spec.drafted);
    json_member_int(&w, "draft_n_accepted", s.spec.accepted);
    json_member_int(&w, "draft_rounds", s.spec.rounds);
    put_real(&w, "acceptance_length", s.acceptance_length);
    put_positions(&w, &s.spec);
    json_member_str(&w, "route", tandem_method_name(s.route));
    json_member_str(&w, "route_reason",
                    all[0].request->sees_all ? s.route_reason : engine_public_reason(s.route_reason));
    json_end(&w);
}

void reply_put_progress(buf *out, const tandem_progress *p)
{
    buf_printf(out, "\"prompt_progress\":{\"total\":%d,\"cache\":%d,\"processed\":%d,\"time_ms\":%lld}",
               p->prompt_tokens, p->cached_tokens, p->prompt_done, (long long)(p->prefill_s * 1e3));
}

void reply_put_live_timings(buf *out, const server_choice *c)
{
    tandem_progress p;
    json_writer     w;
    tandem_job_progress(c->job, &p);
    int64_t run = p.prompt_done - p.cached_tokens, made = c->n_tokens;
    buf_puts(out, "\"timings\":");
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_int(&w, "cache_n", p.cached_tokens);
    put_rates(&w, "prompt", run, p.prefill_s, p.prefill_s > 0 ? (double)run / p.prefill_s : 0);
    put_rates(&w, "predicted", made, p.decode_s, p.decode_s > 0 && made > 1 ? (double)(made - 1) / p.decode_s : 0);
    json_end(&w);
}

void reply_init(reply *r, const reply_format *format, const server_request *q, const tok *t, const char *model)
{
    *r = (reply){.format        = format,
                 .request       = q,
                 .tok           = t,
                 .stream        = q->f.stream,
                 .with_usage    = q->f.include_usage,
                 .with_logprobs = q->ask.logprobs >= 0,
                 .opened        = clock_s()};
    buf_init(&r->out, (size_t)1 << 31);
    buf_init(&r->head, 1 << 16);
    buf_init(&r->tail, 1 << 16);
    format->open(r, model);
}

void reply_deinit(reply *r)
{
    buf_deinit(&r->out);
    buf_deinit(&r->head);
    buf_deinit(&r->tail);
}

bool reply_lost(const reply *r, const server_choice *all, int n)
{
    bool lost = r->head.failed || r->tail.failed || r->out.failed;
    for (int i = 0; i < n; i++) {
        lost |= all[i].lost;
        for (int k = 0; k < CHOICE_PARTS; k++) lost |= all[i].part[k].failed;
    }
    return lost;
}

/* --- for the formats ------------------------------------------------------------------------------*/
/* Writes the digits without printf, which would take a third of the time of a chunk. */
void reply_put_index(buf *out, int i)
{
    if (i >= 10) reply_put_index(out, i / 10);
    buf_putc(out, (char)('0' + i % 10));
}

void reply_put_part(reply *r, server_choice *c, int part)
{
    buf *b = &c->part[part];
    buf_put(&r->out, b->p, b->n);
    c->lost |= b->failed;
    buf_clear(b);
}

void reply_put_token(json_writer *w, const tok *t, int32_t id)
{
    str bytes = tok_bytes(t, id);
    json_put_str(w, bytes.n ? bytes : tok_text(t, id));
}

double reply_logprob(double x) { return x > -9999 ? x : -9999; }

static void put_bytes(json_writer *w, str bytes)
{
    json_key(w, "bytes");
    json_begin_array(w);
    for (size_t i = 0; i < bytes.n; i++) json_put_int(w, (unsigned char)bytes.s[i]);
    json_end(w);
}

static void put_logprob(json_writer *w, const tok *t, const tandem_logprob *x, bool with_ids)
{
    if (with_ids) json_member_int(w, "id", x->id);
    json_key(w, "token");
    reply_put_token(w, t, x->id);
    json_key(w, "logprob");
    json_put_real(w, reply_logprob(x->logprob));
    put_bytes(w, tok_bytes(t, x->id));
}

void reply_put_logprobs(buf *out, const tok *t, const tandem_token *x, int n_top, bool with_ids)
{
    json_writer w;
    if (out->n) buf_putc(out, ',');
    json_writer_init(&w, out);
    json_begin_object(&w);
    put_logprob(&w, t, &x->logprobs[0], with_ids);
    json_key(&w, "top_logprobs");
    json_begin_array(&w);
    for (int i = 1; i <= n_top && x->logprobs[i].id >= 0; i++) {
        json_begin_object(&w);
        put_logprob(&w, t, &x->logprobs[i], with_ids);
        json_end(&w);
    }
    json_end(&w);
    json_end(&w);
}

void reply_begin(server_choice *c)
{
    if (!c->begun && c->reply->format->begin) c->reply->format->begin(c);
    c->begun = true;
}

void reply_end(server_choice *c, const server_choice *all, int n, bool last)
{
    c->reply->format->flush(c);
    c->reply->format->end(c, all, n, last);
    c->ended = true;
}
