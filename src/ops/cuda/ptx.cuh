/* ops/cuda/ptx.cuh - instructions without an equivalent in CUDA C++. tests/emu/emu_ptx.h implements them for the
 * emulator.
 *
 * A pair of f16 is a uint32_t, the first number in the low half. The h2_ functions work on both numbers and round to
 * nearest. */
#ifndef TANDEM_OPS_CUDA_PTX_CUH
#define TANDEM_OPS_CUDA_PTX_CUH
#include <stdint.h>

#ifndef TANDEM_EMU_KERNEL_H
static __device__ inline uint32_t h2_mul(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
static __device__ inline uint32_t h2_sub(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
static __device__ inline uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
static __device__ inline uint32_t h2_from_f32(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/* Return one half of v in both halves. */
static __device__ inline uint32_t both_low(uint32_t v)
{
    uint32_t d;
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %1;\n\tmov.b32 %0, {low, low};\n\t}" : "=r"(d) : "r"(v));
    return d;
}
static __device__ inline uint32_t both_high(uint32_t v)
{
    uint32_t d;
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %1;\n\tmov.b32 %0, {high, high};\n\t}" : "=r"(d) : "r"(v));
    return d;
}

/* Returns (v & mask) | bits, in one instruction. bits must be in a register (in_register), because the instruction has
 * only one constant. */
static __device__ inline uint32_t pick_bits(uint32_t v, uint32_t mask, uint32_t bits)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(v), "r"(mask), "r"(bits));
    return d;
}
static __device__ inline uint32_t in_register(uint32_t v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* Keeps the compiler from moving accesses to memory across it. */
static __device__ inline void keep_order() { asm volatile("" ::: "memory"); }

/* Computes d += a b by a warp: 16 outputs x 16 inputs times 16 inputs x 8 rows. Lane 4 g + c gets outputs g, g, g + 8,
 * g + 8 of rows 2 c, 2 c + 1, 2 c, 2 c + 1. */
static __device__ inline void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Starts a bulk copy to shared memory that counts its bytes on a gate (Hopper and later). ONCE: nobody reads these
 * bytes of memory again soon, so the second cache keeps others instead: rows, lists and the code of kernels, which
 * weights would drive out. */
#if __CUDA_ARCH__ >= 900
template <bool ONCE>
static __device__ inline void start_bulk_copy(uint64_t *gate, void *shared, const void *global, int bytes)
{
    uint32_t to = shared_address(shared), on = shared_address(gate);
    if constexpr (ONCE)
        asm volatile("{\n\t.reg .b64 first;\n\tcreatepolicy.fractional.L2::evict_first.b64 first, 1.0;\n\t"
                     "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1], %2, [%3], first;\n\t}" ::"r"(to),
                     "l"(global), "r"(bytes), "r"(on)
                     : "memory");
    else
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
            "l"(global), "r"(bytes), "r"(on)
            : "memory");
}
#endif

/* Asynchronous copies by a warp to shared memory, in order. A gate counts the bytes of one copy at a time. All lanes
 * call gate_expect with the size of the copy, then gate_piece for each of its pieces, which are of what is read once.
 * gate_wait blocks until the copy with this `phase` (0, 1, 0, ... in turn) is complete. Before Hopper the lanes copy
 * and gates are not used: a gate_commit follows each copy (and each skipped one), and gate_wait blocks until at most
 * PENDING later copies are incomplete. Addresses and lengths are multiples of 16. Call __syncwarp before a slot is
 * filled again. */

/* Initialises a gate. Called by one lane; a __syncwarp must follow. */
static __device__ inline void gate_init(uint64_t *gate)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;\n\t"
                 "fence.proxy.async.shared::cta;" ::"r"(shared_address(gate))
                 : "memory");
#else
    (void)gate;
#endif
}
static __device__ inline void gate_expect(uint64_t *gate, int bytes)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(gate)), "r"(bytes)
                     : "memory");
#else
    (void)gate, (void)bytes;
#endif
}
static __device__ inline void gate_piece(uint64_t *gate, void *shared, const void *global, int bytes)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) start_bulk_copy<true>(gate, shared, global, bytes);
#else
    (void)gate;
    for (int i = (threadIdx.x % 32) * 16; i < bytes; i += 512)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address((char *)shared + i)),
                     "l"((const char *)global + i)
                     : "memory");
#endif
}
static __device__ inline void gate_commit()
{
#if __CUDA_ARCH__ < 900
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING> static __device__ inline void gate_wait(uint64_t *gate, unsigned phase)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n\t.reg .pred done;\nwait_%=:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra wait_%=;\n\t}" ::"r"(shared_address(gate)),
                 "r"(phase)
                 : "memory");
#else
    (void)gate, (void)phase;
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    __syncwarp();
#endif
}

/* Bulk copies for which all threads of a block wait; Hopper and later only. One thread announces the bytes of the next
 * copy of a gate, single threads start pieces of it in any order (gate_copy_once: of what is read once), and all
 * threads wait for copy number `phase`, 0, 1, 0, ... A barrier follows gate_init. */
static __device__ inline void gate_announce(uint64_t *gate, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(gate)), "r"(bytes)
                 : "memory");
#else
    (void)gate, (void)bytes;
#endif
}
static __device__ inline void gate_copy(uint64_t *gate, void *shared, const void *global, int bytes)
{
#if __CUDA_ARCH__ >= 900
    start_bulk_copy<false>(gate, shared, global, bytes);
#else
    (void)gate, (void)shared, (void)global, (void)bytes;
#endif
}
static __device__ inline void gate_copy_once(uint64_t *gate, void *shared, const void *global, int bytes)
{
#if __CUDA_ARCH__ >= 900
    start_bulk_copy<true>(gate, shared, global, bytes);
#else
    (void)gate, (void)shared, (void)global, (void)bytes;
#endif
}
static __device__ inline void gate_wait_block(uint64_t *gate, unsigned phase) { gate_wait<0>(gate, phase); }

/* Returns true in one lane of a warp, whose lanes all call it. */
static __device__ inline bool elected_lane()
{
#if __CUDA_ARCH__ >= 900
    uint32_t mine;
    asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(mine));
    return mine;
#else
    return threadIdx.x % 32 == 0;
#endif
}

/* Rings of shared memory between warps that fill them and warps that use them (Hopper and later). A gate of a ring
 * passes through phases 0, 1, 0, ...; a phase is complete after `count` arrivals, and after the bytes that ring_expect
 * announced with one of them have come by ring_copy. ring_wait blocks until a phase is complete; before the first one,
 * phase 1 is. A barrier of the block follows ring_init and ring_init_done. */
static __device__ inline void ring_init(uint64_t *gate, int count)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(gate)), "r"(count) : "memory");
#else
    (void)gate, (void)count;
#endif
}
static __device__ inline void ring_init_done()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
#endif
}
static __device__ inline void ring_arrive(uint64_t *gate)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(gate)) : "memory");
#else
    (void)gate;
#endif
}
static __device__ inline void ring_expect(uint64_t *gate, int bytes) { gate_announce(gate, bytes); }
static __device__ inline void ring_copy(uint64_t *gate, void *shared, const void *global, int bytes)
{
    gate_copy(gate, shared, global, bytes);
}
static __device__ inline void ring_wait(uint64_t *gate, unsigned phase)
{
#if __CUDA_ARCH__ >= 900
    gate_wait<0>(gate, phase);
#else
    (void)gate, (void)phase;
#endif
}

/* Gives registers of a warpgroup back, and takes more. All its threads call it. */
template <int N> static __device__ inline void registers_down()
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N> static __device__ inline void registers_up()
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

/* Arrives when the copies by copy_piece and copy_half_piece that the thread has started are complete. wgmma_sees comes
 * after ring_wait where wgmma reads them. */
static __device__ inline void ring_arrive_copies(uint64_t *gate)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(gate)) : "memory");
#else
    (void)gate;
#endif
}

/* A barrier of `threads` threads, whole warps; id: 1 to 15. some_any returns whether x is true for any of them. */
static __device__ inline void some_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ inline bool some_any(int id, int threads, bool x)
{
    int any;
    asm volatile("{\n\t.reg .pred mine, any;\n\tsetp.ne.s32 mine, %1, 0;\n\tbar.red.or.pred any, %2, %3, mine;\n\t"
                 "selp.s32 %0, 1, 0, any;\n\t}"
                 : "=r"(any)
                 : "r"((int)x), "r"(id), "r"(threads)
                 : "memory");
    return any;
}

/* Blocks a warp until another one has raised a number in shared memory to at least n. */
static __device__ inline void wait_for_count(const int *count, int n)
{
    while (__shfl_sync(0xffffffffu, *(const volatile int *)count, 0) < n) {}
    __threadfence_block();
}

/* Asynchronous copies of 16 bytes by single threads, zeros if `real` is false, in groups that copy_commit ends.
 * copy_wait, called by all threads of a block, blocks until at most PENDING later groups are incomplete. gate
 * identifies the group, for the emulator. */
static __device__ inline void copy_piece(uint64_t *gate, void *shared, const void *global, bool real)
{
    (void)gate;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(real ? 16 : 0));
}
/* The same of 8 bytes. */
static __device__ inline void copy_half_piece(uint64_t *gate, void *shared, const void *global, bool real)
{
    (void)gate;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(real ? 8 : 0));
}
static __device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> static __device__ inline void copy_wait(uint64_t *gate)
{
    (void)gate;
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    __syncthreads();
}

/* --- wgmma (sm_90a) -------------------------------------------------------------------------------
 * wgmma<N> computes d += a b by a warpgroup, 128 threads from a multiple of 128 on: 64 outputs x 16 inputs times 16
 * inputs x N rows. Warp w of the four has outputs 16 w to 16 w + 15; a and d are as for mma_16x8x16, d[4 j + i] being
 * rows 8 j to 8 j + 7. `add` false: d = a b. b is in shared memory: 8 rows of 32 bytes, two pieces of 8 inputs each, of
 * which the second one comes first in rows 4 to 7; the next 8 rows are n_stride bytes further. The address is a
 * multiple of 256.
 *
 * The product is asynchronous: a, b and d must not be touched before wgmma_wait, which blocks until at most PENDING
 * later groups are incomplete; wgmma_commit ends a group. wgmma_begin comes before the first wgmma that uses registers
 * written since. b was written by bulk copies. */
struct wgmma_rows {
    uint64_t descriptor;

    __device__ inline wgmma_rows(const void *b, int n_stride)
    {
        enum : uint64_t { SWIZZLE_32 = 3 };
        descriptor = (uint64_t)(shared_address(b) >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(n_stride >> 4) << 32 |
                     SWIZZLE_32 << 62;
    }
    /* Moves on by `bytes`. */
    __device__ inline wgmma_rows at(int bytes) const
    {
        wgmma_rows r = *this;
        r.descriptor += (uint64_t)(bytes >> 4);
        return r;
    }
};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WGMMA_D4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D8(i)  WGMMA_D4(i), WGMMA_D4(i + 4)
#define WGMMA_D16(i) WGMMA_D8(i), WGMMA_D8(i + 8)
#define WGMMA_D32(i) WGMMA_D16(i), WGMMA_D16(i + 16)
#define WGMMA_D40(i) WGMMA_D32(i), WGMMA_D8(i + 32)
#define WGMMA_D48(i) WGMMA_D32(i), WGMMA_D16(i + 32)
#define WGMMA_D64(i) WGMMA_D32(i), WGMMA_D32(i + 32)
#define WGMMA(N, D, REGISTERS, A, B, ADD)                                                                              \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %" ADD ", 0;\n\t"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" REGISTERS "}, {" A "}, %" B                \
                 ", add, 1, 1, 0;\n\t}"                                                                                \
                 : D                                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"((int)add))
#define WGMMA_R8  "%0,%1,%2,%3,%4,%5,%6,%7"
#define WGMMA_R16 WGMMA_R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_R32 WGMMA_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_R40 WGMMA_R32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define WGMMA_R48 WGMMA_R40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA_R64 WGMMA_R48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#endif
template <int N>
static __device__ inline void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], const wgmma_rows &b, bool add)
{
    static_assert(N == 16 || N == 32 || N == 64 || N == 80 || N == 96 || N == 128, "sizes that are used");
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (N == 16)
        WGMMA(16, WGMMA_D8(0), WGMMA_R8, "%8,%9,%10,%11", "12", "13");
    else if constexpr (N == 32)
        WGMMA(32, WGMMA_D16(0), WGMMA_R16, "%16,%17,%18,%19", "20", "21");
    else if constexpr (N == 64)
        WGMMA(64, WGMMA_D32(0), WGMMA_R32, "%32,%33,%34,%35", "36", "37");
    else if constexpr (N == 80)
        WGMMA(80, WGMMA_D40(0), WGMMA_R40, "%40,%41,%42,%43", "44", "45");
    else if constexpr (N == 96)
        WGMMA(96, WGMMA_D48(0), WGMMA_R48, "%48,%49,%50,%51", "52", "53");
    else if constexpr (N == 128)
        WGMMA(128, WGMMA_D64(0), WGMMA_R64, "%64,%65,%66,%67", "68", "69");
#else
    (void)d, (void)a, (void)b, (void)add;
#endif
}
static __device__ inline void wgmma_begin()
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
static __device__ inline void wgmma_commit()
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int PENDING, int N> static __device__ inline void wgmma_wait(float (&d)[N])
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    if constexpr (PENDING == 0) { /* registers of products under way must not be touched */
#pragma unroll
        for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
    }
#endif
    (void)d;
}
/* For the other numbers of a product that wgmma_wait has waited for. */
template <int N> static __device__ inline void wgmma_done(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* An operand in shared memory, swizzled: 64 numbers of a row are 128 bytes, rows follow each other from a multiple
 * of 1,024 bytes on, and piece i of 16 bytes of row r is at place i ^ r % 8. A row is an output or a column of the
 * product, with numbers along k. FLIPPED: rows are along k, numbers are columns, and the next 64 columns are `next`
 * bytes further. at moves on, by 16 k: 32 bytes, flipped 2,048. wgmma_sees comes between ordinary stores to an
 * operand and the barrier before wgmma. */
struct wgmma_matrix {
    uint64_t descriptor;

    __device__ inline wgmma_matrix(const void *m, int next = 16)
    {
        enum : uint64_t { SWIZZLE_128 = 1 };
        descriptor = (uint64_t)(shared_address(m) >> 4 & 0x3fff) | (uint64_t)(next >> 4) << 16 |
                     (uint64_t)(1024 >> 4) << 32 | SWIZZLE_128 << 62;
    }
    __device__ inline wgmma_matrix at(int bytes) const
    {
        wgmma_matrix m = *this;
        m.descriptor += (uint64_t)(bytes >> 4);
        return m;
    }
};
static __device__ inline void wgmma_sees()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WGMMA_SHARED(N, D, REGISTERS, A, B, ADD, FLIP)                                                                 \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %" ADD ", 0;\n\t"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" REGISTERS "}, %" A ", %" B                 \
                 ", add, 1, 1, 0, " #FLIP ";\n\t}"                                                                     \
                 : D                                                                                                   \
                 : "l"(a.descriptor), "l"(b.descriptor), "r"((int)add))
#define WGMMA_FLIPPED(N, D, REGISTERS, A, B, ADD)                                                                      \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %" ADD ", 0;\n\t"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" REGISTERS "}, {" A "}, %" B                \
                 ", add, 1, 1, 1;\n\t}"                                                                                \
                 : D                                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"((int)add))
#endif
/* wgmma of 64 columns with both operands in shared memory, of 128 with b flipped too, and with a in registers and b
 * flipped. */
static __device__ inline void wgmma_shared(float (&d)[32], const wgmma_matrix &a, const wgmma_matrix &b, bool add)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    WGMMA_SHARED(64, WGMMA_D32(0), WGMMA_R32, "32", "33", "34", 0);
#else
    (void)d, (void)a, (void)b, (void)add;
#endif
}
static __device__ inline void wgmma_shared_flipped(float (&d)[64], const wgmma_matrix &a, const wgmma_matrix &b,
                                                   bool add)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    WGMMA_SHARED(128, WGMMA_D64(0), WGMMA_R64, "64", "65", "66", 1);
#else
    (void)d, (void)a, (void)b, (void)add;
#endif
}
template <int N>
static __device__ inline void wgmma_flipped(float (&d)[N / 2], const uint32_t (&a)[4], const wgmma_matrix &b, bool add)
{
    static_assert(N == 32 || N == 64, "sizes that are used");
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (N == 32)
        WGMMA_FLIPPED(32, WGMMA_D16(0), WGMMA_R16, "%16,%17,%18,%19", "20", "21");
    else
        WGMMA_FLIPPED(64, WGMMA_D32(0), WGMMA_R32, "%32,%33,%34,%35", "36", "37");
#else
    (void)d, (void)a, (void)b, (void)add;
#endif
}

/* Loads four 8 x 8 matrices of f16 from shared memory, by a warp: lane 8 i + r has the address of row r of matrix i, 16
 * bytes. Lane 4 g + c gets columns 2 c and 2 c + 1 of row g of each; transposed: rows 2 c and 2 c + 1 of column g. */
static __device__ inline void load_matrices(uint32_t (&d)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(row))
                 : "memory");
}
static __device__ inline void load_matrices_transposed(uint32_t (&d)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Reads from the L2 cache. The L1 cache may hold the value from before an earlier kernel wrote it. */
static __device__ inline int32_t read_l2(const int32_t *p)
{
    int32_t v;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* Returns x, which all lanes of a warp have alike, as a number that the compiler knows to be the same. */
static __device__ inline int same_in_warp(int x) { return __reduce_max_sync(0xffffffffu, x); }

/* Return the maximum and the minimum over a warp. */
static __device__ inline uint32_t warp_max_u32(uint32_t v) { return __reduce_max_sync(0xffffffffu, v); }
static __device__ inline uint32_t warp_min_u32(uint32_t v) { return __reduce_min_sync(0xffffffffu, v); }

/* Programmatic launch (Hopper and later): let_next_start allows the next kernel to start, wait_for_previous blocks
 * until the previous kernels have finished. A kernel that LAUNCH_EARLY launches calls wait_for_previous before it reads
 * memory that they write, or writes memory that they use. */
static __device__ inline void let_next_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ inline void wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif
#endif
