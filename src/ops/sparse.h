/* ops/sparse.h - sparse decode attention: parameters, and the choice of pages that every backend follows.
 *
 * A page class with sparse attention stores a summary of each complete page: the smallest and the largest key value of
 * each channel. A row at position p with p + 1 >= min_ctx attends to some pages. Pages before `far` are candidates:
 *
 *      pages   | sinks |  candidates ...                | far = (p + 1 - near) / KV_PAGE ... own page |
 *      kept      always   chosen for each K/V head         always
 *
 * A query head q bounds the scores of candidate j by U[j] = scale * sum over channels of max(q lo, q hi). With
 * n[j] = floor(2^20 e^(U[j] - max U)) it keeps the pages n[j] >= t, where t is the largest number for which the pages
 * below it have at most the share `drop` of the sum of all n. The heads of one K/V head attend to the union of what
 * they keep. A dropped page counts as KV_PAGE keys that the row does not see; tiles stay where they are. So the choice
 * depends on the row's own query and its own sequence alone (promise 1), and with all pages kept the result has the
 * bits of dense attention.
 *
 * Candidates lie at least `near` positions before the row, so they are committed as long as a draft is shorter. */
#ifndef TANDEM_OPS_SPARSE_H
#define TANDEM_OPS_SPARSE_H
#include "ops/cache_type.h"

enum {
    SPARSE_ONE     = 1 << 24, /* a share of 1 in sparse_params.drop */
    SPARSE_WEIGHT  = 1 << 20, /* n of the page with the largest bound */
    SPARSE_SINK    = 4,       /* defaults of sparse_params */
    SPARSE_NEAR    = 512,
    SPARSE_MIN_CTX = 4096,
};
typedef struct {
    uint32_t drop;    /* share of the estimated weight that a query head may drop, in 1 / SPARSE_ONE; 0: dense */
    int32_t  sink;    /* the first pages, always kept */
    int32_t  near;    /* positions up to the row's own that are always kept */
    int32_t  min_ctx; /* rows that see fewer positions are dense */
} sparse_params;

/* Parses the share, from 0 (off) to below 1, and sets the other parameters to their defaults. */
bool sparse_parse(sparse_params *out, str text, err *e);
/* Writes text for sparse_parse, with a NUL, and returns out. */
enum { SPARSE_TEXT = 24 };
const char *sparse_text(const sparse_params *s, char out[SPARSE_TEXT]);
double      sparse_share(const sparse_params *s); /* the number in that text */

/* Returns the number of candidate pages of a row, sinks included; 0: the row is dense. */
static inline int32_t sparse_far_pages(const sparse_params *s, int32_t pos)
{
    return s->drop && pos + 1 >= s->min_ctx && pos + 1 >= s->near ? (pos + 1 - s->near) / KV_PAGE : 0;
}

/* Returns the sum of those n[i] that are below t. */
static inline uint64_t sparse_sum_below(const uint32_t *n, int count, uint32_t t)
{
    uint64_t sum = 0;
    for (int i = 0; i < count; i += 2048) { /* 2048 * SPARSE_WEIGHT fits 32 bits */
        uint32_t part = 0;
        int      end  = count - i < 2048 ? count : i + 2048;
        for (int k = i; k < end; k++) part += n[k] < t ? n[k] : 0;
        sum += part;
    }
    return sum;
}

/* Returns the smallest n of a page that is kept. */
static inline uint32_t sparse_threshold(const uint32_t *n, int count, uint32_t drop)
{
    uint64_t sum = sparse_sum_below(n, count, UINT32_MAX);
    /* floor(drop * sum / 2^24), without overflow for any number of pages */
    uint64_t limit = (sum >> 24) * drop + (((sum & (SPARSE_ONE - 1)) * drop) >> 24);
    uint32_t t     = 0;
    for (uint32_t bit = SPARSE_WEIGHT; bit; bit >>= 1)
        if (sparse_sum_below(n, count, t | bit) <= limit) t |= bit;
    return t;
}

/* Adds the pages that a head keeps to `kept`: page j is bit j % 16 of word j / 16. */
static inline void sparse_keep(uint16_t *kept, const uint32_t *n, int count, const sparse_params *s)
{
    uint32_t t = sparse_threshold(n, count, s->drop);
    for (int j = 0; j < count; j++)
        if (n[j] >= t || j < s->sink) kept[j / 16] = (uint16_t)(kept[j / 16] | 1u << j % 16);
}
#endif
