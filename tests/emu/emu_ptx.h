/* tests/emu/emu_ptx.h - the second body of ops/cuda/ptx.cuh. */
#ifndef TANDEM_EMU_PTX_H
#define TANDEM_EMU_PTX_H
#include "cuda_fp16.h"

/* A function whose reads and writes are not reported: it uses no device memory, and takes much of the time. */
#define NOT_WATCHED __attribute__((no_sanitize("thread")))

NOT_WATCHED static inline float    emu_half(uint32_t v, int high) { return emu_f16[(uint16_t)(v >> (high ? 16 : 0))]; }
NOT_WATCHED static inline uint32_t emu_pair(float low, float high)
{
    return emu_to_f16(low) | (uint32_t)emu_to_f16(high) << 16;
}
static inline uint32_t             both_low(uint32_t v) { return (v & 0xffffu) * 0x10001u; }
static inline uint32_t             both_high(uint32_t v) { return (v >> 16) * 0x10001u; }
NOT_WATCHED static inline uint32_t h2_mul(uint32_t a, uint32_t b)
{
    return emu_pair(emu_half(a, 0) * emu_half(b, 0), emu_half(a, 1) * emu_half(b, 1));
}
NOT_WATCHED static inline uint32_t h2_sub(uint32_t a, uint32_t b)
{
    return emu_pair(emu_half(a, 0) - emu_half(b, 0), emu_half(a, 1) - emu_half(b, 1));
}
NOT_WATCHED static inline uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    return emu_pair((float)((double)emu_half(a, 0) * emu_half(b, 0) + emu_half(c, 0)),
                    (float)((double)emu_half(a, 1) * emu_half(b, 1) + emu_half(c, 1)));
}
static inline uint32_t             pick_bits(uint32_t v, uint32_t mask, uint32_t bits) { return (v & mask) | bits; }
static inline void                 keep_order() {}
static inline uint32_t             in_register(uint32_t v) { return v; }
NOT_WATCHED static inline uint32_t h2_from_f32(float low, float high) { return emu_pair(low, high); }

/* The inputs of a step in the order of the fragments: those of lane c are 2 c, 2 c + 1, 2 c + 8 and 2 c + 9. Their order
 * does not matter on a GPU: products are exact, and here added in double. */
NOT_WATCHED static inline void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emu_operands        mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const emu_operands *all  = emu_sync_operands(&mine);
    int                 g = emu_lane() / 4, c = emu_lane() % 4;
    double              sum[4] = {};
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < 4; i++)
            sum[i] += (double)emu_half(all[4 * g + k % 8 / 2].a[k / 8 * 2 + i / 2], k % 2) *
                      emu_half(all[4 * (2 * c + i % 2) + k % 8 / 2].b[k / 8], k % 2);
    for (int i = 0; i < 4; i++) d[i] = (float)(d[i] + sum[i]);
}

/* A copy is done when it is waited for; until then its place holds other bytes. */
struct emu_copy {
    const uint64_t *gate;
    void           *to;
    const void     *from;
    int             bytes;
};
enum { EMU_COPIES = 1 << 15 };
static emu_copy emu_copies[EMU_COPIES];
static int      emu_n_copies;

static inline void emu_take_copies(const uint64_t *gate, bool done)
{
    int n = 0;
    for (int i = 0; i < emu_n_copies; i++) {
        emu_copy c = emu_copies[i];
        if (c.gate != gate)
            emu_copies[n++] = c;
        else if (done)
            memcpy(c.to, c.from, (size_t)c.bytes);
    }
    emu_n_copies = n;
}
static inline void emu_put_copy(const uint64_t *gate, void *to, const void *from, int bytes)
{
    if (!bytes) return;
    int step = bytes == 8 ? 8 : 16;
    if (emu_n_copies == EMU_COPIES || bytes % step || (uintptr_t)to % (uintptr_t)step ||
        (uintptr_t)from % (uintptr_t)step)
        emu_fail("a copy that a GPU would refuse");
    emu_reads(from, (size_t)bytes);
    memset(to, 0xCB, (size_t)bytes);
    emu_copies[emu_n_copies++] = {gate, to, from, bytes};
}
/* A gate is its next phase. */
static inline void gate_init(uint64_t *gate)
{
    *gate = 0;
    emu_take_copies(gate, false);
}
static inline void gate_expect(uint64_t *, int) {}
static inline void gate_piece(uint64_t *gate, void *shared, const void *global, int bytes)
{
    if (emu_lane() == 0) emu_put_copy(gate, shared, global, bytes);
}
static inline void                        gate_commit() {}
template <int PENDING> static inline void gate_wait(uint64_t *gate, unsigned phase)
{
    emu_sync_warp(0);
    if (emu_lane() == 0) {
        if ((*gate & 1) != phase) emu_fail("a wait for another copy");
        emu_take_copies(gate, true);
        ++*gate;
    }
    emu_sync_warp(0);
}

static inline int32_t read_l2(const int32_t *p) { return emu_read_l2(p); }

/* The waiting block does the copy. */
static inline void gate_announce(uint64_t *, int) {}
static inline void gate_copy(uint64_t *gate, void *shared, const void *global, int bytes)
{
    emu_put_copy(gate, shared, global, bytes);
}
static inline void gate_copy_once(uint64_t *gate, void *shared, const void *global, int bytes)
{
    gate_copy(gate, shared, global, bytes);
}
static inline bool elected_lane() { return emu_lane() == 0; }

static inline void wait_for_count(const int *count, int n)
{
    while (__shfl_sync(0xffffffffu, *(const volatile int *)count, 0) < n) {}
}

static inline void gate_wait_block(uint64_t *gate, unsigned phase)
{
    emu_sync_block();
    if (threadIdx.x == 0) {
        if ((*gate & 1) != phase) emu_fail("a wait for another copy");
        emu_take_copies(gate, true);
        ++*gate;
    }
    emu_sync_block();
}
/* A gate of a ring. Its copies are made by the thread that finds that all of them were started. */
struct emu_ring {
    uint16_t count, arrived;
    int32_t  missing : 31; /* bytes that were announced and not asked for */
    uint32_t phase : 1;
};
static_assert(sizeof(emu_ring) == sizeof(uint64_t), "a gate");
static inline void ring_init(uint64_t *gate, int count)
{
    emu_ring r = {(uint16_t)count, 0, 0, 0};
    memcpy(gate, &r, sizeof r);
    emu_take_copies(gate, false);
}
static inline void ring_init_done() {}
/* Ends the phase if all have arrived, and its copies were started. */
static inline void emu_ring_end(uint64_t *gate, emu_ring *r)
{
    if (r->arrived != r->count || r->missing != 0) return;
    emu_take_copies(gate, true);
    r->arrived = 0;
    r->phase ^= 1;
    memcpy(gate, r, sizeof *r);
}
static inline void emu_ring_add(uint64_t *gate, int arrivals, int bytes)
{
    emu_ring r;
    memcpy(&r, gate, sizeof r);
    if (arrivals) emu_ring_end(gate, &r); /* nobody has waited for it yet, and this is of the next one */
    r.arrived = (uint16_t)(r.arrived + arrivals);
    r.missing += bytes;
    if (r.arrived > r.count) emu_fail("a gate with too many arrivals");
    memcpy(gate, &r, sizeof r);
}
static inline void ring_arrive(uint64_t *gate) { emu_ring_add(gate, 1, 0); }
static inline void ring_expect(uint64_t *gate, int bytes) { emu_ring_add(gate, 1, bytes); }
static inline void ring_copy(uint64_t *gate, void *shared, const void *global, int bytes)
{
    emu_put_copy(gate, shared, global, bytes);
    emu_ring_add(gate, 0, -bytes);
}
static inline void ring_wait(uint64_t *gate, unsigned phase)
{
    for (;; emu_yield()) {
        emu_ring r;
        memcpy(&r, gate, sizeof r);
        emu_ring_end(gate, &r);
        if (r.phase != (phase & 1)) return;
    }
}
template <int N> static inline void registers_down() {}
template <int N> static inline void registers_up() {}

static inline void ring_arrive_copies(uint64_t *gate) { ring_arrive(gate); }

/* Barriers of some warps: `turn` of one changes when all threads have come. */
static struct {
    int  came, turn;
    bool any, was_any;
} emu_some[16];
static inline bool some_any(int id, int threads, bool x)
{
    emu_sync_warp(0);
    int turn = emu_some[id].turn;
    emu_some[id].any |= x;
    emu_sync_warp(0);
    if (emu_lane() == 0) {
        emu_some[id].came += 32;
        if (emu_some[id].came == threads) {
            emu_some[id].was_any = emu_some[id].any;
            emu_some[id].any     = false;
            emu_some[id].came    = 0;
            emu_some[id].turn++;
        }
    }
    emu_sync_warp(0);
    while (emu_some[id].turn == turn) emu_yield();
    return emu_some[id].was_any;
}
static inline void some_sync(int id, int threads) { some_any(id, threads, false); }

static inline void copy_piece(uint64_t *gate, void *shared, const void *global, bool real)
{
    alignas(16) static const char zeros[16] = {};
    emu_put_copy(gate, shared, real ? global : zeros, 16);
}
static inline void copy_half_piece(uint64_t *gate, void *shared, const void *global, bool real)
{
    alignas(16) static const char zeros[16] = {};
    emu_put_copy(gate, shared, real ? global : zeros, 8);
}
static inline void                        copy_commit() {}
template <int PENDING> static inline void copy_wait(uint64_t *gate)
{
    emu_sync_block();
    if (threadIdx.x == 0) emu_take_copies(gate, true);
    emu_sync_block();
}

/* wgmma: a product is done when it is waited for, and reads its operands then. */
struct wgmma_rows {
    const char *b;
    int         n_stride;

    wgmma_rows(const void *at, int n) : b((const char *)at), n_stride(n)
    {
        if ((uintptr_t)b % 256) emu_fail("rows that wgmma would read elsewhere");
    }
    wgmma_rows at(int bytes) const { return wgmma_rows(b + bytes, n_stride); }
};
struct wgmma_matrix {
    const char *m;
    int         next, moved; /* bytes by which `at` moved it */

    wgmma_matrix(const void *at, int next_columns = 16, int by = 0) : m((const char *)at), next(next_columns), moved(by)
    {
        if ((uintptr_t)m % 1024) emu_fail("a matrix that wgmma would read elsewhere");
    }
    wgmma_matrix at(int bytes) const { return wgmma_matrix(m, next, moved + bytes); }
    /* Returns the number at byte `at` of a row of 128, from where the matrix starts. */
    NOT_WATCHED float number(int row, int in, int further) const
    {
        int at = moved + row * 128 + in, line = at / 128;
        return emu_f16[*(const uint16_t *)(m + further + line * 128 + (at % 128 / 16 ^ line % 8) * 16 + at % 16)];
    }
};
struct emu_product {
    float          *d;
    const uint32_t *a; /* NULL: a is in shared memory */
    wgmma_rows      b;
    int             n, group;
    bool            add, flipped;
    wgmma_matrix    shared_a, shared_b;
};
enum { EMU_PRODUCTS = 64, EMU_GROUP_MAX = 1024 };
static char emu_product_room[EMU_GROUP_MAX][EMU_PRODUCTS][sizeof(emu_product)];
static int  emu_n_products[EMU_GROUP_MAX], emu_group[EMU_GROUP_MAX]; /* by thread: products not done; groups begun */

NOT_WATCHED static inline void emu_do_shared_product(const emu_product &p)
{
    emu_operands mine = {};
    if (p.a) memcpy(mine.a, p.a, sizeof mine.a);
    const emu_operands *all = emu_sync_operands(&mine);
    int                 g = emu_lane() / 4, c = emu_lane() % 4, warp = (int)threadIdx.x / 32 % 4;
    for (int x = 0; x < p.n / 2; x++) {
        int    i = x % 4, col = x / 4 * 8 + 2 * c + i % 2, out = g + i / 2 * 8;
        double sum = 0;
        for (int k = 0; k < 16; k++) {
            double a = p.a ? emu_half(all[4 * g + k % 8 / 2].a[k / 8 * 2 + i / 2], k % 2)
                           : p.shared_a.number(16 * warp + out, 2 * k, 0);
            sum += a * (p.flipped ? p.shared_b.number(k, col % 64 * 2, col / 64 * p.shared_b.next)
                                  : p.shared_b.number(col, 2 * k, 0));
        }
        p.d[x] = (float)(p.add ? p.d[x] + sum : sum);
    }
}
NOT_WATCHED static inline void emu_do_product(const emu_product &p)
{
    if (p.shared_b.m) {
        emu_do_shared_product(p);
        return;
    }
    emu_operands        mine = {{p.a[0], p.a[1], p.a[2], p.a[3]}, {}};
    const emu_operands *all  = emu_sync_operands(&mine);
    int                 g = emu_lane() / 4, c = emu_lane() % 4;
    for (int x = 0; x < p.n / 2; x++) {
        int         i = x % 4, col = x / 4 * 8 + 2 * c + i % 2;
        const char *row = p.b.b + col / 8 * p.b.n_stride + col % 8 * 32;
        double      sum = 0;
        for (int k = 0; k < 16; k++)
            sum += (double)emu_half(all[4 * g + k % 8 / 2].a[k / 8 * 2 + i / 2], k % 2) *
                   emu_f16[((const uint16_t *)(row + (k / 8 ^ col % 8 / 4) * 16))[k % 8]];
        p.d[x] = (float)(p.add ? p.d[x] + sum : sum);
    }
}
static inline wgmma_rows emu_no_rows() { return wgmma_rows(NULL, 0); }
static inline void       emu_put_product(const emu_product &p)
{
    int thread = (int)threadIdx.x;
    if (emu_n_products[thread] == EMU_PRODUCTS) emu_fail("more products than the emulator has room for");
    memcpy(emu_product_room[thread][emu_n_products[thread]++], &p, sizeof p);
}
template <int N> static inline void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], const wgmma_rows &b, bool add)
{
    emu_put_product({d, a, b, N, emu_group[threadIdx.x], add, false, NULL, NULL});
}
static inline void wgmma_shared(float (&d)[32], const wgmma_matrix &a, const wgmma_matrix &b, bool add)
{
    emu_put_product({d, NULL, emu_no_rows(), 64, emu_group[threadIdx.x], add, false, a, b});
}
static inline void wgmma_shared_flipped(float (&d)[64], const wgmma_matrix &a, const wgmma_matrix &b, bool add)
{
    emu_put_product({d, NULL, emu_no_rows(), 128, emu_group[threadIdx.x], add, true, a, b});
}
template <int N>
static inline void wgmma_flipped(float (&d)[N / 2], const uint32_t (&a)[4], const wgmma_matrix &b, bool add)
{
    emu_put_product({d, a, emu_no_rows(), N, emu_group[threadIdx.x], add, true, NULL, b});
}
static inline void                  wgmma_sees() {}
template <int N> static inline void wgmma_done(float (&)[N]) {}
static inline void                  wgmma_begin() {}
static inline void                  wgmma_commit() { emu_group[threadIdx.x]++; }

template <int PENDING, int N> static inline void wgmma_wait(float (&)[N])
{
    int thread = (int)threadIdx.x, n = 0, done = 0;
    n = emu_n_products[thread];
    for (; done < n; done++) {
        const emu_product *p = (const emu_product *)emu_product_room[thread][done];
        if (p->group >= emu_group[thread] - PENDING) break;
        emu_do_product(*p);
    }
    memmove(emu_product_room[thread][0], emu_product_room[thread][done], (size_t)(n - done) * sizeof(emu_product));
    emu_n_products[thread] = n - done;
}

static inline void load_matrices(uint32_t (&d)[4], const void *row)
{
    const uint64_t *all = emu_sync_warp((uint64_t)(uintptr_t)row);
    for (int i = 0; i < 4; i++) d[i] = ((const uint32_t *)(uintptr_t)all[8 * i + emu_lane() / 4])[emu_lane() % 4];
}
static inline void load_matrices_transposed(uint32_t (&d)[4], const void *row)
{
    const uint64_t *all = emu_sync_warp((uint64_t)(uintptr_t)row);
    int             g = emu_lane() / 4, c = emu_lane() % 4;
    for (int i = 0; i < 4; i++)
        d[i] = ((const uint16_t *)(uintptr_t)all[8 * i + 2 * c])[g] |
               (uint32_t)((const uint16_t *)(uintptr_t)all[8 * i + 2 * c + 1])[g] << 16;
}

static inline int same_in_warp(int x)
{
    const uint64_t *all = emu_sync_warp((uint64_t)(uint32_t)x);
    for (int i = 0; i < 32; i++)
        if ((uint32_t)all[i] != (uint32_t)x) emu_fail("lanes that differ");
    return x;
}
static inline uint32_t warp_max_u32(uint32_t v)
{
    const uint64_t *all = emu_sync_warp(v);
    for (int i = 0; i < 32; i++) v = all[i] > v ? (uint32_t)all[i] : v;
    return v;
}
static inline uint32_t warp_min_u32(uint32_t v)
{
    const uint64_t *all = emu_sync_warp(v);
    for (int i = 0; i < 32; i++) v = all[i] < v ? (uint32_t)all[i] : v;
    return v;
}

static inline void let_next_start() { emu_let_next_start(); }
static inline void wait_for_previous() { emu_wait_for_previous(); }
#endif
