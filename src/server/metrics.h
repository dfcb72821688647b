/* server/metrics.h - numbers for Prometheus: what the engine counts, and what only the server sees.
 *
 * Every name is there with our prefix, "tandem_". Names that vLLM has, with vLLM's meaning, are there as "vllm:" too, always:
 * dashboards and load balancers that were made for them work as they are, and nobody has to find a switch first.
 *
 * Those of llama.cpp's server are added, as "llamacpp:", on request.
 *
 * Tokens, requests and speculation are the engine's own counts, which are the sums of all usage (promise 6); those of
 * speculation grow when a request ends. Latencies are seen here.
 *
 * The page of an admin, or of anybody when there are no keys, has the numbers of the whole server and a few of each key. A
 * user's key gets a page with the numbers of its own requests (those of its tenant), and none that depend on others.
 *
 * Thread: the I/O thread's. */
#ifndef TANDEM_SERVER_METRICS_H
#define TANDEM_SERVER_METRICS_H
#include "http/http.h"
#include "server/parts.h"
#include "server/record.h"

typedef struct metrics metrics;
metrics               *metrics_new(void);
void                   metrics_free(metrics *m); /* NULL is fine */

enum { METRICS_MAX_TENANTS = 4096 }; /* whose numbers are kept; a new one replaces the one that was quiet for longest */

/* n tokens of an answer came, so many seconds after those before them (not the first ones). tenant: empty for none. */
void metrics_tokens(metrics *m, str tenant, int n, double seconds);
void metrics_request(metrics *m, const server_record *r); /* it ended */
void metrics_reply(metrics *m, str tenant, int status);   /* of any path; 0, who left before there was one, is none */
/* Answers that run or wait now: before metrics_write, clear and note each. */
void metrics_clear_live(metrics *m);
void metrics_note_live(metrics *m, str tenant, bool running);

/* What else the page tells. */
typedef struct {
    const char  *model;
    str          tenant; /* not empty: the page is for this one's key */
    tandem_stats engine;
    http_stats   http;
    bool         draining, loaded;
    bool         llamacpp; /* llama.cpp's names as well */
    int          streams;  /* of live numbers */
    model_parts  parts;
} metrics_view;
void metrics_write(const metrics *m, const metrics_view *v, buf *out);
#endif
