/* load/drive.h - sends requests to a server and records the responses. Uses one thread; nothing is shared. */
#ifndef TANDEM_LOAD_DRIVE_H
#define TANDEM_LOAD_DRIVE_H
#include "http/client.h"
#include "load/answer.h"
#include "load/prompts.h"

enum { LOAD_MAX_USERS = 4096, LOAD_MAX_REASONS = 8 };

/* The requests to send. It must outlive everything opened with it. */
typedef struct {
    bool                is_chat;
    const char         *model;      /* NULL: the first one that the server lists */
    int                 output_len; /* max_tokens, with ignore_eos; 0: the server's default */
    bool                may_end;    /* with output_len: without ignore_eos */
    bool                has_temp, has_seed, unique;
    double              temp;
    uint64_t            seed;
    const json_value   *extra; /* members of the body that override ours; NULL: none */
    const load_prompts *prompts;
    int                 n_words; /* length of generated prompts; 0: none */
    const http_field   *field;
    size_t              n_fields;
    http_client_options http;
} load_ask;

typedef struct load_server load_server;

/* Connects to a server and asks for the name of its model. url: as for clients, such as http://127.0.0.1:8080 or
 * https://host/v1; without a path, /v1 is used. */
bool        load_server_open(load_server **out, const char *url, const load_ask *ask, err *e);
void        load_server_close(load_server *s); /* s may be NULL */
const char *load_server_model(const load_server *s);
const char *load_server_name(const load_server *s); /* host and port */

typedef struct {
    int      users;      /* concurrent requests; with a rate, the maximum */
    double   rate;       /* requests per second at random times; 0: each user sends its next request after a response */
    int64_t  requests;   /* 0: limited by duration_s only */
    double   duration_s; /* 0: limited by requests only */
    uint64_t first;      /* number of the first prompt */
    uint64_t seed;       /* seed of arrival times */
    /* Called regularly. Returning false stops the run; running requests are dropped and not counted. May be NULL. */
    bool (*go_on)(void *ctx, int64_t done, int64_t running, int64_t tokens);
    void *ctx;
} load_plan;

typedef struct {
    err     why;
    int64_t n;
} load_reason;

/* Counters of a server: rounds with drafts, draft tokens and accepted ones. */
typedef struct {
    bool   told;
    double rounds, drafted, accepted;
} load_counters;

typedef struct {
    load_sample  *sample; /* successful requests */
    size_t        n, cap;
    load_gaps     gaps;
    load_reason   reason[LOAD_MAX_REASONS]; /* the last one also counts further reasons */
    int           n_reasons;
    int64_t       asked, failed, cut;
    double        seconds;     /* from the first request to the last response */
    load_counters speculation; /* during the run */
    bool          gave_up;     /* too many failed in a row */
    bool          stopped;     /* go_on returned false */
} load_run;

/* Runs a plan. Returns false when it cannot run at all; failed requests are counted in the result. */
bool load_drive(load_server *s, const load_plan *plan, load_run *out, err *e);
void load_run_deinit(load_run *r); /* r may be zeroed */

/* Gets the number of tokens of a generated prompt of n_words words, as counted by the server. */
bool load_measure_prompt(load_server *s, int n_words, int64_t *n_tokens, err *e);
/* Reads counters from a page in Prometheus format, with vLLM's names or ours. */
load_counters load_counters_read(str page);
#endif
