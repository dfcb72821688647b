/* A hash table of the keys of all open objects, to find duplicate keys.
 *
 * An object's keys are removed when it closes, and objects close innermost first, so entries form a stack. In a
 * table with linear probing, removing the newest entry restores the state before it was added: its slot is
 * emptied, and no tombstones are needed. Growing reinserts in order, which preserves this property.
 *
 * The hash is keyed with random bits of this reader, so that a client cannot prepare colliding keys. The hash also
 * covers the object (as the index of its first key, unique among open objects). Otherwise the same key in each of
 * many nested objects would make one long chain. */
#include "json/internal.h"

#include "base/clock.h"
#include "base/mem.h"

#include <sys/random.h>

struct json_key_entry {
    str      key;
    uint32_t hash;
    uint32_t at; /* index of its slot */
};
struct json_key_slot {
    uint32_t hash;
    uint32_t entry; /* number + 1; 0: empty */
};

enum { FIRST_CAP = 16, MAX_CAP = 1 << 30 };

void json_keys_init(json_keys *k, arena *mem)
{
    *k = (json_keys){.mem = mem};
    if (getrandom(k->seed, sizeof k->seed, GRND_NONBLOCK) != (ssize_t)sizeof k->seed) {
        k->seed[0] = (uint64_t)clock_ns(); /* getrandom fails while the machine boots */
        k->seed[1] = (uint64_t)(uintptr_t)k;
    }
    k->seed[1] |= 1;
}

static size_t bytes_for(uint32_t cap) { return cap * (sizeof(json_key_entry) + 2 * sizeof(json_key_slot)); }

void json_keys_deinit(json_keys *k)
{
    mem_free(k->entry);
    mem_free(k->slot);
    json_budget_give(k->mem, bytes_for(k->cap));
    *k = (json_keys){.mem = k->mem};
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* Returns the n < 8 bytes at p in a fixed order. */
static uint64_t load_few(const char *p, size_t n)
{
    uint32_t lo, hi;
    if (n >= 4) {
        memcpy(&lo, p, 4);
        memcpy(&hi, p + n - 4, 4);
        return (uint64_t)hi << 32 | lo;
    }
    if (!n) return 0;
    return (uint64_t)(unsigned char)p[0] << 16 | (uint64_t)(unsigned char)p[n / 2] << 8 | (unsigned char)p[n - 1];
}

static uint32_t hash_key(const json_keys *k, str key, uint32_t first)
{
    uint64_t h = mix(k->seed[0] ^ key.n, k->seed[1] ^ (uint64_t)first << 32), w;
    for (; key.n >= 8; key.s += 8, key.n -= 8) {
        memcpy(&w, key.s, 8);
        h = mix(h ^ w, k->seed[1]);
    }
    return (uint32_t)(mix(h ^ load_few(key.s, key.n), k->seed[1]) >> 32);
}

static void fill_slot(json_keys *k, uint32_t at, uint32_t entry)
{
    k->slot[at]        = (json_key_slot){k->entry[entry].hash, entry + 1};
    k->entry[entry].at = at;
}

static void insert(json_keys *k, uint32_t entry)
{
    uint32_t mask = 2 * k->cap - 1, at = k->entry[entry].hash & mask;
    while (k->slot[at].entry) at = (at + 1) & mask;
    fill_slot(k, at, entry);
}

static bool grow_keys(json_keys *k, err *e)
{
    uint32_t cap  = k->cap ? 2 * k->cap : FIRST_CAP;
    size_t   more = bytes_for(cap - k->cap);
    if (cap > MAX_CAP || !json_budget_take(k->mem, more)) return json_no_memory(k->mem, more, e);
    json_key_slot  *slot  = mem_try_n(2 * (size_t)cap, sizeof *slot);
    json_key_entry *entry = slot ? mem_try_resize(k->entry, cap * sizeof *entry) : NULL;
    if (!entry) {
        mem_free(slot);
        json_budget_give(k->mem, more);
        return json_no_memory(k->mem, more, e);
    }
    mem_free(k->slot);
    k->slot  = slot;
    k->entry = entry;
    k->cap   = cap;
    for (uint32_t i = 0; i < k->n; i++) insert(k, i);
    return true;
}

bool json_keys_add(json_keys *k, str key, uint32_t first, bool *twice, err *e)
{
    if (k->n == k->cap && !grow_keys(k, e)) return false;
    uint32_t hash = hash_key(k, key, first), mask = 2 * k->cap - 1, at = hash & mask;
    for (; k->slot[at].entry; at = (at + 1) & mask) {
        uint32_t other = k->slot[at].entry - 1;
        if (k->slot[at].hash != hash || other < first) continue;
        *twice = str_eq(k->entry[other].key, key);
        if (*twice) return true;
    }
    *twice         = false;
    k->entry[k->n] = (json_key_entry){.key = key, .hash = hash};
    fill_slot(k, at, k->n++);
    return true;
}

void json_keys_cut(json_keys *k, uint32_t n)
{
    while (k->n > n) k->slot[k->entry[--k->n].at].entry = 0;
}
