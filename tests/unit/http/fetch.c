/* The client against the server. */
#include "base/clock.h"
#include "http/client.h"
#include "test.h"
#include "toy.h"

#include <stdlib.h>

typedef struct {
    int  status, n_ends;
    buf  body;
    bool ok;
    err  why;
} got;

static void on_head(void *ctx, const http_response *r) { ((got *)ctx)->status = r->status; }
static void on_body(void *ctx, str bytes) { buf_put(&((got *)ctx)->body, bytes.s, bytes.n); }
static void on_end(void *ctx, const err *why)
{
    got *g = ctx;
    g->n_ends++;
    g->ok = !why;
    if (why) g->why = *why;
}

static void begin(got *g)
{
    *g = (got){0};
    buf_init(&g->body, 64 << 20);
}

static http_fetch *start(http_client *c, got *g, const char *path, str body)
{
    http_fetch_handler h = {on_head, on_body, on_end, g};
    begin(g);
    return http_fetch_start(c, path, NULL, 0, body, &h);
}

static void wait_for(http_client *c, got *g, int n)
{
    double end = clock_s() + 10;
    for (bool all = false; !all && clock_s() < end;) {
        http_client_poll(c, clock_s() + 0.1);
        all = true;
        for (int i = 0; i < n; i++) all = all && g[i].n_ends;
    }
}

static void fetch(http_client *c, got *g, const char *path, str body)
{
    start(c, g, path, body);
    wait_for(c, g, 1);
}

static toy *open_toy(test_case *t, http_options *o)
{
    toy *y;
    err  e;
    o->host = "127.0.0.1";
    if (!CHECK_OK(toy_open(&y, o, 0.0005, &e), e) || !CHECK(toy_start(y))) exit(1);
    return y;
}

static bool open_client(http_client **c, const toy *y, const char *where, const http_client_options *o, err *e)
{
    http_url url;
    char     text[64];
    snprintf(text, sizeof text, "%s:%d", where, toy_port(y));
    return http_url_parse(&url, str_of(text), e) && http_client_open(c, &url, o, e);
}

static void check_all(test_case *t, http_client *c)
{
    static char large[3 << 20];
    got         g, many[20];
    memset(large, 'x', sizeof large);
    fetch(c, &g, "/hello", (str){0});
    CHECK_MSG(g.ok && g.status == 200, "%s", g.why.text);
    CHECK_STR(buf_str(&g.body), STR("hello"));
    buf_deinit(&g.body);
    fetch(c, &g, "/echo", (str){large, sizeof large});
    CHECK_MSG(g.ok, "%s", g.why.text);
    CHECK(str_eq(buf_str(&g.body), (str){large, sizeof large}));
    buf_deinit(&g.body);
    for (int i = 0; i < 20; i++) start(c, &many[i], i % 2 ? "/stream?200" : "/big?1000000", (str){0});
    wait_for(c, many, 20);
    for (int i = 0; i < 20; i++) {
        CHECK_MSG(many[i].ok && many[i].n_ends == 1, "%d: %s", i, many[i].why.text);
        CHECK(i % 2 ? many[i].body.n > 200 : many[i].body.n == 1000000);
        buf_deinit(&many[i].body);
    }
    fetch(c, &g, "/cut", (str){0});
    CHECK(!g.ok && strstr(g.why.text, "in the middle of its response"));
    buf_deinit(&g.body);
    http_fetch *f = start(c, &g, "/wait", (str){0});
    for (int i = 0; i < 5; i++) http_client_poll(c, clock_s() + 0.01);
    http_fetch_cancel(f);
    http_client_poll(c, clock_s());
    CHECK_INT(g.n_ends, 0);
    buf_deinit(&g.body);
    fetch(c, &g, "/refused", (str){large, sizeof large}); /* answered before the body is sent */
    CHECK_MSG(g.ok && g.status == 404, "%d %s", g.status, g.why.text);
    buf_deinit(&g.body);
}

TEST(http_client_fetches)
{
    http_client        *c;
    http_options        server;
    http_client_options o;
    err                 e;
    http_options_init(&server);
    http_client_options_init(&o);
    toy *y = open_toy(t, &server);
    CHECK_OK(open_client(&c, y, "http://127.0.0.1", &o, &e), e);
    check_all(t, c);
    got g;
    start(c, &g, "/wait", (str){0}); /* closing cancels it */
    http_client_close(c);
    CHECK_INT(g.n_ends, 0);
    o.max_body = 5000;
    o.total_s  = 0.3;
    CHECK_OK(open_client(&c, y, "http://127.0.0.1", &o, &e), e);
    fetch(c, &g, "/big?5001", (str){0});
    CHECK(!g.ok && strstr(g.why.text, "the response is larger than"));
    buf_deinit(&g.body);
    fetch(c, &g, "/wait", (str){0});
    CHECK(!g.ok && strstr(g.why.text, "no complete response within 0.3 s"));
    buf_deinit(&g.body);
    http_client_close(c);
    toy_close(y);
}

TEST(http_client_checks_certificates)
{
    char                cert[4096], key[4096], other[4096], other_key[4096];
    http_client        *c;
    http_options        server;
    http_client_options o;
    got                 g;
    err                 e;
    snprintf(cert, sizeof cert, "%s/fetch_cert.pem", test_tmp_dir());
    snprintf(key, sizeof key, "%s/fetch_key.pem", test_tmp_dir());
    snprintf(other, sizeof other, "%s/fetch_other.pem", test_tmp_dir());
    snprintf(other_key, sizeof other_key, "%s/fetch_other_key.pem", test_tmp_dir());
    CHECK(toy_certificate(cert, key) && toy_certificate(other, other_key));
    http_options_init(&server);
    server.tls_cert = cert;
    server.tls_key  = key;
    toy *y          = open_toy(t, &server);

    http_client_options_init(&o);
    o.insecure = true;
    CHECK_OK(open_client(&c, y, "https://127.0.0.1", &o, &e), e);
    check_all(t, c);
    http_client_close(c);

    o.insecure = false;
    CHECK_OK(open_client(&c, y, "https://127.0.0.1", &o, &e), e);
    fetch(c, &g, "/hello", (str){0});
    CHECK_MSG(!g.ok && strstr(g.why.text, "certificate is not trusted: self"), "%s", g.why.text);
    buf_deinit(&g.body);
    http_client_close(c);

    o.ca_file = other;
    CHECK_OK(open_client(&c, y, "https://127.0.0.1", &o, &e), e);
    fetch(c, &g, "/hello", (str){0});
    CHECK_MSG(!g.ok && strstr(g.why.text, "certificate is not trusted"), "%s", g.why.text);
    buf_deinit(&g.body);
    http_client_close(c);

    o.ca_file = cert; /* trusted, but it is not for 127.0.0.1 */
    CHECK_OK(open_client(&c, y, "https://127.0.0.1", &o, &e), e);
    fetch(c, &g, "/hello", (str){0});
    CHECK_MSG(!g.ok && strstr(g.why.text, "IP address mismatch"), "%s", g.why.text);
    buf_deinit(&g.body);
    http_client_close(c);

    if (CHECK_OK(open_client(&c, y, "https://localhost", &o, &e), e)) {
        check_all(t, c);
        http_client_close(c);
    }

    o.ca_file = "/nowhere.pem";
    CHECK_FAILS(open_client(&c, y, "https://127.0.0.1", &o, &e), e, "cannot use the certificates of '/nowhere.pem'");
    toy_close(y);
}

/* An unreachable address fails at once. Each fetch is reported in the next turn, once, unless it was cancelled. */
TEST(http_client_tells_of_failures_later)
{
    http_client_options o;
    http_client        *c;
    http_url            url;
    http_fetch         *f[3];
    got                 g[3];
    err                 e = {0};
    http_client_options_init(&o);
    CHECK_OK(http_url_parse(&url, STR("http://255.255.255.255:9"), &e) && http_client_open(&c, &url, &o, &e), e);
    for (int i = 0; i < 3; i++) f[i] = start(c, &g[i], "/", (str){0});
    for (int i = 0; i < 3; i++) CHECK_INT(g[i].n_ends, 0);
    http_fetch_cancel(f[1]);
    http_client_poll(c, clock_s() + 5);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(g[i].n_ends, i != 1);
        if (i != 1) CHECK_MSG(!g[i].ok && strstr(g[i].why.text, "255.255.255.255"), "%s", g[i].why.text);
        buf_deinit(&g[i].body);
    }
    http_client_close(c);
}

/* Many at once, of which some are cancelled in the first, the last and middle places: the others are whole. */
TEST(http_client_cancels_any_of_many)
{
    enum { MANY = 12 };
    http_options        o;
    http_client_options co;
    http_client        *c;
    http_fetch         *f[MANY];
    got                 g[MANY];
    err                 e = {0};
    http_options_init(&o);
    http_client_options_init(&co);
    toy *y = open_toy(t, &o);
    if (!CHECK_OK(open_client(&c, y, "http://127.0.0.1", &co, &e), e)) return;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < MANY; i++) f[i] = start(c, &g[i], "/stream?40", (str){0});
        for (int turn = 0; turn < round; turn++) http_client_poll(c, clock_s() + 0.002);
        for (int i = 0; i < MANY; i++)
            if ((i * 5 + round) % 3 == 0 && !g[i].n_ends) {
                http_fetch_cancel(f[i]);
                g[i].n_ends = 100;
            }
        wait_for(c, g, MANY);
        for (int i = 0; i < MANY; i++) {
            bool cancelled = g[i].n_ends == 100;
            CHECK_MSG(cancelled || (g[i].n_ends == 1 && g[i].ok && g[i].body.n > 40 * 50), "%d of round %d: %s", i,
                      round, g[i].why.text);
            buf_deinit(&g[i].body);
        }
    }
    http_client_close(c);
    toy_close(y);
}
