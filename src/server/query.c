#include "server/query.h"

static int hex_digit(char c)
{
    char l = (char)(c | 0x20);
    return c >= '0' && c <= '9' ? c - '0' : l >= 'a' && l <= 'f' ? l - 'a' + 10 : -1;
}

/* Decodes one character of s at *at and moves *at after it. Returns -1 when it is malformed. */
static int decode_one(str s, size_t *at)
{
    char c = s.s[(*at)++];
    if (c == '+') return ' ';
    if (c != '%') return (unsigned char)c;
    if (s.n - *at < 2) return -1;
    int high = hex_digit(s.s[*at]), low = hex_digit(s.s[*at + 1]);
    *at += 2;
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static bool decode(str s, char *out, size_t cap)
{
    size_t n = 0;
    for (size_t at = 0; at < s.n;) {
        int c = decode_one(s, &at);
        if (c <= 0 || n + 1 >= cap) return false;
        out[n++] = (char)c;
    }
    out[n] = 0;
    return n > 0;
}

static bool find_parameter(str query, const char *name, str *out)
{
    size_t n = strlen(name);
    for (size_t at = 0; at < query.n;) {
        const char *end  = memchr(query.s + at, '&', query.n - at);
        str         part = {query.s + at, end ? (size_t)(end - query.s) - at : query.n - at};
        at += part.n + 1;
        if (part.n <= n || memcmp(part.s, name, n) != 0 || part.s[n] != '=') continue;
        *out = (str){part.s + n + 1, part.n - n - 1};
        return true;
    }
    return false;
}

bool query_text(str query, const char *name, char *out, size_t cap, server_error *why)
{
    str value;
    out[0] = 0;
    if (!find_parameter(query, name, &value) || decode(value, out, cap)) return true;
    return error_set(why, 400, name, NULL, "'%s' must be a text of 1 to %zu bytes.", name, cap - 1);
}

bool query_int(str query, const char *name, int64_t min, int64_t max, int64_t *out, server_error *why)
{
    str     value;
    int64_t x;
    char    text[32];
    if (!find_parameter(query, name, &value)) return true;
    if (!decode(value, text, sizeof text) || !str_to_i64(str_of(text), &x) || x < min || x > max)
        return error_set(why, 400, name, NULL, "'%s' must be a whole number from %lld to %lld.", name, (long long)min,
                         (long long)max);
    *out = x;
    return true;
}
