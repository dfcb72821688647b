#include "tok/stop.h"

void stop_init(stop_match *m) { *m = (stop_match){0}; }

bool stop_add(stop_match *m, str s)
{
    if (m->n_strings == STOP_MAX_STRINGS || s.n == 0 || s.n > STOP_MAX_BYTES) return false;
    m->string[m->n_strings++] = s;
    return true;
}

/* Returns the length of the longest prefix of s, at most `max` bytes, that held[0 .. n) ends in. */
static size_t longest_start(const char *held, size_t n, str s, size_t max)
{
    for (size_t len = max < s.n ? max : s.n; len > 0; len--)
        if (!memcmp(held + n - len, s.s, len)) return len;
    return 0;
}

/* Returns whether held[0 .. n) ends in a stop string, and its length in *cut. If not, the last *keep bytes may be the
 * start of one. One byte extends a match by at most one, so a string that does not begin here costs one comparison. */
static bool judge(stop_match *m, const char *held, size_t n, size_t *cut, size_t *keep)
{
    *cut = *keep = 0;
    for (int i = 0; i < m->n_strings; i++) {
        size_t len  = longest_start(held, n, m->string[i], (size_t)m->start[i] + 1);
        m->start[i] = (uint16_t)len;
        if (len == m->string[i].n && len > *cut) {
            *cut     = len;
            m->which = i;
        }
        if (len > *keep) *keep = len;
    }
    return *cut > 0;
}

static bool put_byte(stop_match *m, char c, buf *out)
{
    char   window[STOP_MAX_BYTES + 1];
    size_t n = m->n_held, cut, keep;
    memcpy(window, m->held, n);
    window[n++] = c;
    if (judge(m, window, n, &cut, &keep)) {
        buf_put(out, window, n - cut);
        m->n_held       = 0;
        return m->found = true;
    }
    buf_put(out, window, n - keep);
    memcpy(m->held, window + n - keep, keep);
    m->n_held = keep;
    return false;
}

bool stop_put(stop_match *m, str text, buf *out)
{
    if (!m->n_strings) return buf_put(out, text.s, text.n), false;
    for (size_t i = 0; i < text.n && !m->found; i++) put_byte(m, text.s[i], out);
    return m->found;
}

void stop_finish(stop_match *m, buf *out)
{
    if (!m->found) buf_put(out, m->held, m->n_held);
    m->n_held = 0;
    memset(m->start, 0, sizeof m->start);
}
