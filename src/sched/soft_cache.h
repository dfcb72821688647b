/* sched/soft_cache.h - soft tokens of pictures in host memory, by the hash of their pixels.
 *
 * A running job holds the soft tokens that its next rows need. The cache keeps those that no job holds, up to a number
 * of bytes; the ones that were used longest ago go first. Thread: the engine's. */
#ifndef TANDEM_SCHED_SOFT_CACHE_H
#define TANDEM_SCHED_SOFT_CACHE_H
#include "media/prompt.h"

enum { SOFT_CACHE_BYTES = 64 << 20 };

typedef struct soft_tokens soft_tokens;
typedef struct soft_cache  soft_cache;

soft_cache *soft_cache_new(size_t max_bytes);
void        soft_cache_free(soft_cache *c); /* requires that nothing is held; accepts NULL */

/* Returns the soft tokens of a span and holds them; NULL: they are not there. */
soft_tokens *soft_cache_find(soft_cache *c, const uint8_t hash[MEDIA_HASH]);
/* Returns room for n numbers, held; soft_cache_rows has their address. The caller writes them, then adds them or drops
 * them. NULL: no memory. */
soft_tokens *soft_cache_room(const uint8_t hash[MEDIA_HASH], size_t n);
void         soft_cache_add(soft_cache *c, soft_tokens *s);
void         soft_cache_drop(soft_cache *c, soft_tokens *s); /* ends holding; accepts NULL */
float       *soft_cache_rows(soft_tokens *s);
#endif
