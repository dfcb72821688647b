#include "server/request_log_inside.h"

#include <assert.h>

typedef struct {
    log_field *f;
    size_t     n;
} list;

static void put_int(list *l, const char *name, int64_t i)
{
    l->f[l->n++] = (log_field){.kind = LOG_INT, .name = name, .i = i};
}
static void put_real(list *l, const char *name, double d)
{
    l->f[l->n++] = (log_field){.kind = LOG_REAL, .name = name, .d = d};
}
static void put_str(list *l, const char *name, const char *s)
{
    l->f[l->n++] = (log_field){.kind = LOG_STR, .name = name, .s = s};
}

static void put_answers(list *l, const server_record *r)
{
    record_sums s;
    record_sum(&s, r);
    put_str(l, "finish", s.finish);
    put_int(l, "choices", r->n_choices);
    put_int(l, "prompt", s.prompt_tokens);
    put_int(l, "cached", s.cached_tokens);
    if (s.image_tokens) put_int(l, "image", s.image_tokens);
    if (s.video_tokens) put_int(l, "video", s.video_tokens);
    put_int(l, "tokens", s.completion_tokens);
    put_real(l, "queue_s", s.queue_s);
    put_real(l, "prefill_s", s.prefill_s);
    put_real(l, "decode_s", s.decode_s);
    put_real(l, "decode_tok_s", s.decode_rate);
    put_real(l, "total_tok_s", s.total_rate);
    put_int(l, "drafts", s.spec.rounds);
    put_int(l, "drafted", s.spec.drafted);
    put_int(l, "accepted", s.spec.accepted);
    put_real(l, "acceptance_rate", s.acceptance_rate);
    put_real(l, "acceptance_length", s.acceptance_length);
    put_str(l, "route", tandem_method_name(s.route));
    put_str(l, "reason", s.route_reason);
}

size_t request_log_fields(log_field out[REQUEST_LOG_FIELDS], const server_record *r)
{
    list l = {.f = out};
    put_str(&l, "id", r->id);
    put_str(&l, "endpoint", r->endpoint);
    put_str(&l, "tenant", r->tenant);
    put_int(&l, "status", r->status);
    put_str(&l, "sent", r->delivered ? "all" : "cut");
    put_int(&l, "stream", r->stream);
    put_real(&l, "total_s", r->total_s);
    if (r->n_choices) put_answers(&l, r);
    assert(l.n <= REQUEST_LOG_FIELDS);
    return l.n;
}

void request_log(log_level l, const server_record *r)
{
    log_field f[REQUEST_LOG_FIELDS];
    log_fields(l, "request", f, request_log_fields(f, r));
}
