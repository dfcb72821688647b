#include "ops/ref/table.h"

#include <math.h>

/* The angle is rounded to f32: that is how these models were trained, and far out it is not a small difference. */
void ref_turn_head(float *x, int half, int32_t pos, const float *freq)
{
    for (int i = 0; i < half; i++) {
        float  angle = (float)pos * freq[i];
        double c = cos(angle), s = sin(angle), a = x[i], b = x[i + half];
        x[i]        = (float)(a * c - b * s);
        x[i + half] = (float)(b * c + a * s);
    }
}

void ref_rope(queue *q, dev x, const step_rows *rows, int n_heads, int head_dim, dev freq)
{
    (void)q;
    const int32_t *pos  = rows->pos.p;
    float         *head = x.p;
    for (int r = 0; r < rows->n_rows; r++)
        for (int h = 0; h < n_heads; h++, head += head_dim) ref_turn_head(head, head_dim / 2, pos[r], freq.p);
}
