/* Sizes of the scratch of a queue. */
#include "ops/cuda/scratch.h"

#include "base/mem.h"
#include "ops/cuda/layout.h"

enum { SPARSE_BYTES = 64 << 20 }; /* for the choice of pages of sparse attention, at least */

size_t scratch_pairs(const queue_limits *l)
{
    return (size_t)l->max_rows * (size_t)(l->max_expert_slots > 1 ? l->max_expert_slots : 1);
}

size_t scratch_places(size_t n_pairs, size_t n_mats)
{
    size_t n = n_pairs + (GROUP_ROWS - 1) * (n_mats < n_pairs ? n_mats : n_pairs);
    return (n + GROUP_ROWS - 1) / GROUP_ROWS * GROUP_ROWS;
}

/* Returns how many rows x[0] has. */
static size_t max_places(const queue_limits *l, bool has_wide)
{
    size_t n = scratch_pairs(l);
    return has_wide && l->n_experts ? scratch_places(n, (size_t)l->n_experts) : n;
}

int scratch_pair_in(const queue_limits *l, bool has_wide)
{
    int own = l->max_expert_in ? l->max_expert_in : l->max_in, copy = l->max_expert_x ? l->max_expert_x : l->max_in;
    return has_wide && l->n_experts && copy > own ? copy : own;
}

void scratch_drop(const backend *b, scratch *s)
{
    for (int i = 0; i < X_SLOTS; i++) {
        cuda_drop(b, s->x[i].high);
        cuda_drop(b, s->x[i].low);
        cuda_drop(b, s->x[i].scale);
    }
    cuda_drop(b, s->order);
    cuda_drop(b, s->run);
    cuda_drop(b, s->argmax);
    cuda_drop(b, s->scores);
    cuda_drop(b, s->sample);
    cuda_drop(b, s->sum);
    cuda_drop(b, s->tops);
    cuda_drop(b, s->sparse);
    *s = (scratch){0};
}

static bool take_x(const backend *b, cuda_x *x, size_t n_rows, size_t n_in, err *e)
{
    static const char what[] = "the rows of steps";
    size_t            bytes  = layout_x_bytes(n_rows, n_in);
    return cuda_take(b, &x->high, bytes, what, e) && cuda_take(b, &x->low, bytes, what, e) &&
           cuda_take(b, &x->scale, n_rows * sizeof *x->scale, what, e);
}

/* A float for each head and page of a row, and fewer bytes than these for the bits of pages. */
size_t scratch_sparse_bytes(const queue_limits *l)
{
    size_t row = l->sparse < SIZE_MAX / 5 ? l->sparse * 5 : SIZE_MAX;
    return row > SPARSE_BYTES ? row : SPARSE_BYTES;
}

bool scratch_take(const backend *b, scratch *s, const queue_limits *l, bool has_wide, err *e)
{
    static const char what[] = "the scratch of steps";
    size_t            pairs = scratch_pairs(l), places = max_places(l, has_wide), x_bytes, vocab;
    size_t            runs = pairs / RUN_PAIRS_MIN + (size_t)l->n_experts;
    *s                     = (scratch){0};
    if (!size_mul(&x_bytes, places + GROUP_ROWS, ((size_t)scratch_pair_in(l, has_wide) + TILE_IN) * sizeof(uint16_t)) ||
        !size_mul(&vocab, PICK_BLOCKS * sizeof(double), (size_t)l->max_vocab))
        return err_set(e, ERR_UNAVAILABLE, "no memory for steps of %d rows", l->max_rows);
    bool ok = true;
    for (int i = 0; ok && i < X_SLOTS; i++)
        ok = take_x(b, &s->x[i], i ? (size_t)l->max_rows : places,
                    (size_t)(i ? l->max_in : scratch_pair_in(l, has_wide)), e);
    if (ok && cuda_take(b, &s->order, places * sizeof *s->order, what, e) &&
        cuda_take(b, &s->run, runs * sizeof *s->run, what, e) && cuda_take(b, &s->scores, vocab, what, e) &&
        cuda_take(b, &s->sample, SAMPLE_ROWS * SAMPLE_ROW_BYTES, what, e) &&
        cuda_take(b, &s->tops, STAGED_ROWS * layout_panels((size_t)l->max_in) * sizeof *s->tops, what, e) &&
        cuda_take(b, &s->sum, (size_t)l->max_in * sizeof *s->sum, what, e) &&
        cuda_take(b, &s->argmax, (size_t)l->max_rows * ARGMAX_SLICES * ARGMAX_BYTES, what, e) &&
        (!l->sparse || cuda_take(b, &s->sparse, scratch_sparse_bytes(l), what, e)))
        return true;
    scratch_drop(b, s);
    return false;
}
