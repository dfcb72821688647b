/* server/life.h - loads, parks and reloads the model while the server runs.
 *
 *      loading ---> loaded ---> parking ---> parked ---> loading ...        the requested state: loaded or parked
 *         `-> failed                `-> loaded, if that is requested before the engine is closed
 *
 * A parked model uses no memory: weights, K/V cache and drafters are freed. While the model is parking, running
 * responses may finish and new requests are refused. A failed reload can be repeated by requesting `loaded`. Workers
 * load and close the engine; all functions except life_list_files are called on the I/O thread. */
#ifndef TANDEM_SERVER_LIFE_H
#define TANDEM_SERVER_LIFE_H
#include "sched/engine.h"
#include "server/errors.h"
#include "server/files.h"
#include "server/work.h"

typedef enum { MODEL_LOADED, MODEL_LOADING, MODEL_PARKING, MODEL_PARKED, MODEL_FAILED } model_state;
extern const char *const model_state_names[]; /* "loaded" and so on, by model_state */

typedef struct server      server;
typedef struct server_call server_call;
typedef struct life_waiter life_waiter;

typedef struct {
    model_state state;
    bool        park;          /* the requested state is parked */
    bool        loaded_before; /* it was loaded before: the server keeps running if loading fails */
    double      since;         /* clock_s when the state was entered */
    double      cut_at;        /* parking: clock_s when running responses are cut */
    err         why;           /* why loading failed */

    work_item    loading, closing;
    tandem      *opened, *closed; /* passed from the worker to the I/O thread; to the worker */
    model_files *found;           /* files of `opened`, passed to the I/O thread */
    bool         failed;          /* the last load failed; set by the worker */

    /* Kept from engines that were closed. */
    arena               mem;
    tandem_info         info; /* name NULL: there was no engine */
    tandem_drafter_info drafter[TANDEM_MAX_DRAFTERS];
    int                 n_drafters;
    settings            set;    /* passed to the next engine */
    settings            handed; /* copy for the worker that loads */
    tandem_stats        before; /* only its counters are used */

    life_waiter *waiting; /* calls of life_want that wait for their reply */
} model_life;

void life_begin(server *s); /* sets up s->life and starts loading */
void life_look(server *s);  /* enters the next state when possible; called periodically */
/* Closes the engine and frees the files at shutdown, after the workers have ended. */
void life_end(server *s);

/* Requests a state. Replies to the call with the description of the model when it has the state, or with an error when
 * loading fails or a later call requests the other state. wait false: replies at once. grace_s: time for running
 * responses before they are cut, if the model is to be parked. */
void life_want(server *s, server_call *c, bool park, double grace_s, bool wait);

bool life_check(model_state state, server_error *why); /* false with 503: not loaded */
/* Copies the properties of the engine, or of the last one if there is none now, and of its *n drafters; all and n may
 * both be NULL. The strings are valid until the engine is loaded or closed. Returns false if no engine was ever loaded.
 */
bool life_info(const server *s, tandem_info *out, tandem_drafter_info all[TANDEM_MAX_DRAFTERS], int *n);
/* Copies the settings of the engine, or of the last one. Returns false as life_info. */
bool life_settings(const server *s, settings *out);
/* Stores settings that were changed while there was no engine. If one was opened meanwhile, it gets the live
 * settings. */
void life_keep_settings(server *s, const settings *changed, uint64_t names);
/* Lists the files of the model and of the drafters that have not failed, for files_close. Never NULL. Any thread. */
model_files *life_list_files(const tandem *t);
/* Sets *out to the statistics of the engine, with the counters of all engines before it added. */
void life_stats(const server *s, tandem_stats *out);
#endif
