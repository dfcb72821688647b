/* model/bind.h - loads tensors of a checkpoint into the backend's own form, checks their shapes, and keeps a list of
 * all that was allocated. For the code that opens models and drafters.
 *
 * A model binds its tensors twice, in the same order, with the same calls: first dry (names and shapes only, so that a
 * broken file costs nothing), then again, to load them. In the dry pass results are not set. */
#ifndef TANDEM_MODEL_BIND_H
#define TANDEM_MODEL_BIND_H
#include "gguf/checkpoint.h"
#include "gguf/prefetch.h"
#include "model/model.h"

/* The weights and buffers of one model, which owned_free frees. */
typedef struct {
    const ops *o;
    queue     *q;       /* queue of uploads; set by the caller after owned_init */
    weight   **weights; /* [max_each] */
    dev       *bufs;    /* [max_each] */
    int        n_weights, n_bufs, max_each;
    size_t     weight_bytes; /* size of the weights in device memory */
    uint64_t   n_params;     /* numbers in the matrices */
} owned;

void owned_init(owned *w, const ops *o, int max_each); /* max_each: maximum of weights, and of buffers */
void owned_free(owned *w);                             /* accepts all zeros */
bool owned_buf(owned *w, dev *out, size_t bytes, err *e);
bool owned_put(owned *w, dev *out, const void *data, size_t bytes, err *e); /* a buffer with a copy of data */

typedef struct {
    const checkpoint *cp;
    owned            *own;
    bool              dry;
    quant_type        recode; /* F32: as the file has them; Q8_0, Q4_0: matrices with more bits are made this at load */
    void (*progress)(void *ctx, size_t done, size_t total); /* in bytes of the checkpoint; may be NULL */
    void  *progress_ctx;
    size_t done; /* bytes of tensors loaded */

    const tensor **order; /* the tensors that the dry pass bound */
    size_t         n_order, max_order;
    prefetcher    *prefetcher;
    const tensor  *now; /* being loaded, and its bytes that are done */
    size_t         now_done;
} binder;

/* Ends the dry pass: the following calls load, in the same order. Starts to read the files ahead. */
void bind_begin(binder *b);
void bind_end(binder *b); /* ends loading and frees the lists; also after a failure, or a dry pass alone */

/* All errors about tensors are ERR_FORMAT and name the tensor. */
/* Finds a tensor by name. Sets *out to NULL when it is missing. */
bool bind_require(const binder *b, const char *name, const tensor **out, err *e);
/* Checks the dimensions, innermost first; unused ones are 1. Also checks that the type can be read as weights. */
bool bind_check_shape(const tensor *t, int64_t d0, int64_t d1, int64_t d2, err *e);
/* Bind t as n_mats matrices of [n_out][n_in], or as n floats multiplied by scale. b->own frees the result. */
bool bind_matrix(binder *b, weight **out, const tensor *t, int n_in, int n_out, int n_mats, err *e);
bool bind_vector(binder *b, dev *out, const tensor *t, int n, float scale, err *e);
/* Loads n floats of a tensor of any shape, after `change` was applied to them; change may be NULL. */
bool bind_floats(binder *b, dev *out, const tensor *t, size_t n, void (*change)(float *v, size_t n, void *ctx),
                 void *ctx, err *e);
/* Loads n_mats tensors of one type as the matrices of one weight, in this order. */
bool bind_stack(binder *b, weight **out, const tensor *const *t, int n_in, int n_out, int n_mats, err *e);
/* Binds two stacks of one type as one: matrix i has the rows of matrix i of the first, then those of the second. */
bool bind_pairs(binder *b, weight **out, const tensor *const t[2], int n_in, int n_out, int n_mats, err *e);
/* Binds the numbers of a tensor of any shape as a matrix of [n_out][n_in]. Row i of it is the tensor's row from[i];
 * from NULL: row i. */
bool bind_rows(binder *b, weight **out, const tensor *t, int n_in, int n_out, const int *from, err *e);
/* Reads one number, also in a dry pass. */
bool bind_scalar(float *out, const tensor *t, err *e);
/* Sets *out to rotate whole heads of D elements: freq[i] = theta^(-2i/D) / factor for the first `part` (a share) of the
 * D/2 pairs, 0 for the rest. If divisor[D/2] is not NULL, freq[i] of every pair is divided by divisor[i] too, and
 * `part` is ignored. w frees the result. */
bool bind_rope(owned *w, rope_params *out, int D, double theta, double factor, double part, const float *divisor,
               err *e);
/* Reads rope_freqs.weight of a GGUF file. Sets *out to D/2 divisors, which the caller frees with mem_free, or to NULL
 * when the file has none or on failure. */
bool bind_rope_divisors(const checkpoint *cp, int D, float **out, err *e);
#endif
