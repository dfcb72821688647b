#include "server/access.h"

#include "test.h"

static const str none;

/* The status that a request with this key gets; 0: it passes. */
static int status(const access_rules *r, route_access to, const char *key, const char *host, access_grant *out)
{
    server_error  why = {0};
    access_fields f   = {.x_api_key = key ? str_of(key) : none, .host = str_of(host)};
    return access_check(r, to, &f, out, &why) ? 0 : why.status;
}

static void check_all(test_case *t, const access_rules *r, const char *key, int open, int with_key, int admin,
                      int operate)
{
    access_grant got;
    CHECK_INT(status(r, ROUTE_OPEN, key, "localhost", &got), open);
    CHECK_INT(status(r, ROUTE_KEY, key, "localhost", &got), with_key);
    CHECK_INT(status(r, ROUTE_ADMIN, key, "localhost", &got), admin);
    CHECK_INT(status(r, ROUTE_OPERATE, key, "localhost", &got), operate);
}

TEST(server_access_by_key)
{
    err          e = {0};
    access_rules r = {0};
    access_grant got;
    check_all(t, &r, NULL, 0, 0, 0, 0);
    CHECK(status(&r, ROUTE_KEY, NULL, "localhost", &got) == 0 && !got.tenant && got.sees_all);
    check_all(t, &r, "anything", 0, 0, 0, 0); /* clients that must send one may */
    CHECK_OK(keys_of_one(&r.api, STR("user"), "u", &e), e);
    check_all(t, &r, NULL, 0, 401, 401, 401);
    check_all(t, &r, "anything", 0, 401, 401, 401);
    check_all(t, &r, "user", 0, 0, 0, 403); /* no user changes it for all, or sees what others do */
    CHECK(status(&r, ROUTE_KEY, "user", "localhost", &got) == 0 && !got.sees_all);
    CHECK_OK(keys_of_one(&r.admin, STR("root"), "admin", &e), e);
    check_all(t, &r, NULL, 0, 401, 401, 401);
    check_all(t, &r, "anything", 0, 401, 401, 401);
    check_all(t, &r, "user", 0, 0, 403, 403);
    check_all(t, &r, "root", 0, 0, 0, 0);
    CHECK(status(&r, ROUTE_OPEN, "root", "localhost", &got) == 0 && !got.tenant && !got.sees_all);
    CHECK(status(&r, ROUTE_KEY, "user", "localhost", &got) == 0 && !got.sees_all);
    CHECK(status(&r, ROUTE_KEY, "root", "localhost", &got) == 0 && got.sees_all);
    CHECK(status(&r, ROUTE_KEY, "user", "localhost", &got) == 0 && got.tenant && strcmp(got.tenant, "u") == 0);
    CHECK(status(&r, ROUTE_KEY, "root", "localhost", &got) == 0 && got.tenant && strcmp(got.tenant, "admin") == 0);
    keys_free(r.api);
    r.api = NULL; /* admin keys alone: all needs one */
    check_all(t, &r, NULL, 0, 401, 401, 401);
    check_all(t, &r, "root", 0, 0, 0, 0);
    keys_free(r.admin);
}

TEST(server_access_by_origin)
{
    static const char *const names[] = {"gpu-box"};
    access_rules             r       = {.names = names, .n_names = 1};
    access_grant             got;
    CHECK_INT(status(&r, ROUTE_ADMIN, NULL, "evil.example", &got), 403);
    CHECK_INT(status(&r, ROUTE_OPERATE, NULL, "evil.example", &got), 403);
    CHECK_INT(status(&r, ROUTE_KEY, NULL, "evil.example", &got), 403);
    CHECK_INT(status(&r, ROUTE_OPEN, NULL, "evil.example", &got), 0);
    CHECK_INT(status(&r, ROUTE_KEY, NULL, "gpu-box:8080", &got), 0);
    CHECK_INT(status(&r, ROUTE_ADMIN, NULL, "gpu-box:8080", &got), 0);
}

static bool may_ask(const access_rules *r, const char *host, const char *origin, bool by_unix_socket)
{
    access_grant  got;
    server_error  why = {0};
    access_fields f   = {.x_api_key      = STR("user"),
                         .host           = host ? str_of(host) : none,
                         .origin         = origin ? str_of(origin) : none,
                         .by_unix_socket = by_unix_socket};
    return access_check(r, ROUTE_KEY, &f, &got, &why);
}

/* Without keys the browser of whoever runs the server is what a page of another site would use. */
TEST(server_access_without_keys_is_not_for_pages_of_others)
{
    err          e = {0};
    access_rules r = {0};
    CHECK(may_ask(&r, "localhost:8080", NULL, false) && may_ask(&r, "127.0.0.1:8080", "http://127.0.0.1:8080", false));
    CHECK(may_ask(&r, NULL, NULL, false)); /* HTTP/1.0 */
    CHECK(!may_ask(&r, NULL, "http://evil.example", false));
    CHECK(!may_ask(&r, "evil.example", NULL, false) && may_ask(&r, "evil.example", NULL, true));
    CHECK(!may_ask(&r, "localhost", "http://evil.example", false) && !may_ask(&r, "localhost", "null", false));
    r.cors   = (const char *const[]){"http://page.example"};
    r.n_cors = 1;
    CHECK(may_ask(&r, "localhost", "http://page.example", false) &&
          !may_ask(&r, "localhost", "http://evil.example", false));
    CHECK(!may_ask(&r, "evil.example", "http://page.example", false));
    r.cors   = (const char *const[]){"http://page.example", "*"};
    r.n_cors = 2;
    CHECK(may_ask(&r, "localhost", "http://evil.example", false) && may_ask(&r, "localhost", "null", false));
    r.n_cors = 0;
    CHECK_OK(keys_of_one(&r.api, STR("user"), "u", &e), e);
    CHECK(may_ask(&r, "evil.example", "http://evil.example:1", false)); /* no page has the key */
    keys_free(r.api);
}
