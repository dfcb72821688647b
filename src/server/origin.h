/* server/origin.h - refuses requests that a page of another site made a browser send.
 *
 * Such a page can reach this machine in two ways: through a DNS name of its own that resolves to this machine (then
 * Host has that name), or by a cross-origin request (then Origin differs from Host). */
#ifndef TANDEM_SERVER_ORIGIN_H
#define TANDEM_SERVER_ORIGIN_H
#include "base/err.h"
#include "base/str.h"

/* Checks the headers Host and Origin; s NULL: absent. Accepted hosts are localhost, numeric addresses and `names`,
 * each a comma-separated list of host names; "*" accepts all. */
bool origin_check(str host, str origin, const char *const *names, size_t n_names, err *e);
/* Checks one list of host names. */
bool origin_names_check(const char *list, err *e);
/* Returns the value of Access-Control-Allow-Origin for a page of this origin: the origin, or "*" if `cors` has that;
 * s NULL: its pages may not call. cors: n lists of origins, each separated by commas; "localhost" is this machine
 * with any scheme and port. */
str origin_allowed(str origin, const char *const *cors, size_t n);
/* Checks one list of origins. */
bool origin_list_check(const char *list, err *e);
#endif
