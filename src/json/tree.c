/* Builds a tree from the reader's events.
 *
 * Values stay on a stack until their container closes; then they are copied into the arena as one array.
 * While a container is open, `n` of its own entry is the index of the container around it:
 *
 *      {"a": 1, "b": [true, nul            0 object n=-   1 a: 1   2 b: array n=0   3 true
 *
 * Each value is copied once, and nothing recurses. */
#include "json/internal.h"

#include "base/mem.h"

typedef struct {
    arena       *mem;
    json_member *entry;
    size_t       n, cap;
    size_t       inner; /* entry of the innermost open container */
    str          key;   /* key of the next value */
} builder;

enum { FIRST_CAP = 16 };

static bool grow_items(builder *b, err *e)
{
    size_t more = (b->cap ? b->cap : FIRST_CAP) * sizeof *b->entry;
    if (!json_budget_take(b->mem, more)) return json_no_memory(b->mem, more, e);
    json_member *entry = mem_try_resize(b->entry, b->cap * sizeof *entry + more);
    if (!entry) {
        json_budget_give(b->mem, more);
        return json_no_memory(b->mem, more, e);
    }
    b->entry = entry;
    b->cap += more / sizeof *entry;
    return true;
}

static bool push(builder *b, const json_event *ev, err *e)
{
    if (b->n == b->cap && !grow_items(b, e)) return false;
    json_value v = {.kind = ev->kind, .b = ev->b, .i = ev->i, .d = ev->d, .s = ev->s};
    if (ev->kind == JSON_ARRAY || ev->kind == JSON_OBJECT) {
        v.n      = b->inner;
        b->inner = b->n;
    }
    b->entry[b->n++] = (json_member){b->key, v};
    b->key           = (str){0};
    return true;
}

static bool close_container(builder *b, err *e)
{
    json_value        *v     = &b->entry[b->inner].value;
    const json_member *child = &b->entry[b->inner + 1];
    size_t             n     = b->n - b->inner - 1;
    size_t             each  = v->kind == JSON_OBJECT ? sizeof(json_member) : sizeof(json_value);
    void              *copy  = n ? arena_try(b->mem, n, each) : NULL;
    if (n && !copy) return json_no_memory(b->mem, n * each, e);
    b->n     = b->inner + 1;
    b->inner = v->n;
    v->n     = n;
    if (v->kind == JSON_OBJECT) {
        v->member = copy;
        if (n) memcpy(v->member, child, n * each);
    } else {
        v->item = copy;
        for (size_t i = 0; i < n; i++) v->item[i] = child[i].value;
    }
    return true;
}

static bool add_value(builder *b, const json_event *ev, err *e)
{
    switch (ev->kind) {
    case JSON_KEY: b->key = ev->s; return true;
    case JSON_ARRAY_END:
    case JSON_OBJECT_END: return close_container(b, e);
    default: return push(b, ev, e);
    }
}

static bool build(json_value **out, builder *b, json_reader *r, err *e)
{
    json_event ev;
    for (;;) {
        if (!json_next(r, &ev, e)) return false;
        if (ev.kind == JSON_END) break;
        if (!add_value(b, &ev, e)) return false;
    }
    json_value *root = arena_try(b->mem, 1, sizeof *root);
    if (!root) return json_no_memory(b->mem, sizeof *root, e);
    *root = b->entry[0].value;
    *out  = root;
    return true;
}

bool json_parse(const json_value **out, arena *a, str text, const json_limits *limits, err *e)
{
    arena_mark   mark = arena_save(a);
    builder      b    = {.mem = a};
    json_value  *root = NULL;
    json_reader *r;

    *out = NULL;
    if (!json_reader_open_in(&r, a, text, limits, e)) return false;
    if (!build(&root, &b, r, e)) arena_restore(a, mark);
    mem_free(b.entry);
    json_budget_give(a, b.cap * sizeof *b.entry);
    json_reader_close(r);
    *out = root;
    return root != NULL;
}

const json_value *json_get(const json_value *v, const char *key)
{
    if (!v || v->kind != JSON_OBJECT) return NULL;
    str k = str_of(key);
    for (size_t i = 0; i < v->n; i++)
        if (str_eq(v->member[i].key, k)) return &v->member[i].value;
    return NULL;
}

const json_value *json_find(const json_value *v, const char *key)
{
    const json_value *m = json_get(v, key);
    return m && m->kind != JSON_NULL ? m : NULL;
}
