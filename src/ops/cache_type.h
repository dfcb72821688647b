/* ops/cache_type.h - element types of the K/V cache: names, parser, sizes.
 *
 * K and V of a page class (kv_class, ops.h) each have a type. A page holds KV_PAGE positions. In a page, K or V of one
 * head of one layer is the codes of positions 0 .. KV_PAGE - 1, then their scales in the same order. The present types,
 * f16 and f32, have no scales. */
#ifndef TANDEM_OPS_CACHE_TYPE_H
#define TANDEM_OPS_CACHE_TYPE_H
#include "base/err.h"
#include "base/str.h"

enum { KV_PAGE = 16, CACHE_MAX_HEAD = 1024 }; /* positions; channels */

/* In order of precision, the best first. */
typedef enum { CACHE_F32, CACHE_F16, CACHE_Q8_0, CACHE_Q4_0, CACHE_TQ3, CACHE_N_TYPES } cache_type;
typedef struct {
    cache_type k, v;
} cache_types;

static inline cache_types cache_types_both(cache_type t) { return (cache_types){t, t}; }
static inline bool        cache_types_equal(cache_types a, cache_types b) { return a.k == b.k && a.v == b.v; }
/* Returns whether a type has scales. Its values are rotated, see cache_code.h. */
static inline bool cache_has_scales(cache_type t) { return t >= CACHE_Q8_0; }
/* Returns the types with K and V each replaced by `limit` where they are less precise. */
cache_types cache_types_at_least(cache_types t, cache_type limit);

typedef struct {
    const char *name;
    int         bits;  /* bits of a code; a code is one value */
    int         group; /* values that share an f16 scale, or the whole head where it is smaller; 0: no scales */
} cache_layout;

const cache_layout *cache_layout_of(cache_type t); /* static */
/* Return bytes: of the codes and of the scales of one position and head, and of K or V of one head in one page. */
size_t cache_code_bytes(const cache_layout *l, int head_dim);
size_t cache_scale_bytes(const cache_layout *l, int head_dim);
size_t cache_head_bytes(const cache_layout *l, int head_dim);

/* Parses the types of K and V: "q8_0" for both, or "k=q8_0,v=q4_0", or "q8_0/q4_0". A part that "k=..." or "v=..."
 * alone does not name is f16. On failure *out is unchanged. */
bool cache_types_parse(cache_types *out, str text, err *e);
/* Fails when heads of this size cannot be stored: types with scales need 64 or a multiple of 128. */
bool cache_types_check(cache_types t, int head_dim, err *e);
/* Writes text for cache_types_parse, with a NUL, and returns out. */
enum { CACHE_TYPES_TEXT = 24 };
const char *cache_types_text(cache_types t, char out[CACHE_TYPES_TEXT]);
#endif
