/* ops/cuda/graph.h - runs of launches, recorded as graphs of the CUDA runtime and launched as one.
 *
 * A key is run plainly the first time: what comes once is not worth a graph, and the runtime loads the kernels' code
 * then. The second time it is recorded. The cache is bounded; the graph that was not used for longest makes room. */
#ifndef TANDEM_OPS_CUDA_GRAPH_H
#define TANDEM_OPS_CUDA_GRAPH_H
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

enum { MAX_GRAPHS = 256 };
typedef struct {
    uint64_t        key, used; /* used: the cache's clock; 0: the slot is empty */
    cudaGraphExec_t exec;      /* NULL: seen once */
} graph_slot;
typedef struct {
    graph_slot  slot[MAX_GRAPHS];
    uint64_t    clock;
    graph_slot *recording; /* NULL: launches run */
    cudaError_t error;     /* first error of a launch while recording */
    bool        off;       /* recording has failed */
} graph_cache;

/* As ops' replay; *status is that of the launch when there was one. */
bool graph_replay(graph_cache *g, cudaStream_t s, uint64_t key, cudaError_t *status);
bool graph_record_end(graph_cache *g, cudaStream_t s);
void graph_forget(graph_cache *g, cudaStream_t s); /* all; waits for those that run */
#endif
