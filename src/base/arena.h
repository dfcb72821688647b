/* base/arena.h - an allocator for many small objects that are freed together.
 *
 * arena_try and arena_str return NULL above the arena's limit or without memory. New memory is zeroed and 16-byte
 * aligned. It is valid until arena_deinit, or until arena_restore to a mark saved before the allocation. One thread at
 * a time. */
#ifndef TANDEM_BASE_ARENA_H
#define TANDEM_BASE_ARENA_H
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct arena_chunk arena_chunk;
typedef struct {
    arena_chunk *top;   /* newest chunk of a linked list */
    size_t       used;  /* bytes allocated, each allocation rounded up to 16 */
    size_t       limit; /* maximum of `used` */
    bool         over;  /* an arena_try returned NULL because it would have passed `limit`; never cleared */
} arena;
/* The state of an arena at an arena_save. */
typedef struct {
    arena_chunk *top;
    size_t       at, used;
} arena_mark;

void       arena_init(arena *a, size_t limit); /* limit in bytes; allocates nothing */
void       arena_deinit(arena *a);             /* frees all memory; the arena is then empty and can be used again */
void      *arena_try(arena *a, size_t n, size_t each); /* allocates n * each bytes; an overflow is over the limit */
char      *arena_str(arena *a, str s);                 /* copies s and adds a NUL */
arena_mark arena_save(const arena *a);
void       arena_restore(arena *a, arena_mark m); /* frees all that was allocated since the save of m */
#endif
