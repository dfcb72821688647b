/* server/ollama.h - Ollama's API: POST /api/chat and /api/generate, and the endpoints that describe the model.
 *
 * A body of Ollama's is rewritten as the body of an OpenAI request that means the same, before its fields are read:
 * prompts, sampling, formats and the cache are the same for all APIs.
 *
 *      messages           messages; thinking becomes reasoning_content; a tool's answer gets its call's id
 *      prompt, system     messages of a user and a system; with raw, the prompt of a text completion
 *      format             response_format
 *      think              enable_thinking; absent means true, as it does in Ollama for a model that can think
 *      options            the fields of the same meaning; num_ctx limits this request, and loads nothing anew
 *
 * Replies are reply_ollama.c's: lines of JSON. */
#ifndef TANDEM_SERVER_OLLAMA_H
#define TANDEM_SERVER_OLLAMA_H
#include "chat/chat.h"
#include "server/errors.h"

typedef struct server         server;
typedef struct server_call    server_call;
typedef struct tandem         tandem;
typedef struct server_request server_request;

/* A request of Ollama's, in addition to the OpenAI request that it becomes. Zeroed: it is not one. */
typedef struct {
    str         model;    /* as the client spells it */
    bool        is_chat;  /* /api/chat, else /api/generate */
    const char *loaded;   /* "load" or "unload", the reply's done_reason: there is no prompt. NULL: there is one */
    bool        truncate; /* drop the oldest turns of a conversation that is longer than the context */
    int         n_ctx;    /* of this request; 0: the model's */
} ollama_call;

/* The version of Ollama whose API this is: clients read three integers. */
#define OLLAMA_VERSION "0.12.0"

/* Appends the name with its tag: "nano" becomes "nano:latest". */
void ollama_put_name(buf *out, str name);
/* Checks that the model of a body, `model` or its old spelling `name`, is the one that is served: or 400, 404. Sets
 * *out to the client's spelling. */
bool ollama_check_model(const server_request *r, const json_value *body, str *out, server_error *why);
/* Rewrites the body *body of r, sets r->ollama, and adds to r->where the endpoint that the new body is for. */
bool ollama_translate(server_request *r, const json_value **body, server_error *why);
/* Returns how many turns a conversation has: messages from a user's to the next user's, after the system's. */
size_t ollama_turns(const chat *c);
/* Makes *c the conversation `whole` without its oldest n turns. */
bool ollama_leave_out(chat *c, const chat *whole, size_t n, server_error *why);
/* Holds the answer of a request that was read to its num_ctx. */
void ollama_limit(server_request *r, const tandem *t);
/* Appends the reply to a request without a prompt. */
void ollama_put_loaded(buf *out, const ollama_call *c);

/* Handlers of routes (ollama_models.c). */
void ollama_version(server *s, server_call *c);
void ollama_tags(server *s, server_call *c);
void ollama_ps(server *s, server_call *c);
void ollama_no_files(server *s, server_call *c); /* create, copy, push, delete, blobs */
/* Append the replies to POST /api/show and /api/pull, as a text_fn of text.h. */
bool ollama_show(server_request *r, const tandem *t, buf *out, server_error *why);
bool ollama_pull(server_request *r, const tandem *t, buf *out, server_error *why);
#endif
