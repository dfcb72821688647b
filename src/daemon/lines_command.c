#include "daemon/lines_command.h"

#include "base/mem.h"

enum { MAX_WORDS = 16 };

typedef struct {
    str word[MAX_WORDS];
    int n;
} words;

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* Splits the line. Returns false when it has too many words. */
static bool split(words *out, str line)
{
    out->n = 0;
    for (size_t i = 0; i < line.n;) {
        size_t from = i;
        while (i < line.n && !is_blank(line.s[i])) i++;
        if (i > from && out->n == MAX_WORDS) return false;
        if (i > from) out->word[out->n++] = (str){line.s + from, i - from};
        while (i < line.n && is_blank(line.s[i])) i++;
    }
    return true;
}

static bool copy_path(char out[LINES_MAX_PATH], str s)
{
    if (s.n >= LINES_MAX_PATH || memchr(s.s, 0, s.n)) return false;
    memcpy(out, s.s, s.n);
    out[s.n] = 0;
    return true;
}

static bool read_count(str s, int32_t *out)
{
    int64_t n;
    if (!str_to_i64(s, &n) || n < 0 || n > INT32_MAX) return false;
    *out = (int32_t)n;
    return true;
}

/* Parses "0.8,0.9,40,1.1,7,0,0": temperature, top_p, top_k, repetition penalty, seed, frequency and presence penalty.
 * Missing values are off. */
static bool read_sampling(lines_command *c, str s)
{
    double v[7] = {0, 1, 0, 1, 0, 0, 0};
    int    n    = 0;
    for (size_t i = 0; i <= s.n; n++) {
        const char *comma = i < s.n ? memchr(s.s + i, ',', s.n - i) : NULL;
        size_t      end   = comma ? (size_t)(comma - s.s) : s.n;
        if (n == (int)COUNT(v) || !str_to_f64((str){s.s + i, end - i}, &v[n])) return false;
        i = end + 1;
    }
    if (v[0] < 0 || v[0] > 100 || v[1] < 0 || v[1] > 1 || v[2] < 0 || v[2] > 1 << 22 || v[3] <= 0 || v[3] > 100 ||
        v[4] < 0 || v[4] > 1e18)
        return false;
    c->sampled   = true;
    c->temp      = v[0];
    c->top_p     = v[1];
    c->top_k     = (int32_t)v[2];
    c->repeat    = v[3];
    c->seed      = (uint64_t)v[4];
    c->frequency = v[5];
    c->presence  = v[6];
    return c->frequency >= -100 && c->frequency <= 100 && c->presence >= -100 && c->presence <= 100;
}

static bool read_slot(str s, int *out)
{
    int32_t n;
    if (!read_count(s, &n) || n >= LINES_SLOTS) return false;
    *out = n;
    return true;
}

/* Parses "64:3": the first 64 positions into slot 3. A wrong one has no effect, as clients expect. */
static void read_snap(lines_command *c, str s)
{
    const char *colon = memchr(s.s, ':', s.n);
    size_t      n     = colon ? (size_t)(colon - s.s) : 0;
    if (!colon || !read_count((str){s.s, n}, &c->snap_len) || c->snap_len < 1 ||
        !read_slot((str){colon + 1, s.n - n - 1}, &c->snap_slot))
        c->snap_slot = -1;
}

/* Takes samp= and snap= out of the words. */
static bool take_options(lines_command *c, words *w)
{
    int n = 0;
    for (int i = 0; i < w->n; i++) {
        str x = w->word[i];
        if (i > 0 && str_starts(x, "snap="))
            read_snap(c, (str){x.s + 5, x.n - 5});
        else if (i == 0 || !str_starts(x, "samp="))
            w->word[n++] = x;
        else if (!read_sampling(c, (str){x.s + 5, x.n - 5}))
            return false;
    }
    w->n = n;
    return true;
}

static lines_kind read_snapshot(lines_command *c, const words *w)
{
    str        first = w->word[0];
    lines_kind kind  = str_is(first, "RESTORE")         ? LINES_RESTORE
                       : str_is(first, "SNAPSHOT")      ? LINES_SNAPSHOT
                       : str_is(first, "FREE_SNAPSHOT") ? LINES_FREE_SNAPSHOT
                                                        : LINES_LIST_SLOTS;
    if (kind == LINES_LIST_SLOTS) return w->n == 1 ? kind : LINES_BAD;
    if (w->n != (kind == LINES_RESTORE ? 4 : 2)) return LINES_BAD;
    if (!read_slot(w->word[1], &c->slot)) return LINES_BAD_SLOT;
    if (kind != LINES_RESTORE) return kind;
    return copy_path(c->path, w->word[2]) && read_count(w->word[3], &c->n) ? kind : LINES_BAD;
}

static bool is_snapshot(str s)
{
    return str_is(s, "RESTORE") || str_is(s, "SNAPSHOT") || str_is(s, "FREE_SNAPSHOT") || str_is(s, "LIST_SLOTS");
}

static bool read_what(const words *w, int *what)
{
    *what = LINES_DRAFT | LINES_TARGET;
    if (w->n == 1 || (w->n == 2 && str_is(w->word[1], "all"))) return true;
    *what = w->n == 2 && str_is(w->word[1], "draft") ? LINES_DRAFT : LINES_TARGET;
    return w->n == 2 && (*what == LINES_DRAFT || str_is(w->word[1], "target"));
}

static bool is_path(str s) { return s.s[0] == '/' || s.s[0] == '.' || memchr(s.s, '/', s.n); }

static lines_kind read_words(lines_command *c, const words *w)
{
    str        first = w->word[0];
    lines_kind kind  = LINES_UNKNOWN;
    bool       ok    = true;
    if (is_snapshot(first)) return read_snapshot(c, w);
    if (str_is(first, "quit") || str_is(first, "exit")) {
        kind = LINES_QUIT;
    } else if (str_is(first, "park") || str_is(first, "unpark")) {
        kind = str_is(first, "park") ? LINES_PARK : LINES_UNPARK;
        ok   = read_what(w, &c->what);
    } else if (w->n == 2 && ((str_is(first, "free") && str_is(w->word[1], "drafter")) ||
                             (str_is(first, "drafter") && str_is(w->word[1], "free")))) {
        kind = LINES_FREE_DRAFTER;
    } else if (str_is(first, "compress")) {
        kind = LINES_COMPRESS;
    } else if (str_is(first, "generate")) {
        kind = LINES_GENERATE;
        ok   = w->n == 4 && copy_path(c->path, w->word[1]) && read_count(w->word[2], &c->n) &&
             copy_path(c->out, w->word[3]);
    } else if (is_path(first)) {
        kind = LINES_PROMPT;
        ok   = w->n == 2 && copy_path(c->path, first) && read_count(w->word[1], &c->n);
    }
    return ok ? kind : LINES_BAD;
}

void lines_command_read(lines_command *out, str line)
{
    words w;
    *out = (lines_command){.kind = LINES_BAD, .top_p = 1, .repeat = 1, .snap_slot = -1};
    if (!split(&w, line)) return;
    if (!w.n) {
        out->kind = LINES_EMPTY;
        return;
    }
    if (take_options(out, &w)) out->kind = read_words(out, &w);
}
