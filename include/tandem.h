/* tandem.h - the engine inside your own program: open a model, submit requests, poll their tokens, cancel, close.
 *
 *      tandem_options_init(&o);  o.path = "model.gguf";
 *      tandem_open(&t, &o, &e);
 *      tandem_request_init(t, &r);  r.text = "Once upon a time";
 *      tandem_submit(t, &r, &job, &e);
 *      while ((n = tandem_read(job, text, sizeof text)) > 0) fwrite(text, 1, n, stdout);
 *      tandem_release(job);
 *      tandem_close(t);
 *
 * One thread inside owns the model; all requests share its steps, each as if it were alone: the text of an answer is decided
 * by weights, prompt, sampling options and seed, never by what else is running or by how it was speculated.
 *
 * What is admitted does not fail for memory: K/V is reserved first. What does not fit now waits in a bounded queue; what
 * does not fit there is refused with TANDEM_BUSY, which may be tried again.
 *
 * Ownership: everything that a call is given is copied before it returns, unless a comment says that it must live on. A job
 * is yours until tandem_release, also when the engine was closed before: its tokens and its result can still be had then, its
 * text (tandem_read) cannot.
 * Threads: any thread may call anything with the same `tandem`, except tandem_close, which must come last; a job has one
 * reader at a time (poll, read, wait), while any thread may cancel it. The helpers on text only read: any number of
 * threads at once, while answers are being made.
 *
 * Functions that can fail return true on success; on failure *e, which may be NULL, says why. */
#ifndef TANDEM_H
#define TANDEM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tandem     tandem;     /* a model, ready to answer */
typedef struct tandem_job tandem_job; /* one answer */

const char *tandem_version(void);

/* --- errors ------------------------------------------------------------------------------------- */
typedef enum {
    TANDEM_OK,
    TANDEM_INPUT,       /* what was asked for is wrong; asking again will not help */
    TANDEM_NOT_FOUND,   /* no such file */
    TANDEM_TOO_LARGE,   /* over a limit that will not change */
    TANDEM_BUSY,        /* try again later */
    TANDEM_UNAVAILABLE, /* shutting down, or out of memory for this */
    TANDEM_FORMAT,      /* a file is not what it claims to be, or holds damaged numbers */
    TANDEM_LIMIT,       /* a buffer is full, or a grammar is too ambiguous to be followed */
    TANDEM_IO,          /* the operating system said no */
} tandem_code;

typedef struct {
    tandem_code code;
    char        text[512]; /* one sentence for people, no newline */
} tandem_error;

/* --- opening ------------------------------------------------------------------------------------ */
typedef struct {
    const char *path;     /* DFlash drafter or MTP assistant, one of each: a GGUF file or a Hugging Face directory */
    const char *name;     /* in messages; NULL: the path */
    const char *shown;    /* in place of the path in reports; NULL: the path */
    const char *quantise; /* "none", "q8_0", "q4_0"; NULL: as the settings dflash_draft_quant_... */
    int         n_ctx;    /* positions of context that a DFlash drafter sees; 0: its trained length */
    bool        lazy;     /* opened when a request first wants it */
    bool        required; /* the model is not opened without it; lazy: as far as can be seen before */
} tandem_drafter;

/* How the engine admits, waits and speculates; docs/routing.md lists all, such as "queue_max" or "dflash_max_concurrent". */
typedef struct {
    const char *name, *value; /* as text: "4", "0.9", "true", "auto" */
} tandem_setting;

typedef struct {
    const char *path;      /* a GGUF file or a Hugging Face directory */
    const char *name;      /* in messages and in the settings file; NULL: the path */
    const char *shown;     /* in place of the path in reports; NULL: the path */
    const char *device;    /* "auto": a GPU when there is one; "cpu", "cuda:1", ... */
    int         n_threads; /* of the processor; 0: as many as this process may use */

    const tandem_drafter *drafters; /* one that cannot be used is an error where it is required, else a warning */
    int                   n_drafters;
    /* How drafters that the settings dflash_draft_model and mtp_draft_model name are opened; path and name are not used. Such
     * a drafter takes the place of one of its kind in the list. */
    tandem_drafter by_setting;

    int         n_ctx;     /* positions of one request, prompt and answer; 0: the model's, at most 8192 */
    int         max_lanes; /* requests that run together, 1 to 64 */
    const char *kv_type;   /* "f16", "f32" */
    uint64_t    kv_bytes;  /* of all K/V pages; 0: what max_lanes full contexts need, at most most of the free memory */
    bool        no_prefix; /* keep nothing of finished requests */

    int step_tokens; /* rows of one step: prompt pieces, tokens and guesses together; 256 */

    const char           *settings_path; /* of a file that holds settings of models by name; NULL: none */
    const tandem_setting *settings;      /* these win over the file's, and the environment's over both */
    int                   n_settings;
    const char           *routing_log;  /* of a file, JSON lines: how requests were speculated and why; NULL: none */
    bool                  fingerprints; /* of the model and drafters are computed; with a routing log they always are */

    void (*progress)(void *ctx, size_t done, size_t total); /* while weights are loaded, in bytes; may be NULL */
    void *progress_ctx;
    /* Tokens that come faster are told of together: waking a reader for each would cost a small model some percent of its
     * rate. 0: for each step; 2 */
    double wake_ms;
    /* On the engine's thread after each step that gave any job something, and when a job ended otherwise: say, a write to
     * an eventfd. It must be quick, and may call nothing here but tandem_poll. NULL: nobody wants to know. */
    void (*wake)(void *ctx);
    void *wake_ctx;
} tandem_options;

void tandem_options_init(tandem_options *o); /* the defaults */
bool tandem_open(tandem **out, const tandem_options *o, tandem_error *e);
/* No new requests from now on; what runs may end within grace_s seconds, then it is cancelled. Returns when all jobs are
 * done: the step in flight is waited for. */
void tandem_shutdown(tandem *t, double grace_s);
void tandem_close(tandem *t); /* NULL is fine. Shuts down first, without grace */

/* What was opened. Strings live as long as t. */
typedef struct {
    const char *name, *path, *shown; /* shown: the path, or what tandem_options has in its place */
    const char *family, *device, *kv_type;
    const char *
        fingerprint; /* of the model's files: "sha256:..." up to 64 MiB, else "sha256-sampled:..."; "": not asked for */
    int n_threads;   /* of the processor; 0: it does not do the work */
    int n_ctx, n_vocab, n_layers, max_lanes, step_tokens;
    uint64_t    weight_bytes, kv_bytes;
    uint64_t    n_params;     /* numbers in its matrices */
    const char *quantisation; /* of most weights, as the file has them: "q4_0", "bf16", ... */
    bool        has_tokenizer;
    bool        has_dflash, has_mtp;
} tandem_info;
void tandem_get_info(const tandem *t, tandem_info *out);

/* --- requests ----------------------------------------------------------------------------------- */
enum { TANDEM_MAX_DRAFT = 64, TANDEM_MAX_LOGPROBS = 20, TANDEM_MAX_BIAS = 1024, TANDEM_MAX_STOPS = 64 };
enum { TANDEM_MAX_STOP_IDS = 1024 };

typedef enum {
    TANDEM_SPEC_OFF, /* no guess by any method */
    TANDEM_SPEC_DFLASH,
    TANDEM_SPEC_TREE,
    TANDEM_SPEC_MTP,
    TANDEM_SPEC_NGRAM,
    TANDEM_SPEC_AUTO, /* what pays, from round to round */
    TANDEM_SPEC_METHODS = TANDEM_SPEC_AUTO,
} tandem_method;
const char *tandem_method_name(int method); /* "off", "dflash", ... "auto"; NULL: there is none */

/* Zero numbers: the default. It changes the speed, never the text. */
typedef struct {
    tandem_method method;
    int           draft_max;   /* guesses in a row */
    int           tree_budget; /* guesses of a tree */
    float         tree_temp;   /* over 1 makes trees wider, under 1 deeper */
    bool          no_chain_seed;
    float         draft_noise; /* share of the temperature that guesses are picked at */
} tandem_speculation;

typedef struct {
    int32_t token;
    float   bias; /* added to its logit; -INFINITY bans it */
} tandem_bias;

typedef enum {
    TANDEM_GRAMMAR_NONE,
    TANDEM_GRAMMAR_GBNF,       /* as llama.cpp's users write it */
    TANDEM_GRAMMAR_SCHEMA,     /* a JSON Schema; docs/grammar.md says which keywords are kept */
    TANDEM_GRAMMAR_OBJECT,     /* any JSON object; no text */
    TANDEM_GRAMMAR_TOOL_CALL,  /* one call of one of the tools in the text, a JSON array as OpenAI's `tools` */
    TANDEM_GRAMMAR_TOOL_CALLS, /* one or several */
    TANDEM_GRAMMAR_REGEX,      /* a regular expression that all of the answer matches */
    TANDEM_GRAMMAR_TOOLS,      /* any text, or JSON, among which calls of strict tools fit; see below */
    TANDEM_GRAMMARS,
} tandem_grammar_kind;

/* The text of TANDEM_GRAMMAR_TOOLS is {"tools": [...], "answer": SCHEMA}. Calls name one of the tools; the arguments of
 * a tool with "strict": true fit its schema, those of others are free. Without "answer" all text outside of calls is
 * free; with it, the answer is JSON of that schema or calls. Where a call is forced (TANDEM_GRAMMAR_TOOL_CALL and
 * _CALLS) all tools are held to their schemas, but one whose schema cannot be kept and that is not strict takes any
 * arguments.
 *
 * An answer that fits, whatever the sampling; also when max_tokens ends it, if the shortest one has so many tokens. It ends
 * where the grammar does, also with ignore_stop_ids. What cannot be kept is refused by tandem_submit, which compiles it. */
typedef struct {
    tandem_grammar_kind kind;
    const char         *text;
    size_t              n_text;     /* bytes; 0 with a text: up to its NUL */
    bool                in_thought; /* the prompt ends inside a thought, to which nothing is held */
    bool                may_think;  /* the answer may begin with one */
    bool                may_call;   /* it may be a tool call instead, which nothing is held to */
} tandem_grammar;

typedef struct {
    const int32_t *ids; /* the prompt, n_ids tokens; or NULL, and */
    size_t         n_ids;
    const char    *text;   /* the prompt as text, which begins a sequence; markers in it are plain characters */
    size_t         n_text; /* bytes; 0 with a text: up to its NUL */

    int32_t            max_tokens;      /* -1: default_max_tokens; more than the context has left is cut to that */
    int32_t            min_tokens;      /* the answer does not end by a stop token before it has so many; 0: off */
    bool               ignore_stop_ids; /* go on behind the model's own end-of-answer tokens */
    const int32_t     *stop_ids;        /* more of them */
    size_t             n_stop_ids;
    const char *const *stop; /* the answer's text ends before the first of these: up to 64, of 1 to 256 bytes each */
    size_t             n_stop;

    float    temp; /* 0: greedy */
    float    top_p, min_p;
    int32_t  top_k;    /* 0: all */
    bool     has_seed; /* otherwise one is drawn, and reported */
    uint64_t seed;
    int      choice; /* of several answers to one prompt with one seed: 0, 1, ...; stats count its prompt at 0 alone */
    float    repeat_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    const tandem_bias *bias;
    size_t             n_bias;
    int                logprobs; /* of so many likely tokens beside each; -1: none at all */
    bool prompt_logprobs;        /* the same of the prompt's tokens. All of it is run, whatever the cache has of it */
    tandem_grammar     grammar;
    tandem_speculation spec;

    const char *id;           /* in the routing log; NULL: a number */
    int         priority;     /* higher goes first; -100 to 100 */
    double      time_limit_s; /* from the submission on; 0: request_timeout_ms */
    const char *tenant;       /* prefixes are shared only inside one; NULL is one too */
    const char *account;      /* requests of different accounts are admitted in turns; NULL is one too */
    const char *kind; /* requests of one kind share what was learnt about guessing: a name of yours; NULL is one too */

    /* On the engine's thread; quick, and calling nothing here. Told every token that is no stop token as it becomes text;
     * false ends the answer with it. Its ctx must live until the job is done. */
    bool (*on_token)(void *ctx, int32_t token);
    void *on_token_ctx;
    bool  wake_on_prefill; /* wake its reader after each piece of the prompt, too */
    /* As tandem_options.wake, for this job alone. Its ctx must live as long as the engine. */
    void (*wake)(void *ctx);
    void *wake_ctx;
} tandem_request;

void tandem_request_init(const tandem *t, tandem_request *r); /* sampling as the model's files advise; spec: auto */
bool tandem_submit(tandem *t, const tandem_request *r, tandem_job **out, tandem_error *e);

/* --- answers ------------------------------------------------------------------------------------ */
typedef struct {
    int32_t id; /* -1: there are no more */
    float   logprob;
} tandem_logprob;

typedef struct {
    int32_t               id;
    bool                  is_stop;  /* an end-of-answer token: counted, but no text */
    const tandem_logprob *logprobs; /* its own, then those that the request asked for; until release. NULL: none */
} tandem_token;

/* The tokens that are new, at most `max`; never waits. A reader that is slow or gone slows nothing down. */
size_t tandem_poll(tandem_job *j, tandem_token *out, size_t max);
/* The same as text: waits for some, 0 at the end of the answer or at a stop string. Whole characters (cap is at least 4).
 * Use one or the other. */
size_t tandem_read(tandem_job *j, char *out, size_t cap);
/* Until there is something to poll or the job is done; at most so many seconds, < 0: for ever. False: time passed. */
bool tandem_wait(tandem_job *j, double seconds);
/* Takes effect within one step; tokens that are there already stay, and count. Any number of times, at any time. */
void tandem_cancel(tandem_job *j);
void tandem_release(tandem_job *j); /* NULL is fine; cancels what is not done */
/* Log-probabilities of the prompt's tokens, 1 + `logprobs` items of each as tandem_token has them; those of the first token are
 * unknown, their ids -1. NULL before the first token of the answer or its end, or where they were not asked for. */
const tandem_logprob *tandem_prompt_logprobs(const tandem_job *j);
/* How far a job is, at any time. Seconds are 0 before what they measure begins. */
typedef struct {
    int32_t prompt_tokens, cached_tokens;
    int32_t prompt_done;         /* tokens of the prompt that were cached or have run */
    int32_t completion_tokens;   /* there to poll, or polled */
    double  prefill_s, decode_s; /* since the admission, up to the first token; since the first token */
} tandem_progress;
void tandem_job_progress(const tandem_job *j, tandem_progress *out);
bool tandem_job_admitted(const tandem_job *j); /* it has left the queue for a lane: from here on it is not refused */

typedef enum {
    TANDEM_FINISH_NONE,        /* not done yet */
    TANDEM_FINISH_STOP,        /* a stop token */
    TANDEM_FINISH_STOP_STRING, /* a stop string, or on_token said so */
    TANDEM_FINISH_LENGTH,      /* max_tokens, or the end of the context */
    TANDEM_FINISH_CANCELLED,
    TANDEM_FINISH_TIMEOUT, /* its time limit */
    TANDEM_FINISH_ERROR,   /* `error` says which; the tokens before it count */
    TANDEM_FINISHES,
} tandem_finish;
const char *tandem_finish_name(tandem_finish f);

typedef struct {
    int32_t prompt_tokens;     /* the request's, whether it ran or not: also of one that was cancelled in the queue */
    int32_t cached_tokens;     /* of the prompt: found in the cache, and not run again */
    int32_t completion_tokens; /* exactly those that poll gives, stop tokens counted */
    double queue_s, prefill_s, decode_s; /* submitted, admitted, first token, end; time to the first token is the sum of
                                            * the first two */
    uint64_t seed;                       /* that was used */

    int64_t rounds, plain_rounds; /* with guesses, without */
    int64_t drafted, accepted;
    int64_t tried_at[TANDEM_MAX_DRAFT], right_at[TANDEM_MAX_DRAFT]; /* by place in the draft */
    int64_t rounds_by_method[TANDEM_SPEC_METHODS], drafted_by_method[TANDEM_SPEC_METHODS],
        accepted_by_method[TANDEM_SPEC_METHODS];
    double draft_s, verify_s, commit_s;

    int         route;        /* tandem_method of the last round that had a choice */
    const char *route_reason; /* why it was that one; never NULL */
} tandem_usage;

typedef struct {
    tandem_finish finish;
    bool          context_full; /* TANDEM_FINISH_LENGTH by the end of the context */
    tandem_error  error;
    tandem_usage  usage;
} tandem_result;
/* NULL until the job is done; then final, until release. Tokens may still be there to poll. */
const tandem_result *tandem_job_result(const tandem_job *j);

/* --- text --------------------------------------------------------------------------------------- */
typedef struct {
    int32_t *p;
    size_t   n;
} tandem_ids; /* from below, freed by tandem_ids_free */

/* Without the token that begins a sequence; with `markers`, control tokens written out in the text become tokens.
 * User-defined tokens such as <table> are found in either case. */
bool tandem_tokenize(const tandem *t, const char *text, size_t n, bool markers, tandem_ids *out, tandem_error *e);
/* Always UTF-8. Like snprintf: returns the bytes that all of it needs, and writes what fits, with a NUL. */
size_t tandem_detokenize(const tandem *t, const int32_t *ids, size_t n, bool markers, char *out, size_t cap);

typedef struct {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} tandem_message;
/* The prompt of a conversation in the model's own format. *in_thought, unless NULL: it ends inside a thought. */
bool tandem_chat_prompt(const tandem *t, const tandem_message *messages, size_t n, bool think, tandem_ids *out,
                        bool *in_thought, tandem_error *e);
void tandem_ids_free(tandem_ids *ids);

/* --- settings and numbers ----------------------------------------------------------------------- */
/* Settings, changed while the engine runs: from the next step or request on, or, where docs/routing.md says so, when the
 * model is opened again. They are written to settings_path where there is one; where there is none, what takes effect only
 * then is refused. tandem_settings gives all as one JSON object, like snprintf. */
bool   tandem_set(tandem *t, const char *name, const char *value, tandem_error *e);
size_t tandem_settings(const tandem *t, char *out, size_t cap);

typedef enum {
    TANDEM_DRAFTER_OPEN,
    TANDEM_DRAFTER_LAZY, /* opened when a request first wants it */
    TANDEM_DRAFTER_PARKED,
    TANDEM_DRAFTER_FAILED, /* it could not be opened: `problem` */
} tandem_drafter_state;
enum { TANDEM_MAX_DRAFTERS = 2 };
typedef struct {
    tandem_method        method; /* TANDEM_SPEC_DFLASH, which makes trees too, or TANDEM_SPEC_MTP */
    tandem_drafter_state state;
    const char          *name, *path, *shown; /* as tandem_info's; as long as the engine */
    const char          *quantisation; /* of most of its weights; "" where it was never open, and 0 in what follows */
    uint64_t             weight_bytes;
    int                  max_draft, trained_ctx; /* guesses in a row; 0: not known */
    char                 fingerprint[96];        /* as tandem_info's; "": not asked for, or it was never opened */
    char                 problem[512];           /* the last one that it had; "": none */
} tandem_drafter_info;
int tandem_drafters(const tandem *t, tandem_drafter_info out[TANDEM_MAX_DRAFTERS]); /* how many there are */
/* Gives a drafter's memory back, between two steps: requests go on without it, and their text is the same. Unparking
 * opens it again, and steps wait for that; it also tries again what could not be opened. What is so already is fine. Both return
 * when it is done. */
bool tandem_park_drafter(tandem *t, tandem_method m, tandem_error *e);
bool tandem_unpark_drafter(tandem *t, tandem_method m, tandem_error *e);

enum { TANDEM_STEP_BUCKETS = 20, TANDEM_MAX_ROUTES = 24 };
typedef struct {
    int     running, queued; /* requests */
    int64_t submitted, refused, admitted;
    int64_t finished[TANDEM_FINISHES];
    int64_t prompt_tokens, cached_tokens, completion_tokens; /* of requests that were admitted */

    int64_t steps, failed_steps, rows, prompt_rows;
    double  step_s;
    double
        busy_s; /* the engine's thread has been at its step, or at what comes between two, for so long; 0: it sleeps */
    int64_t step_bucket
        [TANDEM_STEP_BUCKETS]; /* steps of under 2^i / 8 ms that were not under the one before; the last: all others */

    double  mask_s;                           /* CPU time that was spent on the masks of grammars */
    int64_t mask_bucket[TANDEM_STEP_BUCKETS]; /* steps that spent any, as step_bucket */

    uint64_t kv_bytes, kv_pinned_bytes, kv_reserved_bytes, kv_cached_bytes;
    int64_t  prefix_hits, prefix_misses, prefix_evicted;

    int64_t rounds, plain_rounds, drafted, accepted;
    int64_t tried_at[TANDEM_MAX_DRAFT], right_at[TANDEM_MAX_DRAFT];
    int64_t rounds_by_method[TANDEM_SPEC_METHODS], drafted_by_method[TANDEM_SPEC_METHODS],
        accepted_by_method[TANDEM_SPEC_METHODS];
    int64_t routes[TANDEM_MAX_ROUTES]; /* lane rounds by reason */
} tandem_stats;
void        tandem_get_stats(const tandem *t, tandem_stats *out);
const char *tandem_route_name(int i); /* of routes[i]; NULL: there is none */

#ifdef __cplusplus
}
#endif
#endif
