/* Fibers and barriers, and a runtime whose device is the heap. */
#include "cuda_runtime_api.h"

#include "gguf/quant.h"
#include "watch.h"

#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef __x86_64__
#error "fibers are switched on x86-64 only"
#endif

enum { MAX_THREADS = 1024, WARP = 32, WARP_TURNS = 500, STACK_BYTES = 128 << 10, SHARED_BYTES = 227 << 10 };
enum { MAX_POLLS = 1 << 24 };

typedef enum { RUNS, POLLS, AT_WARP, AT_BLOCK, DONE } fiber_state;
typedef struct {
    void       *sp;
    fiber_state state;
    unsigned    turn; /* warp barriers passed: its lanes' values lie in given[turn % 2] */
} fiber;

emu_place emu_at;

static struct {
    fiber        f[MAX_THREADS];
    char        *stacks;
    void        *scheduler;
    int          n, now;
    uint64_t     given[2][MAX_THREADS];
    emu_operands operands[2][MAX_THREADS];
    uint64_t     rand;
    emu_node    *launch;
} emu;

static _Alignas(1024) char dynamic_shared[SHARED_BYTES];

/* --- fibers ---------------------------------------------------------------------------------------*/

/* Saves what a call must keep on the stack of *from, and goes on with that of `to`. */
void emu_switch(void **from, void *to);
__asm__(".text\n.globl emu_switch\nemu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static void leave(fiber_state s)
{
    fiber *f = &emu.f[emu.now];
    f->state = s;
    emu_switch(&f->sp, emu.scheduler);
}

static void fiber_main(void)
{
    emu.launch->kernel(emu.launch);
    leave(DONE);
    abort();
}

static void fiber_init(int i)
{
    void **sp = (void **)(emu.stacks + (size_t)(i + 1) * STACK_BYTES);
    *--sp     = NULL; /* so that the stack is aligned as after a call */
    *--sp     = (void *)fiber_main;
    for (int k = 0; k < 6; k++) *--sp = NULL;
    emu.f[i] = (fiber){.sp = sp};
}

static void resume(int i)
{
    emu_dim  d    = emu_at.block_dim;
    unsigned u    = (unsigned)i;
    emu.now       = i;
    emu_at.thread = (emu_dim){u % d.x, u / d.x % d.y, u / d.x / d.y};
    emu_switch(&emu.scheduler, emu.f[i].sp);
}

void emu_sync_block(void) { leave(AT_BLOCK); }
void emu_yield(void) { leave(POLLS); }
int  emu_lane(void) { return emu.now % WARP; }

void emu_fail(const char *what)
{
    fprintf(stderr, "emu: %s\n", what);
    abort();
}

const uint64_t *emu_sync_warp(uint64_t mine)
{
    fiber   *f               = &emu.f[emu.now];
    unsigned turn            = f->turn++ % 2;
    emu.given[turn][emu.now] = mine;
    leave(AT_WARP);
    return emu.given[turn] + emu.now / WARP * WARP;
}

const emu_operands *emu_sync_operands(const emu_operands *mine)
{
    fiber   *f                  = &emu.f[emu.now];
    unsigned turn               = f->turn++ % 2;
    emu.operands[turn][emu.now] = *mine;
    leave(AT_WARP);
    return emu.operands[turn] + emu.now / WARP * WARP;
}

float    emu_f16[1 << 16];
float    emu_from_f16(uint16_t h);
uint16_t emu_to_f16(float f);
float    emu_from_f16(uint16_t h) { return f16_to_f32(h); }
uint16_t emu_to_f16(float f) { return f32_to_f16(f); }

/* --- a block --------------------------------------------------------------------------------------*/

static uint64_t next_rand(void)
{
    emu.rand = emu.rand * 6364136223846793005u + 1442695040888963407u;
    return emu.rand >> 33;
}

/* Returns the number of fibers [from, to) in state s. */
static int count(int from, int to, fiber_state s)
{
    int n = 0;
    for (int i = from; i < to; i++) n += emu.f[i].state == s;
    return n;
}

static void release(int from, int to, fiber_state s)
{
    for (int i = from; i < to; i++)
        if (emu.f[i].state == s) emu.f[i].state = RUNS;
}

/* Until no fiber of the warp can go on: all wait for the block or for another warp, or are done; or until they had many
 * turns: they may wait in a loop for another warp. */
static void run_warp(int from, int to)
{
    int n = to - from;
    for (int turns = 0; turns < WARP_TURNS; turns++) {
        int start = (int)(next_rand() % (uint64_t)n), step = next_rand() % 2 ? 1 : n - 1;
        for (int k = 0; k < n; k++) {
            int i = from + (start + k * step) % n;
            if (emu.f[i].state == RUNS) resume(i);
        }
        int waiting = count(from, to, AT_WARP);
        if (!waiting || count(from, to, POLLS)) return;
        if (waiting + count(from, to, DONE) < n) {
            fprintf(stderr, "emu: not all lanes of a warp reach its barrier\n");
            abort();
        }
        release(from, to, AT_WARP);
    }
}

static void run_block(void)
{
    int polls = 0;
    for (int i = 0; i < emu.n; i++) fiber_init(i);
    while (count(0, emu.n, DONE) < emu.n) {
        int n_warps = (emu.n + WARP - 1) / WARP, start = (int)(next_rand() % (uint64_t)n_warps);
        for (int k = 0; k < n_warps; k++) {
            int from = (start + k) % n_warps * WARP;
            run_warp(from, from + WARP < emu.n ? from + WARP : emu.n);
        }
        if (count(0, emu.n, POLLS)) {
            if (++polls > MAX_POLLS) emu_fail("threads that wait for each other");
            release(0, emu.n, POLLS);
            continue;
        }
        polls       = 0;
        int waiting = count(0, emu.n, AT_BLOCK), done = count(0, emu.n, DONE);
        if (waiting + done == emu.n) release(0, emu.n, AT_BLOCK);
    }
}

void emu_run(emu_node *n)
{
    emu_dim grid = n->grid, block = n->block;
    emu.n      = (int)(block.x * block.y * block.z);
    emu.launch = n;
    if (emu_f16[1] == 0) /* the smallest above zero */
        for (int i = 0; i < 1 << 16; i++) emu_f16[i] = f16_to_f32((uint16_t)i);
    if (!emu.stacks)
        emu.stacks =
            mmap(NULL, (size_t)MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (emu.stacks == MAP_FAILED || emu.n < 1 || emu.n > MAX_THREADS || n->shared > SHARED_BYTES || !grid.x ||
        !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535) {
        fprintf(stderr, "emu: a launch that a GPU would refuse\n");
        abort();
    }
    emu_at = (emu_place){.block_dim = block, .grid_dim = grid, .dynamic = dynamic_shared};
    watch_launch(n->name, n->early);
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                memset(dynamic_shared, 0xA5, sizeof dynamic_shared);
                emu_at.block = (emu_dim){x, y, z};
                watch_block();
                run_block();
                watch_block_end();
            }
    watch_launch_end();
}

/* --- graphs ---------------------------------------------------------------------------------------*/
static struct {
    bool      on;
    emu_node *first, **end;
} record;

int emu_recording(void) { return record.on; }

void emu_record(emu_node *n)
{
    *record.end = n;
    record.end  = &n->next;
}

/* A GPU's runtime would bake these into the graph, or refuse. */
static void not_recording(const char *what)
{
    if (!record.on) return;
    fprintf(stderr, "emu: %s while launches are recorded\n", what);
    abort();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode)
{
    (void)s, (void)mode;
    not_recording("another recording");
    record.on    = true;
    record.first = NULL;
    record.end   = &record.first;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    (void)s;
    record.on = false;
    *out      = record.first;
    if (*out) (*out)->refs = 1;
    return cudaSuccess;
}

/* Memory that an executable graph takes of what cudaMemGetInfo reports as free. */
enum { GRAPH_BYTES = 1 << 16 };
static size_t graph_bytes;

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    (void)flags;
    *out = g;
    if (g) g->refs++;
    graph_bytes += GRAPH_BYTES;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s)
{
    (void)s;
    not_recording("the launch of a graph");
    watch_all_complete();
    for (emu_node *n = e; n; n = n->next) emu_run(n);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    if (!g || --g->refs) return cudaSuccess;
    for (emu_node *n = g, *next; n; n = next) {
        next = n->next;
        n->free(n);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e)
{
    graph_bytes -= GRAPH_BYTES;
    return cudaGraphDestroy(e);
}

/* --- the runtime ----------------------------------------------------------------------------------*/
enum { ALIGN = 256 };

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    (void)device;
    *out = (struct cudaDeviceProp){.name = "emulation", .major = 8};
    return cudaMemGetInfo(&out->totalGlobalMem, &out->totalGlobalMem);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total      = (size_t)16 << 30;
    *free_bytes = *total - graph_bytes;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    size_t max = (size_t)16 << 30;
    *out       = bytes > max ? NULL : aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    cudaError_t status = cudaHostAlloc(out, bytes, cudaHostAllocDefault);
    if (*out) watch_begin(*out, malloc_usable_size(*out));
    return status;
}

cudaError_t cudaFree(void *p)
{
    if (p) watch_end(p, malloc_usable_size(p));
    return cudaFreeHost(p);
}

cudaError_t cudaMemset(void *p, int byte, size_t n)
{
    memset(p, byte, n);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, cudaStream_t s)
{
    (void)kind, (void)s;
    not_recording("a copy");
    watch_all_complete();
    memcpy(to, from, n);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    watch_all_complete();
    return cudaSuccess;
}

/* One of each is enough: everything has happened when its call returns. */
static char one;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    *out = (cudaStream_t)(void *)&one;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)s;
    not_recording("a wait");
    watch_all_complete();
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    (void)from, (void)to;
    *ms = 1;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = (cudaEvent_t)(void *)&one;
    return cudaSuccess;
}

#define DOES_NOTHING(name, ...)                                                                                        \
    cudaError_t name(__VA_ARGS__) { return cudaSuccess; }
#pragma GCC diagnostic ignored "-Wunused-parameter"
DOES_NOTHING(cudaSetDevice, int device)
DOES_NOTHING(cudaStreamDestroy, cudaStream_t s)
DOES_NOTHING(cudaEventRecord, cudaEvent_t e, cudaStream_t s)
DOES_NOTHING(cudaStreamWaitEvent, cudaStream_t s, cudaEvent_t e, unsigned flags)
DOES_NOTHING(cudaEventSynchronize, cudaEvent_t e)
DOES_NOTHING(cudaEventDestroy, cudaEvent_t e)
DOES_NOTHING(cudaGetLastError, void)

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaErrorInvalidValue ? "invalid value" : "no error";
}
