/* delta.c - the gated delta rule on a processor, forward and backward.
 *
 * Row by row, as the model defines it. For each value head, with S [dk][dv]:
 *
 *     S' = exp(g) S      d = beta (v - k S')      S = S' + k d      o = q S
 *
 * The backward pass keeps the state before every CHUNK rows and computes the states between them again.
 * Built by delta.py with the machine's own instructions; chunked matrix products in PyTorch take ten times as long. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D = 32, CHUNK = 32 };            /* dk = dv = D */

typedef struct {
    int batch, rows, k_heads, v_heads;
} shape;

static void decay_and_update(float *s, float *s1, const float *k, const float *v, float beta, float e, float *d)
{
    float ks[D] = {0};

    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) {
            float x = s[i * D + j] * e;
            s1[i * D + j] = x;
            ks[j] += k[i] * x;
        }
    for (int j = 0; j < D; j++) d[j] = beta * (v[j] - ks[j]);
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) s[i * D + j] = s1[i * D + j] + k[i] * d[j];
}

/* q, k: [batch][rows][k_heads][D]; v, o: [batch][rows][v_heads][D]; beta, g: [batch][rows][v_heads];
 * states: [batch][v_heads][chunks + 1][D][D], the state before each chunk and after the last row */
void delta_forward(const shape *z, const float *q, const float *k, const float *v, const float *beta, const float *g, float *o, float *states)
{
    int chunks = (z->rows + CHUNK - 1) / CHUNK, share = z->v_heads / z->k_heads;

#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < z->batch; b++)
        for (int h = 0; h < z->v_heads; h++) {
            float s[D * D] = {0}, s1[D * D], d[D];
            float *kept = states + ((size_t)b * z->v_heads + h) * (chunks + 1) * D * D;
            for (int t = 0; t < z->rows; t++) {
                size_t r = (size_t)b * z->rows + t;
                const float *qt = q + (r * z->k_heads + h / share) * D;
                float       *ot = o + (r * z->v_heads + h) * D;
                if (t % CHUNK == 0) memcpy(kept + (size_t)(t / CHUNK) * D * D, s, sizeof s);
                decay_and_update(s, s1, k + (r * z->k_heads + h / share) * D, v + (r * z->v_heads + h) * D, beta[r * z->v_heads + h],
                                 expf(g[r * z->v_heads + h]), d);
                float acc[D] = {0};
                for (int i = 0; i < D; i++)
                    for (int j = 0; j < D; j++) acc[j] += qt[i] * s[i * D + j];
                memcpy(ot, acc, sizeof acc);
            }
            memcpy(kept + (size_t)chunks * D * D, s, sizeof s);
        }
}

typedef struct {
    float *q, *k, *v, *beta, *g;
} grads;

/* One row backward. ds is the gradient of the state after the row, and becomes that of the state before it. */
static void row_back(float *ds, const float *s1, const float *d, const float *q, const float *k, const float *v, float beta, float e, const float *go, float *gq,
                     float *gk, float *gv, float *gbeta, float *gg)
{
    float dd[D] = {0}, w[D], dot = 0, kd[D], sum_beta = 0, sum_g = 0;

    for (int j = 0; j < D; j++) dot += d[j] * go[j];
    for (int i = 0; i < D; i++) {
        float a = 0;
        for (int j = 0; j < D; j++) {
            float x = ds[i * D + j] + q[i] * go[j];
            ds[i * D + j] = x;
            dd[j] += k[i] * x;
            a += x * d[j];
        }
        kd[i] = a;
    }
    float ks[D] = {0};
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) ks[j] += k[i] * s1[i * D + j];
    for (int j = 0; j < D; j++) {
        w[j] = beta * dd[j];
        gv[j] = w[j];
        sum_beta += dd[j] * (v[j] - ks[j]);
    }
    for (int i = 0; i < D; i++) {
        float a = 0, c = 0, f = 0;
        for (int j = 0; j < D; j++) {
            float x = ds[i * D + j] - k[i] * w[j], y = s1[i * D + j];
            a += y * w[j];
            c += y * go[j];
            f += x * y;
            ds[i * D + j] = e * x;
        }
        gk[i] += kd[i] - a;
        gq[i] += c + k[i] * dot;
        sum_g += f;
    }
    *gbeta = sum_beta;
    *gg = sum_g;
}

/* Gradients of the inputs from go, the gradient of o. Those of q and k are sums over the value heads that share them, and start as zeros. */
void delta_backward(const shape *z, const float *q, const float *k, const float *v, const float *beta, const float *g, const float *states, const float *go,
                    const grads *to)
{
    int chunks = (z->rows + CHUNK - 1) / CHUNK, share = z->v_heads / z->k_heads;

#pragma omp parallel
    {
        float *s1 = aligned_alloc(64, (size_t)CHUNK * D * D * sizeof *s1), (*d)[D] = aligned_alloc(64, sizeof(float) * D * CHUNK);
#pragma omp for collapse(2) schedule(dynamic)
        for (int b = 0; b < z->batch; b++)
            for (int kh = 0; kh < z->k_heads; kh++)
                for (int h = kh * share; h < (kh + 1) * share; h++) {
                    float ds[D * D] = {0}, s[D * D];
                    const float *kept = states + ((size_t)b * z->v_heads + h) * (chunks + 1) * D * D;
                    for (int c = chunks - 1; c >= 0; c--) {
                        int first = c * CHUNK, last = first + CHUNK < z->rows ? first + CHUNK : z->rows;
                        memcpy(s, kept + (size_t)c * D * D, sizeof s);
                        for (int t = first; t < last; t++) {
                            size_t r = (size_t)b * z->rows + t, vr = r * z->v_heads + h;
                            decay_and_update(s, s1 + (size_t)(t - first) * D * D, k + (r * z->k_heads + kh) * D, v + vr * D, beta[vr], expf(g[vr]), d[t - first]);
                        }
                        for (int t = last - 1; t >= first; t--) {
                            size_t r = (size_t)b * z->rows + t, kr = (r * z->k_heads + kh) * D, vr = r * z->v_heads + h;
                            row_back(ds, s1 + (size_t)(t - first) * D * D, d[t - first], q + kr, k + kr, v + vr * D, beta[vr], expf(g[vr]), go + vr * D, to->q + kr,
                                     to->k + kr, to->v + vr * D, to->beta + vr, to->g + vr);
                        }
                    }
                }
        free(s1);
        free(d);
    }
}
