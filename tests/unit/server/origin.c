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
    CHECK_FAILS(origin_check(STR("a.b"), (str){0}, NULL, 0, &e), e, "not a name of this server");
}
