/* The pull reader: one pass over the text, no recursion, a small state.
 *
 * `want` and the innermost open level decide what may come next:
 *
 *      VALUE              a value: at the start, after a key
 *      ITEM_OR_END        after [       KEY_OR_END       after {
 *      COMMA_OR_END       after a value inside [ or {
 *      NOTHING            after the document's value
 *
 * A first pass checks a string eight bytes at a time and stops only at a quote, a backslash, a control byte or a
 * non-ASCII byte. Most strings need no second pass and are returned as pointers into the text. A string with escapes is
 * decoded in a second pass, into exactly as many bytes as it needs. */
#include "json/internal.h"

#include "base/mem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first byte of a word must be its lowest");

typedef enum { WANT_VALUE, WANT_ITEM_OR_END, WANT_KEY_OR_END, WANT_COMMA_OR_END, WANT_NOTHING } wanted;

typedef struct {
    bool     is_object;
    uint32_t first_key; /* index in json_keys of its first key, present or not yet */
} level;

struct json_reader {
    const char *text, *p, *end;
    wanted      want;
    int         depth, max_depth;
    bool        failed;   /* every later call fails with `why` */
    bool        skipping; /* strings are checked, not decoded */
    arena      *mem;      /* &own, or the caller's arena */
    arena       own;
    size_t      mem_limit; /* mem->limit before this reader */
    json_keys   keys;
    err         why;
    level       open[]; /* [max_depth] */
};

/* --- memory ------------------------------------------------------------------------------------ */
bool json_budget_take(arena *a, size_t bytes)
{
    if (bytes > a->limit - a->used) return false;
    a->limit -= bytes;
    return true;
}

void json_budget_give(arena *a, size_t bytes) { a->limit += bytes; }

bool json_no_memory(const arena *a, size_t bytes, err *e)
{
    enum { ROUNDING = 16 }; /* an arena rounds sizes up to 16 */
    if (bytes > SIZE_MAX - ROUNDING || bytes + ROUNDING > a->limit - a->used)
        return err_set(e, ERR_TOO_LARGE, "the document needs more memory than its limit allows");
    return err_set(e, ERR_UNAVAILABLE, "out of memory for %zu bytes", bytes);
}

/* --- failing ----------------------------------------------------------------------------------- */
static bool fail_at(json_reader *r, err_code code, const char *at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static bool fail_at(json_reader *r, err_code code, const char *at, const char *fmt, ...)
{
    char        what[400];
    size_t      line  = 1;
    const char *start = r->text, *nl;
    va_list     ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    for (; (nl = memchr(start, '\n', (size_t)(at - start))); start = nl + 1) line++;
    return err_set(&r->why, code, "line %zu, column %zu: %s", line, (size_t)(at - start) + 1, what);
}

/* Fails because the text at r->p is not `what`. */
static bool expected(json_reader *r, const char *what)
{
    if (r->p == r->end) return fail_at(r, ERR_FORMAT, r->p, "expected %s, found the end of the text", what);
    unsigned char c = (unsigned char)*r->p;
    if (c > ' ' && c < 0x7f) return fail_at(r, ERR_FORMAT, r->p, "expected %s, found '%c'", what, c);
    return fail_at(r, ERR_FORMAT, r->p, "expected %s, found byte 0x%02x", what, c);
}

/* --- scanning ---------------------------------------------------------------------------------- */
#define EACH(byte) ((uint64_t)(byte)*0x0101010101010101u)

static inline uint64_t load8(const char *p)
{
    uint64_t w;
    memcpy(&w, p, 8);
    return w;
}

/* Returns a word with the top bit set of each zero byte of w. Bytes above the lowest zero byte may be wrong. */
static inline uint64_t zero_bytes(uint64_t w) { return (w - EACH(1)) & ~w & EACH(0x80); }

/* Skips ASCII characters that need no escape: all except quote, backslash and control bytes. */
static inline const char *skip_plain(const char *p, const char *end)
{
    for (; end - p >= 8; p += 8) {
        uint64_t w    = load8(p);
        uint64_t stop = zero_bytes(w ^ EACH('"')) | zero_bytes(w ^ EACH('\\'));
        stop |= ((w - EACH(0x20)) & ~w & EACH(0x80)) | (w & EACH(0x80));
        if (stop) return p + __builtin_ctzll(stop) / 8;
    }
    while (p < end && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80 && *p != '"' && *p != '\\') p++;
    return p;
}

static inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static inline void skip_space(json_reader *r)
{
    const char *p = r->p, *end = r->end;
    while (p < end && is_space(*p)) {
        p++;
        while (end - p >= 8 && load8(p) == EACH(' ')) p += 8; /* indentation */
    }
    r->p = p;
}

static inline int peek(const json_reader *r) { return r->p < r->end ? (unsigned char)*r->p : -1; }

static const char *skip_digits(const char *p, const char *end)
{
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p;
}

/* --- strings ----------------------------------------------------------------------------------- */
static bool hex4(const char *s, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i], low = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f')
            v = v << 4 | (uint32_t)(low - 'a' + 10);
        else
            return false;
    }
    *out = v;
    return true;
}

/* Decodes \uXXXX at s, or two of them that form a pair. A surrogate without its partner becomes U+FFFD. */
static size_t unicode_escape(const char *s, size_t n, uint32_t *cp)
{
    uint32_t low;
    if (n < 6 || !hex4(s + 2, cp)) return 0;
    if (*cp < 0xD800 || *cp > 0xDFFF) return 6;
    if (*cp <= 0xDBFF && n >= 12 && s[6] == '\\' && s[7] == 'u' && hex4(s + 8, &low) && low >= 0xDC00 &&
        low <= 0xDFFF) {
        *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
        return 12;
    }
    *cp = 0xFFFD;
    return 6;
}

/* Decodes the escape at s[0] = '\\', n bytes before the end of the text. Returns its length, 0 if invalid. */
static size_t escape(const char *s, size_t n, uint32_t *cp)
{
    switch (n > 1 ? s[1] : 0) {
    case '"': *cp = '"'; return 2;
    case '\\': *cp = '\\'; return 2;
    case '/': *cp = '/'; return 2;
    case 'b': *cp = '\b'; return 2;
    case 'f': *cp = '\f'; return 2;
    case 'n': *cp = '\n'; return 2;
    case 'r': *cp = '\r'; return 2;
    case 't': *cp = '\t'; return 2;
    case 'u': return unicode_escape(s, n, cp);
    default: return 0;
    }
}

static size_t utf8_size(uint32_t cp) { return cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4; }

/* Checks a string from the byte after its opening quote. Returns its closing quote, NULL on failure. *saved is the
 * number of bytes that decoding the escapes saves. */
static const char *check_string(json_reader *r, const char *p, size_t *saved)
{
    const char *open = p - 1, *end = r->end;
    uint32_t    cp;
    *saved = 0;
    for (;;) {
        p = skip_plain(p, end);
        if (p == end) return fail_at(r, ERR_FORMAT, open, "this string is not closed"), NULL;
        if (*p == '"') return p;
        if (*p == '\\') {
            size_t n = escape(p, (size_t)(end - p), &cp);
            if (!n) return fail_at(r, ERR_FORMAT, p, "invalid escape"), NULL;
            *saved += n - utf8_size(cp);
            p += n;
        } else if ((unsigned char)*p < 0x20) {
            return fail_at(r, ERR_FORMAT, p, "control byte 0x%02x in a string must be escaped", *p), NULL;
        } else {
            int n = utf8_decode(p, (size_t)(end - p), &cp);
            if (!n) return fail_at(r, ERR_FORMAT, p, "byte 0x%02x is not valid UTF-8 here", (unsigned char)*p), NULL;
            p += n;
        }
    }
}

/* Decodes s[0..n), a checked string with escapes. */
static void decode_string(char *out, const char *s, size_t n)
{
    const char *end = s + n, *stop;
    uint32_t    cp;
    for (; (stop = memchr(s, '\\', (size_t)(end - s))); s = stop) {
        out = mempcpy(out, s, (size_t)(stop - s));
        stop += escape(stop, (size_t)(end - stop), &cp);
        out += utf8_encode(out, cp);
    }
    memcpy(out, s, (size_t)(end - s));
}

static bool read_string(json_reader *r, str *out, bool decode)
{
    const char *s = r->p + 1;
    size_t      saved;
    const char *close = check_string(r, s, &saved);
    if (!close) return false;
    r->p = close + 1;
    *out = (str){s, (size_t)(close - s)};
    if (!saved || !decode) return true;
    char *copy = arena_try(r->mem, out->n - saved, 1);
    if (!copy) return json_no_memory(r->mem, out->n - saved, &r->why);
    decode_string(copy, s, out->n);
    *out = (str){copy, out->n - saved};
    return true;
}

/* --- values ------------------------------------------------------------------------------------ */
static inline void begin_event(const json_reader *r, json_event *ev, json_kind kind)
{
    *ev = (json_event){.kind = kind, .at = (size_t)(r->p - r->text)};
}

static inline void value_done(json_reader *r) { r->want = r->depth ? WANT_COMMA_OR_END : WANT_NOTHING; }

static bool open_level(json_reader *r, json_event *ev, bool is_object)
{
    begin_event(r, ev, is_object ? JSON_OBJECT : JSON_ARRAY);
    if (r->depth == r->max_depth) return fail_at(r, ERR_TOO_LARGE, r->p, "nested deeper than %d levels", r->max_depth);
    r->open[r->depth++] = (level){is_object, r->keys.n};
    r->want             = is_object ? WANT_KEY_OR_END : WANT_ITEM_OR_END;
    r->p++;
    return true;
}

static bool close_level(json_reader *r, json_event *ev)
{
    const level *l = &r->open[--r->depth];
    begin_event(r, ev, l->is_object ? JSON_OBJECT_END : JSON_ARRAY_END);
    json_keys_cut(&r->keys, l->first_key);
    r->p++;
    value_done(r);
    return true;
}

static bool read_word(json_reader *r, json_event *ev, json_kind kind, const char *word)
{
    size_t n = strlen(word);
    begin_event(r, ev, kind);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n)) return expected(r, "a value");
    ev->b = *word == 't';
    r->p += n;
    value_done(r);
    return true;
}

/* Returns the end of the number at r->p, checked by the grammar alone; NULL on failure. Sets *is_real when it has a
 * point or an exponent. */
static const char *number_end(json_reader *r, bool *is_real)
{
    const char *end = r->end, *p = r->p + (*r->p == '-'), *q = skip_digits(p, end);
    *is_real = false;
    if (q - p > 1 && *p == '0') return fail_at(r, ERR_FORMAT, r->p, "a number must not begin with a zero"), NULL;
    if (q > p && q < end && *q == '.') {
        *is_real = true;
        p        = q + 1;
        q        = skip_digits(p, end);
    }
    if (q > p && q < end && (*q == 'e' || *q == 'E')) {
        *is_real = true;
        p        = q + 1;
        p += p < end && (*p == '+' || *p == '-');
        q = skip_digits(p, end);
    }
    if (q > p) return q;
    r->p = q;
    return expected(r, "a digit"), NULL;
}

static bool read_number(json_reader *r, json_event *ev)
{
    bool        is_real;
    const char *q = number_end(r, &is_real);
    if (!q) return false;
    begin_event(r, ev, JSON_REAL);
    str text = {r->p, (size_t)(q - r->p)};
    if (!is_real && str_to_i64(text, &ev->i)) {
        ev->kind = JSON_INT;
        ev->d    = (double)ev->i;
    } else if (!json_real_read(text, &ev->d)) {
        return fail_at(r, ERR_FORMAT, r->p, "number %.*s is too large for a double", STR_ARG(text));
    }
    r->p = q;
    value_done(r);
    return true;
}

static bool read_value(json_reader *r, json_event *ev)
{
    switch (peek(r)) {
    case '"':
        begin_event(r, ev, JSON_STRING);
        value_done(r);
        return read_string(r, &ev->s, !r->skipping);
    case '[': return open_level(r, ev, false);
    case '{': return open_level(r, ev, true);
    case 't': return read_word(r, ev, JSON_BOOL, "true");
    case 'f': return read_word(r, ev, JSON_BOOL, "false");
    case 'n': return read_word(r, ev, JSON_NULL, "null");
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': return read_number(r, ev);
    default: return expected(r, "a value");
    }
}

static bool read_key(json_reader *r, json_event *ev)
{
    const char *at = r->p;
    bool        twice;
    begin_event(r, ev, JSON_KEY);
    if (peek(r) != '"') return expected(r, "a key in quotes");
    if (!read_string(r, &ev->s, true)) return false;
    if (memchr(ev->s.s, 0, ev->s.n)) return fail_at(r, ERR_FORMAT, at, "this key contains NUL");
    if (!json_keys_add(&r->keys, ev->s, r->open[r->depth - 1].first_key, &twice, &r->why)) return false;
    if (twice) return fail_at(r, ERR_FORMAT, at, "key '%.*s' appears twice in one object", STR_ARG(ev->s));
    skip_space(r);
    if (peek(r) != ':') return expected(r, "':' after a key");
    r->p++;
    r->want = WANT_VALUE;
    return true;
}

/* Reads the comma or the closing bracket after a value inside an array or object. */
static bool read_further(json_reader *r, json_event *ev)
{
    bool is_object = r->open[r->depth - 1].is_object;
    int  c         = peek(r);
    if (c == (is_object ? '}' : ']')) return close_level(r, ev);
    if (c != ',') return expected(r, is_object ? "',' or '}' after a member" : "',' or ']' after an item");
    r->p++;
    skip_space(r);
    return is_object ? read_key(r, ev) : read_value(r, ev);
}

static bool read_end(json_reader *r, json_event *ev)
{
    begin_event(r, ev, JSON_END);
    return r->p == r->end || expected(r, "nothing after the document");
}

static bool read_event(json_reader *r, json_event *ev)
{
    skip_space(r);
    switch (r->want) {
    case WANT_ITEM_OR_END: return peek(r) == ']' ? close_level(r, ev) : read_value(r, ev);
    case WANT_KEY_OR_END: return peek(r) == '}' ? close_level(r, ev) : read_key(r, ev);
    case WANT_COMMA_OR_END: return read_further(r, ev);
    case WANT_NOTHING: return read_end(r, ev);
    default: return read_value(r, ev);
    }
}

/* --- the interface ----------------------------------------------------------------------------- */
static json_limits with_defaults(const json_limits *limits)
{
    json_limits l = limits ? *limits : (json_limits){0};
    assert(l.max_depth >= 0);
    if (!l.max_depth) l.max_depth = 64;
    if (!l.max_bytes) l.max_bytes = (size_t)1 << 30;
    if (!l.max_memory) l.max_memory = (size_t)1 << 30;
    return l;
}

bool json_reader_open_in(json_reader **out, arena *a, str text, const json_limits *limits, err *e)
{
    json_limits l     = with_defaults(limits);
    size_t      bytes = sizeof(json_reader) + (size_t)l.max_depth * sizeof(level);

    *out = NULL;
    if (text.n > l.max_bytes)
        return err_set(e, ERR_TOO_LARGE, "the text has %zu bytes, the limit is %zu", text.n, l.max_bytes);
    json_reader *r = mem_try(bytes);
    if (!r) return err_set(e, ERR_UNAVAILABLE, "out of memory for %zu bytes", bytes);
    r->text = r->p = text.n ? text.s : "";
    r->end         = r->text + text.n;
    r->max_depth   = l.max_depth;
    arena_init(&r->own, SIZE_MAX);
    r->mem       = a ? a : &r->own;
    r->mem_limit = r->mem->limit;
    if (l.max_memory < r->mem->limit - r->mem->used) r->mem->limit = r->mem->used + l.max_memory;
    json_keys_init(&r->keys, r->mem);
    *out = r;
    return true;
}

bool json_reader_open(json_reader **out, str text, const json_limits *limits, err *e)
{
    return json_reader_open_in(out, NULL, text, limits, e);
}

void json_reader_close(json_reader *r)
{
    if (!r) return;
    json_keys_deinit(&r->keys);
    r->mem->limit = r->mem_limit;
    arena_deinit(&r->own);
    mem_free(r);
}

static bool settle(json_reader *r, bool ok, err *e)
{
    if (ok) return true;
    r->failed = true;
    if (e) *e = r->why;
    return false;
}

bool json_next(json_reader *r, json_event *ev, err *e) { return settle(r, !r->failed && read_event(r, ev), e); }

static bool skip_value(json_reader *r)
{
    json_event ev;
    int        depth = r->depth;
    do {
        if (!read_event(r, &ev)) return false;
    } while (r->depth > depth);
    if (r->depth == depth) return true;
    return fail_at(r, ERR_FORMAT, r->text + ev.at, "expected a value, found the end of the array");
}

bool json_skip(json_reader *r, err *e)
{
    assert(r->failed || r->want == WANT_VALUE || (r->depth && !r->open[r->depth - 1].is_object));
    r->skipping = true;
    bool ok     = settle(r, !r->failed && skip_value(r), e);
    r->skipping = false;
    return ok;
}
