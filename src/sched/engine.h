/* sched/engine.h - the insides of include/tandem.h's `tandem`, for the layers above that need more than it shows. */
#ifndef TANDEM_SCHED_ENGINE_H
#define TANDEM_SCHED_ENGINE_H
#include "base/arena.h"
#include "sched/open.h"
#include "sched/sched.h"

#include <pthread.h>

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
    settings_file  *file; /* NULL: none; used under the lock */
    pthread_mutex_t settings_lock;
};

/* tandem_open with a tokenizer that is open already, and the engine's from here on, also on failure; NULL: none. */
bool engine_open_with(tandem **out, const tandem_options *o, tok *t, err *e);
bool engine_check_format(const tandem *t, err *e);   /* that `format` is one */
void engine_tell(tandem_error *to, const err *from); /* to may be NULL */
/* tandem_set_json, and tandem_routing, of trees and writers. */
bool engine_change_settings(tandem *t, const json_value *members, err *e);
void engine_put_routing(const tandem *t, const char *request_id, int n, json_writer *w);
/* What was changed while another engine of the same model was open, and takes effect at once. */
void engine_carry_settings(tandem *t, const settings *from);
#endif
