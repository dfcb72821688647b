/* server/record.h - an ended request, for the log and the metrics.
 *
 * The record is made from the same results as the usage in the response, so that the three cannot differ (promise
 * 6). It contains no text. */
#ifndef TANDEM_SERVER_RECORD_H
#define TANDEM_SERVER_RECORD_H
#include "tandem.h"

enum { RECORD_MAX_CHOICES = 64 }; /* prompts times choices per prompt */

typedef struct {
    const char *id;       /* as sent to the client; all pointers are borrowed */
    const char *endpoint; /* path of the route, never the path that the client sent */
    const char *tenant;   /* name of the key; NULL: none */
    int         status;   /* 0: the client disconnected before the reply */
    bool        stream;
    bool        delivered; /* the client received the last byte */
    double      total_s;   /* from the end of the head to the last byte of the reply */
    /* Results of its choices; none for a request that was refused or generated nothing. */
    const tandem_result *choice[RECORD_MAX_CHOICES];
    bool                 shares_prompt[RECORD_MAX_CHOICES]; /* same prompt as an earlier choice */
    int                  n_choices;
} server_record;

/* Sums over all choices of a request. Rates are 0 when the divisor is 0. */
typedef struct {
    int64_t prompt_tokens, cached_tokens; /* each prompt counts once, with the cache hits of its first choice */
    int64_t image_tokens, video_tokens;   /* part of prompt_tokens */
    int64_t completion_tokens;
    double  queue_s, prefill_s, decode_s; /* maximum over the choices */
    double  first_s;                      /* from submission to the first token of any choice */
    double  decode_rate;                  /* tokens per second of decode_s, without the first of each choice */
    double  total_rate;                   /* tokens per second of total_s */
    tandem_spec_counts spec;
    double             acceptance_rate;   /* accepted / drafted, as in vLLM */
    double             acceptance_length; /* 1 + accepted / rounds, as in vLLM */
    const char        *finish;            /* reason of the first choice; "": there is none */
    int                route;             /* tandem_method of the first choice */
    const char        *route_reason;      /* never NULL */
} record_sums;
void record_sum(record_sums *out, const server_record *r); /* overwrites *out; strings are constants */
#endif
