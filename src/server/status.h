/* server/status.h - writes the bodies of the status endpoints: health, models, properties and slots.
 *
 * The functions append a JSON body to `out`. Functions that return bool may return false with an error instead. The
 * bodies have the members of llama.cpp's and vLLM's endpoints of the same names, for their clients. Called on the I/O
 * thread. */
#ifndef TANDEM_SERVER_STATUS_H
#define TANDEM_SERVER_STATUS_H
#include "base/buf.h"
#include "server/errors.h"
#include "server/life.h"
#include "server/parts.h"
#include "tok/tok.h"

#include "tandem.h"

/* Detects a step that hangs: one that takes longer than limit_s. */
typedef struct {
    double limit_s; /* 0: never */
    bool   hangs;
} watchdog;
/* Compares tandem_stats.busy_s with the limit, sets `hangs`, and logs when a step begins to hang and when it ends. */
void watchdog_look(watchdog *w, double busy_s);

/* The state of the server that the bodies show; all pointers are borrowed. */
typedef struct {
    model_state        state;
    bool               loaded_before; /* it was loaded before: if it is not loaded now, an operator parked it */
    bool               draining, drained, hangs, stuck; /* stuck: a worker hangs */
    tandem_info        info;                            /* zeroed without an engine, like stats and defaults */
    const char *const *aliases;                         /* further names of the model */
    size_t             n_aliases;
    tandem_stats       stats;
    int                queue_max;
    int64_t            created;  /* start of the server, seconds since 1970 */
    const char        *settings; /* a JSON object; NULL: none */
    tandem_request     defaults; /* for requests */
    model_files       *files;    /* NULL: none */
    model_parts        parts;
    size_t             request_bytes, body_bytes; /* limits for all requests and for their bodies */
} status_view;

/* Returns false with 503: the first load, failed, draining or hanging. A parked model is healthy. */
bool status_health(const status_view *v, buf *out, server_error *why);
/* As status_health; in addition the model must be loaded, no worker may hang, and the queue must have room. */
bool status_ready(const status_view *v, buf *out, server_error *why);
void status_version(buf *out);
void status_models(const status_view *v, buf *out);
void status_tokenizer(const status_view *v, const tok *t, buf *out);          /* vLLM's /tokenizer_info */
bool status_model(const status_view *v, str id, buf *out, server_error *why); /* 404: the model has no such name */
void status_props(const status_view *v, buf *out);                            /* the first call starts hashing files */

/* A response that has a lane. */
typedef struct {
    const char       *request_id;
    int64_t           prompt_tokens, tokens; /* tokens: of the response, polled so far */
    double            age_s;                 /* since the head of the request arrived */
    const tandem_job *job;
} slot_view;
/* Lists all lanes, lanes in use first. need_idle: fails with 503 when all are in use. */
bool status_slots(const status_view *v, const slot_view *slot, size_t n, bool need_idle, buf *out, server_error *why);
#endif
