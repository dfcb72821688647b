/* Decodes ids; the array of ids. */
#include "base/mem.h"
#include "tok/vocab.h"

/* --- ids --------------------------------------------------------------------------------------- */
void tok_ids_init(tok_ids *ids, size_t max) { *ids = (tok_ids){.max = max}; }

void tok_ids_deinit(tok_ids *ids)
{
    mem_free(ids->p);
    *ids = (tok_ids){0};
}

void tok_ids_clear(tok_ids *ids)
{
    ids->n      = 0;
    ids->failed = false;
}

bool tok_ids_put(tok_ids *ids, int32_t id)
{
    if (ids->n == ids->cap && !ids->failed) {
        size_t   cap = ids->cap < 64 ? 64 : ids->cap * 2;
        int32_t *p   = NULL;
        if (cap > ids->max) cap = ids->max;
        if (cap > ids->n && cap <= SIZE_MAX / sizeof *p) p = mem_try_resize(ids->p, cap * sizeof *p);
        if (p) {
            ids->p   = p;
            ids->cap = cap;
        } else {
            ids->failed = true;
        }
    }
    if (!ids->failed) ids->p[ids->n++] = id;
    return !ids->failed;
}

bool tok_ids_put_n(tok_ids *ids, const int32_t *id, size_t n)
{
    for (size_t i = 0; i < n; i++) tok_ids_put(ids, id[i]);
    return !ids->failed;
}

/* --- the stream -------------------------------------------------------------------------------- */
void tok_stream_init(tok_stream *s, const tok *t, bool show_control)
{
    *s = (tok_stream){.tok = t, .show_control = show_control};
}

/* Returns the length of the maximal invalid part at the start of s: the longest start of a character, or one byte. */
static size_t invalid_piece(const char *s, size_t n)
{
    size_t len = n < 3 ? n : 3;
    while (len > 1 && utf8_open_tail(s, len) != len) len--;
    return len;
}

/* Writes complete characters and replaces invalid bytes. Returns the bytes consumed; the rest is the start of a
 * character. */
static size_t put_whole(buf *out, const char *s, size_t n)
{
    size_t from = 0, i = 0, end = n - utf8_open_tail(s, n);
    while (i < end) {
        uint32_t c;
        int      len = utf8_decode(s + i, end - i, &c);
        if (len) {
            i += (size_t)len;
            continue;
        }
        buf_put(out, s + from, i - from);
        buf_puts(out, "\xEF\xBF\xBD");
        i += invalid_piece(s + i, end - i);
        from = i;
    }
    buf_put(out, s + from, i - from);
    return i;
}

/* Completes the held bytes with the first new ones: together they are at most one character. */
static void put_text(tok_stream *s, str text, buf *out)
{
    while (s->n_held && text.n) {
        s->held[s->n_held++] = *text.s++;
        text.n--;
        size_t done = put_whole(out, s->held, s->n_held);
        s->n_held -= done;
        memmove(s->held, s->held + done, s->n_held);
    }
    if (!text.n) return;
    size_t done = put_whole(out, text.s, text.n);
    s->n_held   = text.n - done;
    memcpy(s->held, text.s + done, s->n_held);
}

void tok_stream_put(tok_stream *s, int32_t id, buf *out)
{
    tok_kind_t kind = tok_kind(s->tok, id);
    if (vocab_is_marker(kind)) tok_stream_finish(s, out);
    if (kind == TOK_UNUSED) return;
    if ((kind == TOK_CONTROL || kind == TOK_UNKNOWN) && !s->show_control) return;
    put_text(s, tok_bytes(s->tok, id), out);
}

void tok_stream_finish(tok_stream *s, buf *out)
{
    if (s->n_held) buf_puts(out, "\xEF\xBF\xBD");
    s->n_held = 0;
}

void tok_decode(const tok *t, const int32_t *id, size_t n, bool show_control, buf *out)
{
    tok_stream s;
    tok_stream_init(&s, t, show_control);
    for (size_t i = 0; i < n; i++) tok_stream_put(&s, id[i], out);
    tok_stream_finish(&s, out);
}
