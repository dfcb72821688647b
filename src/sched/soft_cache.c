#include "sched/soft_cache.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

struct soft_tokens {
    soft_tokens *next; /* in the cache, the last used first; not used outside */
    uint8_t      hash[MEDIA_HASH];
    size_t       bytes;
    int          holders;
    bool         cached;
    float        x[];
};

struct soft_cache {
    soft_tokens *first;
    size_t       bytes, max_bytes; /* bytes: size of all that is cached, held or not */
};

soft_cache *soft_cache_new(size_t max_bytes)
{
    soft_cache *c = xnew(soft_cache);
    c->max_bytes  = max_bytes;
    return c;
}

void soft_cache_free(soft_cache *c)
{
    if (!c) return;
    for (soft_tokens *s = c->first, *next; s; s = next) {
        next = s->next;
        assert(!s->holders);
        mem_free(s);
    }
    mem_free(c);
}

/* Moves an entry to the front. at: the link to it. */
static void touch(soft_cache *c, soft_tokens **at)
{
    soft_tokens *s = *at;
    *at            = s->next;
    s->next        = c->first;
    c->first       = s;
}

soft_tokens *soft_cache_find(soft_cache *c, const uint8_t hash[MEDIA_HASH])
{
    for (soft_tokens **at = &c->first; *at; at = &(*at)->next)
        if (!memcmp((*at)->hash, hash, MEDIA_HASH)) {
            touch(c, at);
            c->first->holders++;
            return c->first;
        }
    return NULL;
}

soft_tokens *soft_cache_room(const uint8_t hash[MEDIA_HASH], size_t n)
{
    size_t       bytes;
    soft_tokens *s = size_mul(&bytes, n, sizeof(float)) && size_add(&bytes, bytes, sizeof *s) ? mem_try(bytes) : NULL;
    if (!s) return NULL;
    memcpy(s->hash, hash, MEDIA_HASH);
    s->bytes   = bytes;
    s->holders = 1;
    return s;
}

/* Removes entries that nobody holds, the last ones first, until the rest fits. */
static void shrink(soft_cache *c)
{
    while (c->bytes > c->max_bytes) {
        soft_tokens **last = NULL;
        for (soft_tokens **at = &c->first; *at; at = &(*at)->next)
            if (!(*at)->holders) last = at;
        if (!last) return;
        soft_tokens *s = *last;
        *last          = s->next;
        c->bytes -= s->bytes;
        mem_free(s);
    }
}

void soft_cache_add(soft_cache *c, soft_tokens *s)
{
    s->cached = true;
    s->next   = c->first;
    c->first  = s;
    c->bytes += s->bytes;
    shrink(c);
}

void soft_cache_drop(soft_cache *c, soft_tokens *s)
{
    if (!s) return;
    assert(s->holders > 0);
    s->holders--;
    if (!s->cached)
        mem_free(s);
    else
        shrink(c);
}

float *soft_cache_rows(soft_tokens *s) { return s->x; }
