/* Builds nodes and rules for the readers. */
#include "base/mem.h"
#include "grammar/inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_CODE = 0x10FFFF };

static node nothing = {.kind = NODE_ALT};

void builder_init(builder *b, int max_depth, const atomic_bool *cancel)
{
    *b = (builder){.max_depth = max_depth, .work = GRAMMAR_MAX_WORK, .cancel = cancel};
    arena_init(&b->mem, GRAMMAR_MAX_MEMORY);
}

void builder_deinit(builder *b) { arena_deinit(&b->mem); }

bool builder_fail(builder *b, err_code code, const char *fmt, ...)
{
    char    text[sizeof b->why.text];
    va_list ap;
    if (b->failed) return false;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    b->failed = true;
    return err_set(&b->why, code, "%s", text);
}

bool builder_stop(builder *b)
{
    if (b->failed) return false;
    if (b->work >= 0) return builder_fail(b, ERR_UNAVAILABLE, "the compilation was cancelled");
    b->too_long = true;
    return builder_fail(b, ERR_TOO_LARGE, "compiling it takes more than %d steps", GRAMMAR_MAX_WORK);
}

bool builder_full(builder *b)
{
    if (!b->mem.over) return builder_fail(b, ERR_UNAVAILABLE, "no memory to compile it");
    return builder_fail(b, ERR_TOO_LARGE, "compiling it needs more than %zu MiB", GRAMMAR_MAX_MEMORY >> 20);
}

static void *alloc_items(builder *b, size_t n, size_t each)
{
    void *p = builder_spend(b, 2 + n * each / 256) ? arena_try(&b->mem, n ? n : 1, each) : NULL;
    if (!p) builder_full(b);
    return p;
}

static node *new_node(builder *b, node_kind kind)
{
    node *x = alloc_items(b, 1, sizeof *x);
    if (!x) return &nothing;
    x->kind = kind;
    return x;
}

node *node_text(builder *b, str s)
{
    if (b->n_bytes + s.n > GRAMMAR_MAX_TEXT) {
        builder_fail(b, ERR_TOO_LARGE, "the grammar has more than %d bytes of text", GRAMMAR_MAX_TEXT);
        return &nothing;
    }
    char *p = alloc_items(b, s.n, 1);
    node *x = new_node(b, NODE_TEXT);
    if (!p || x == &nothing) return &nothing;
    b->n_bytes += s.n;
    if (s.n) memcpy(p, s.s, s.n);
    x->text = (str){p, s.n};
    return x;
}

node *node_puts(builder *b, const char *s) { return node_text(b, str_of(s)); }

static int by_lo(const void *a, const void *b)
{
    uint32_t x = ((const char_range *)a)->lo, y = ((const char_range *)b)->lo;
    return x < y ? -1 : x > y;
}

/* Sorts and joins ranges into a new array with room for one more. */
static char_range *tidy(builder *b, const char_range *r, int32_t *n)
{
    char_range *p    = alloc_items(b, (size_t)*n + 1, sizeof *p);
    int32_t     kept = 0;
    if (!p) return NULL;
    if (*n) memcpy(p, r, (size_t)*n * sizeof *p);
    builder_spend_sort(b, (size_t)*n, 0);
    qsort(p, (size_t)*n, sizeof *p, by_lo);
    for (int32_t i = 0; i < *n; i++) {
        if (kept && p[i].lo <= p[kept - 1].hi + 1) {
            if (p[i].hi > p[kept - 1].hi) p[kept - 1].hi = p[i].hi;
        } else {
            p[kept++] = p[i];
        }
    }
    *n = kept;
    return p;
}

node *node_class(builder *b, const char_range *r, int32_t n)
{
    node       *x = new_node(b, NODE_CLASS);
    char_range *p = tidy(b, r, &n);
    if (!p || x == &nothing) return &nothing;
    x->range = p;
    x->n     = n;
    return x;
}

node *node_not(builder *b, const char_range *r, int32_t n)
{
    char_range *p  = tidy(b, r, &n);
    uint32_t    lo = 0;
    int32_t     m  = 0;
    if (!p) return &nothing;
    for (int32_t i = 0; i < n; i++) {
        char_range was = p[i];
        if (was.lo > lo) p[m++] = (char_range){lo, was.lo - 1};
        lo = was.hi + 1;
    }
    if (lo <= MAX_CODE) p[m++] = (char_range){lo, MAX_CODE};
    return node_class(b, p, m);
}

node *node_list(builder *b, node_kind kind, node *const *kid, int32_t n)
{
    if (n == 1) return kid[0];
    node  *x = new_node(b, kind);
    node **p = alloc_items(b, (size_t)n, sizeof *p);
    if (!p || x == &nothing) return &nothing;
    if (n) memcpy(p, kid, (size_t)n * sizeof *p);
    x->kid = p;
    x->n   = n;
    return x;
}

node *node_repeat(builder *b, node *body, int32_t min, int32_t max)
{
    if (min == 1 && max == 1) return body;
    node *x = new_node(b, NODE_REPEAT);
    if (x == &nothing) return x;
    x->body = body;
    x->min  = min;
    x->max  = max;
    return x;
}

node *node_lookahead(builder *b, node *body, bool negative)
{
    node *x = new_node(b, NODE_AHEAD);
    if (x == &nothing) return x;
    x->body = body;
    x->max  = negative ? 0 : 1;
    return x;
}

node *node_rule(builder *b, int32_t index)
{
    node *x = new_node(b, NODE_RULE);
    if (x != &nothing) x->index = index;
    return x;
}

node *node_marker(builder *b, str name)
{
    int32_t i = 0;
    while (i < b->n_markers && !str_eq(b->marker[i], name)) i++;
    if (i == GRAMMAR_MAX_MARKERS) {
        builder_fail(b, ERR_TOO_LARGE, "the grammar names more than %d tokens", GRAMMAR_MAX_MARKERS);
        return &nothing;
    }
    node *x = new_node(b, NODE_MARKER), *text = node_text(b, name);
    if (b->failed) return &nothing;
    if (i == b->n_markers) b->marker[b->n_markers++] = text->text;
    x->index = i;
    return x;
}

int32_t builder_rule(builder *b, str name)
{
    if (b->n_rules == GRAMMAR_MAX_RULES) {
        builder_fail(b, ERR_TOO_LARGE, "the grammar has more than %d rules", GRAMMAR_MAX_RULES);
        return 0;
    }
    if (b->n_rules == b->rule_cap) {
        int32_t cap = b->rule_cap ? b->rule_cap * 2 : 64;
        rule   *p   = alloc_items(b, (size_t)cap, sizeof *p);
        if (!p) return 0;
        if (b->n_rules) memcpy(p, b->rule, (size_t)b->n_rules * sizeof *p);
        b->rule     = p;
        b->rule_cap = cap;
    }
    b->rule[b->n_rules] = (rule){.name = name};
    return b->n_rules++;
}

void builder_define(builder *b, int32_t index, node *body)
{
    if (index < b->n_rules) b->rule[index].body = body;
}

void node_vec_put(builder *b, node_vec *v, node *x)
{
    if (v->n == v->cap) {
        int32_t cap = v->cap ? v->cap * 2 : 8;
        node  **p   = alloc_items(b, (size_t)cap, sizeof *p);
        if (!p) return;
        if (v->n) memcpy(p, v->p, (size_t)v->n * sizeof *p);
        v->p   = p;
        v->cap = cap;
    }
    v->p[v->n++] = x;
}
