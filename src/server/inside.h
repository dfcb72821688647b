/* server/inside.h - the state of the server, for the files of this module.
 *
 *      http call ---> route.c: path, key ---> handler ---> a reply at once, or
 *                                                `------> completion.c: worker ---> engine ---> events ---> the client
 *
 * The I/O thread (the caller of server_run) owns all state, so there are no locks. Workers read bodies and the engine
 * thread makes tokens; both wake the I/O thread and never wait for it. A client that disconnects cancels its jobs. */
#ifndef TANDEM_SERVER_INSIDE_H
#define TANDEM_SERVER_INSIDE_H
#include "sched/engine.h"
#include "server/access.h"
#include "server/call.h"
#include "server/completion.h"
#include "server/life.h"
#include "server/live.h"
#include "server/live_sessions.h"
#include "server/media.h"
#include "server/metrics.h"
#include "server/server.h"
#include "server/status.h"
#include "server/work.h"

#include <stdatomic.h>

typedef struct bench_run bench_run;

struct server {
    const server_options *opt;
    http_server          *http;
    work                 *work;
    tandem               *engine; /* NULL: see life.state */
    model_life            life;
    live_stats            live;
    bench_run            *bench;      /* NULL: none runs */
    completion           *first;      /* list of completions that have not ended */
    int                   n_users;    /* users of the engine other than completions */
    atomic_size_t         held_bytes; /* memory of requests and large replies; workers add to it */
    int                   n_completions;
    bool                  draining; /* shutting down */
    bool                  cut;      /* the grace period is over */
    bool                  drained;  /* by POST /api/drain: new requests are refused until DELETE */
    char                  replica_id[REQUEST_ID_MAX + 1];
    server_call           nobody;          /* used to refuse a request for which no call could be allocated */
    double                started, cut_at; /* clock_s */
    int64_t               created;         /* seconds since 1970 */
    access_rules          access;
    metrics              *metrics;
    watchdog              watchdog;
    live_sessions         sessions; /* the last texts of named conversations */
    double                notified; /* clock_s of the last watchdog message to the service manager */
    struct results       *results;  /* results of benchmarks; NULL: it could not be opened */
    model_files          *files;    /* files of the engine, or of the last one; NULL: none was loaded */
    media_access          media;    /* how images and videos are loaded */
};

/* The checks return false with a 503 or 429 in *why. */
bool server_is_loaded(const server *s, server_error *why); /* whether there is an engine, also while it is parking */
bool server_is_ready(const server *s, server_error *why);  /* false: loading, parking, parked, failed or draining */
/* Sets *why to the reason why the server cancelled a job: parking or shutdown. Returns false. */
bool server_why_cancelled(const server *s, server_error *why);
/* Returns whether the server is ready and the queue of this kind of work has room. */
bool server_takes(const server *s, work_kind kind, server_error *why);

/* Adds to held_bytes. Returns false with a 503 when the sum is above `max`; the bytes are counted in both cases, until
 * server_let_go. Any thread. */
bool server_hold(server *s, size_t bytes, size_t max, server_error *why);
void server_let_go(server *s, size_t bytes);
/* Reports to the HTTP layer that a body was freed. counted: as returned by http_take_body. */
void server_body_is_freed(server *s, size_t counted);
/* Adds an ended request to the metrics and the log. */
void server_note(server *s, const server_record *r);
#endif
