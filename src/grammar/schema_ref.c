/* References inside the document: JSON pointers, $anchor, and $id, relative or absolute.
 *
 * The first reference walks the document once and lists its resources (the root, and every schema with an $id), its
 * anchors, and for each reference the resource that it stands in. Nothing outside of the document is ever read. */
#include "base/mem.h"
#include "grammar/schema.h"

#include <stdlib.h>

typedef struct {
    str               uri; /* without a fragment; empty: the root without an $id */
    const json_value *root;
} resource;

typedef struct {
    int32_t           in; /* resource */
    str               name;
    bool              dynamic;
    const json_value *v;
} anchor;

typedef struct {
    const json_value *ref; /* NULL: a free slot */
    int32_t           in;
} standing;

struct reference {
    resource *resource;
    anchor   *anchor;
    standing *standing; /* by the hash of the reference */
    int32_t   n_resources, resource_cap, n_anchors, anchor_cap;
    uint32_t  n_standing, standing_cap;
};

/* --- URIs -------------------------------------------------------------------------------------- */
static str cut(str s, size_t from, size_t to) { return (str){s.s + from, to - from}; }

/* Returns the length of "scheme:"; 0: there is none. */
static size_t scheme_length(str s)
{
    for (size_t i = 0; i < s.n; i++) {
        char c = s.s[i], low = (char)(c | 32);
        if (c == ':') return i ? i + 1 : 0;
        if (!(low >= 'a' && low <= 'z') && !(i && ((c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.')))
            return 0;
    }
    return 0;
}

/* Returns where the path of an absolute URI begins. */
static size_t path_start(str uri)
{
    size_t at = scheme_length(uri);
    if (at + 2 > uri.n || uri.s[at] != '/' || uri.s[at + 1] != '/') return at;
    for (at += 2; at < uri.n && uri.s[at] != '/' && uri.s[at] != '?'; at++) {}
    return at;
}

/* Removes "." and ".." from the path of out, which begins at `from`. */
static size_t remove_dots(char *out, size_t from, size_t n)
{
    size_t to = from;
    for (size_t i = from; i < n;) {
        size_t end = i;
        while (end < n && out[end] != '/') end++;
        size_t len = end - i;
        bool   dot = len == 1 && out[i] == '.', up = len == 2 && out[i] == '.' && out[i + 1] == '.';
        size_t next = end < n ? end + 1 : end;
        if (up) {
            if (to > from && out[to - 1] == '/') to--;
            while (to > from && out[to - 1] != '/') to--;
        } else if (!dot) {
            memmove(out + to, out + i, next - i);
            to += next - i;
        }
        i = next;
    }
    return to;
}

/* Resolves a reference without a fragment against a base. */
static str resolve(maker *m, str base, str ref)
{
    if (!ref.n) return base;
    if (scheme_length(ref)) return ref;
    size_t keep = 0, start = path_start(base);
    if (ref.n >= 2 && ref.s[0] == '/' && ref.s[1] == '/')
        keep = start = scheme_length(base);
    else if (ref.s[0] == '/')
        keep = start;
    else
        for (keep = base.n; keep > start && base.s[keep - 1] != '/'; keep--) {}
    char *out = schema_take(m, keep + ref.n + 1, 1);
    if (!out) return ref;
    if (keep) memcpy(out, base.s, keep);
    memcpy(out + keep, ref.s, ref.n);
    return (str){out, remove_dots(out, start, keep + ref.n)};
}

static size_t fragment_at(str s)
{
    size_t n = 0;
    while (n < s.n && s.s[n] != '#') n++;
    return n;
}

/* --- the index --------------------------------------------------------------------------------- */
static void *grown(maker *m, void *list, int32_t n, int32_t *cap, size_t each)
{
    if (n < *cap) return list;
    void *more = schema_take(m, (size_t)*cap * 2 + 8, each);
    if (more && n) memcpy(more, list, (size_t)n * each);
    if (more) *cap = *cap * 2 + 8;
    return more;
}

static int32_t add_resource(maker *m, str uri, const json_value *root)
{
    reference *x    = m->refs;
    resource  *list = grown(m, x->resource, x->n_resources, &x->resource_cap, sizeof *list);
    if (!list) return 0;
    x->resource                   = list;
    x->resource[x->n_resources++] = (resource){uri, root};
    return x->n_resources - 1;
}

static void add_anchor(maker *m, int32_t in, str name, bool dynamic, const json_value *v)
{
    reference *x    = m->refs;
    anchor    *list = grown(m, x->anchor, x->n_anchors, &x->anchor_cap, sizeof *list);
    if (!list) return;
    x->anchor                 = list;
    x->anchor[x->n_anchors++] = (anchor){in, name, dynamic, v};
}

static standing *standing_slot(standing *all, uint32_t cap, const json_value *ref)
{
    uint32_t at = (uint32_t)hash_mix((uintptr_t)ref, 0);
    while (all[at &= cap - 1].ref && all[at].ref != ref) at++;
    return &all[at];
}

static void note_standing(maker *m, const json_value *ref, int32_t in)
{
    reference *x = m->refs;
    if (2 * x->n_standing >= x->standing_cap) {
        uint32_t  cap  = x->standing_cap ? x->standing_cap * 2 : 64;
        standing *more = schema_take(m, cap, sizeof *more);
        if (!more) return;
        for (uint32_t i = 0; i < x->standing_cap; i++)
            if (x->standing[i].ref) *standing_slot(more, cap, x->standing[i].ref) = x->standing[i];
        x->standing     = more;
        x->standing_cap = cap;
    }
    *standing_slot(x->standing, x->standing_cap, ref) = (standing){ref, in};
    x->n_standing++;
}

static bool is_text(const json_value *v) { return v && v->kind == JSON_STRING; }

/* Reads the $id of a schema and returns its resource. An $id of only a fragment is an anchor, as old drafts have it. */
static int32_t read_id(maker *m, const json_value *v, int32_t in)
{
    const json_value *id = json_get(v, "$id");
    if (!is_text(id)) return in;
    size_t n = fragment_at(id->s);
    if (!n && id->s.n > 1) add_anchor(m, in, cut(id->s, 1, id->s.n), false, v);
    if (!n) return in;
    return add_resource(m, resolve(m, m->refs->resource[in].uri, cut(id->s, 0, n)), v);
}

bool is_old_draft(const maker *m)
{
    const json_value *draft = json_get(m->root, "$schema");
    return is_text(draft) && memmem(draft->s.s, draft->s.n, "draft-0", 7);
}

/* Returns the resource of a $ref next to an $id: that of the $id since draft 2019-09, the enclosing one before. Returns
 * -1 without a $schema to decide. */
static int32_t beside_id(maker *m, int32_t outer, int32_t own)
{
    if (outer == own) return own;
    if (!is_text(json_get(m->root, "$schema"))) return -1;
    return is_old_draft(m) ? outer : own;
}

/* Walks all that may be a schema; nested values are bounded by the reader. */
static void walk(maker *m, const json_value *v, int32_t in)
{
    if (!builder_spend(&m->b, 4 + 4 * v->n)) return;
    if (v->kind == JSON_ARRAY)
        for (size_t i = 0; i < v->n; i++) walk(m, &v->item[i], in);
    if (v->kind != JSON_OBJECT) return;
    int32_t outer = in;
    if (v != m->root) in = read_id(m, v, in);
    const json_value *name = json_get(v, "$anchor"), *dynamic = json_get(v, "$dynamicAnchor");
    if (is_text(name)) add_anchor(m, in, name->s, false, v);
    if (is_text(dynamic)) add_anchor(m, in, dynamic->s, true, v);
    for (size_t i = 0; i < v->n; i++) {
        str key = v->member[i].key;
        if (str_is(key, "enum") || str_is(key, "const") || str_is(key, "default") || str_is(key, "examples")) continue;
        if (is_text(&v->member[i].value) && (str_is(key, "$ref") || str_is(key, "$dynamicRef")))
            note_standing(m, &v->member[i].value, beside_id(m, outer, in));
        walk(m, &v->member[i].value, in);
    }
}

static bool need_index(maker *m)
{
    if (m->refs) return true;
    m->refs = schema_take(m, 1, sizeof *m->refs);
    if (!m->refs) return false;
    const json_value *id = json_get(m->root, "$id");
    add_resource(m, is_text(id) ? cut(id->s, 0, fragment_at(id->s)) : (str){"", 0}, m->root);
    if (!m->b.failed) walk(m, m->root, 0);
    return !m->b.failed;
}

/* --- finding ----------------------------------------------------------------------------------- */
/* Returns the next part of a pointer, with ~0 ~1 and %HH undone. */
static str pointer_part(maker *m, str *rest)
{
    size_t n = 0, k = 0;
    while (n < rest->n && rest->s[n] != '/') n++;
    char *out = builder_spend(&m->b, 2 + n / 4) ? arena_try(&m->b.mem, n + 1, 1) : NULL;
    for (size_t i = 0; out && i < n; i++) {
        char c = rest->s[i];
        if (c == '~' && i + 1 < n && (rest->s[i + 1] == '0' || rest->s[i + 1] == '1')) {
            c = rest->s[++i] == '0' ? '~' : '/';
        } else if (c == '%' && i + 2 < n) {
            char hex[3] = {rest->s[i + 1], rest->s[i + 2], 0}, *end;
            long x      = strtol(hex, &end, 16);
            bool ok     = end == hex + 2 && x > 0;
            c           = ok ? (char)x : c;
            i += ok ? 2 : 0;
        }
        out[k++] = c;
    }
    *rest = n < rest->n ? (str){rest->s + n + 1, rest->n - n - 1} : (str){NULL, 0};
    return (str){out, out ? k : 0};
}

static const json_value *at_pointer(maker *m, const json_value *v, str pointer)
{
    str rest = cut(pointer, 1, pointer.n);
    while (v && rest.s) v = find_member(m, v, pointer_part(m, &rest));
    return v;
}

/* Returns the resource with this address; -1: it is not in the document. */
static int32_t find_resource(maker *m, str uri)
{
    const reference *x = m->refs;
    builder_spend(&m->b, (size_t)x->n_resources);
    for (int32_t i = 0; i < x->n_resources; i++)
        if (str_eq(x->resource[i].uri, uri)) return i;
    return -1;
}

/* Returns the schema with this anchor; NULL: there is none. *several: it is a $dynamicAnchor, and there are others
 * of the same name, so it may stand for any of them. */
static const json_value *find_anchor(maker *m, int32_t in, str name, bool *several)
{
    const reference *x     = m->refs;
    const anchor    *found = NULL;
    builder_spend(&m->b, (size_t)x->n_anchors);
    for (int32_t i = 0; i < x->n_anchors && !found; i++)
        if (x->anchor[i].in == in && str_eq(x->anchor[i].name, name)) found = &x->anchor[i];
    for (int32_t i = 0; found && found->dynamic && i < x->n_anchors; i++)
        *several = *several || (x->anchor[i].dynamic && x->anchor[i].v != found->v && str_eq(x->anchor[i].name, name));
    return found ? found->v : NULL;
}

bool find_ref(maker *m, const json_value *ref, const path *at, bool dynamic, spot *out)
{
    const char *key     = dynamic ? "$dynamicRef" : "$ref";
    bool        several = false;
    if (ref->kind != JSON_STRING) return refuse(m, at, key, "is not a string");
    if (!need_index(m)) return false;
    const reference *x    = m->refs;
    const standing  *slot = x->standing_cap ? standing_slot(x->standing, x->standing_cap, ref) : NULL;
    int32_t          in   = slot && slot->ref ? slot->in : 0;
    size_t           n    = fragment_at(ref->s);
    if (in < 0 && !scheme_length(ref->s))
        return refuse(m, at, key, "next to $id refers to different schemas in old and new drafts: add $schema");
    if (n) in = find_resource(m, resolve(m, x->resource[in < 0 ? 0 : in].uri, cut(ref->s, 0, n)));
    if (in < 0) return refuse(m, at, key, "'%.*s' is not in this document", STR_ARG(ref->s));
    str               rest = n < ref->s.n ? cut(ref->s, n + 1, ref->s.n) : (str){"", 0};
    const json_value *v    = x->resource[in].root;
    if (rest.n && rest.s[0] == '/')
        v = at_pointer(m, v, rest);
    else if (rest.n)
        v = find_anchor(m, in, rest, &several);
    if (!v) return refuse(m, at, key, "there is no '%.*s'", STR_ARG(ref->s));
    if (dynamic && several)
        return refuse(m, at, key, "'%.*s' cannot be enforced where there are several $dynamicAnchor of this name",
                      STR_ARG(ref->s));
    *out = (spot){v, v == m->root ? m->root_at : path_down(m, NULL, ref->s)};
    return !m->b.failed;
}
