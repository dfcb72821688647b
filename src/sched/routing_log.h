/* sched/routing_log.h - routing.jsonl: why requests were decoded as they were, and what came of it.
 *
 * A line when a request's route changes and one when it ends (docs/routing.md has the fields). The engine's thread hands
 * over records of a fixed size and never waits: a thread of the log's own writes them. When the ring between the two is
 * full, records are dropped and counted.
 *
 * Files: routing.jsonl, then routing.jsonl.1 and so on, older ones last. A file that reaches its share of the limit is moved
 * on and the oldest is dropped; with one file only, writing ends at the limit, which is said once.
 *
 * Threads: put from one thread at a time; set from any. */
#ifndef TANDEM_SCHED_ROUTING_LOG_H
#define TANDEM_SCHED_ROUTING_LOG_H
#include "gguf/fingerprint.h"
#include "sched/router.h"
#include "json/json.h"

enum { ROUTING_ID_MAX = 64, ROUTING_LINES_MAX = 16 };

typedef struct {
    bool    end; /* of the request; else its route has changed */
    char    request_id[ROUTING_ID_MAX];
    int32_t ctx_len;                            /* tokens of its text */
    int     active_count;                       /* lanes in the step */
    double  kv_usage_ratio, projected_kv_after; /* now, and with all that was admitted; below 0: not known */
    route   to;
    int     n_changes;                                     /* of the route so far; not all have a line */
    char    dflash[FINGERPRINT_MAX], mtp[FINGERPRINT_MAX]; /* of the drafters that are open; "": none */
    /* at the end */
    int64_t tokens, drafted, accepted;
    double  seconds; /* from the first token to the last */
} routing_record;

/* A line's members but for the model's, into an open object; and the time as lines have it. */
void   routing_put_record(json_writer *w, const routing_record *r, double ts);
double routing_now(void);

typedef struct {
    const char *path; /* of the newest file */
    const char *model;
    const char *fingerprint; /* of the model; NULL: none */
    int64_t     max_bytes;   /* of all files */
    int         n_files;
    bool        on;
} routing_log_options;

typedef struct routing_log routing_log;
bool                       routing_log_open(routing_log **out, const routing_log_options *o, err *e);
void                       routing_log_close(routing_log *l);     /* writes what was put; NULL is fine */
void    routing_log_put(routing_log *l, const routing_record *r); /* l may be NULL: nothing happens */
void    routing_log_set(routing_log *l, bool on, int64_t max_bytes);
int64_t routing_log_dropped(const routing_log *l);

/* Whether a request's new route is worth a line: another method or another reason, and not too many of them. A trial is
 * no change. */
typedef struct {
    bool  begun;
    route last;
    int   n_changes;
} routing_trace;
bool routing_trace_note(routing_trace *t, const route *now);
#endif
