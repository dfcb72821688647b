/* server/live.h - GET /api/stats: what happens now, as one JSON object or as a stream of them for a page that looks on.
 *
 * Counts are those of /metrics; rates are over the last seconds, from counts that are noted four times a second. */
#ifndef TANDEM_SERVER_LIVE_H
#define TANDEM_SERVER_LIVE_H
#include "json/json.h"

#include "tandem.h"

typedef struct server      server;
typedef struct server_call server_call;

enum { LIVE_SAMPLES = 244, LIVE_MAX_WINDOW_S = 60, LIVE_MAX_STREAMS = 16 };

typedef struct {
    double  at; /* clock_s */
    int64_t prompt_tokens, cached_tokens, completion_tokens, finished, steps, rows;
    int64_t drafted[TANDEM_SPEC_METHODS], accepted[TANDEM_SPEC_METHODS];
} live_sample;

typedef struct live_stream live_stream;
typedef struct {
    live_sample  ring[LIVE_SAMPLES];
    int64_t      n; /* noted so far */
    live_stream *first;
    int          n_streams;
} live_stats;

void live_note(live_stats *l, double now, const tandem_stats *s);
/* What was counted between the last note and one that is about window_s older, or the oldest: *seconds lie between them, 0: there
 * are no two. */
void live_since(const live_stats *l, double window_s, live_sample *out, double *seconds);

/* Members: rounds, drafted, accepted, and the two rates of them, as vLLM has them. */
void live_put_guesses(json_writer *w, int64_t rounds, int64_t drafted, int64_t accepted);

void live_endpoint(server *s, server_call *c); /* of the route */
void live_tick(server *s);
void live_end(server *s); /* the streams end */
#endif
