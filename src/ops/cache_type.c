#include "ops/cache_type.h"

#include <stdio.h>
#include <string.h>

static const cache_layout LAYOUTS[CACHE_N_TYPES] = {
    [CACHE_F32] = {.name = "f32", .bits = 32},
    [CACHE_F16] = {.name = "f16", .bits = 16},
};

const cache_layout *cache_layout_of(cache_type t) { return &LAYOUTS[t]; }

size_t cache_code_bytes(const cache_layout *l, int head_dim) { return (size_t)head_dim * (size_t)l->bits / 8; }

/* Returns the bytes of the scales of one position and head. */
static size_t scale_bytes(const cache_layout *l, int head_dim)
{
    if (!l->group) return 0;
    return sizeof(uint16_t) * (size_t)(head_dim > l->group ? head_dim / l->group : 1);
}

size_t cache_head_bytes(const cache_layout *l, int head_dim)
{
    return KV_PAGE * (cache_code_bytes(l, head_dim) + scale_bytes(l, head_dim));
}

static bool find_type(cache_type *out, str name)
{
    for (int i = 0; i < CACHE_N_TYPES; i++)
        if (str_is(name, LAYOUTS[i].name)) {
            *out = (cache_type)i;
            return true;
        }
    return false;
}

static bool unknown_types(str text, err *e)
{
    char names[64] = "";
    for (int i = 0; i < CACHE_N_TYPES; i++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", !i ? "" : i + 1 < CACHE_N_TYPES ? ", " : " or ", LAYOUTS[i].name);
    }
    return err_set(e, ERR_INPUT, "a K/V type must be %s, or two of them as K/V, got '%.*s'", names, STR_ARG(text));
}

bool cache_types_parse(cache_types *out, str text, err *e)
{
    const char *slash = text.n ? memchr(text.s, '/', text.n) : NULL;
    str         k     = {text.s, slash ? (size_t)(slash - text.s) : text.n};
    str         v     = slash ? (str){slash + 1, text.n - k.n - 1} : k;
    cache_types t;
    if (!find_type(&t.k, k) || !find_type(&t.v, v)) return unknown_types(text, e);
    *out = t;
    return true;
}

const char *cache_types_text(cache_types t, char out[CACHE_TYPES_TEXT])
{
    if (t.k == t.v)
        snprintf(out, CACHE_TYPES_TEXT, "%s", LAYOUTS[t.k].name);
    else
        snprintf(out, CACHE_TYPES_TEXT, "%s/%s", LAYOUTS[t.k].name, LAYOUTS[t.v].name);
    return out;
}
