/* ops/cuda/graph.h - sequences of launches, recorded as graphs of the CUDA runtime and launched as one.
 *
 * The first time that a key is used, its launches run without recording: a sequence that is used once is not worth a
 * graph, and the runtime loads the kernels' code then. The second time they are recorded. The cache is bounded: the
 * graph that was not used for the longest time is replaced. The runtime does not report the size of graphs, so the free
 * memory of the device is compared before and after they are made and dropped. */
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
    size_t      bytes;     /* device memory that graphs take, and that the runtime keeps for later ones */
    uint64_t    recorded;  /* graphs that were recorded, kept or not */
    graph_slot *recording; /* the slot being recorded; NULL: launches run at once */
    cudaError_t error;     /* last error of a launch while recording, set by the caller */
    bool        off;       /* recording has failed once; nothing is recorded any more */
} graph_cache;             /* zeroed: empty; emptied with graph_forget */

/* As ops.replay. Sets *status to the result of launching the graph; cudaSuccess when none was launched. */
bool graph_replay(graph_cache *g, cudaStream_t s, uint64_t key, cudaError_t *status);
/* As ops.record_end: launches the graph that was recorded. */
bool graph_record_end(graph_cache *g, cudaStream_t s);
int  graph_count(const graph_cache *g);            /* graphs that are kept */
void graph_forget(graph_cache *g, cudaStream_t s); /* waits for the stream and frees all graphs */
#endif
