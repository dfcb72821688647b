/* The same verdict as jansson 2.14, and for what both accept the same tree. The differences, all meant:
 *
 *   - a lone surrogate escape: jansson refuses it, we read U+FFFD. The text that jansson gets has
 *     \ufffd in its place, so all the rest is still compared.
 *   - a NUL byte right after a number, a word or the document: jansson loses it, we refuse it.
 *   - depth: our default is 64, jansson's is 2048. Here our limit is 2000, and deeper texts are not
 *     compared.
 *   - \u0000 in a string: jansson refuses it unless asked; it is asked. In a key both refuse it.
 *   - integers beyond int64: jansson refuses them, we read reals. Where jansson says so it is asked again, to read
 *     all integers as reals; what does not fit a double both refuse.
 *   - sizes: jansson has no limit on text or memory; the inputs here stay far below ours.
 *
 * Found the same: 1E400 is refused, 1e-400 is 0, -0 is the integer 0, -0.0 is a real
 * that keeps its sign. */
#include "json/json.h"

#include <stdio.h>
#include <stdlib.h>

/* Both name these; jansson's get other names here. */
#define JSON_NULL   JANSSON_NULL
#define JSON_REAL   JANSSON_REAL
#define JSON_STRING JANSSON_STRING
#define JSON_ARRAY  JANSSON_ARRAY
#define JSON_OBJECT JANSSON_OBJECT
#include <jansson.h>
#undef JSON_NULL
#undef JSON_REAL
#undef JSON_STRING
#undef JSON_ARRAY
#undef JSON_OBJECT

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_DEPTH = 2000 };

static bool as_reals; /* jansson reads integers as reals */

static bool same(const json_value *v, const json_t *j);

static bool same_members(const json_value *v, json_t *j)
{
    void *it = json_object_iter(j); /* in the order of the text, as ours */
    if (v->n != json_object_size(j)) return false;
    for (size_t i = 0; i < v->n; i++, it = json_object_iter_next(j, it)) {
        if (!str_is(v->member[i].key, json_object_iter_key(it))) return false;
        if (!same(&v->member[i].value, json_object_iter_value(it))) return false;
    }
    return true;
}

static bool same_items(const json_value *v, const json_t *j)
{
    if (v->n != json_array_size(j)) return false;
    for (size_t i = 0; i < v->n; i++)
        if (!same(&v->item[i], json_array_get(j, i))) return false;
    return true;
}

static bool same(const json_value *v, const json_t *j)
{
    double d = json_real_value(j);
    switch (json_typeof(j)) {
    case JANSSON_NULL: return v->kind == JSON_NULL;
    case JSON_TRUE: return v->kind == JSON_BOOL && v->b;
    case JSON_FALSE: return v->kind == JSON_BOOL && !v->b;
    case JSON_INTEGER: return v->kind == JSON_INT && v->i == json_integer_value(j);
    case JANSSON_REAL:
        return v->kind == JSON_REAL ? !memcmp(&v->d, &d, sizeof d) : as_reals && v->kind == JSON_INT && v->d == d;
    case JANSSON_STRING:
        return v->kind == JSON_STRING && str_eq(v->s, (str){json_string_value(j), json_string_length(j)});
    case JANSSON_ARRAY: return v->kind == JSON_ARRAY && same_items(v, j);
    case JANSSON_OBJECT: return v->kind == JSON_OBJECT && same_members(v, (json_t *)j);
    }
    return false;
}

/* The kind of \uXXXX at p: 'h' and 'l' for the halves of a pair, 'u' for others, 0 when it is none. */
static char escape_kind(const char *p, const char *end)
{
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return 0;
    for (int i = 2; i < 6; i++)
        if (!strchr("0123456789abcdefABCDEF", p[i]) || !p[i]) return 0;
    if (p[2] != 'd' && p[2] != 'D') return 'u';
    return strchr("89abAB", p[3]) ? 'h' : strchr("cdefCDEF", p[3]) ? 'l' : 'u';
}

static void replace_lone_surrogates(char *p, size_t n)
{
    for (const char *end = p + n; p < end;) {
        char kind = escape_kind(p, end);
        if (kind == 'h' && escape_kind(p + 6, end) == 'l') {
            p += 12;
        } else if (kind) {
            if (kind != 'u') memcpy(p + 2, "fffd", 4);
            p += 6;
        } else {
            p += *p == '\\' && end - p > 1 ? 2 : 1;
        }
    }
}

static bool listed(const err *e) { return strstr(e->text, "nested deeper than") || strstr(e->text, "found byte 0x00"); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    str               text   = {(const char *)data, size};
    json_limits       limits = {.max_depth = MAX_DEPTH};
    arena             a;
    const json_value *v;
    err               e = {0};
    json_error_t      why;

    arena_init(&a, (size_t)1 << 30);
    bool  ok   = json_parse(&v, &a, text, &limits, &e);
    char *copy = malloc(size + 1);
    if (size) memcpy(copy, data, size);
    replace_lone_surrogates(copy, size);
    size_t  flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *j     = json_loadb(copy, size, flags, &why);
    as_reals      = !j && strstr(why.text, "integer");
    if (as_reals) j = json_loadb(copy, size, flags | JSON_DECODE_INT_AS_REAL, &why);
    if (ok ? !j || !same(v, j) : j && !listed(&e)) {
        fprintf(stderr, "we: %s; jansson: %s\n", ok ? "accept" : e.text, j ? "accepts" : why.text);
        abort();
    }
    json_decref(j);
    free(copy);
    arena_deinit(&a);
    return 0;
}
