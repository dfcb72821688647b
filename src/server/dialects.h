/* server/dialects.h - request fields of vLLM, llama.cpp and other servers that are not supported.
 *
 * A field that would change the response is never ignored silently. Each has a rule: it is refused unless its value
 * turns it off, or ignored with a warning, or accepted because it has no effect here. Supported fields are in
 * fields.c. */
#ifndef TANDEM_SERVER_DIALECTS_H
#define TANDEM_SERVER_DIALECTS_H
#include "server/request.h"

typedef enum {
    DIALECT_REFUSED, /* 400, unless the value is one of `off` */
    DIALECT_WARNED,  /* named in X-Tandem-Warning, unless the value is one of `off` */
    DIALECT_IDLE,    /* accepted: it cannot change the response, or it only modifies a field that is refused */
} dialect_rule;

typedef struct {
    const char  *name;     /* a name with a point is a key with a point, or a path */
    int          endpoint; /* FIELD_... bits of fields.h */
    dialect_rule rule;
    const char  *off;   /* JSON values that turn it off, in addition to null; separated by spaces; "": none */
    const char  *about; /* its meaning, or why it is refused; a part of messages and of the docs */
} dialect_field;

/* Checks a body against the table, adds warnings to the request, and fails with 400 for a refused field. Any thread. */
bool dialects_check(server_request *r, const json_value *body, server_error *why);
#endif
