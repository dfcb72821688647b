/* server/metrics.h - metrics for Prometheus: counters of the engine, of HTTP replies and of each key, and latencies.
 * The times between tokens and of whole requests are measured by the server, the others by the engine.
 *
 * Every metric has the prefix "tandem_". Metrics that vLLM has with the same meaning are written as "vllm:" as well,
 * for existing dashboards and load balancers. Names of llama.cpp's server ("llamacpp:") are added on request.
 *
 * Counters of tokens, requests and speculation are the engine's, which are the sums of all usage (promise 6).
 * Counters of speculation grow when a request ends.
 *
 * A client with an admin key, or any client of a server without keys, gets the metrics of the whole server and some
 * per key. A client with a user key gets metrics of its own requests, and the version, start time and state of
 * the server.
 *
 * The I/O thread is the only caller. */
#ifndef TANDEM_SERVER_METRICS_H
#define TANDEM_SERVER_METRICS_H
#include "http/http.h"
#include "server/parts.h"
#include "server/record.h"
#include "json/json.h"

typedef struct metrics metrics;
metrics               *metrics_new(void);        /* never NULL */
void                   metrics_free(metrics *m); /* m may be NULL */

enum { METRICS_MAX_TENANTS = 4096 }; /* max tenants; a new one replaces the one without requests for longest */

/* Adds n tokens of a response that came together `seconds` after the token before them. tenant: empty for none. */
void metrics_tokens(metrics *m, str tenant, int n, double seconds);
void metrics_request(metrics *m, const server_record *r); /* adds an ended request */
void metrics_reply(metrics *m, str tenant, int status);   /* counts a reply of any path; status 0 is ignored */
/* Operations on saved sessions that succeeded. */
typedef enum {
    METRICS_SESSION_SAVED,
    METRICS_SESSION_RESTORED,
    METRICS_SESSION_DELETED,
    METRICS_SESSION_KINDS
} metrics_session;
void metrics_count_session(metrics *m, metrics_session kind);
/* Set each tenant's numbers of running and waiting responses before metrics_write: clear, then note each. Numbers of
 * the server are in metrics_view.engine. */
void metrics_clear_live(metrics *m);
void metrics_note_live(metrics *m, str tenant, bool running);

/* Values that the server passes to the page. */
typedef struct {
    const char  *model;
    str          tenant; /* not empty: write metrics of this tenant and the state of the server only */
    tandem_stats engine;
    http_stats   http;
    bool         draining, loaded;
    bool         llamacpp; /* add llama.cpp's names */
    int          streams;  /* open streams of /api/stats */
    model_parts  parts;
} metrics_view;
/* Writes the member "latency": histograms of the whole server, as bounds in seconds and counts. The last count is of
 * values over all bounds. */
void metrics_put_latency(const metrics *m, json_writer *w);
void metrics_write(const metrics *m, const metrics_view *v, buf *out); /* appends the page */
#endif
