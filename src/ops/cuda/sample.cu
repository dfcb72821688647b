/* Picking on the GPU: the same tokens, to the bit, as ops/sampling.c.
 *
 * Tokens are ranked by keys, whole numbers that order as (logit, lower id first) does; every key is its own. Top-k and
 * top-p keep the keys from some key on, found digit by digit: of the tokens that agree with the digits so far, how much
 * (tokens, or shares of probability) each next digit has. Shares are whole numbers too, so sums have no order, and a
 * block of threads finds what the processor's heap finds.
 *
 * Rows are cut into slices for the blocks of all multiprocessors. Samples that depend on few tokens (greedy, small
 * top-k): each slice leaves its best keys, sorted, and one block merges them. Temperature alone: each slice leaves its
 * best score. Top-p and min-p: a histogram of shares by logit finds the part of the ranking where top-p ends; tokens
 * above it are scored by the slices, tokens inside it are listed for one block, which finds the last one exactly. The
 * rest (a large top-k, too many equal logits) is one block's work. */
#include "ops/cuda/pick.cuh"

/* One row on its way through the filters. */
struct row_view {
    const float *z; /* [n] */
    int          n;
    double       temp, z_max;
    u64          floor;   /* keys below are out */
    double       z_floor; /* and so is what lies under this (min-p) */
};

static __device__ inline u64 row_key(const row_view &r, int i) { return key_of(r.z[i], i); }

static __device__ inline u64 share_of(const row_view &r, int i)
{
    return sampling_share((double)r.z[i] / r.temp - r.z_max);
}

/* Temperature, top-k, top-p and min-p of a row; `best` is its highest logit. */
static __device__ row_view filtered(const float *z, int n, const sample_params &p, scored best)
{
    row_view r   = {z, n, (double)p.temp, best.score / (double)p.temp, 1, -INFINITY};
    auto     key = [&](int i) {
        u64 k = row_key(r, i);
        return k >= r.floor ? k : 0;
    };
    auto share = [&](int i) { return share_of(r, i); };
    if (p.top_k > 0 && p.top_k < n) {
        u64 floor = find_kth(n, key, p.top_k);
        if (floor) r.floor = floor;
    }
    if (p.top_p < 1) {
        u64 total = 0;
        for (int i = threadIdx.x; i < n; i += PICK_THREADS)
            if (key(i)) total += share_of(r, i);
        total     = block_total(total);
        u64 floor = find_floor(n, key, share, (double)p.top_p * (double)total);
        if (floor) r.floor = floor;
    }
    if (p.min_p > 0) r.z_floor = r.z_max + sampling_math_log((double)p.min_p);
    return r;
}

/* logit / temp of token i; false when it was filtered out. */
static __device__ inline bool passes(const row_view &r, int i, double *z)
{
    *z = (double)r.z[i] / r.temp;
    return row_key(r, i) >= r.floor && *z >= r.z_floor;
}

/* --- argmax and sample ----------------------------------------------------------------------------*/
/* Grid: x over slices of a row, y over rows. */
static __global__ void __launch_bounds__(PICK_THREADS) argmax_slices_kernel(u64 *part, const float *logits, int n_vocab)
{
    int per_block = (n_vocab + ARGMAX_SLICES - 1) / ARGMAX_SLICES, from = (int)blockIdx.x * per_block;
    let_next_start();
    wait_for_previous();
    u64 top = block_top(own_top(logits + (size_t)blockIdx.y * n_vocab, from, min_of(from + per_block, n_vocab)));
    if (threadIdx.x == 0) part[blockIdx.y * ARGMAX_SLICES + blockIdx.x] = top;
}

/* A warp per row. */
static __global__ void argmax_kernel(int32_t *id, const u64 *part)
{
    static_assert((int)ARGMAX_SLICES == (int)WARP, "a lane per slice");
    let_next_start();
    wait_for_previous();
    u64 top = warp_top(part[blockIdx.x * ARGMAX_SLICES + threadIdx.x]);
    if (threadIdx.x == 0) id[blockIdx.x] = token_of_key(top);
}

extern "C" cudaError_t cuda_argmax(cudaStream_t s, int32_t *id, const float *logits, void *scratch, int n_rows,
                                   int n_vocab)
{
    static_assert(sizeof(u64) == ARGMAX_BYTES, "room for a slice's best");
    LAUNCH_EARLY(argmax_slices_kernel, dim3(ARGMAX_SLICES, (unsigned)n_rows), PICK_THREADS, 0, s, (u64 *)scratch,
                 logits, n_vocab);
    LAUNCH_EARLY(argmax_kernel, (unsigned)n_rows, WARP, 0, s, id, (const u64 *)scratch);
    return cudaGetLastError();
}

/* Picks among the n tokens of a row. */
static __device__ int32_t pick(const float *z, int n, const sample_params &p)
{
    scored best = best_logit(z, n);
    if (best.id < 0 || p.temp <= 0) return best.id;
    row_view r   = filtered(z, n, p, best);
    u64      key = sampling_position_key(p.seed, p.pos);
    best         = {0, -1};
    for (int i = threadIdx.x; i < n; i += PICK_THREADS) {
        double zi;
        if (!passes(r, i, &zi)) continue;
        u64 bits = sampling_token_bits(key, i);
        if (best.id >= 0 && zi + sampling_noise_bound(bits) < best.score) continue; /* cannot win any more */
        scored x = {zi + sampling_noise_of(bits), i};
        if (better(x, best)) best = x;
    }
    return block_best(best).id;
}

/* The way in which a row's pick is made. */
enum sample_way {
    WAY_FEW,   /* it depends on the highest logits alone */
    WAY_ALONE, /* temperature alone */
    WAY_WIDE,  /* top-p or min-p */
    WAY_BLOCK, /* by one block */
};

/* Returns how many of the highest logits a row's pick can depend on; 0: it may be any. */
static __device__ inline int candidates_of(const sample_params &p, int n_vocab)
{
    if (n_vocab > MOST_TOKENS) return 0;
    if (p.temp <= 0) return 1;
    return p.top_k > 0 && p.top_k < n_vocab && p.top_k <= SLICE_BEST ? p.top_k : 0;
}

static __device__ inline sample_way way_of(const sample_params &p, int n_vocab)
{
    if (candidates_of(p, n_vocab)) return WAY_FEW;
    if (p.temp <= 0 || (p.top_k > 0 && p.top_k < n_vocab)) return WAY_BLOCK;
    return p.top_p < 1 || p.min_p > 0 ? WAY_WIDE : WAY_ALONE;
}

/* A thread's best score: offers tokens in any order. */
struct score_search {
    double temp;
    u64    key;
    scored best;

    __device__ inline score_search(const sample_params &p)
        : temp((double)p.temp), key(sampling_position_key(p.seed, p.pos)), best({0, -1})
    {
    }
    /* z: logit / temp */
    __device__ inline void offer(double z, int32_t id)
    {
        u64 bits = sampling_token_bits(key, id);
        if (best.id >= 0 && z + sampling_noise_bound(bits) < best.score) return; /* cannot win any more */
        scored x = {z + sampling_noise_of(bits), id};
        if (better(x, best)) best = x;
    }
    /* By a whole block: starts from the token of a key, so that few others can win. key: of thread 0; may be 0 */
    __device__ inline void start(u64 top)
    {
        __shared__ scored first;
        if (threadIdx.x == 0) {
            if (top) offer((double)logit_of_key(top) / temp, token_of_key(top));
            first = best;
        }
        __syncthreads();
        best = first;
    }
};

/* The best score of the logits [from, to), for WAY_ALONE. */
static __device__ void slice_score(scored *out, const float *z, int from, int to, const sample_params &p)
{
    score_search search(p);
    search.start(block_top(own_top(z, from, to)));
    for (int i = from + (int)threadIdx.x; i < to; i += PICK_THREADS)
        if (isfinite(z[i])) search.offer((double)z[i] / search.temp, i);
    search.best = block_best(search.best);
    if (threadIdx.x == 0) *out = search.best;
}

/* The ends of a slice's keys, and empty bins, for WAY_WIDE. */
static __device__ void slice_ends(sample_row *r, int slice, const float *z, int from, int to)
{
    u64 top = 0, low = 0; /* the complement of the smallest key */
    for (int i = from + (int)threadIdx.x; i < to; i += PICK_THREADS) {
        u64 key = key_of(z[i], i);
        top     = larger(top, key);
        low     = key ? larger(low, ~key) : low;
    }
    top = block_top(top);
    __syncthreads(); /* block_top may be called again */
    low = block_top(low);
    if (threadIdx.x == 0) {
        r->best[slice][0] = top;
        r->worst[slice]   = low ? ~low : 0;
        if (slice == 0) r->n_listed = 0;
    }
    for (int i = slice * PICK_THREADS + (int)threadIdx.x; i < BINS; i += SAMPLE_SLICES * PICK_THREADS) r->share[i] = 0;
}

/* Grid: x over slices of a row, y over rows. */
static __global__ void __launch_bounds__(PICK_THREADS)
    candidates_kernel(sample_row *rows, const float *logits, const sample_params *params, int n_vocab, bool for_top)
{
    int slice = blockIdx.x, per_block = (n_vocab + SAMPLE_SLICES - 1) / SAMPLE_SLICES, from = slice * per_block;
    int to = min_of(from + per_block, n_vocab);
    let_next_start();
    wait_for_previous();
    const float  *z   = logits + (size_t)blockIdx.y * n_vocab;
    sample_row   *r   = rows + blockIdx.y;
    sample_params p   = params[blockIdx.y];
    sample_way    way = way_of(p, n_vocab);
    if (way == WAY_FEW)
        slice_best(r->best[slice], z, from, to, p.temp <= 0 && for_top ? (int)SLICE_BEST : candidates_of(p, n_vocab));
    else if (way == WAY_ALONE && !for_top)
        slice_score(&r->score[slice], z, from, to, p);
    else if (way == WAY_WIDE && !for_top)
        slice_ends(r, slice, z, from, to);
}

/* --- top-p and min-p ------------------------------------------------------------------------------*/

/* A row's logits by distance from the largest. The width of bins changes no result. */
struct wide_view {
    u64    top;             /* the largest key; 0: no logit is finite */
    double z_max, per_unit; /* bins per unit of logit / temp */

    /* By a whole block. */
    __device__ inline wide_view(const sample_row *r, const sample_params &p)
    {
        int lane = threadIdx.x % WARP;
        static_assert((int)SAMPLE_SLICES == (int)WARP, "a lane per slice");
        u64 worst = r->worst[lane], low = warp_top(worst ? ~worst : 0);
        top          = warp_top(r->best[lane][0]);
        z_max        = top ? (double)logit_of_key(top) / (double)p.temp : 0;
        double range = top ? z_max - (double)logit_of_key(~low) / (double)p.temp : 0;
        per_unit     = BINS / (range < 32 ? range + 0x1p-20 : 32);
    }
    /* x: logit / temp - z_max */
    __device__ inline int bin_of(double x) const
    {
        double bin = -x * per_unit;
        return bin < BINS - 1 ? (int)bin : BINS - 1;
    }
};

/* Adds up the shares of a row by bin. Grid: x over slices of a row, y over rows; as the next kernel. */
static __global__ void __launch_bounds__(WIDE_THREADS)
    shares_kernel(sample_row *rows, const float *logits, const sample_params *params, int n_vocab)
{
    __shared__ u64 share[BINS];
    int            per_block = (n_vocab + WIDE_SLICES - 1) / WIDE_SLICES, from = (int)blockIdx.x * per_block;
    int            to = min_of(from + per_block, n_vocab);
    let_next_start();
    wait_for_previous();
    sample_params p = params[blockIdx.y];
    if (way_of(p, n_vocab) != WAY_WIDE || !(p.top_p < 1)) return; /* the whole block */
    sample_row  *r = rows + blockIdx.y;
    const float *z = logits + (size_t)blockIdx.y * n_vocab;
    wide_view    v(r, p);
    for (int i = threadIdx.x; i < BINS; i += WIDE_THREADS) share[i] = 0;
    __syncthreads();
    for (int i = from + (int)threadIdx.x; i < to; i += WIDE_THREADS) {
        double x = (double)z[i] / (double)p.temp - v.z_max;
        u64    w = isfinite(z[i]) ? sampling_share(x) : 0;
        if (w) atomicAdd(&share[v.bin_of(x)], w);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += WIDE_THREADS)
        if (share[i]) atomicAdd(&r->share[i], share[i]);
}

/* Where top-p ends. */
struct wide_end {
    int    bin;
    u64    above;
    double need;
};
/* By a whole block: the first bin with which the shares reach top_p of all. */
static __device__ wide_end end_of(const sample_row *r, double top_p)
{
    enum { EACH = BINS / WIDE_THREADS };
    __shared__ u64 part[WIDE_THREADS / WARP], above;
    __shared__ int bin;
    int            warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, first = (int)threadIdx.x * EACH;
    u64            own[EACH], sum = 0, total = 0, before = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) sum += own[j] = r->share[first + j];
    u64 mine = sum; /* then: over this lane and those before it */
    for (int k = 1; k < WARP; k *= 2) {
        u64 other = __shfl_sync(ALL_LANES, mine, lane - k);
        if (lane >= k) mine += other;
    }
    if (lane == WARP - 1) part[warp] = mine;
    if (threadIdx.x == 0) bin = BINS;
    __syncthreads();
    for (int w = 0; w < WIDE_THREADS / WARP; w++) {
        if (w == warp) before = total;
        total += part[w];
    }
    double need = top_p * (double)total;
    before += mine - sum;
    u64 at = before;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        at += own[j];
        if (own[j] && (double)at >= need) atomicMin(&bin, first + j);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        if (bin == first + j) above = before;
        before += own[j];
    }
    __syncthreads();
    return {bin, above, need};
}

/* Scores the tokens that are above the end of top-p, and lists those that may be. */
static __global__ void __launch_bounds__(WIDE_THREADS)
    scores_kernel(sample_row *rows, const float *logits, const sample_params *params, int n_vocab)
{
    int per_block = (n_vocab + WIDE_SLICES - 1) / WIDE_SLICES, from = (int)blockIdx.x * per_block;
    int to = min_of(from + per_block, n_vocab);
    let_next_start();
    wait_for_previous();
    sample_params p = params[blockIdx.y];
    if (way_of(p, n_vocab) != WAY_WIDE) return; /* the whole block */
    sample_row  *r = rows + blockIdx.y;
    const float *z = logits + (size_t)blockIdx.y * n_vocab;
    wide_view    v(r, p);
    wide_end     end     = p.top_p < 1 ? end_of(r, (double)p.top_p) : wide_end{BINS, 0, 0};
    double       z_floor = p.min_p > 0 ? v.z_max + sampling_math_log((double)p.min_p) : -INFINITY;
    score_search search(p);
    search.start(v.top); /* it passes all filters */
    for (int i = from + (int)threadIdx.x; i < to; i += WIDE_THREADS) {
        double zi = (double)z[i] / search.temp;
        if (!isfinite(z[i])) continue;
        int bin = p.top_p < 1 ? v.bin_of(zi - v.z_max) : 0;
        if (bin == end.bin) {
            unsigned at = atomicAdd(&r->n_listed, 1u);
            if (at < LISTED) r->listed[at] = key_of(z[i], i);
        } else if (bin < end.bin && zi >= z_floor)
            search.offer(zi, i);
    }
    search.best = block_best<WIDE_THREADS>(search.best);
    if (threadIdx.x != 0) return;
    r->score[blockIdx.x] = search.best;
    if (blockIdx.x == 0) r->above = end.above, r->need = end.need;
}

/* As find_floor, of n <= PICK_THREADS distinct keys at once: a thread adds up the weights from its own key on. room:
 * shared, 2 PICK_THREADS */
static __device__ inline u64 find_floor_of_few(u64 *room, int n, u64 key, u64 weight, double need, u64 before)
{
    __shared__ u64 floor;
    int            i   = threadIdx.x;
    u64            sum = before, *weights = room + PICK_THREADS;
    if (i == 0) floor = 0;
    if (i < n) room[i] = key, weights[i] = weight;
    __syncthreads();
    for (int j = 0; i < n && j < n; j++) sum += room[j] >= key ? weights[j] : 0;
    if (i < n && weight && (double)sum >= need) atomicMax(&floor, key);
    __syncthreads();
    return floor;
}

/* Picks a row whose slices were scored: adds the listed tokens down to the end of top-p. room: as above */
static __device__ int32_t pick_wide(u64 *room, const sample_row *r, const sample_params &p)
{
    wide_view v(r, p);
    int       n   = (int)r->n_listed;
    auto      key = [&](int i) { return r->listed[i]; };
    auto share = [&](int i) { return sampling_share((double)logit_of_key(r->listed[i]) / (double)p.temp - v.z_max); };
    if (!v.top) return -1;
    u64 floor = 1;
    if (n > PICK_THREADS)
        floor = find_floor(n, key, share, r->need, r->above);
    else if (n > 0) {
        int i = min_of((int)threadIdx.x, n - 1);
        floor = find_floor_of_few(room, n, key(i), share(i), r->need, r->above);
    }
    double       z_floor = p.min_p > 0 ? v.z_max + sampling_math_log((double)p.min_p) : -INFINITY;
    score_search search(p);
    for (int i = threadIdx.x; i < n; i += PICK_THREADS) {
        double z = (double)logit_of_key(r->listed[i]) / search.temp;
        if (r->listed[i] >= floor && z >= z_floor) search.offer(z, token_of_key(r->listed[i]));
    }
    if (threadIdx.x < WIDE_SLICES && better(r->score[threadIdx.x], search.best)) search.best = r->score[threadIdx.x];
    return block_best(search.best).id;
}

/* --- the last kernel ------------------------------------------------------------------------------*/

/* Scores the n <= SLICE_BEST highest keys of a row, in order, temp > 0: thread i the i-th. id -1: filtered out. */
static __device__ scored score_sorted(const u64 *keys, int n, const sample_params &p)
{
    __shared__ u64 shares[SLICE_BEST];
    __shared__ int last;
    int            i    = threadIdx.x;
    u64            mine = i < n ? keys[i] : 0, before = 0, total = 0;
    double z_max = (double)logit_of_key(keys[0]) / (double)p.temp, z = (double)logit_of_key(mine) / (double)p.temp;
    if (i == 0) last = n - 1;
    if (i < n) shares[i] = mine ? sampling_share(z - z_max) : 0;
    __syncthreads();
    if (p.top_p < 1 && i < n) {
        for (int j = 0; j < n; j++) {
            total += shares[j];
            if (j <= i) before += shares[j];
        }
        if (shares[i] && (double)before >= (double)p.top_p * (double)total) atomicMin(&last, i);
    }
    __syncthreads();
    double z_floor = p.min_p > 0 ? z_max + sampling_math_log((double)p.min_p) : -INFINITY;
    if (!mine || i > last || z < z_floor) return {0, -1};
    u64 bits = sampling_token_bits(sampling_position_key(p.seed, p.pos), token_of_key(mine));
    return {z + sampling_noise_of(bits), token_of_key(mine)};
}

static __device__ int32_t pick_few(u64 *keys, const sample_row *r, const sample_params &p, int want)
{
    if (want > 1) {
        merge_slices(keys, r);
        return keys[0] ? block_best(score_sorted(keys, want, p)).id : -1;
    }
    static_assert((int)SAMPLE_SLICES == (int)WARP, "a lane per slice");
    return token_of_key(warp_top(r->best[threadIdx.x % WARP][0]));
}

static __global__ void __launch_bounds__(PICK_THREADS)
    sample_kernel(int32_t *id, const float *logits, const sample_row *rows, const sample_params *params, int n_vocab)
{
    __shared__ u64 keys[SAMPLE_SLICES * SLICE_BEST];
    let_next_start();
    wait_for_previous();
    const sample_row *r   = rows + blockIdx.x;
    sample_params     p   = params[blockIdx.x];
    sample_way        way = way_of(p, n_vocab);
    int32_t           picked;
    if (way == WAY_FEW)
        picked = pick_few(keys, r, p, candidates_of(p, n_vocab));
    else if (way == WAY_ALONE)
        picked = block_best(threadIdx.x < SAMPLE_SLICES ? r->score[threadIdx.x] : scored{0, -1}).id;
    else if (way == WAY_WIDE && r->n_listed <= LISTED)
        picked = pick_wide(keys, r, p);
    else
        picked = pick(logits + (size_t)blockIdx.x * n_vocab, n_vocab, p);
    if (threadIdx.x == 0) id[blockIdx.x] = picked;
}

extern "C" cudaError_t cuda_sample(cudaStream_t s, int32_t *id, const float *logits, void *scratch,
                                   const sample_params *p, int n_rows, int n_vocab)
{
    for (int at = 0; at < n_rows; at += SAMPLE_ROWS) {
        unsigned     n    = (unsigned)min_int(n_rows - at, SAMPLE_ROWS);
        const float *z    = logits + (size_t)at * (size_t)n_vocab;
        sample_row  *rows = (sample_row *)scratch;
        LAUNCH_EARLY(candidates_kernel, dim3(SAMPLE_SLICES, n), PICK_THREADS, 0, s, rows, z, p + at, n_vocab, false);
        LAUNCH_EARLY(shares_kernel, dim3(WIDE_SLICES, n), WIDE_THREADS, 0, s, rows, z, p + at, n_vocab);
        LAUNCH_EARLY(scores_kernel, dim3(WIDE_SLICES, n), WIDE_THREADS, 0, s, rows, z, p + at, n_vocab);
        LAUNCH_EARLY(sample_kernel, n, PICK_THREADS, 0, s, id + at, z, rows, p + at, n_vocab);
    }
    return cudaGetLastError();
}

/* --- the first few --------------------------------------------------------------------------------*/
/* score[i] of every token; -infinity when it is out. */
static __device__ void score_all(double *score, const float *z, int n, const sample_params &p, scored best)
{
    if (p.temp <= 0) {
        for (int i = threadIdx.x; i < n; i += PICK_THREADS) score[i] = isfinite(z[i]) ? (double)z[i] : -INFINITY;
        __syncthreads();
        return;
    }
    row_view r   = filtered(z, n, p, best);
    u64      key = sampling_position_key(p.seed, p.pos);
    for (int i = threadIdx.x; i < n; i += PICK_THREADS) {
        double zi;
        score[i] = passes(r, i, &zi) ? zi + sampling_noise_of(sampling_token_bits(key, i)) : -INFINITY;
    }
    __syncthreads();
}

/* The SAMPLE_TOP_MAX best scores; of equal ones at the end of the list those with the lowest ids. */
static __device__ void lead_scores(leaders<SAMPLE_TOP_MAX> *l, const double *score, int n)
{
    auto key   = [&](int i) { return isfinite(score[i]) ? key_of_score(score[i]) : 0; };
    u64  floor = find_kth(n, key, SAMPLE_TOP_MAX);
    if (threadIdx.x == 0) l->n = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += PICK_THREADS) {
        u64 k = key(i);
        if (k && k > floor) add_leader(l, score[i], i);
    }
    __syncthreads();
    for (int32_t after = -1; floor && l->n < SAMPLE_TOP_MAX;) { /* l->n is the same for all threads here */
        scored next = {0, -1};
        for (int i = threadIdx.x; i < n; i += PICK_THREADS) {
            scored x = {0, i}; /* the lowest id wins among equal scores */
            if (i > after && key(i) == floor && better(x, next)) next = x;
        }
        next = block_best(next);
        if (next.id < 0) break;
        after = next.id;
        if (threadIdx.x == 0) l->item[l->n++] = {score[after], after};
        __syncthreads();
    }
}

static __device__ void write_leaders(token_logprob *out, const leaders<SAMPLE_TOP_MAX> *l, int n_top, double soft)
{
    __shared__ scored ranked[SAMPLE_TOP_MAX];
    __shared__ double log_sum;
    int               i = threadIdx.x;
    if (i < l->n) ranked[rank_of(l, i)] = l->item[i];
    __syncthreads();
    if (i == 0) { /* in order of rank, as ops/sampling.c */
        double sum = 0;
        for (int j = 0; j < l->n; j++) sum += sampling_math_exp((ranked[j].score - ranked[0].score) / soft);
        log_sum = l->n > 0 ? sampling_math_log(sum) : 0;
    }
    __syncthreads();
    if (i < n_top) {
        out[i].id      = i < l->n ? ranked[i].id : -1;
        out[i].logprob = i < l->n ? (float)((ranked[i].score - ranked[0].score) / soft - log_sum) : -INFINITY;
    }
    __syncthreads(); /* the list may be written again */
}

/* The best scores of a row that depends on few tokens. keys: shared, as for merge_slices. */
static __device__ void lead_few(leaders<SAMPLE_TOP_MAX> *l, u64 *keys, const sample_row *r, const sample_params &p,
                                int n_vocab)
{
    static_assert((int)SAMPLE_TOP_MAX == (int)SLICE_BEST, "the slices have as many as are ranked");
    int    i = threadIdx.x, want = p.temp <= 0 ? (int)SLICE_BEST : candidates_of(p, n_vocab);
    scored mine = {0, -1};
    merge_slices(keys, r);
    if (threadIdx.x == 0) l->n = 0;
    if (p.temp > 0 && keys[0])
        mine = score_sorted(keys, want, p);
    else if (i < want && keys[i])
        mine = {(double)logit_of_key(keys[i]), token_of_key(keys[i])};
    __syncthreads();
    if (mine.id >= 0) add_leader(l, mine.score, mine.id);
}

/* The best scores of any row. score: scratch */
static __device__ void lead_all(leaders<SAMPLE_TOP_MAX> *l, double *score, const float *z, const sample_params &p,
                                int n_vocab)
{
    scored best = best_logit(z, n_vocab);
    if (best.id >= 0) {
        score_all(score, z, n_vocab, p, best);
        lead_scores(l, score, n_vocab);
    } else if (threadIdx.x == 0)
        l->n = 0;
}

/* A block takes every gridDim.x-th row, so that there is one line of scores per block. */
static __global__ void __launch_bounds__(PICK_THREADS)
    sample_top_kernel(token_logprob *out, const float *logits, const sample_row *rows, const sample_params *params,
                      double *scores, int n_rows, int n_vocab, int n_top, float soft)
{
    __shared__ leaders<SAMPLE_TOP_MAX> l;
    __shared__ u64                     keys[SAMPLE_SLICES * SLICE_BEST];
    let_next_start();
    wait_for_previous();
    for (int row = blockIdx.x; row < n_rows; row += gridDim.x) {
        sample_params p = params[row];
        if (way_of(p, n_vocab) == WAY_FEW)
            lead_few(&l, keys, rows + row, p, n_vocab);
        else
            lead_all(&l, scores + (size_t)blockIdx.x * n_vocab, logits + (size_t)row * n_vocab, p, n_vocab);
        __syncthreads();
        write_leaders(out + (size_t)row * n_top, &l, n_top, (double)soft);
    }
}

extern "C" cudaError_t cuda_sample_top(cudaStream_t s, token_logprob *out, const float *logits, const sample_params *p,
                                       double *scores, void *scratch, int n_rows, int n_vocab, int n_top, float soft)
{
    for (int at = 0; at < n_rows; at += SAMPLE_ROWS) {
        int          n    = min_int(n_rows - at, SAMPLE_ROWS);
        const float *z    = logits + (size_t)at * (size_t)n_vocab;
        sample_row  *rows = (sample_row *)scratch;
        LAUNCH_EARLY(candidates_kernel, dim3(SAMPLE_SLICES, (unsigned)n), PICK_THREADS, 0, s, rows, z, p + at, n_vocab,
                     true);
        LAUNCH_EARLY(sample_top_kernel, (unsigned)min_int(n, PICK_BLOCKS), PICK_THREADS, 0, s,
                     out + (size_t)at * (size_t)n_top, z, rows, p + at, scores, n, n_vocab, n_top, soft);
    }
    return cudaGetLastError();
}
