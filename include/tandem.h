/* tandem.h - runs a language model inside your own program.
 *
 *      tandem_options_init(&o);  o.path = "model.gguf";
 *      tandem_open(&t, &o, &e);
 *      tandem_request_init(t, &r);  r.text = "Once upon a time";
 *      tandem_submit(t, &r, &job, &e);
 *      while ((n = tandem_read(job, text, sizeof text)) > 0) fwrite(text, 1, n, stdout);
 *      tandem_release(job);
 *      tandem_close(t);
 *
 * The engine has one thread that owns the model. All running requests share its steps, and none affects the text of
 * another: the weights, the prompt, the sampling options and the seed determine the text of a response. Speculative
 * decoding changes the speed only.
 *
 * Memory: the K/V memory of a request is reserved at admission, so an admitted request never fails for lack of it. A
 * request that does not fit yet waits in a bounded queue. When the queue is full, tandem_submit fails with TANDEM_BUSY.
 *
 * Ownership: a call copies its arguments before it returns, unless a comment states that they must live longer. The
 * caller owns a job until tandem_release, even after tandem_close. The tokens and the result of a job can still be read
 * after tandem_close; its text (tandem_read) cannot.
 *
 * Threads: any thread may call any function with the same `tandem`. tandem_close must be the last call. A job has one
 * reader at a time (tandem_poll, tandem_read, tandem_wait); any thread may cancel it. The functions on text are safe to
 * call from several threads while the engine runs.
 *
 * Errors: a function that can fail returns true on success. On failure it fills *e, which may be NULL, and sets *out to
 * NULL or empty. On success *e is unchanged. */
#ifndef TANDEM_H
#define TANDEM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default) /* the library is compiled with -fvisibility=hidden */
#endif

typedef struct tandem     tandem;     /* an engine with an open model */
typedef struct tandem_job tandem_job; /* a submitted request and its response */

const char *tandem_version(void); /* such as "1.2.3"; static */

/* --- errors ------------------------------------------------------------------------------------- */
typedef enum {
    TANDEM_OK,
    TANDEM_INPUT,       /* the request is invalid; it fails again if repeated */
    TANDEM_NOT_FOUND,   /* no such file */
    TANDEM_TOO_LARGE,   /* over a fixed limit, such as a grammar that takes too long to follow */
    TANDEM_BUSY,        /* try again later */
    TANDEM_UNAVAILABLE, /* shutting down, or out of memory */
    TANDEM_FORMAT,      /* a file is malformed, or the model produces invalid numbers */
    TANDEM_LIMIT,       /* an internal buffer is full */
    TANDEM_IO,          /* a system call failed */
    TANDEM_CONTEXT,     /* the prompt does not fit in the context, or the request in the K/V memory */
} tandem_code;

typedef struct {
    tandem_code code;
    char        text[512]; /* one sentence, no newline */
} tandem_error;

/* --- opening ------------------------------------------------------------------------------------ */
typedef struct {
    const char *path;     /* a DFlash drafter or an MTP assistant: a GGUF file or a Hugging Face directory */
    const char *name;     /* used in messages; NULL: the path */
    const char *shown;    /* reported instead of the path; NULL: the path */
    const char *quantise; /* "none", "q8_0", "q4_0"; NULL: as the settings dflash_draft_quant_* */
    int         n_ctx;    /* context of a DFlash drafter in positions; 0: its trained length */
    int         window;   /* positions that its layers with full attention see; 0: as the setting dflash_draft_window */
    bool        lazy;     /* open it when a request first uses it */
    bool        required; /* tandem_open fails if it cannot be used, else it warns; lazy: its files are checked */
} tandem_drafter;

typedef enum {
    TANDEM_SPEC_OFF,     /* no draft tokens */
    TANDEM_SPEC_DFLASH,  /* chains of a DFlash drafter */
    TANDEM_SPEC_TREE,    /* trees of a DFlash drafter */
    TANDEM_SPEC_MTP,     /* chains of an MTP assistant */
    TANDEM_SPEC_NGRAM,   /* chains copied from earlier in the text; needs no drafter */
    TANDEM_SPEC_AUTO,    /* in requests only: the fastest method, chosen for each round */
    TANDEM_SPEC_GRAMMAR, /* in results only: tokens that the request's grammar forces */
    TANDEM_SPEC_METHODS, /* size of the arrays by method; their entry of TANDEM_SPEC_AUTO is 0 */
} tandem_method;
/* Returns "off", "dflash", ... "auto", "grammar"; NULL for an unknown method. */
const char *tandem_method_name(int method);

/* Options of speculative decoding. A number that is 0 selects the default. They change the speed, never the text. */
typedef struct {
    tandem_method method;
    int           draft_max;     /* maximum length of a chain */
    int           tree_budget;   /* maximum of draft tokens in a tree */
    float         tree_temp;     /* above 1: wider trees; below 1: deeper trees */
    bool          no_chain_seed; /* trees need not contain the most likely chain */
    float         draft_noise;   /* temperature of drafting as a share of the request's */
    int           draft_tail;    /* maximum tokens from the text itself that follow a chain of DFlash or MTP */
} tandem_speculation;

/* A setting of admission, queueing or speculation, such as "queue_max". docs/routing.md lists all of them. */
typedef struct {
    const char *name, *value; /* as text: "4", "0.9", "true", "auto" */
} tandem_setting;

typedef struct {
    const char *path;      /* a GGUF file or a Hugging Face directory */
    const char *name;      /* used in messages and in the settings file; NULL: the path */
    const char *shown;     /* reported instead of the path; NULL: the path */
    const char *mmproj;    /* file of the encoder of pictures; NULL: mmproj*.gguf next to a GGUF file; "none": none */
    const char *device;    /* "auto", the default: a GPU if there is one; "cpu", "cuda:1", ... */
    int         n_threads; /* CPU threads; 0: all processors that this process may use */

    const tandem_drafter *drafters; /* at most one of each method; see `required` */
    int                   n_drafters;
    /* Options of the drafters that the settings dflash_draft_model and mtp_draft_model name; path, name and `required`
     * are not used. Such a drafter replaces the one with the same method in `drafters`. */
    tandem_drafter by_setting;

    /* Speculation of requests: tandem_request_init copies it. method, draft_max and tree_budget are also limits. A
     * method other than TANDEM_SPEC_AUTO replaces those that requests name, except TANDEM_SPEC_OFF; a number above 0
     * is the maximum for all of them. Default: TANDEM_SPEC_AUTO, zeros. */
    tandem_speculation spec;

    int n_ctx;     /* maximum of prompt and response in tokens; 0: the model's, up to 8192 */
    int max_lanes; /* requests that run at the same time, 1 to TANDEM_MAX_LANES; default 32 */
    /* Types of K and V: "f16", "f32", "q8_0", "q4_0", "tq3", or K and V apart: "k=q8_0,v=q4_0" (docs/kv-types.md). The
     * settings of the same names replace them. */
    const char *kv_type;    /* layers with full attention; default "f16" */
    const char *kv_sliding; /* sliding layers; NULL: as kv_type where that is f32 or f16, else f16 */
    const char *kv_draft;   /* K/V of a DFlash drafter; NULL: likewise */
    /* Sparse attention over contexts from 4096 tokens on: the share of attention that may be dropped, from 0 to
     * below 1. NULL or "0": off. The setting of the same name replaces it. */
    const char *sparse_fa;
    uint64_t    kv_bytes; /* size of the K/V cache; 0: max_lanes full contexts, limited by free memory */
    /* Instead of kv_bytes: the K/V cache takes this share of the device's memory that is free when the weights are
     * loaded, over 0 and up to 1. 0: not set. tandem_info.kv_bytes has the result. */
    float memory_share;
    bool  no_prefix;  /* disables the prefix cache */
    bool  wipe_pages; /* overwrites K/V pages with zeros when they are freed */
    /* Tiers below the prefix cache (docs/cache.md). Texts that ended are copied there and come back when a prompt
     * begins with them, also after a restart from the directory. Engines with the same directory share it. */
    const char *cache_dir;   /* a directory, made if it does not exist; NULL: none */
    uint64_t    cache_bytes; /* limit of its files; default 10 GB */
    uint64_t    park_bytes;  /* host memory for texts that the K/V cache is likely to evict; 0: none */

    /* Maximum of rows in one step, prompt and draft tokens together: at least 16 and max_lanes, at most
     * TANDEM_MAX_STEP_TOKENS. 0, the default: 256, on a GPU 2,048. */
    int step_tokens;

    const char           *settings_path; /* a file with the settings of models by name; NULL: none */
    const tandem_setting *settings;      /* override those of the file; the environment overrides both */
    int                   n_settings;
    const char           *routing_log;  /* a file for routing decisions as JSON lines; NULL: none */
    const char           *session_dir;  /* directory of saved sessions; created if missing; NULL: no sessions */
    bool                  fingerprints; /* compute fingerprints; always done with a routing log */

    /* Called by tandem_open while weights load, with bytes. May be NULL. */
    void (*progress)(void *ctx, size_t done, size_t total);
    void *progress_ctx;
    /* Minimum time between two wake-ups of a reader; tokens in between are delivered together. Waking for each token
     * would cost a small model some percent of its speed. 0: after each step; maximum 1000; default 2 */
    double wake_ms;
    /* Called on the engine thread after each step that produced something for any job, and when a job ends. It must be
     * quick, for example a write to an eventfd. It may call tandem_poll and no other function of this header. May be
     * NULL. ctx must live as long as the engine. */
    void (*wake)(void *ctx);
    void *wake_ctx;
} tandem_options;

enum { TANDEM_MAX_LANES = 256, TANDEM_MAX_STEP_TOKENS = 4096 };
/* Sets the defaults. */
void tandem_options_init(tandem_options *o);
/* Opens the model and its drafters and starts the engine thread. Blocks until the weights are loaded. The caller frees
 * *out with tandem_close. */
bool tandem_open(tandem **out, const tandem_options *o, tandem_error *e);
/* Refuses new requests, waits up to grace_s seconds for the others and then cancels them. Returns when all jobs have
 * ended, after the current step. */
void tandem_shutdown(tandem *t, double grace_s);
/* Shuts down without a grace period, unless tandem_shutdown was called, and frees the engine. t may be NULL. */
void tandem_close(tandem *t);

/* Properties of the engine and its model. The strings live as long as the engine. */
typedef struct {
    const char *name, *path, *shown;             /* as in tandem_options, NULL replaced */
    const char *family, *device;                 /* such as "gemma4", "cpu" */
    const char *kv_type, *kv_sliding, *kv_draft; /* types of K and V, as "q8_0" or "q8_0/q4_0" */
    double      sparse_fa;                       /* 0: attention is dense */
    /* K/V bytes of one position in all layers of the model, and in those with full attention. Only the latter grow
     * with a context that is longer than the window. */
    uint64_t kv_bytes_per_token, kv_bytes_per_token_full;
    /* Hash of the model's files: "sha256:..." up to 64 MiB, else "sha256-sampled:..."; "" when not computed. */
    const char *fingerprint;
    int         n_threads; /* CPU threads; 0: the work is done on another device */
    int         n_ctx;     /* maximum of prompt and response in tokens */
    int         n_vocab, n_layers, n_embd, max_lanes, step_tokens;
    uint64_t    weight_bytes, kv_bytes; /* memory of the weights, of the K/V cache */
    uint64_t    n_params;               /* parameters in matrices */
    const char *quantisation;           /* type of most bytes of the weights in the file: "Q4_0", "BF16", ... */
    bool        has_tokenizer;          /* false: prompts must be tokens, and there are no functions on text */
    bool        has_dflash, has_mtp;    /* there is such a drafter, and it has not failed */
    bool        has_images, has_video;  /* prompts may have images, videos */
} tandem_info;
/* Fills *out. */
void tandem_get_info(const tandem *t, tandem_info *out);

/* --- requests ----------------------------------------------------------------------------------- */
enum { TANDEM_MAX_DRAFT = 64, TANDEM_MAX_LOGPROBS = 20, TANDEM_MAX_BIAS = 1024, TANDEM_MAX_STOPS = 64 };
enum { TANDEM_MAX_STOP_IDS = 1024, TANDEM_MAX_PROMPT = 1 << 24 };

typedef struct {
    int32_t token;
    float   bias; /* added to the logit; -INFINITY bans the token */
} tandem_bias;

typedef enum {
    TANDEM_GRAMMAR_NONE,
    TANDEM_GRAMMAR_GBNF,       /* the GBNF notation of llama.cpp */
    TANDEM_GRAMMAR_SCHEMA,     /* a JSON Schema; docs/grammar.md lists the supported keywords */
    TANDEM_GRAMMAR_OBJECT,     /* any JSON object; `text` is not used */
    TANDEM_GRAMMAR_TOOL_CALL,  /* one call of a tool; text: a JSON array as OpenAI's `tools` */
    TANDEM_GRAMMAR_TOOL_CALLS, /* one or more calls */
    TANDEM_GRAMMAR_REGEX,      /* a regular expression that matches the whole response */
    TANDEM_GRAMMAR_TOOLS,      /* free text or JSON, mixed with valid tool calls; see below */
    TANDEM_GRAMMARS,
} tandem_grammar_kind;

/* A grammar that the response must match, whatever the sampling options. The response ends where the grammar ends, also
 * with ignore_stop_ids. If max_tokens is at least the length of the shortest match, a response that max_tokens ends
 * matches too. tandem_submit compiles the grammar, and fails if it cannot be enforced.
 *
 * The text of TANDEM_GRAMMAR_TOOLS is {"tools": [...], "answer": SCHEMA}. Every call names one of the tools. The
 * arguments of a tool with "strict": true match its schema; those of other tools are free. Without "answer", the text
 * outside calls is free. With it, the response is either JSON that matches SCHEMA or calls.
 *
 * TANDEM_GRAMMAR_TOOL_CALL and _CALLS enforce the schemas of all tools. A tool that is not strict takes any arguments
 * if its schema cannot be enforced. */
typedef struct {
    tandem_grammar_kind kind;
    const char         *text;
    size_t              n_text;     /* bytes; 0: `text` ends with a NUL */
    bool                in_thought; /* the prompt ends inside a thought, which the grammar does not cover */
    bool                may_think;  /* the response may begin with a thought */
    bool                may_call;   /* the response may be a free tool call instead */
} tandem_grammar;

typedef struct {
    const int32_t *ids; /* the prompt as tokens; NULL: use `text` */
    size_t         n_ids;
    const char    *text;   /* the prompt as text; a BOS token is added, control tokens are not parsed */
    size_t         n_text; /* bytes; 0: `text` ends with a NUL */

    /* Number of tokens at the end of the prompt with which the response begins: an earlier request wrote them.
     * Presence and frequency penalties and min_tokens count them as parts of the response. */
    size_t n_continued;

    int32_t max_tokens;      /* -1: the setting default_max_tokens; limited to the rest of the context */
    int32_t min_tokens;      /* no stop token ends the response before this length; 0: off; must be 0 with a grammar */
    bool    ignore_stop_ids; /* continue after the model's own stop tokens */
    const int32_t     *stop_ids; /* additional stop tokens */
    size_t             n_stop_ids;
    const char *const *stop; /* stop strings: up to 64, of 1 to 256 bytes each */
    size_t             n_stop;

    float    temp;     /* 0: greedy */
    float    top_p;    /* 0 to 1; 1: off */
    float    min_p;    /* 0 to 1; 0: off */
    int32_t  top_k;    /* 0: off */
    bool     has_seed; /* false: a seed is drawn, and reported in tandem_usage */
    uint64_t seed;
    int      choice; /* index among several responses to one prompt and seed; the prompt is counted for 0 only */
    float    repeat_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    const tandem_bias *bias;                                      /* up to TANDEM_MAX_BIAS, each token once */
    size_t             n_bias;
    int                logprobs;        /* likely tokens reported with each token, 0 to 20; -1: no log-probabilities */
    bool               prompt_logprobs; /* also for the prompt, which then uses no cached prefix; needs logprobs >= 0 */
    tandem_grammar     grammar;
    tandem_speculation spec;

    const char *id;           /* used in the routing log; NULL: a number */
    int         priority;     /* -100 to 100; higher is admitted first */
    double      time_limit_s; /* timeout from submission; 0: the setting request_timeout_ms */
    const char *tenant;       /* cached prefixes are shared within a tenant only; NULL is a tenant */
    const char *account;      /* accounts take turns in admission; NULL is an account */
    const char *kind;         /* requests of a kind share acceptance statistics; any name; NULL is a kind */

    /* Called on the engine thread with each token, except a stop token and one that completes a stop string. Returning
     * false ends the response with this token. It must be quick and must not call functions of this header. ctx must
     * live until the job has ended. */
    bool (*on_token)(void *ctx, int32_t token);
    void *on_token_ctx;
    bool  wake_on_prefill; /* also wake the reader after each chunk of the prompt */
    /* As tandem_options.wake, for this job only. ctx must live as long as the engine. */
    void (*wake)(void *ctx);
    void *wake_ctx;
} tandem_request;

/* Sets the defaults: sampling options from the model's files, automatic speculation. */
void tandem_request_init(const tandem *t, tandem_request *r);
/* Checks and queues a request, and compiles its grammar, which may take 100 ms. Fails with TANDEM_INPUT when it is
 * invalid, TANDEM_CONTEXT when its prompt is too long, TANDEM_TOO_LARGE or TANDEM_INPUT when its grammar cannot be
 * enforced, TANDEM_BUSY when the queue is full, and TANDEM_UNAVAILABLE when the engine shuts down or has no memory. The
 * caller frees *out with tandem_release. */
bool tandem_submit(tandem *t, const tandem_request *r, tandem_job **out, tandem_error *e);

/* --- responses ------------------------------------------------------------------------------------ */
typedef struct {
    int32_t id;      /* -1: no token */
    float   logprob; /* natural logarithm */
} tandem_logprob;

typedef struct {
    int32_t               id;
    bool                  is_stop;  /* a stop token: counted, but not part of the text */
    const tandem_logprob *logprobs; /* its own, then `logprobs` others; valid until release. NULL: not requested */
    tandem_method         drafted;  /* method that drafted it; TANDEM_SPEC_OFF: the model decided it without a draft */
} tandem_token;

/* Copies up to `max` new tokens to `out` and returns their number. Never blocks. Tokens that are not read do not delay
 * the engine. */
size_t tandem_poll(tandem_job *j, tandem_token *out, size_t max);
/* Blocks until there is new text, copies up to `cap` bytes (at least 4) of whole characters and returns their number.
 * The text has no stop token and ends before a stop string; no NUL is added. Returns 0 at the end of the text, and
 * always for a model without a tokenizer. Use either tandem_read or tandem_poll for a job, not both. */
size_t tandem_read(tandem_job *j, char *out, size_t cap);
/* Blocks until there are tokens to poll or the job has ended. Returns false after `seconds`; < 0: no timeout. */
bool tandem_wait(tandem_job *j, double seconds);
/* Ends a job within one step. Tokens produced before remain readable and are counted. May be called repeatedly. */
void tandem_cancel(tandem_job *j);
/* Cancels a job that has not ended, and frees it. j may be NULL. */
void tandem_release(tandem_job *j);
/* Returns the log-probabilities of the prompt: 1 + `logprobs` items for each token, as in tandem_token. The ids of the
 * first token are -1: it has none. They are valid until release. Returns NULL if not requested, or before the first
 * token of the response or the end of the job. */
const tandem_logprob *tandem_prompt_logprobs(const tandem_job *j);
/* Progress of a job. A time is 0 before its phase begins. */
typedef struct {
    int32_t prompt_tokens, cached_tokens; /* as in tandem_usage; cached_tokens: 0 before admission */
    int32_t prompt_done;                  /* prompt tokens that were cached or have run */
    int32_t completion_tokens;            /* produced, whether polled or not */
    double  prefill_s, decode_s;          /* admission to first token; since the first token */
} tandem_progress;
/* Fills *out. May be called at any time. */
void tandem_job_progress(const tandem_job *j, tandem_progress *out);
/* Returns true once the job has left the queue for a lane. A job that waits may still be refused: it then ends with
 * TANDEM_FINISH_ERROR. */
bool tandem_job_admitted(const tandem_job *j);

typedef enum {
    TANDEM_FINISH_NONE,        /* the job has not ended */
    TANDEM_FINISH_STOP,        /* a stop token */
    TANDEM_FINISH_STOP_STRING, /* a stop string, or on_token returned false */
    TANDEM_FINISH_LENGTH,      /* max_tokens, or the end of the context */
    TANDEM_FINISH_CANCELLED,
    TANDEM_FINISH_TIMEOUT, /* time_limit_s */
    TANDEM_FINISH_ERROR,   /* see `error`; tokens before it are counted */
    TANDEM_FINISHES,
} tandem_finish;
/* Returns "none", "stop", "stop_string", "length", "cancelled", "timeout" or "error"; NULL for another value. */
const char *tandem_finish_name(tandem_finish f);

/* Counters of speculative decoding, of one request or of many. */
typedef struct {
    int64_t rounds, plain_rounds; /* with and without draft tokens */
    int64_t drafted, accepted;    /* draft tokens */
    int64_t tokens;               /* committed by the rounds with draft tokens */
    /* Draft tokens verified and accepted, by position in the draft. */
    int64_t tried_at[TANDEM_MAX_DRAFT], right_at[TANDEM_MAX_DRAFT];
    int64_t rounds_by_method[TANDEM_SPEC_METHODS], drafted_by_method[TANDEM_SPEC_METHODS];
    int64_t accepted_by_method[TANDEM_SPEC_METHODS];
    double  draft_s, verify_s, commit_s; /* duration of the steps that the request was part of, by phase */
} tandem_spec_counts;

typedef struct {
    int32_t  prompt_tokens;                /* length of the prompt, also when it never ran */
    int32_t  cached_tokens;                /* prefix hit: prompt tokens that did not run again */
    int32_t  image_tokens, video_tokens;   /* prompt tokens that stand for pictures and for frames of videos */
    int32_t  completion_tokens;            /* the number that tandem_poll returns, stop tokens included */
    double   queue_s, prefill_s, decode_s; /* submission to admission, to first token, to end */
    uint64_t seed;                         /* the seed used */

    tandem_spec_counts spec;

    int         route;        /* tandem_method of the last round with a choice of methods */
    const char *route_reason; /* why it was chosen; "": there was no such round. Never NULL; static */
} tandem_usage;

typedef struct {
    tandem_finish finish;
    bool          context_full; /* TANDEM_FINISH_LENGTH because the context is full */
    tandem_error  error;        /* for TANDEM_FINISH_ERROR */
    tandem_usage  usage;
} tandem_result;
/* Returns NULL until the job has ended, then its result, valid until release. Tokens may remain to be polled. */
const tandem_result *tandem_job_result(const tandem_job *j);

/* --- text --------------------------------------------------------------------------------------- */
/* These functions need a tokenizer (tandem_info.has_tokenizer). */
typedef struct {
    int32_t *p;
    size_t   n;
} tandem_ids; /* replaced by the functions below; the caller frees it with tandem_ids_free */

/* Converts n bytes of text to tokens, without the token that begins a sequence. With `markers`, control tokens spelled
 * in the text become tokens. User-defined tokens such as <table> always do. */
bool tandem_tokenize(const tandem *t, const char *text, size_t n, bool markers, tandem_ids *out, tandem_error *e);
/* Converts n tokens to UTF-8 text. Like snprintf, writes what fits into cap bytes, with a NUL, and returns the length
 * of the whole text in bytes. With `markers`, control tokens are spelled out. */
size_t tandem_detokenize(const tandem *t, const int32_t *ids, size_t n, bool markers, char *out, size_t cap);

typedef struct {
    const char *role; /* "system", "developer", "user", "assistant" */
    const char *content;
} tandem_message;
/* Converts a conversation of n messages to a prompt in the model's own format, for tandem_request.ids. think: asks the
 * model to think first. Sets *in_thought, unless it is NULL, to whether the prompt ends inside a thought. */
bool tandem_chat_prompt(const tandem *t, const tandem_message *messages, size_t n, bool think, tandem_ids *out,
                        bool *in_thought, tandem_error *e);
void tandem_ids_free(tandem_ids *ids); /* frees the tokens; *ids is then empty */

/* --- sessions ----------------------------------------------------------------------------------- */
/* A session is a text with its state: K/V, recurrent states, the K/V of a DFlash drafter, the sampling options. It is
 * saved to a file of tandem_options.session_dir, and restored to the prefix cache of this or another engine with the
 * same model files, K/V types and device. The next request for the text then runs only the tokens after it, with the
 * same result as if the engine had never ended, and drafts in its first round. These functions block; the engine copies
 * pages between its steps. Without a session_dir they fail with TANDEM_UNAVAILABLE. */
enum { TANDEM_SESSION_NAME = 64 };
typedef struct {
    const char *owner;  /* the sessions of an owner do not exist for others; NULL is an owner */
    const char *name;   /* 1 to 64 letters, digits and . _ -; does not begin with a point */
    const char *tenant; /* as in tandem_request: the cached prefixes to save, or to add to */
    /* Used by tandem_session_save only. */
    const int32_t        *ids; /* the text: a prompt and the tokens of its response */
    size_t                n_ids;
    int32_t               n_prompt; /* length of the prompt in `ids` */
    const tandem_request *request;  /* its sampling options are saved; NULL: none */
    const char           *note;     /* bytes of the caller, returned by tandem_session_restore; NULL: none */
    size_t                n_note;
} tandem_session;

typedef struct {
    char        name[TANDEM_SESSION_NAME + 1];
    int32_t     tokens;   /* length of the text */
    int32_t     reusable; /* tokens with saved state; after a restore, tokens that the next request does not run */
    const char *draft;    /* K/V of a drafter: "stored", "restored", "rebuilt" (another drafter), "none"; static */
    uint64_t    bytes;    /* size of the file */
    int64_t     used;     /* when it was last saved or restored, in seconds since 1970 */
} tandem_session_info;

/* The content of a session; the options as in tandem_request. */
typedef struct {
    tandem_ids ids;
    int32_t    n_prompt;
    float      temp, top_p, min_p;
    int32_t    top_k;
    bool       has_seed;
    uint64_t   seed;
    float      repeat_penalty, presence_penalty, frequency_penalty;
    char      *note;
    size_t     n_note;
} tandem_session_content;

/* Saves a text; replaces the owner's session of this name. A crash leaves the old file or the new one. Saves the state
 * of the part of the text that is in the prefix cache. Fails with TANDEM_TOO_LARGE over the settings session_max_count
 * and session_max_bytes. */
bool tandem_session_save(tandem *t, const tandem_session *s, tandem_session_info *out, tandem_error *e);
/* Restores a session. Fails with TANDEM_NOT_FOUND when the owner has none of this name, and with TANDEM_FORMAT when the
 * file is damaged, of another format or of another model. The caller frees *content with tandem_session_content_free;
 * it is empty on failure. */
bool tandem_session_restore(tandem *t, const tandem_session *s, tandem_session_content *content,
                            tandem_session_info *out, tandem_error *e);
void tandem_session_content_free(tandem_session_content *c);
bool tandem_session_delete(tandem *t, const char *owner, const char *name, tandem_error *e);
/* Fills out[0 .. max - 1] and returns the number of the owner's sessions, which may be larger. */
size_t tandem_sessions(tandem *t, const char *owner, tandem_session_info *out, size_t max);

/* --- settings and statistics ----------------------------------------------------------------------- */
/* Changes a setting of the running engine and writes it to settings_path, if set. It applies from the next step or
 * request on, or from the next tandem_open on where docs/routing.md says so. Without settings_path, the call fails for
 * settings of the latter kind and for settings that the environment overrides. */
bool tandem_set(tandem *t, const char *name, const char *value, tandem_error *e);
/* Writes all settings as one JSON object. Like snprintf, writes what fits into cap bytes, with a NUL, and returns the
 * length of the whole text. */
size_t tandem_settings(const tandem *t, char *out, size_t cap);

typedef enum {
    TANDEM_DRAFTER_OPEN,   /* its weights are loaded */
    TANDEM_DRAFTER_LAZY,   /* to be opened when a request first uses it */
    TANDEM_DRAFTER_PARKED, /* its memory is freed */
    TANDEM_DRAFTER_FAILED, /* see `problem` */
} tandem_drafter_state;
enum { TANDEM_MAX_DRAFTERS = 2 };
typedef struct {
    tandem_method        method; /* TANDEM_SPEC_DFLASH, also used for trees, or TANDEM_SPEC_MTP */
    tandem_drafter_state state;
    const char          *name, *path, *shown;    /* as in tandem_info; they live as long as the engine */
    const char          *quantisation;           /* type of most weights; "" if never opened; static */
    uint64_t             weight_bytes;           /* 0 if never opened */
    int                  max_draft, trained_ctx; /* in tokens; 0: unknown */
    char                 fingerprint[96];        /* as in tandem_info; "": not computed */
    char                 problem[512];           /* the last error; "": none */
} tandem_drafter_info;
/* Fills `out` and returns the number of drafters, at most TANDEM_MAX_DRAFTERS. */
int tandem_drafters(const tandem *t, tandem_drafter_info out[TANDEM_MAX_DRAFTERS]);
/* Frees the memory of a drafter between two steps. Requests continue without it, with the same text. Does nothing, with
 * success, when it is parked already. Fails when there is no such drafter. */
bool tandem_park_drafter(tandem *t, tandem_method m, tandem_error *e);
/* Opens a parked drafter, or one that could not be opened, between two steps. Returns when it is open, or false. */
bool tandem_unpark_drafter(tandem *t, tandem_method m, tandem_error *e);

/* Tiers below the prefix cache: host memory and disk together, unless noted. */
typedef struct {
    int64_t  entries;                             /* on the disk */
    uint64_t bytes, parked_bytes;                 /* on the disk; in host memory */
    int64_t  hits, misses;                        /* prompts of which something was found, or nothing */
    int64_t  skipped;                             /* misses because computing is faster than reading */
    int64_t  read_bytes, written_bytes;           /* bytes of files */
    int64_t  written, evicted, removed, failures; /* files: written, removed for room, or as damaged; failed writes */
} tandem_disk_stats;

/* A class of K/V memory: layers whose pages have one size. */
typedef struct {
    bool     is_state, is_draft; /* states of recurrent layers instead of pages; memory of a drafter */
    int      window;             /* positions that a row of these layers sees; 0: all */
    uint64_t held_bytes;         /* part of the cache that the class has taken */
    uint64_t used_bytes, pinned_bytes, reserved_bytes; /* in use by requests or the prefix cache; by running requests;
                                                        * reserved for them */
} tandem_kv_class;

enum { TANDEM_STEP_BUCKETS = 20, TANDEM_MAX_ROUTES = 24, TANDEM_MAX_KV_CLASSES = 6 };
typedef struct {
    int     running, queued;              /* requests now */
    int64_t submitted, refused, admitted; /* requests: put into the queue; not, because it was full or closed; run */
    int64_t finished[TANDEM_FINISHES];    /* requests by finish reason */
    int64_t prompt_tokens, cached_tokens, completion_tokens; /* admitted requests only */

    int64_t steps, failed_steps, rows, prompt_rows; /* rows: without draft tokens */
    int64_t prompt_steps;                           /* steps with prompt rows */
    double  step_s;                                 /* duration of all steps */
    double  busy_s;                                 /* age of the current step or the work between steps; 0: idle */
    int64_t step_bucket[TANDEM_STEP_BUCKETS]; /* steps of 2^(i-1)/8 to 2^i/8 ms; [0]: shorter ones; the last: longer */

    double  mask_s;                           /* CPU time of grammar masks */
    int64_t mask_bucket[TANDEM_STEP_BUCKETS]; /* steps with masks by this time, as step_bucket */

    uint64_t kv_bytes;                           /* size of the K/V cache */
    uint64_t kv_pinned_bytes, kv_reserved_bytes; /* parts that running requests use; that are reserved for them */
    uint64_t kv_cached_bytes;                    /* part in the prefix cache, also if running requests use it */
    tandem_kv_class   kv_class[TANDEM_MAX_KV_CLASSES];
    int               n_kv_classes;
    int64_t           prefix_hits, prefix_misses; /* lookups in the prefix cache */
    int64_t           prefix_evicted;             /* pages */
    int64_t           kv_wiped;                   /* pages that wipe_pages overwrote */
    tandem_disk_stats disk;

    int      graphs;          /* recorded steps and drafts of a GPU */
    uint64_t graph_bytes;     /* device memory that they take */
    int64_t  graphs_recorded; /* since the start; requests add none */

    tandem_spec_counts spec;
    int64_t            routes[TANDEM_MAX_ROUTES]; /* rounds of lanes by reason; see tandem_route_name */
} tandem_stats;
/* Fills *out. */
void tandem_get_stats(const tandem *t, tandem_stats *out);
/* Returns the reason that routes[i] counts; NULL if there is none. */
const char *tandem_route_name(int i);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
