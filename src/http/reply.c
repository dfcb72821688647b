#include "http/inside.h"

#include <assert.h>
#include <stdio.h>

enum { MAX_OVER = 4 }; /* multiple of max_unsent at which the client is disconnected */

static const struct {
    int         status;
    const char *text;
} statuses[] = {
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {301, "Moved Permanently"},
    {302, "Found"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {406, "Not Acceptable"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {411, "Length Required"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {421, "Misdirected Request"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
    {529, "Overloaded"},
};

static const char *status_text(int status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        if (statuses[i].status == status) return statuses[i].text;
    return "Status";
}

static const char *date_now(http_server *s)
{
    time_t now = time(NULL);
    if (now != s->date_at) {
        struct tm t;
        gmtime_r(&now, &t);
        strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", &t);
        s->date_at = now;
    }
    return s->date;
}

static bool has_control(str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.s[i] < 0x20 && s.s[i] != '\t') return true;
    return false;
}

/* Writes the status line and the fields, without the empty line. Omits fields with line breaks. */
static void put_head(buf *out, http_server *s, int status, const http_field *fields, size_t n)
{
    buf_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, status_text(status), date_now(s));
    for (size_t i = 0; i < n; i++) {
        if (has_control(fields[i].name) || has_control(fields[i].value)) continue;
        buf_put(out, fields[i].name.s, fields[i].name.n);
        buf_puts(out, ": ");
        buf_put(out, fields[i].value.s, fields[i].value.n);
        buf_puts(out, "\r\n");
    }
}

void http_put_refusal(buf *out, http_server *s, conn *live, http_verdict v)
{
    http_field f[HTTP_MAX_REFUSAL_FIELDS];
    size_t     n = 0;
    buf        body;
    buf_init(&body, 4096);
    if (s->h.on_refuse)
        n = s->h.on_refuse(s->h.ctx, live, v.status, v.why, f, &body);
    else
        buf_printf(&body, "%s\n", v.why);
    put_head(out, s, v.status, f, n);
    buf_printf(out, "Content-Length: %zu\r\nConnection: close\r\n\r\n", body.n);
    buf_put(out, body.p, body.n);
    buf_deinit(&body);
}

/* Closes the connection if some of the request was not read, as it would be taken for the next one. */
static void put_connection(conn *c)
{
    c->closing = !c->head.keep_alive || c->s->draining || c->s->no_keep_alive || c->to_read.state != BODY_DONE;
    if (c->closing) buf_puts(&c->out, "Connection: close\r\n");
}

static void begin_response(conn *c, int status, const http_field *fields, size_t n)
{
    assert(c->live && !c->replying);
    c->replying = true;
    c->status   = status;
    c->phase    = PHASE_RUNNING;
    c->no_body  = str_is(c->request.method, "HEAD") || status == 204 || status == 304;
    put_head(&c->out, c->s, status, fields, n);
    put_connection(c);
    http_touch(c);
}

static void end_response(conn *c)
{
    c->ended = true;
    c->phase = PHASE_FLUSH;
    http_touch(c);
}

/* Replaces a response that ran out of memory, and of which nothing was sent, by a short one. */
static void put_no_memory(conn *c)
{
    buf_deinit(&c->out);
    c->out_at  = 0;
    c->status  = 503;
    c->closing = true;
    http_put_refusal(&c->out, c->s, c, (http_verdict){503, "There is no memory for the response."});
}

void http_reply(http_call *c, int status, const http_field *fields, size_t n, str body)
{
    bool is_first = !c->out.n;
    begin_response(c, status, fields, n);
    if (status != 204 && status != 304) buf_printf(&c->out, "Content-Length: %zu\r\n", body.n);
    buf_puts(&c->out, "\r\n");
    if (!c->no_body) buf_put(&c->out, body.s, body.n);
    if (c->out.failed && is_first) put_no_memory(c);
    end_response(c);
}

void http_begin(http_call *c, int status, const http_field *fields, size_t n)
{
    begin_response(c, status, fields, n);
    c->chunked = c->head.minor > 0 && !c->no_body;
    if (c->chunked) buf_puts(&c->out, "Transfer-Encoding: chunked\r\n");
    buf_puts(&c->out, "\r\n");
}

void http_put(http_call *c, str bytes)
{
    assert(c->replying && !c->ended);
    if (c->no_body || !bytes.n) return; /* an empty chunk would end the response */
    if (http_unsent(c) / MAX_OVER > c->s->o.max_unsent) c->out.failed = true;
    if (c->chunked) buf_printf(&c->out, "%zx\r\n", bytes.n);
    buf_put(&c->out, bytes.s, bytes.n);
    if (c->chunked) buf_puts(&c->out, "\r\n");
    if (http_unsent(c) > c->s->o.max_unsent) c->was_over = true;
    http_touch(c);
}

size_t http_unsent(const http_call *c) { return c->out.n - c->out_at; }

void http_end(http_call *c)
{
    assert(c->replying && !c->ended);
    if (c->chunked) buf_puts(&c->out, "0\r\n\r\n");
    end_response(c);
}

void http_cut(http_call *c)
{
    assert(c->live && !c->ended);
    c->cut     = true;
    c->closing = true;
    end_response(c);
}

const http_request *http_call_request(const http_call *c) { return &c->request; }
void                http_call_set_user(http_call *c, void *user) { c->user = user; }
void               *http_call_user(const http_call *c) { return c->user; }
int                 http_call_status(const http_call *c) { return c->status; }

str http_call_field(const http_call *c, const char *name)
{
    for (size_t i = 0; i < c->request.n_fields; i++)
        if (str_is_nocase(c->request.field[i].name, str_of(name))) return c->request.field[i].value;
    return (str){0};
}

void http_limit_body(http_call *c, size_t max)
{
    if (max < c->to_read.max) c->to_read.max = max;
}

void http_drop_body(http_call *c)
{
    c->s->body_bytes -= c->body_counted;
    c->body_counted = 0;
    c->request.body = (str){0};
    buf_deinit(&c->body);
}

size_t http_take_body(http_call *c, buf *out)
{
    size_t counted  = c->body_counted;
    *out            = c->body;
    c->body_counted = 0;
    c->request.body = (str){0};
    buf_init(&c->body, 0);
    return counted;
}

void http_give_back(http_server *s, size_t bytes) { s->body_bytes -= bytes; }
