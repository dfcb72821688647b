#include "ops/cuda/graph.h"

#include "base/fault.h"
#include "base/log.h"

#include <assert.h>
#include <stddef.h>

static size_t free_bytes(void)
{
    size_t there = 0, total;
    return cudaMemGetInfo(&there, &total) == cudaSuccess ? there : 0;
}

/* Adds to bytes what was taken since there were `before` bytes free, or subtracts what came back. */
static void note_memory(graph_cache *g, size_t before)
{
    size_t now = free_bytes(), taken = g->bytes + before;
    g->bytes = taken > now ? taken - now : 0;
}

static void drop_slot(graph_slot *k)
{
    if (k->exec) cudaGraphExecDestroy(k->exec);
    *k = (graph_slot){0};
}

int graph_count(const graph_cache *g)
{
    int n = 0;
    for (int i = 0; i < MAX_GRAPHS; i++) n += g->slot[i].exec != NULL;
    return n;
}

void graph_forget(graph_cache *g, cudaStream_t s)
{
    assert(!g->recording);
    cudaStreamSynchronize(s);
    size_t before = free_bytes();
    for (int i = 0; i < MAX_GRAPHS; i++) drop_slot(&g->slot[i]);
    note_memory(g, before);
}

static graph_slot *find_slot(graph_cache *g, uint64_t key)
{
    for (int i = 0; i < MAX_GRAPHS; i++)
        if (g->slot[i].used && g->slot[i].key == key) return &g->slot[i];
    return NULL;
}

static graph_slot *make_room(graph_cache *g, cudaStream_t s)
{
    graph_slot *oldest = &g->slot[0];
    for (int i = 1; i < MAX_GRAPHS; i++)
        if (g->slot[i].used < oldest->used) oldest = &g->slot[i];
    if (!oldest->exec) return oldest;
    cudaStreamSynchronize(s); /* it may be running */
    size_t before = free_bytes();
    drop_slot(oldest);
    note_memory(g, before);
    return oldest;
}

/* Plain launches do the same, only slower. */
static void disable_graphs(graph_cache *g, cudaStream_t s, cudaError_t why)
{
    cudaGetLastError();
    log_event(LOG_WARN, "device", "steps are not recorded as graphs: %s", cudaGetErrorString(why));
    graph_forget(g, s);
    g->off = true;
}

bool graph_replay(graph_cache *g, cudaStream_t s, uint64_t key, cudaError_t *status)
{
    assert(!g->recording);
    *status = cudaSuccess;
    if (g->off) return false;
    graph_slot *k = find_slot(g, key);
    if (!k) {
        *make_room(g, s) = (graph_slot){.key = key, .used = ++g->clock};
        return false;
    }
    k->used = ++g->clock;
    if (k->exec) {
        *status = cudaGraphLaunch(k->exec, s);
        return true;
    }
    cudaError_t began = cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    if (began == cudaSuccess)
        g->recording = k;
    else
        disable_graphs(g, s, began);
    g->error = cudaSuccess;
    return false;
}

static cudaError_t end_recording(cudaStream_t s, cudaError_t launches, cudaGraphExec_t *exec)
{
    cudaGraph_t graph  = NULL;
    cudaError_t status = cudaStreamEndCapture(s, &graph);
    if (launches != cudaSuccess) status = launches;
    if (status == cudaSuccess && fault_now()) status = cudaErrorMemoryAllocation;
    if (status == cudaSuccess) status = cudaGraphInstantiateWithFlags(exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    return status == cudaSuccess ? cudaGraphLaunch(*exec, s) : status;
}

bool graph_record_end(graph_cache *g, cudaStream_t s)
{
    graph_slot *k = g->recording;
    if (!k) return true;
    g->recording       = NULL;
    size_t      before = free_bytes();
    cudaError_t status = end_recording(s, g->error, &k->exec);
    if (status != cudaSuccess) {
        disable_graphs(g, s, status);
        return false;
    }
    note_memory(g, before);
    g->recorded++;
    return true;
}
