/* Where files come from: data URLs, directories, servers; which addresses are never connected to. */
#include "decode/source.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "decode/address.h"
#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static bool load(buf *out, const source_options *o, const char *url, err *e)
{
    buf_clear(out);
    return source_load(out, o, str_of(url), e);
}

TEST(source_reads_base64)
{
    static const struct {
        const char *in, *want; /* NULL: refused */
    } table[] = {{"", ""},
                 {"YQ==", "a"},
                 {"YQ", "a"},
                 {"YWI=", "ab"},
                 {"YWJj", "abc"},
                 {"YW\r\nJj\n", "abc"},
                 {"YWJjZA==\n", "abcd"},
                 {"_-8=", "\xff\xef"},
                 {"/+8=", "\xff\xef"},
                 {"Y", NULL},
                 {"YW J", NULL},
                 {"Y=Jj", NULL},
                 {"YWJj*", NULL}};
    buf b;
    err e;
    buf_init(&b, 1 << 20);
    for (size_t i = 0; i < COUNT(table); i++) {
        buf_clear(&b);
        bool ok = source_base64(&b, str_of(table[i].in), &e);
        CHECK_MSG(ok == (table[i].want != NULL), "'%s': %d", table[i].in, ok);
        if (ok && table[i].want) CHECK_STR(buf_str(&b), str_of(table[i].want));
    }
    buf_deinit(&b);
}

TEST(source_reads_data_urls)
{
    source_options o = source_default_options();
    buf            b;
    err            e;
    buf_init(&b, 8);
    CHECK_OK(load(&b, &o, "data:image/png;base64,YWJj", &e), e);
    CHECK_STR(buf_str(&b), STR("abc"));
    CHECK_OK(load(&b, &o, "data:;base64,YWJj", &e), e);
    CHECK_OK(load(&b, &o, "data:image/png;name=x.png;base64,YWJj", &e), e);
    CHECK_FAILS(load(&b, &o, "data:image/png,abc", &e), e, "data:image/png;base64");
    CHECK_FAILS(load(&b, &o, "data:", &e), e, "data:image/png;base64");
    CHECK_FAILS(load(&b, &o, "data:;base64,YWJjYWJjYWJj", &e), e, "more than 8 bytes");
    CHECK_INT(e.code, ERR_TOO_LARGE);
    CHECK_FAILS(load(&b, &o, "data:;base64,!!", &e), e, "not base64");
    CHECK_FAILS(load(&b, &o, "", &e), e, "must begin with data:");
    CHECK_FAILS(load(&b, &o, "ftp://example.com/a.png", &e), e, "must begin with data:");
    buf_deinit(&b);
}

/* --- addresses ---------------------------------------------------------------------------------- */
static bool is_public(const char *text)
{
    struct sockaddr_in  v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) return address_is_public((struct sockaddr *)&v4);
    return inet_pton(AF_INET6, text, &v6.sin6_addr) == 1 && address_is_public((struct sockaddr *)&v6);
}

TEST(source_addresses_that_are_public)
{
    static const char *const public[]  = {"1.1.1.1",     "8.8.8.8",         "9.255.255.255", "11.0.0.0",
                                          "100.63.0.1",  "100.128.0.0",     "126.1.2.3",     "128.0.0.1",
                                          "169.253.0.1", "172.15.255.255",  "172.32.0.0",    "192.167.1.1",
                                          "198.17.0.1",  "198.20.0.1",      "223.255.255.1", "2606:4700::1111",
                                          "2a00:1450::", "2001:4860::8888", "2003::1"};
    static const char *const special[] = {
        "0.0.0.0",     "0.1.2.3",         "10.0.0.1",         "10.255.255.255", "100.64.0.1",      "100.127.255.255",
        "127.0.0.1",   "127.255.255.255", "169.254.169.254",  "172.16.0.1",     "172.31.255.255",  "192.0.0.1",
        "192.0.2.1",   "192.88.99.1",     "192.168.1.1",      "198.18.0.1",     "198.19.255.255",  "198.51.100.7",
        "203.0.113.7", "224.0.0.1",       "239.255.255.250",  "240.0.0.1",      "255.255.255.255", "::",
        "::1",         "::7f00:1",        "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "64:ff9b:1::1",
        "100::1",      "2001::1",         "2001:1ff::1",      "2001:db8::1",    "2002:7f00:1::1",  "3fff::1",
        "3fff:fff::1", "5f00::1",         "fc00::1",          "fd00:ec2::254",  "fe80::1",         "febf::1",
        "fec0::1",     "ff02::1"};
    for (size_t i = 0; i < COUNT(public); i++) CHECK_MSG(is_public(public[i]), "%s is refused", public[i]);
    for (size_t i = 0; i < COUNT(special); i++) CHECK_MSG(!is_public(special[i]), "%s is allowed", special[i]);
}

/* --- a server on this machine ------------------------------------------------------------------- */
typedef struct {
    int         fd, port;
    pthread_t   thread;
    atomic_int  n_connections;
    atomic_bool stop;
} scripted;

/* Replies by the path: /ok, /big, /hang, /status/N, /to/N?URL redirects with status N. */
static void reply_to(int fd, const char *request)
{
    char  out[16 << 10] = "";
    int   status        = 0;
    char  url[9000]     = "";
    char *big           = NULL;
    if (!strncmp(request, "GET /ok", 7)) {
        snprintf(out, sizeof out, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\npicture");
    } else if (!strncmp(request, "GET /big", 8)) {
        big = xnew_n(char, 100000);
        snprintf(out, sizeof out, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
    } else if (sscanf(request, "GET /to/%d?%8999s ", &status, url) == 2) {
        snprintf(out, sizeof out, "HTTP/1.1 %d Moved\r\nLocation: %s\r\nContent-Length: 5\r\n\r\nmoved", status, url);
    } else if (sscanf(request, "GET /status/%d ", &status) == 1) {
        snprintf(out, sizeof out, "HTTP/1.1 %d Some\r\nContent-Length: 0\r\n\r\n", status);
    }
    ssize_t n = write(fd, out, strlen(out));
    if (big) n = write(fd, big, 100000);
    (void)n;
    mem_free(big);
    if (!out[0]) poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 5000); /* hangs until the client leaves */
}

static void *serve(void *arg)
{
    scripted *s = arg;
    while (!atomic_load(&s->stop)) {
        char    request[16 << 10] = "";
        size_t  n                 = 0;
        ssize_t got;
        int     fd = accept(s->fd, NULL, NULL);
        if (fd < 0) break;
        atomic_fetch_add(&s->n_connections, 1);
        while (!strstr(request, "\r\n\r\n") && (got = read(fd, request + n, sizeof request - 1 - n)) > 0)
            request[n += (size_t)got] = 0;
        if (!atomic_load(&s->stop)) reply_to(fd, request);
        close(fd);
    }
    return NULL;
}

static bool start_server(scripted *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t          n = sizeof a;
    *s                   = (scripted){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (bind(s->fd, (struct sockaddr *)&a, n) || listen(s->fd, 8) || getsockname(s->fd, (struct sockaddr *)&a, &n))
        return false;
    s->port = ntohs(a.sin_port);
    return thread_start(&s->thread, serve, s);
}

static void stop_server(scripted *s)
{
    atomic_store(&s->stop, true);
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
}

/* Only 127.0.0.1, so that a redirect to anything else is refused. */
static bool allows_loopback(const struct sockaddr *a)
{
    const struct sockaddr_in *v4 = (const void *)a;
    return a->sa_family == AF_INET && v4->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
}

TEST(source_never_connects_to_private_addresses)
{
    /* %d: the port of a server that counts its connections */
    static const char *const urls[] = {
        "http://127.0.0.1:%d/ok",
        "http://localhost:%d/ok",
        "http://localhost.:%d/ok",
        "http://LOCALHOST:%d/ok",
        "http://127.1:%d/ok",
        "http://127.255.255.254:%d/ok",
        "http://2130706433:%d/ok",
        "http://0x7f000001:%d/ok",
        "http://0x7f.1:%d/ok",
        "http://017700000001:%d/ok",
        "http://0:%d/ok",
        "http://0.0.0.0:%d/ok",
        "https://127.0.0.1:%d/ok",
        "http://[::1]:%d/ok",
        "http://[::]:%d/ok",
        "http://[::ffff:127.0.0.1]:%d/ok",
        "http://[::ffff:7f00:1]:%d/ok",
        "http://[0:0:0:0:0:ffff:127.0.0.1]:%d/ok",
        "http://[::127.0.0.1]:%d/ok",
        "http://[64:ff9b::127.0.0.1]:%d/ok",
        "http://[2002:7f00:1::]:%d/ok",
        "http://[fe80::1%%lo]:%d/ok",
        "http://10.0.0.1:%d/ok",
        "http://172.16.0.1:%d/ok",
        "http://192.168.0.1:%d/ok",
        "http://169.254.169.254:%d/latest/meta-data/",
        "http://100.100.100.200:%d/ok",
        "http://[fd00:ec2::254]:%d/ok",
        "http://224.0.0.1:%d/ok",
        "http://255.255.255.255:%d/ok",
        "http://user@127.0.0.1:%d/ok",
        "http://example.com@127.0.0.1:%d/ok",
        "http://127.0.0.1:%d\\@example.com/ok",
        "http://ip6-localhost:%d/ok",
        "HTTP://127.0.0.1:%d/ok",
        "http:127.0.0.1:%d/ok",
        "http:///127.0.0.1:%d/ok",
        "gopher://127.0.0.1:%d/ok",
        "dict://127.0.0.1:%d/ok",
        "http://127.0.0.1:%d#@example.com/",
    };
    source_options o = source_default_options();
    scripted       s;
    buf            b;
    err            e;
    o.fetch   = true;
    o.fetch_s = 5;
    buf_init(&b, 1 << 20);
    if (!CHECK(start_server(&s))) return;
    for (size_t i = 0; i < COUNT(urls); i++) {
        char url[256];
        snprintf(url, sizeof url, urls[i], s.port);
        CHECK_MSG(!load(&b, &o, url, &e) && e.text[0], "%s was fetched", url);
        CHECK_MSG(e.code == ERR_INPUT, "%s: %s", url, e.text);
        CHECK_INT(b.n, 0);
    }
    CHECK_INT(atomic_load(&s.n_connections), 0);
    stop_server(&s);
    buf_deinit(&b);
}

TEST(source_follows_redirects_to_allowed_addresses)
{
    static const struct {
        const char *path, *want; /* want NULL: the file is fetched */
    } table[] = {
        {"/ok", NULL},
        {"/ok?query=1#fragment", NULL},
        {"/to/302?/ok", NULL},
        {"/to/307?/to/301?/ok", NULL},
        {"/to/302?http://127.0.0.1:PORT/ok", NULL},
        {"/to/308?//127.0.0.1:PORT/ok", NULL},
        {"/status/404", "the server's status is 404"},
        {"/status/302", "the server's status is 302"},
        {"/to/304?/ok", "the server's status is 304"},
        {"/to/302?http://127.0.0.2:PORT/ok", "an address that is not allowed"},
        {"/to/302?http://169.254.169.254/latest", "an address that is not allowed"},
        {"/to/302?http://[::1]:PORT/ok", "an address that is not allowed"},
        {"/to/302?http://[::ffff:127.0.0.1]:PORT/ok", "an address that is not allowed"},
        {"/to/302?//10.0.0.1/ok", "an address that is not allowed"},
        {"/to/302?file:///etc/passwd", "another kind of URL"},
        {"/to/302?data:;base64,YWJj", "another kind of URL"},
        {"/to/302?gopher://127.0.0.1:PORT/", "another kind of URL"},
        {"/to/302?ok", "another kind of URL"},
        {"/big", "larger than"},
        {"/hang", "within"},
    };
    source_options o = source_default_options();
    scripted       s;
    buf            b;
    err            e;
    o.fetch     = true;
    o.max_bytes = 50000;
    o.allows    = allows_loopback;
    buf_init(&b, 1 << 20);
    if (!CHECK(start_server(&s))) return;
    for (size_t i = 0; i < COUNT(table); i++) {
        char url[512] = "http://127.0.0.1:PORT", text[512], *out = text;
        snprintf(url, sizeof url, "http://127.0.0.1:PORT%s", table[i].path);
        for (const char *p = url; *p;) { /* PORT is a number */
            if (strncmp(p, "PORT", 4))
                *out++ = *p++;
            else
                out += sprintf(out, "%d", s.port), p += 4;
        }
        *out      = 0;
        o.fetch_s = strcmp(table[i].path, "/hang") ? 20 : 0.3;
        if (!table[i].want) {
            CHECK_OK(load(&b, &o, text, &e), e);
            CHECK_STR(buf_str(&b), STR("picture"));
        } else {
            CHECK_FAILS(load(&b, &o, text, &e), e, table[i].want);
            CHECK_INT(b.n > 50000, 0);
        }
    }
    char loop[600];
    snprintf(loop, sizeof loop, "http://127.0.0.1:%d", s.port);
    for (int i = 0; i < 6; i++) strcat(loop, "/to/302?");
    strcat(loop, "/ok");
    o.fetch_s = 20;
    CHECK_FAILS(load(&b, &o, loop, &e), e, "more than 5 redirects");
    o.fetch = false;
    CHECK_FAILS(load(&b, &o, "http://127.0.0.1/", &e), e, "--media-fetch is off");
    stop_server(&s);
    buf_deinit(&b);
}

static void *cancel_soon(void *cancel)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    atomic_store((atomic_bool *)cancel, true);
    return NULL;
}

TEST(source_cancels_a_fetch)
{
    source_options o      = source_default_options();
    atomic_bool    cancel = false;
    scripted       s;
    pthread_t      thread;
    buf            b;
    err            e;
    char           url[64];
    o.fetch  = true;
    o.allows = allows_loopback;
    o.cancel = &cancel;
    buf_init(&b, 1 << 20);
    if (!CHECK(start_server(&s)) || !CHECK(thread_start(&thread, cancel_soon, &cancel))) return;
    snprintf(url, sizeof url, "http://127.0.0.1:%d/hang", s.port);
    double start = clock_s();
    CHECK(!load(&b, &o, url, &e));
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    CHECK(clock_s() - start < 10);
    pthread_join(thread, NULL);
    stop_server(&s);
    buf_deinit(&b);
}

TEST(source_reads_files_below_a_directory)
{
    source_options o = source_default_options();
    char           dir[256], url[512], path[512];
    buf            b;
    err            e;
    buf_init(&b, 1 << 20);
    snprintf(dir, sizeof dir, "%s/media", test_tmp_dir());
    test_tmp_file("outside.png", "outside", 7);
    mkdir(dir, 0700);
    snprintf(path, sizeof path, "%s/sub", dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/a b.png", dir);
    FILE *f = fopen(path, "w");
    if (!CHECK(f)) return;
    fputs("inside", f);
    fclose(f);
    snprintf(path, sizeof path, "%s/link", dir);
    CHECK(!symlink("../outside.png", path));
    snprintf(path, sizeof path, "%s/absolute", dir);
    CHECK(!symlink("/etc/passwd", path));
    snprintf(path, sizeof path, "%s/good", dir);
    CHECK(!symlink("a b.png", path));
    snprintf(path, sizeof path, "%s/pipe", dir);
    CHECK(!mkfifo(path, 0600));
    snprintf(url, sizeof url, "file://%s/a%%20b.png", dir);
    CHECK_FAILS(load(&b, &o, url, &e), e, "no --media-dir");
    o.dir = dir;
    static const struct {
        const char *path, *want; /* want NULL: it is read */
    } table[] = {{"/a%20b.png", NULL},
                 {"//a b.png", NULL},
                 {"/sub/../a%20b.png", NULL},
                 {"/good", NULL},
                 {"/none", "no such file"},
                 {"/link", "cannot be opened"},
                 {"/absolute", "cannot be opened"},
                 {"/../outside.png", "cannot be opened"},
                 {"/%2e%2e/outside.png", "cannot be opened"},
                 {"/sub/../../outside.png", "cannot be opened"},
                 {"/sub", "not that of a regular file"},
                 {"/pipe", "not that of a regular file"},
                 {"/", "not below"},
                 {"", "not below"},
                 {"x/a", "not below"},
                 {"/a%00", "file:///PATH"}};
    for (size_t i = 0; i < COUNT(table); i++) {
        snprintf(url, sizeof url, "file://%s%s", dir, table[i].path);
        if (table[i].want) {
            CHECK_FAILS(load(&b, &o, url, &e), e, table[i].want);
            continue;
        }
        CHECK_OK(load(&b, &o, url, &e), e);
        CHECK_STR(buf_str(&b), STR("inside"));
    }
    CHECK_FAILS(load(&b, &o, "file:///etc/passwd", &e), e, "not below");
    CHECK_FAILS(load(&b, &o, "file://etc/passwd", &e), e, "file:///PATH");
    o.max_bytes = 3;
    snprintf(url, sizeof url, "file://%s/good", dir);
    CHECK_FAILS(load(&b, &o, url, &e), e, "more than 3 bytes");
    buf_deinit(&b);
}
