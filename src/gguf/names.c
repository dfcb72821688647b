#include "gguf/names.h"

#include "base/clock.h"
#include "base/mem.h"

#include <sys/random.h>

/* A polynomial over the prime 2^61 - 1 with the name's bytes, seven at a time, as coefficients, at a secret
 * point: two names of m coefficients collide with probability m / 2^61, also when they were chosen to collide. */
static const uint64_t PRIME = ((uint64_t)1 << 61) - 1;

static uint64_t mul_mod(uint64_t a, uint64_t b) /* a, b < 2^62; the result is below 2^62 too */
{
    unsigned __int128 x = (unsigned __int128)a * b;
    uint64_t          r = (uint64_t)(x & PRIME) + (uint64_t)(x >> 61);
    return (r & PRIME) + (r >> 61);
}

static uint64_t hash(const names *x, str s)
{
    uint64_t h = s.n & PRIME;
    for (size_t i = 0; i < s.n; i += 7) {
        uint64_t w = 0;
        memcpy(&w, s.s + i, s.n - i < 7 ? s.n - i : 7);
        h = mul_mod((h & PRIME) + (h >> 61), x->key[0]) + w;
    }
    return h * x->key[1];
}

/* Returns the slot of the name, or the free slot where it belongs. The table is never more than half full. */
static size_t slot_of(const names *x, str name)
{
    size_t mask = 2 * x->cap - 1, i = (size_t)(hash(x, name) >> 32) & mask;
    while (x->slot[i] && !str_eq(x->name[x->slot[i] - 1], name)) i = (i + 1) & mask;
    return i;
}

static void draw_key(names *x)
{
    if (getrandom(x->key, sizeof x->key, GRND_NONBLOCK) != sizeof x->key) {
        x->key[0] = (uint64_t)clock_ns() * 0x9E3779B97F4A7C15u; /* no random numbers early in a boot: use the time */
        x->key[1] = (uint64_t)(uintptr_t)x * 0xBF58476D1CE4E5B9u;
    }
    x->key[0] = x->key[0] % (PRIME - 2) + 2;
    x->key[1] |= 1;
}

static bool grow_table(names *x)
{
    size_t cap = x->cap ? 2 * x->cap : 64;
    if (cap > UINT32_MAX / 2) return false;
    str *name = mem_try_resize(x->name, cap * sizeof *name);
    if (!name) return false;
    x->name        = name;
    uint32_t *slot = mem_try_n(2 * cap, sizeof *slot);
    if (!slot) return false;
    if (!x->cap) draw_key(x);
    mem_free(x->slot);
    x->slot = slot;
    x->cap  = cap;
    for (size_t i = 0; i < x->n; i++) x->slot[slot_of(x, x->name[i])] = (uint32_t)(i + 1);
    return true;
}

names_result names_add(names *x, str name)
{
    if (x->n == x->cap && !grow_table(x)) return NAMES_NO_MEMORY;
    size_t i = slot_of(x, name);
    if (x->slot[i]) return NAMES_TWICE;
    x->name[x->n] = name;
    x->slot[i]    = (uint32_t)++x->n;
    return NAMES_ADDED;
}

bool names_find(const names *x, str name, size_t *at)
{
    if (!x->n) return false;
    uint32_t place = x->slot[slot_of(x, name)];
    if (!place) return false;
    *at = place - 1;
    return true;
}

void names_deinit(names *x)
{
    mem_free(x->name);
    mem_free(x->slot);
    *x = (names){0};
}
