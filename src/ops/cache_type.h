/* ops/cache_type.h - element types of the K/V cache: names, parser, sizes.
 *
 * K and V of a page class (kv_class, ops.h) each have a type. A page holds KV_PAGE positions. In a page, K or V of one
 * head of one layer is the codes of positions 0 .. KV_PAGE - 1, then their scales in the same order. The present types,
 * f16 and f32, have no scales. */
#ifndef TANDEM_OPS_CACHE_TYPE_H
#define TANDEM_OPS_CACHE_TYPE_H
#include "base/err.h"
#include "base/str.h"

enum { KV_PAGE = 16 }; /* positions */

typedef enum { CACHE_F32, CACHE_F16, CACHE_N_TYPES } cache_type;
typedef struct {
    cache_type k, v;
} cache_types;

static inline cache_types cache_types_both(cache_type t) { return (cache_types){t, t}; }

typedef struct {
    const char *name;
    int         bits;  /* bits of a code; a code is one value */
    int         group; /* values that share an f16 scale, or the whole head where it is smaller; 0: no scales */
} cache_layout;

const cache_layout *cache_layout_of(cache_type t); /* static */
/* Return bytes: of the codes of one position and head, and of K or V of one head in one page, with scales. */
size_t cache_code_bytes(const cache_layout *l, int head_dim);
size_t cache_head_bytes(const cache_layout *l, int head_dim);

/* Parses "f16", a type for both, or "f16/f32", the types of K and of V. On failure *out is unchanged. */
bool cache_types_parse(cache_types *out, str text, err *e);
/* Writes text for cache_types_parse, with a NUL, and returns out. */
enum { CACHE_TYPES_TEXT = 24 };
const char *cache_types_text(cache_types t, char out[CACHE_TYPES_TEXT]);
#endif
