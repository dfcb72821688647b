/* sched/routing_log.h - routing.jsonl: how requests were speculated, why, and with which result.
 *
 * One line is written when the route of a request changes and one when it ends (docs/routing.md lists the fields). The
 * engine thread passes records of a fixed size and never blocks; a thread of the log writes them. When the ring between
 * the two is full, records are dropped and counted.
 *
 * Files: routing.jsonl, then routing.jsonl.1 and so on, older ones last. A file that reaches its share of the limit is
 * renamed to the next number and the oldest is deleted. With one file only, writing stops at the limit, with one
 * warning.
 *
 * Threads: put from one thread at a time; set from any. */
#ifndef TANDEM_SCHED_ROUTING_LOG_H
#define TANDEM_SCHED_ROUTING_LOG_H
#include "gguf/fingerprint.h"
#include "sched/router.h"
#include "json/json.h"

enum {
    ROUTING_ID_MAX    = 64, /* bytes of a request id with its NUL; longer ids are cut */
    ROUTING_LINES_MAX = 16, /* maximum of lines about route changes of one request */
};

typedef struct {
    bool           end; /* the request has ended; false: its route has changed */
    char           request_id[ROUTING_ID_MAX];
    int32_t        ctx_len;                            /* tokens of its text */
    int            active_count;                       /* lanes in the step */
    double         kv_usage_ratio, projected_kv_after; /* now, and with all reservations used; below 0: not known */
    route          to;                                 /* the new route; at the end, the last one */
    int            n_changes;                          /* route changes so far; not all have a line */
    policy_options choice; /* comparison of the methods for a new route; all 0: there was none */
    char           dflash[FINGERPRINT_MAX], mtp[FINGERPRINT_MAX]; /* fingerprints of open drafters; "": none */
    /* set if `end` is */
    int64_t rounds[SPEC_COUNTED]; /* rounds with draft tokens, by method */
    int64_t tokens, drafted, accepted;
    double  seconds; /* from the first token to the end of the request */
} routing_record;

/* Writes the members of a line, except the model's, into an open object. ts: as routing_now. */
void   routing_put_record(json_writer *w, const routing_record *r, double ts);
double routing_now(void); /* the time as in lines: seconds since 1970 */

typedef struct {
    const char *path;        /* path of the newest file */
    const char *model;       /* its name; NULL: "" */
    const char *fingerprint; /* fingerprint of the model; NULL: none */
    int64_t     max_bytes;   /* all files together */
    int         n_files;     /* below 1: 1 */
    bool        on;          /* false: records are ignored until routing_log_set */
} routing_log_options;

typedef struct routing_log routing_log;
/* Starts the log; copies *o. The file is opened here if `on` is set, and appended to. ERR_IO: it cannot be opened.
 * Later errors of the files are logged once and lose records. *out is NULL on failure. */
bool routing_log_open(routing_log **out, const routing_log_options *o, err *e);
void routing_log_close(routing_log *l);                        /* writes all records that were put; accepts NULL */
void routing_log_put(routing_log *l, const routing_record *r); /* copies *r; does nothing when l is NULL or off */
void routing_log_set(routing_log *l, bool on, int64_t max_bytes);

/* Decides whether a new route of a request gets a line: the first one, or another method or another reason, and fewer
 * than ROUTING_LINES_MAX lines so far. A trial is no change. */
typedef struct {
    bool  begun;
    route last;      /* the last route that was no trial, or the first one */
    int   n_changes; /* also those without a line */
} routing_trace;     /* starts as all zeros */
bool routing_trace_note(routing_trace *t, const route *now);
#endif
