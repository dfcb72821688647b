#include "sched/soft_cache.h"

#include "test.h"

enum { ROWS = 64 }; /* floats of an entry */

static const uint8_t *hash_of(int i)
{
    static uint8_t hash[MEDIA_HASH];
    memset(hash, i, sizeof hash);
    return hash;
}

/* Adds an entry and ends holding it. */
static void add(soft_cache *c, int i)
{
    soft_tokens *s        = soft_cache_room(hash_of(i), ROWS);
    soft_cache_rows(s)[0] = (float)i;
    soft_cache_add(c, s);
    soft_cache_drop(c, s);
}

static bool has(soft_cache *c, int i)
{
    soft_tokens *s  = soft_cache_find(c, hash_of(i));
    bool         ok = s && soft_cache_rows(s)[0] == (float)i;
    soft_cache_drop(c, s);
    return ok;
}

TEST(soft_cache_keeps_what_was_used_last)
{
    soft_cache *c = soft_cache_new(3 * (ROWS * sizeof(float) + 100)); /* three entries */
    for (int i = 1; i <= 3; i++) add(c, i);
    CHECK(has(c, 1) && has(c, 2) && has(c, 3) && !has(c, 4));
    CHECK(has(c, 1));
    add(c, 4); /* 2 was used longest ago */
    CHECK(!has(c, 2) && has(c, 1) && has(c, 3) && has(c, 4));
    soft_cache_free(c);
    soft_cache_free(NULL);
}

TEST(soft_cache_does_not_free_what_is_held)
{
    soft_cache  *c = soft_cache_new(1);
    soft_tokens *a = soft_cache_room(hash_of(1), ROWS), *lost = soft_cache_room(hash_of(2), ROWS);
    soft_cache_rows(a)[0] = 1;
    soft_cache_add(c, a); /* over the limit, but held */
    CHECK(has(c, 1));
    soft_cache_drop(c, lost); /* was never added */
    CHECK(!has(c, 2));
    soft_cache_drop(c, a);
    CHECK(!has(c, 1));
    soft_cache_drop(c, NULL);
    soft_cache_free(c);
}
