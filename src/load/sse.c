#include "load/sse.h"

void sse_init(sse_reader *r, void (*on_data)(void *ctx, str data), void *ctx)
{
    *r = (sse_reader){.on_data = on_data, .ctx = ctx};
    buf_init(&r->line, SSE_MAX_EVENT);
    buf_init(&r->data, SSE_MAX_EVENT);
}

void sse_deinit(sse_reader *r)
{
    buf_deinit(&r->line);
    buf_deinit(&r->data);
}

void sse_reset(sse_reader *r)
{
    buf_clear(&r->line);
    buf_clear(&r->data);
    r->has_data = r->after_cr = r->began = false;
}

static bool too_large(err *e)
{
    return err_set(e, ERR_TOO_LARGE, "an event is larger than %d MiB", SSE_MAX_EVENT >> 20);
}

static bool end_event(sse_reader *r)
{
    if (r->has_data) r->on_data(r->ctx, buf_str(&r->data));
    r->has_data = false;
    buf_clear(&r->data);
    return true;
}

static bool end_line(sse_reader *r, str line, err *e)
{
    if (!r->began && str_starts(line, "\xef\xbb\xbf")) line = (str){line.s + 3, line.n - 3};
    r->began = true;
    if (!line.n) return end_event(r);
    if (!str_starts(line, "data") || (line.n > 4 && line.s[4] != ':')) return true;
    size_t skip = line.n == 4 ? 4 : line.n > 5 && line.s[5] == ' ' ? 6 : 5;
    if (r->has_data) buf_putc(&r->data, '\n');
    r->has_data = true;
    return buf_put(&r->data, line.s + skip, line.n - skip) || too_large(e);
}

static size_t line_length(str in)
{
    const char *lf = memchr(in.s, '\n', in.n);
    size_t      n  = lf ? (size_t)(lf - in.s) : in.n;
    const char *cr = n ? memchr(in.s, '\r', n) : NULL;
    return cr ? (size_t)(cr - in.s) : n;
}

bool sse_feed(sse_reader *r, str in, err *e)
{
    while (in.n) {
        if (r->after_cr && in.s[0] == '\n') {
            in          = (str){in.s + 1, in.n - 1};
            r->after_cr = false;
            continue;
        }
        size_t n    = line_length(in);
        bool   ends = n < in.n;
        str    line = {in.s, n};
        r->after_cr = ends && in.s[n] == '\r';
        if (r->line.n || !ends) {
            if (!buf_put(&r->line, line.s, line.n)) return too_large(e);
            line = buf_str(&r->line);
        }
        if (ends && !end_line(r, line, e)) return false;
        if (ends) buf_clear(&r->line);
        in = (str){in.s + n + ends, in.n - n - ends};
    }
    return true;
}
