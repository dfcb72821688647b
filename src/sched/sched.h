/* sched/sched.h - the scheduler: one thread that owns the loop of spec/, and the requests that share its steps.
 *
 *      submit (any thread) ---> inbox ---> queue ---> lanes ---> one step after another ---> tokens in the jobs
 *                                 by priority   reserved first      all lanes together         poll (any thread)
 *
 * Between two steps requests arrive, are cancelled, time out, are admitted and end; a step is never interrupted.
 * Without work the thread sleeps. While it exists no other thread may use the spec or its target, except while there is
 * no job. Any thread may call the functions between sched_new and sched_free. */
#ifndef TANDEM_SCHED_SCHED_H
#define TANDEM_SCHED_SCHED_H
#include "sched/job.h"
#include "sched/routing_recent.h"

enum {
    SCHED_WAKE_MS = 2 /* default of tandem_options.wake_ms */
};

typedef struct {
    spec                     *spec; /* borrowed, as the next two; the scheduler uses max_lanes of its lanes */
    const target             *model;
    const tok                *tok; /* may be NULL */
    int                       n_ctx, max_lanes;
    int                       step_tokens; /* maximum rows of a step, at most the target's */
    double                    wake_s;      /* as tandem_options.wake_ms, in seconds */
    settings                  settings;    /* initial values */
    const tandem_speculation *limit;       /* as job_maker's */
    routing_log              *log;         /* borrowed; NULL: none */
    const char *cache_dir;   /* directory of the disk tier; NULL: none. spec/image.h must have a fingerprint */
    uint64_t    cache_bytes; /* limit of its files */
    uint64_t    park_bytes;  /* host memory of the tier; 0: none */
    void (*wake)(void *ctx); /* as tandem_options.wake: called on the engine thread; may be NULL */
    void *wake_ctx;
    void (*ended)(void *ctx, const tandem_job *j); /* as engine_watch.ended; may be NULL */
    void *ended_ctx;
} sched_options;

typedef struct sched sched;

/* Creates the scheduler and starts the engine thread. *o is copied. *out is NULL on failure. */
bool sched_new(sched **out, const sched_options *o, err *e);
/* Returns the maximum of soft tokens of a picture: a step has room for them where they must run together. */
int  sched_max_span(const sched *s);
void sched_free(sched *s);                     /* shuts down first, without grace; accepts NULL */
void sched_shutdown(sched *s, double grace_s); /* as tandem_shutdown: blocks until all jobs are done */

/* Submits a request; sets *out to a job that the caller releases with tandem_release. ERR_INPUT: the request is wrong,
 * the message names the numbers; ERR_CONTEXT: the prompt does not fit in the context; ERR_TOO_LARGE: the grammar is
 * over a limit; ERR_BUSY: try again; ERR_UNAVAILABLE: no memory, or shutting down. *out is NULL on failure. */
bool sched_submit(sched *s, const tandem_request *r, tandem_job **out, err *e);
/* Submits with pictures, of which the job takes a reference (NULL: none), and a compiled grammar, which the caller
 * still drops. compiled NULL: the request has no grammar, or it is compiled here. */
bool sched_submit_with(sched *s, const tandem_request *r, media_prompt *media, response_grammar *compiled,
                       tandem_job **out, err *e);
/* As engine_compile and engine_find_compiled. */
bool sched_compile(sched *s, const tandem_request *r, const atomic_bool *cancel, response_grammar **out, err *e);
response_grammar *sched_find_compiled(sched *s, const tandem_request *r);
void              sched_get_settings(sched *s, settings *out);
void              sched_set_settings(sched *s, const settings *now); /* used from the next request and step on */
void              sched_get_stats(sched *s, tandem_stats *out);
/* Copies the newest routing records, as routing_recent_get. */
size_t sched_recent(sched *s, const char *request_id, routing_seen *out, size_t max);
/* Fills the drafters with weights and their files (files may be NULL); returns how many there are. The pointers are
 * valid as long as the spec. */
int sched_drafters(sched *s, tandem_drafter_info out[TANDEM_MAX_DRAFTERS],
                   const checkpoint_list *files[TANDEM_MAX_DRAFTERS]);
/* Calls fn on the engine thread between two steps, and blocks until it returns. ERR_UNAVAILABLE: shutting down. */
bool     sched_do(sched *s, void (*fn)(void *ctx, spec *sp), void *ctx, err *e);
uint64_t sched_salt(const sched *s, const char *tenant); /* returns the salt of a tenant's prefixes; NULL: 0 */
int      sched_vocab(const sched *s);                    /* returns the number of tokens of the model */
/* As tandem_park_drafter (`park`) or tandem_unpark_drafter. Blocks until the engine thread has done it. */
bool sched_park_drafter(sched *s, int method, bool park, err *e);
#endif
