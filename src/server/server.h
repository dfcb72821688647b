/* server/server.h - the engine over HTTP, as OpenAI's clients speak it.
 *
 *      http call ---> route: path, key ---> handler ---> a reply at once, or
 *                                              `------> completion: worker ---> engine ---> events ---> the client
 *
 * One I/O thread (server_run's caller) holds all state of the server: no locks. Workers read bodies, the engine's thread makes
 * tokens; both wake the I/O thread and are never waited for. A client that leaves cancels what it asked for. */
#ifndef TANDEM_SERVER_SERVER_H
#define TANDEM_SERVER_SERVER_H
#include "http/http.h"
#include "sched/engine.h"
#include "server/access.h"
#include "server/life.h"
#include "server/live.h"
#include "server/metrics.h"
#include "server/reply.h"
#include "server/status.h"
#include "server/work.h"

#include <stdatomic.h>

typedef struct {
    http_options http;
    /* Opens the engine, on a worker; the server answers that it is loading meanwhile. It is to tell `wake` of news. changed: as
     * engine_open's. */
    bool (*open)(void *ctx, const settings *changed, tandem **out, void (*wake)(void *wake_ctx), void *wake_ctx,
                 err *e);
    void              *open_ctx;
    const char        *model;   /* its name in replies, and in the settings file */
    const char *const *aliases; /* of the model, in addition to its name */
    size_t             n_aliases;
    const char *const *cors; /* origins whose pages may call, as origin_allowed has them */
    size_t             n_cors;
    double             grace_s; /* for running answers after the first signal to end */
    size_t max_held; /* bytes that all requests hold together, their prompts and tools. 1 GiB, and http.max_bodies
                             256 MiB; or an eighth and a sixteenth of what this process may take, where that is less */
    double ping_s;   /* of silence in a stream, after which a comment is sent */
    void (*ready)(void *ctx, const http_server *h); /* called when requests are answered; may be NULL */
    void *ready_ctx;

    /* Files of keys (keys.h), read again on SIGHUP; and one key as it is. NULL: none. */
    const char        *api_key_file, *api_key, *admin_key_file;
    const char *const *names; /* of this server, in addition to localhost and addresses (origin.h) */
    size_t             n_names;
    const char        *replica_id;    /* in every reply; NULL: this machine's name and the port; empty: none */
    double             hang_s;        /* a step that takes longer hangs; 0: none does */
    const char        *settings_path; /* the engine's, for changes while it is parked; NULL: none */
    bool               no_ollama;     /* Ollama's endpoints are not there */
    /* The process exits when server_run returns: SIGTERM and SIGINT stay handled until then. */
    bool exits_next;
} server_options;

void server_options_init(server_options *o);
/* Serves until SIGTERM or SIGINT, which let running answers end; a second one cuts them. */
bool server_run(const server_options *o, err *e);

/* --- inside ------------------------------------------------------------------------------------- */
typedef struct completion completion;
typedef struct text_job   text_job;
typedef struct bench_run  bench_run;

typedef struct {
    const char  *method, *path; /* with and without /v1 before it; an asterisk: some text. The first that fits */
    route_access access;
    void (*handle)(server *s, server_call *c);
    size_t            max_body; /* 0: none is read, and the reply is there at once */
    const reply_form *form;     /* of its errors, and of its answers; NULL: OpenAI's */
} route_info;
extern const route_info route_table[];
extern const int        n_routes;

enum { REQUEST_ID_MAX = 128 };
struct server_call { /* a call and what the server knows of it: its user */
    http_call        *http;
    const route_info *route; /* NULL: it was refused */
    const reply_form *form;  /* of its errors, and of its answers; NULL: OpenAI's */
    char              id[REQUEST_ID_MAX + 1];
    char              tenant[KEY_NAME_MAX + 1]; /* by its key; empty: none */
    bool              sees_all;                 /* as access_grant */
    double            since;                    /* clock_s of its head */
    completion       *completion;
    text_job         *text;
    const char       *warning; /* of its request (request_warn), for the header; NULL: none */
    size_t            held;    /* bytes of a reply that may take long to be sent */
    /* Not NULL: told when the call ends, whoever else waits to answer it. */
    void (*left)(void *owner);
    void *owner;
};

struct server {
    const server_options *opt;
    http_server          *http;
    work                 *work;
    tandem               *engine; /* NULL: as `life` says */
    model_life            life;
    live_stats            live;
    bench_run            *bench;   /* NULL: none runs */
    completion           *first;   /* that are not over */
    int                   n_users; /* beside them, of the engine */
    atomic_size_t         held;    /* bytes of all requests and of texts' replies; workers add to it */
    int                   n_completions;
    bool                  draining, cut; /* the end has begun; it is here */
    bool                  drained;       /* by /api/drain: no new requests until that is taken back */
    char                  replica_id[REQUEST_ID_MAX + 1];
    server_call           nobody;          /* stands for a request that was refused before it was a call */
    double                started, cut_at; /* clock_s */
    int64_t               created;         /* seconds since 1970 */
    access_rules          access;
    metrics              *metrics;
    watchdog              watchdog;
    double                notified; /* clock_s: the service manager was told that all is well */
    model_files          *files;
};

/* http_handler's, ctx is the server. */
bool   route_on_head(void *ctx, http_call *c);
void   route_on_request(void *ctx, http_call *c);
void   route_on_done(void *ctx, http_call *c, bool delivered);
size_t route_on_refuse(void *ctx, http_call *c, int status, const char *why, http_field *fields, buf *body);

/* Replies; each has the request's id, the replica's and what CORS wants. */
enum { SERVER_MAX_FIELDS = HTTP_MAX_REFUSAL_FIELDS };
bool server_id_is_good(str id); /* it can be repeated in a field and in the log as it is */
int  server_fields_for(server *s, server_call *c, http_field *out); /* those; returns how many */
str  server_name_of(const server_call *c);                          /* that stands for the asterisk of its route */
void server_reply(server *s, server_call *c, int status, const char *type, str body);
void server_refuse(server *s, server_call *c, const server_error *why);
/* Allocates memory for a call; where there is none, refuses the call with 503 and returns NULL. */
void *server_alloc(server *s, server_call *c, size_t bytes);
/* The same as server_refuse, with what its answers used. */
void server_refuse_begun(server *s, server_call *c, const server_error *why, const server_choice *all, int n);
/* An event stream begins. */
void server_begin_events(server *s, server_call *c);
bool server_is_ready(const server *s, server_error *why); /* or it is loading, parked or draining: 503 */
/* Whether the server is ready (or 503) and a worker has room for such work (or 429). */
bool server_takes(const server *s, work_kind kind, server_error *why);
bool server_is_loaded(const server *s, server_error *why);     /* or it is loading or parked: 503 */
bool server_why_cancelled(const server *s, server_error *why); /* a job that nobody else cancelled */

/* completion.c */
void completion_chat(server *s, server_call *c);
void completion_text(server *s, server_call *c);
void completion_native(server *s, server_call *c);
void completion_responses(server *s, server_call *c);
void completion_messages(server *s, server_call *c);
void completion_ollama_chat(server *s, server_call *c);
void completion_ollama_generate(server *s, server_call *c);
void completion_left(completion *x, bool delivered); /* its call ended */
void completion_pump(completion *x);                 /* there is room, or there may be tokens; x may go */
void completions_pump(server *s);
void completions_tick(server *s);
void completions_cut(server *s); /* of a drain that is over */
/* Whether any of them still looks at the engine. cut: they are cancelled, and who reads slowly is broken off. */
bool completions_use_engine(server *s, bool cut);
/* The answers that have a lane, at most so many; the ids are good until the next turn of the loop. */
size_t completions_slots(const server *s, slot_view *out, size_t max);
void   completions_note_live(const server *s); /* tells the metrics how many answers of each tenant run and wait */

/* Bytes that count towards `most`, false: they are over it. Counted they are in either case, until they are let go. */
bool server_hold(server *s, size_t bytes, size_t most, server_error *why);
void server_let_go(server *s, size_t bytes);
/* The body that a request was read from is freed; counted: as http_take_body said. */
void server_body_is_freed(server *s, size_t counted);
/* A request has ended. */
void server_note(server *s, const server_record *r);
#endif
