/* base/arena.h - an allocator for many small objects that are freed together.
 *
 * arena_new and arena_alloc take sizes chosen by the program and never return NULL. arena_try takes sizes chosen by
 * a file or a client and returns NULL above the arena's limit. Memory is zeroed. Pointers are valid until arena_deinit,
 * or until arena_restore to an earlier save. */
#ifndef TANDEM_BASE_ARENA_H
#define TANDEM_BASE_ARENA_H
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct arena_chunk arena_chunk;
typedef struct {
    arena_chunk *top;   /* newest chunk of a linked list */
    size_t       used;  /* bytes allocated in all chunks */
    size_t       limit; /* maximum of `used` */
    bool         over;  /* an arena_try returned NULL because it would have passed `limit` */
} arena;
typedef struct {
    arena_chunk *top;
    size_t       at, used;
} arena_mark;

#define arena_new(a, T)      ((T *)arena_alloc((a), sizeof(T)))
#define arena_new_n(a, T, n) ((T *)arena_alloc((a), (size_t)(n) * sizeof(T)))

void       arena_init(arena *a, size_t limit);
void       arena_deinit(arena *a);
void      *arena_alloc(arena *a, size_t bytes);        /* 16-byte aligned */
void      *arena_try(arena *a, size_t n, size_t each); /* NULL: over the limit, or out of memory */
char      *arena_str(arena *a, str s);                 /* copies s and adds a NUL; NULL as arena_try */
arena_mark arena_save(const arena *a);
void       arena_restore(arena *a, arena_mark m);
#endif
