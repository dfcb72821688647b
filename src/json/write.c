/* The writer. One bit per open level records whether a comma is due. */
#include "json/internal.h"

#include <assert.h>
#include <math.h>

static uint64_t level_bit(const json_writer *w) { return w->depth ? (uint64_t)1 << (w->depth - 1) : 0; }

void json_writer_init(json_writer *w, buf *b) { *w = (json_writer){.b = b}; }

/* Writes the comma before a value where one is due. */
static void begin_value(json_writer *w)
{
    uint64_t bit = level_bit(w);
    assert(!(w->is_object & bit) == !(w->after_key & bit) && "in an object a value follows a key");
    if (w->has_item & bit & ~w->after_key) buf_putc(w->b, ',');
    w->has_item |= bit;
    w->after_key &= ~bit;
}

static void begin_level(json_writer *w, bool is_object)
{
    begin_value(w);
    assert(w->depth < JSON_WRITER_DEPTH);
    w->depth++;
    uint64_t bit = level_bit(w);
    w->is_object = is_object ? w->is_object | bit : w->is_object & ~bit;
    w->has_item &= ~bit;
    buf_putc(w->b, is_object ? '{' : '[');
}

void json_begin_object(json_writer *w) { begin_level(w, true); }
void json_begin_array(json_writer *w) { begin_level(w, false); }

void json_end(json_writer *w)
{
    uint64_t bit = level_bit(w);
    assert(w->depth > 0 && !(w->after_key & bit));
    buf_putc(w->b, w->is_object & bit ? '}' : ']');
    w->depth--;
}

void json_key(json_writer *w, const char *key) { json_key_str(w, str_of(key)); }

void json_key_str(json_writer *w, str key)
{
    uint64_t bit = level_bit(w);
    assert((w->is_object & bit) && !(w->after_key & bit));
    if (w->has_item & bit) buf_putc(w->b, ',');
    w->has_item |= bit;
    w->after_key |= bit;
    buf_put_json_string(w->b, key);
    buf_putc(w->b, ':');
}

void json_put_str(json_writer *w, str s)
{
    begin_value(w);
    buf_put_json_string(w->b, s);
}

void json_put_int(json_writer *w, int64_t i)
{
    begin_value(w);
    buf_printf(w->b, "%lld", (long long)i);
}

void json_put_real(json_writer *w, double d)
{
    char text[JSON_REAL_CHARS];
    if (!isfinite(d)) {
        json_put_null(w);
        return;
    }
    begin_value(w);
    buf_put(w->b, text, json_real_print(text, d));
}

void json_put_bool(json_writer *w, bool b)
{
    begin_value(w);
    buf_puts(w->b, b ? "true" : "false");
}

void json_put_null(json_writer *w)
{
    begin_value(w);
    buf_puts(w->b, "null");
}

void json_member_int(json_writer *w, const char *key, int64_t i)
{
    json_key(w, key);
    json_put_int(w, i);
}

void json_member_real(json_writer *w, const char *key, double d)
{
    json_key(w, key);
    json_put_real(w, d);
}

void json_member_bool(json_writer *w, const char *key, bool b)
{
    json_key(w, key);
    json_put_bool(w, b);
}

void json_member_str(json_writer *w, const char *key, const char *s)
{
    json_key(w, key);
    if (s)
        json_put_str(w, str_of(s));
    else
        json_put_null(w);
}

static void put_container(json_writer *w, const json_value *v)
{
    bool is_object = v->kind == JSON_OBJECT;
    if (w->depth == JSON_WRITER_DEPTH) {
        w->b->failed = true;
        json_put_null(w);
        return;
    }
    begin_level(w, is_object);
    for (size_t i = 0; i < v->n; i++) {
        if (is_object) json_key_str(w, v->member[i].key);
        json_put_value(w, is_object ? &v->member[i].value : &v->item[i]);
    }
    json_end(w);
}

void json_put_value(json_writer *w, const json_value *v)
{
    switch (v->kind) {
    case JSON_NULL: json_put_null(w); break;
    case JSON_BOOL: json_put_bool(w, v->b); break;
    case JSON_INT: json_put_int(w, v->i); break;
    case JSON_REAL: json_put_real(w, v->d); break;
    case JSON_STRING: json_put_str(w, v->s); break;
    case JSON_ARRAY:
    case JSON_OBJECT: put_container(w, v); break;
    default: assert(!"only values are in a tree");
    }
}
