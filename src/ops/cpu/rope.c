#include "ops/cpu/kernels.h"
#include "ops/cpu/rotate.h"

enum { SPAN = 64 }; /* pairs whose cosines and sines are kept at a time */

void CPU_FN(rope)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_rope_args *a    = args;
    int                  half = a->p.n_dims / 2;
    (void)thread;
    for (size_t r = from; r < to; r++)
        for (int i0 = 0; i0 < half; i0 += SPAN) {
            int   n = half - i0 < SPAN ? half - i0 : SPAN;
            float cosine[SPAN], sine[SPAN];
            if (a->p.section && a->section_pos)
                section_angles(cosine, sine, a->section_pos + r * ROPE_SECTIONS, a->p.section + i0, a->p.freq + i0, n);
            else
                pair_angles(cosine, sine, a->pos[r], a->p.freq + i0, n);
            for (int h = 0; h < a->n_heads; h++)
                rotate_pairs(a->x + (r * (size_t)a->n_heads + (size_t)h) * (size_t)a->head_dim, cosine, sine, i0, n,
                             half);
        }
}
