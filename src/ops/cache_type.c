#include "ops/cache_type.h"

#include <stdio.h>
#include <string.h>

static const cache_layout LAYOUTS[CACHE_N_TYPES] = {
    [CACHE_F32]  = {.name = "f32", .bits = 32},
    [CACHE_F16]  = {.name = "f16", .bits = 16},
    [CACHE_Q8_0] = {.name = "q8_0", .bits = 8, .group = 32},
    [CACHE_Q4_0] = {.name = "q4_0", .bits = 4, .group = 32},
    [CACHE_TQ3]  = {.name = "tq3", .bits = 3, .group = 128},
};

const cache_layout *cache_layout_of(cache_type t) { return &LAYOUTS[t]; }

size_t cache_code_bytes(const cache_layout *l, int head_dim) { return (size_t)head_dim * (size_t)l->bits / 8; }

/* Returns the bytes of the scales of one position and head. */
size_t cache_scale_bytes(const cache_layout *l, int head_dim)
{
    if (!l->group) return 0;
    return sizeof(uint16_t) * (size_t)(head_dim > l->group ? head_dim / l->group : 1);
}

size_t cache_head_bytes(const cache_layout *l, int head_dim)
{
    return KV_PAGE * (cache_code_bytes(l, head_dim) + cache_scale_bytes(l, head_dim));
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
    return err_set(e, ERR_INPUT, "a K/V type must be %s, or two of them as k=TYPE,v=TYPE, got '%.*s'", names,
                   STR_ARG(text));
}

/* Splits text at the first `at`. Without one, *tail is empty and the result false. */
static bool split(str text, char at, str *head, str *tail)
{
    const char *found = text.n ? memchr(text.s, at, text.n) : NULL;
    *head             = (str){text.s, found ? (size_t)(found - text.s) : text.n};
    *tail             = found ? (str){found + 1, text.n - head->n - 1} : (str){text.s + text.n, 0};
    return found;
}

/* Reads "k=TYPE" or "v=TYPE". *named has a bit for each part that was read; none may come twice. */
static bool read_part(cache_types *t, str part, int *named)
{
    str  name, type;
    bool is_v = str_starts(part, "v=");
    if (!split(part, '=', &name, &type) || !(is_v || str_is(name, "k")) || *named & (1 << is_v)) return false;
    *named |= 1 << is_v;
    return find_type(is_v ? &t->v : &t->k, type);
}

static bool read_types(cache_types *t, str text)
{
    str  head, tail;
    int  named = 0;
    bool two   = split(text, ',', &head, &tail);
    if (str_starts(text, "k=") || str_starts(text, "v="))
        return read_part(t, head, &named) && (!two || read_part(t, tail, &named));
    two = split(text, '/', &head, &tail);
    return find_type(&t->k, head) && find_type(&t->v, two ? tail : head);
}

bool cache_types_parse(cache_types *out, str text, err *e)
{
    cache_types t = cache_types_both(CACHE_F16);
    if (!read_types(&t, text)) return unknown_types(text, e);
    *out = t;
    return true;
}

cache_types cache_types_at_least(cache_types t, cache_type limit)
{
    return (cache_types){t.k < limit ? t.k : limit, t.v < limit ? t.v : limit};
}

bool cache_types_check(cache_types t, int head_dim, err *e)
{
    cache_type coarse = t.k > t.v ? t.k : t.v;
    if (!cache_has_scales(coarse) || head_dim == 64 || (head_dim % 128 == 0 && head_dim <= CACHE_MAX_HEAD)) return true;
    return err_set(e, ERR_INPUT, "K/V of type %s needs heads of 64 or a multiple of 128, this model has heads of %d",
                   LAYOUTS[coarse].name, head_dim);
}

const char *cache_types_text(cache_types t, char out[CACHE_TYPES_TEXT])
{
    if (t.k == t.v)
        snprintf(out, CACHE_TYPES_TEXT, "%s", LAYOUTS[t.k].name);
    else
        snprintf(out, CACHE_TYPES_TEXT, "%s/%s", LAYOUTS[t.k].name, LAYOUTS[t.v].name);
    return out;
}
