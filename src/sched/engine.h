/* sched/engine.h - the functions on a `tandem` for the server and the command line, in addition to include/tandem.h.
 *
 * They use types of lower layers (tok, chat_options, settings, err), which the public header does not show. Pointers
 * that they return stay valid until tandem_close, except grammars, which the caller drops with
 * response_grammar_drop. Any thread may call them while the engine is open. */
#ifndef TANDEM_SCHED_ENGINE_H
#define TANDEM_SCHED_ENGINE_H
#include "chat/chat.h"
#include "gguf/checkpoint.h"
#include "media/prompt.h"
#include "sched/grammar_cache.h"
#include "sched/settings.h"
#include "spec/counts.h"
#include "tok/tok.h"

#include "tandem.h"

#include <stdatomic.h>

typedef struct drafter drafter; /* model/drafter.h */

/* For measurements. Both are called on the engine thread, or while the engine is opened; NULL: not wanted. */
typedef struct {
    drafter *(*wrap)(void *ctx, drafter *d);       /* as spec_draft_source.wrap */
    void (*ended)(void *ctx, const tandem_job *j); /* with each job that has ended, before its reader learns it */
    void *ctx;
} engine_watch;

/* Options that tandem_options does not have; all may be 0. They are borrowed during the call. */
typedef struct {
    const checkpoint *files;    /* the model's files; NULL: opened there */
    const char       *need_tok; /* prefix of the error when the model has no tokenizer; NULL: it may have none */
    /* Settings of the engine before this one: those that were changed while it ran are kept. The caller promises to
     * pass this engine's settings to the next one, too. NULL: settings are not carried over. */
    const settings *changed;
    engine_watch    watch; /* kept */
} engine_extra;
/* Opens an engine as tandem_open does. x is not NULL. Sets *out to NULL on failure. */
bool engine_open(tandem **out, const tandem_options *o, const engine_extra *x, err *e);

/* --- what was opened ------------------------------------------------------------------------------ */
/* Returns the properties that are fixed when the engine is opened. Only tandem_get_info sets kv_bytes, has_dflash and
 * has_mtp. */
const tandem_info *engine_info(const tandem *t);
const tok         *engine_tok(const tandem *t);      /* NULL: the model has no tokenizer */
str                engine_template(const tandem *t); /* the text of the model's chat template; empty: it has none */
/* Copies the prompt format. Fails when the model's chat template cannot be read; *out is set also then. */
bool               engine_format(const tandem *t, chat_options *out, err *e);
const media_rules *engine_media(const tandem *t);    /* the pictures that the model accepts; NULL: none */
int                engine_max_span(const tandem *t); /* as sched_max_span */
enum { ENGINE_FINGERPRINT_MAX = 24 };
/* Writes "fp_" and 16 hex digits computed from the version of tandem, the model's fingerprint (its path where
 * fingerprints are off), the device, the K/V types, the context length and the current settings. Equal requests with
 * equal seeds get equal texts from engines with equal fingerprints. */
void engine_fingerprint(const tandem *t, char out[ENGINE_FINGERPRINT_MAX]);
/* Returns the context length in tokens that the DFlash drafter among all[0 .. n - 1] was trained with; 0: there is
 * none, or it is not known. */
int engine_trained_ctx(const tandem_drafter_info *all, int n);

/* The files of the model or of a drafter that has not failed. */
typedef struct {
    const char            *role; /* "model", "drafter" */
    const char            *path;
    const char            *name;  /* shown instead of the path */
    const checkpoint_list *files; /* NULL: not known, because the drafter was never opened */
} engine_part;
enum { ENGINE_MAX_PARTS = 1 + TANDEM_MAX_DRAFTERS };
int engine_parts(const tandem *t, engine_part out[ENGINE_MAX_PARTS]); /* the model first; returns their number */

/* --- requests ------------------------------------------------------------------------------------- */
/* Submits as tandem_submit does. media: the pictures of r->ids, of which the job takes a reference; NULL: none. Equal
 * prompts must come with equal pictures: the engine compares ids that media_prompt_mark changed. compiled: the compiled
 * grammar of the request, which the caller still drops; NULL: the request has none, or it is compiled here. */
bool engine_submit(tandem *t, const tandem_request *r, media_prompt *media, response_grammar *compiled,
                   tandem_job **out, err *e);
/* Finds or compiles the grammar of a request that has one. The caller drops it. Errors as grammar_cache_take.
 * Compiling may take seconds: *cancel, unless NULL, ends it when it becomes true. */
bool engine_compile(const tandem *t, const tandem_request *r, const atomic_bool *cancel, response_grammar **out,
                    err *e);
/* Returns the grammar of the request if it is in the cache of compiled ones, else NULL. The caller drops it. */
response_grammar *engine_find_compiled(const tandem *t, const tandem_request *r);

/* Applies the limits of tandem_options.spec. Submitting a request does the same. */
void engine_limit_speculation(const tandem *t, tandem_speculation *s);

/* Appends the prompt and the response of a job that has ended; *n_prompt: length of the prompt without n_continued
 * tokens. Check out->failed. */
void engine_job_text(const tandem_job *j, tok_ids *out, int32_t *n_prompt);
/* Returns n_continued of tandem_request for a prompt that is the whole text of a session, so that its response goes on;
 * 0 for another prompt. n_prompt: length of the prompt in the text. */
size_t engine_continued(const tandem_ids *text, int32_t n_prompt, const int32_t *prompt, size_t n);
/* A round of a job: `drafted` draft tokens of a method were verified and `accepted` of them accepted. */
typedef struct {
    tandem_method method; /* TANDEM_SPEC_OFF: plain decoding */
    int           drafted, accepted;
} engine_round;
enum { ENGINE_ROUNDS_MAX = 32 };
/* Copies the last rounds of a job, the oldest first: up to max and ENGINE_ROUNDS_MAX. Returns their number, and sets
 * *n_rounds to that of all rounds so far. */
int engine_job_rounds(const tandem_job *j, engine_round *out, int max, int64_t *n_rounds);
/* Checks the name of a session: ERR_INPUT. */
bool engine_session_name(const char *name, err *e);

/* --- settings and decisions ----------------------------------------------------------------------- */
void engine_get_settings(const tandem *t, settings *out);
/* Changes the settings that are members of the object, all or none, and in the settings file if there is one. null
 * restores the default. Errors as settings_change. */
bool engine_change_settings(tandem *t, const json_value *members, err *e);
/* Copies the values of `names`, bits as settings_bit gives them, from settings that were changed elsewhere. */
void engine_take_settings(tandem *t, const settings *from, uint64_t names);
enum { ENGINE_ROUTING_MAX = 1024 }; /* number of routing records that are kept in memory */
/* Writes an array of the newest routing records as JSON objects, newest first: at most n, of all requests or (unless
 * NULL) of the one with this id. The array is empty when there is no memory for it. */
void engine_put_routing(const tandem *t, const char *request_id, int n, json_writer *w);
/* Writes the measured costs of steps and drafts as a JSON object (docs/admin.md). Blocks until the current step ends.
 * ERR_UNAVAILABLE: no memory, or shutting down. */
bool engine_put_costs(tandem *t, json_writer *w, err *e);
/* Returns "policy" for the name of a route_reason that depends on other requests, else the name itself. */
const char *engine_public_reason(const char *reason);
#endif
