#include "ops/sampling.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double LN2_HI = 0x1.62e42fee00000p-1, LN2_LO = 0x1.a39ef35793c76p-33; /* their sum is ln 2 */

/* x = m 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 (s + s^3/3 + s^5/5 + ...), s = (m - 1) / (m + 1). */
double sampling_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits  = (bits & 0xFFFFFFFFFFFFFu) | (uint64_t)1023 << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m >= 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
    for (int k = 21; k >= 3; k -= 2) sum = (sum + 1.0 / k) * s2;
    return e * LN2_HI + (e * LN2_LO + (2 * s + 2 * s * sum));
}

/* x = k ln 2 + r with |r| <= ln 2 / 2; e^r by its series. Below -708 the result is 0. */
double sampling_exp(double x)
{
    if (!(x > -708)) return 0;
    if (x > 709) x = 709;
    int    k = (int)(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
    double r = (x - k * LN2_HI) - k * LN2_LO, sum = 1;
    for (int i = 13; i >= 1; i--) sum = 1 + sum * r / i;
    uint64_t bits = (uint64_t)(k + 1023) << 52;
    double   scale;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t sampling_choice_seed(uint64_t seed, int choice)
{
    return choice == 0 ? seed : mix(mix(seed) + (uint64_t)choice * 0x9E3779B97F4A7C15u);
}

static uint64_t position_key(uint64_t seed, int32_t pos)
{
    return mix(mix(seed + 0x9E3779B97F4A7C15u) ^ ((uint64_t)(uint32_t)pos + 1) * 0xD1B54A32D192ED03u);
}

/* -log(-log u), u one of 2^52 evenly spaced numbers inside (0, 1): at most NOISE_MAX. */
static double noise_of(uint64_t key, int32_t token)
{
    uint64_t h = mix(key + ((uint64_t)(uint32_t)token + 1) * 0x9E3779B97F4A7C15u);
    double   u = ((double)(h >> 12) + 0.5) * 0x1p-52;
    return -sampling_log(-sampling_log(u));
}
static const double NOISE_MAX = 36.75;

double sampling_noise(uint64_t seed, int32_t pos, int32_t token) { return noise_of(position_key(seed, pos), token); }

int32_t sampling_argmax(const float *logits, int n_vocab)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n_vocab; i++)
        if (isfinite(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
    return best;
}

/* a goes before b: higher first, ties to the lower id. */
static bool before(const sampling_candidate *a, const sampling_candidate *b)
{
    return a->z > b->z || (a->z == b->z && a->id < b->id);
}

static int by_rank(const void *a, const void *b) { return before(a, b) ? -1 : before(b, a) ? 1 : 0; }

/* Restores the heap below i; the root is the candidate that goes last. */
static void sift_down(sampling_candidate *heap, int n, int i)
{
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&heap[child], &heap[child + 1])) child++;
        if (!before(&heap[i], &heap[child])) return;
        sampling_candidate t = heap[i];
        heap[i]              = heap[child];
        heap[child]          = t;
    }
}

static int gather_all(const float *logits, int n_vocab, double temp, sampling_candidate *c)
{
    int n = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        if (isfinite(logits[i])) c[n++] = (sampling_candidate){(double)logits[i] / temp, i};
    return n;
}

static int gather_top_k(const float *logits, int n_vocab, double temp, int k, sampling_candidate *c)
{
    int n = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (!isfinite(logits[i])) continue;
        sampling_candidate x = {(double)logits[i] / temp, i};
        if (n < k) {
            c[n++] = x;
            if (n == k)
                for (int j = k / 2 - 1; j >= 0; j--) sift_down(c, k, j);
        } else if (before(&x, &c[0])) {
            c[0] = x;
            sift_down(c, k, 0);
        }
    }
    return n;
}

/* The candidates with z >= floor come first, in the order they had; returns how many. */
static int partition_above(sampling_candidate *c, int n, double floor)
{
    int m = 0;
    for (int i = 0; i < n; i++)
        if (c[i].z >= floor) {
            sampling_candidate t = c[m];
            c[m++]               = c[i];
            c[i]                 = t;
        }
    return m;
}

/* The shortest run of the ranking whose probability reaches top_p. Only as much of the tail is sorted as is needed;
 * weights under e^-60 of the largest count as nothing. */
static int keep_top_p(sampling_candidate *c, int n, double z_max, double top_p)
{
    double total = 0, sum = 0;
    int    m = 0;
    for (int i = 0; i < n; i++)
        if (c[i].z - z_max > -60) total += sampling_exp(c[i].z - z_max);
    for (double depth = 8; m < n; depth *= 2) {
        int more = depth > 64 ? n - m : partition_above(c + m, n - m, z_max - depth);
        qsort(c + m, (size_t)more, sizeof *c, by_rank);
        for (int end = m + more; m < end; m++) {
            if (c[m].z - z_max > -60) sum += sampling_exp(c[m].z - z_max);
            if (sum >= top_p * total) return m + 1;
        }
    }
    return n;
}

static int32_t pick_noisy(const sampling_candidate *c, int n, const sample_params *p)
{
    uint64_t key  = position_key(p->seed, p->pos);
    double   best = -INFINITY;
    int32_t  id   = -1;
    for (int i = 0; i < n; i++) {
        if (c[i].z + NOISE_MAX < best) continue; /* cannot win any more */
        double score = c[i].z + noise_of(key, c[i].id);
        if (id < 0 || score > best || (score == best && c[i].id < id)) {
            best = score;
            id   = c[i].id;
        }
    }
    return id;
}

int32_t sampling_pick(const float *logits, int n_vocab, const sample_params *p, sampling_candidate *scratch)
{
    if (p->temp <= 0) return sampling_argmax(logits, n_vocab);
    bool by_k = p->top_k > 0 && p->top_k < n_vocab;
    int  n    = by_k ? gather_top_k(logits, n_vocab, p->temp, p->top_k, scratch)
                     : gather_all(logits, n_vocab, p->temp, scratch);
    if (n == 0) return -1;
    double z_max = scratch[0].z;
    for (int i = 1; i < n; i++)
        if (scratch[i].z > z_max) z_max = scratch[i].z;
    if (p->top_p < 1) n = keep_top_p(scratch, n, z_max, p->top_p);
    if (p->min_p > 0) n = partition_above(scratch, n, z_max + sampling_log(p->min_p));
    return pick_noisy(scratch, n, p);
}
