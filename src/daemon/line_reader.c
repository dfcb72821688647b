#include "daemon/line_reader.h"

void line_reader_init(line_reader *r, size_t max_bytes)
{
    *r = (line_reader){0};
    buf_init(&r->held, max_bytes);
}

void line_reader_deinit(line_reader *r) { buf_deinit(&r->held); }

static str without_cr(str line)
{
    if (line.n && line.s[line.n - 1] == '\r') line.n--;
    return line;
}

/* Empties the line that was returned last. Frees the memory of a long one. */
static void drop_returned(line_reader *r)
{
    enum { KEPT = 1 << 16 };
    if (!r->returned) return;
    if (r->held.cap > KEPT) buf_deinit(&r->held);
    buf_clear(&r->held);
    r->returned = false;
}

static line_kind return_line(line_reader *r, str *line)
{
    bool skipped = r->skipping;
    r->n_lines++;
    r->skipping = false;
    r->returned = true;
    *line       = skipped ? (str){0} : without_cr(*line);
    return skipped ? LINE_TOO_LONG : LINE_WHOLE;
}

/* Adds a part of a line. A line that becomes too long is dropped. */
static void hold(line_reader *r, const char *p, size_t n)
{
    if (r->skipping || buf_put(&r->held, p, n)) return;
    r->skipping = true;
    buf_deinit(&r->held);
    buf_clear(&r->held);
}

line_kind line_reader_next(line_reader *r, str *in, str *line)
{
    drop_returned(r);
    const char *end = in->n ? memchr(in->s, '\n', in->n) : NULL;
    size_t      n   = end ? (size_t)(end - in->s) : in->n;
    bool        all = end && !r->held.n && !r->skipping && n <= r->held.max; /* the whole line is in *in */
    *line           = (str){in->s, n};
    if (!all && n) hold(r, in->s, n);
    in->s += n + (end != NULL);
    in->n -= n + (end != NULL);
    if (!end) return LINE_NONE;
    if (!all) *line = buf_str(&r->held);
    return return_line(r, line);
}

line_kind line_reader_finish(line_reader *r, str *line)
{
    drop_returned(r);
    if (!r->held.n && !r->skipping) return LINE_NONE;
    *line = buf_str(&r->held);
    return return_line(r, line);
}
