/* server/request.h - the body of a completion request, read and made ready for the engine: prompt and options.
 *
 * Reading is slow (parsing, rendering, tokenising) and touches nothing but the request and what does not change of the
 * engine: it runs on a worker. All memory of a request is its own and goes with it. */
#ifndef TANDEM_SERVER_REQUEST_H
#define TANDEM_SERVER_REQUEST_H
#include "sched/engine.h"
#include "server/fields.h"
#include "server/ollama.h"
#include "server/record.h"
#include "tok/stop.h"

typedef struct {
    const int32_t *ids;
    size_t         n;
    str            text; /* that it was given as; s NULL: as ids */
} server_prompt;

typedef struct response_tool response_tool;

enum { REQUEST_WARNING_MAX = 1023 }; /* bytes of all warnings of a request */

struct server_request {
    int                where;  /* one of the endpoints of fields.h */
    const char        *served; /* the model's name, which Ollama's clients must give, or one of its aliases */
    const char *const *aliases;
    size_t             n_aliases;
    ollama_call        ollama;   /* of a request of Ollama's; model.n 0: it is not one */
    bool               markers;  /* markers in the text of a prompt are tokens, not text */
    bool               sees_all; /* its client may be told of the whole server's load */
    buf                body;
    arena              mem;
    server_fields      f;

    const json_value  *root; /* the body's tree */
    chat              *chat; /* NULL: text */
    chat_prompt        rendered;
    const chat_format *format; /* of the answer */
    bool               in_thought, thinking, one_call;
    bool               no_calls; /* tool_choice none: not even where the model would */
    const char        *held_by;  /* the field that ask.grammar comes from; NULL: the answer is free */
    response_tool     *tool;     /* of a response (responses.h), as are the next two */
    size_t             n_tools;
    json_value        *named_choice; /* the name in tool_choice, if there is one */
    server_prompt     *prompt;
    int                n_prompts, n_choices; /* choice i answers prompt i / n */

    str         stop[STOP_MAX_STRINGS];
    const char *stop_text[STOP_MAX_STRINGS];
    int         n_stop;
    const char *tenant; /* NULL: everybody's */
    /* The compiled ask.grammar, held until all answers are submitted. NULL: none, or not compiled yet. */
    answer_form *form;
    char         fingerprint[ENGINE_FINGERPRINT_MAX]; /* system_fingerprint, of a chat or text completion */
    char         warning[REQUEST_WARNING_MAX + 1];    /* of request_warn; empty: none */
    /* For all choices; the prompt, the number of the choice and what looks at its tokens are still to be set. */
    tandem_request ask;
};

/* Adds a sentence to the reply's X-Tandem-Warning header: a part of the request that is served differently than it was
 * asked for. Sentences are joined by "; "; characters that a header cannot hold become '?'. The last one is cut where the
 * header is full. Called while the request is read or compiled, before its first byte is sent. */
void request_warn(server_request *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Takes the body's bytes. */
void request_init(server_request *r, int where, buf *body);
/* Says how the model is called; all names are borrowed. */
void request_name(server_request *r, const char *served, const char *const *aliases, size_t n_aliases);
/* Gives its memory back: all that is left are the numbers of its fields. Any number of times. */
void   request_forget(server_request *r);
size_t request_bytes(const server_request *r); /* that it holds */
/* That log-probabilities of all its answers may take, about: in the engine, and as text where the reply is one object. */
size_t request_logprob_bytes(const server_request *r, const tandem *t);
/* Returns how many bytes, about, the reply takes that repeats the prompt and the grammar in each answer. */
size_t request_repeat_bytes(const server_request *r);
/* Returns whether it is a text completion, not a chat. */
static inline bool request_is_text(const server_request *r) { return r->where & FIELD_TEXTS; }
/* The field that a prompt comes from. */
const char *request_param(const server_request *r);
/* The fields alone, for endpoints that answer without the engine. */
bool request_open(server_request *r, const tandem *t, server_error *why);
/* A chat's prompt as text, with its markers written out: appended to out. */
bool request_render(server_request *r, const tandem *t, buf *out, server_error *why);
bool request_count(server_request *r, const tandem *t, size_t *n, server_error *why); /* tokens of a chat's prompt */
/* response_format and tool_choice as a chat request has them, either may be NULL; the chat and one_call are set. Reads the
 * fields json_schema and grammar too. */
bool request_constrain(server_request *r, const json_value *response_format, const json_value *tool_choice,
                       server_error *why);
/* constrain.c, for request.c: looks for its grammar among the compiled ones. */
void request_find_form(server_request *r, const tandem *t, bool thinking);
/* Whether the request was read and its grammar was not found compiled. */
bool request_needs_compiling(const server_request *r);
/* Compiles its grammar, on the worker for it. cancel: set when the client has left. */
bool request_compile(server_request *r, const tandem *t, const atomic_bool *cancel, server_error *why);
void request_drop_form(server_request *r); /* all answers are submitted, or none will be */
/* key: the name of the key that the request came with, or empty. */
bool request_read(server_request *r, const tandem *t, str key, server_error *why);
#endif
