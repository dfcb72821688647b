/* json/internal.h - shared by the files of json/: the memory budget, the keys of open objects, reals. */
#ifndef TANDEM_JSON_INTERNAL_H
#define TANDEM_JSON_INTERNAL_H
#include "json/json.h"

/* --- memory ------------------------------------------------------------------------------------ */
/* A document has one memory budget, the limit of its arena. Growing vectors are on the heap; their size is subtracted
 * from a->limit until they are freed. */
bool json_budget_take(arena *a, size_t bytes); /* subtracts; false, without a change, when it is over the limit */
void json_budget_give(arena *a, size_t bytes); /* adds what was taken */
/* Sets the error for an allocation of `bytes` that failed: ERR_TOO_LARGE when it is over the limit, otherwise
 * ERR_UNAVAILABLE. Returns false. */
bool json_no_memory(const arena *a, size_t bytes, err *e);

/* As json_reader_open. Decoded strings go into `a`, so that they outlive the reader, and a->limit is lowered to what
 * max_memory allows until the reader is closed. a NULL: the reader has its own arena. */
bool json_reader_open_in(json_reader **out, arena *a, str text, const json_limits *limits, err *e);

/* --- keys of open objects ---------------------------------------------------------------------- */
typedef struct json_key_entry json_key_entry;
typedef struct json_key_slot  json_key_slot;
typedef struct {
    arena          *mem;     /* the arena whose limit is charged */
    uint64_t        seed[2]; /* random key of the hash */
    json_key_entry *entry;   /* in order of arrival: the keys of the innermost object are last */
    json_key_slot  *slot;    /* [2 * cap], open addressing, linear probing */
    uint32_t        n, cap;  /* entries in use, allocated */
} json_keys;

void json_keys_init(json_keys *k, arena *mem);
void json_keys_deinit(json_keys *k);
/* Adds a key of the innermost object, whose keys start at entry `first`. Sets *twice to whether the object has the key
 * already; it is then not added again. Borrows the bytes until the key is cut. Fails only when there is no memory. */
bool json_keys_add(json_keys *k, str key, uint32_t first, bool *twice, err *e);
void json_keys_cut(json_keys *k, uint32_t n); /* keeps the first n keys */

/* --- reals ------------------------------------------------------------------------------------- */
enum { JSON_REAL_CHARS = 32 };
/* Reads a valid JSON number. Returns false, with *out unchanged, when it is too large for a double. */
bool json_real_read(str number, double *out);
/* Writes the text of json_put_real for a finite d, without a NUL. Returns its length. */
size_t json_real_print(char out[JSON_REAL_CHARS], double d);
#endif
