/* kv/pages.h - the paged cache: pages of KV_PAGE positions, one class of pages per layer geometry.
 *
 * A kv_pool owns all cache memory, taken once at start. It is cut into slabs of one size; a slab is given to a class
 * when the class needs pages and comes back when its last page is free, so that classes share the memory. A kv_seq is
 * one conversation (a lane): for each class a list of pages, mirrored as a row of the table that attention reads.
 *
 *      pool    | slab: full layers  p p p p | slab: sliding layers  P | free | ...
 *      table   class 0:  lane 0 -> p3 p0 p1      class 1:  lane 0 -> P0 P2 P1
 *
 * Positions and slots: a chain keeps position p in slot p. The rows of a tree take one slot each beyond the committed
 * length, so a sequence may hold more slots than positions until it is cut.
 *
 * Invariants, asserted by kv_pool_check:
 *  (1) a page is free, or its refs equal the table entries that name it;
 *  (2) a slab belongs to one class or is free; it is free exactly when none of its pages is used, and it is in the
 *      list of free slabs, or of its class's slabs with a free page, exactly when it should be;
 *  (3) every slot below a sequence's capacity has a page of the right class; entries beyond are -1.
 *
 * Ownership: what *_new gives you, you return with the matching *_free. Thread: the scheduler's only. */
#ifndef TANDEM_KV_PAGES_H
#define TANDEM_KV_PAGES_H
#include "ops/ops.h"

typedef struct kv_pool kv_pool;
typedef struct kv_seq  kv_seq;

enum { KV_MAX_CLASSES = 4 };
typedef struct {
    int        n_layers, n_kv_heads, head_dim;
    quant_type type; /* QUANT_F32 or QUANT_F16 */
} kv_class_spec;

typedef struct {
    const kv_class_spec *classes;
    int                  n_classes;
    size_t               max_bytes; /* of pages */
    int                  max_lanes;
    int                  max_slots; /* per lane */
} kv_pool_spec;

/* Bytes that one lane of n_slots needs, in whole slabs: what kv_pool_new must be given for it to fit alone. */
bool kv_bytes_for(const kv_pool_spec *spec, int n_slots, size_t *out);

bool            kv_pool_new(kv_pool **out, const ops *o, const kv_pool_spec *spec, err *e);
void            kv_pool_free(kv_pool *p); /* NULL is fine, here and below */
const kv_class *kv_pool_class(const kv_pool *p, int i);
uint64_t        kv_pool_key(const kv_pool *p); /* of all that ops are told of its classes, for graph_key */
size_t          kv_pool_used_bytes(const kv_pool *p);
size_t          kv_pool_bytes(const kv_pool *p);
/* Sends the table rows that changed since the last call to the device: before a step reads them. */
void kv_pool_flush(kv_pool *p, queue *q);
void kv_pool_check(const kv_pool *p); /* asserts the invariants; for tests */

kv_seq *kv_seq_new(kv_pool *p); /* NULL when all lanes are taken */
void    kv_seq_free(kv_seq *s);
int     kv_seq_lane(const kv_seq *s);
/* Pages for the slots below n_slots, in every class or (on failure) in none. ERR_LIMIT when the pool is full. */
bool kv_seq_grow(kv_seq *s, int32_t n_slots, err *e);
/* Forgets the slots from n_slots on. One page more than needed is kept: the next round of drafts wants it again. */
void    kv_seq_cut(kv_seq *s, int32_t n_slots);
int32_t kv_seq_len(const kv_seq *s); /* slots in use */
#endif
