/* Regular expressions: JSON Schema's `pattern`, and answers that match one. They are the regular part of
 * ECMAScript's, as in its Unicode mode.
 *
 * Literals, ., classes, \d \w \s and their complements, groups, alternatives, greedy and lazy repetition, ^ and $ at
 * the ends of alternatives, and look-aheads, which only regular.c can keep. A pattern that is not anchored matches
 * anywhere in the string. References, look-behinds, \b and \p are refused. */
#include "base/mem.h"
#include "grammar/regular.h"

enum { MAX_NESTED = 32, MAX_LOOKAHEADS = 16, MAX_RANGES = 256, LENGTH_MOST = 1 << 24, MAX_CODE = 0x10FFFF };

typedef struct {
    node   *x;
    int32_t min, max;           /* characters; max < 0: no end */
    node   *only;               /* a class, repeated */
    int32_t only_min, only_max; /* number of repetitions */
} part;

typedef struct {
    const regex_options *o;
    builder             *b;
    scan                 in;
    str                  all;
    int                  nested;
    err                 *e;
    bool                 failed;
    int                  n_lookaheads; /* lookaheads that were read */
} reader;

static part fail_pattern(reader *r, const char *what)
{
    if (!r->failed) err_set(r->e, ERR_INPUT, "%s in '%.*s'", what, STR_ARG(r->all));
    r->failed = true;
    r->in.p   = r->in.end;
    return (part){.x = node_empty(r->b)};
}

/* --- classes ----------------------------------------------------------------------------------- */
typedef struct {
    char_range p[MAX_RANGES];
    int32_t    n;
} ranges;

static void put_range(reader *r, ranges *x, uint32_t lo, uint32_t hi)
{
    if (x->n == MAX_RANGES)
        fail_pattern(r, "a class has too many parts");
    else
        x->p[x->n++] = (char_range){lo, hi};
}

static const char_range digits[] = {{'0', '9'}};
static const char_range words[]  = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const char_range spaces[] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                                    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                    {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

/* Sorted ranges, or all but them. */
static void put_set(reader *r, ranges *x, const char_range *set, size_t n, bool not )
{
    uint32_t lo = 0;
    for (size_t i = 0; i < n; i++) {
        if (!not )
            put_range(r, x, set[i].lo, set[i].hi);
        else if (set[i].lo > lo)
            put_range(r, x, lo, set[i].lo - 1);
        lo = set[i].hi + 1;
    }
    if (not ) put_range(r, x, lo, MAX_CODE);
}

static bool put_named_set(reader *r, ranges *x, int c)
{
    switch (c) {
    case 'd':
    case 'D': put_set(r, x, digits, COUNT(digits), c == 'D'); return true;
    case 'w':
    case 'W': put_set(r, x, words, COUNT(words), c == 'W'); return true;
    case 's':
    case 'S': put_set(r, x, spaces, COUNT(spaces), c == 'S'); return true;
    default: return false;
    }
}

static uint32_t read_hex(reader *r, int n)
{
    uint32_t c;
    if (scan_hex(&r->in, n, &c)) return c;
    fail_pattern(r, "a hexadecimal digit is missing");
    return 0;
}

static uint32_t read_unicode(reader *r)
{
    uint32_t c;
    if (scan_accept(&r->in, "{")) {
        for (c = 0; !r->failed && !scan_accept(&r->in, "}");)
            if ((c = c << 4 | read_hex(r, 1)) > MAX_CODE) fail_pattern(r, "this escape is not a character");
        return c;
    }
    c = read_hex(r, 4);
    if (c >= 0xD800 && c <= 0xDBFF && scan_accept(&r->in, "\\u")) {
        uint32_t low = read_hex(r, 4);
        if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    if (c >= 0xD800 && c <= 0xDFFF) fail_pattern(r, "a lone surrogate");
    return c;
}

/* Reads an escape after its backslash. A set of characters is added to x, and the result is -1. */
static int64_t read_escape(reader *r, ranges *x)
{
    static const char from[] = "nrtfv0", to[] = {'\n', '\r', '\t', '\f', '\v', 0};
    int               c = scan_peek(&r->in);
    if (c < 0) return fail_pattern(r, "nothing follows a backslash"), 0;
    r->in.p++;
    if (put_named_set(r, x, c)) return -1;
    if (c == 'x') return read_hex(r, 2);
    if (c == 'u') return read_unicode(r);
    const char *at = c ? strchr(from, c) : NULL;
    if (at) return to[at - from];
    if ((c >= '1' && c <= '9') || c == 'k') return fail_pattern(r, "a reference to a group"), 0;
    if ((c | 32) == 'b') return fail_pattern(r, "\\b"), 0;
    if ((c | 32) == 'p') return fail_pattern(r, "\\p"), 0;
    if ((c | 32) >= 'a' && (c | 32) <= 'z') return fail_pattern(r, "an unknown escape"), 0;
    if (c >= 0x80) return fail_pattern(r, "an unknown escape"), 0;
    return c;
}

static int64_t read_char(reader *r, ranges *x)
{
    uint32_t c;
    if (scan_accept(&r->in, "\\")) return read_escape(r, x);
    int n = r->in.p < r->in.end ? utf8_decode(r->in.p, (size_t)(r->in.end - r->in.p), &c) : 0;
    if (!n) return fail_pattern(r, "a character is missing"), 0;
    r->in.p += n;
    return c;
}

static part one_class(reader *r, const ranges *x)
{
    node *c = r->o->wrap(r->o->ctx, x->p, x->n);
    return (part){.x = c, .min = 1, .max = 1, .only = c, .only_min = 1, .only_max = 1};
}

static part read_class(reader *r)
{
    ranges x = {.n = 0};
    bool not = scan_accept(&r->in, "^");
    while (!r->failed && !scan_accept(&r->in, "]")) {
        bool    in_class_b = scan_accept(&r->in, "\\b"); /* here a backspace */
        int64_t lo = in_class_b ? 8 : read_char(r, &x), hi = lo;
        if (lo >= 0 && r->in.p + 1 < r->in.end && r->in.p[0] == '-' && r->in.p[1] != ']') {
            r->in.p++;
            hi = read_char(r, &x);
            if (hi < lo) fail_pattern(r, "a range ends before it begins");
        }
        if (lo >= 0 && !r->failed) put_range(r, &x, (uint32_t)lo, (uint32_t)hi);
    }
    if (not &&!r->failed) {
        node  *tidy = node_not(r->b, x.p, x.n);
        ranges y    = {.n = 0};
        for (int32_t i = 0; tidy->kind == NODE_CLASS && i < tidy->n; i++)
            put_range(r, &y, tidy->range[i].lo, tidy->range[i].hi);
        return one_class(r, &y);
    }
    return one_class(r, &x);
}

static part any_char(reader *r, bool lines)
{
    static const char_range ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    ranges                  x      = {.n = 0};
    put_set(r, &x, ends, lines ? 0 : COUNT(ends), true);
    return one_class(r, &x);
}

/* --- expressions ------------------------------------------------------------------------------- */
static int32_t add_length(int32_t a, int32_t b)
{
    return a < 0 || b < 0 ? -1 : a + b > LENGTH_MOST ? LENGTH_MOST : a + b;
}
static int32_t times_length(int32_t a, int32_t n)
{
    if (a == 0 || n == 0) return 0;
    if (a < 0 || n < 0) return -1;
    return (int64_t)a * n > LENGTH_MOST ? LENGTH_MOST : a * n;
}

static part repeat(reader *r, part x, int32_t min, int32_t max)
{
    part y = {.x = node_repeat(r->b, x.x, min, max), .min = times_length(x.min, min), .max = times_length(x.max, max)};
    if (x.only && x.only_min == 1 && x.only_max == 1) {
        y.only     = x.only;
        y.only_min = min;
        y.only_max = max;
    }
    scan_accept(&r->in, "?"); /* lazy: the same language */
    return y;
}

static part read_braces(reader *r, part x)
{
    int32_t min, max;
    if (!scan_count(&r->in, &min)) return fail_pattern(r, "a count is missing or too large");
    max = min;
    if (scan_accept(&r->in, ",") && !scan_count(&r->in, &max)) {
        if (max) return fail_pattern(r, "a count is too large");
        max = -1;
    }
    if (!scan_accept(&r->in, "}")) return fail_pattern(r, "} is missing");
    if (max >= 0 && max < min) return fail_pattern(r, "the maximum of a repetition is below its minimum");
    return repeat(r, x, min, max);
}

static part read_repeat(reader *r, part x)
{
    if (scan_accept(&r->in, "*")) return repeat(r, x, 0, -1);
    if (scan_accept(&r->in, "+")) return repeat(r, x, 1, -1);
    if (scan_accept(&r->in, "?")) return repeat(r, x, 0, 1);
    if (scan_accept(&r->in, "{")) return read_braces(r, x);
    return x;
}

typedef enum {
    INSIDE, /* inside a group */
    TOP,    /* ^ and $ are allowed at the ends; without them, any text may precede or follow */
    AHEAD,  /* inside a lookahead: $ is allowed at the end */
} where;

static part read_alternatives(reader *r, where at);

static part read_inside(reader *r, where at)
{
    if (r->nested == MAX_NESTED) return fail_pattern(r, "groups are nested too deeply");
    r->nested++;
    part x = read_alternatives(r, at);
    r->nested--;
    return scan_accept(&r->in, ")") ? x : fail_pattern(r, ") is missing");
}

static part read_lookahead(reader *r, bool negative)
{
    part x = read_inside(r, AHEAD);
    if (r->n_lookaheads++ == MAX_LOOKAHEADS) return fail_pattern(r, "too many lookaheads");
    return (part){.x = node_lookahead(r->b, x.x, negative)};
}

static part read_group(reader *r)
{
    if (scan_accept(&r->in, "?=")) return read_lookahead(r, false);
    if (scan_accept(&r->in, "?!")) return read_lookahead(r, true);
    if (scan_accept(&r->in, "?<") && (scan_peek(&r->in) == '=' || scan_peek(&r->in) == '!'))
        return fail_pattern(r, "a lookbehind");
    if (r->in.p[-1] == '<') { /* a name */
        while (scan_peek(&r->in) >= 0 && !scan_accept(&r->in, ">")) r->in.p++;
    } else if (scan_accept(&r->in, "?:")) {
    } else if (scan_peek(&r->in) == '?') {
        return fail_pattern(r, "a flag");
    }
    return read_inside(r, INSIDE);
}

static part read_item(reader *r)
{
    ranges x = {.n = 0};
    if (scan_accept(&r->in, "(")) return read_group(r);
    if (scan_accept(&r->in, "[")) return read_class(r);
    if (scan_accept(&r->in, ".")) return any_char(r, false);
    if (scan_peek(&r->in) == '^' || scan_peek(&r->in) == '$') return fail_pattern(r, "^ or $ inside of the pattern");
    if (scan_peek(&r->in) >= 0 && strchr("*+?{}]", scan_peek(&r->in)))
        return fail_pattern(r, "a misplaced * + ? { } or ]");
    int64_t c = read_char(r, &x);
    if (c >= 0) put_range(r, &x, (uint32_t)c, (uint32_t)c);
    return one_class(r, &x);
}

static bool at_end_of_branch(const reader *r, where at)
{
    const char *next = r->in.p + 1;
    if (scan_peek(&r->in) < 0 || scan_peek(&r->in) == '|' || scan_peek(&r->in) == ')') return true;
    return scan_peek(&r->in) == '$' && (next == r->in.end || *next == '|' || (at == AHEAD && *next == ')'));
}

/* Reads one alternative; at the top and in a look-ahead with its anchors. */
static part read_branch(reader *r, where at)
{
    bool     top     = at == TOP;
    node_vec v       = {0};
    part     all     = {0};
    bool     at_head = top && scan_accept(&r->in, "^");
    if (top && !at_head && !r->o->whole) {
        node_vec_put(r->b, &v, node_repeat(r->b, any_char(r, true).x, 0, -1));
        all.max = -1;
    }
    while (!r->failed && !at_end_of_branch(r, at)) {
        part x       = read_repeat(r, read_item(r));
        all.only     = v.n ? NULL : x.only;
        all.only_min = x.only_min, all.only_max = x.only_max;
        all.min = add_length(all.min, x.min), all.max = add_length(all.max, x.max);
        node_vec_put(r->b, &v, x.x);
    }
    bool open = at == AHEAD || (top && !r->o->whole);
    if (at != INSIDE && !scan_accept(&r->in, "$") && open && !r->failed) {
        node_vec_put(r->b, &v, node_repeat(r->b, any_char(r, true).x, 0, -1));
        all.max  = -1;
        all.only = NULL;
    }
    if (scan_peek(&r->in) == '$') return fail_pattern(r, "^ or $ inside of the pattern");
    all.x = node_list(r->b, NODE_SEQ, v.p, v.n);
    return all;
}

static part read_alternatives(reader *r, where at)
{
    node_vec v   = {0};
    part     all = read_branch(r, at);
    node_vec_put(r->b, &v, all.x);
    while (!r->failed && scan_accept(&r->in, "|")) {
        part x = read_branch(r, at);
        node_vec_put(r->b, &v, x.x);
        all.only = NULL;
        if (x.min < all.min) all.min = x.min;
        if (x.max < 0 || (all.max >= 0 && x.max > all.max)) all.max = x.max;
    }
    all.x = node_list(r->b, NODE_ALT, v.p, v.n);
    return all;
}

bool regex_parse(regex *out, str pattern, const regex_options *o, err *e)
{
    reader r = {.o = o, .b = o->b, .in = {pattern.s, pattern.s + pattern.n}, .all = pattern, .e = e};
    part   x = read_alternatives(&r, TOP);
    if (!r.failed && r.in.p < r.in.end) fail_pattern(&r, "a misplaced )");
    *out = (regex){x.x, r.n_lookaheads > 0, x.min, x.max, x.only, x.only_min, x.only_max};
    return !r.failed;
}

static node *plain_class(void *ctx, const char_range *r, int32_t n) { return node_class(ctx, r, n); }

/* Writes an expression with look-aheads as the rules of its automaton; NULL: refused. */
static node *write_lookahead(builder *b, str pattern, const regex *x, err *e)
{
    regular r;
    bool    too_many = false;
    if (pattern.n > REGULAR_MAX_PATTERN) {
        err_set(e, ERR_TOO_LARGE, "with lookaheads it may have at most %d bytes", REGULAR_MAX_PATTERN);
        return NULL;
    }
    regular_init(&r, b);
    term *all  = term_of_node(&r, x->body);
    node *body = all ? term_write(&r, all, plain_class, b, node_empty(b), &too_many) : NULL;
    if (b->failed)
        err_set(e, b->why.code, "%s", b->why.text);
    else if (!all)
        err_set(e, ERR_INPUT, "a lookahead inside a repetition cannot be enforced");
    else if (too_many)
        err_set(e, ERR_TOO_LARGE, "its lookaheads need more than %d states", REGULAR_MAX_STATES);
    else if (!body)
        err_set(e, ERR_INPUT, "it matches nothing");
    return b->failed ? NULL : body;
}

bool grammar_from_regex(grammar **out, str pattern, const atomic_bool *cancel, err *e)
{
    builder       b;
    regex_options o = {.b = &b, .wrap = plain_class, .ctx = &b, .whole = true};
    regex         x;
    *out = NULL;
    if (pattern.n > GRAMMAR_MAX_TEXT)
        return err_set(e, ERR_TOO_LARGE, "a regular expression has %zu bytes, more than %d", pattern.n,
                       GRAMMAR_MAX_TEXT);
    builder_init(&b, GRAMMAR_GBNF_DEPTH, cancel);
    b.inlines = true;
    bool ok   = regex_parse(&x, pattern, &o, e) && (!x.has_lookahead || (x.body = write_lookahead(&b, pattern, &x, e)));
    if (ok) {
        int32_t root = builder_rule(&b, STR("root"));
        if (!b.failed) builder_define(&b, root, x.body);
        ok = grammar_compile(out, &b, root, e);
    }
    builder_deinit(&b);
    return ok || err_wrap(e, "the regular expression cannot be used");
}
