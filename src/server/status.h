/* server/status.h - what the server says of itself: whether it lives, what it runs, and who is in it.
 *
 * The functions append a JSON body, or say what is answered in its place.
 * Bodies have the fields of llama.cpp's and vLLM's endpoints of these names, so that their clients find what they look for. */
#ifndef TANDEM_SERVER_STATUS_H
#define TANDEM_SERVER_STATUS_H
#include "base/buf.h"
#include "server/errors.h"
#include "server/life.h"
#include "server/parts.h"
#include "tok/tok.h"

#include "tandem.h"

/* Looks at tandem_stats.busy_s now and then: a step that takes too long is one that hangs. Log lines tell when it begins
 * and when it ends, if it ever does. */
typedef struct {
    double limit_s; /* 0: never */
    bool   hangs;
} watchdog;
void watchdog_look(watchdog *w, double busy_s);

typedef struct {
    model_state        state;
    bool               again; /* it was loaded before: what is not now, an operator has parked */
    bool               draining, drained, hangs, stuck; /* stuck: a worker is */
    tandem_info        info;                            /* zeroed while loading */
    const char *const *aliases;                         /* of the model, in addition to info.name */
    size_t             n_aliases;
    tandem_stats       stats;
    int                queue_max;
    int64_t            created;  /* when the server began, seconds since 1970 */
    const char        *settings; /* a JSON object; NULL: none */
    tandem_request     defaults; /* of requests */
    model_files       *files;    /* NULL: none */
    model_parts        parts;
    size_t             request_bytes, body_bytes; /* that requests and their bodies may hold together */
} status_view;

bool status_health(const status_view *v, buf *out, server_error *why); /* alive: or loading, draining or hanging */
bool status_ready(const status_view *v, buf *out,
                  server_error *why); /* takes a request now: the queue is not full either */
void status_version(buf *out);
void status_models(const status_view *v, buf *out);
void status_tokenizer(const status_view *v, const tok *t, buf *out); /* as vLLM tells of it */
bool status_model(const status_view *v, str id, buf *out, server_error *why);
void status_props(const status_view *v, buf *out); /* the first call starts the hashing of files */

/* An answer that has a lane. */
typedef struct {
    const char *request_id;
    int64_t     prompt_tokens, tokens; /* tokens: sent so far */
    double      age_s;
} slot_view;
/* All lanes, those in use first. need_idle: 503 when there is no other. */
bool status_slots(const status_view *v, const slot_view *slot, size_t n, bool need_idle, buf *out, server_error *why);
#endif
