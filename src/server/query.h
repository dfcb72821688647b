/* server/query.h - reads parameters of a query string: n=5&request_id=a%2Fb. */
#ifndef TANDEM_SERVER_QUERY_H
#define TANDEM_SERVER_QUERY_H
#include "server/errors.h"

/* Copies the first parameter of this name, decoded, with a NUL; "" if absent. Fails with 400 when it is empty, has
 * `cap` or more bytes, or is malformed. */
bool query_text(str query, const char *name, char *out, size_t cap, server_error *why);
/* Reads an integer. Fails with 400 unless it is from min to max. *out is unchanged if the parameter is absent or wrong.
 */
bool query_int(str query, const char *name, int64_t min, int64_t max, int64_t *out, server_error *why);
#endif
