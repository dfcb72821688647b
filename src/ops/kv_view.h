/* ops/kv_view.h - page classes and rope parameters as kernels read them: plain addresses and byte distances. For
 * backends; C and CUDA. */
#ifndef TANDEM_OPS_KV_VIEW_H
#define TANDEM_OPS_KV_VIEW_H
#include "ops/ops.h"

typedef struct {
    char          *pool;
    const int32_t *table;
    size_t         table_stride;
    int            n_layers, n_kv_heads, head_dim;
    quant_type     type;
    size_t         plane_bytes, head_bytes, vec_bytes; /* of K or V of a layer; of one head of it; of one position */
} kv_view;

kv_view kv_view_of(const kv_class *c);

typedef struct { /* rope_params */
    int            n_dims;
    const float   *freq;
    const int32_t *section; /* NULL: every pair uses `pos` */
} rope_view;

rope_view rope_view_of(const rope_params *p); /* NULL: zeros */
#endif
