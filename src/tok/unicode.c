/* Looks up characters in the generated tables, and computes normalisation form C.
 *
 * A text is cut into segments: a character that NFC never changes and never joins to the one before, and the marks and
 * other characters that follow it. Most segments are one character and already in NFC. Any other one is decomposed,
 * its marks are put in the order of their combining classes, and pairs are composed. */
#include "tok/unicode.h"

#include "base/mem.h"

#include <stdlib.h>

typedef struct {
    uint32_t c, a, b; /* c is canonically equal to a b; b == 0: to a alone */
} canonical_pair;

#include "tok/unicode_tables.h"

enum { /* Hangul syllables are composed by arithmetic */
       HANGUL       = 0xAC00,
       LEADS        = 0x1100,
       VOWELS       = 0x1161,
       TAILS        = 0x11A7,
       N_LEADS      = 19,
       N_VOWELS     = 21,
       N_TAILS      = 28,
       N_HANGUL     = N_LEADS * N_VOWELS * N_TAILS,
       FIRST_MARKED = 0x300, /* NFC changes no character below */
};

/* Returns the last run that starts at or before c. */
static uint32_t find_run(const uint32_t *runs, size_t n, int shift, uint32_t c)
{
    size_t lo = 0, hi = n; /* runs[lo] starts at or before c, runs[hi] after it */
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (runs[mid] >> shift <= c)
            lo = mid;
        else
            hi = mid;
    }
    return runs[lo];
}

char_class unicode_class(uint32_t c)
{
    if (c < 0x80) { /* most texts */
        if ((c | 32) >= 'a' && (c | 32) <= 'z') return CHAR_LETTER;
        if (c >= '0' && c <= '9') return CHAR_NUMBER;
        return c == ' ' || (c >= '\t' && c <= '\r') ? CHAR_SPACE : CHAR_OTHER;
    }
    return (char_class)(find_run(class_runs, COUNT(class_runs), 2, c) & 3);
}

/* --- properties ---------------------------------------------------------------------------------- */
typedef struct {
    uint8_t order;   /* rank of its canonical combining class; 0: a starter */
    bool    changes; /* its NFC differs, or it may be composed with the character before it */
} mark;

static mark mark_of(uint32_t c)
{
    if (c < FIRST_MARKED) return (mark){0};
    uint32_t x = find_run(mark_runs, COUNT(mark_runs), 8, c);
    return (mark){.order = (uint8_t)((x & 0xFF) >> 1), .changes = x & 1};
}

static bool ends_segment(mark m) { return !m.order && !m.changes; }

/* Reads the character at s; a byte that is not UTF-8 has no marks. Returns its length. */
static size_t read_mark(const char *s, size_t n, mark *m)
{
    uint32_t c;
    *m = (mark){0};
    if ((uint8_t)*s < 0x80) return 1;
    size_t len = (size_t)utf8_decode(s, n, &c);
    if (!len) return 1;
    *m = mark_of(c);
    return len;
}

bool nfc_quick_check(str text)
{
    uint8_t last = 0;
    for (size_t i = 0; i < text.n;) {
        mark m;
        i += read_mark(text.s + i, text.n - i, &m);
        if (m.changes || (m.order && m.order < last)) return false;
        last = m.order;
    }
    return true;
}

/* --- one segment --------------------------------------------------------------------------------- */
typedef struct {
    uint64_t *at; /* order << 56 | place << 21 | character, so that they sort by order and are stable */
    size_t    n, cap;
    bool      failed;
} segment;

enum { PLACE_SHIFT = 21, ORDER_SHIFT = 56 };

static uint32_t char_of(uint64_t x) { return (uint32_t)(x & ((1u << PLACE_SHIFT) - 1)); }
static uint8_t  order_of(uint64_t x) { return (uint8_t)(x >> ORDER_SHIFT); }

static void put_char(segment *s, uint32_t c)
{
    if (s->n == s->cap) {
        size_t    cap = s->cap * 2 + 64;
        uint64_t *p   = mem_try_resize(s->at, cap * sizeof *p);
        if (!p) {
            s->failed = true;
            return;
        }
        s->at  = p;
        s->cap = cap;
    }
    s->at[s->n] = (uint64_t)mark_of(c).order << ORDER_SHIFT | (uint64_t)s->n << PLACE_SHIFT | c;
    s->n++;
}

static const canonical_pair *find_pair(uint32_t c)
{
    size_t lo = 0, hi = COUNT(pairs);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (pairs[mid].c < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < COUNT(pairs) && pairs[lo].c == c ? &pairs[lo] : NULL;
}

/* Only the first part of a pair decomposes further, at most three times. */
static void put_decomposed(segment *s, uint32_t c)
{
    uint32_t second[4];
    int      n = 0;
    if (c >= HANGUL && c < HANGUL + N_HANGUL) {
        uint32_t i = c - HANGUL;
        put_char(s, LEADS + i / (N_VOWELS * N_TAILS));
        put_char(s, VOWELS + i % (N_VOWELS * N_TAILS) / N_TAILS);
        if (i % N_TAILS) put_char(s, TAILS + i % N_TAILS);
        return;
    }
    for (const canonical_pair *p; n < (int)COUNT(second) && (p = find_pair(c)); c = p->a)
        if (p->b) second[n++] = p->b;
    put_char(s, c);
    while (n) put_char(s, second[--n]);
}

static int compare_marks(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts each run of marks by its classes. */
static void sort_marks(segment *s)
{
    for (size_t i = 0; i < s->n;) {
        size_t from   = i;
        bool   sorted = true;
        for (; i < s->n && order_of(s->at[i]); i++) sorted &= i == from || order_of(s->at[i - 1]) <= order_of(s->at[i]);
        if (!sorted) qsort(s->at + from, i - from, sizeof *s->at, compare_marks);
        if (i == from) i++;
    }
}

/* Returns the character that two compose to, 0 when they do not. */
static uint32_t compose(uint32_t a, uint32_t b)
{
    if (a >= LEADS && a < LEADS + N_LEADS && b >= VOWELS && b < VOWELS + N_VOWELS)
        return HANGUL + ((a - LEADS) * N_VOWELS + (b - VOWELS)) * N_TAILS;
    if (a >= HANGUL && a < HANGUL + N_HANGUL && (a - HANGUL) % N_TAILS == 0 && b > TAILS && b < TAILS + N_TAILS)
        return a + (b - TAILS);
    uint64_t key = (uint64_t)a << 32 | b;
    size_t   lo = 0, hi = COUNT(composing);
    while (lo < hi) {
        size_t   mid = lo + (hi - lo) / 2;
        uint64_t at  = (uint64_t)pairs[composing[mid]].a << 32 | pairs[composing[mid]].b;
        if (at == key) return pairs[composing[mid]].c;
        if (at < key)
            lo = mid + 1;
        else
            hi = mid;
    }
    return 0;
}

/* Composes each mark with the last starter, unless a mark of the same or a higher class stands between them. */
static void compose_marks(segment *s)
{
    size_t  n = 0, starter = SIZE_MAX;
    uint8_t last = 0; /* order of the character before; 0: it is the starter */
    for (size_t i = 0; i < s->n; i++) {
        uint64_t x = s->at[i];
        uint8_t  k = order_of(x);
        if (starter != SIZE_MAX && (!last || last < k)) {
            uint32_t c = compose(char_of(s->at[starter]), char_of(x));
            if (c) {
                s->at[starter] = c;
                continue;
            }
        }
        if (!k) starter = n;
        last       = k;
        s->at[n++] = x;
    }
    s->n = n;
}

static void put_segment(buf *out, segment *s, str text)
{
    s->n = 0;
    for (size_t i = 0; i < text.n;) {
        uint32_t c   = (uint8_t)text.s[i];
        size_t   len = (size_t)utf8_decode(text.s + i, text.n - i, &c);
        if (!len) { /* only the first byte can be invalid: any other would have started a segment */
            buf_putc(out, text.s[i++]);
            continue;
        }
        put_decomposed(s, c);
        i += len;
    }
    sort_marks(s);
    compose_marks(s);
    for (size_t i = 0; i < s->n; i++) {
        char c[4];
        buf_put(out, c, (size_t)utf8_encode(c, char_of(s->at[i])));
    }
}

bool nfc_put(buf *out, str text)
{
    segment s     = {0};
    size_t  from  = 0, /* start of the segment */
        whole     = 0; /* the start of the text that is not yet copied */
    uint8_t last  = 0;
    bool    dirty = false;
    if (!text.n) return true; /* text.s may be NULL */
    for (size_t i = 0; i <= text.n && !s.failed && !out->failed;) {
        mark   m   = {0};
        size_t len = i < text.n ? read_mark(text.s + i, text.n - i, &m) : 1;
        if (ends_segment(m)) {
            if (dirty) {
                buf_put(out, text.s + whole, from - whole);
                put_segment(out, &s, (str){text.s + from, i - from});
                whole = i;
            }
            from  = i;
            dirty = false;
        }
        dirty |= m.changes || (m.order && m.order < last);
        last = m.order;
        i += len;
    }
    buf_put(out, text.s + whole, text.n - whole);
    mem_free(s.at);
    return !s.failed && !out->failed;
}
