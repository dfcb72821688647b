/* server/ollama.h - Ollama's API: POST /api/chat and /api/generate, and the endpoints that describe the model.
 *
 * A body is converted to the equivalent body of an OpenAI request before its fields are read, so that prompts,
 * sampling, formats and the prefix cache are the same for all APIs.
 *
 *      messages           messages; thinking becomes reasoning_content; a tool message gets the id of its call
 *      prompt, system     messages of a user and a system; with raw: the prompt of a text completion
 *      format             response_format
 *      think              enable_thinking; default true, as in Ollama for a model that can think
 *      options            the equivalent fields; num_ctx limits this request only
 *
 * reply_ollama.c writes the replies: lines of JSON. Handlers of routes are called on the I/O thread, all other
 * functions on any thread, with one request each. */
#ifndef TANDEM_SERVER_OLLAMA_H
#define TANDEM_SERVER_OLLAMA_H
#include "chat/chat.h"
#include "server/errors.h"

typedef struct server         server;
typedef struct server_call    server_call;
typedef struct tandem         tandem;
typedef struct server_request server_request;

/* Data of an Ollama request that has no field in the converted body. Zeroed: the request is of another API. */
typedef struct {
    str         model;    /* as the client spells it */
    bool        is_chat;  /* /api/chat, else /api/generate */
    const char *loaded;   /* "load" or "unload", the reply's done_reason: there is no prompt. NULL: there is one */
    bool        truncate; /* drop the oldest turns of a conversation that is longer than the context */
    int         n_ctx;    /* limit of this request; 0: the model's context */
} ollama_call;

/* The version of Ollama that is reported; clients parse three integers. */
#define OLLAMA_VERSION "0.12.0"

/* Appends the name with its tag: "nano" becomes "nano:latest". */
void ollama_put_name(buf *out, str name);
/* Checks that the model of a body, `model` or its old spelling `name`, is served; fails with 400 or 404. Sets *out
 * to the name as the client spells it. */
bool ollama_check_model(const server_request *r, const json_value *body, str *out, server_error *why);
/* Replaces *body, the body of r, by the converted one, in the memory of r. Sets r->ollama, and adds to r->endpoint the
 * endpoint that the new body is for. Fails with 400, 404 or 503. */
bool ollama_translate(server_request *r, const json_value **body, server_error *why);
/* Returns how many turns a conversation has: messages from a user's to the next user's, after the system's. */
size_t ollama_turns(const chat *c);
/* Sets the messages of *c to those of `whole` without its oldest n turns, in the arena of `whole`; leaves other
 * members. Fails with 503 when the arena is full. */
bool ollama_leave_out(chat *c, const chat *whole, size_t n, server_error *why);
/* Limits max_tokens of a request, whose prompt is known, to the room in its num_ctx. Does nothing for other APIs. */
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
