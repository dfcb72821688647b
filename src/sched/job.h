/* sched/job.h - one request: its options, its state, and the tokens of its answer so far.
 *
 * All memory of a job is allocated when it is created, including that of every token of its answer: the engine never
 * waits for a reader, and a step allocates nothing. Tokens are written once and never move; readers read n_out, the
 * number of published tokens:
 *
 *      token     [ 0 ............ n_read ...... n_out ......... max_out )
 *                  given to the reader   published       still to come
 *
 * A job has two owners, the caller and the engine; the last one frees it. Fields belong to the engine's thread, unless
 * a comment says otherwise. */
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

/* The model that requests are made for. */
typedef struct {
    const target *model;
    const tok    *tok; /* NULL: the model has no tokenizer */
    int           n_ctx;
    tok_ids       stops; /* end-of-answer tokens of the model and the tokenizer */
    answer_forms *forms; /* compiled grammars */
    uint8_t
        secret[16]; /* key of the tenants' salts: a tenant cannot choose a name that shares the prefixes of another */
} job_maker;

struct tandem_job {
    arena      mem;
    atomic_int holders;
    bell      *engine; /* rung by tandem_cancel; the engine's, valid until `done` */

    /* the request; not changed afterwards */
    const job_maker *maker;
    tok_ids          prompt;
    int32_t          max_out; /* tokens */
    bool             cut;     /* max_out was reduced to the room in the context */
    lane_options     opt;
    int32_t         *stop_id; /* in addition to the maker's, unless ignore_stops */
    size_t           n_stop_ids;
    bool             ignore_stops;
    answer_form     *form; /* NULL: no grammar; released when the job is done */
    guide_begins     begins;
    char             id[ROUTING_ID_MAX];
    int              priority;
    bool             is_repeat;  /* another answer to a prompt that was counted already */
    uint64_t         salt, kind; /* the tenant's; hash of the kind of request, 0: none */
    uint64_t         account_key;
    bool (*on_token)(void *ctx, int32_t token);
    void *on_token_ctx;
    void (*wake)(void *ctx);
    void  *wake_ctx;
    bool   wakes_on_prefill;                    /* wake the reader after each chunk of the prompt */
    double submitted, deadline, queue_deadline; /* clock_s; INFINITY: none */

    /* state */
    atomic_bool   cancelled;  /* any thread */
    atomic_bool   entered;    /* it has or had a lane; readers check it before `admitted` and cached_tokens */
    atomic_int    n_done;     /* tokens of the prompt that are cached or have run; for readers */
    bool          progressed; /* n_done changed since the reader was woken */
    uint64_t      order;      /* number of the submission */
    account      *account;    /* NULL when done */
    tandem_job   *next, *prev;
    spec_lane    *lane;      /* NULL: not admitted */
    int64_t       mask_work; /* spec_lane_mask_work of what is counted in: */
    double        mask_s;    /* CPU time of its masks */
    double        admitted, first_token;
    route_reason  reason;     /* reason of the last round */
    double        woken;      /* time when the reader was last woken */
    bool          news_waits; /* tokens were published since the reader was woken */
    routing_trace trace;
    tok_stream    stream; /* decodes the text that is searched for stop strings */
    stop_match    stop;

    /* the answer */
    int32_t        n_kept;
    bool           closed;   /* a token was chosen to end the grammar within the length limit */
    atomic_int     stop_at;  /* index of the end-of-answer token, set before it is published; -1: none */
    int32_t       *token;    /* [max_out] */
    token_logprob *logprobs; /* [max_out][1 + n_top], NULL: none */
    token_logprob *scores;   /* [prompt.n][1 + n_top], the prompt's; NULL: none */
    atomic_int     n_out;    /* published tokens; for readers */
    bell           news;
    atomic_bool    done; /* the result is final */
    tandem_result  result;

    /* used by the reader only */
    int32_t    n_read;
    tok_stream text;
    stop_match text_stop;
    buf        read;
    bool       read_over;
};

bool job_maker_init(job_maker *m, const target *model, const tok *t, int n_ctx, int max_lanes, err *e);
void job_maker_deinit(job_maker *m);

void job_request_init(tandem_request *r, const target *m); /* as tandem_request_init */
/* Checks the request and allocates its memory. ERR_INPUT has a message that depends on the request and the model alone.
 * form: the compiled r->grammar; NULL: it is found or compiled here. */
bool job_new(tandem_job **out, const job_maker *m, const settings *now, const tandem_request *r, answer_form *form,
             err *e);
/* Returns the key of the request's compiled grammar. */
form_source job_form_request(const job_maker *m, const tandem_request *r, const atomic_bool *cancel);
void        job_drop(tandem_job *j);            /* releases one owner */
void        job_settle_seed(tandem_request *r); /* draws a random seed where none was given */
/* Sets *out to the sampling, penalties and speculation of a request with a seed. room: storage for its biases and the
 * model's bans. */
bool job_lane_options(lane_options *out, const target *model, const tandem_request *r, logit_bias *room, err *e);
spec_settings job_spec_settings(const tandem_speculation *s);
enum { JOB_MAX_BIAS = TANDEM_MAX_BIAS + MODEL_MAX_STOPS };

/* --- on the engine's thread --------------------------------------------------------------------- */
/* Buffers for the search of stop strings, large enough for any token: nothing is allocated while tokens arrive. */
typedef struct {
    buf text, safe;
} job_scratch;
bool job_scratch_init(job_scratch *s, const tok *t, err *e);
void job_scratch_deinit(job_scratch *s);

/* Copies the log-probabilities of the prompt that a step computed. */
void job_keep_scores(tandem_job *j, const spec_scores *found);
/* Records that n tokens of the prompt are cached or have run. */
void job_note_progress(tandem_job *j, int n);
/* Takes the tokens of a step, one by one, until the one that ends the answer; result.finish is then set. Returns how
 * many became text. They are not published yet. */
int job_keep(tandem_job *j, const spec_out *out, job_scratch *s);
/* Publishes the tokens kept so far and the progress of the prompt. Wakes the reader, unless it was woken within the
 * last quiet_s: waking a thread costs as much as a token of a small model. Returns whether it was woken. */
bool job_publish(tandem_job *j, double now, double quiet_s);
bool job_wake_reader(tandem_job *j, double now); /* wakes the reader if something was published since the last time */
void job_finish(tandem_job *j); /* publishes, makes the result final and releases the engine's ownership */
#endif
