/* server/request.h - reads the body of a completion request and makes a request for the engine: prompts and options.
 *
 * Reading (parsing, rendering, tokenising) is slow and runs on a worker. It uses only the request and constant data
 * of the engine. A request owns all its memory. One thread at a time uses it.
 *
 *      request_init, request_name ---> request_read (media_load, request_read) (request_compile) ---> the engine
 *                                                                                                        |
 *                                                                                                 request_forget
 *
 * Functions with a server_error return false and set it: 400 with the field, 413 or 503. */
#ifndef TANDEM_SERVER_REQUEST_H
#define TANDEM_SERVER_REQUEST_H
#include "sched/engine.h"
#include "server/fields.h"
#include "server/ollama.h"
#include "server/record.h"
#include "tok/stop.h"

#include <stdatomic.h>

typedef struct {
    const int32_t *ids;
    size_t         n;
    str            text; /* the text that it was given as; s NULL: token ids */
} server_prompt;

typedef struct response_tool response_tool;

/* The pictures and videos of a request (server/media.h). */
typedef struct {
    chat_part    **part; /* [n] parts of the chat */
    size_t         n;
    decoded       *pixels; /* [n], of which the first n_pixels may be set */
    size_t         n_pixels;
    bool           loaded;
    media_prompt  *prompt; /* the pictures of the prompt; NULL: none */
    atomic_size_t *held;   /* counts held_bytes; NULL: nothing is counted */
    size_t         held_bytes;
} request_media;

enum { REQUEST_WARNING_MAX = 1023 }; /* max bytes of all warnings of a request */

struct server_request {
    int                endpoint; /* endpoint: bits of fields.h; a converted Ollama body has those of both endpoints */
    const char        *served;   /* name of the model; Ollama's clients must send it or an alias */
    const char *const *aliases;
    size_t             n_aliases;
    ollama_call        ollama;   /* model.n 0: the request is of another API */
    bool               markers;  /* markers in the text of a prompt become control tokens */
    bool               sees_all; /* as in access_grant */
    buf                body;     /* as received; f, chat and ask borrow from it */
    arena              mem;      /* the parsed body and all that is made of it */
    server_fields      f;
    tokenize_fields    tokenize; /* used instead of f by /tokenize and /detokenize */

    const json_value  *root;                 /* the parsed body */
    chat              *chat;                 /* NULL: text */
    chat_prompt        rendered;             /* the prompt of a chat */
    const chat_format *format;               /* chat format, for parsing the response */
    bool               in_thought, thinking; /* as in chat_parse_options */
    bool               one_call;             /* the response ends with its first call */
    bool               no_calls;             /* tool_choice none: the marker of a call is banned */
    const char        *grammar_field;        /* name of the field that ask.grammar comes from; NULL: no grammar */
    response_tool     *tool;                 /* /v1/responses (responses.h), like the next two */
    size_t             n_tools;
    json_value        *named_choice; /* the name in tool_choice; NULL: none */
    request_media      media;
    server_prompt     *prompt;               /* [n_prompts] */
    int                n_prompts, n_choices; /* choice i answers prompt i / f.n */

    str         stop[STOP_MAX_STRINGS];      /* stop strings, */
    const char *stop_text[STOP_MAX_STRINGS]; /* and the same with a NUL */
    int         n_stop;
    const char *tenant; /* tenant of its prefixes (ask.tenant); NULL: shared with all requests that have none */
    /* The compiled ask.grammar, held until all choices are submitted. NULL: none, or not compiled yet. */
    response_grammar *compiled;
    char              session[TANDEM_SESSION_NAME + 1];    /* name of its conversation; empty: none */
    char              fingerprint[ENGINE_FINGERPRINT_MAX]; /* system_fingerprint of a chat or text completion */
    char              warning[REQUEST_WARNING_MAX + 1];    /* written by request_warn; empty: none */
    /* For all choices. The prompt, the number of the choice and on_token are set for each. */
    tandem_request ask;
};

/* Adds a sentence to the header X-Tandem-Warning: a part of the request has no effect or another one. Sentences are
 * joined by "; ", and characters that a header cannot hold become '?'. A sentence that does not fit is cut. Called
 * before the first byte of the reply is sent. */
void request_warn(server_request *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Sets all fields. Takes ownership of the bytes of *body, which is empty afterwards. endpoint: one of fields.h. */
void request_init(server_request *r, int endpoint, buf *body);
/* Sets the names of the model, which are borrowed. */
void request_name(server_request *r, const char *served, const char *const *aliases, size_t n_aliases);
/* Frees its memory; numbers in its fields stay valid. May be called again. */
void   request_forget(server_request *r);
size_t request_bytes(const server_request *r); /* returns the memory that it uses */
/* Returns about how many bytes its log-probabilities may take, in the engine and as text of the reply. Call it after
 * request_read. */
size_t request_logprob_bytes(const server_request *r, const tandem *t);
/* Returns about how many bytes the reply uses to repeat the prompt and the grammar in each choice; 0 if it does not. */
size_t request_repeat_bytes(const server_request *r);
/* Returns whether it is a text completion, not a chat. */
static inline bool request_is_text(const server_request *r) { return r->endpoint & FIELD_TEXTS; }
/* Returns the name of the field with the prompt, in the client's API. A constant. */
const char *request_param(const server_request *r);
/* Returns whether the request has images or videos that are not loaded. */
static inline bool request_needs_media(const server_request *r) { return r->media.n && !r->media.loaded; }
/* The next three and request_read parse the body: call one of them, once. request_count and request_read return true
 * before the prompt is made if request_needs_media; call them again after media_load. */
/* Reads only the fields, for endpoints that do not use the engine. */
bool request_open(server_request *r, const tandem *t, server_error *why);
/* Appends the prompt of a chat as text, with its markers. */
bool request_render(server_request *r, const tandem *t, buf *out, server_error *why);
/* Counts the tokens of a chat's prompt. */
bool request_count(server_request *r, const tandem *t, size_t *n, server_error *why);
/* Sets ask.grammar from response_format and tool_choice (either may be NULL), json_schema, grammar and similar
 * fields. The chat and one_call must be set. */
bool request_constrain(server_request *r, const json_value *response_format, const json_value *tool_choice,
                       server_error *why);
/* Sets `compiled` if its grammar is among the compiled ones. thinking: the response may begin with a thought. */
void request_find_grammar(server_request *r, const tandem *t, bool thinking);
/* Returns whether the request has a grammar that is not compiled. */
bool request_needs_compiling(const server_request *r);
/* Compiles its grammar and sets `compiled`. Runs on the worker for grammars. cancel: set when the client has left. */
bool request_compile(server_request *r, const tandem *t, const atomic_bool *cancel, server_error *why);
void request_drop_grammar(server_request *r); /* releases the compiled grammar, if there is one */
/* Returns the name of the tenant of a key and a salt, which the caller frees with mem_free; NULL: both are empty, or
 * there is no memory. */
char *request_tenant(str key, str salt);
/* Reads the whole request: sets the prompts and `ask`, except what each choice sets. key: name of the API key of the
 * request, with a NUL; may be empty. `ask` borrows it. */
bool request_read(server_request *r, const tandem *t, str key, server_error *why);
#endif
