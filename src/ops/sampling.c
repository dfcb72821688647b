#include "ops/sampling.h"

#include "ops/sampling_math.h"

#include <assert.h>
#include <math.h>
#include <string.h>

uint64_t sampling_choice_seed(uint64_t seed, int choice)
{
    return choice == 0 ? seed : sampling_mix(sampling_mix(seed) + (uint64_t)choice * 0x9E3779B97F4A7C15u);
}

int32_t sampling_argmax(const float *logits, int n_vocab)
{
    float   max = -INFINITY; /* mostly one comparison; false for NaN too */
    int32_t id  = -1;
    for (int32_t i = 0; i < n_vocab; i++)
        if (logits[i] > max && isfinite(logits[i])) {
            max = logits[i];
            id  = i;
        }
    return id;
}

/* Returns whether a ranks before b: higher first, ties to the lower id. */
static bool before(const sampling_candidate *a, const sampling_candidate *b)
{
    return a->z > b->z || (a->z == b->z && a->id < b->id);
}

static void swap(sampling_candidate *a, sampling_candidate *b)
{
    sampling_candidate t = *a;
    *a                   = *b;
    *b                   = t;
}

/* Restores the heap below i. Its top is the first candidate of the ranking, or with last_on_top the last one. */
static void sift_down(sampling_candidate *heap, int n, int i, bool last_on_top)
{
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&heap[child + 1], &heap[child]) != last_on_top) child++;
        if (before(&heap[child], &heap[i]) == last_on_top) return;
        swap(&heap[i], &heap[child]);
    }
}

static void make_heap(sampling_candidate *c, int n, bool last_on_top)
{
    for (int i = n / 2 - 1; i >= 0; i--) sift_down(c, n, i, last_on_top);
}

/* Sorts the candidates, best first. */
static void rank(sampling_candidate *c, int n)
{
    make_heap(c, n, true);
    while (n > 1) {
        swap(&c[0], &c[--n]);
        sift_down(c, n, 0, true);
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
        if (n == k && logits[i] <= logits[c[0].id]) continue; /* the higher id loses a tie */
        if (!isfinite(logits[i])) continue;
        sampling_candidate x = {(double)logits[i] / temp, i};
        if (n < k) {
            c[n++] = x;
            if (n == k) make_heap(c, k, true);
        } else if (before(&x, &c[0])) {
            c[0] = x;
            sift_down(c, k, 0, true);
        }
    }
    return n;
}

static int keep_above(sampling_candidate *c, int n, double floor)
{
    int m = 0;
    for (int i = 0; i < n; i++)
        if (c[i].z >= floor) c[m++] = c[i];
    return m;
}

/* Moves to the front the shortest start of the ranking whose probability reaches top_p. Takes candidates from a heap
 * one by one, so that it ranks only those that are kept. */
static int keep_top_p(sampling_candidate *c, int n, double z_max, double top_p)
{
    uint64_t total = 0, sum = 0;
    int      left = n;
    for (int i = 0; i < n; i++) total += sampling_share(c[i].z - z_max);
    make_heap(c, n, false);
    while (left > 0) {
        sum += sampling_share(c[0].z - z_max);
        swap(&c[0], &c[--left]);
        sift_down(c, left, 0, false);
        if ((double)sum >= top_p * (double)total) break;
    }
    memmove(c, c + left, (size_t)(n - left) * sizeof *c);
    return n - left;
}

/* Moves to the front the k candidates with the best scores z + noise, as a heap with the last on top. z becomes the
 * score. */
static int keep_scored(sampling_candidate *c, int n, const sample_params *p, int k)
{
    uint64_t key = sampling_position_key(p->seed, p->pos);
    for (int i = 0; i < n; i++) {
        uint64_t bits = sampling_token_bits(key, c[i].id);
        if (i >= k && c[i].z + sampling_noise_bound(bits) < c[0].z) continue; /* cannot win */
        sampling_candidate x = {c[i].z + sampling_noise_of(bits), c[i].id};
        if (i < k) {
            c[i] = x;
            if (i == k - 1) make_heap(c, k, true);
        } else if (before(&x, &c[0])) {
            c[0] = x;
            sift_down(c, k, 0, true);
        }
    }
    return n < k ? n : k;
}

static int filter(sampling_candidate *c, int n, const sample_params *p)
{
    if (n == 0 || !(p->top_p < 1 || p->min_p > 0)) return n;
    double z_max = c[0].z;
    for (int i = 1; i < n; i++)
        if (c[i].z > z_max) z_max = c[i].z;
    if (p->top_p < 1) n = keep_top_p(c, n, z_max, p->top_p);
    if (p->min_p > 0) n = keep_above(c, n, z_max + sampling_math_log(p->min_p));
    return n;
}

/* Finds the candidates that pass the filters. z is logit / temp. */
static int gather_filtered(const float *logits, int n_vocab, const sample_params *p, sampling_candidate *c)
{
    bool by_k = p->top_k > 0 && p->top_k < n_vocab;
    int  n    = by_k ? gather_top_k(logits, n_vocab, p->temp, p->top_k, c) : gather_all(logits, n_vocab, p->temp, c);
    return filter(c, n, p);
}

int32_t sampling_pick(const float *logits, int n_vocab, const sample_params *p, sampling_candidate *scratch)
{
    if (p->temp <= 0) return sampling_argmax(logits, n_vocab);
    int n = gather_filtered(logits, n_vocab, p, scratch);
    return keep_scored(scratch, n, p, 1) ? scratch[0].id : -1;
}

/* --- from a ranked list ------------------------------------------------------------------------*/
int sampling_needs(const sample_params *p)
{
    return p->temp <= 0 ? 1 : p->top_k > 0 && p->top_k <= SAMPLE_TOP_MAX ? p->top_k : 0;
}

/* Division by the temperature keeps distinct floats distinct, so the best by logit are the best by z. */
int32_t sampling_pick_best(const token_logit *best, int n, const sample_params *p)
{
    sampling_candidate c[SAMPLE_TOP_MAX];
    int                max = sampling_needs(p), m = 0;
    if (p->temp <= 0) return n > 0 ? best[0].id : -1;
    for (; m < n && m < max && best[m].id >= 0; m++)
        c[m] = (sampling_candidate){(double)best[m].logit / p->temp, best[m].id};
    return keep_scored(c, filter(c, m, p), p, 1) ? c[0].id : -1;
}

int sampling_rank(token_logit *best, int n, int max, int32_t id, float logit)
{
    if (!isfinite(logit)) return n;
    int at = n < max ? n++ : max; /* a full list drops its last entry */
    for (; at > 0; at--) {
        const token_logit *above = &best[at - 1];
        if (above->logit > logit || (above->logit == logit && above->id < id)) break;
        if (at < n) best[at] = *above;
    }
    if (at < n) best[at] = (token_logit){id, logit};
    return n;
}

/* Finds the SAMPLE_TOP_MAX best tokens, ranked. z is the score. */
static int gather_scored(const float *logits, int n_vocab, const sample_params *p, sampling_candidate *c)
{
    int n = p->temp <= 0 ? gather_top_k(logits, n_vocab, 1, SAMPLE_TOP_MAX, c)
                         : keep_scored(c, gather_filtered(logits, n_vocab, p, c), p, SAMPLE_TOP_MAX);
    rank(c, n);
    return n;
}

void sampling_top(const float *logits, int n_vocab, const sample_params *p, int n_top, float soft, token_logprob *out,
                  sampling_candidate *scratch)
{
    assert(n_top <= SAMPLE_TOP_MAX && soft > 0);
    int    n   = gather_scored(logits, n_vocab, p, scratch);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += sampling_math_exp((scratch[i].z - scratch[0].z) / soft);
    double log_sum = n > 0 ? sampling_math_log(sum) : 0;
    for (int i = 0; i < n_top; i++)
        out[i] = i < n ? (token_logprob){scratch[i].id, (float)((scratch[i].z - scratch[0].z) / soft - log_sum)}
                       : (token_logprob){-1, -INFINITY};
}

/* --- before and after a pick ---------------------------------------------------------*/
void sampling_change(float *logits, int n_vocab, logit_change *c, int n)
{
    for (int i = 0; i < n; i++) {
        float *x = logits + (size_t)c[i].row * (size_t)n_vocab + c[i].token, y = *x + c[i].bias;
        c[i].was = *x;
        *x       = (y > 0 ? y / c[i].repeat : y * c[i].repeat) - c[i].minus;
    }
}

void sampling_restore(float *logits, int n_vocab, const logit_change *c, int n)
{
    for (int i = 0; i < n; i++) logits[(size_t)c[i].row * (size_t)n_vocab + c[i].token] = c[i].was;
}

void sampling_mask(float *logits, int n_vocab, const uint64_t *mask)
{
    for (int32_t first = 0; first < n_vocab; first += 64) {
        uint64_t kept = mask[first >> 6];
        int      n    = n_vocab - first < 64 ? n_vocab - first : 64;
        if (kept == UINT64_MAX) continue;
        for (int i = 0; i < n; i++) logits[first + i] = kept >> i & 1 ? logits[first + i] : -INFINITY;
    }
}

static double log_sum_exp(const float *logits, int n_vocab)
{
    int32_t  best = sampling_argmax(logits, n_vocab);
    uint64_t sum  = 0;
    if (best < 0) return 0;
    for (int i = 0; i < n_vocab; i++)
        if (isfinite(logits[i])) sum += sampling_share((double)logits[i] - (double)logits[best]);
    return (double)logits[best] + sampling_math_log((double)sum / SAMPLING_SHARE_ONE);
}

static token_logprob logprob_of(const float *logits, int32_t id, double log_sum)
{
    bool real = id >= 0 && isfinite(logits[id]);
    return (token_logprob){id, real ? (float)((double)logits[id] - log_sum) : -INFINITY};
}

void sampling_logprobs(const float *logits, int n_vocab, int32_t id, int n_top, token_logprob *out,
                       sampling_candidate *scratch)
{
    double log_sum = log_sum_exp(logits, n_vocab);
    out[0]         = logprob_of(logits, id, log_sum);
    if (n_top == 0) return;
    int n = gather_top_k(logits, n_vocab, 1, n_top, scratch);
    rank(scratch, n);
    for (int i = 0; i < n_top; i++)
        out[1 + i] = i < n ? logprob_of(logits, scratch[i].id, log_sum) : (token_logprob){-1, -INFINITY};
}
