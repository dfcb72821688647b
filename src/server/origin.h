/* server/origin.h - requests that a browser was talked into by a page of somebody else.
 *
 * Such a page reaches this machine in two ways: by a name of its own that it lets point here (then Host is that name), or
 * by a request to us from its own origin (then Origin is not Host). What changes something is refused to both. */
#ifndef TANDEM_SERVER_ORIGIN_H
#define TANDEM_SERVER_ORIGIN_H
#include "base/err.h"
#include "base/str.h"

/* host and origin: the request's fields, s NULL where absent. Hosts that are ours are localhost, every address written in
 * numbers (no name points anywhere then), and `names`. */
bool origin_check(str host, str origin, const char *const *names, size_t n_names, err *e);
#endif
