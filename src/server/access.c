#include "server/access.h"

#include "server/origin.h"

static bool refuse_key(str key, server_error *why)
{
    return error_set(why, 401, NULL, "invalid_api_key",
                     key.n ? "The API key is not valid."
                           : "There is no API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.");
}

/* *is_admin: the key is an admin's. */
static bool check_key(const access_rules *r, const access_fields *f, const char **tenant, bool *is_admin,
                      server_error *why)
{
    str key   = key_of_fields(f->authorization, f->x_api_key);
    *tenant   = keys_find(r->admin, key);
    *is_admin = *tenant != NULL;
    if (!*tenant) *tenant = keys_find(r->api, key);
    return *tenant || (!keys_count(r->api) && !keys_count(r->admin)) || refuse_key(key, why);
}

static bool needs_admin(const access_rules *r, route_access to)
{
    return keys_count(r->admin) || (to == ROUTE_OPERATE && keys_count(r->api));
}

bool access_check(const access_rules *r, route_access to, const access_fields *f, const char **tenant,
                  server_error *why)
{
    bool is_admin;
    err  e  = {0};
    *tenant = NULL;
    if (to == ROUTE_OPEN) return true;
    if (!check_key(r, f, tenant, &is_admin, why)) return false;
    if (to < ROUTE_ADMIN) return true;
    if (!is_admin && needs_admin(r, to))
        return error_set(why, 403, NULL, "admin_key_required", "This needs an admin key.");
    return origin_check(f->host, f->origin, r->names, r->n_names, &e) ||
           error_set(why, 403, NULL, "wrong_origin", "Refused: %s.", e.text);
}
