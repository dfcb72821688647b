#include "ops/cpu/kernels.h"
#include "ops/cpu/vec.h"

enum { SPAN = 64 }; /* pairs whose cosines and sines are kept at a time */

/* Pairs [i0, i0 + n) of one head. */
static void turn(float *x, const float *cosine, const float *sine, int i0, int n, int half)
{
    float *lo = x + i0, *hi = x + half + i0;
    for (int i = 0; i < n; i += 8) {
        int left = n - i;
        v8f c = v8_load_n(cosine + i, left), s = v8_load_n(sine + i, left);
        v8f a = v8_load_n(lo + i, left), b = v8_load_n(hi + i, left);
        v8_store_n(lo + i, a * c - b * s, left);
        v8_store_n(hi + i, b * c + a * s, left);
    }
}

void CPU_FN(rope)(const void *args, size_t from, size_t to, int thread)
{
    const cpu_rope_args *a    = args;
    int                  half = a->head_dim / 2;
    (void)thread;
    for (size_t r = from; r < to; r++)
        for (int i0 = 0; i0 < half; i0 += SPAN) {
            int   n = half - i0 < SPAN ? half - i0 : SPAN;
            float cosine[SPAN], sine[SPAN];
            for (int i = 0; i < n; i++) {
                float angle = (float)a->pos[r] * a->freq[i0 + i];
                cosine[i]   = cosf(angle);
                sine[i]     = sinf(angle);
            }
            for (int h = 0; h < a->n_heads; h++)
                turn(a->x + (r * (size_t)a->n_heads + (size_t)h) * (size_t)a->head_dim, cosine, sine, i0, n, half);
        }
}
