#include "server/origin.h"

#include "test.h"

static bool passes(const char *host, const char *origin)
{
    static const char *const names[] = {"tandem.example", "gpu-box"};
    return origin_check(host ? str_of(host) : (str){0}, origin ? str_of(origin) : (str){0}, names, 2, NULL);
}

TEST(server_origin_hosts)
{
    static const char *const ours[]   = {"localhost",      "LOCALHOST:8080", "127.0.0.1:8080", "127.1.2.3",
                                         "192.168.1.5:80", "[::1]",          "[::1]:8080",     "[fe80::1]:1",
                                         "tandem.example", "Gpu-Box:443"};
    static const char *const others[] = {"",
                                         "evil.example",
                                         "localhost.evil.example",
                                         "127.0.0.1.evil.example",
                                         "[::1",
                                         "[::1]x",
                                         "localhost:",
                                         "localhost:80x",
                                         "localhost:123456",
                                         "127.0.0.1:80:80",
                                         "tandem.example.",
                                         "::1",
                                         "[evil.example]x"};
    for (size_t i = 0; i < COUNT(ours); i++) CHECK_MSG(passes(ours[i], NULL), "%s is refused", ours[i]);
    for (size_t i = 0; i < COUNT(others); i++) CHECK_MSG(!passes(others[i], NULL), "'%s' passes", others[i]);
    CHECK(!passes(NULL, NULL));
}

TEST(server_origin_pages_of_others)
{
    err e = {0};
    CHECK(passes("localhost:8080", "http://localhost:8080"));
    CHECK(passes("localhost:8080", "https://LOCALHOST:8080")); /* a proxy that ends TLS */
    CHECK(!passes("localhost:8080", "http://localhost:3000"));
    CHECK(!passes("localhost:8080", "http://evil.example"));
    CHECK(!passes("localhost:8080", "null"));
    CHECK(!passes("localhost:8080", ""));
    CHECK(!passes("localhost:8080", "http://"));
    CHECK(!passes("evil.example", "http://evil.example"));
    CHECK_FAILS(origin_check(STR("localhost"), STR("http://a.b"), NULL, 0, &e), e, "another origin");
    CHECK_FAILS(origin_check(STR("a.b:80"), (str){0}, NULL, 0, &e), e,
                "a.b, is not a name of this server; --allow-host a.b");
    CHECK_FAILS(origin_check(STR("a<b"), (str){0}, NULL, 0, &e), e, "the Host of this request is not a name");
}

TEST(server_origin_lists_of_names)
{
    static const char *const lists[] = {"one.example, Two.example,,three", ""}, *const any[] = {"none, *"};
    err e = {0};
    CHECK(origin_check(STR("one.example:1"), (str){0}, lists, 2, NULL) &&
          origin_check(STR("two.example"), (str){0}, lists, 2, NULL));
    CHECK(origin_check(STR("THREE"), (str){0}, lists, 2, NULL));
    CHECK(!origin_check(STR("one.example, Two.example"), (str){0}, lists, 2, NULL) &&
          !origin_check(STR("two"), (str){0}, lists, 2, NULL));
    CHECK(!origin_check(STR(""), (str){0}, lists, 2, NULL) && !origin_check(STR(":80"), (str){0}, lists, 2, NULL));
    CHECK(origin_check(STR("whatever.example"), (str){0}, any, 1, NULL));
    CHECK(origin_names_check("a.b,c-d_e,*, f", &e) && origin_names_check("10.0.0.1", &e));
    CHECK_FAILS(origin_names_check("a.b,http://c", &e), e, "'http://c' is not the name of a host");
    CHECK_FAILS(origin_names_check("a.b:80", &e), e, "'a.b:80' is not the name of a host");
    CHECK_FAILS(origin_names_check("a,,b", &e), e, "'' is not the name");
}

TEST(origin_lists_of_pages_that_may_call)
{
    static const struct {
        const char *origin, *list, *allowed; /* NULL: not */
    } k[] = {{"https://a.example", "https://a.example", "https://a.example"},
             {"https://b.example:8443", "https://a.example, https://b.example:8443", "https://b.example:8443"},
             {"https://b.example", "https://a.example", NULL},
             {"https://b.example", "https://a.example,*", "*"},
             {"null", "*", "*"},
             {"http://localhost:3000", "localhost", "http://localhost:3000"},
             {"https://localhost", "https://a.example,localhost", "https://localhost"},
             {"http://127.0.0.1:5173", "localhost", "http://127.0.0.1:5173"},
             {"http://[::1]:5173", "localhost", "http://[::1]:5173"},
             {"http://localhost.evil.example", "localhost", NULL},
             {"http://evil.example", "localhost", NULL},
             {"null", "localhost", NULL},
             {"localhost", "localhost", "localhost"},
             {NULL, "*", NULL},
             {"http://localhost", NULL, NULL}};
    for (size_t i = 0; i < COUNT(k); i++) {
        str got = origin_allowed(k[i].origin ? str_of(k[i].origin) : (str){0}, &k[i].list, k[i].list != NULL);
        CHECK_MSG(k[i].allowed ? str_is(got, k[i].allowed) : !got.s, "%s of %s gives %.*s",
                  k[i].origin ? k[i].origin : "no origin", k[i].list ? k[i].list : "none", STR_ARG(got));
    }
}

/* Each --cors is a list of its own. */
TEST(origins_are_allowed_by_any_of_several_lists)
{
    static const char *const cors[] = {"https://a.example", "https://b.example,https://c.example"};
    CHECK(origin_allowed(STR("https://a.example"), cors, 2).s && origin_allowed(STR("https://c.example"), cors, 2).s);
    CHECK(!origin_allowed(STR("https://c.example"), cors, 1).s && !origin_allowed(STR("https://a.example"), cors, 0).s);
}

TEST(origin_lists_are_checked)
{
    err e = {0};
    CHECK(origin_list_check("*", &e) && origin_list_check("localhost,https://a.example:8443, http://[::1]", &e));
    CHECK_FAILS(origin_list_check("https://a.example,example.org", &e), e, "'example.org' is not an origin");
    CHECK_FAILS(origin_list_check("https://", &e), e, "'https://' is not an origin");
    CHECK_FAILS(origin_list_check("https://a.example/page", &e), e, "is not an origin");
}
