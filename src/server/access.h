/* server/access.h - what a request may do, by its key and by where it comes from.
 *
 *      open     everybody
 *      key      whoever has a key, when there are any
 *      admin    whoever has an admin key, or any key when there are no others; no page of another origin
 *      operate  whoever has an admin key, or everybody when there are no keys at all; no page of another origin
 *
 * What has no path here is asked for a key, too: who has none learns nothing of what there is. */
#ifndef TANDEM_SERVER_ACCESS_H
#define TANDEM_SERVER_ACCESS_H
#include "server/errors.h"
#include "server/keys.h"

/* ROUTE_ADMIN: needs an admin's key, where there are such. ROUTE_OPERATE shows what other keys do, or changes the server for
 * everybody: it needs an admin's key where there are keys at all. Both check Host and Origin; ROUTE_KEY does where there
 * are no keys. */
typedef enum { ROUTE_OPEN, ROUTE_KEY, ROUTE_ADMIN, ROUTE_OPERATE } route_access;

typedef struct {
    keys              *api, *admin; /* NULL: there are none */
    const char *const *names;       /* of this server, as origin_check has them */
    size_t             n_names;
    const char *const *cors; /* as origin_allowed has them */
    size_t             n_cors;
} access_rules;

typedef struct {
    str  authorization, x_api_key, host, origin; /* the request's fields; s NULL: absent */
    bool by_unix_socket;
} access_fields;

typedef struct {
    const char *tenant;   /* the owner of the key, as keys_find returns it; NULL: no key was needed */
    bool        sees_all; /* may see numbers of the whole server: an admin, or everybody when there are no keys */
} access_grant;
/* 401: the key is missing or wrong; 403: it may not do this. */
bool access_check(const access_rules *r, route_access to, const access_fields *f, access_grant *out, server_error *why);
#endif
