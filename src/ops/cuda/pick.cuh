/* ops/cuda/pick.cuh - shared by the kernels that pick tokens and rank logits.
 *
 * Tokens are ranked by keys, whole numbers that order as (logit, lower id first) does; every key is its own. Rows are
 * cut into slices for the blocks of all multiprocessors: each slice leaves its best keys, sorted, and one block merges
 * them. Sums of shares are whole numbers, so they have no order. */
#ifndef TANDEM_OPS_CUDA_PICK_CUH
#define TANDEM_OPS_CUDA_PICK_CUH
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

static __device__ inline u64 block_total(u64 v)
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
static __device__ inline scored best_of(const float *z, int from, int to)
{
    scored best = {0, -1};
    for (int i = from + (int)threadIdx.x; i < to; i += PICK_THREADS) {
        scored x = {(double)z[i], i};
        if (isfinite(z[i]) && better(x, best)) best = x;
    }
    return block_best(best);
}
static __device__ inline scored best_logit(const float *z, int n) { return best_of(z, 0, n); }

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
static __device__ inline u64 block_top(u64 key)
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

/* --- slices ---------------------------------------------------------------------------------------*/
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
static __device__ inline void slice_best(u64 *out, const float *z, int from, int to, int want)
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

/* Merges the slices' best keys; keys: shared, they are the first SLICE_BEST of it. */
static __device__ inline void merge_slices(u64 *keys, const sample_row *r)
{
    for (int i = threadIdx.x; i < SAMPLE_SLICES * SLICE_BEST; i += PICK_THREADS)
        keys[i] = r->best[i / SLICE_BEST][i % SLICE_BEST];
    __syncthreads();
    merge_lists(keys, SAMPLE_SLICES);
}

/* --- a list of the best ---------------------------------------------------------------------------*/
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

#endif
