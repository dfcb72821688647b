/* json/internal.h - shared by the files of json/: the memory budget, the keys of open objects, reals. */
#ifndef TANDEM_JSON_INTERNAL_H
#define TANDEM_JSON_INTERNAL_H
#include "json/json.h"

/* --- memory ------------------------------------------------------------------------------------ */
/* A document has one budget, the limit of its arena. Growing vectors are on the heap; their size is subtracted from
 * the limit until they are freed. */
bool json_budget_take(arena *a, size_t bytes); /* false when over the limit */
void json_budget_give(arena *a, size_t bytes);
/* Sets the error for an allocation of `bytes` that failed: over the limit, or out of memory. */
bool json_no_memory(const arena *a, size_t bytes, err *e);

/* Opens a reader that puts decoded strings into `a`, unless it is NULL, so that they outlive the reader. */
bool json_reader_open_in(json_reader **out, arena *a, str text, const json_limits *limits, err *e);

/* --- keys of open objects ---------------------------------------------------------------------- */
typedef struct json_key_entry json_key_entry;
typedef struct json_key_slot  json_key_slot;
typedef struct {
    arena          *mem; /* the arena whose limit is charged */
    uint64_t        seed[2];
    json_key_entry *entry; /* in order of arrival: those of the innermost object are last */
    json_key_slot  *slot;  /* [2 * cap], open addressing, linear probing */
    uint32_t        n, cap;
} json_keys;

void json_keys_init(json_keys *k, arena *mem);
void json_keys_deinit(json_keys *k);
/* Adds a key of the innermost object, whose first key is entry `first`. Sets *twice and adds nothing when the object
 * has the key already. Keeps a pointer to the bytes. Fails only when there is no memory. */
bool json_keys_add(json_keys *k, str key, uint32_t first, bool *twice, err *e);
void json_keys_cut(json_keys *k, uint32_t n); /* keeps the first n */

/* --- reals ------------------------------------------------------------------------------------- */
enum { JSON_REAL_CHARS = 32 };
bool   json_real_read(str number, double *out);              /* number: valid JSON; false: not finite */
size_t json_real_print(char out[JSON_REAL_CHARS], double d); /* as json_put_real; no NUL */
#endif
