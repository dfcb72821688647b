/* load/report.h - adds up the runs of one server at one load, and writes them as a row of a table and as a JSON object.
 *
 * With two servers, runs alternate between them: the i-th runs of both are a pair, and ratios are taken pair by
 * pair. */
#ifndef TANDEM_LOAD_REPORT_H
#define TANDEM_LOAD_REPORT_H
#include "figures/stats.h"
#include "load/drive.h"
#include "json/json.h"

enum { LOAD_MAX_PAIRS = 100 };

/* The values of a run of which ratios are taken: completion tokens per second, and the medians of ttft, tpot and e2e
 * (see load_tally). LOAD_RATIOS is their number. */
typedef enum { LOAD_TOK_S, LOAD_TTFT, LOAD_TPOT, LOAD_E2E, LOAD_RATIOS } load_ratio;

/* Sums over the runs of one server at one load. Zeroed: no run. */
typedef struct {
    int64_t answered, failed, cut; /* requests: successful, failed, cancelled */
    int64_t prompt_tokens, completion_tokens, cached_tokens;
    int64_t counted; /* responses without usage, whose pieces are counted as tokens */
    double  seconds;
    /* Values of each run: completion tokens per second, all tokens per second, and the values of load_ratio. */
    double tok_s[LOAD_MAX_PAIRS], total_s[LOAD_MAX_PAIRS], of_pair[LOAD_RATIOS][LOAD_MAX_PAIRS];
    int    n_pairs; /* runs in these arrays; runs beyond LOAD_MAX_PAIRS are in all other members */
    /* Times in milliseconds. ttft: from due to the first piece; tpot: from the first to the last piece, per token after
     * the first; itl: between pieces; e2e: from due to the end. */
    struct {
        double *x;
        size_t  n, cap;
    } ttft, tpot, itl, e2e;
    double      rounds;            /* from the server's counters; 0: unknown */
    double      drafted, accepted; /* draft tokens, from the responses or else the counters; drafted 0: unknown */
    double      length_sum;        /* sum over responses that report an acceptance length */
    int64_t     n_lengths;         /* number of these responses */
    load_reason reason[LOAD_MAX_REASONS];
    int         n_reasons;
} load_tally;

bool load_tally_add(load_tally *t, const load_run *r, err *e); /* adds a run; after a failure, a part of it */
void load_tally_deinit(load_tally *t);

/* Append lines of text: the head of the table, a row, the ratios of x to y, and notes: the reasons of failures, and
 * the numbers of cut requests and of responses without usage. users and name
 * are the labels of the row. load_put_row sorts t's lists of times, as load_put_json does. */
void load_put_head(buf *out);
void load_put_row(buf *out, const char *users, const char *name, load_tally *t);
void load_put_ratios(buf *out, const char *users, const char *a, const char *b, const load_tally *x,
                     const load_tally *y);
void load_put_reasons(buf *out, const load_tally *t);
/* Write an object for t as a value, and the ratios of a to b as a member "ratios". */
void load_put_json(json_writer *w, const char *name, load_tally *t);
void load_put_json_ratios(json_writer *w, const load_tally *a, const load_tally *b);
#endif
