/* The common parts of chat.completion and text_completion: the envelope of an object and of an event, usage and end. */
#include "server/reply.h"

#include <time.h>

static void put_usage(buf *out, const server_choice *all, int n)
{
    reply_usage u;
    reply_sum(&u, all, n);
    const record_sums *s = &u.sums;
    buf_printf(out,
               "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%lld",
               (long long)s->prompt_tokens, (long long)s->completion_tokens,
               (long long)(s->prompt_tokens + s->completion_tokens), (long long)s->cached_tokens);
    reply_put_media(out, &u);
    buf_printf(out, "},\"completion_tokens_details\":{\"reasoning_tokens\":%lld}}", (long long)u.reasoning_tokens);
}

void completions_open(reply *r, const char *model, const completions_names *names)
{
    char id[REPLY_ID_MAX];
    reply_make_id(id, sizeof id, names->id_prefix, 24);
    if (r->stream) buf_puts(&r->head, "data: ");
    buf_printf(&r->head, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", id,
               r->stream ? names->chunk_object : names->object, (long long)time(NULL));
    buf_put_json_string(&r->head, str_of(model));
    buf_printf(&r->head, ",\"system_fingerprint\":\"%s\",\"choices\":[", r->request->fingerprint);
}

/* --- a stream -----------------------------------------------------------------------------------*/
void completions_chunk(reply *r, const server_choice *c)
{
    buf_put(&r->out, r->head.p, r->head.n);
    buf_puts(&r->out, "{\"index\":");
    reply_put_index(&r->out, c->index);
    buf_putc(&r->out, ',');
    if (r->request->f.timings_per_token && !r->tail.n && c->n_tokens) reply_put_live_timings(&r->tail, c);
}

static void put_tail(reply *r)
{
    if (r->tail.n) buf_putc(&r->out, ',');
    buf_put(&r->out, r->tail.p, r->tail.n);
    buf_puts(&r->out, r->stream ? "}\n\n" : "}");
}

void completions_chunk_end(reply *r, const char *reason)
{
    buf_puts(&r->out, ",\"finish_reason\":");
    if (reason)
        buf_put_json_string(&r->out, str_of(reason));
    else
        buf_puts(&r->out, "null");
    buf_puts(&r->out, r->with_usage ? "}],\"usage\":null" : "}]");
    put_tail(r);
    buf_clear(&r->tail);
}

void completions_last(reply *r, const server_choice *all, int n)
{
    if (!r->with_usage) reply_put_timings(&r->tail, all, n);
}

static void put_usage_event(reply *r, const server_choice *all, int n)
{
    buf_put(&r->out, r->head.p, r->head.n);
    buf_puts(&r->out, "],");
    put_usage(&r->out, all, n);
    buf_clear(&r->tail);
    reply_put_timings(&r->tail, all, n);
    put_tail(r);
}

void completions_done(reply *r, const server_choice *all, int n)
{
    if (r->with_usage) put_usage_event(r, all, n);
    buf_puts(&r->out, "data: [DONE]\n\n");
}

void completions_fail(reply *r, const server_choice *all, int n, const server_error *why)
{
    put_usage_event(r, all, n);
    buf_puts(&r->out, "data: ");
    completions_error(&r->out, all, 0, why);
    buf_puts(&r->out, "\n\n");
}

void completions_ping(reply *r) { buf_puts(&r->out, ": ping\n\n"); }

/* --- one object ---------------------------------------------------------------------------------*/
void completions_whole(reply *r, server_choice *all, int n, void (*put)(reply *r, server_choice *c, const char *reason))
{
    buf_put(&r->out, r->head.p, r->head.n);
    for (int i = 0; i < n; i++) {
        buf_printf(&r->out, "%s{\"index\":%d,", i ? "," : "", all[i].index);
        put(r, &all[i], choice_finish_reason(&all[i]));
        buf_putc(&r->out, '}');
    }
    buf_puts(&r->out, "],");
    put_usage(&r->out, all, n);
    reply_put_timings(&r->tail, all, n);
    put_tail(r);
}

void completions_error(buf *out, const server_choice *all, int n, const server_error *why)
{
    buf_puts(out, "{\"error\":");
    error_put(out, why);
    if (n) {
        buf_putc(out, ',');
        put_usage(out, all, n);
    }
    buf_putc(out, '}');
}
