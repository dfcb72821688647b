/* model/bind.h - tensors of a file into the backend's own form: shapes checked, and all that was taken kept in one
 * place.
 *
 * A model binds twice: dry first (names and shapes only, so that a broken file costs nothing), then for good. */
#ifndef TANDEM_MODEL_BIND_H
#define TANDEM_MODEL_BIND_H
#include "gguf/ahead.h"
#include "gguf/checkpoint.h"
#include "model/model.h"

/* Weights and buffers of one model, for its end. Zeroed storage may be freed. */
typedef struct {
    const ops *o;
    queue     *q; /* that uploads go through */
    weight   **weights;
    dev       *bufs;
    int        n_weights, n_bufs, max_each;
    size_t     weight_bytes;
    uint64_t   n_params; /* numbers in the matrices, as the file has them */
} owned;

void owned_init(owned *w, const ops *o, int max_each);
void owned_free(owned *w);
bool owned_buf(owned *w, dev *out, size_t bytes, err *e);
bool owned_put(owned *w, dev *out, const void *data, size_t bytes, err *e); /* a buffer with this in it */

typedef struct {
    const checkpoint *cp;
    owned            *own;
    bool              dry;
    quant_type        recode; /* F32: as the file has them; Q8_0, Q4_0: matrices with more bits are made this at load */
    void (*progress)(void *ctx, size_t done, size_t total); /* may be NULL */
    void  *progress_ctx;
    size_t done; /* bytes of tensors loaded */

    const tensor **order; /* seen by the dry pass */
    size_t         n_order, max_order;
    ahead         *ahead;
    const tensor  *now; /* being loaded, and its bytes that are done */
    size_t         now_done;
} binder;

/* After the dry pass: from here on things are loaded, in the same order. */
void bind_begin(binder *b);
void bind_end(binder *b); /* also after a failure, or a dry pass alone */

bool bind_require(const binder *b, const char *name, const tensor **out, err *e);
/* Trailing dimensions that are not used are 1. */
bool bind_check_shape(const tensor *t, int64_t d0, int64_t d1, int64_t d2, err *e);
/* n_mats matrices of [n_out][n_in]. */
bool bind_matrix(binder *b, weight **out, const tensor *t, int n_in, int n_out, int n_mats, err *e);
/* n floats, times scale. */
bool bind_vector(binder *b, dev *out, const tensor *t, int n, float scale, err *e);
/* One plain number. */
bool bind_scalar(float *out, const tensor *t, err *e);
/* Sets *out to rotate whole heads of D elements: freq[i] = theta^(-2i/D) / factor for the first `part` of the D/2
 * pairs, 0 for the rest. divisor[D/2], if not NULL, replaces factor and part. */
bool bind_rope(owned *w, rope_params *out, int D, double theta, double factor, double part, const float *divisor,
               err *e);
/* rope_freqs.weight of a GGUF file: D/2 divisors for mem_free, or NULL when the file has none. */
bool bind_rope_divisors(const checkpoint *cp, int D, float **out, err *e);
#endif
