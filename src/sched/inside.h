/* sched/inside.h - the fields of a `tandem`. For src/sched and its tests only; other layers use sched/engine.h. */
#ifndef TANDEM_SCHED_INSIDE_H
#define TANDEM_SCHED_INSIDE_H
#include "base/arena.h"
#include "sched/engine.h"
#include "sched/open.h"
#include "sched/sched.h"
#include "sched/session.h"

#include <pthread.h>

struct tandem {
    arena              mem; /* names and paths */
    tandem_info        info;
    opened_model       m;
    kv_types           kv;
    tandem_speculation spec; /* tandem_options.spec */
    sched             *sched;
    routing_log       *log;
    session_store     *sessions; /* NULL: there is no directory for them */
    settings_file     *file;     /* NULL: none; guarded by settings_lock */
    bool               carried;  /* the settings are passed to the next engine: see engine_extra.changed */
    engine_watch       watch;
    pthread_mutex_t    settings_lock;
    pthread_mutex_t    fingerprint_lock;                    /* held for a copy only */
    char               fingerprint[ENGINE_FINGERPRINT_MAX]; /* engine_fingerprint; guarded by fingerprint_lock */
};

/* --- for tests ----------------------------------------------------------------------------------*/
/* Sets *n_ctx to the default where it is 0: the model's limit, at most 8192. Fails when it is over the model's
 * limit. */
bool open_context(int *n_ctx, const target *m, err *e);
/* Returns the index in step_bucket and mask_bucket of tandem_stats for a duration. */
int sched_bucket(double seconds);
/* Returns the default for spec_options.kv_bytes. 0: what all lanes need, because that fits or there is one lane;
 * otherwise four fifths of the free memory, at least what one lane needs. all, single: the bytes that all lanes and one
 * lane need. */
size_t open_pool_bytes(int max_lanes, size_t all, size_t single, size_t free_bytes);
/* Returns the part of the device's free bytes that K/V may take: OPEN_GRAPH_BYTES less where steps are recorded. */
size_t open_free_bytes(const ops *o, size_t free_bytes);
/* Returns the number of records that were lost because the ring was full. */
int64_t routing_log_dropped(const routing_log *l);
/* Returns the seconds that a job waits for the disk: as long as computing the rows takes, but at least 50 ms, and no
 * longer than 2 s or a quarter of that time. row_s: seconds of a row; 0: not known, 10 s. */
double tier_patience(double row_s, int32_t n_rows);
#endif
