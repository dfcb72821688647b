#include "ops/cuda/graph.h"

#include "base/fault.h"
#include "base/log.h"

#include <assert.h>
#include <stddef.h>

static void drop_slot(graph_cache *g, graph_slot *k)
{
    if (k->exec) cudaGraphExecDestroy(k->exec);
    g->bytes -= k->bytes;
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
    for (int i = 0; i < MAX_GRAPHS; i++) drop_slot(g, &g->slot[i]);
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
    if (oldest->exec) cudaStreamSynchronize(s); /* it may be running */
    drop_slot(g, oldest);
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

static size_t free_bytes(void)
{
    size_t there = 0, total;
    return cudaMemGetInfo(&there, &total) == cudaSuccess ? there : 0;
}

/* Drops the graphs that were used longest ago, except `kept`, until the rest fits. */
static void limit_bytes(graph_cache *g, cudaStream_t s, const graph_slot *kept)
{
    while (g->bytes > MAX_GRAPH_BYTES) {
        graph_slot *oldest = NULL;
        for (int i = 0; i < MAX_GRAPHS; i++) {
            graph_slot *k = &g->slot[i];
            if (k->exec && k != kept && (!oldest || k->used < oldest->used)) oldest = k;
        }
        if (!oldest) return;
        cudaStreamSynchronize(s); /* it may be running */
        drop_slot(g, oldest);
    }
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
    size_t after = free_bytes();
    k->bytes     = before > after ? before - after : 0;
    g->bytes += k->bytes;
    g->recorded++;
    limit_bytes(g, s, k);
    return true;
}
