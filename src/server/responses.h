/* server/responses.h - the body of POST /v1/responses as a conversation.
 *
 * Items that the model made in one turn (a thought, a text, calls) are one message of the chat; system texts at the start are one
 * as well. Nothing is stored between requests: a body brings all of its conversation. Items of types that are for other
 * servers are passed over, as are tools of such types.
 *
 * A namespace's tools are shown to the model as "space.name"; a custom tool as a function of one text, `input`. */
#ifndef TANDEM_SERVER_RESPONSES_H
#define TANDEM_SERVER_RESPONSES_H
#include "server/request.h"

/* A tool as the client knows it. */
struct response_tool {
    str  shown; /* to the model */
    str  name, space;
    bool custom; /* its argument is a text */
};

#define RESPONSES_SEAL "thought:" /* what reasoning.encrypted_content begins with, if it is ours */

/* Fields that other endpoints have in another form take that: before anything looks at them. */
bool responses_translate(server_request *r, server_error *why);
/* Fills the chat, and the table of tools. */
bool                 responses_read(server_request *r, server_error *why);
const response_tool *responses_tool(const server_request *r, str shown); /* NULL: there is no such tool */
bool                 responses_includes(const server_request *r, const char *what);
#endif
