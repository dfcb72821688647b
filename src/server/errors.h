/* server/errors.h - the error response of a failed request: a status and a body.
 *
 *      {"error":{"message":"...","type":"invalid_request_error","param":"temperature","code":null}}
 *
 * Clients match regular expressions against the message to decide whether to shorten a conversation, and retry by the
 * status. docs/api.md lists all errors. The messages for a busy server do not reveal other clients. */
#ifndef TANDEM_SERVER_ERRORS_H
#define TANDEM_SERVER_ERRORS_H
#include "base/buf.h"
#include "base/err.h"

typedef struct {
    int         status; /* 0: no error */
    char        message[640];
    char        param[128];      /* the field at fault, by the name that the API has for it; empty: none */
    const char *code;            /* static; NULL: none */
    int64_t     n_prompt_tokens; /* length of a prompt that does not fit; 0: unknown, or another error */
    int         n_ctx;           /* the context that the prompt does not fit in; 0: unknown, or another error */
} server_error;

/* Functions that return bool return false, so that `return error_set(...)` reads as a failure. */
/* Sets all members. param and code may be NULL; code is a constant, all else is copied. */
bool error_set(server_error *x, int status, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Converts an error of a lower layer; base/err.h lists the status of each code. param: the field at fault when `e`
 * names none; may be NULL. running: the request was queued, so that a busy server is 503 and malformed data is ours. */
bool error_take(server_error *x, const err *e, const char *param, bool running);
/* Refuses a body that json_parse refused: 400, 413 over a limit, 503 without memory. */
bool error_body(server_error *x, const err *e);
bool error_no_memory(server_error *x);                   /* 503 */
bool error_shutting_down(server_error *x);               /* 503 */
bool error_drained(server_error *x);                     /* 503: drained by POST /api/drain */
bool error_no_media(server_error *x, const char *param); /* 400: a part of the prompt is not text */
/* Replaces media in a tool's result. An error would end the conversation, since clients send the result each time. */
#define ERROR_NOT_SHOWN "(an image or a file, which cannot be shown here)"
/* Refuses a prompt of n_prompt tokens with 400. noun: the prompt's field as a word of the sentence. */
bool error_context(server_error *x, const char *param, const char *noun, int n_ctx, size_t n_prompt);

const char *error_type(int status);                     /* returns the "type" member, a constant */
void        error_put(buf *out, const server_error *x); /* appends the value of "error", an object */
/* Returns the seconds after which a retry makes sense; 0: it does not. */
int error_retry_after(int status);
#endif
