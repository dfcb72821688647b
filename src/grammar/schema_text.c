/* Strings with patterns, formats, lengths and excluded words.
 *
 * One pattern whose lengths fit is written as it stands: its repetitions are counted, not unrolled. Everything else
 * becomes one term (regular.h): patterns that must all match, patterns that must not, words that are excluded,
 * lengths, look-aheads. Where its automaton would have too many states, the string is kept shorter than it might be. */
#include "base/mem.h"
#include "base/num.h"
#include "grammar/schema.h"

enum { SHORT_TEXT = 64 };

/* --- patterns ---------------------------------------------------------------------------------- */
/* Writes a class of a pattern, with escapes where JSON needs them. */
static node *wrap_class(void *ctx, const char_range *r, int32_t n)
{
    static const char escape[] = "b\bt\tn\nf\fr\r\"\"\\\\";
    maker            *m        = ctx;
    builder          *b        = &m->b;
    char_range        plain[512];
    node_vec          v       = {0};
    int32_t           n_plain = 0;
    if (m->call) return node_class(b, r, n);
    for (int32_t i = 0; i < n; i++) {
        for (size_t k = 0; k < COUNT(json_plain) && n_plain < (int32_t)COUNT(plain); k++) {
            uint32_t lo = r[i].lo > json_plain[k].lo ? r[i].lo : json_plain[k].lo;
            uint32_t hi = r[i].hi < json_plain[k].hi ? r[i].hi : json_plain[k].hi;
            if (lo <= hi) plain[n_plain++] = (char_range){lo, hi};
        }
        for (size_t k = 0; escape[k]; k += 2) {
            uint32_t c = (uint8_t)escape[k + 1];
            if (c >= r[i].lo && c <= r[i].hi) node_vec_put(b, &v, node_text(b, (str){(char[]){'\\', escape[k]}, 2}));
        }
    }
    if (n_plain) node_vec_put(b, &v, node_class(b, plain, n_plain));
    return node_list(b, NODE_ALT, v.p, v.n);
}

/* Whether lengths min .. max keep all of x's own, or can be put into it. */
static bool fit_lengths(maker *m, regex *x, int32_t min, int32_t max)
{
    if (x->min >= min && (max < 0 || (x->max >= 0 && x->max <= max))) return true;
    if (!x->only) return false;
    int32_t lo = max_int(x->only_min, min);
    int32_t hi = max < 0 ? x->only_max : x->only_max < 0 ? max : min_int(x->only_max, max);
    x->body    = hi >= 0 && hi < lo ? NULL : node_repeat(&m->b, x->only, lo, hi);
    return true;
}

/* --- formats ----------------------------------------------------------------------------------- */
#define DATE                                                                                                           \
    "[0-9]{3}[1-9]-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2["  \
    "0-8]))"
#define CLOCK  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
#define ZONE   "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE   "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define LABEL  "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define HEX(n) "[0-9a-fA-F]{" #n "}"

/* A format, its pattern, and a simpler pattern for strings with lengths; NULL: the same. */
static const char *const formats[][3] = {
    {"date", "^" DATE "$"},
    {"time", "^" CLOCK ZONE "$"},
    {"date-time", "^" DATE "T" CLOCK ZONE "$"},
    {"uuid", "^" HEX(8) "-" HEX(4) "-" HEX(4) "-" HEX(4) "-" HEX(12) "$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,31})?@(" LABEL "\\.){1,3}[A-Za-z]{2,18}$",
     "^[a-z0-9]+(\\.[a-z0-9]+)?@([a-z0-9]+\\.)+[a-z]{2,6}$"},
    {"ipv4", "^" BYTE "(\\." BYTE "){3}$"},
    {"ipv6", "^[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){7}$"},
    {"hostname", "^(" LABEL "\\.){0,3}[A-Za-z]{2,18}$", "^([a-z0-9]+\\.)*[a-z]{2,6}$"},
    {"uri",
     "^(https?|ftp)://(" LABEL
     "\\.){0,3}[A-Za-z]{2,18}(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~-]{0,60}){0,12}(\\?[A-Za-z0-9._~=&-]{0,200})?$",
     "^https?://([a-z0-9]+\\.)+[a-z]{2,6}(/[A-Za-z0-9._~-]*)*$"},
    {"duration", "^P([1-9][0-9]{0,5}D(T[1-9][0-9]{0,5}[HMS])?|T[1-9][0-9]{0,5}[HMS]|[1-9][0-9]{0,3}[WMY])$"},
};

static const char *const *find_format(str name)
{
    for (size_t i = 0; i < COUNT(formats); i++)
        if (str_is(name, formats[i][0])) return formats[i];
    return NULL;
}

bool is_text_format(str name) { return find_format(name) != NULL; }

/* Returns the format of a string that has no pattern; NULL: none, or it is not known. */
static const char *const *format_of(const text_demand *d)
{
    return d->format.v && !d->n_patterns ? find_format(d->format.v->s) : NULL;
}

/* --- terms ------------------------------------------------------------------------------------- */
static node *plain_class(void *ctx, const char_range *r, int32_t n) { return node_class(ctx, r, n); }

static term *pattern_term(maker *m, regular *r, str pattern, const path *at, const char *key)
{
    regex_options o = {.b = &m->b, .wrap = plain_class, .ctx = &m->b};
    regex         x;
    err           why = {0};
    if (pattern.n > REGULAR_MAX_PATTERN) {
        refuse(m, at, key, "has more than %d bytes, which cannot be enforced together with other constraints",
               REGULAR_MAX_PATTERN);
        return NULL;
    }
    if (!regex_parse(&x, pattern, &o, &why)) return refuse(m, at, key, "%s cannot be enforced", why.text), NULL;
    term *t = term_of_node(r, x.body);
    if (!t) refuse(m, at, key, "a lookahead inside a repetition in '%.*s' cannot be enforced", STR_ARG(pattern));
    return m->b.failed ? NULL : t;
}

/* Returns the strings among the values of a list. */
static term *words_of(maker *m, regular *r, const json_value *list)
{
    term  **word = arena_try(&m->b.mem, list->n + 1, sizeof(term *));
    int32_t n    = 0;
    if (!word) return builder_full(&m->b), r->none;
    for (size_t i = 0; i < list->n && builder_spend(&m->b, 2); i++)
        if (list->item[i].kind == JSON_STRING) word[n++] = term_word(r, list->item[i].s);
    return term_any_of(r, word, n);
}

term *make_text_term(maker *m, regular *r, const text_demand *d)
{
    const char *const *format = format_of(d);
    term              *all    = r->all, *x;
    bool               short_ = d->min > 0 || d->max >= 0;
    int32_t            max    = d->max;
    if (format) {
        bool simple = short_ && format[2];
        if (!(x = pattern_term(m, r, str_of(format[simple ? 2 : 1]), d->format.at, "format"))) return NULL;
        if (simple && (max < 0 || max > max_int(d->min, SHORT_TEXT))) max = max_int(d->min, SHORT_TEXT);
        all = x;
    }
    for (int32_t i = 0; i < d->n_patterns; i++) {
        if (!(x = pattern_term(m, r, d->pattern[i].v->s, d->pattern[i].at, "pattern"))) return NULL;
        all = term_and(r, all, x);
    }
    for (int32_t i = 0; i < d->n_without; i++) {
        if (!(x = pattern_term(m, r, d->without[i].v->s, d->without[i].at, "pattern"))) return NULL;
        all = term_and(r, all, term_not(r, x));
    }
    for (int32_t i = 0; i < d->n_except; i++) all = term_and(r, all, term_not(r, words_of(m, r, d->except[i].v)));
    if (short_) all = term_and(r, all, term_repeat(r, r->any_char, d->min, max));
    return m->b.failed ? NULL : all;
}

/* Writes the strings; where there are too many states only the shorter ones. *too_many: even those. */
static node *write_term(maker *m, regular *r, term *x, int32_t min, node *end, bool *too_many)
{
    static const int32_t longest[] = {-1, 256, 128, 64, 24};
    node                *out       = NULL;
    *too_many                      = true;
    for (size_t i = 0; i < COUNT(longest) && *too_many && !m->b.failed; i++) {
        if (longest[i] >= 0 && longest[i] < min) break;
        term *y = longest[i] < 0 ? x : term_and(r, x, term_repeat(r, r->any_char, 0, longest[i]));
        out     = term_write(r, y, wrap_class, m, end, too_many);
    }
    return out;
}

/* --- strings ----------------------------------------------------------------------------------- */
/* Writes a pattern or format alone. *done false: it needs a term. */
static node *write_alone(maker *m, const text_demand *d, bool *done)
{
    regex_options      o      = {.b = &m->b, .wrap = wrap_class, .ctx = m};
    const char *const *format = format_of(d);
    const char        *key    = format ? "format" : "pattern";
    spot               p      = format ? d->format : d->pattern[0];
    regex              x;
    err                why = {0};
    *done                  = true;
    if (!regex_parse(&x, format ? str_of(format[1]) : p.v->s, &o, &why))
        return refuse(m, p.at, key, "%s cannot be enforced", why.text), NULL;
    *done = !x.has_lookahead && fit_lengths(m, &x, d->min, d->max);
    return *done && x.body ? node_seq(&m->b, make_quote(m), x.body, make_quote(m)) : NULL;
}

static node *write_automaton(maker *m, const text_demand *d, const path *at)
{
    regular r;
    bool    too_many;
    regular_init(&r, &m->b);
    term *all = make_text_term(m, &r, d);
    node *x   = all ? write_term(m, &r, all, d->min, make_quote(m), &too_many) : NULL;
    if (all && too_many && !m->b.failed)
        refuse(m, at, d->n_patterns ? "pattern" : NULL, "these constraints on a string need more than %d states",
               REGULAR_MAX_STATES);
    return x && !m->b.failed ? node_seq(&m->b, make_quote(m), x) : NULL;
}

/* Writes a string of one pattern or format; equal ones share their rules. */
static node *write_single(maker *m, const text_demand *d, const path *at)
{
    bool  done;
    node *x    = write_alone(m, d, &done);
    str   text = d->n_patterns ? d->pattern[0].v->s : d->format.v->s;
    if (done) return x;
    for (int32_t i = 0; i < m->n_texts; i++) {
        const text_rule *k = &m->texts[i];
        if (k->min == d->min && k->max == d->max && k->is_format == !d->n_patterns && str_eq(k->text, text))
            return node_rule(&m->b, k->rule);
    }
    x = write_automaton(m, d, at);
    if (!x || m->n_texts == (int32_t)COUNT(m->texts)) return x;
    int32_t r = builder_rule(&m->b, (str){0});
    builder_define(&m->b, r, x);
    m->texts[m->n_texts++] = (text_rule){text, !d->n_patterns, d->min, d->max, r};
    return node_rule(&m->b, r);
}

node *make_text(maker *m, const text_demand *d, const path *at)
{
    int32_t n_terms = d->n_patterns + (format_of(d) != NULL);
    if (!n_terms && !d->n_without && !d->n_except) return make_string(m, d->min, d->max);
    if (n_terms == 1 && !d->n_without && !d->n_except) return write_single(m, d, at);
    return write_automaton(m, d, at);
}

bool text_allows(maker *m, const text_demand *d, str s)
{
    regular     r;
    text_demand plain = *d;
    plain.format      = (spot){0};
    if (!d->n_patterns && !d->n_without && !d->n_except && !d->min && d->max < 0) return true;
    regular_init(&r, &m->b);
    term *all = make_text_term(m, &r, &plain);
    return all && term_has(&r, all, s);
}

/* --- keys -------------------------------------------------------------------------------------- */
node *make_key(maker *m, regular *r, term *keys, const path *at)
{
    static const char_range bare[] = {{'-', '-'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    builder                *b      = &m->b;
    bool                    json   = !m->call, too_many;
    if (!json) keys = term_and(r, keys, term_repeat(r, term_class(r, bare, COUNT(bare)), 1, -1));
    node *colon = node_seq(b, node_puts(b, ":"), make_space(m));
    node *x     = write_term(m, r, keys, 1, json ? node_seq(b, make_quote(m), colon) : colon, &too_many);
    if (too_many && !b->failed)
        refuse(m, at, NULL, "the constraints on its keys need more than %d states", REGULAR_MAX_STATES);
    return !x || b->failed ? NULL : json ? node_seq(b, make_quote(m), x) : x;
}
