/* tests/emu/emu_ptx.h - the second body of ops/cuda/ptx.cuh. */
#ifndef TANDEM_EMU_PTX_H
#define TANDEM_EMU_PTX_H
#include "cuda_fp16.h"

static inline float    emu_half(uint32_t v, int high) { return emu_f16[(uint16_t)(v >> (high ? 16 : 0))]; }
static inline uint32_t emu_pair(float low, float high) { return emu_to_f16(low) | (uint32_t)emu_to_f16(high) << 16; }
static inline uint32_t both_low(uint32_t v) { return (v & 0xffffu) * 0x10001u; }
static inline uint32_t both_high(uint32_t v) { return (v >> 16) * 0x10001u; }
static inline uint32_t h2_mul(uint32_t a, uint32_t b)
{
    return emu_pair(emu_half(a, 0) * emu_half(b, 0), emu_half(a, 1) * emu_half(b, 1));
}
static inline uint32_t h2_sub(uint32_t a, uint32_t b)
{
    return emu_pair(emu_half(a, 0) - emu_half(b, 0), emu_half(a, 1) - emu_half(b, 1));
}
static inline uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    return emu_pair((float)((double)emu_half(a, 0) * emu_half(b, 0) + emu_half(c, 0)),
                    (float)((double)emu_half(a, 1) * emu_half(b, 1) + emu_half(c, 1)));
}
static inline uint32_t pick_bits(uint32_t v, uint32_t mask, uint32_t bits) { return (v & mask) | bits; }
static inline void     keep_order() {}
static inline uint32_t in_register(uint32_t v) { return v; }
static inline uint32_t h2_from_f32(float low, float high) { return emu_pair(low, high); }

/* The inputs of a step in the order of the fragments: those of lane c are 2 c, 2 c + 1, 2 c + 8 and 2 c + 9. */
static inline void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emu_operands        mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const emu_operands *all  = emu_sync_operands(&mine);
    int                 g = emu_lane() / 4, c = emu_lane() % 4;
    float               sum[4] = {};
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < 4; i++)
            sum[i] += emu_half(all[4 * g + k % 8 / 2].a[k / 8 * 2 + i / 2], k % 2) *
                      emu_half(all[4 * (2 * c + i % 2) + k % 8 / 2].b[k / 8], k % 2);
    for (int i = 0; i < 4; i++) d[i] += sum[i];
}

/* A copy is done when it is waited for; until then its place holds other bytes. */
struct emu_copy {
    const uint64_t *gate;
    void           *to;
    const void     *from;
    int             bytes;
};
enum { EMU_COPIES = 1 << 14 };
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
    if (emu_n_copies == EMU_COPIES || bytes % 16 || (uintptr_t)to % 16 || (uintptr_t)from % 16)
        emu_fail("a copy that a GPU would refuse");
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

static inline int32_t read_l2(const int32_t *p) { return *p; }

/* The waiting block does the copy. */
static inline void gate_announce(uint64_t *, int) {}
static inline void gate_copy(uint64_t *gate, void *shared, const void *global, int bytes)
{
    emu_put_copy(gate, shared, global, bytes);
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
static inline void copy_piece(uint64_t *gate, void *shared, const void *global, bool real)
{
    alignas(16) static const char zeros[16] = {};
    emu_put_copy(gate, shared, real ? global : zeros, 16);
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
    int         k_stride, n_stride;

    wgmma_rows(const void *at, int k, int n) : b((const char *)at), k_stride(k), n_stride(n) {}
    wgmma_rows at(int bytes) const { return wgmma_rows(b + bytes, k_stride, n_stride); }
};
struct emu_product {
    float          *d;
    const uint32_t *a;
    wgmma_rows      b;
    int             n, group;
    bool            add;
};
enum { EMU_PRODUCTS = 64, EMU_GROUP_MAX = 1024 };
static char emu_product_room[EMU_GROUP_MAX][EMU_PRODUCTS][sizeof(emu_product)];
static int  emu_n_products[EMU_GROUP_MAX], emu_group[EMU_GROUP_MAX]; /* by thread: products not done; groups begun */

static inline void emu_do_product(const emu_product &p)
{
    emu_operands        mine = {{p.a[0], p.a[1], p.a[2], p.a[3]}, {}};
    const emu_operands *all  = emu_sync_operands(&mine);
    int                 g = emu_lane() / 4, c = emu_lane() % 4;
    for (int x = 0; x < p.n / 2; x++) {
        int         i = x % 4, col = x / 4 * 8 + 2 * c + i % 2;
        const char *row = p.b.b + col / 8 * p.b.n_stride + col % 8 * 16;
        float       sum = 0;
        for (int k = 0; k < 16; k++)
            sum += emu_half(all[4 * g + k % 8 / 2].a[k / 8 * 2 + i / 2], k % 2) *
                   emu_f16[((const uint16_t *)(row + k / 8 * p.b.k_stride))[k % 8]];
        p.d[x] = p.add ? p.d[x] + sum : sum;
    }
}
template <int N> static inline void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], const wgmma_rows &b, bool add)
{
    int thread = (int)threadIdx.x;
    if (emu_n_products[thread] == EMU_PRODUCTS) emu_fail("more products than the emulator has room for");
    emu_product p = {d, a, b, N, emu_group[thread], add};
    memcpy(emu_product_room[thread][emu_n_products[thread]++], &p, sizeof p);
}
static inline void wgmma_begin() {}
static inline void wgmma_commit() { emu_group[threadIdx.x]++; }

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
template <int PENDING> static inline void copy_wait_wgmma(uint64_t *gate) { copy_wait<PENDING>(gate); }

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

static inline void let_next_start() {}
static inline void wait_for_previous() {}
#endif
