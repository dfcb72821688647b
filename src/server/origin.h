/* server/origin.h - refuses requests that a page of another site made a browser send.
 *
 * Such a page can reach this machine in two ways: through a DNS name of its own that resolves to this machine (then
 * Host has that name), or by a cross-origin request (then Origin differs from Host).
 *
 * The functions keep no state, so any thread may call them. */
#ifndef TANDEM_SERVER_ORIGIN_H
#define TANDEM_SERVER_ORIGIN_H
#include "base/err.h"
#include "base/str.h"

/* Checks the headers Host and Origin; s NULL: absent. Returns false and sets e if the request must be refused.
 * Host is required. Accepted hosts are localhost, every numeric address and the hosts in `names`: n_names strings,
 * each a comma-separated list of host names without ports; "*" accepts every host. An Origin must equal Host, with
 * its port, after http:// or https://; an absent one is accepted. "*" in names does not change that. The lists of
 * origin_allowed are not known here: to let in a page that it allows, pass an absent origin. */
bool origin_check(str host, str origin, const char *const *names, size_t n_names, err *e);
/* Checks the syntax of one list of host names, as an option has it: false and e for one that is not a name or "*". */
bool origin_names_check(const char *list, err *e);
/* Returns the value of Access-Control-Allow-Origin for a page of this origin: the origin, or "*" if `cors` has that;
 * s NULL: its pages may not call, or origin is absent. cors: n strings, each a comma-separated list of origins such
 * as https://example.org:8443, compared exactly; "localhost" is localhost, 127.0.0.1 and ::1 with http or https and
 * any port. The result points into origin or cors. */
str origin_allowed(str origin, const char *const *cors, size_t n);
/* Checks the syntax of one list of origins: "*", "localhost", or http:// or https:// with a host and maybe a port. */
bool origin_list_check(const char *list, err *e);
#endif
