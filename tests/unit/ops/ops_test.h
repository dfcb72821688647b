/* tests/unit/ops/ops_test.h - a rig is one backend with a queue, on which a test plays a scene.
 *
 * rig_each plays it on every backend and checks against formulas written in the test. rig_compare plays it on ref
 * and on the others with the same random numbers, and checks that they agree; with other numbers of threads the
 * result must be the same to the bit (promise 1). Everything that a rig hands out lives until rig_close. */
#ifndef TANDEM_OPS_TEST_H
#define TANDEM_OPS_TEST_H
#include "base/arena.h"
#include "base/fault.h"
#include "base/inside.h"
#include "ops/ops.h"
#include "test.h"

enum { RIG_ROWS = 64, RIG_IN = 8192, RIG_SLOTS = 8, RIG_EXPERTS = 128, RIG_VOCAB = 4096 };

typedef struct {
    test_case *t;
    ops       *o;
    queue     *q;
    uint64_t   rand; /* starts the same in every rig */
    arena      host;
    dev        bufs[4096];
    weight    *weights[32];
    int        n_bufs, n_weights;
} rig;

bool rig_open(rig *g, test_case *t, const char *backend, int n_threads);
void rig_close(rig *g);
void rig_each(test_case *t, void (*scene)(rig *g));

/* What a scene gives back: n numbers and how far each may be from ref's. */
typedef struct {
    size_t n;
    float *y;
    float *allow;
    double gpu_allows; /* times `allow`, where the GPU's arithmetic is coarser; 0: 1 */
    bool   skipped;    /* the backend does not support the scene */
} rig_result;
void rig_compare(test_case *t, rig_result (*scene)(rig *g, const void *arg), const void *arg);
/* n numbers out of device memory, each allowed `rel` of its size plus `abs`. */
rig_result rig_give(rig *g, dev y, size_t n, double rel, double abs);

/* One op, inside which nothing may be allocated (promise 4). */
#define OP(g, op, ...)                                                                                                 \
    do {                                                                                                               \
        fault_no_alloc_begin(#op);                                                                                     \
        (g)->o->op((g)->q, __VA_ARGS__);                                                                               \
        fault_no_alloc_end();                                                                                          \
    } while (0)

float   *rig_randn(rig *g, size_t n); /* on the host */
int32_t *rig_randint(rig *g, size_t n, int32_t below);
dev      rig_new(rig *g, size_t bytes);
dev      rig_put(rig *g, const void *p, size_t bytes);
dev      rig_put_f32(rig *g, const float *x, size_t n);
dev      rig_put_i32(rig *g, const int32_t *x, size_t n);
float   *rig_get_f32(rig *g, dev d, size_t n);
int32_t *rig_get_i32(rig *g, dev d, size_t n);
dev      rig_put_randn(rig *g, size_t n);

/* Blocks with random integers and scales such that the numbers are of order 1. */
void         *rig_rand_blocks(rig *g, quant_type type, size_t n);
void         *rig_flat_blocks(rig *g, quant_type type, size_t n, int byte); /* all integers made of this byte */
void          rig_close_weights(rig *g);                                    /* before the end, where there are many */
const weight *rig_weight(rig *g, quant_type type, int n_in, int n_out, int n_mats, const void *data);

/* A cache whose pages lie in random order with gaps, and whose every byte is 0xFF: what was not stored is NaN. */
#define RIG_F16                                                                                                        \
    {                                                                                                                  \
        CACHE_F16, CACHE_F16                                                                                           \
    } /* cache_types, in tables */
#define RIG_F32                                                                                                        \
    {                                                                                                                  \
        CACHE_F32, CACHE_F32                                                                                           \
    }
kv_class rig_kv(rig *g, cache_types types, int n_layers, int n_kv_heads, int head_dim, int n_lanes, int n_slots);
/* The same with sparse attention. */
kv_class  rig_kv_sparse(rig *g, cache_types types, int n_layers, int n_kv_heads, int head_dim, int n_lanes, int n_slots,
                        sparse_params sparse);
step_rows rig_chain(rig *g, int lane, int32_t first_pos, int n_rows);
/* parent: index below n_rows, or -1 for the rows that follow position root - 1. */
step_rows rig_tree(rig *g, int lane, int32_t root, const int32_t *parent, int n_rows);

#define NEAR(g, a, b, tol)                                                                                             \
    do {                                                                                                               \
        double a_ = (a), b_ = (b);                                                                                     \
        test_check((g)->t, fabs(a_ - b_) <= (tol), __FILE__, __LINE__, "%s: %s is %.9g, expected %.9g", (g)->o->name,  \
                   #a, a_, b_);                                                                                        \
    } while (0)
#define SAME(g, a, b)                                                                                                  \
    do {                                                                                                               \
        long long a_ = (long long)(a), b_ = (long long)(b);                                                            \
        test_check((g)->t, a_ == b_, __FILE__, __LINE__, "%s: %s is %lld, expected %lld", (g)->o->name, #a, a_, b_);   \
    } while (0)
/* To the bit. */
#define SAME_F32(g, a, b, n) rig_same_f32((g), (a), (b), (n), __FILE__, __LINE__)
void rig_same_f32(rig *g, const float *a, const float *b, size_t n, const char *file, int line);
#endif
