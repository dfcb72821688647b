/* sched/job.h - one request inside the engine: its options, its state, and the tokens of its response so far.
 *
 * All memory of a job is allocated when it is created, including that of every token of its response: the engine never
 * waits for a reader, and a step allocates nothing. Tokens are written once and never move; readers read n_out, the
 * number of published tokens:
 *
 *      token     [ 0 ............ n_read ...... n_out ......... max_out )
 *                  given to the reader   published       still to come
 *
 * A job has two owners, the caller and the engine; the last one frees it. The reader is the caller's thread in
 * tandem_poll, tandem_wait and tandem_read (read.c). Fields belong to the engine thread, unless a comment says
 * otherwise. */
#ifndef TANDEM_SCHED_JOB_H
#define TANDEM_SCHED_JOB_H
#include "base/arena.h"
#include "base/bell.h"
#include "base/err.h"
#include "media/prompt.h"
#include "sched/accounts.h"
#include "sched/grammar_cache.h"
#include "sched/routing_log.h"
#include "sched/soft_cache.h"
#include "spec/spec.h"
#include "tok/stop.h"
#include "tok/tok.h"

#include "tandem.h"

typedef struct tier_load tier_load; /* sched/tier.c */

enum { JOB_ROUNDS = 64 }; /* rounds of a job that are kept for engine_job_rounds */

/* The model that requests are made for. Read by any thread. */
typedef struct {
    const target             *model;
    const tok                *tok;      /* NULL: the model has no tokenizer */
    int                       n_ctx;    /* context length in tokens */
    tok_ids                   stops;    /* stop tokens of the model and the tokenizer */
    grammar_cache            *grammars; /* compiled grammars */
    int                       max_span; /* rows of a picture that must not be divided, at most */
    const tandem_speculation *limit;    /* tandem_options.spec, borrowed; NULL: none */
    uint8_t
        secret[16]; /* key of the tenants' salts: a tenant cannot choose a name that shares the prefixes of another */
} job_maker;

struct tandem_job {
    arena      mem;
    atomic_int holders; /* number of owners */
    bell      *engine;  /* wakes the engine; rung by tandem_cancel; belongs to the engine, valid until `done` */

    /* the request; not changed afterwards */
    const job_maker  *maker;
    tok_ids           prompt;  /* ids of pictures are marked (media_prompt_mark) */
    media_prompt     *media;   /* pictures of the prompt; NULL: none */
    int32_t           max_out; /* tokens */
    bool              cut;     /* max_out was reduced to the room in the context */
    lane_options      opt;
    int32_t          *stop_id; /* stop tokens of the request, in addition to the maker's */
    size_t            n_stop_ids;
    bool              ignore_stops; /* the maker's stop tokens do not end the response, unless it has a grammar */
    response_grammar *compiled;     /* NULL: no grammar; released when the job is done */
    guide_begins      begins;
    char              id[ROUTING_ID_MAX];
    int               priority;
    bool              is_repeat;   /* another response to a prompt that was counted already */
    uint64_t          salt, kind;  /* hashes of the tenant's name and of the kind of request; 0: none */
    uint64_t          account_key; /* hash of the account's name; 0: none */
    bool (*on_token)(void *ctx, int32_t token);
    void *on_token_ctx;
    void (*wake)(void *ctx);
    void  *wake_ctx;
    bool   wakes_on_prefill;                    /* wake the reader after each chunk of the prompt */
    double submitted, deadline, queue_deadline; /* clock_s; INFINITY: none */

    /* state */
    atomic_bool   cancelled;  /* any thread */
    atomic_bool   entered;    /* it has or had a lane; readers check it before they read `admitted` and cached_tokens */
    atomic_int    n_done;     /* tokens of the prompt that are cached or have run; for readers */
    bool          progressed; /* n_done changed since the reader was woken */
    uint64_t      order;      /* number of the submission */
    account      *account;    /* NULL when done */
    tandem_job   *next, *prev;           /* in the inbox (next only), then in the queue of its account */
    spec_lane    *lane;                  /* NULL: not admitted, or done */
    soft_tokens **held;                  /* [spans of media]: soft tokens that its next rows need; NULL: not now */
    const float **soft;                  /* [spans]: their addresses, for the lane */
    bool          searched;              /* the disk tier was asked for its prompt (sched/tier.h) */
    tier_load    *load;                  /* request to the disk tier; NULL: none */
    int64_t       mask_work;             /* the part of spec_lane_mask_work that mask_s includes */
    double        mask_s;                /* CPU time of its masks, in seconds */
    double        admitted, first_token; /* clock_s; first_token 0: there was none yet */
    route_reason  reason;                /* reason of the last round */
    double        woken;                 /* clock_s when the reader was last woken */
    bool          news_waits;            /* tokens were published since the reader was woken */
    routing_trace trace;
    tok_stream    stream; /* decodes the text that is searched for stop strings */
    stop_match    stop;

    /* the response */
    int32_t        n_kept;            /* tokens so far, published or not */
    bool           closed;            /* a token was chosen to end the grammar within the length limit */
    atomic_int     stop_at;           /* index of the stop token, set before it is published; -1: none */
    int32_t       *token;             /* [max_out] */
    uint8_t       *drafted;           /* [max_out]: tandem_token.drafted */
    token_logprob *logprobs;          /* [max_out][1 + n_top], NULL: none */
    token_logprob *scores;            /* [prompt.n][1 + n_top], the prompt's; NULL: none */
    atomic_int     n_out;             /* published tokens; for readers */
    atomic_llong   n_rounds;          /* rounds so far; for readers, as the next one */
    atomic_uint    round[JOB_ROUNDS]; /* the last rounds: method | draft tokens << 8 | accepted ones << 16; a ring */
    bell           news;              /* rung when tokens are published and when the job is done */
    atomic_bool    done;              /* the result is final: readers may read it */
    tandem_result  result;

    /* used by the reader only */
    int32_t    n_read; /* tokens that tandem_poll returned */
    tok_stream text;   /* this and the following: tandem_read */
    stop_match text_stop;
    buf        read;      /* text that was not returned yet */
    bool       read_over; /* the last token was decoded */
};

/* Sets up *m. model and t (which may be NULL) are borrowed. After a failure, too, call job_maker_deinit. */
bool job_maker_init(job_maker *m, const target *model, const tok *t, int n_ctx, int max_lanes, err *e);
void job_maker_deinit(job_maker *m); /* requires that no job holds a grammar; accepts all zeros */

void job_request_init(tandem_request *r, const target *m);       /* as tandem_request_init */
bool job_check_speculation(const tandem_speculation *s, err *e); /* checks the ranges of its numbers */
/* Applies tandem_options.spec to the speculation of a request, except tree_temp, no_chain_seed and draft_noise. */
void job_limit_speculation(tandem_speculation *s, const tandem_speculation *limit);
/* Checks the request, copies it and allocates the memory of the response. ERR_INPUT and ERR_CONTEXT have a message
 * that depends on the request and the model alone. Other errors: ERR_UNAVAILABLE, no memory; those of
 * grammar_cache_take. media: the pictures of the prompt, of which the job takes a reference; NULL: none. compiled: the
 * compiled r->grammar, which the job holds too; NULL: it is found or compiled
 * here. The job has one owner, the caller. *out is NULL on failure. */
bool job_new(tandem_job **out, const job_maker *m, const settings *now, const tandem_request *r, media_prompt *media,
             response_grammar *compiled, err *e);
/* Returns the source of the request's grammar for grammar_cache_take. It borrows r and cancel. */
grammar_source job_form_source(const job_maker *m, const tandem_request *r, const atomic_bool *cancel);
uint64_t       job_salt(const job_maker *m, const char *name); /* keyed hash of the name of a tenant or an account */
void           job_drop(tandem_job *j);                        /* releases one owner; the last one frees the job */
void           job_settle_seed(tandem_request *r);             /* draws a random seed where none was given */
/* Checks and sets *out to the sampling, penalties and speculation of a request with a seed. Stop tokens and min_tokens
 * are left to the caller. room: storage of JOB_MAX_BIAS entries for its biases and the model's bans, which *out
 * borrows. Fails with ERR_INPUT. */
bool job_lane_options(lane_options *out, const target *model, const tandem_request *r, logit_bias *room, err *e);
spec_settings job_spec_settings(const tandem_speculation *s);
enum { JOB_MAX_BIAS = TANDEM_MAX_BIAS + MODEL_MAX_STOPS };

/* --- on the engine thread ----------------------------------------------------------------------- */
/* Buffers for the search of stop strings, large enough for any token: nothing is allocated while tokens arrive. */
typedef struct {
    buf text, safe;
} job_scratch;
bool job_scratch_init(job_scratch *s, const tok *t, err *e); /* t NULL: none are needed; deinit also after a failure */
void job_scratch_deinit(job_scratch *s);

/* Copies the log-probabilities of the prompt that a step computed, if the request asked for them. */
void job_keep_scores(tandem_job *j, const spec_scores *found);
/* Records that n tokens of the prompt are cached or have run. */
void job_note_progress(tandem_job *j, int n);
/* Takes the tokens of a step, one by one, up to the one that ends the response; result.finish is then set. Returns how
 * many it took, that one included. They are not published yet. */
int job_keep(tandem_job *j, const spec_out *out, job_scratch *s);
/* Publishes the tokens taken so far and the progress of the prompt. Wakes the reader, unless it was woken within the
 * last quiet_s: waking a thread costs as much as a token of a small model. Returns whether it was woken. */
bool job_publish(tandem_job *j, double now, double quiet_s);
bool job_wake_reader(tandem_job *j, double now); /* wakes the reader if something was published since the last time */
/* Publishes, makes the result final, wakes the reader and releases the grammar and the engine's ownership: j may be
 * freed. */
void job_finish(tandem_job *j);
#endif
