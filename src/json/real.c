/* Reals as text, in both directions, with libc's exact conversions.
 *
 * libc prints and expects the decimal point of the locale, which may be a comma. Therefore it only gets digits and an
 * exponent: strtod reads 0.125 as 125e-3, and only the digits of printf's %e output are used. */
#include "json/internal.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* No double, and no value halfway between two, has more significant digits than 768. For a longer
 * number, the first 800 digits and whether the rest is zero decide the nearest double. */
enum { MAX_DIGITS = 800, DIGITS_CHARS = MAX_DIGITS + 32 };

typedef struct {
    char    digit[DIGITS_CHARS]; /* no leading zeros; has room for an exponent after them */
    int     n;
    int64_t exp10; /* the value is the digits, read as an integer, times 10^exp10 */
    bool    rest;  /* a digit that is not zero was left out */
} decimal;

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static void add_digit(decimal *x, char c, bool fraction)
{
    if (x->n == MAX_DIGITS) {
        x->rest |= c != '0';
        x->exp10 += !fraction;
        return;
    }
    if (x->n || c != '0') x->digit[x->n++] = c;
    x->exp10 -= fraction;
}

/* Returns the exponent. It saturates far beyond the range of a double and of any exponent the digits can offset. */
static int64_t read_exponent(const char *p, const char *end)
{
    const int64_t limit = (int64_t)1 << 60;
    int64_t       v     = 0;
    bool          minus = *p == '-';
    for (p += minus || *p == '+'; p < end; p++) v = v < limit / 10 ? v * 10 + (*p - '0') : limit;
    return minus ? -v : v;
}

static void read_decimal(decimal *x, const char *p, const char *end)
{
    bool fraction = false;
    for (; p < end && (*p | 0x20) != 'e'; p++) {
        if (is_digit(*p)) add_digit(x, *p, fraction);
        fraction |= *p == '.';
    }
    if (p < end) x->exp10 += read_exponent(p + 1, end);
    if (x->rest) { /* a digit at the very end breaks the tie that the first 800 may look like */
        x->digit[x->n++] = '1';
        x->exp10--;
    }
}

/* Both factors are exact doubles, so their product or quotient is rounded once: it is the nearest. */
static bool quick_value(const decimal *x, double *out)
{
    static const double ten[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    int64_t             m     = 0;
    if (x->n > DBL_DIG || x->exp10 < -22 || x->exp10 > 22) return false;
    for (int i = 0; i < x->n; i++) m = m * 10 + (x->digit[i] - '0');
    *out = x->exp10 < 0 ? (double)m / ten[-x->exp10] : (double)m * ten[x->exp10];
    return true;
}
_Static_assert(FLT_EVAL_METHOD == 0, "doubles must be computed as doubles");

static double exact_value(decimal *x)
{
    const int64_t limit = 100000; /* with at most 801 digits, all exponents beyond it give 0 or infinity */
    int64_t       e     = x->exp10 < -limit ? -limit : x->exp10 > limit ? limit : x->exp10;
    snprintf(x->digit + x->n, sizeof x->digit - (size_t)x->n, "e%lld", (long long)e);
    return x->n ? strtod(x->digit, NULL) : 0;
}

bool json_real_read(str number, double *out)
{
    decimal     x;
    const char *p = number.s, *end = p + number.n;
    bool        minus = *p == '-';
    double      v;

    x.n     = 0; /* the digits are not zeroed: they are written first */
    x.exp10 = 0;
    x.rest  = false;
    read_decimal(&x, p + minus, end);
    if (!quick_value(&x, &v)) v = exact_value(&x);
    if (!isfinite(v)) return false;
    *out = minus ? -v : v;
    return true;
}

/* Stores the first n digits of v > 0 without trailing zeros. */
static void print_digits(decimal *x, double v, int n)
{
    char text[40], *p = text;
    snprintf(text, sizeof text, "%.*e", n - 1, v);
    for (x->n = 0; *p != 'e'; p++)
        if (is_digit(*p)) x->digit[x->n++] = *p; /* skips the point, which may have several bytes */
    while (x->n > 1 && x->digit[x->n - 1] == '0') x->n--;
    x->exp10 = strtol(p + 1, NULL, 10) - (x->n - 1);
}

/* Every decimal of 15 digits survives conversion to a normal double and back, so fewer need not be tried. */
static void shortest_digits(decimal *x, double v)
{
    int n = v < DBL_MIN ? 1 : DBL_DIG;
    do print_digits(x, v, n++);
    while (exact_value(x) != v);
}

static char *put_zeros(char *out, int n)
{
    for (; n > 0; n--) *out++ = '0';
    return out;
}

static char *put_digits(char *out, const decimal *x, int from, int to)
{
    memcpy(out, x->digit + from, (size_t)(to - from));
    return out + (to - from);
}

size_t json_real_print(char out[JSON_REAL_CHARS], double d)
{
    decimal x;
    char   *p = out;

    assert(isfinite(d));
    if (signbit(d)) *p++ = '-';
    if (d == 0) return (size_t)(stpcpy(p, "0.0") - out);
    shortest_digits(&x, fabs(d));
    int point = x.n + (int)x.exp10; /* digits before the point */
    if (point > 0 && point <= 16) {
        int whole = point < x.n ? point : x.n;
        p         = put_zeros(put_digits(p, &x, 0, whole), point - whole);
        *p++      = '.';
        p         = whole < x.n ? put_digits(p, &x, whole, x.n) : put_zeros(p, 1);
    } else if (point > -5 && point <= 0) {
        p = put_digits(put_zeros(stpcpy(p, "0."), -point), &x, 0, x.n);
    } else {
        p = put_digits(p, &x, 0, 1);
        if (x.n > 1) {
            *p++ = '.';
            p    = put_digits(p, &x, 1, x.n);
        }
        p += snprintf(p, 8, "e%d", point - 1);
    }
    return (size_t)(p - out);
}
