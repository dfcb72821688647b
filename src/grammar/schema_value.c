/* Plain strings, numbers and constants of a schema as nodes; schema_text.c has the strings with patterns.
 *
 * A string's characters: what needs no escape stands for itself, \u only for whole characters, so a character is one
 * "unit" and lengths count units. Numbers have at most 15 digits, which a double keeps apart: a bound that the
 * digits keep is kept by every reader. A number with bounds has no exponent and is counted in units of its last
 * possible digit. */
#include "base/mem.h"
#include "base/num.h"
#include "grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DIGITS = 15, FRACTION = 6, MAX_PLACES = 9, MAX_MULTIPLE = 100, MAX_LISTED = 4096, MAX_NAME = 64 };
#define SAFE_INTEGER INT64_C(9007199254740991) /* 2^53 - 1 */

node *make_space(maker *m) { return !m->call ? node_repeat(&m->b, node_puts(&m->b, " "), 0, 1) : node_empty(&m->b); }

node *make_comma(maker *m) { return node_seq(&m->b, node_puts(&m->b, ","), make_space(m)); }
node *make_null(maker *m) { return node_puts(&m->b, "null"); }

/* --- characters -------------------------------------------------------------------------------- */
const char_range json_plain[N_JSON_PLAIN] = {{0x20, '!'}, {'#', '['}, {']', 0x10FFFF}};

static node *ascii_class(maker *m, const char *pairs)
{
    char_range r[8];
    int32_t    n = 0;
    for (; pairs[0]; pairs += 2) r[n++] = (char_range){(uint8_t)pairs[0], (uint8_t)pairs[1]};
    return node_class(&m->b, r, n);
}

static node *unicode_escape(maker *m)
{
    builder *b   = &m->b;
    node    *hex = ascii_class(m, "09afAF"), *d = ascii_class(m, "ddDD");
    node    *low = node_seq(b, node_puts(b, "\\u"), d, ascii_class(m, "cfCF"), node_repeat(b, hex, 2, 2));
    return node_seq(b, node_puts(b, "u"),
                    node_alt(b, node_seq(b, ascii_class(m, "09acAC"), node_repeat(b, hex, 3, 3)),
                             node_seq(b, ascii_class(m, "efEF"), node_repeat(b, hex, 3, 3)),
                             node_seq(b, d, ascii_class(m, "07"), node_repeat(b, hex, 2, 2)),
                             node_seq(b, d, ascii_class(m, "89abAB"), node_repeat(b, hex, 2, 2), low)));
}

static node *make_unit(maker *m, bool key)
{
    builder *b = &m->b;
    if (m->call) return node_not(b, NULL, 0);
    node *simple = ascii_class(m, "\"\"\\\\//bbffnnrrtt");
    node *escape = key ? simple : node_alt(b, simple, unicode_escape(m));
    return node_alt(b, node_class(b, json_plain, COUNT(json_plain)), node_seq(b, node_puts(b, "\\"), escape));
}

node *make_quote(maker *m) { return !m->call ? node_puts(&m->b, "\"") : node_marker(&m->b, str_of(m->call->quote)); }

node *make_string(maker *m, int32_t min, int32_t max)
{
    builder *b = &m->b;
    for (int32_t i = 0; i < m->n_strings; i++)
        if (m->strings[i].min == min && m->strings[i].max == max) return node_rule(b, m->strings[i].rule);
    if (max >= 0 && max < min) return NULL;
    if (!m->unit) m->unit = make_unit(m, false);
    int32_t r = builder_rule(b, (str){0});
    builder_define(b, r, node_seq(b, make_quote(m), node_repeat(b, m->unit, min, max), make_quote(m)));
    if (m->n_strings < (int32_t)COUNT(m->strings)) m->strings[m->n_strings++] = (string_rule){min, max, r};
    return node_rule(b, r);
}

bool is_number_format(str f)
{
    return str_is(f, "int32") || str_is(f, "int64") || str_is(f, "uint32") || str_is(f, "uint64") ||
           str_is(f, "float") || str_is(f, "double");
}

/* --- ranges of digits -------------------------------------------------------------------------- */
static bool all_are(const char *s, int n, char c)
{
    for (int i = 0; i < n; i++)
        if (s[i] != c) return false;
    return true;
}

static node *digit(maker *m, char lo, char hi) { return node_class(&m->b, &(char_range){(uint8_t)lo, (uint8_t)hi}, 1); }

typedef enum {
    EXACTLY, /* n digits */
    SOME,    /* fraction: 1 to n digits, as if zeros followed */
    ANY,     /* fraction: 0 to n digits */
} how_many;

static const char zeros[] = "0000000000000000000", nines[] = "9999999999999999999";

/* Strings of digits from lo to hi, which have n. */
static node *digits_between(maker *m, const char *lo, const char *hi, int n, how_many how)
{
    static const int fewest[] = {0, 1, 0};
    how_many         then     = how == EXACTLY ? EXACTLY : ANY;
    builder         *b        = &m->b;
    node            *x;
    if (!n) return node_empty(b);
    bool low = all_are(lo, n, '0'), high = all_are(hi, n, '9');
    if (low && high) return node_repeat(b, digit(m, '0', '9'), how == EXACTLY ? n : fewest[how], n);
    if (lo[0] == hi[0]) {
        x = node_seq(b, digit(m, lo[0], lo[0]), digits_between(m, lo + 1, hi + 1, n - 1, then));
    } else {
        node_vec v   = {0};
        bool     cut = !all_are(lo + 1, n - 1, '0'), cut_high = !all_are(hi + 1, n - 1, '9');
        char     from = (char)(lo[0] + cut), to = (char)(hi[0] - cut_high);
        if (cut)
            node_vec_put(b, &v, node_seq(b, digit(m, lo[0], lo[0]), digits_between(m, lo + 1, nines, n - 1, then)));
        if (from <= to)
            node_vec_put(b, &v, node_seq(b, digit(m, from, to), digits_between(m, zeros, nines, n - 1, then)));
        if (cut_high)
            node_vec_put(b, &v, node_seq(b, digit(m, hi[0], hi[0]), digits_between(m, zeros, hi + 1, n - 1, then)));
        x = node_list(b, NODE_ALT, v.p, v.n);
    }
    return how == ANY && low ? node_repeat(b, x, 0, 1) : x;
}

typedef struct { /* multiples of k among strings of digits */
    maker  *m;
    int     k;
    int32_t free[20][MAX_MULTIPLE]; /* [n][r]: rule of any n digits after the remainder r; -1: none yet */
} multiples;

/* Writes any n digits after the remainder r. */
static node *free_digits(multiples *x, int n, int r)
{
    builder *b = &x->m->b;
    node_vec v = {0};
    if (!n) return r ? node_list(b, NODE_ALT, NULL, 0) : node_empty(b);
    if (x->free[n][r] < 0) {
        x->free[n][r] = builder_rule(b, (str){0});
        for (int d = 0; d < 10 && !b->failed; d++)
            node_vec_put(
                b, &v,
                node_seq(b, digit(x->m, (char)('0' + d), (char)('0' + d)), free_digits(x, n - 1, (r * 10 + d) % x->k)));
        builder_define(b, x->free[n][r], node_list(b, NODE_ALT, v.p, v.n));
    }
    return node_rule(b, x->free[n][r]);
}

/* Writes the same as digits_between after the remainder r. */
static node *multiples_between(multiples *x, const char *lo, const char *hi, int n, int r)
{
    builder *b = &x->m->b;
    node_vec v = {0};
    if (!n || (all_are(lo, n, '0') && all_are(hi, n, '9'))) return free_digits(x, n, r);
    for (char c = lo[0]; c <= hi[0] && !b->failed; c++) {
        node *rest = multiples_between(x, c == lo[0] ? lo + 1 : zeros, c == hi[0] ? hi + 1 : nines, n - 1,
                                       (r * 10 + c - '0') % x->k);
        node_vec_put(b, &v, node_seq(b, digit(x->m, c, c), rest));
    }
    return node_list(b, NODE_ALT, v.p, v.n);
}

/* Writes whole numbers without a sign; of: multiples alone, NULL: all. */
static node *whole_between(maker *m, multiples *of, uint64_t lo, uint64_t hi)
{
    node_vec v     = {0};
    uint64_t first = 0; /* smallest number with n digits */
    for (int n = 1; n <= 19; n++) {
        uint64_t last = first ? first * 10 - 1 : 9;
        uint64_t a = lo > first ? lo : first, z = hi < last ? hi : last;
        if (a <= z) {
            char from[24], to[24];
            snprintf(from, sizeof from, "%0*llu", n, (unsigned long long)a);
            snprintf(to, sizeof to, "%0*llu", n, (unsigned long long)z);
            node_vec_put(&m->b, &v,
                         of ? multiples_between(of, from, to, n, 0) : digits_between(m, from, to, n, EXACTLY));
        }
        first = last + 1;
    }
    return node_list(&m->b, NODE_ALT, v.p, v.n);
}

/* --- integers ---------------------------------------------------------------------------------- */
long double number_of(const json_value *v) { return v->kind == JSON_INT ? (long double)v->i : (long double)v->d; }

/* Bounds up to 2^63 are exact; a side without one ends where doubles no longer distinguish integers.
 * Returns false when nothing is left. */
static bool integer_bounds(const bounds *b, int64_t *lo, int64_t *hi)
{
    const long double safe = (long double)SAFE_INTEGER, last = (long double)INT64_MAX;
    long double       low = b->has_low ? ceill(b->low) : -safe, high = b->has_high ? floorl(b->high) : safe;
    if (b->has_low && b->low_out && low == b->low) low++;
    if (b->has_high && b->high_out && high == b->high) high--;
    if (!b->has_high && low > high) high = last;
    if (!b->has_low && low > high) low = -last;
    if (low < -last) low = -last;
    if (high > last) high = last;
    if (low > high) return false;
    *lo = (int64_t)low;
    *hi = (int64_t)high;
    return true;
}

static node *integer_between(maker *m, int64_t lo, int64_t hi)
{
    node_vec v = {0};
    if (lo < 0)
        node_vec_put(
            &m->b, &v,
            node_seq(&m->b, node_puts(&m->b, "-"), whole_between(m, NULL, hi < 0 ? (uint64_t)-hi : 1, (uint64_t)-lo)));
    if (hi >= 0) node_vec_put(&m->b, &v, whole_between(m, NULL, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi));
    return node_list(&m->b, NODE_ALT, v.p, v.n);
}

static int64_t divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a         = b;
        b         = r;
    }
    return a;
}

static int64_t power_of_ten(int n)
{
    int64_t x = 1;
    while (n--) x *= 10;
    return x;
}

/* Returns the integer that all integers among the multiples are multiples of. */
static int64_t whole_multiple(decimal x) { return x.k ? x.k / divisor(x.k, power_of_ten(x.places)) : 0; }

static node *listed_multiples(maker *m, int64_t lo, int64_t hi, int64_t multiple)
{
    node_vec v     = {0};
    int64_t  first = lo / multiple * multiple;
    if (first < lo && first > INT64_MAX - multiple) return NULL;
    for (int64_t x = first < lo ? first + multiple : first; x <= hi; x += multiple) {
        char text[24];
        snprintf(text, sizeof text, "%lld", (long long)x);
        node_vec_put(&m->b, &v, node_puts(&m->b, text));
        if (x > INT64_MAX - multiple) break;
    }
    return v.n ? node_list(&m->b, NODE_ALT, v.p, v.n) : NULL;
}

/* r * 10^n is a multiple of k */
static bool ends_well(int64_t r, int n, int64_t k)
{
    while (n--) r = r * 10 % k;
    return r == 0;
}

static node *next_digits(maker *m, int r, int k, const int32_t *below, int first)
{
    node_vec v = {0};
    for (int d = first; d < 10; d++)
        node_vec_put(
            &m->b, &v,
            node_seq(&m->b, digit(m, (char)('0' + d), (char)('0' + d)), node_rule(&m->b, below[(r * 10 + d) % k])));
    return node_list(&m->b, NODE_ALT, v.p, v.n);
}

/* Defines what follows digits of remainder r modulo k for each r: the end where that is a multiple, or more digits.
 * `last` are the rules with one digit less to come, NULL: none; `point` those after a decimal point, NULL: there is
 * none. n_zeros are left out at the end. */
static void define_remainders(maker *m, int k, int32_t *rule_of, const int32_t *last, const int32_t *point, int n_zeros)
{
    builder *b = &m->b;
    for (int r = 0; r < k; r++) {
        node_vec v = {0};
        if (ends_well(r, n_zeros, k)) node_vec_put(b, &v, node_empty(b));
        if (last) node_vec_put(b, &v, next_digits(m, r, k, last, 0));
        if (point) node_vec_put(b, &v, node_seq(b, node_puts(b, "."), next_digits(m, r, k, point, 0)));
        rule_of[r] = builder_rule(b, (str){0});
        builder_define(b, rule_of[r], node_list(b, NODE_ALT, v.p, v.n));
    }
}

/* Writes any multiple of k / 10^places with up to 15 digits: a rule for each remainder and number of digits left. */
static node *any_multiple(maker *m, int k, int places)
{
    builder *b = &m->b;
    int32_t  rule_of[MAX_MULTIPLE], below[MAX_MULTIPLE], point[MAX_MULTIPLE];
    for (int left = 0; left < places; left++) {
        define_remainders(m, k, rule_of, left ? point : NULL, NULL, left);
        memcpy(point, rule_of, sizeof point);
    }
    for (int left = 0; left < DIGITS - places; left++) {
        define_remainders(m, k, rule_of, left ? below : NULL, places ? point : NULL, places);
        memcpy(below, rule_of, sizeof below);
    }
    node *fraction = places ? node_seq(b, node_puts(b, "."), next_digits(m, 0, k, point, 0)) : node_empty(b);
    node *sign     = node_repeat(b, node_puts(b, "-"), 0, 1);
    if (!places) return node_alt(b, node_puts(b, "0"), node_seq(b, sign, next_digits(m, 0, k, below, 1)));
    return node_seq(
        b, sign,
        node_alt(b, node_seq(b, node_puts(b, "0"), node_repeat(b, fraction, 0, 1)), next_digits(m, 0, k, below, 1)));
}

static node *bounded_multiples(maker *m, int64_t lo, int64_t hi, int k)
{
    builder  *b = &m->b;
    node_vec  v = {0};
    multiples x = {.m = m, .k = k};
    memset(x.free, -1, sizeof x.free);
    if (lo < 0)
        node_vec_put(b, &v,
                     node_seq(b, node_puts(b, "-"), whole_between(m, &x, hi < 0 ? (uint64_t)-hi : 1, (uint64_t)-lo)));
    if (hi >= 0) node_vec_put(b, &v, whole_between(m, &x, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi));
    return node_list(b, NODE_ALT, v.p, v.n);
}

static node *plain_integer(maker *m)
{
    builder *b = &m->b;
    return node_seq(b, node_repeat(b, node_puts(b, "-"), 0, 1),
                    node_alt(b, node_puts(b, "0"),
                             node_seq(b, digit(m, '1', '9'), node_repeat(b, digit(m, '0', '9'), 0, DIGITS - 1))));
}

node *make_integer(maker *m, const path *at, const bounds *x, decimal of)
{
    int64_t lo, hi, multiple = whole_multiple(of);
    bool    bounded = x->has_low || x->has_high;
    if (!integer_bounds(x, &lo, &hi)) return NULL;
    if (multiple > 1) {
        if ((uint64_t)hi - (uint64_t)lo <= (uint64_t)multiple * MAX_LISTED)
            return listed_multiples(m, lo, hi, multiple);
        if (multiple <= MAX_MULTIPLE)
            return bounded ? bounded_multiples(m, lo, hi, (int)multiple) : any_multiple(m, (int)multiple, 0);
        refuse(m, at, "multipleOf", "%lld can be enforced up to %d, or among at most %d numbers between bounds",
               (long long)multiple, MAX_MULTIPLE, MAX_LISTED);
        return NULL;
    }
    if (bounded) return integer_between(m, lo, hi);
    if (m->integer < 0) {
        m->integer = builder_rule(&m->b, (str){0});
        builder_define(&m->b, m->integer, plain_integer(m));
    }
    return node_rule(&m->b, m->integer);
}

/* --- numbers ----------------------------------------------------------------------------------- */
static node *plain_number(maker *m)
{
    builder *b        = &m->b;
    node    *d        = digit(m, '0', '9');
    node    *fraction = node_seq(b, node_puts(b, "."), node_repeat(b, d, 1, DIGITS));
    node    *exponent =
        node_seq(b, ascii_class(m, "eeEE"), node_repeat(b, ascii_class(m, "++--"), 0, 1), node_repeat(b, d, 1, 2));
    return node_seq(b, plain_integer(m), node_repeat(b, fraction, 0, 1), node_repeat(b, exponent, 0, 1));
}

/* The shortest text of d, without a sign, in units of 10^-places: exact when it has no more digits; else rounded
 * down, and *rest says so. */
static uint64_t in_units(double d, int places, bool *rest)
{
    char     text[40];
    uint64_t n         = 0;
    int      precision = 1;
    do snprintf(text, sizeof text, "%.*e", precision - 1, fabs(d));
    while (strtod(text, NULL) != fabs(d) && precision++ < 17);
    char *e     = strchr(text, 'e');
    int   shift = atoi(e + 1) + places; /* the first digit stands for 10^shift units */
    *rest       = false;
    for (const char *p = text; p < e; p++) {
        if (*p < '0' || *p > '9') continue;
        if (shift-- < 0)
            *rest |= *p != '0';
        else
            n = n * 10 + (uint64_t)(*p - '0');
    }
    while (shift-- >= 0) n *= 10;
    return n;
}

static int places_of(double d)
{
    bool rest = true;
    int  n    = 0;
    while (n < DIGITS && fabs(d) < 1e15 && (in_units(d, n, &rest), rest)) n++;
    return n;
}

/* Numbers from lo to hi units without a sign, with up to `places` digits after the point. */
static node *units_between(maker *m, uint64_t lo, uint64_t hi, int places)
{
    builder *b    = &m->b;
    uint64_t unit = 1;
    for (int i = 0; i < places; i++) unit *= 10;
    uint64_t a = lo / unit, z = hi / unit;
    if (!places) return whole_between(m, NULL, a, z);
    char low[24], high[24];
    snprintf(low, sizeof low, "%0*llu", places, (unsigned long long)(lo % unit));
    snprintf(high, sizeof high, "%0*llu", places, (unsigned long long)(hi % unit));
    node_vec v = {0};
    struct {
        uint64_t    from, to;
        const char *lo, *hi;
    } piece[3] = {{a, a, low, a == z ? high : nines}, {a + 1, z ? z - 1 : 0, zeros, nines}, {z, z, zeros, high}};
    for (int i = 0; i < 3; i++) {
        if (piece[i].from > piece[i].to || (i && a == z)) continue;
        node *point = node_seq(b, node_puts(b, "."), digits_between(m, piece[i].lo, piece[i].hi, places, SOME));
        bool  whole = all_are(piece[i].lo, places, '0');
        node_vec_put(b, &v,
                     node_seq(b, whole_between(m, NULL, piece[i].from, piece[i].to),
                              whole ? node_repeat(b, point, 0, 1) : point));
    }
    return node_list(b, NODE_ALT, v.p, v.n);
}

/* Lowest and highest in units of 10^-places; false when there is nothing between. */
static bool unit_bounds(const bounds *b, int places, int64_t *lo, int64_t *hi)
{
    bool    rest;
    int64_t n;
    *hi = INT64_C(999999999999999);
    *lo = -*hi;
    if (b->has_low && b->low > -1e15) {
        n   = (int64_t)in_units((double)b->low, places, &rest);
        *lo = b->low >= 0 ? n + (rest || b->low_out) : -(n - (!rest && b->low_out));
    }
    if (b->has_high && b->high < 1e15) {
        n   = (int64_t)in_units((double)b->high, places, &rest);
        *hi = b->high >= 0 ? n - (!rest && b->high_out) : -(n + (rest || b->high_out));
    }
    return *lo <= *hi;
}

/* Returns the digits after the point: as many as the bounds have, at least some, and no more than leave room before the
 * point. */
static int choose_places(const bounds *b)
{
    double largest = 0;
    int    places  = FRACTION;
    double low = (double)b->low, high = (double)b->high;
    if (b->has_low && fabs(low) < 1e15) largest = fabs(low), places = max_int(places, places_of(low));
    if (b->has_high && fabs(high) < 1e15)
        largest = fmax(largest, fabs(high)), places = max_int(places, places_of(high));
    places = min_int(places, 9);
    while (places && largest >= pow(10, DIGITS - places)) places--;
    return places;
}

/* --- multiples of decimal fractions ------------------------------------------------------------ */
bool read_decimal(double d, decimal *out)
{
    bool rest;
    int  places = places_of(d);
    if (places > MAX_PLACES || d > 1e15) return false;
    *out = (decimal){(int64_t)in_units(d, places, &rest), places};
    return !rest && out->k > 0;
}

bool join_decimals(decimal a, decimal b, decimal *out)
{
    if (!a.k) return *out = b, true;
    int     places = max_int(a.places, b.places);
    int64_t limit  = INT64_C(1000000000);
    if (a.k > limit || b.k > limit) return false;
    int64_t x = a.k * power_of_ten(places - a.places), y = b.k * power_of_ten(places - b.places);
    int64_t k = x / divisor(x, y);
    if (k > INT64_C(1000000000000000) / y) return false;
    *out = (decimal){k * y, places};
    return true;
}

bool is_multiple(const json_value *v, decimal of)
{
    bool rest;
    if (!of.k) return true;
    if (v->kind == JSON_INT) return v->i % whole_multiple(of) == 0;
    if (fabs(v->d) >= 1e15 / (double)power_of_ten(of.places)) return fmod(v->d, (double)whole_multiple(of)) == 0;
    uint64_t units = in_units(v->d, of.places, &rest);
    return !rest && units % (uint64_t)of.k == 0;
}

static node *listed_units(maker *m, int64_t lo, int64_t hi, decimal of)
{
    node_vec v    = {0};
    int64_t  unit = power_of_ten(of.places);
    for (int64_t x = lo / of.k * of.k + (lo > 0 && lo % of.k ? of.k : 0); x <= hi; x += of.k) {
        char     text[48];
        uint64_t a = x < 0 ? (uint64_t)-x : (uint64_t)x;
        int n = snprintf(text, sizeof text, "%s%llu.%0*llu", x < 0 ? "-" : "", (unsigned long long)(a / (uint64_t)unit),
                         of.places, (unsigned long long)(a % (uint64_t)unit));
        while (text[n - 1] == '0') n--;
        text[text[n - 1] == '.' ? n - 1 : n] = 0;
        node_vec_put(&m->b, &v, node_puts(&m->b, text));
    }
    return v.n ? node_list(&m->b, NODE_ALT, v.p, v.n) : NULL;
}

/* Writes numbers from lo to hi units of 10^-places. */
static node *signed_units(maker *m, int64_t lo, int64_t hi, int places)
{
    builder *b = &m->b;
    node_vec v = {0};
    if (lo < 0)
        node_vec_put(
            b, &v, node_seq(b, node_puts(b, "-"), units_between(m, hi < 0 ? (uint64_t)-hi : 1, (uint64_t)-lo, places)));
    if (hi >= 0) node_vec_put(b, &v, units_between(m, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi, places));
    return node_list(b, NODE_ALT, v.p, v.n);
}

/* Writes multiples of a fraction, not of an integer. */
static node *make_multiple(maker *m, const path *at, const bounds *x, decimal of)
{
    int64_t lo, hi;
    if (!x->has_low && !x->has_high && of.k <= MAX_MULTIPLE) return any_multiple(m, (int)of.k, of.places);
    if ((x->has_low && fabsl(x->low) >= 1e15L / power_of_ten(of.places)) ||
        (x->has_high && fabsl(x->high) >= 1e15L / power_of_ten(of.places)))
        return refuse(m, at, "multipleOf", "cannot be enforced with so large a bound"), NULL;
    if (!unit_bounds(x, of.places, &lo, &hi)) return NULL;
    if (of.k == 1) return signed_units(m, lo, hi, of.places);
    if ((hi - lo) / of.k <= MAX_LISTED) return listed_units(m, lo, hi, of);
    refuse(m, at, "multipleOf",
           "can be enforced up to %d units of its last digit, or among at most %d numbers between bounds", MAX_MULTIPLE,
           MAX_LISTED);
    return NULL;
}

node *make_number(maker *m, const path *at, const bounds *x, decimal of)
{
    builder *b = &m->b;
    int64_t  lo, hi;
    if (of.k && of.k % power_of_ten(of.places) == 0) return make_integer(m, at, x, of);
    while (of.places && of.k % 10 == 0) of.k /= 10, of.places--;
    if (of.k) return make_multiple(m, at, x, of);
    if (!x->has_low && !x->has_high) {
        if (m->number < 0) {
            m->number = builder_rule(b, (str){0});
            builder_define(b, m->number, plain_number(m));
        }
        return node_rule(b, m->number);
    }
    if ((x->has_low && x->low >= 1e15) || (x->has_high && x->high <= -1e15)) {
        refuse(m, at, x->has_low && x->low >= 1e15 ? "minimum" : "maximum", "numbers have at most %d digits", DIGITS);
        return NULL;
    }
    int places = choose_places(x);
    if (!unit_bounds(x, places, &lo, &hi) && (places = DIGITS, true) &&
        (fabsl(x->low) >= 1 || fabsl(x->high) >= 1 || !unit_bounds(x, places, &lo, &hi)))
        return NULL;
    return signed_units(m, lo, hi, places);
}

/* --- constants and names ----------------------------------------------------------------------- */
static node *json_text(maker *m, const json_value *v)
{
    buf         text;
    json_writer w;
    buf_init(&text, GRAMMAR_MAX_TEXT);
    json_writer_init(&w, &text);
    json_put_value(&w, v);
    if (text.over)
        builder_fail(&m->b, ERR_TOO_LARGE, "a constant of the schema is too long");
    else if (text.failed)
        builder_fail(&m->b, ERR_UNAVAILABLE, "no memory for a constant of the schema");
    builder_spend(&m->b, 8 + text.n / 8);
    node *x = node_text(&m->b, buf_str(&text));
    buf_deinit(&text);
    return x;
}

static node *quoted(maker *m, str s)
{
    if (!m->call) return json_text(m, &(json_value){.kind = JSON_STRING, .s = s});
    return node_seq(&m->b, make_quote(m), node_text(&m->b, s), make_quote(m));
}

node *make_name(maker *m, str name)
{
    builder *b   = &m->b;
    node    *key = !m->call ? quoted(m, name) : node_text(b, name);
    return node_seq(b, key, node_puts(b, ":"), make_space(m));
}

node *make_literal(maker *m, const json_value *v)
{
    builder *b    = &m->b;
    bool     list = v->kind == JSON_ARRAY, object = v->kind == JSON_OBJECT;
    node_vec x = {0};
    if (v->kind == JSON_STRING) return quoted(m, v->s);
    if (!list && !object) return json_text(m, v);
    node_vec_put(b, &x, node_puts(b, list ? "[" : "{"));
    for (size_t i = 0; i < v->n; i++) {
        if (i) node_vec_put(b, &x, make_comma(m));
        if (object) node_vec_put(b, &x, make_name(m, v->member[i].key));
        node_vec_put(b, &x, make_literal(m, list ? &v->item[i] : &v->member[i].value));
    }
    node_vec_put(b, &x, node_puts(b, list ? "]" : "}"));
    return node_list(b, NODE_SEQ, x.p, x.n);
}

/* Characters of a key that no schema names. */
static const char_range call_plain[] = {{'-', '-'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};

/* Plain characters but those in `used`. */
static node *plain_without(maker *m, const char_range *used, int32_t n_used)
{
    bool              json  = !m->call;
    const char_range *plain = json ? json_plain : call_plain;
    size_t            n     = json ? COUNT(json_plain) : COUNT(call_plain);
    node             *rest  = node_not(&m->b, used, n_used);
    char_range        out[512];
    int32_t           k = 0;
    if (rest->kind != NODE_CLASS) return rest; /* the builder failed */
    for (int32_t i = 0; i < rest->n; i++)
        for (size_t p = 0; p < n && k < (int32_t)COUNT(out); p++) {
            uint32_t lo = rest->range[i].lo > plain[p].lo ? rest->range[i].lo : plain[p].lo;
            uint32_t hi = rest->range[i].hi < plain[p].hi ? rest->range[i].hi : plain[p].hi;
            if (lo <= hi) out[k++] = (char_range){lo, hi};
        }
    return node_class(&m->b, out, k);
}

/* Every plain text but the sorted names, which agree in their first `from` bytes. Very long names, and those that go on
 * in very many ways, shut out everything that begins like them. */
static node *not_among(maker *m, const str *name, size_t n, size_t from, int deep, node *tail)
{
    builder   *b = &m->b;
    node_vec   v = {0};
    char_range used[128];
    int32_t    n_used  = 0;
    size_t     i       = 0;
    bool       is_name = false;
    if (!builder_spend(b, 8 + n)) return node_empty(b);
    while (i < n && name[i].n == from) is_name = true, i++;
    if (!is_name) node_vec_put(b, &v, node_empty(b));
    while (i < n && n_used < (int32_t)COUNT(used)) {
        uint32_t c;
        size_t   k   = i;
        int      len = utf8_decode(name[i].s + from, name[i].n - from, &c);
        if (!len) break;
        while (k < n && name[k].n >= from + (size_t)len && !memcmp(name[k].s + from, name[i].s + from, (size_t)len))
            k++;
        used[n_used++] = (char_range){c, c};
        if (deep < MAX_NAME)
            node_vec_put(b, &v,
                         node_seq(b, node_text(b, (str){name[i].s + from, (size_t)len}),
                                  not_among(m, name + i, k - i, from + (size_t)len, deep + 1, tail)));
        i = k;
    }
    if (i == n) node_vec_put(b, &v, node_seq(b, plain_without(m, used, n_used), tail));
    return node_list(b, NODE_ALT, v.p, v.n);
}

static int by_name(const void *a, const void *b) { return str_order(*(const str *)a, *(const str *)b); }

node *make_other_name(maker *m, const str *names, size_t n)
{
    builder *b     = &m->b;
    bool     json  = !m->call;
    node    *quote = json ? make_quote(m) : node_empty(b), *key;
    if (json && !n) {
        if (!m->key_unit) m->key_unit = make_unit(m, true);
        key = node_repeat(b, m->key_unit, 0, -1);
    } else {
        str *sorted = arena_try(&b->mem, n + 1, sizeof *sorted);
        if (!sorted) return builder_full(b), node_empty(b);
        if (n) memcpy(sorted, names, n * sizeof *names);
        sorted[n] = (str){"", 0}; /* a bare key is not empty */
        if (!json) n++;
        size_t n_bytes = 0;
        for (size_t i = 0; i < n; i++) n_bytes += sorted[i].n;
        if (!builder_spend_sort(b, n, n_bytes)) return node_empty(b);
        qsort(sorted, n, sizeof *sorted, by_name);
        key = not_among(m, sorted, n, 0, 0, node_repeat(b, plain_without(m, NULL, 0), 0, -1));
    }
    return node_seq(b, quote, key, quote, node_puts(b, ":"), make_space(m));
}
