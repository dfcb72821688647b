/* load/drive.h - sends requests to an OpenAI-compatible server and records the responses, for `tandem loadtest`.
 *
 * All requests of a load_server run on the calling thread. e must not be NULL. */
#ifndef TANDEM_LOAD_DRIVE_H
#define TANDEM_LOAD_DRIVE_H
#include "http/client.h"
#include "load/answer.h"
#include "load/prompts.h"

enum { LOAD_MAX_USERS = 4096, LOAD_MAX_REASONS = 8 };

/* The requests to send. It and what it points to must outlive the load_server opened with it. */
typedef struct {
    bool                is_chat;            /* chat/completions; false: completions */
    const char         *model;              /* NULL: the first one that the server lists */
    int                 output_len;         /* max_tokens, with ignore_eos; 0: the server's default */
    bool                may_end;            /* with output_len: do not send ignore_eos */
    bool                has_temp, has_seed; /* send temp, seed */
    bool                all_turns; /* chat: ask all turns of a prompt, each after the response to the one before */
    bool                unique;    /* put the request's number before each prompt of `prompts`, against prefix caches */
    double              temp;
    uint64_t            seed;     /* also the seed of generated prompts */
    const json_value   *extra;    /* object whose members override ours in the body; NULL: none */
    const load_prompts *prompts;  /* used in turn; not empty unless n_words > 0 */
    int                 n_words;  /* words of each generated prompt, used instead of `prompts`; 0: none */
    const http_field   *field;    /* header fields of every request, such as Authorization */
    size_t              n_fields; /* number of these */
    http_client_options http;
} load_ask;

typedef struct load_server load_server;

/* Connects to a server; unless ask->model is set, asks it for the name of its model. Also checks whether it has
 * counters of speculation at /metrics. url: as for clients, such as http://127.0.0.1:8080 or https://host/v1; without a
 * path, /v1 is used. On failure *out is NULL. */
bool load_server_open(load_server **out, const char *url, const load_ask *ask, err *e);
void load_server_close(load_server *s); /* s may be NULL */
/* Both are valid until load_server_close. */
const char *load_server_model(const load_server *s);
const char *load_server_name(const load_server *s); /* host and port */

typedef struct {
    int      users;      /* concurrent requests, 1 to LOAD_MAX_USERS; with a rate, their maximum */
    double   rate;       /* requests per second at random times; 0: each user sends its next request after a response */
    int64_t  requests;   /* number of prompts to ask; 0: limited by duration_s only */
    double   duration_s; /* no request is sent after this time; 0: limited by requests only */
    uint64_t first;      /* number of the first prompt */
    uint64_t seed;       /* seed of arrival times */
    /* Called every 0.2 s, and after a signal. done: responses so far, failed ones included. tokens: of successful
     * responses. Returning false stops the run: running requests are cancelled and counted as `cut`. May be NULL. */
    bool (*go_on)(void *ctx, int64_t done, int64_t running, int64_t tokens);
    void *ctx;
} load_plan;

/* Why requests failed, and how many failed for this reason. */
typedef struct {
    err     why;
    int64_t n;
} load_reason;

/* Counters of a server: rounds with drafts, draft tokens and accepted ones. */
typedef struct {
    bool   reported; /* false: the server has no such counters */
    double rounds, drafted, accepted;
} load_counters;

typedef struct {
    load_sample  *sample;                   /* successful requests, in the order of their ends */
    size_t        n, cap;                   /* samples in use, allocated */
    load_gaps     gaps;                     /* gaps of all requests */
    load_reason   reason[LOAD_MAX_REASONS]; /* the last one is "other reasons" */
    int           n_reasons;
    int64_t       begun;              /* prompts that were asked; with all_turns there may be more requests */
    int64_t       asked, failed, cut; /* requests sent, failed, and cancelled because the run ended early */
    double        seconds;            /* from the start of the run to the last response */
    load_counters speculation;        /* increase of the server's counters during the run, by all its clients */
    bool          gave_up;            /* ended because at least 10 requests, and twice `users`, failed in a row */
    bool          stopped;            /* ended because go_on returned false */
} load_run;

/* Runs a plan and returns when all responses have ended. Replaces *out; free it with load_run_deinit, also after a
 * failure. Failed requests are counted in the result. Returns false only when the client itself fails: a request cannot
 * be written, or there is no memory for the results. */
bool load_drive(load_server *s, const load_plan *plan, load_run *out, err *e);
void load_run_deinit(load_run *r); /* r may be zeroed */

/* Sends a generated prompt of n_words words and sets *n_tokens to its number of tokens, as counted by the server. */
bool load_measure_prompt(load_server *s, int n_words, int64_t *n_tokens, err *e);
/* Reads counters from a page in Prometheus format, with vLLM's names or else ours; sums over labels. */
load_counters load_counters_read(str page);
#endif
