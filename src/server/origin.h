/* server/origin.h - refuses requests that a page of another site made a browser send.
 *
 * Such a page reaches this machine in two ways: by a name of its own that it lets point here (then Host is that name), or
 * by a request to us from its own origin (then Origin is not Host). */
#ifndef TANDEM_SERVER_ORIGIN_H
#define TANDEM_SERVER_ORIGIN_H
#include "base/err.h"
#include "base/str.h"

/* host and origin: the request's fields, s NULL where absent. Hosts that are ours are localhost, every address written in
 * numbers (no name points anywhere then), and `names`, each of which may be several with commas between them; "*" is any. */
bool origin_check(str host, str origin, const char *const *names, size_t n_names, err *e);
/* Checks such a list of names. */
bool origin_names_check(const char *list, err *e);
/* Returns the value of Access-Control-Allow-Origin for a page of this origin: the origin, or "*" if `cors` has that; s
 * NULL: its pages may not call. cors: n lists of origins, each separated by commas; "localhost" is this machine with any
 * scheme and port. */
str origin_allowed(str origin, const char *const *cors, size_t n);
/* Checks one list of origins. */
bool origin_list_check(const char *list, err *e);
#endif
