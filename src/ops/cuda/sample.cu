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
#include "ops/cuda/device.cuh"
#include "ops/sampling_math.h"

enum { PICK_THREADS = 1024, DIGITS = 256, DIGIT_BITS = 8 };
/* Keys that slice_best may find, so that it has room for all that a vocabulary of MOST_TOKENS may give. */
enum { SLICE_FOUND = 1024, MOST_TOKENS = SAMPLE_SLICES * PICK_THREADS * (SLICE_FOUND / SLICE_BEST) };
/* Samples by top-p and min-p: blocks of a row and their threads; parts of the histogram; keys listed at most. */
enum { WIDE_SLICES = 64, WIDE_THREADS = 512, BINS = 1024, LISTED = 4096 };

typedef unsigned long long u64; /* the type of CUDA's atomics */

/* --- over a block ---------------------------------------------------------------------------------*/
struct scored {
    double  score;
    int32_t id; /* -1: none */
};

static __device__ inline bool better(const scored &a, const scored &b)
{
    if (a.id < 0 || b.id < 0) return a.id >= 0;
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

/* The best of all threads', to all threads. */
template <int THREADS = PICK_THREADS> static __device__ scored block_best(scored v)
{
    __shared__ scored part[THREADS / WARP];
    for (int k = WARP / 2; k > 0; k /= 2) {
        scored other;
        other.score = __shfl_xor_sync(ALL_LANES, v.score, k);
        other.id    = __shfl_xor_sync(ALL_LANES, v.id, k);
        if (better(other, v)) v = other;
    }
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = v;
    __syncthreads();
    for (int i = 0; i < THREADS / WARP; i++)
        if (better(part[i], v)) v = part[i];
    __syncthreads(); /* part may be written again */
    return v;
}

static __device__ u64 block_total(u64 v)
{
    __shared__ u64 total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    if (v) atomicAdd(&total, v);
    __syncthreads();
    v = total;
    __syncthreads(); /* total may be written again */
    return v;
}

/* The best of the logits [from, to). */
static __device__ scored best_of(const float *z, int from, int to)
{
    scored best = {0, -1};
    for (int i = from + (int)threadIdx.x; i < to; i += PICK_THREADS) {
        scored x = {(double)z[i], i};
        if (isfinite(z[i]) && better(x, best)) best = x;
    }
    return block_best(best);
}
static __device__ scored best_logit(const float *z, int n) { return best_of(z, 0, n); }

/* --- ranking by keys ------------------------------------------------------------------------------*/

/* Above another's when the logit is higher, or equal and the id lower; 0 for what is never picked. */
static __device__ inline u64 key_of(float logit, int32_t id)
{
    uint32_t bits = __float_as_uint(logit + 0.0f); /* -0 becomes 0: they are equal */
    bits          = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return isfinite(logit) ? (u64)bits << 32 | (uint32_t)~id : 0;
}

static __device__ inline u64 key_of_score(double score)
{
    u64 bits = (u64)__double_as_longlong(score + 0.0);
    return bits >> 63 ? ~bits : bits | (u64)1 << 63;
}

/* The logit of a key that is not 0, with 0 for -0, and its token. */
static __device__ inline float logit_of_key(u64 key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}
static __device__ inline int32_t token_of_key(u64 key) { return key ? (int32_t) ~(uint32_t)key : -1; }

static __device__ inline u64 warp_top(u64 key)
{
    for (int k = WARP / 2; k > 0; k /= 2) {
        u64 other = __shfl_xor_sync(ALL_LANES, key, k);
        key       = other > key ? other : key;
    }
    return key;
}

/* The largest of all threads' keys, to the first warp. */
static __device__ u64 block_top(u64 key)
{
    __shared__ u64 part[PICK_THREADS / WARP];
    key = warp_top(key);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = key;
    __syncthreads();
    return threadIdx.x < WARP ? warp_top(part[threadIdx.x]) : 0;
}

/* The thread's largest key of the logits [from, to). */
static __device__ inline u64 own_top(const float *z, int from, int to)
{
    u64 top = 0;
#pragma unroll 8
    for (int i = from + (int)threadIdx.x; i < to; i += PICK_THREADS) {
        u64 key = key_of(z[i], i);
        top     = key > top ? key : top;
    }
    return top;
}

static __device__ inline u64 larger(u64 a, u64 b) { return a > b ? a : b; }
static __device__ inline u64 smaller(u64 a, u64 b) { return a < b ? a : b; }

/* Exchanges keys with the lane k away, so that the larger ones come first (`falls`) or last. */
static __device__ inline u64 exchanged(u64 key, int k, bool falls)
{
    u64 other = __shfl_xor_sync(ALL_LANES, key, k);
    return !(threadIdx.x & (unsigned)k) == falls ? larger(key, other) : smaller(key, other);
}

/* Sorts the keys of a warp's lanes, the largest first. */
static __device__ inline u64 warp_sorted(u64 key)
{
    for (int size = 2; size <= WARP; size *= 2)
        for (int k = size / 2; k > 0; k /= 2) key = exchanged(key, k, size == WARP || !(threadIdx.x & (unsigned)size));
    return key;
}

/* Sorts 64 keys of a warp that first fall and then rise: keys lane and lane + 32 are a lane's. */
static __device__ inline void sort_bitonic(u64 *low, u64 *high)
{
    u64 a = larger(*low, *high), b = smaller(*low, *high);
    for (int k = WARP / 2; k > 0; k /= 2) a = exchanged(a, k, true), b = exchanged(b, k, true);
    *low  = a;
    *high = b;
}

/* By the first n_lists / 2 warps, n_lists a power of two: merges sorted lists of SLICE_BEST keys, by pairs, until the
 * best are in the first list. The lists were written before a barrier; a barrier follows. */
static __device__ inline void merge_lists(u64 *keys, int n_lists)
{
    static_assert((int)SLICE_BEST == 2 * (int)WARP, "two keys of a list per lane");
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int n = n_lists / 2; n > 0; n /= 2) {
        if (warp < n) {
            u64 *a = keys + warp * SLICE_BEST, *b = keys + (warp + n) * SLICE_BEST;
            u64  low = larger(a[lane], b[SLICE_BEST - 1 - lane]), high = larger(a[lane + WARP], b[WARP - 1 - lane]);
            sort_bitonic(&low, &high);
            a[lane]        = low;
            a[lane + WARP] = high;
        }
        __syncthreads();
    }
}

/* The want-th largest of all threads' keys, to all threads; want <= SLICE_BEST. */
static __device__ inline u64 block_kth(u64 *room, u64 key, int want)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    room[threadIdx.x] = warp_sorted(key);
    __syncthreads();
    if (warp < PICK_THREADS / SLICE_BEST) { /* two lists of a warp's keys each become one */
        u64 *a = room + warp * SLICE_BEST, low = a[lane], high = a[SLICE_BEST - 1 - lane];
        sort_bitonic(&low, &high);
        __syncwarp();
        a[lane]        = low;
        a[lane + WARP] = high;
    }
    __syncthreads();
    merge_lists(room, PICK_THREADS / SLICE_BEST);
    return room[want - 1];
}

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

/* By a warp: finds the largest digit with which the amounts from the top reach `need`, -1: none; above becomes what
 * lies over it. A lane has eight digits, the first lane the largest. */
static __device__ inline void find_digit(const u64 *amount, u64 *above, int *digit, double need)
{
    enum { EACH = DIGITS / WARP };
    int lane = threadIdx.x, top = DIGITS - 1 - lane * EACH, mine = -1;
    u64 own = 0, before = *above;
    for (int j = 0; j < EACH; j++) own += amount[top - j];
    u64 sum = own; /* sum over this lane and those before it */
    for (int k = 1; k < WARP; k *= 2) {
        u64 other = __shfl_sync(ALL_LANES, sum, lane - k);
        if (lane >= k) sum += other;
    }
    before += sum - own;
    for (int j = 0; j < EACH && mine < 0; j++) {
        u64 a = amount[top - j];
        if (a && (double)(before + a) >= need)
            mine = top - j;
        else
            before += a;
    }
    uint32_t first = warp_min_u32(mine >= 0 ? (uint32_t)lane : (uint32_t)WARP);
    if (first == WARP && lane == 0) *digit = -1;
    if ((uint32_t)lane == first) *digit = mine, *above = before;
}

/* Digit by digit, highest first: the largest key from which on the weights of all keys, and `before`, sum up to `need`;
 * 0 when all of them together do not. key(i) 0: out; weight(i) 0: adds nothing. */
template <typename Key, typename Weight>
static __device__ u64 find_floor(int n, Key key, Weight weight, double need, u64 before = 0)
{
    __shared__ u64 amount[DIGITS], above;
    __shared__ int digit;
    u64            found = 0, mask = 0;
    if (threadIdx.x == 0) above = before;
    for (int shift = 64 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        for (int d = threadIdx.x; d < DIGITS; d += PICK_THREADS) amount[d] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += PICK_THREADS) {
            u64 k = key(i);
            if (!k || (k & mask) != found) continue;
            u64 w = weight(i);
            if (w) atomicAdd(&amount[k >> shift & (DIGITS - 1)], w);
        }
        __syncthreads();
        if (threadIdx.x < WARP) find_digit(amount, &above, &digit, need);
        __syncthreads();
        if (digit < 0) return 0;
        found |= (u64)digit << shift;
        mask |= (u64)(DIGITS - 1) << shift;
        __syncthreads(); /* digit may be written again */
    }
    return found;
}

/* The k-th largest key, of equal ones each counted; 0 when there are fewer. At least k keys reach the k-th largest of
 * the threads' own maxima, so all below it is left out, and few are counted digit by digit. */
template <typename Key> static __device__ u64 find_kth(int n, Key key, int k)
{
    auto one  = [](int) { return (u64)1; };
    u64  mine = 0, bound = 0;
    for (int i = threadIdx.x; i < n; i += PICK_THREADS) mine = key(i) > mine ? key(i) : mine;
    auto own = [&](int) { return mine; }; /* a thread asks for its own alone */
    if (k <= PICK_THREADS) bound = find_floor(PICK_THREADS, own, one, (double)k);
    auto high = [&](int i) { return key(i) >= bound ? key(i) : 0; };
    return find_floor(n, high, one, (double)k);
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

/* The scratch of a row. */
struct sample_row {
    u64      best[SAMPLE_SLICES][SLICE_BEST]; /* WAY_FEW: sorted; WAY_WIDE: the first is a slice's largest */
    u64      worst[SAMPLE_SLICES];            /* smallest key of a slice; 0: none */
    scored   score[WIDE_SLICES];              /* best score of a slice */
    u64      share[BINS];                     /* sums of shares by bin_of */
    u64      listed[LISTED];                  /* keys in the bin where top-p ends */
    unsigned n_listed;                        /* may be larger than LISTED: then the list is incomplete */
    u64      above;                           /* sum of the bins above it */
    double   need;                            /* sum of shares at which top-p ends */
};
static_assert(sizeof(sample_row) <= SAMPLE_ROW_BYTES, "room for a row");

/* The `want` largest keys of the logits [from, to), in order; 0 after the last. At least `want` keys reach the want-th
 * largest of the threads' own, and few more. */
static __device__ void slice_best(u64 *out, const float *z, int from, int to, int want)
{
    __shared__ u64 tops[PICK_THREADS], found[SLICE_FOUND];
    __shared__ int n_found;
    u64            own = own_top(z, from, to);
    if (want == 1) {
        own = block_top(own);
        if (threadIdx.x == 0) out[0] = own;
        return;
    }
    if (threadIdx.x == 0) n_found = 0;
    u64 floor = larger(block_kth(tops, own, want), 1);
    if (own >= floor)
        for (int i = from + (int)threadIdx.x; i < to; i += PICK_THREADS) {
            u64 key = key_of(z[i], i);
            if (key >= floor) found[atomicAdd(&n_found, 1)] = key;
        }
    __syncthreads();
    for (int i = threadIdx.x; i < n_found; i += PICK_THREADS) {
        int rank = 0;
        for (int j = 0; j < n_found; j++) rank += found[j] > found[i];
        if (rank < want) out[rank] = found[i];
    }
    for (int i = n_found + (int)threadIdx.x; i < SLICE_BEST; i += PICK_THREADS) out[i] = 0;
    for (int i = want + (int)threadIdx.x; i < SLICE_BEST; i += PICK_THREADS) out[i] = 0;
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

/* Merges the slices' best keys; keys: shared, they are the first SLICE_BEST of it. */
static __device__ inline void merge_slices(u64 *keys, const sample_row *r)
{
    for (int i = threadIdx.x; i < SAMPLE_SLICES * SLICE_BEST; i += PICK_THREADS)
        keys[i] = r->best[i / SLICE_BEST][i % SLICE_BEST];
    __syncthreads();
    merge_lists(keys, SAMPLE_SLICES);
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
template <int MAX> struct leaders {
    scored item[MAX];
    int    n;
};

/* A thread's token, if there is room. Order does not matter: ranks are found by counting. */
template <int MAX> static __device__ inline void add_leader(leaders<MAX> *l, double score, int32_t id)
{
    int at = atomicAdd(&l->n, 1);
    if (at < MAX) l->item[at] = {score, id};
}

template <int MAX> static __device__ int rank_of(const leaders<MAX> *l, int i)
{
    int rank = 0;
    for (int j = 0; j < l->n; j++) rank += better(l->item[j], l->item[i]);
    return rank;
}

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
