#include "server/call.h"

#include "base/mem.h"
#include "server/inside.h"
#include "server/origin.h"

static bool is_id_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || strchr("-_.:/+=@", c);
}

bool call_id_is_valid(str id)
{
    bool good = id.n > 0 && id.n <= REQUEST_ID_MAX;
    for (size_t i = 0; good && i < id.n; i++) good = id.s[i] && is_id_char(id.s[i]);
    return good;
}

static const reply_format *format_of(const server_call *c) { return c->format ? c->format : &reply_chat; }

int call_headers(server *s, server_call *c, http_field *out)
{
    int         n                = 0;
    const char *second_id_header = format_of(c)->id_field;
    out[n++]                     = (http_field){STR("X-Request-Id"), str_of(c->id)};
    if (second_id_header) out[n++] = (http_field){str_of(second_id_header), str_of(c->id)};
    if (s->replica_id[0]) out[n++] = (http_field){STR("X-Replica-Id"), str_of(s->replica_id)};
    if (c->warning && c->warning[0]) out[n++] = (http_field){STR("X-Tandem-Warning"), str_of(c->warning)};
    if (s->opt->n_cors) out[n++] = (http_field){STR("Vary"), STR("Origin")};
    str allowed = c->http ? origin_allowed(http_call_field(c->http, "Origin"), s->opt->cors, s->opt->n_cors) : (str){0};
    if (allowed.s) {
        out[n++] = (http_field){STR("Access-Control-Allow-Origin"), allowed};
        out[n++] = (http_field){STR("Access-Control-Expose-Headers"),
                                STR("X-Request-Id, Request-Id, X-Replica-Id, X-Tandem-Warning, Retry-After")};
    }
    return n;
}

void call_reply(server *s, server_call *c, int status, const char *type, str body)
{
    http_field f[SERVER_MAX_FIELDS];
    int        n = call_headers(s, c, f);
    f[n++]       = (http_field){STR("Content-Type"), str_of(type)};
    http_reply(c->http, status, f, (size_t)n, body);
}

void call_begin_events(server *s, server_call *c)
{
    http_field  f[SERVER_MAX_FIELDS];
    int         n    = call_headers(s, c, f);
    const char *type = format_of(c)->stream_type;
    f[n++]           = (http_field){STR("Content-Type"), type ? str_of(type) : STR("text/event-stream")};
    f[n++]           = (http_field){STR("Cache-Control"), STR("no-cache")};
    f[n++]           = (http_field){STR("X-Accel-Buffering"), STR("no")};
    http_begin(c->http, 200, f, (size_t)n);
}

static int write_error(server *s, server_call *c, const server_error *why, const server_choice *all, int n_all,
                       http_field *f, buf *body)
{
    int n = call_headers(s, c, f);
    format_of(c)->put_error(body, all, n_all, why);
    f[n++] = (http_field){STR("Content-Type"), STR("application/json")};
    if (error_retry_after(why->status)) f[n++] = (http_field){STR("Retry-After"), STR("1")};
    return n;
}

/* Returns the status of an error. An API may have its own for overload (Anthropic's 529), but a server that drains
 * replies 503 in all APIs, since proxies then try another one. */
static int status_of(const server_call *c, const server_error *why)
{
    bool is_overload = why->status == 503 && why->code && !strcmp(why->code, "unavailable");
    return is_overload && format_of(c)->overloaded ? format_of(c)->overloaded : why->status;
}

static void refuse_with(server *s, server_call *c, const server_error *why, const server_choice *all, int n_all,
                        http_field more)
{
    http_field f[SERVER_MAX_FIELDS];
    buf        body;
    buf_init(&body, 1 << 16);
    int n = write_error(s, c, why, all, n_all, f, &body);
    if (more.name.n) f[n++] = more;
    http_reply(c->http, status_of(c, why), f, (size_t)n, buf_str(&body));
    buf_deinit(&body);
}

void call_refuse(server *s, server_call *c, const server_error *why)
{
    refuse_with(s, c, why, NULL, 0, (http_field){0});
}

void call_refuse_no_memory(server *s, server_call *c)
{
    server_error why;
    error_no_memory(&why);
    call_refuse(s, c, &why);
}

void *call_alloc(server *s, server_call *c, size_t bytes)
{
    void *p = mem_try(bytes);
    if (!p) call_refuse_no_memory(s, c);
    return p;
}

void call_refuse_with(server *s, server_call *c, const server_error *why, http_field header)
{
    refuse_with(s, c, why, NULL, 0, header);
}

int call_write_error(server *s, server_call *c, const server_error *why, http_field *f, buf *body)
{
    return write_error(s, c, why, NULL, 0, f, body);
}

void call_refuse_begun(server *s, server_call *c, const server_error *why, const server_choice *all, int n)
{
    refuse_with(s, c, why, all, n, (http_field){0});
}
