/* load/drive.h - keeps a server busy, and notes what comes of it. One thread; nothing here is shared. */
#ifndef TANDEM_LOAD_DRIVE_H
#define TANDEM_LOAD_DRIVE_H
#include "http/client.h"
#include "load/answer.h"
#include "load/prompts.h"

enum { LOAD_MAX_USERS = 4096, LOAD_MAX_REASONS = 8 };

/* What is asked, and how; borrowed by all that is opened with it. */
typedef struct {
    bool                is_chat;
    const char         *model;      /* NULL: the first that the server lists */
    int                 output_len; /* max_tokens, and no end before it; 0: the server's own */
    bool                may_end;    /* with output_len: an answer may be shorter */
    bool                has_temp, has_seed, unique;
    double              temp;
    uint64_t            seed;
    const json_value   *extra; /* members of the body, over ours; NULL: none */
    const load_prompts *prompts;
    int                 n_words; /* of made-up prompts; 0: none */
    const http_field   *field;
    size_t              n_fields;
    http_client_options http;
} load_ask;

typedef struct load_server load_server;

/* url: as clients have it, such as http://127.0.0.1:8080 or https://host/v1; without a path /v1 is meant. Asks for the
 * model's name. */
bool        load_server_open(load_server **out, const char *url, const load_ask *ask, err *e);
void        load_server_close(load_server *s); /* NULL is fine */
const char *load_server_model(const load_server *s);
const char *load_server_name(const load_server *s); /* host and port */

typedef struct {
    int      users;      /* requests at once; with a rate, at most */
    double   rate;       /* requests in a second, at random times; 0: each user asks when it was answered */
    int64_t  requests;   /* 0: until the time is over */
    double   duration_s; /* 0: until all were made */
    uint64_t first;      /* number of the first prompt */
    uint64_t seed;       /* of the times */
    /* Now and then; false: stop. What runs is cut, and neither answered nor failed. May be NULL. */
    bool (*go_on)(void *ctx, int64_t done, int64_t running, int64_t tokens);
    void *ctx;
} load_plan;

typedef struct {
    err     why;
    int64_t n;
} load_reason;

/* Of a server's counters: rounds of drafting, guesses and right ones. */
typedef struct {
    bool   told;
    double rounds, drafted, accepted;
} load_counters;

typedef struct {
    load_sample  *sample; /* of those that were answered */
    size_t        n, cap;
    load_gaps     gaps;
    load_reason   reason[LOAD_MAX_REASONS]; /* the last one may stand for several */
    int           n_reasons;
    int64_t       asked, failed, cut;
    double        seconds;     /* from the first request to the last end */
    load_counters speculation; /* during the run */
    bool          gave_up;     /* too many failed in a row */
    bool          stopped;     /* by go_on */
} load_run;

/* False: the run could not be made at all. Requests that fail are figures. */
bool load_drive(load_server *s, const load_plan *plan, load_run *out, err *e);
void load_run_deinit(load_run *r); /* a zeroed one is fine */

/* The tokens of a made-up prompt of so many words, as the server counts them. */
bool load_measure_prompt(load_server *s, int n_words, int64_t *n_tokens, err *e);
/* Reads counters from a page in Prometheus's format, vLLM's names or ours. */
load_counters load_counters_read(str page);
#endif
