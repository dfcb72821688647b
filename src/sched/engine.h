/* sched/engine.h - the insides of include/tandem.h's `tandem`, for the layers above that need more than it shows. */
#ifndef TANDEM_SCHED_ENGINE_H
#define TANDEM_SCHED_ENGINE_H
#include "base/arena.h"
#include "sched/open.h"
#include "sched/sched.h"

#include <pthread.h>

enum { ENGINE_FINGERPRINT_MAX = 24 };

struct tandem {
    arena           mem; /* of names and paths */
    tandem_info     info;
    ops_device      device;
    target         *model;
    tok            *tok; /* NULL: no text in or out */
    chat_options    format;
    err             no_format; /* why there is none; code 0: there is one */
    spec           *spec;
    sched          *sched;
    routing_log    *log;
    settings_file  *file;    /* NULL: none; used under the lock */
    bool            carried; /* whoever opened it hands its settings to the next engine */
    pthread_mutex_t settings_lock;
    char            fingerprint[ENGINE_FINGERPRINT_MAX]; /* of engine_fingerprint; under the lock */
};

/* Opens as tandem_open does, with a tokenizer that is open already (NULL: none) and belongs to the engine from here on, also
 * on failure. changed: settings of the engine before, of which those that were changed are kept; NULL: there will be no
 * engine after this one. */
bool engine_open_with(tandem **out, const tandem_options *o, tok *t, const settings *changed, err *e);
/* Writes "fp_" and 16 hex digits that depend on the build, the model's bytes, the device, the context and all settings:
 * equal requests with equal seeds get equal texts where it is equal. */
void engine_fingerprint(const tandem *t, char out[ENGINE_FINGERPRINT_MAX]);
bool engine_check_format(const tandem *t, err *e);   /* that `format` is one */
void engine_tell(tandem_error *to, const err *from); /* to may be NULL */
/* Returns the context length that the DFlash drafter among them was trained on; 0: not known. */
int engine_trained_ctx(const tandem_drafter_info *all, int n);
/* Changes several settings, all or none; null restores the default. */
bool engine_change_settings(tandem *t, const json_value *members, err *e);
/* Takes the values of `names` from settings that were changed elsewhere. */
void engine_take_settings(tandem *t, const settings *from, uint64_t names);
/* Writes an array of the newest routing decisions, newest first: at most n of the last 1024, of all requests or (unless
 * NULL) of the one with this id. */
void engine_put_routing(const tandem *t, const char *request_id, int n, json_writer *w);
#endif
