#include "ops/ref/table.h"

#include <assert.h>
#include <math.h>

/* Rounds the angle to f32, as training does; at large positions the difference is not small. */
void ref_rotate_head(float *x, const rope_params *p, int32_t pos, const int32_t *section_pos)
{
    const float   *freq    = p->freq.p;
    const int32_t *section = p->section.p;
    int            half    = p->n_dims / 2;
    for (int i = 0; i < half; i++) {
        int32_t by    = section && section_pos ? section_pos[section[i]] : pos;
        float   angle = (float)by * freq[i];
        double  c = cos(angle), s = sin(angle), a = x[i], b = x[i + half];
        x[i]        = (float)(a * c - b * s);
        x[i + half] = (float)(b * c + a * s);
    }
}

void ref_rope(queue *q, dev x, const step_rows *rows, int n_heads, int head_dim, const rope_params *p)
{
    (void)q;
    const int32_t *pos = rows->pos.p, *sections = rows->section_pos.p;
    float         *head = x.p;
    assert(p->n_dims % 2 == 0 && p->n_dims <= head_dim);
    for (int r = 0; r < rows->n_rows; r++)
        for (int h = 0; h < n_heads; h++, head += head_dim)
            ref_rotate_head(head, p, pos[r], sections ? sections + (size_t)r * ROPE_SECTIONS : NULL);
}
