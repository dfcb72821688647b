/* Log-probabilities of a row's tokens, and the changes of logits before a pick. */
#include "ops/cuda/pick.cuh"

/* --- log-probabilities ----------------------------------------------------------------------------*/
static __device__ inline token_logprob logprob_of(const float *z, int32_t id, double log_sum)
{
    token_logprob t;
    t.id      = id;
    t.logprob = id >= 0 && isfinite(z[id]) ? (float)((double)z[id] - log_sum) : -INFINITY;
    return t;
}

/* The most likely tokens of a slice. Grid: x over slices of a row, y over rows. */
static __global__ void __launch_bounds__(PICK_THREADS)
    leaders_kernel(sample_row *rows, const float *logits, int n_vocab, int n_top)
{
    int slice = blockIdx.x, per_block = (n_vocab + SAMPLE_SLICES - 1) / SAMPLE_SLICES, from = slice * per_block;
    let_next_start();
    wait_for_previous();
    slice_best(rows[blockIdx.y].best[slice], logits + (size_t)blockIdx.y * n_vocab, from,
               min_of(from + per_block, n_vocab), n_top > 1 ? n_top : 1);
}

/* The largest logit of a row, found by leaders_kernel; by a warp. 0: none is finite */
static __device__ inline u64 row_top(const sample_row *r)
{
    static_assert((int)SAMPLE_SLICES == (int)WARP, "a lane per slice");
    return warp_top(r->best[threadIdx.x % WARP][0]);
}

/* The sum of the shares of a slice. Grid: x over slices of a row, y over rows. */
static __global__ void __launch_bounds__(WIDE_THREADS) sums_kernel(sample_row *rows, const float *logits, int n_vocab)
{
    int per_block = (n_vocab + WIDE_SLICES - 1) / WIDE_SLICES, from = (int)blockIdx.x * per_block;
    int to = min_of(from + per_block, n_vocab);
    let_next_start();
    wait_for_previous();
    sample_row  *r   = rows + blockIdx.y;
    const float *z   = logits + (size_t)blockIdx.y * n_vocab;
    double       max = (double)logit_of_key(row_top(r));
    u64          sum = 0;
    for (int i = from + (int)threadIdx.x; i < to; i += WIDE_THREADS)
        if (isfinite(z[i])) sum += sampling_share((double)z[i] - max);
    sum = block_total(sum);
    if (threadIdx.x == 0) r->share[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(PICK_THREADS)
    logprobs_kernel(token_logprob *out, const float *logits, const sample_row *rows, const int32_t *id, int n_vocab,
                    int n_top)
{
    __shared__ u64 keys[SAMPLE_SLICES * SLICE_BEST];
    let_next_start();
    wait_for_previous();
    const sample_row *r   = rows + blockIdx.x;
    const float      *z   = logits + (size_t)blockIdx.x * n_vocab;
    token_logprob    *to  = out + (size_t)blockIdx.x * (1 + n_top);
    int               i   = threadIdx.x;
    u64               top = row_top(r), sum = block_total(i < WIDE_SLICES ? r->share[i] : 0);
    double            log_sum = 0;
    if (top) log_sum = (double)logit_of_key(top) + sampling_math_log((double)sum / SAMPLING_SHARE_ONE);
    if (i == 0) to[0] = logprob_of(z, id[blockIdx.x], log_sum);
    if (n_top > 1) merge_slices(keys, r);
    if (i < n_top) to[1 + i] = logprob_of(z, token_of_key(n_top > 1 ? keys[i] : top), log_sum);
}

/* Any number of the most likely tokens; by a block per row. */
static __global__ void __launch_bounds__(PICK_THREADS)
    many_logprobs_kernel(token_logprob *out, const float *logits, const int32_t *id, int n_vocab, int n_top)
{
    __shared__ leaders<LOGPROBS_MAX> l;
    const float                     *z    = logits + (size_t)blockIdx.x * n_vocab;
    token_logprob                   *to   = out + (size_t)blockIdx.x * (1 + n_top);
    scored                           best = best_logit(z, n_vocab);
    u64                              sum  = 0;
    for (int i = threadIdx.x; i < n_vocab; i += PICK_THREADS)
        if (isfinite(z[i])) sum += sampling_share((double)z[i] - best.score);
    sum            = block_total(sum);
    double log_sum = best.id < 0 ? 0 : best.score + sampling_math_log((double)sum / SAMPLING_SHARE_ONE);
    if (threadIdx.x == 0) {
        to[0] = logprob_of(z, id[blockIdx.x], log_sum);
        l.n   = 0;
    }
    auto key   = [&](int i) { return key_of(z[i], i); };
    u64  floor = find_kth(n_vocab, key, n_top);
    for (int i = threadIdx.x; i < n_vocab; i += PICK_THREADS)
        if (key(i) && key(i) >= floor) add_leader(&l, (double)z[i], i);
    __syncthreads();
    int i = threadIdx.x;
    if (i < l.n)
        to[1 + rank_of(&l, i)] = logprob_of(z, l.item[i].id, log_sum);
    else if (i < n_top)
        to[1 + i] = logprob_of(z, -1, 0);
}

extern "C" cudaError_t cuda_logprobs(cudaStream_t s, token_logprob *out, const float *logits, void *scratch,
                                     const int32_t *id, int n_rows, int n_vocab, int n_top)
{
    if (n_top > LOGPROBS_MAX) return cudaErrorInvalidValue;
    if (n_top > SLICE_BEST || n_vocab > MOST_TOKENS) {
        LAUNCH(many_logprobs_kernel, (unsigned)n_rows, PICK_THREADS, 0, s, out, logits, id, n_vocab, n_top);
        return cudaGetLastError();
    }
    for (int at = 0; at < n_rows; at += SAMPLE_ROWS) {
        unsigned       n    = (unsigned)min_int(n_rows - at, SAMPLE_ROWS);
        const float   *z    = logits + (size_t)at * (size_t)n_vocab;
        sample_row    *rows = (sample_row *)scratch;
        token_logprob *to   = out + (size_t)at * (size_t)(1 + n_top);
        LAUNCH_EARLY(leaders_kernel, dim3(SAMPLE_SLICES, n), PICK_THREADS, 0, s, rows, z, n_vocab, n_top);
        LAUNCH_EARLY(sums_kernel, dim3(WIDE_SLICES, n), WIDE_THREADS, 0, s, rows, z, n_vocab);
        LAUNCH_EARLY(logprobs_kernel, n, PICK_THREADS, 0, s, to, z, rows, id + at, n_vocab, n_top);
    }
    return cudaGetLastError();
}

/* The share of a token in the softmax of its row. Grid: a block per row. */
static __global__ void __launch_bounds__(PICK_THREADS)
    confidence_kernel(float *out, const float *logits, const int32_t *id, int n_vocab)
{
    __shared__ float part[PICK_THREADS / WARP];
    const float     *z    = logits + (size_t)blockIdx.x * n_vocab;
    int              pick = id[blockIdx.x];
    float            top = pick >= 0 ? z[pick] : 0, sum = 0;
    for (int i = threadIdx.x; i < n_vocab; i += PICK_THREADS) sum += expf(z[i] - top);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < PICK_THREADS / WARP; i++) sum += part[i];
    out[blockIdx.x] = pick >= 0 ? 1 / sum : 0;
}

extern "C" cudaError_t cuda_confidence(cudaStream_t s, float *out, const float *logits, const int32_t *id, int n_rows,
                                       int n_vocab)
{
    LAUNCH(confidence_kernel, (unsigned)n_rows, PICK_THREADS, 0, s, out, logits, id, n_vocab);
    return cudaGetLastError();
}

/* --- logits before picking ------------------------------------------------------------------------*/
static __global__ void change_kernel(float *logits, int n_vocab, logit_change *items, int n_items)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_items) return;
    logit_change *c = &items[i];
    float        *x = logits + (size_t)c->row * n_vocab + c->token, y = *x + c->bias;
    c->was = *x;
    *x     = (y > 0 ? y / c->repeat : y * c->repeat) - c->minus;
}

static __global__ void restore_kernel(float *logits, int n_vocab, const logit_change *items, int n_items)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n_items) logits[(size_t)items[i].row * n_vocab + items[i].token] = items[i].was;
}

extern "C" cudaError_t cuda_change_logits(cudaStream_t s, float *logits, int n_vocab, logit_change *items, int n_items)
{
    LAUNCH(change_kernel, blocks_for((size_t)n_items, 256), 256, 0, s, logits, n_vocab, items, n_items);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_restore_logits(cudaStream_t s, float *logits, int n_vocab, const logit_change *items,
                                           int n_items)
{
    LAUNCH(restore_kernel, blocks_for((size_t)n_items, 256), 256, 0, s, logits, n_vocab, items, n_items);
    return cudaGetLastError();
}

static __global__ void mask_kernel(float *logits, int n_vocab, const uint64_t *masks, int words, const int32_t *rows)
{
    int token = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (token >= n_vocab || masks[(size_t)blockIdx.y * words + token / 64] >> token % 64 & 1) return;
    logits[(size_t)rows[blockIdx.y] * n_vocab + token] = -INFINITY;
}

extern "C" cudaError_t cuda_mask_logits(cudaStream_t s, float *logits, int n_vocab, const uint64_t *masks,
                                        const int32_t *rows, int n)
{
    LAUNCH(mask_kernel, dim3(blocks_for((size_t)n_vocab, 256), (unsigned)n), 256, 0, s, logits, n_vocab, masks,
           (int)sampling_mask_words(n_vocab), rows);
    return cudaGetLastError();
}

/* A block per row: the smallest logit, then the rest of the row, then what is there. */
static __global__ void __launch_bounds__(PICK_THREADS)
    scatter_kernel(float *y, const float *x, const int32_t *sel, const int32_t *map, int n_slots, int n, int n_vocab,
                   float below)
{
    __shared__ float part[PICK_THREADS / WARP];
    size_t           row = blockIdx.x, n_all = (size_t)n_slots * n;
    const float     *xr  = x + row * n_all;
    float           *yr  = y + row * n_vocab;
    float            min = INFINITY;
    for (size_t j = threadIdx.x; j < n_all; j += PICK_THREADS) min = fminf(min, xr[j]);
    min = -warp_max(-min);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = min;
    __syncthreads();
    for (int i = 0; i < PICK_THREADS / WARP; i++) min = fminf(min, part[i]);
    for (int i = threadIdx.x; i < n_vocab; i += PICK_THREADS) yr[i] = min - below;
    __syncthreads();
    for (size_t j = threadIdx.x; j < n_all; j += PICK_THREADS) {
        size_t slot               = sel ? (size_t)sel[row * n_slots + j / n] : j / n;
        yr[map[slot * n + j % n]] = xr[j];
    }
}

extern "C" cudaError_t cuda_scatter_logits(cudaStream_t s, float *y, const float *x, const int32_t *sel,
                                           const int32_t *map, int n_rows, int n_slots, int n, int n_vocab, float below)
{
    LAUNCH(scatter_kernel, (unsigned)n_rows, PICK_THREADS, 0, s, y, x, sel, map, n_slots, n, n_vocab, below);
    return cudaGetLastError();
}

/* A block per row: a warp per candidate computes its score, then as scatter_kernel. */
static __global__ void __launch_bounds__(PICK_THREADS) pair_kernel(pair_rows c)
{
    __shared__ float     score[SAMPLE_TOP_MAX];
    size_t               row  = blockIdx.x;
    int                  warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const token_logprob *top = (const token_logprob *)c.top.p + row * c.n_top;
    const float         *a   = (const float *)c.a.p + row * c.n;
    const float         *b   = c.b.p ? (const float *)c.b.p + row * c.n : NULL;
    float               *y   = (float *)c.y.p + row * c.n_vocab;
    float                min = INFINITY;
    for (int s = warp; s < c.n_top; s += PICK_THREADS / WARP) {
        const float *x   = (const float *)c.c.p + (row * c.n_top + s) * c.n;
        float        sum = 0;
        for (int i = lane; i < c.n; i += WARP) sum = fmaf(b ? a[i] * b[i] : a[i], x[i], sum);
        sum = warp_sum(sum);
        if (lane == 0) score[s] = top[s].logprob + sum;
    }
    __syncthreads();
    for (int s = 0; s < c.n_top; s++)
        if (top[s].id >= 0) min = fminf(min, score[s]);
    for (int i = threadIdx.x; i < c.n_vocab; i += PICK_THREADS) y[i] = min - c.below;
    __syncthreads();
    for (int s = threadIdx.x; s < c.n_top; s += PICK_THREADS)
        if (top[s].id >= 0) y[top[s].id] = score[s];
}

extern "C" cudaError_t cuda_pair_logits(cudaStream_t s, const pair_rows *c, int n_rows)
{
    LAUNCH(pair_kernel, (unsigned)n_rows, PICK_THREADS, 0, s, *c);
    return cudaGetLastError();
}
