/* load/report.h - reports the runs at one load as a row of a table and a JSON object. */
#ifndef TANDEM_LOAD_REPORT_H
#define TANDEM_LOAD_REPORT_H
#include "figures/stats.h"
#include "load/drive.h"
#include "json/json.h"

enum { LOAD_MAX_PAIRS = 100 };

/* Values of one pair, for ratios. */
typedef enum { LOAD_TOK_S, LOAD_TTFT, LOAD_TPOT, LOAD_E2E, LOAD_RATIOS } load_ratio;
extern const char *const load_ratio_names[LOAD_RATIOS];

/* One server at one load; times in milliseconds. */
typedef struct {
    int64_t answered, failed, cut;
    int64_t prompt_tokens, completion_tokens, cached_tokens;
    int64_t counted; /* responses without usage, whose events are counted as tokens */
    double  seconds;
    double  tok_s[LOAD_MAX_PAIRS], total_s[LOAD_MAX_PAIRS], of_pair[LOAD_RATIOS][LOAD_MAX_PAIRS];
    int     n_pairs;
    /* ttft: time to the first event; tpot: time per later token; itl: time between events; e2e: total time */
    struct {
        double *x;
        size_t  n, cap;
    } ttft, tpot, itl, e2e;
    double      rounds, drafted, accepted; /* drafted 0: unknown */
    double      length_sum;                /* sum over responses that report an acceptance length */
    int64_t     n_lengths;
    load_reason reason[LOAD_MAX_REASONS];
    int         n_reasons;
} load_tally;

bool load_tally_add(load_tally *t, const load_run *r, err *e); /* adds a run */
void load_tally_deinit(load_tally *t);
/* Return the mean number of accepted draft tokens plus one, and the share of accepted draft tokens; NaN: unknown. */
double load_acceptance_length(const load_tally *t);
double load_acceptance_rate(const load_tally *t);
/* Returns the ratios of a to b, pair by pair. */
interval load_ratio_of(const load_tally *a, const load_tally *b, load_ratio which);

void load_put_head(buf *out);
void load_put_row(buf *out, const char *users, const char *name, load_tally *t);
void load_put_ratios(buf *out, const char *users, const char *a, const char *b, const load_tally *x,
                     const load_tally *y);
void load_put_reasons(buf *out, const load_tally *t);
void load_put_json(json_writer *w, const char *name, load_tally *t);
void load_put_json_ratios(json_writer *w, const load_tally *a, const load_tally *b);
#endif
