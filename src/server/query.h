/* server/query.h - what follows the question mark of a path: n=5&request_id=a%2Fb. */
#ifndef TANDEM_SERVER_QUERY_H
#define TANDEM_SERVER_QUERY_H
#include "server/errors.h"

/* The first one of this name, its percent signs and pluses undone, with a NUL; "" where there is none. 400: it has no bytes, or
 * cap or more, or is not well written. */
bool query_text(str query, const char *name, char *out, size_t cap, server_error *why);
/* *out is left alone where there is none. 400: it is not a whole number from min to max. */
bool query_int(str query, const char *name, int64_t min, int64_t max, int64_t *out, server_error *why);
#endif
