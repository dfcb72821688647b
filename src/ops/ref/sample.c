#include "ops/ref/table.h"

#include <assert.h>

void ref_argmax(queue *q, dev id, dev logits, int n_rows, int n_vocab)
{
    (void)q;
    for (int r = 0; r < n_rows; r++)
        ((int32_t *)id.p)[r] = sampling_argmax((const float *)logits.p + (size_t)r * (size_t)n_vocab, n_vocab);
}

void ref_sample(queue *q, dev id, dev logits, dev params, int n_rows, int n_vocab)
{
    const sample_params *p = params.p;
    assert(n_vocab <= q->lim.max_vocab);
    for (int r = 0; r < n_rows; r++)
        ((int32_t *)id.p)[r] =
            sampling_pick((const float *)logits.p + (size_t)r * (size_t)n_vocab, n_vocab, &p[r], q->candidates);
}
