#include "base/arena.h"

#include "base/inside.h"
#include "base/mem.h"

#include <assert.h>
#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>

enum { CHUNK_BYTES = 64 * 1024, ALIGN = 16 };

struct arena_chunk {
    arena_chunk *below;
    size_t       at, cap; /* bytes used in data[], size of data[] */
    alignas(ALIGN) char data[];
};

void arena_init(arena *a, size_t limit) { *a = (arena){.limit = limit}; }

void arena_deinit(arena *a)
{
    while (a->top) {
        arena_chunk *c = a->top;
        a->top         = c->below;
        mem_free(c);
    }
    a->used = 0;
}

static bool push_chunk(arena *a, size_t bytes)
{
    size_t cap = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES, total;
    if (!size_add(&total, cap, sizeof(arena_chunk))) return false;
    arena_chunk *c = mem_try(total);
    if (!c) return false;
    c->cap   = cap;
    c->below = a->top;
    a->top   = c;
    return true;
}

void *arena_try(arena *a, size_t n, size_t each)
{
    size_t bytes;
    bool   fits = size_mul(&bytes, n, each) && bytes <= SIZE_MAX / 2;
    bytes       = fits ? (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1) : 0;
    if (!fits || bytes > a->limit - a->used) {
        a->over = true;
        return NULL;
    }
    if (!a->top || bytes > a->top->cap - a->top->at)
        if (!push_chunk(a, bytes)) return NULL;
    void *p = a->top->data + a->top->at;
    a->top->at += bytes;
    a->used += bytes;
    return p;
}

void *arena_alloc(arena *a, size_t bytes)
{
    size_t whole = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    assert(whole <= a->limit - a->used && "the limit of the arena is below what its owner needs");
    if (!a->top || bytes + ALIGN > a->top->cap - a->top->at) { /* sizes chosen by the program do not fail */
        size_t       cap = bytes + ALIGN > CHUNK_BYTES ? bytes + ALIGN : CHUNK_BYTES;
        arena_chunk *c   = xalloc(sizeof(arena_chunk) + cap);
        c->cap           = cap;
        c->below         = a->top;
        a->top           = c;
    }
    return arena_try(a, bytes, 1);
}

char *arena_str(arena *a, str s)
{
    size_t n;
    char  *p = size_add(&n, s.n, 1) ? arena_try(a, n, 1) : NULL;
    if (p && s.n) memcpy(p, s.s, s.n);
    return p;
}

arena_mark arena_save(const arena *a) { return (arena_mark){a->top, a->top ? a->top->at : 0, a->used}; }

void arena_restore(arena *a, arena_mark m)
{
    while (a->top != m.top) {
        arena_chunk *c = a->top;
        assert(c && "restore to a mark of another arena");
        a->top = c->below;
        mem_free(c);
    }
    if (a->top) {
        memset(a->top->data + m.at, 0, a->top->at - m.at);
        a->top->at = m.at;
    }
    a->used = m.used;
}
