/* sched/job.h - one request: what was asked for, where it stands, and the tokens that it has so far.
 *
 * All memory of a job is taken when it is made, room for every token of its answer too: the engine never waits for a
 * reader, and a step takes nothing. Tokens are written once and never move; n_out says how many there are, and is
 * what a reader looks at:
 *
 *      token     [ 0 ............ n_read ...... n_out ......... max_out )
 *                  given to the reader   there to read   still to come
 *
 * Two hold a job, the caller and the engine; it goes with the last of them. Fields are the engine thread's, unless
 * they say otherwise. */
#ifndef TANDEM_SCHED_JOB_H
#define TANDEM_SCHED_JOB_H
#include "base/arena.h"
#include "base/bell.h"
#include "base/err.h"
#include "sched/accounts.h"
#include "sched/forms.h"
#include "sched/routing_log.h"
#include "spec/spec.h"
#include "tok/stop.h"
#include "tok/tok.h"

#include "tandem.h"

/* What requests are made for. */
typedef struct {
    const target *model;
    const tok    *tok; /* NULL: no text in or out */
    int           n_ctx;
    tok_ids       stops;      /* ends of answers: the model's and the tokenizer's */
    answer_forms *forms;      /* what answers may be held to */
    uint8_t       secret[16]; /* of tenants' salts: nobody can name himself so that he shares another one's prefixes */
} job_maker;

struct tandem_job {
    arena      mem;
    atomic_int holders;
    bell      *engine; /* rung by tandem_cancel; the engine's, good until `done` */

    /* what was asked for; not changed afterwards */
    const job_maker *maker;
    tok_ids          prompt;
    int32_t          max_out; /* tokens */
    bool             cut;     /* more were asked for than the context has room for */
    lane_options     opt;
    int32_t         *stop_id; /* beside the maker's, unless ignore_stops */
    size_t           n_stop_ids;
    bool             ignore_stops;
    answer_form     *form; /* NULL: the answer is free; held until the job is done */
    guide_begins     begins;
    char             id[ROUTING_ID_MAX];
    int              priority;
    bool             again;      /* to a prompt that was counted with the first answer to it */
    uint64_t         salt, kind; /* of the tenant; of the kind of request, 0: none */
    uint64_t         account_key;
    bool (*on_token)(void *ctx, int32_t token);
    void *on_token_ctx;
    void (*wake)(void *ctx);
    void  *wake_ctx;
    bool   wakes_on_prefill;                    /* its reader wants to know of each piece of the prompt */
    double submitted, deadline, queue_deadline; /* clock_s; INFINITY: none */

    /* where it stands */
    atomic_bool   cancelled;  /* any thread */
    atomic_bool   entered;    /* it had a lane; readers look at it, and then at `admitted` and cached_tokens */
    atomic_int    n_done;     /* tokens of the prompt that are cached or have run; readers look at it */
    bool          progressed; /* they were not told of it */
    uint64_t      order;      /* of submissions */
    account      *account;    /* whose request it is, until it is done */
    tandem_job   *next, *prev;
    spec_lane    *lane;      /* NULL: not admitted */
    int64_t       mask_work; /* spec_lane_mask_work of what is counted in: */
    double        mask_s;    /* CPU time of its masks */
    double        admitted, first_token;
    route_reason  reason;     /* of the last round */
    double        told;       /* when its reader last was */
    bool          news_waits; /* there are tokens to read that the reader was not told of */
    routing_trace trace;
    tok_stream    stream; /* of the text in which stop strings are looked for */
    stop_match    stop;

    /* what came of it */
    int32_t        n_kept;
    bool           closed;   /* a token was chosen for the end that fits the length limit */
    atomic_int     stop_at;  /* the token that is an end of an answer, set before it can be read; -1: none */
    int32_t       *token;    /* [max_out] */
    token_logprob *logprobs; /* [max_out][1 + n_top], NULL: none */
    token_logprob *scores;   /* [prompt.n][1 + n_top], of the prompt's tokens; NULL: none */
    atomic_int     n_out;    /* readers look at it */
    bell           news;
    atomic_bool    done; /* the result is final */
    tandem_result  result;

    /* the reader's */
    int32_t    n_read;
    tok_stream text;
    stop_match text_stop;
    buf        read;
    bool       read_over;
};

bool job_maker_init(job_maker *m, const target *model, const tok *t, int n_ctx, err *e);
void job_maker_deinit(job_maker *m);

void job_request_init(tandem_request *r, const target *m); /* as tandem_request_init */
/* Checks the request and takes its memory. ERR_INPUT with a sentence that depends on the request and the model alone.
 * form: the compiled form of r->grammar; NULL: it is found or compiled here. */
bool job_new(tandem_job **out, const job_maker *m, const settings *now, const tandem_request *r, answer_form *form,
             err *e);
/* Returns the key by which the compiled form of the request's grammar is found. */
form_source job_form_request(const job_maker *m, const tandem_request *r, const atomic_bool *cancel);
void        job_drop(tandem_job *j);            /* one holder less */
void        job_settle_seed(tandem_request *r); /* one is drawn where none was given */
/* Sampling, penalties and speculation of a request whose seed is settled; `room` takes its biases and the model's bans. */
bool job_lane_options(lane_options *out, const target *model, const tandem_request *r, logit_bias *room, err *e);
spec_settings job_spec_settings(const tandem_speculation *s);
enum { JOB_MAX_BIAS = TANDEM_MAX_BIAS + MODEL_MAX_STOPS };

/* --- on the engine's thread --------------------------------------------------------------------- */
/* Scratch for looking for stop strings, large enough for any token: nothing is allocated while tokens come. */
typedef struct {
    buf text, safe;
} job_scratch;
bool job_scratch_init(job_scratch *s, const tok *t, err *e);
void job_scratch_deinit(job_scratch *s);

/* Copies the log-probabilities of the prompt that a step found. */
void job_keep_scores(tandem_job *j, const spec_scores *found);
/* So many tokens of the prompt are cached or have run. */
void job_note_progress(tandem_job *j, int n);
/* Takes the tokens that a step decided, one by one, until the one that ends the answer: result.finish says why. Returns
 * how many of them became text. They are not published yet. */
int job_keep(tandem_job *j, const spec_out *out, job_scratch *s);
/* The tokens kept so far, or the progress with the prompt, can be read. The reader is told, unless it was within the last
 * quiet_s: waking a thread costs as much as a small model's token. Whether it was told. */
bool job_publish(tandem_job *j, double now, double quiet_s);
bool job_tell(tandem_job *j, double now); /* of what waits, if anything does */
void job_finish(tandem_job *j);           /* the same, the result is final, and the engine's hold is given up */
#endif
