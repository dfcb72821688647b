/* sched/sched.h - the engine: one thread that owns the loop of spec/, and the requests that share its steps.
 *
 *      submit (any thread) ---> inbox ---> queue ---> lanes ---> one step after another ---> tokens in the jobs
 *                                 by priority   reserved first      all lanes together         poll (any thread)
 *
 * Between two steps requests come, are cancelled, time out, are admitted and leave; a step is never interrupted. Without
 * work the thread sleeps. While it lives nobody else may use the spec or its target, except when no job is there. */
#ifndef TANDEM_SCHED_SCHED_H
#define TANDEM_SCHED_SCHED_H
#include "sched/job.h"
#include "sched/routing_recent.h"

enum {
    SCHED_MAX_LANES = TANDEM_MAX_LANES,
    SCHED_WAKE_MS   = 2 /* between two times that a reader is told, if nobody says otherwise */
};

typedef struct {
    spec         *spec; /* borrowed, as are the next two; max_lanes of its lanes are the engine's */
    const target *model;
    const tok    *tok; /* may be NULL */
    int           n_ctx, max_lanes, step_tokens;
    double        wake_s;   /* as tandem_options.wake_ms */
    settings      settings; /* at the start */
    routing_log  *log;      /* borrowed; NULL: none */
    void (*wake)(void *ctx);
    void *wake_ctx;
} sched_options;

typedef struct sched sched;

bool sched_new(sched **out, const sched_options *o, err *e);
void sched_free(sched *s);                     /* NULL is fine; shuts down first */
void sched_shutdown(sched *s, double grace_s); /* as tandem_shutdown */

/* ERR_INPUT: what is wrong with the request, numbers named; ERR_BUSY: try again; ERR_UNAVAILABLE: no memory, or closing. */
bool sched_submit(sched *s, const tandem_request *r, tandem_job **out, err *e);
/* The same with its grammar compiled already; form NULL: it has none, or it is compiled here. */
bool sched_submit_with(sched *s, const tandem_request *r, answer_form *form, tandem_job **out, err *e);
/* Finds or compiles the grammar of a request, which has one; the caller drops it. Errors as forms_take. */
bool         sched_compile(sched *s, const tandem_request *r, const atomic_bool *cancel, answer_form **out, err *e);
answer_form *sched_find_compiled(sched *s, const tandem_request *r); /* without compiling; NULL: it is not there */
void         sched_get_settings(sched *s, settings *out);
void         sched_set_settings(sched *s, const settings *now); /* from the next request and the next step on */
void         sched_get_stats(sched *s, tandem_stats *out);
/* Returns the index in step_bucket and mask_bucket of tandem_stats. */
int sched_bucket(double seconds);
/* The newest decisions first, as routing_recent_get. */
size_t sched_recent(sched *s, const char *request_id, routing_seen *out, size_t max);
/* Fills the drafters and their files (files may be NULL); returns how many there are. */
int sched_drafters(sched *s, tandem_drafter_info out[TANDEM_MAX_DRAFTERS],
                   const checkpoint_list *files[TANDEM_MAX_DRAFTERS]);
/* As tandem_park_drafter and tandem_unpark_drafter. */
bool sched_park_drafter(sched *s, int method, bool park, err *e);

/* The error of a request that does not fit into memory. It reveals nothing about other requests. */
extern const char sched_busy[];
#endif
