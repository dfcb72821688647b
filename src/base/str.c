#include "base/str.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

bool str_is_nocase(str a, str b)
{
    if (a.n != b.n) return false;
    for (size_t i = 0; i < a.n; i++)
        if (lower(a.s[i]) != lower(b.s[i])) return false;
    return true;
}

bool str_starts(str s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.n >= n && !memcmp(s.s, prefix, n);
}

bool str_ends(str s, const char *suffix)
{
    size_t n = strlen(suffix);
    return s.n >= n && !memcmp(s.s + s.n - n, suffix, n);
}

str str_next_word(const char **at)
{
    str word = {*at, strcspn(*at, ",")};
    *at += word.n + ((*at)[word.n] == ',');
    return word;
}

/* Mixes in the length, then eight bytes at a time by a multiply and a fold. */
uint64_t str_hash(str s)
{
    const uint64_t mul = 0x9E3779B97F4A7C15u;
    uint64_t       h   = (s.n + 1) * mul;
    size_t         i   = 0;
    for (; i + 8 <= s.n; i += 8) {
        uint64_t w;
        memcpy(&w, s.s + i, 8);
        h = (h ^ w) * mul;
        h ^= h >> 32;
    }
    uint64_t w = 0;
    for (size_t k = 0; i + k < s.n; k++) w |= (uint64_t)(unsigned char)s.s[i + k] << (8 * k);
    h = (h ^ w) * mul;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return h ^ h >> 32;
}

bool str_to_u64(str s, uint64_t *out)
{
    uint64_t v = 0;
    if (!s.n) return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.s[i] < '0' || s.s[i] > '9') return false;
        if (__builtin_mul_overflow(v, 10u, &v)) return false;
        if (__builtin_add_overflow(v, (uint64_t)(s.s[i] - '0'), &v)) return false;
    }
    *out = v;
    return true;
}

bool str_to_i64(str s, int64_t *out)
{
    bool     minus = s.n && s.s[0] == '-';
    uint64_t v;
    if (!str_to_u64((str){s.s + minus, s.n - minus}, &v)) return false;
    if (v > (uint64_t)INT64_MAX + minus) return false;
    *out = minus ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

bool str_to_f64(str s, double *out)
{
    char tmp[64], *end;
    if (!s.n || s.n >= sizeof tmp) return false;
    for (size_t i = 0; i < s.n; i++)
        if (!strchr("0123456789+-.eE", s.s[i])) return false;
    memcpy(tmp, s.s, s.n);
    tmp[s.n] = 0;
    double v = strtod(tmp, &end);
    if (end != tmp + s.n || !isfinite(v)) return false;
    *out = v;
    return true;
}

int utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        if (n < 2 || (p[1] & 0xC0) != 0x80) return 0;
        *cp = (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        if (n < 3 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80) return 0;
        *cp = (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3Fu);
        return *cp < 0x800 || (*cp >= 0xD800 && *cp <= 0xDFFF) ? 0 : 3;
    }
    if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        if (n < 4 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80 || (p[3] & 0xC0) != 0x80) return 0;
        *cp = (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 |
              (p[3] & 0x3Fu);
        return *cp < 0x10000 || *cp > 0x10FFFF ? 0 : 4;
    }
    return 0;
}

int utf8_encode(char out[4], uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t utf8_open_tail(const char *s, size_t n)
{
    static const char fill[3] = {(char)0x80, (char)0x80, (char)0x80};
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char lead = (unsigned char)s[n - back];
        if ((lead & 0xC0) == 0x80) continue;
        size_t need = lead >= 0xF0 && lead <= 0xF4  ? 4
                      : lead >= 0xE0 && lead < 0xF0 ? 3
                      : lead >= 0xC2 && lead < 0xE0 ? 2
                                                    : 1;
        if (need <= back) return 0;
        char     whole[4];
        uint32_t cp;
        memcpy(whole, s + n - back, back);
        for (int low = 0; low < 2; low++) { /* 0x80 or 0xBF: one of them is allowed after E0, ED, F0, F4 */
            memcpy(whole + back, fill, need - back);
            if (low) whole[back] = (char)0xBF;
            if (utf8_decode(whole, need, &cp)) return back;
        }
        return 0;
    }
    return 0;
}
