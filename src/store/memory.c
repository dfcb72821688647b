#include "store/memory.h"

#include "base/mem.h"

#include <assert.h>
#include <pthread.h>

enum { BUCKETS = 4096 };

struct parked {
    index_entry x;
    pack       *p;
    void (*free_pack)(void *pack_ctx);
    void   *pack_ctx;
    int     taken;         /* loads that read it */
    bool    removed;       /* not in the table any more: the last load frees it */
    parked *chain;         /* next of the bucket */
    parked *older, *newer; /* neighbours in the order of use */
};

struct store_memory {
    pthread_mutex_t lock;
    uint64_t        max_bytes, bytes;
    parked         *bucket[BUCKETS];
    parked         *oldest, *newest;
};

store_memory *memory_new(uint64_t max_bytes)
{
    store_memory *m = xnew(store_memory);
    m->max_bytes    = max_bytes;
    pthread_mutex_init(&m->lock, NULL);
    return m;
}

/* --- under the lock -----------------------------------------------------------------------------*/
static parked **place_of(store_memory *m, hash128 key)
{
    parked **at = &m->bucket[key.lo % BUCKETS];
    while (*at && !hash128_equal((*at)->x.key, key)) at = &(*at)->chain;
    return at;
}

static void link_newest(store_memory *m, parked *x)
{
    x->older                                      = m->newest;
    x->newer                                      = NULL;
    *(m->newest ? &m->newest->newer : &m->oldest) = x;
    m->newest                                     = x;
}

static void unlink_used(store_memory *m, parked *x)
{
    *(x->older ? &x->older->newer : &m->oldest) = x->newer;
    *(x->newer ? &x->newer->older : &m->newest) = x->older;
}

static void free_parked(parked *x)
{
    x->free_pack(x->pack_ctx);
    mem_free(x);
}

static void remove_parked(store_memory *m, parked *x)
{
    *place_of(m, x->x.key) = x->chain;
    unlink_used(m, x);
    m->bytes -= x->x.bytes;
    x->removed = true;
    if (!x->taken) free_parked(x);
}

/* Marks the entry and those before it in its text as used, the first part last: it is removed after the others. */
static void touch(store_memory *m, parked *x)
{
    for (; x; x = *place_of(m, x->x.parent)) {
        unlink_used(m, x);
        link_newest(m, x);
    }
}

/* --- entries ------------------------------------------------------------------------------------*/
void memory_free(store_memory *m)
{
    if (!m) return;
    while (m->oldest) {
        assert(!m->oldest->taken);
        remove_parked(m, m->oldest);
    }
    pthread_mutex_destroy(&m->lock);
    mem_free(m);
}

/* Returns whether the entry has a drafter's part that the other entry of the same text lacks. */
static bool is_better(const index_entry *x, const index_entry *other)
{
    return !hash128_is_zero(x->draft) && !hash128_equal(x->draft, other->draft);
}

bool memory_add(store_memory *m, const index_entry *x, pack *p, void (*free_pack)(void *pack_ctx), void *pack_ctx)
{
    pthread_mutex_lock(&m->lock);
    parked *old = *place_of(m, x->key);
    bool    ok  = x->bytes <= m->max_bytes && (!old || is_better(x, &old->x));
    if (ok) {
        if (old) remove_parked(m, old);
        parked *n = *place_of(m, x->key) = xnew(parked);
        *n                               = (parked){.x = *x, .p = p, .free_pack = free_pack, .pack_ctx = pack_ctx};
        m->bytes += x->bytes;
        link_newest(m, n);
        touch(m, n);
        while (m->bytes > m->max_bytes) remove_parked(m, m->oldest);
    }
    pthread_mutex_unlock(&m->lock);
    return ok;
}

bool memory_find(store_memory *m, hash128 key, index_entry *out)
{
    pthread_mutex_lock(&m->lock);
    const parked *x = *place_of(m, key);
    if (x) *out = x->x;
    pthread_mutex_unlock(&m->lock);
    return x;
}

parked *memory_take(store_memory *m, hash128 key)
{
    pthread_mutex_lock(&m->lock);
    parked *x = *place_of(m, key);
    if (x) {
        x->taken++;
        touch(m, x);
    }
    pthread_mutex_unlock(&m->lock);
    return x;
}

const pack *memory_pack(const parked *x) { return x->p; }

void memory_return(store_memory *m, parked *x)
{
    pthread_mutex_lock(&m->lock);
    if (!--x->taken && x->removed) free_parked(x);
    pthread_mutex_unlock(&m->lock);
}

uint64_t memory_bytes(store_memory *m)
{
    pthread_mutex_lock(&m->lock);
    uint64_t n = m->bytes;
    pthread_mutex_unlock(&m->lock);
    return n;
}
