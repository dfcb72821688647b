/* Reads GBNF, in llama.cpp's notation.
 *
 *      root  ::= "a" b* | ( [^0-9\x41] "\n" ){2,3} .   # comment
 *
 * A rule continues over line ends inside parentheses, after "::=" and after "|". "\xHH", "\uHHHH" and "\UHHHHHHHH" are
 * characters, also in literals; other escapes are \n \r \t \\ \" \[ \] \- \^ and the like: the character itself. */
#include "base/mem.h"
#include "grammar/inside.h"

#include <stdlib.h>

enum { MAX_NESTED = 64, MAX_REPEATED = 4, MAX_RANGES = 4096 };

typedef struct {
    builder     b;
    scan        in;
    const char *text;
    int         nested;
    int32_t    *table; /* rules by name, + 1 */
    err        *e;
    bool        failed;
} reader;

enum { NAME_TABLE = GRAMMAR_MAX_RULES * 2 };

/* Ends the reading: marks r as failed and moves to the end of the text. */
static node *stop_reading(reader *r)
{
    r->failed = true;
    r->in.p   = r->in.end;
    return node_empty(&r->b);
}

/* Fails with a sentence about the text at the current place. The first failure stands. */
static node *fail_here(reader *r, const char *what)
{
    int line = 1, column = 1;
    for (const char *q = r->text; q < r->in.p && q < r->in.end; q++) {
        column = *q == '\n' ? 1 : column + 1;
        line += *q == '\n';
    }
    if (!r->failed) err_set(r->e, ERR_INPUT, "line %d, column %d: %s", line, column, what);
    return stop_reading(r);
}

static node *fail_memory(reader *r)
{
    if (!r->failed) err_set(r->e, ERR_UNAVAILABLE, "no memory to read it");
    return stop_reading(r);
}

static void skip_space(reader *r, bool lines)
{
    for (int c; (c = scan_peek(&r->in)) >= 0; r->in.p++) {
        if (c == '#') {
            while (r->in.p < r->in.end && *r->in.p != '\n' && *r->in.p != '\r') r->in.p++;
            r->in.p--;
        } else if (c != ' ' && c != '\t' && (!lines || (c != '\n' && c != '\r'))) {
            return;
        }
    }
}

static bool is_name_char(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static str read_name(reader *r)
{
    const char *from = r->in.p;
    while (is_name_char(scan_peek(&r->in))) r->in.p++;
    return (str){from, (size_t)(r->in.p - from)};
}

/* The rule of that name, made when it is new. */
static int32_t find_rule(reader *r, str name)
{
    uint64_t at = str_hash(name) & (NAME_TABLE - 1);
    for (; r->table[at]; at = (at + 1) & (NAME_TABLE - 1))
        if (str_eq(r->b.rule[r->table[at] - 1].name, name)) return r->table[at] - 1;
    int32_t i = builder_rule(&r->b, name);
    if (!r->b.failed) r->table[at] = i + 1;
    return i;
}

/* --- characters -------------------------------------------------------------------------------- */
static uint32_t read_hex(reader *r, int n)
{
    uint32_t c;
    if (!scan_hex(&r->in, n, &c))
        fail_here(r, "a hexadecimal digit is missing");
    else if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        fail_here(r, "this escape is not a character");
    return r->failed ? 0 : c;
}

static uint32_t read_char(reader *r)
{
    uint32_t c;
    if (scan_accept(&r->in, "\\")) {
        int x = scan_peek(&r->in);
        if (x >= 0) r->in.p++;
        switch (x) {
        case 'x': return read_hex(r, 2);
        case 'u': return read_hex(r, 4);
        case 'U': return read_hex(r, 8);
        case 'n': return '\n';
        case 'r': return '\r';
        case 't': return '\t';
        default:
            if (x > 0x20 && x < 0x7F && !is_name_char(x)) return (uint32_t)x;
            if (x == '-') return '-';
            fail_here(r, "unknown escape");
            return 0;
        }
    }
    int n = r->in.p < r->in.end ? utf8_decode(r->in.p, (size_t)(r->in.end - r->in.p), &c) : 0;
    if (!n) {
        fail_here(r, r->in.p < r->in.end ? "this is not UTF-8" : "the grammar ends in the middle");
        return 0;
    }
    r->in.p += n;
    return c;
}

static node *read_literal(reader *r)
{
    buf b;
    buf_init(&b, GRAMMAR_MAX_TEXT);
    while (!r->failed && scan_peek(&r->in) != '"') {
        char     out[4];
        int      c = scan_peek(&r->in);
        uint32_t x = c == '\n' || c < 0 ? (fail_here(r, "a literal does not end on its line"), 0) : read_char(r);
        if (!r->failed) buf_put(&b, out, (size_t)utf8_encode(out, x));
    }
    r->in.p += !r->failed;
    node *x = b.failed ? fail_memory(r) : node_text(&r->b, buf_str(&b));
    buf_deinit(&b);
    return x;
}

static node *read_class(reader *r)
{
    char_range *range = mem_try_n(MAX_RANGES, sizeof *range);
    int32_t     n     = 0;
    bool not          = scan_accept(&r->in, "^");
    if (!range) return fail_memory(r);
    while (!r->failed && !scan_accept(&r->in, "]")) {
        if (n == MAX_RANGES) {
            fail_here(r, "a class has more than 4096 parts");
            break;
        }
        uint32_t lo = read_char(r), hi = lo;
        if (r->in.p + 1 < r->in.end && r->in.p[0] == '-' && r->in.p[1] != ']') {
            r->in.p++;
            hi = read_char(r);
        }
        if (!r->failed && hi < lo) fail_here(r, "a range ends before it begins");
        range[n++] = (char_range){lo, hi};
    }
    node *x = not ? node_not(&r->b, range, n) : node_class(&r->b, range, n);
    mem_free(range);
    return x;
}

static node *read_token(reader *r)
{
    const char *from = r->in.p - 1;
    while (scan_peek(&r->in) >= 0 && scan_peek(&r->in) != '>' && scan_peek(&r->in) != '\n') r->in.p++;
    if (!scan_accept(&r->in, ">")) return fail_here(r, "a token's name does not end with >");
    return node_marker(&r->b, (str){from, (size_t)(r->in.p - from)});
}

/* --- expressions ------------------------------------------------------------------------------- */
static int32_t read_count(reader *r)
{
    int32_t n;
    if (!scan_count(&r->in, &n)) fail_here(r, n ? "a count is over 16777216" : "a count is missing");
    return r->failed ? 0 : n;
}

static node *read_braces(reader *r, node *x)
{
    skip_space(r, false);
    int32_t min = scan_peek(&r->in) == ',' ? 0 : read_count(r), max = min;
    skip_space(r, false);
    if (scan_accept(&r->in, ",")) {
        skip_space(r, false);
        max = scan_peek(&r->in) == '}' ? -1 : read_count(r);
        skip_space(r, false);
    }
    if (!scan_accept(&r->in, "}")) return fail_here(r, "} is missing after a count");
    if (max >= 0 && max < min) return fail_here(r, "the maximum of a repetition is below its minimum");
    return node_repeat(&r->b, x, min, max);
}

static node *read_repeats(reader *r, node *x)
{
    for (int deep = 0; !r->failed; deep++) {
        skip_space(r, r->nested > 0);
        if (deep > MAX_REPEATED) return fail_here(r, "too many repetitions of repetitions");
        if (scan_accept(&r->in, "*"))
            x = node_repeat(&r->b, x, 0, -1);
        else if (scan_accept(&r->in, "+"))
            x = node_repeat(&r->b, x, 1, -1);
        else if (scan_accept(&r->in, "?"))
            x = node_repeat(&r->b, x, 0, 1);
        else if (scan_accept(&r->in, "{"))
            x = read_braces(r, x);
        else
            return x;
    }
    return x;
}

static node *read_alternatives(reader *r);

static node *read_group(reader *r)
{
    if (r->nested == MAX_NESTED) return fail_here(r, "parentheses are nested more than 64 levels deep");
    r->nested++;
    node *x = read_alternatives(r);
    r->nested--;
    return scan_accept(&r->in, ")") ? x : fail_here(r, "expected ) here");
}

/* NULL where no item begins. */
static node *read_item(reader *r)
{
    if (scan_accept(&r->in, "\"")) return read_literal(r);
    if (scan_accept(&r->in, "[")) return read_class(r);
    if (scan_accept(&r->in, ".")) return node_not(&r->b, NULL, 0);
    if (scan_accept(&r->in, "(")) return read_group(r);
    if (scan_accept(&r->in, "<")) return read_token(r);
    if (is_name_char(scan_peek(&r->in))) return node_rule(&r->b, find_rule(r, read_name(r)));
    return NULL;
}

/* Inside parentheses a line may end anywhere; outside, the next rule's name would look like an item. */
static node *read_sequence(reader *r)
{
    node_vec v = {0};
    skip_space(r, true);
    for (node *x; !r->failed && (x = read_item(r));) {
        node_vec_put(&r->b, &v, read_repeats(r, x));
        skip_space(r, r->nested > 0);
    }
    return node_list(&r->b, NODE_SEQ, v.p, v.n);
}

static bool next_is_alternative(reader *r)
{
    const char *was = r->in.p;
    skip_space(r, true);
    if (scan_accept(&r->in, "|")) return true;
    r->in.p = was;
    return false;
}

static node *read_alternatives(reader *r)
{
    node_vec v = {0};
    do node_vec_put(&r->b, &v, read_sequence(r));
    while (!r->failed && next_is_alternative(r));
    if (r->nested) skip_space(r, true);
    return node_list(&r->b, NODE_ALT, v.p, v.n);
}

/* An empty first alternative would run into the next rule: "a ::=" and a line end, then a name and "::=". */
static bool read_rule(reader *r)
{
    if (!is_name_char(scan_peek(&r->in))) return fail_here(r, "expected a rule's name"), false;
    int32_t i = find_rule(r, read_name(r));
    skip_space(r, false);
    if (!scan_accept(&r->in, "::=")) return fail_here(r, "expected ::= after a rule's name"), false;
    if (r->b.failed) return false;
    if (r->b.rule[i].body) return fail_here(r, "this rule is defined twice"), false;
    node *body = read_alternatives(r);
    builder_define(&r->b, i, body);
    skip_space(r, false);
    if (!r->failed && scan_peek(&r->in) >= 0 && scan_peek(&r->in) != '\n' && scan_peek(&r->in) != '\r')
        fail_here(r, "expected the end of the rule here");
    return !r->failed;
}

static bool all_defined(reader *r)
{
    for (int32_t i = 0; i < r->b.n_rules; i++)
        if (!r->b.rule[i].body)
            return err_set(r->e, ERR_INPUT, "rule '%.*s' is used but not defined", STR_ARG(r->b.rule[i].name));
    return true;
}

static bool read_rules(reader *r, int32_t *root)
{
    *root = find_rule(r, STR("root"));
    for (skip_space(r, true); r->in.p < r->in.end; skip_space(r, true))
        if (!read_rule(r)) return r->b.failed ? err_set(r->e, r->b.why.code, "%s", r->b.why.text) : false;
    if (!r->b.failed && !r->b.rule[*root].body) return err_set(r->e, ERR_INPUT, "the grammar has no rule 'root'");
    return !r->failed && (r->b.failed || all_defined(r));
}

bool grammar_from_gbnf(grammar **out, str text, const atomic_bool *cancel, err *e)
{
    *out = NULL;
    if (text.n > GRAMMAR_MAX_TEXT)
        return err_set(e, ERR_TOO_LARGE, "a grammar has %zu bytes, more than %d", text.n, GRAMMAR_MAX_TEXT);
    reader  r = {.in = {text.s, text.s + text.n}, .text = text.s, .e = e};
    int32_t root;
    r.table = mem_try_n(NAME_TABLE, sizeof *r.table);
    if (!r.table) return err_set(e, ERR_UNAVAILABLE, "no memory for a grammar");
    builder_init(&r.b, GRAMMAR_GBNF_DEPTH, cancel);
    r.b.inlines = true;
    bool ok     = read_rules(&r, &root) && grammar_compile(out, &r.b, root, e);
    builder_deinit(&r.b);
    mem_free(r.table);
    return ok || err_wrap(e, "the grammar cannot be used");
}
