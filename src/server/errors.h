/* server/errors.h - what a client is told when its request fails: a status, and a body in the words that clients look for.
 *
 *      {"error":{"message":"...","type":"invalid_request_error","param":"temperature","code":null}}
 *
 * Clients decide by regular expressions on the message whether to shorten a conversation, and by the status whether to
 * ask again; docs/api.md lists what is told when. Busy and unavailable say nothing about who else is there. */
#ifndef TANDEM_SERVER_ERRORS_H
#define TANDEM_SERVER_ERRORS_H
#include "base/buf.h"
#include "base/err.h"

typedef struct {
    int         status; /* 0: nothing is wrong */
    char        message[640];
    char        param[96]; /* the field; empty: none */
    const char *code;      /* a fixed word; NULL: none */
    int64_t     n_prompt_tokens;
    int         n_ctx; /* of a prompt that does not fit; 0: another error */
} server_error;

/* All return false, so that a failure reads as one. param and code may be NULL. */
bool error_set(server_error *x, int status, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* From below: while a request is made (running: false) or of an answer that was begun. */
bool error_take(server_error *x, const err *why, const char *param, bool running);
bool error_no_memory(server_error *x);
bool error_shutting_down(server_error *x);
bool error_drained(server_error *x);                     /* an operator has said so */
bool error_no_media(server_error *x, const char *param); /* a part of the prompt is no text */
/* Of a tool's answer it is said instead: clients send it again each time, and the conversation is to go on. */
#define ERROR_NOT_SHOWN "(an image or a file, which cannot be shown here)"
/* The prompt leaves no room to answer. */
bool error_context(server_error *x, const char *param, const char *noun, int n_ctx, size_t n_prompt);

/* What is said of one field is said of another. */
void error_rename(server_error *x, const char *from, const char *to);

const char *error_type(int status);
void        error_put(buf *out, const server_error *x); /* the object without what is around it */
/* Seconds after which asking again makes sense; 0: it does not. */
int error_retry_after(int status);
#endif
