/* server/record.h - a request that has ended, as the log and the metrics are told of it: one record for both, made from the
 * results that usage was made from, so that the three cannot differ (promise 6). Nothing of its text is in it. */
#ifndef TANDEM_SERVER_RECORD_H
#define TANDEM_SERVER_RECORD_H
#include "tandem.h"

enum { RECORD_MAX_CHOICES = 64 }; /* prompts times answers to each */

typedef struct {
    const char *id;       /* that the client was told */
    const char *endpoint; /* of the table of routes, never the client's own words */
    const char *tenant;   /* NULL: there are no keys */
    int         status;   /* 0: the client left before there was one */
    bool        stream;
    bool        delivered; /* to its last byte */
    double      total_s;   /* from the end of the head to the last byte of the reply */
    /* An answer each; none for a request that was refused or had no answers. */
    const tandem_result *choice[RECORD_MAX_CHOICES];
    bool                 again[RECORD_MAX_CHOICES]; /* to the same prompt as one before it */
    int                  n_choices;
} server_record;

/* All answers of one request taken together. Rates are 0 where there is nothing to divide. */
typedef struct {
    int64_t            prompt_tokens, cached_tokens; /* of each prompt once, as its first answer found it */
    int64_t            completion_tokens;
    double             queue_s, prefill_s, decode_s; /* the longest of them */
    double             first_s;                      /* to the first token of any, from the submission on */
    double             decode_rate;                  /* tokens after the first of each answer, per second of decode_s */
    double             total_rate;                   /* all tokens, per second of total_s */
    tandem_spec_counts spec;
    double             acceptance_rate;   /* accepted / drafted, as vLLM has it */
    double             acceptance_length; /* 1 + accepted / rounds, as vLLM has it */
    const char        *finish;            /* of the first answer; "": there is none */
    int                route;             /* of the first answer: tandem_method */
    const char        *route_reason;      /* never NULL */
} record_sums;
void record_sum(record_sums *out, const server_record *r);
#endif
