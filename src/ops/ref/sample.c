#include "ops/ref/table.h"

#include <assert.h>
#include <math.h>

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

void ref_change_logits(queue *q, dev logits, int n_vocab, dev items, int n_items)
{
    (void)q;
    sampling_change(logits.p, n_vocab, items.p, n_items);
}

void ref_restore_logits(queue *q, dev logits, int n_vocab, dev items, int n_items)
{
    (void)q;
    sampling_restore(logits.p, n_vocab, items.p, n_items);
}

void ref_mask_logits(queue *q, dev logits, int n_vocab, dev masks, dev rows, int n)
{
    const uint64_t *mask = masks.p;
    const int32_t  *row  = rows.p;
    (void)q;
    for (int i = 0; i < n; i++)
        sampling_mask((float *)logits.p + (size_t)row[i] * (size_t)n_vocab, n_vocab,
                      mask + (size_t)i * sampling_mask_words(n_vocab));
}

void ref_logprobs(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab, int n_top)
{
    assert(n_vocab <= q->lim.max_vocab);
    for (int r = 0; r < n_rows; r++)
        sampling_logprobs((const float *)logits.p + (size_t)r * (size_t)n_vocab, n_vocab, ((const int32_t *)id.p)[r],
                          n_top, (token_logprob *)out.p + (size_t)r * (size_t)(1 + n_top), q->candidates);
}

void ref_confidence(queue *q, dev out, dev logits, dev id, int n_rows, int n_vocab)
{
    (void)q;
    for (int r = 0; r < n_rows; r++) {
        const float *z    = (const float *)logits.p + (size_t)r * (size_t)n_vocab;
        int32_t      pick = ((const int32_t *)id.p)[r];
        double       sum  = 0;
        for (int i = 0; pick >= 0 && i < n_vocab; i++) sum += exp((double)z[i] - (double)z[pick]);
        ((float *)out.p)[r] = pick >= 0 ? (float)(1 / sum) : 0;
    }
}

void ref_sample_top(queue *q, dev out, dev logits, dev params, int n_rows, int n_vocab, int n_top, float soft)
{
    const sample_params *p = params.p;
    assert(n_vocab <= q->lim.max_vocab);
    for (int r = 0; r < n_rows; r++)
        sampling_top((const float *)logits.p + (size_t)r * (size_t)n_vocab, n_vocab, &p[r], n_top, soft,
                     (token_logprob *)out.p + (size_t)r * (size_t)n_top, q->candidates);
}
