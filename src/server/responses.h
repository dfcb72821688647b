/* server/responses.h - converts the body of POST /v1/responses to a chat.
 *
 * Items of one model turn (reasoning, text, calls) become one message, and so do system texts at the start. Nothing is
 * stored between requests: a body contains the whole conversation. Items and tools of unknown types are ignored.
 *
 * A tool in a namespace is shown to the model as "space.name", a custom tool as a function with one string, `input`.
 *
 * Any thread, with one request each. All memory is the request's. */
#ifndef TANDEM_SERVER_RESPONSES_H
#define TANDEM_SERVER_RESPONSES_H
#include "server/request.h"

/* A tool under the names of the client. */
struct response_tool {
    str  shown;       /* name in the prompt */
    str  name, space; /* space: its namespace; empty: none */
    bool custom;      /* its argument is a string, not JSON */
};

#define RESPONSES_SEAL "thought:" /* prefix of our reasoning.encrypted_content */

/* Converts text.format and tool_choice in r->f to those of chat completions, and refuses fields that need stored
 * responses. Called right after fields_read. */
bool responses_translate(server_request *r, server_error *why);
/* Builds r->chat and the table of tools, r->tool. */
bool                 responses_read(server_request *r, server_error *why);
const response_tool *responses_tool(const server_request *r, str shown); /* NULL: there is no such tool */
/* Returns whether the list `include` of the request has this item. */
bool responses_includes(const server_request *r, const char *what);
#endif
