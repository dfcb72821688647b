/* json/internal.h - what the files of json/ share: the memory budget, the keys of open objects, reals. */
#ifndef TANDEM_JSON_INTERNAL_H
#define TANDEM_JSON_INTERNAL_H
#include "json/json.h"

/* --- memory ------------------------------------------------------------------------------------ */
/* One budget for a document: its arena's ceiling. Vectors that grow live on the heap, and what they
 * hold is taken off the ceiling until they go. */
bool json_budget_take(arena *a, size_t bytes); /* false when over the ceiling */
void json_budget_give(arena *a, size_t bytes);
/* The sentence for `bytes` that could not be had: over the ceiling, or the machine has no more. */
bool json_no_memory(const arena *a, size_t bytes, err *e);

/* json_reader_open, but decoded strings go to the caller's arena, unless that is NULL, and outlive the reader. */
bool json_reader_open_in(json_reader **out, arena *a, str text, const json_limits *limits, err *e);

/* --- keys of open objects ---------------------------------------------------------------------- */
typedef struct json_key_entry json_key_entry;
typedef struct json_key_slot  json_key_slot;
typedef struct {
    arena          *mem; /* its ceiling pays */
    uint64_t        seed[2];
    json_key_entry *entry; /* in the order they came: the innermost object's are the last */
    json_key_slot  *slot;  /* [2 * cap], open addressing, linear probing */
    uint32_t        n, cap;
} json_keys;

void json_keys_init(json_keys *k, arena *mem);
void json_keys_deinit(json_keys *k);
/* Adds a key of the innermost object, whose first key is entry number `first`, unless it is there already:
 * then *twice is set. Borrows the bytes. False only when there is no memory. */
bool json_keys_add(json_keys *k, str key, uint32_t first, bool *twice, err *e);
void json_keys_cut(json_keys *k, uint32_t n); /* keeps the first n */

/* --- reals ------------------------------------------------------------------------------------- */
enum { JSON_REAL_CHARS = 32 };
bool   json_real_read(str number, double *out);              /* text of JSON's grammar; false when it is not finite */
size_t json_real_print(char out[JSON_REAL_CHARS], double d); /* as json_put_real; no NUL */
#endif
