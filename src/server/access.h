/* server/access.h - decides whether a request may use a route, by its key, its Host and its Origin.
 *
 *      open     no check
 *      key      needs a key if the server has keys
 *      admin    needs an admin key if the server has admin keys, else as `key`; refuses pages of other origins
 *      operate  needs an admin key if the server has any keys; refuses pages of other origins
 *
 * Paths without a route need a key as well, so that a client without one cannot find out which paths exist. The I/O
 * thread is the only caller. */
#ifndef TANDEM_SERVER_ACCESS_H
#define TANDEM_SERVER_ACCESS_H
#include "server/errors.h"
#include "server/keys.h"

/* ROUTE_OPERATE is for routes that show the requests of other keys or change the server for all clients. ROUTE_KEY
 * checks Host and Origin only on a server without keys. */
typedef enum { ROUTE_OPEN, ROUTE_KEY, ROUTE_ADMIN, ROUTE_OPERATE } route_access;

typedef struct {
    keys              *api, *admin; /* NULL: none */
    const char *const *names;       /* host names, as for origin_check */
    size_t             n_names;
    const char *const *cors; /* as for origin_allowed */
    size_t             n_cors;
} access_rules;

typedef struct {
    str  authorization, x_api_key, host, origin; /* headers of the request; s NULL: absent */
    bool by_unix_socket;
} access_fields;

typedef struct {
    const char *tenant;   /* as returned by keys_find, and valid as long; NULL: no key was needed */
    bool        sees_all; /* may see data of all clients: it has an admin key, or the server has no keys */
} access_grant;
/* Checks a request and sets *out. Fails with 401 when the key is missing or wrong, and with 403 when it does not
 * suffice or the Host or Origin is refused; *out has no meaning then. ROUTE_OPEN: *out is all zeros. */
bool access_check(const access_rules *r, route_access to, const access_fields *f, access_grant *out, server_error *why);
#endif
