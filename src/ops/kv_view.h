/* ops/kv_view.h - page classes and rope parameters as kernels read them: plain addresses and byte distances. For
 * backends; C and CUDA. */
#ifndef TANDEM_OPS_KV_VIEW_H
#define TANDEM_OPS_KV_VIEW_H
#include "ops/ops.h"

typedef struct {
    char          *pool;
    const int32_t *table;
    size_t         table_stride; /* entries */
    int            n_layers, n_kv_heads, head_dim, row_dim;
    cache_types    types;
    sparse_params  sparse;
    /* Bytes in one page: */
    size_t layer_bytes;                /* K, V and summaries of a layer */
    size_t summary_at;                 /* K and V of a layer; its summaries follow */
    size_t plane_bytes;                /* K of a layer; V of the layer follows */
    size_t head_bytes, vec_bytes;      /* K of one head; codes of one position of it */
    size_t v_head_bytes, v_vec_bytes;  /* V, the same */
    size_t scale_bytes, v_scale_bytes; /* scales of one position of a head, after all codes; 0: none */
} kv_view;

kv_view kv_view_of(const kv_class *c); /* asserts that head_dim is a multiple of 8 */

typedef struct { /* as rope_params */
    int            n_dims;
    const float   *freq;
    const int32_t *section; /* NULL: every pair uses `pos` */
} rope_view;

rope_view rope_view_of(const rope_params *p); /* p NULL: zeros */
#endif
