/* server/life.h - the model's life: loaded, parked and loaded again while the server goes on.
 *
 *      loading ---> loaded ---> parking ---> parked ---> loading ...        what is wanted: loaded or parked
 *         `-> failed                `-> loaded, when that is wanted again before the engine was closed
 *
 * Parked, the model has no memory: weights, K/V and drafters are gone. While it is parking running answers may end, and new
 * requests are refused. Loading and closing are workers'; all else is the I/O thread's. */
#ifndef TANDEM_SERVER_LIFE_H
#define TANDEM_SERVER_LIFE_H
#include "sched/engine.h"
#include "server/errors.h"
#include "server/files.h"
#include "server/work.h"

typedef enum { MODEL_LOADED, MODEL_LOADING, MODEL_PARKING, MODEL_PARKED, MODEL_FAILED } model_state;
extern const char *const model_state_names[];

typedef struct server      server;
typedef struct server_call server_call;
typedef struct life_waiter life_waiter;

typedef struct {
    model_state state;
    bool        park;   /* what is wanted */
    bool        again;  /* it was loaded before: the server does not end when it fails */
    double      since;  /* clock_s of the state */
    double      cut_at; /* parking: running answers are cut then */
    err         why;    /* failed */

    work_item    loading, closing;
    tandem      *opened, *closed; /* by a worker, for the I/O thread to take; the other way round */
    model_files *found;           /* of `opened`, for the I/O thread to take */
    bool         failed;

    /* What is left of the engines that were closed. */
    arena               mem;
    tandem_info         info; /* name NULL: there was none */
    tandem_drafter_info drafter[TANDEM_MAX_DRAFTERS];
    int                 n_drafters;
    settings            set;    /* changed: what the next engine gets */
    settings            handed; /* to the worker that loads */
    tandem_stats        before; /* counts alone */

    life_waiter *waiting;
} model_life;

void life_begin(server *s); /* loading */
void life_look(server *s);  /* now and then: whether it can go on */
/* The workers are gone; the engine goes with the server. */
void life_end(server *s);

/* Answers the call when the model is as wanted, or cannot be: another call wants otherwise, or it fails. wait: false answers
 * it at once. */
void life_want(server *s, server_call *c, bool park, double grace_s, bool wait);

bool life_check(model_state state, server_error *why); /* it answers requests: or 503 */
/* The engine's, or what it was; n, of its drafters, may be NULL. False: there never was one. */
bool life_info(const server *s, tandem_info *out, tandem_drafter_info all[TANDEM_MAX_DRAFTERS], int *n);
bool life_settings(const server *s, settings *out);
/* Keeps settings that were changed while there was no engine; one that has been opened meanwhile gets those that are live. */
void life_keep_settings(server *s, const settings *changed, uint64_t names);
/* Lists the files of the model and of the drafters that could be opened. Any thread. */
model_files *life_list_files(const tandem *t);
void         life_stats(const server *s, tandem_stats *out); /* counts of all its engines */
#endif
