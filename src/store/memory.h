/* store/memory.h - packs in host memory, by key, with a limit of bytes: the parking place of texts.
 *
 * An entry that does not fit removes the least recently used ones. An entry that a load has taken stays readable until
 * it is returned, also when it was removed meanwhile. Any thread may call the functions. */
#ifndef TANDEM_STORE_MEMORY_H
#define TANDEM_STORE_MEMORY_H
#include "store/index.h"

typedef struct store_memory store_memory;
typedef struct parked       parked; /* an entry */

store_memory *memory_new(uint64_t max_bytes);
void          memory_free(store_memory *m); /* requires that all entries were returned; accepts NULL */
/* Adds an entry, which owns the pack from then on: free_pack(pack_ctx) frees it. Returns false, and takes nothing, when
 * there is an entry with this key, or when it is over the limit. An entry without the drafter's part that x has is
 * replaced. */
bool memory_add(store_memory *m, const index_entry *x, pack *p, void (*free_pack)(void *pack_ctx), void *pack_ctx);
/* Finds an entry; returns false when there is none. */
bool memory_find(store_memory *m, hash128 key, index_entry *out);
/* Finds an entry, marks it as used and keeps its pack readable until memory_return. Returns NULL when there is none. */
parked     *memory_take(store_memory *m, hash128 key);
const pack *memory_pack(const parked *x);
void        memory_return(store_memory *m, parked *x);
uint64_t    memory_bytes(store_memory *m); /* bytes of all entries */
#endif
