/* ops/cuda/attention.cuh - the positions that a row sees, their slots in the cache, and the pages that it keeps. */
#ifndef TANDEM_OPS_CUDA_ATTENTION_CUH
#define TANDEM_OPS_CUDA_ATTENTION_CUH
#include "ops/cuda/cache.cuh"

struct head_view {
    int     row, head, kv_head;
    int32_t first, last; /* positions that the row sees; none when last < first */
};

/* Returns the view of one head of a row. */
static __device__ inline head_view view_of(const cuda_attention_args &a, int row, int head)
{
    int32_t pos = a.pos[row];
    return {row, head, head / (a.n_heads / a.c.n_kv_heads), a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0,
            a.last[row]};
}

/* Returns the slot of position p of the row's sequence. */
static __device__ inline int32_t slot_of(const cuda_attention_args &a, int row, int32_t p)
{
    if (p < a.root[row]) return p;
    while (a.pos[row] > p) row = a.parent[row];
    return a.slot[row];
}

static_assert(TILE_KEYS / KV_PAGE == 4, "a tile's pages are four bits of a word");

/* Returns the bits of a row's pages. */
static __device__ inline uint32_t *kept_words(const cuda_attention_args &a, int row, int kv_head)
{
    return a.kept + ((size_t)(row - a.first_row) * a.c.n_kv_heads + kv_head) * a.kept_stride;
}
/* Returns which of a tile's four pages the row attends to. */
static __device__ inline unsigned pages_kept(const cuda_attention_args &a, const head_view &v, int tile)
{
    if (!a.kept) return 15;
    return (unsigned)read_l2((const int32_t *)kept_words(a, v.row, v.kv_head) + tile / 8) >> (4 * (tile % 8)) & 15;
}
#endif
