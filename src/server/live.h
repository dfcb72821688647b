/* server/live.h - GET /api/stats: current statistics, as one JSON object or as an event stream for dashboards.
 *
 * Counters are those of /metrics. Rates are computed over the last seconds, from samples taken four times a second.
 * Called on the I/O thread. */
#ifndef TANDEM_SERVER_LIVE_H
#define TANDEM_SERVER_LIVE_H
#include "json/json.h"

#include "tandem.h"

typedef struct server      server;
typedef struct server_call server_call;

enum {
    LIVE_SAMPLES      = 244, /* kept samples: a minute and a second */
    LIVE_MAX_WINDOW_S = 60,  /* longest window of rates, in seconds */
    LIVE_MAX_STREAMS  = 16,  /* streams open at a time */
};

/* Counters since the start, or their differences. */
typedef struct {
    double  at; /* clock_s */
    int64_t prompt_tokens, cached_tokens, completion_tokens, finished, steps, rows;
    int64_t drafted[TANDEM_SPEC_METHODS], accepted[TANDEM_SPEC_METHODS];
} live_sample;

typedef struct live_stream live_stream;
typedef struct {
    live_sample       ring[LIVE_SAMPLES]; /* sample i is ring[i % LIVE_SAMPLES] */
    int64_t           n;                  /* samples taken */
    struct gpu_watch *gpus;               /* NULL: the model never ran on a GPU */
    live_stream      *first;              /* list of the open streams */
    int               n_streams;
} live_stats; /* starts as all zeros */

/* Members: rounds, drafted, accepted, and the two rates of them, as vLLM has them. */
void live_put_drafts(json_writer *w, int64_t rounds, int64_t drafted, int64_t accepted);

void live_endpoint(server *s, server_call *c); /* handler of the route */
void live_tick(server *s); /* adds a sample, and sends to the streams that are due; called four times a second */
void live_end(server *s);  /* ends all streams, with an event that names the reason */
void live_deinit(server *s);
#endif
