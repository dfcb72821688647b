/* server/dialects.h - fields of vLLM's, llama.cpp's and other servers that this one does not have.
 *
 * A field that would change the answer is never dropped in silence. Each has a rule: it is refused unless its value turns it off,
 * or it is ignored with a warning, or it has no effect here whatever its value. Fields that are kept are in fields.c. */
#ifndef TANDEM_SERVER_DIALECTS_H
#define TANDEM_SERVER_DIALECTS_H
#include "server/request.h"

typedef enum {
    DIALECT_REFUSED, /* 400, unless the value is one of `off` */
    DIALECT_WARNED,  /* named in X-Tandem-Warning, unless the value is one of `off` */
    DIALECT_IDLE,    /* accepted: it cannot change the answer, or only has meaning beside a field that is refused */
} dialect_rule;

typedef struct {
    const char  *name; /* with a point: a key that has one, or a path */
    int          where;
    dialect_rule rule;
    const char  *off; /* JSON values with which it changes nothing, in addition to null; separated by spaces */
    const char  *about;
} dialect_field;
extern const dialect_field dialect_table[];
extern const int           n_dialect_fields;

/* Checks the request's body against the table. Adds warnings to the request. */
bool dialects_check(server_request *r, const json_value *body, server_error *why);
#endif
