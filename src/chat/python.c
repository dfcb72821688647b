#include "chat/python.h"

#include <stdlib.h>

/* A real as Python writes it: 1e-05 where JSON has 0.00001, 1e+16 where it has 1e16. */
static void put_real(buf *b, double d)
{
    char        digit[32], text[64] = "0";
    int         n = 0, point = 0, exp = 0;
    bool        fraction = false;
    buf         raw;
    json_writer w;
    buf_init(&raw, 64);
    json_writer_init(&w, &raw);
    json_put_real(&w, d);
    if (raw.failed) b->failed = true;
    for (size_t i = 0; i < raw.n && i < 31; i++) {
        char c = raw.p[i];
        if (c == 'e') {
            exp = atoi(memcpy(text, raw.p + i + 1, raw.n - i - 1));
            break;
        }
        fraction |= c == '.';
        if (c < '0' || c > '9') continue;
        point += !fraction && (n || c != '0');
        point -= fraction && !n && c == '0';
        if (n || c != '0') digit[n++] = c;
    }
    point += exp; /* the value is 0.DIGITS times 10^point */
    if (point > -4 && point <= 16) {
        buf_put(b, raw.p, raw.n);
    } else {
        while (n > 1 && digit[n - 1] == '0') n--;
        buf_printf(b, "%s%c%s%.*se%c%02d", d < 0 ? "-" : "", digit[0], n > 1 ? "." : "", n - 1, digit + 1,
                   point > 0 ? '+' : '-', abs(point - 1));
    }
    buf_deinit(&raw);
}

static void put_quoted(buf *b, str s)
{
    char quote = s.n && memchr(s.s, '\'', s.n) && !memchr(s.s, '"', s.n) ? '"' : '\'';
    buf_putc(b, quote);
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.s[i];
        if (c == (unsigned char)quote || c == '\\')
            buf_printf(b, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            buf_printf(b, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c < 0x20 || c == 0x7F)
            buf_printf(b, "\\x%02x", c);
        else
            buf_putc(b, (char)c);
    }
    buf_putc(b, quote);
}

/* Constants and the form of strings. */
typedef struct {
    const char *yes, *no, *none;
    void (*put_string)(buf *b, str s);
} python_style;

static bool put_any(buf *b, const json_value *v, const python_style *style, int depth);

static bool put_array(buf *b, const json_value *v, const python_style *style, int depth)
{
    buf_putc(b, '[');
    for (size_t i = 0; i < v->n; i++) {
        if (i) buf_puts(b, ", ");
        if (!put_any(b, &v->item[i], style, depth + 1)) return false;
    }
    buf_putc(b, ']');
    return true;
}

static bool put_object(buf *b, const json_value *v, const python_style *style, int depth)
{
    buf_putc(b, '{');
    for (size_t i = 0; i < v->n; i++) {
        if (i) buf_puts(b, ", ");
        style->put_string(b, v->member[i].key);
        buf_puts(b, ": ");
        if (!put_any(b, &v->member[i].value, style, depth + 1)) return false;
    }
    buf_putc(b, '}');
    return true;
}

static bool put_any(buf *b, const json_value *v, const python_style *style, int depth)
{
    if (depth >= PYTHON_MAX_DEPTH) return false;
    switch (v->kind) {
    case JSON_STRING: style->put_string(b, v->s); return true;
    case JSON_BOOL: buf_puts(b, v->b ? style->yes : style->no); return true;
    case JSON_INT: buf_printf(b, "%lld", (long long)v->i); return true;
    case JSON_REAL: put_real(b, v->d); return true;
    case JSON_ARRAY: return put_array(b, v, style, depth);
    case JSON_OBJECT: return put_object(b, v, style, depth);
    default: buf_puts(b, style->none); return true;
    }
}

static void put_json_string(buf *b, str s)
{
    static const char name[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    buf_putc(b, '"');
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.s[i];
        if (c == '"' || c == '\\')
            buf_printf(b, "\\%c", c);
        else if (c < sizeof name && name[c])
            buf_printf(b, "\\%c", name[c]);
        else if (c < 0x20)
            buf_printf(b, "\\u%04x", c);
        else
            buf_putc(b, (char)c);
    }
    buf_putc(b, '"');
}

bool python_put_text(buf *b, const json_value *v)
{
    static const python_style style = {"True", "False", "None", put_quoted};
    if (v->kind != JSON_STRING) return put_any(b, v, &style, 0);
    buf_put(b, v->s.s, v->s.n);
    return true;
}

bool python_put_json(buf *b, const json_value *v)
{
    static const python_style style = {"true", "false", "null", put_json_string};
    return put_any(b, v, &style, 0);
}
