/* sched/inside.h - the fields of a `tandem`. For src/sched and its tests only; other layers use sched/engine.h. */
#ifndef TANDEM_SCHED_INSIDE_H
#define TANDEM_SCHED_INSIDE_H
#include "base/arena.h"
#include "sched/engine.h"
#include "sched/open.h"
#include "sched/sched.h"

#include <pthread.h>

struct tandem {
    arena           mem; /* names and paths */
    tandem_info     info;
    opened_model    m;
    sched          *sched;
    routing_log    *log;
    settings_file  *file;    /* NULL: none; guarded by settings_lock */
    bool            carried; /* the settings are passed to the next engine: see engine_extra.changed */
    pthread_mutex_t settings_lock;
    pthread_mutex_t fingerprint_lock;                    /* held for a copy only */
    char            fingerprint[ENGINE_FINGERPRINT_MAX]; /* engine_fingerprint; guarded by fingerprint_lock */
};
#endif
