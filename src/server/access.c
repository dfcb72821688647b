#include "server/access.h"

#include "server/origin.h"

static bool refuse_key(str key, server_error *why)
{
    return error_set(why, 401, NULL, "invalid_api_key",
                     key.n ? "The API key is not valid."
                           : "There is no API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.");
}

static bool has_keys(const access_rules *r) { return keys_count(r->api) || keys_count(r->admin); }

static bool check_key(const access_rules *r, const access_fields *f, access_grant *out, server_error *why)
{
    str key       = key_of_fields(f->authorization, f->x_api_key);
    out->tenant   = keys_find(r->admin, key);
    out->sees_all = out->tenant || !has_keys(r);
    if (!out->tenant) out->tenant = keys_find(r->api, key);
    return out->tenant || !has_keys(r) || refuse_key(key, why);
}

static bool needs_admin(const access_rules *r, route_access to)
{
    return keys_count(r->admin) || (to == ROUTE_OPERATE && keys_count(r->api));
}

static bool refuse_user(const access_rules *r, server_error *why)
{
    return error_set(why, 403, NULL, "admin_key_required", "%s",
                     keys_count(r->admin) ? "This needs an admin key."
                                          : "This needs an admin key, and this server has none (--admin-key-file).");
}

/* Checks Host and Origin of a request to a server without keys, which the browser of its operator can reach. A browser
 * always sends Host and cannot use Unix sockets. */
static bool check_keyless(const access_rules *r, const access_fields *f, err *e)
{
    bool cors = origin_allowed(f->origin, r->cors, r->n_cors).s;
    if (f->by_unix_socket || (!f->host.s && !f->origin.s)) return true;
    return origin_check(f->host, cors ? (str){0} : f->origin, r->names, r->n_names, e);
}

static bool check_origin(const access_rules *r, route_access to, const access_fields *f, err *e)
{
    if (to >= ROUTE_ADMIN) return origin_check(f->host, f->origin, r->names, r->n_names, e);
    return has_keys(r) || check_keyless(r, f, e);
}

bool access_check(const access_rules *r, route_access to, const access_fields *f, access_grant *out, server_error *why)
{
    err e = {0};
    *out  = (access_grant){0};
    if (to == ROUTE_OPEN) return true;
    if (!check_key(r, f, out, why)) return false;
    if (to >= ROUTE_ADMIN && !out->sees_all && needs_admin(r, to)) return refuse_user(r, why);
    return check_origin(r, to, f, &e) || error_set(why, 403, NULL, "wrong_origin", "Refused: %s.", e.text);
}
