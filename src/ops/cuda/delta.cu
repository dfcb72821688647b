/* Gated delta nets (ops.h): two kernels for a step, one for the replay of kept rows.
 *
 *   inputs    convolution and SiLU, unit queries and keys, decays and strengths a warp per head of a row
 *   rule      the rows of a lane, one after another                             a block per RULE_ROWS rows of a memory
 *
 * A row of the transposed memory S depends on no other. Eight lanes of a warp hold one, lane p the quads p, p + 8, ...
 * of it, and apply row after row to registers:
 *
 *     s = decay s;  m = s.k;  d = beta (v - m);  s = s + d k;  y = s.q
 *
 * A dot is summed in four chains per lane, by element mod 4, then by halves. A kept row continues from the row before
 * it on its path. If registers hold another state, it is made again: the live state, then d k of each kept row of the
 * path, as `replay` does. */
#include "ops/cuda/act.cuh"

static __device__ inline float *live_state(const cuda_delta_class &c, int layer, int32_t lane)
{
    size_t id = (size_t)c.table[lane * c.table_stride];
    return (float *)(c.pool + id * KV_UNIT) + (size_t)layer * c.state_floats;
}
static __device__ inline float *kept_row(const cuda_delta_class &c, int layer, int32_t place)
{
    return (float *)(c.kept + (size_t)place * c.row_bytes) + (size_t)layer * c.kept_floats;
}
static __device__ inline int key_head(const cuda_delta_class &c, int v_head)
{
    return c.tiled ? v_head % c.n_k_heads : v_head / (c.n_v_heads / c.n_k_heads);
}

static __device__ inline float4 fma_quad(float4 a, float4 b, float4 c)
{
    return make_float4(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z), fmaf(a.w, b.w, c.w));
}

/* --- inputs ---------------------------------------------------------------------------------------*/
enum { INPUT_WARPS = 4 };

/* Sets in[j], j < n, to the inputs n - 1 - j rows before r; NULL: zeros. window: the inputs before the step. */
static __device__ inline void find_inputs(const cuda_delta_args &a, int r, int n, const float *window,
                                          const float *(&in)[DELTA_MAX_TAPS])
{
    int  at   = a.c.n_taps - 2;
    bool zero = false;
#pragma unroll
    for (int j = DELTA_MAX_TAPS - 1; j >= 0; j--) {
        in[j] = NULL;
        if (j >= n) continue;
        if (r >= 0) {
            int before = a.before[r];
            in[j]      = a.x + (size_t)r * a.c.n_channels;
            zero       = before < 0 && a.pos[r] == 0;
            r          = before;
        } else {
            in[j] = zero ? NULL : window + (size_t)at-- * a.c.n_channels;
        }
    }
}

/* Returns the factor of the convolved channels of a head whose sum of squares over a warp is that of ss. */
static __device__ inline float unit_scale(const cuda_delta_class &c, int head, float ss)
{
    float whole = warp_sum(ss);
    if (head >= 2 * c.n_k_heads) return 1;
    return (head < c.n_k_heads ? 1 / sqrtf((float)c.head_dim) : 1) / sqrtf(whole + 1e-6f);
}
static __device__ inline float decay_of(float x, float rate) { return expf(rate * (x > 20 ? x : log1pf(expf(x)))); }

/* Ends a row's convolution of a head: v holds the lane's sums, x its inputs. kept NULL: the row is sure. */
template <int QUADS>
static __device__ inline void put_channels(const cuda_delta_args &a, int row, int head, float4 (&v)[QUADS],
                                           const float4 (&x)[QUADS], float *kept)
{
    const cuda_delta_class &c    = a.c;
    int                     lane = threadIdx.x % WARP, D = c.head_dim, K = c.n_k_heads, V = c.n_v_heads;
    float                   ss = 0;
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        v[j] = make_float4(silu(v[j].x), silu(v[j].y), silu(v[j].z), silu(v[j].w));
        ss   = fmaf(v[j].w, v[j].w, fmaf(v[j].z, v[j].z, fmaf(v[j].y, v[j].y, fmaf(v[j].x, v[j].x, ss))));
    }
    float by = unit_scale(c, head, ss);
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        int    i  = 4 * (lane + j * WARP);
        size_t at = (size_t)head * D + i;
        if (i >= D) continue;
        float4 u = make_float4(v[j].x * by, v[j].y * by, v[j].z * by, v[j].w * by);
        *(float4 *)(a.conv + (size_t)row * c.n_channels + at) = u;
        if (kept) *(float4 *)(kept + c.tape_floats + at) = x[j];
        if (kept && head >= K && head < 2 * K) *(float4 *)(kept + (size_t)(V + head - K) * D + i) = u;
    }
    int h = head - 2 * K;
    if (h < 0 || lane != 0) return;
    size_t at    = (size_t)row * V + h;
    float  decay = decay_of(a.a[at] + a.bias[h], a.rate[h]);
    a.a[at]      = decay;
    a.b[at]      = sigmoid(a.b[at]);
    if (kept) kept[(size_t)(V + K) * D + h] = decay;
}

/* Runs a row of a head; in: from find_inputs. */
template <int QUADS>
static __device__ inline void convolve_row(const cuda_delta_args &a, int row, int head,
                                           const float *const (&in)[DELTA_MAX_TAPS], float *kept)
{
    const cuda_delta_class &c = a.c;
    float4                  v[QUADS], own[QUADS];
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        int    i  = 4 * (threadIdx.x % WARP + j * WARP);
        size_t at = (size_t)head * c.head_dim + i;
        v[j] = own[j] = make_float4(0, 0, 0, 0);
        if (i >= c.head_dim) continue;
#pragma unroll
        for (int t = 0; t < DELTA_MAX_TAPS; t++) {
            if (!in[t]) continue;
            float4 w = *(const float4 *)(a.w + (size_t)t * c.n_channels + at), x = *(const float4 *)(in[t] + at);
            v[j] = fma_quad(w, x, v[j]);
            if (t == c.n_taps - 1) own[j] = x;
        }
    }
    put_channels(a, row, head, v, own, kept);
}

/* Grid: x over heads, INPUT_WARPS at a time; y over rows. */
template <int QUADS> static __global__ void __launch_bounds__(INPUT_WARPS *WARP) delta_inputs_kernel(cuda_delta_args a)
{
    const cuda_delta_class &c    = a.c;
    int                     head = blockIdx.x * INPUT_WARPS + threadIdx.x / WARP, row = blockIdx.y;
    const float            *in[DELTA_MAX_TAPS];
    let_next_start();
    if (!a.settled) wait_for_previous();
    bool live = head < 2 * c.n_k_heads + c.n_v_heads && a.lane[row] >= 0; /* otherwise padding */
    if (live) find_inputs(a, row, c.n_taps, live_state(c, c.layer, a.lane[row]) + c.memory_floats, in);
    int32_t place = a.kept[row];
    float  *kept  = place < 0 ? NULL : kept_row(c, c.layer, place);
    if (a.settled) wait_for_previous();
    if (live) convolve_row<QUADS>(a, row, head, in, kept); /* the whole warp */
}

/* The same for many rows, with INPUT_TAPS taps and heads of up to 128: a warp has INPUT_RUN rows, and reads the inputs
 * of rows that follow each other once. */
enum { INPUT_MANY_ROWS = 65, INPUT_RUN = 8, INPUT_TAPS = 4 };

static __global__ void __launch_bounds__(INPUT_WARPS *WARP) delta_inputs_many_kernel(cuda_delta_args a)
{
    const cuda_delta_class &c    = a.c;
    int                     head = blockIdx.x * INPUT_WARPS + threadIdx.x / WARP, first = blockIdx.y * INPUT_RUN;
    int                     n = min_of(INPUT_RUN, a.n_rows - first), lane = threadIdx.x % WARP, i = 4 * lane;
    size_t                  at   = (size_t)head * c.head_dim + i;
    bool                    real = i < c.head_dim;
    const float            *in[DELTA_MAX_TAPS];
    float4                  w[INPUT_TAPS], x[INPUT_RUN + INPUT_TAPS - 1];
    let_next_start();
    wait_for_previous();
    if (head >= 2 * c.n_k_heads + c.n_v_heads) return;
    int  mine    = first + min_of(lane, n - 1);
    bool follows = a.lane[mine] >= 0 && (mine == first || a.before[mine] == mine - 1);
    if (__ballot_sync(ALL_LANES, follows) != ALL_LANES) {
        for (int row = first; row < first + n; row++) {
            if (a.lane[row] < 0) continue;
            find_inputs(a, row, c.n_taps, live_state(c, c.layer, a.lane[row]) + c.memory_floats, in);
            convolve_row<1>(a, row, head, in, a.kept[row] < 0 ? NULL : kept_row(c, c.layer, a.kept[row]));
        }
        return;
    }
    find_inputs(a, first, INPUT_TAPS, live_state(c, c.layer, a.lane[first]) + c.memory_floats, in);
#pragma unroll
    for (int t = 0; t < INPUT_TAPS; t++)
        w[t] = real ? *(const float4 *)(a.w + (size_t)t * c.n_channels + at) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int t = 0; t < INPUT_TAPS - 1; t++)
        x[t] = real && in[t] ? *(const float4 *)(in[t] + at) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < INPUT_RUN; r++)
        x[INPUT_TAPS - 1 + r] =
            real && r < n ? *(const float4 *)(a.x + (size_t)(first + r) * c.n_channels + at) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < INPUT_RUN; r++) {
        if (r >= n) return;
        float4  v[1] = {make_float4(0, 0, 0, 0)}, own[1] = {x[r + INPUT_TAPS - 1]};
        int32_t place = a.kept[first + r];
#pragma unroll
        for (int t = 0; t < INPUT_TAPS; t++) v[0] = fma_quad(w[t], x[r + t], v[0]);
        put_channels(a, first + r, head, v, own, place < 0 ? NULL : kept_row(c, c.layer, place));
    }
}

static void launch_inputs(cudaStream_t s, const cuda_delta_args *a)
{
    const cuda_delta_class *c     = &a->c;
    unsigned                heads = blocks_for((size_t)(2 * c->n_k_heads + c->n_v_heads), INPUT_WARPS);
    dim3                    grid(heads, (unsigned)a->n_rows), runs(heads, blocks_for((size_t)a->n_rows, INPUT_RUN));
    if (a->n_rows >= INPUT_MANY_ROWS && c->n_taps == INPUT_TAPS && c->head_dim <= 128)
        LAUNCH_EARLY(delta_inputs_many_kernel, runs, INPUT_WARPS * WARP, 0, s, *a);
    else if (c->head_dim <= 128)
        LAUNCH_EARLY((delta_inputs_kernel<1>), grid, INPUT_WARPS * WARP, 0, s, *a);
    else
        LAUNCH_EARLY((delta_inputs_kernel<2>), grid, INPUT_WARPS * WARP, 0, s, *a);
}

/* --- the rule -------------------------------------------------------------------------------------*/
enum { RULE_THREADS = 128, RULE_HOLD = 1, RULE_GROUPS = 4 };
enum { RULE_LANES = 8, RULE_ROWS = RULE_THREADS / RULE_LANES * RULE_HOLD };

/* One row of a transposed memory, as its lanes hold it. */
template <int QUADS> struct memory_row {
    float4 s[QUADS];

    static __device__ inline int at(int m) { return 4 * ((int)threadIdx.x % RULE_LANES + m * RULE_LANES); }
    __device__ inline void       clear()
    {
#pragma unroll
        for (int m = 0; m < QUADS; m++) s[m] = make_float4(0, 0, 0, 0);
    }
    __device__ inline void load(const float *from, int D)
    {
#pragma unroll
        for (int m = 0; m < QUADS; m++) s[m] = at(m) < D ? *(const float4 *)(from + at(m)) : make_float4(0, 0, 0, 0);
    }
    __device__ inline void store(float *to, int D) const
    {
#pragma unroll
        for (int m = 0; m < QUADS; m++)
            if (at(m) < D) *(float4 *)(to + at(m)) = s[m];
    }
    __device__ inline void decay(float by)
    {
#pragma unroll
        for (int m = 0; m < QUADS; m++) s[m] = make_float4(by * s[m].x, by * s[m].y, by * s[m].z, by * s[m].w);
    }
    /* s = s + d k */
    __device__ inline void add(float d, const memory_row &k)
    {
#pragma unroll
        for (int m = 0; m < QUADS; m++) s[m] = fma_quad(make_float4(d, d, d, d), k.s[m], s[m]);
    }
    /* Returns this lane's share of the dot. */
    __device__ inline float dot_here(const memory_row &k) const
    {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int m = 0; m < QUADS; m++) sum = fma_quad(s[m], k.s[m], sum);
        return (sum.x + sum.y) + (sum.z + sum.w);
    }
    /* Replaces lanes' shares of N dots by the dots. */
    template <int N> static __device__ inline void add_lanes(float (&v)[N])
    {
#pragma unroll
        for (int k = RULE_LANES / 2; k > 0; k /= 2)
#pragma unroll
            for (int i = 0; i < N; i++) v[i] += __shfl_xor_sync(ALL_LANES, v[i], k);
    }
};

/* Some rows of a step, as one value head sees them. */
template <int QUADS> struct alignas(16) rule_rows {
    enum { CHUNK = QUADS > 4 ? 8 : 16, DIM = 4 * RULE_LANES * QUADS };
    float    q[CHUNK][DIM], k[CHUNK][DIM], v[CHUNK][RULE_ROWS];
    float    decay[CHUNK], beta[CHUNK];
    int32_t  before[CHUNK], kept[CHUNK];
    uint64_t gate;
};

/* The same on its way from memory: what does not come by asynchronous copies. */
template <int QUADS> struct rule_load {
    typedef rule_rows<QUADS> R;
    float                    decay, beta;
    int32_t                  before, kept;

    __device__ inline void start(R *to, const cuda_delta_args &a, int first, int end, int h, int j0)
    {
        const cuda_delta_class &c = a.c;
        int                     D = c.head_dim, n = min_of(R::CHUNK, end - first);
        const float            *keys   = a.conv + (size_t)first * c.n_channels + (size_t)key_head(c, h) * D;
        const float            *values = a.conv + (size_t)first * c.n_channels + (size_t)(2 * c.n_k_heads + h) * D + j0;
        for (int i = threadIdx.x; i < n * (R::DIM / 2); i += RULE_THREADS) {
            int row = i / (R::DIM / 2), key = i / (R::DIM / 4) % 2, at = i % (R::DIM / 4) * 4;
            if (at < D)
                copy_piece(&to->gate, (key ? to->k : to->q)[row] + at,
                           keys + (size_t)row * c.n_channels + (size_t)(key * c.n_k_heads) * D + at, true);
        }
        for (int i = threadIdx.x; i < n * (RULE_ROWS / 4); i += RULE_THREADS) {
            int row = i / (RULE_ROWS / 4), at = i % (RULE_ROWS / 4) * 4;
            if (j0 + at < D) copy_piece(&to->gate, to->v[row] + at, values + (size_t)row * c.n_channels + at, true);
        }
        copy_commit();
        int r = first + threadIdx.x;
        if (threadIdx.x >= R::CHUNK || r >= end) return;
        decay  = a.a[(size_t)r * c.n_v_heads + h];
        beta   = a.b[(size_t)r * c.n_v_heads + h];
        before = a.before[r];
        kept   = a.kept[r];
    }
    /* Returns when all threads see the rows. */
    __device__ inline void finish(R *to) const
    {
        if (threadIdx.x < R::CHUNK) {
            to->decay[threadIdx.x]  = decay;
            to->beta[threadIdx.x]   = beta;
            to->before[threadIdx.x] = before;
            to->kept[threadIdx.x]   = kept;
        }
        copy_wait<0>(&to->gate);
    }
};

/* Makes the elements of keys and queries that heads do not have zeros, where no copy goes. */
template <int QUADS> static __device__ inline void clear_rest(rule_rows<QUADS> (&rows)[2], int D)
{
    enum { DIM = rule_rows<QUADS>::DIM, CHUNK = rule_rows<QUADS>::CHUNK };
    if (D == DIM) return;
    for (int i = threadIdx.x; i < 2 * CHUNK * DIM; i += RULE_THREADS)
        if (i % DIM >= D)
            rows[i / DIM / CHUNK].q[i / DIM % CHUNK][i % DIM] = rows[i / DIM / CHUNK].k[i / DIM % CHUNK][i % DIM] = 0;
}

/* A lane's rows, and the part of its state that a block works on. */
struct rule_lane {
    int    first, end, first_kept;
    bool   zero; /* the state before them is all zeros */
    float *live; /* this thread's first row of the memory; NULL: it has none */
};

/* Consecutive rows of a memory, which share the loads of keys and queries. */
template <int QUADS> struct memory_part {
    memory_row<QUADS> s[RULE_HOLD];
    float             y[RULE_HOLD]; /* this lane's shares of the outputs of the row before */

    /* live NULL: zeros */
    __device__ inline void load(const float *live, int D)
    {
#pragma unroll
        for (int i = 0; i < RULE_HOLD; i++) {
            s[i].clear();
            if (live) s[i].load(live + (size_t)i * D, D);
        }
    }
    __device__ inline void store(float *live, int D) const
    {
#pragma unroll
        for (int i = 0; i < RULE_HOLD; i++)
            if (live) s[i].store(live + (size_t)i * D, D);
    }
    /* Writes a number per row, from the first of its lanes on. to NULL: nowhere */
    static __device__ inline void put(float *to, const float (&v)[RULE_HOLD])
    {
        int   lane = threadIdx.x % RULE_LANES;
        float mine = v[0];
#pragma unroll
        for (int i = 1; i < RULE_HOLD; i++) mine = lane == i ? v[i] : mine;
        if (to && lane < RULE_HOLD) to[lane] = mine;
    }
    /* Applies a row. Its outputs are added up with the next row's sums s.k; those of the row before go to y_to. */
    __device__ inline void apply(const rule_rows<QUADS> &rows, int i, int here, float *y_to, float *d_to)
    {
        memory_row<QUADS> k, q;
        float             sums[2 * RULE_HOLD], d[RULE_HOLD], before[RULE_HOLD];
        k.load(rows.k[i], rule_rows<QUADS>::DIM);
#pragma unroll
        for (int r = 0; r < RULE_HOLD; r++) {
            s[r].decay(rows.decay[i]);
            sums[r]             = s[r].dot_here(k);
            sums[RULE_HOLD + r] = y[r];
        }
        memory_row<QUADS>::add_lanes(sums);
        q.load(rows.q[i], rule_rows<QUADS>::DIM);
#pragma unroll
        for (int r = 0; r < RULE_HOLD; r++) {
            d[r] = rows.beta[i] * (rows.v[i][here + r] - sums[r]);
            s[r].add(d[r], k);
            before[r] = sums[RULE_HOLD + r];
            y[r]      = s[r].dot_here(q);
        }
        put(y_to, before);
        put(d_to, d);
    }
    __device__ inline void finish(float *y_to)
    {
        memory_row<QUADS>::add_lanes(y);
        put(y_to, y);
    }
};

/* part = the state after row p: the live state, which holds the sure rows, and the kept rows of the path to p. */
template <int QUADS>
static __device__ inline void rebuild(memory_part<QUADS> &part, const cuda_delta_args &a, const rule_lane &l, int p,
                                      int h, int j)
{
    __shared__ int          path[DELTA_MAX_KEPT], n_path;
    const cuda_delta_class &c = a.c;
    int                     D = c.head_dim;
    __syncthreads();
    if (threadIdx.x == 0) {
        int n = 0;
        for (int r = p; r >= l.first_kept && n < DELTA_MAX_KEPT; r = a.before[r]) path[n++] = r;
        n_path = n;
    }
    __syncthreads();
    part.load(l.zero && l.first_kept == l.first ? NULL : l.live, D);
    for (int n = n_path; n-- > 0;) {
        int               r = path[n];
        memory_row<QUADS> k;
        k.load(a.conv + (size_t)r * c.n_channels + (size_t)(c.n_k_heads + key_head(c, h)) * D, D);
#pragma unroll
        for (int i = 0; i < RULE_HOLD; i++) {
            part.s[i].decay(a.a[(size_t)r * c.n_v_heads + h]);
            part.s[i].add(j < D ? kept_row(c, c.layer, a.kept[r])[(size_t)h * D + j + i] : 0, k);
        }
    }
}

template <int QUADS>
static __device__ inline void run_lane(const cuda_delta_args &a, const rule_lane &l, memory_part<QUADS> &part, int h,
                                       int j0)
{
    enum { CHUNK = rule_rows<QUADS>::CHUNK };
    __shared__ rule_rows<QUADS> rows[2];
    const cuda_delta_class     &c = a.c;
    int                         D = c.head_dim, here = threadIdx.x / RULE_LANES * RULE_HOLD, j = j0 + here;
    size_t                      step = (size_t)c.n_v_heads * D;
    float                      *y    = j < D ? a.y + (size_t)l.first * step + (size_t)h * D + j : NULL;
    float                      *y_to = y; /* the first row's shares are zeros, which its outputs replace */
    rule_load<QUADS>            next = {};
#pragma unroll
    for (int i = 0; i < RULE_HOLD; i++) part.y[i] = 0;
    __syncthreads(); /* the rows of another lane are done with */
    clear_rest(rows, D);
    next.start(&rows[0], a, l.first, l.end, h, j0);
    for (int first = l.first, at = 0; first < l.end; first += CHUNK, at ^= 1) {
        const rule_rows<QUADS> &now = rows[at];
        next.finish(&rows[at]);
        if (first + CHUNK < l.end) next.start(&rows[at ^ 1], a, first + CHUNK, l.end, h, j0);
        if (first + CHUNK <= l.first_kept && y) { /* the same in a warp */
#pragma unroll 4
            for (int i = 0; i < CHUNK; i++) {
                part.apply(now, i, here, y_to, NULL);
                y_to = y, y += step;
            }
            continue;
        }
#pragma unroll 1
        for (int i = 0; i < CHUNK && first + i < l.end; i++) {
            int r = first + i;
            if (r == l.first_kept && r > l.first) part.store(l.live, D);
            if (r > l.first_kept && now.before[i] != r - 1) rebuild(part, a, l, now.before[i], h, j);
            part.apply(now, i, here, y_to,
                       r >= l.first_kept && y ? kept_row(c, c.layer, now.kept[i]) + (size_t)h * D + j : NULL);
            y_to = y, y += y ? step : 0;
        }
    }
    part.finish(y_to);
    if (l.first_kept == l.end) part.store(l.live, D);
}

/* Makes the inputs of the lane's last sure rows the last inputs of the convolution. Blocks divide the channels. */
static __device__ inline void keep_inputs(const cuda_delta_args &a, const rule_lane &l)
{
    const cuda_delta_class &c      = a.c;
    int                     n_last = c.n_taps - 1, blocks = gridDim.x * gridDim.y;
    int                     thread = ((int)blockIdx.y * gridDim.x + blockIdx.x) * RULE_THREADS + threadIdx.x;
    if (l.first_kept == l.first) return;
    float       *window = live_state(c, c.layer, a.lane[l.first]) + c.memory_floats;
    const float *in[DELTA_MAX_TAPS];
    if (4 * thread >= c.n_channels) return;
    find_inputs(a, l.first_kept - 1, n_last, window, in);
    for (int i = 4 * thread; i < c.n_channels; i += 4 * blocks * RULE_THREADS) {
        float4 last[DELTA_MAX_TAPS];
#pragma unroll
        for (int j = 0; j < DELTA_MAX_TAPS - 1; j++)
            if (j < n_last) last[j] = in[j] ? *(const float4 *)(in[j] + i) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < DELTA_MAX_TAPS - 1; j++)
            if (j < n_last) *(float4 *)(window + (size_t)j * c.n_channels + i) = last[j];
    }
}

/* Which rows of a step begin a lane, and which are kept: a bit per row. */
struct row_bits {
    uint32_t starts[DELTA_MAX_ROWS / 32], kept[DELTA_MAX_ROWS / 32];
};
static __device__ inline void find_bits(row_bits *b, const cuda_delta_args &a)
{
    for (int base = threadIdx.x / WARP * WARP; base < a.n_rows; base += RULE_THREADS) {
        int      r      = base + (int)threadIdx.x % WARP;
        bool     in     = r < a.n_rows;
        uint32_t starts = __ballot_sync(ALL_LANES, in && (r == 0 || a.lane[r] != a.lane[r - 1]));
        uint32_t kept   = __ballot_sync(ALL_LANES, in && a.kept[r] >= 0);
        if (threadIdx.x % WARP == 0) b->starts[base / 32] = starts, b->kept[base / 32] = kept;
    }
    __syncthreads();
}
/* Returns the first row from r on whose bit is set, or n. */
static __device__ inline int next_bit(const uint32_t *bits, int r, int n)
{
    while (r < n) {
        uint32_t left = bits[r / 32] >> r % 32;
        if (left) return r + __ffs((int)left) - 1;
        r = (r / 32 + 1) * 32;
    }
    return n;
}

/* Grid: x over the parts of a memory, y over value heads, z over groups of lanes: a block takes every gridDim.z-th. */
template <int QUADS> static __global__ void __launch_bounds__(RULE_THREADS) delta_rule_kernel(cuda_delta_args a)
{
    __shared__ row_bits     bits;
    const cuda_delta_class &c  = a.c;
    int                     j0 = blockIdx.x * RULE_ROWS, j = j0 + threadIdx.x / RULE_LANES * RULE_HOLD, h = blockIdx.y;
    bool                    ready = false;
    let_next_start();
    if (!a.settled) wait_for_previous(), ready = true;
    find_bits(&bits, a);
    int turn = 0;
    for (int first = 0; first < a.n_rows; turn++) {
        int       end = min_of(next_bit(bits.starts, first + 1, a.n_rows), a.n_rows);
        rule_lane l   = {first, end, min_of(next_bit(bits.kept, first, end), end), a.pos[first] == 0, NULL};
        first         = end;
        if (turn % (int)gridDim.z != (int)blockIdx.z || a.lane[l.first] < 0) continue; /* another block's, or padding */
        memory_part<QUADS> part;
        if (j < c.head_dim) /* then its RULE_HOLD rows are in the memory: head_dim is a multiple of 4 */
            l.live = live_state(c, c.layer, a.lane[l.first]) + ((size_t)h * c.head_dim + j) * c.head_dim;
        part.load(l.zero ? NULL : l.live, c.head_dim);
        if (!ready) wait_for_previous(), ready = true;
        run_lane(a, l, part, h, j0);
        keep_inputs(a, l);
    }
    if (!ready) wait_for_previous(); /* kernels after this one rely on those before it */
}

extern "C" cudaError_t cuda_delta(cudaStream_t s, const cuda_delta_args *a)
{
    const cuda_delta_class *c = &a->c;
    int                     D = c->head_dim;
    dim3 rule(blocks_for((size_t)D, RULE_ROWS), (unsigned)c->n_v_heads, (unsigned)min_int(a->n_rows, RULE_GROUPS));
    launch_inputs(s, a);
    if (D <= 32)
        LAUNCH_EARLY((delta_rule_kernel<1>), rule, RULE_THREADS, 0, s, *a);
    else if (D <= 64)
        LAUNCH_EARLY((delta_rule_kernel<2>), rule, RULE_THREADS, 0, s, *a);
    else if (D <= 128)
        LAUNCH_EARLY((delta_rule_kernel<4>), rule, RULE_THREADS, 0, s, *a);
    else
        LAUNCH_EARLY((delta_rule_kernel<8>), rule, RULE_THREADS, 0, s, *a);
    return cudaGetLastError();
}

/* --- replay ---------------------------------------------------------------------------------------
 * A block goes from unit to unit: rows of a memory with up to REPLAY_CHUNK kept rows. The next unit comes by
 * asynchronous copies while this one, whose memory is in registers, is computed. A lane has a quad (of heads over 128
 * two) of each of its warp's rows: a number takes a product and an fma per kept row, and nothing is summed. */
enum { REPLAY_WARPS = 4, REPLAY_THREADS = REPLAY_WARPS * WARP, REPLAY_CHUNK = 16, REPLAY_BLOCKS = 3 };

template <int QUADS> struct alignas(16) replay_slot {
    enum { HOLD = 16 / QUADS, ROWS = REPLAY_WARPS * HOLD, DIM = 4 * WARP * QUADS };
    float    k[REPLAY_CHUNK][DIM], d[REPLAY_CHUNK][ROWS], decay[REPLAY_CHUNK][4];
    uint64_t gate;
};
template <int QUADS> struct alignas(16) replay_shared {
    float              s[replay_slot<QUADS>::ROWS][replay_slot<QUADS>::DIM];
    replay_slot<QUADS> slot[2];
};

/* Rows of the memory of value head h from row j on, and kept rows from n on. */
template <int QUADS> struct replay_unit {
    typedef replay_slot<QUADS> slot;
    delta_replay_item          it;
    int                        layer, h, j, n;

    __device__ inline replay_unit(const cuda_delta_class &c, const delta_replay_item *items, int at, int from)
    {
        int parts = (c.head_dim + slot::ROWS - 1) / slot::ROWS;
        j         = at % parts * slot::ROWS;
        h         = at / parts % c.n_v_heads;
        layer     = at / parts / c.n_v_heads % c.n_layers;
        it        = items[at / parts / c.n_v_heads / c.n_layers];
        n         = from;
    }
    __device__ inline int    n_rows() const { return min_of(REPLAY_CHUNK, it.n - n); }
    __device__ inline bool   is_last() const { return n + REPLAY_CHUNK >= it.n; }
    __device__ inline float *live(const cuda_delta_class &c) const
    {
        return live_state(c, layer, it.lane) + ((size_t)h * c.head_dim + j) * c.head_dim;
    }
    /* Asks for the kept rows and, with the first of them, for the rows of the memory. */
    __device__ inline void start(replay_shared<QUADS> *to, slot *rows, const cuda_delta_class &c,
                                 const int32_t *place) const
    {
        int D = c.head_dim, quads = D / 4, key = (c.n_v_heads + key_head(c, h)) * D;
        int decay = (c.n_v_heads + c.n_k_heads) * D + h / 4 * 4;
        for (int i = threadIdx.x; i < n_rows() * WARP; i += REPLAY_THREADS) {
            const float *tape = kept_row(c, layer, place[it.first + n + i / WARP]);
            int          lane = i % WARP;
#pragma unroll
            for (int q = lane; q < QUADS * WARP; q += WARP)
                if (q < quads) copy_piece(&rows->gate, &rows->k[i / WARP][4 * q], tape + key + 4 * q, true);
            if (lane < slot::ROWS / 4 && j + 4 * lane < D)
                copy_piece(&rows->gate, &rows->d[i / WARP][4 * lane], tape + h * D + j + 4 * lane, true);
            if (lane == WARP - 1) copy_piece(&rows->gate, rows->decay[i / WARP], tape + decay, true);
        }
        if (n == 0 && it.pos != 0) {
            int          row = threadIdx.x / WARP * slot::HOLD, lane = threadIdx.x % WARP;
            const float *from = live(c) + (size_t)row * D;
#pragma unroll
            for (int r = 0; r < slot::HOLD; r++, from += D)
#pragma unroll
                for (int q = lane; q < QUADS * WARP; q += WARP)
                    if (q < quads && j + row + r < D)
                        copy_piece(&rows->gate, &to->s[row + r][4 * q], from + 4 * q, true);
        }
        copy_commit();
    }
};

/* Makes the inputs of the kept rows the last inputs of the convolution, after the inputs before them. */
static __device__ inline void replay_inputs(const cuda_delta_class &c, const delta_replay_item *items, int n_items,
                                            const int32_t *place)
{
    int n_last = c.n_taps - 1, quads = c.n_channels / 4, all = n_items * c.n_layers * quads;
    for (int at = (int)blockIdx.x * REPLAY_THREADS + threadIdx.x; at < all; at += (int)gridDim.x * REPLAY_THREADS) {
        delta_replay_item it    = items[at / quads / c.n_layers];
        int               layer = at / quads % c.n_layers, i = at % quads * 4;
        float            *window = live_state(c, layer, it.lane) + c.memory_floats;
        float4            last[DELTA_MAX_TAPS];
#pragma unroll
        for (int j = 0; j < DELTA_MAX_TAPS - 1; j++) {
            int k = it.n - n_last + j; /* negative: an old input, which has a higher index */
            if (j >= n_last) continue;
            last[j] = make_float4(0, 0, 0, 0);
            if (k >= 0)
                last[j] = *(const float4 *)(kept_row(c, layer, place[it.first + k]) + c.tape_floats + i);
            else if (it.pos != 0)
                last[j] = *(const float4 *)(window + (size_t)(n_last + k) * c.n_channels + i);
        }
#pragma unroll
        for (int j = 0; j < DELTA_MAX_TAPS - 1; j++)
            if (j < n_last) *(float4 *)(window + (size_t)j * c.n_channels + i) = last[j];
    }
}

/* The rows of the memory that a warp has: quads lane, lane + 32 of each. */
template <int QUADS> struct replay_rows {
    enum { HOLD = replay_slot<QUADS>::HOLD };
    float4 s[HOLD][QUADS];

    static __device__ inline int at(int q) { return 4 * ((int)threadIdx.x % WARP + q * WARP); }
    __device__ inline void       load(const replay_shared<QUADS> &from, int row, bool zero)
    {
#pragma unroll
        for (int r = 0; r < HOLD; r++)
#pragma unroll
            for (int q = 0; q < QUADS; q++)
                s[r][q] = zero ? make_float4(0, 0, 0, 0) : *(const float4 *)&from.s[row + r][at(q)];
    }
    /* Stores the first n rows. */
    __device__ inline void store(float *to, int n, int D) const
    {
#pragma unroll
        for (int r = 0; r < HOLD; r++)
#pragma unroll
            for (int q = 0; q < QUADS; q++)
                if (r < n && at(q) < D) *(float4 *)(to + (size_t)r * D + at(q)) = s[r][q];
    }
    __device__ inline void apply(const replay_slot<QUADS> &rows, int i, int row, float decay)
    {
        float4 k[QUADS];
#pragma unroll
        for (int q = 0; q < QUADS; q++) k[q] = *(const float4 *)&rows.k[i][at(q)];
#pragma unroll
        for (int r = 0; r < HOLD; r++) {
            float4 of = *(const float4 *)&rows.d[i][row + r / 4 * 4];
            float  d  = r % 4 == 0 ? of.x : r % 4 == 1 ? of.y : r % 4 == 2 ? of.z : of.w;
#pragma unroll
            for (int q = 0; q < QUADS; q++) {
                float4 x = s[r][q];
                s[r][q]  = fma_quad(make_float4(d, d, d, d), k[q],
                                    make_float4(decay * x.x, decay * x.y, decay * x.z, decay * x.w));
            }
        }
    }
};

/* Grid: block i takes units i, i + gridDim.x, ... */
template <int QUADS>
static __global__ void __launch_bounds__(REPLAY_THREADS, REPLAY_BLOCKS)
    delta_replay_kernel(cuda_delta_class c, const delta_replay_item *items, int n_items, int n_units,
                        const int32_t *place)
{
    typedef replay_slot<QUADS> slot;
    DYNAMIC_SHARED(float4, replay_memory);
    auto              *mid = (replay_shared<QUADS> *)replay_memory;
    int                row = threadIdx.x / WARP * slot::HOLD, at = blockIdx.x, from = 0, which = 0;
    replay_rows<QUADS> s;
    let_next_start();
    wait_for_previous();
    if (at < n_units) replay_unit<QUADS>(c, items, at, from).start(mid, &mid->slot[0], c, place);
    replay_inputs(c, items, n_items, place);
    while (at < n_units) {
        replay_unit<QUADS> u(c, items, at, from);
        const slot        &now  = mid->slot[which];
        int                n    = u.n_rows();
        bool               last = u.is_last();
        copy_wait<0>(&mid->slot[which].gate);
        if (from == 0) {
            s.load(*mid, row, u.it.pos == 0);
            __syncthreads(); /* before the next unit's rows come to this place */
        }
        from = last ? 0 : from + REPLAY_CHUNK;
        at += last ? (int)gridDim.x : 0;
        which ^= 1;
        if (at < n_units) replay_unit<QUADS>(c, items, at, from).start(mid, &mid->slot[which], c, place);
#pragma unroll 2
        for (int i = 0; i < n; i++) s.apply(now, i, row, now.decay[i][u.h % 4]);
        if (last) s.store(u.live(c) + (size_t)row * c.head_dim, c.head_dim - u.j - row, c.head_dim);
    }
}

template <int QUADS>
static void launch_replay(cudaStream_t s, const cuda_delta_class *c, const delta_replay_item *items, int n_items,
                          const int32_t *places)
{
    int parts  = (c->head_dim + replay_slot<QUADS>::ROWS - 1) / replay_slot<QUADS>::ROWS;
    int units  = n_items * c->n_layers * c->n_v_heads * parts;
    int blocks = min_int(units, REPLAY_BLOCKS * multiprocessors());
    allow_shared(delta_replay_kernel<QUADS>, sizeof(replay_shared<QUADS>));
    LAUNCH_EARLY((delta_replay_kernel<QUADS>), (unsigned)blocks, REPLAY_THREADS, sizeof(replay_shared<QUADS>), s, *c,
                 items, n_items, units, places);
}

extern "C" cudaError_t cuda_delta_replay(cudaStream_t s, const cuda_delta_class *c, const delta_replay_item *items,
                                         int n_items, const int32_t *places)
{
    if (c->head_dim <= 128)
        launch_replay<1>(s, c, items, n_items, places);
    else
        launch_replay<2>(s, c, items, n_items, places);
    return cudaGetLastError();
}
