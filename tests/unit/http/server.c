#include "base/clock.h"
#include "base/mem.h"
#include "client.h"
#include "test.h"
#include "toy.h"

#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define HOST "Host: x\r\n"

static const double wait_s = 5;

static toy *open_toy(test_case *t, const http_options *o)
{
    err          e;
    toy         *y;
    http_options plain;
    http_options_init(&plain);
    plain.host = "127.0.0.1";
    if (!CHECK_OK(toy_open(&y, o ? o : &plain, 0.001, &e), e) || !CHECK(toy_start(y))) exit(1);
    return y;
}

static toy *open_with_client(test_case *t, client *c)
{
    toy *y = open_toy(t, NULL);
    CHECK(client_open(c, toy_port(y)));
    return y;
}

static void close_both(toy *y, client *c)
{
    client_close(c);
    toy_close(y);
}

static void expect(test_case *t, client *c, int status, const char *body)
{
    client_reply r;
    CHECK(client_read(c, &r, wait_s));
    CHECK_INT(r.status, status);
    CHECK(r.whole);
    if (body) CHECK_STR(buf_str(&r.body), str_of(body));
    client_reply_deinit(&r);
}

static long stat_of(test_case *t, int port, const char *name)
{
    client       c;
    client_reply r;
    long         value = -1;
    if (CHECK(client_open(&c, port)) && client_say(&c, "GET /stats HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n") &&
        CHECK(client_read(&c, &r, wait_s))) {
        buf_putc(&r.body, 0);
        const char *p = strstr(r.body.p, name);
        if (CHECK(p)) value = atol(p + strlen(name));
        client_reply_deinit(&r);
    }
    client_close(&c);
    return value;
}

static void wait_for(test_case *t, int port, const char *name, long value)
{
    long   got;
    double end = clock_s() + wait_s;
    while ((got = stat_of(t, port, name)) != value && clock_s() < end) usleep(2000);
    CHECK_MSG(got == value, "%s is %ld, expected %ld", name, got, value);
}

TEST(http_server_answers_and_keeps_the_connection)
{
    client       c;
    client_reply r;
    toy         *y = open_with_client(t, &c);
    for (int i = 0; i < 20; i++) {
        CHECK(client_say(&c, "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
        expect(t, &c, 200, "hello");
    }
    CHECK(client_say(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc"));
    expect(t, &c, 200, "abc");
    CHECK(client_say(&c, "POST /echo HTTP/1.1\r\n" HOST
                         "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"));
    expect(t, &c, 200, "abcde");
    CHECK(client_say(&c, "HEAD /hello HTTP/1.1\r\n" HOST "\r\nGET /none HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(client_read_head(&c, &r, wait_s));
    CHECK_STR(client_field(&r, "Content-Length"), STR("5"));
    CHECK(client_field(&r, "Date").n == 29);
    client_reply_deinit(&r);
    expect(t, &c, 404, "?");
    CHECK(client_say(&c, "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"));
    expect(t, &c, 200, "hello");
    CHECK(client_closes(&c, wait_s));
    close_both(y, &c);
}

TEST(http_server_streams_in_chunks)
{
    client       c;
    client_reply r;
    toy         *y = open_with_client(t, &c);
    CHECK(client_say(&c, "GET /stream?50 HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(client_read(&c, &r, wait_s));
    CHECK(r.status == 200 && r.whole);
    CHECK_INT(r.n_chunks, 50);
    CHECK_STR(client_field(&r, "Content-Type"), STR("text/event-stream"));
    client_reply_deinit(&r);
    CHECK(client_say(&c, "HEAD /stream?3 HTTP/1.1\r\n" HOST "\r\n")); /* no chunks, and the connection goes on */
    CHECK(client_read_head(&c, &r, wait_s));
    client_reply_deinit(&r);
    CHECK(client_say(&c, "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
    expect(t, &c, 200, "hello");
    client_close(&c);

    CHECK(client_open(&c, toy_port(y))); /* 1.0: to the end of the connection */
    CHECK(client_say(&c, "GET /stream?5 HTTP/1.0\r\n\r\n"));
    CHECK(client_read(&c, &r, wait_s));
    CHECK(!client_field(&r, "Transfer-Encoding").s && r.body.n > 5 * 50);
    client_reply_deinit(&r);
    close_both(y, &c);
}

TEST(http_server_cut_streams_look_broken)
{
    client       c;
    client_reply r;
    toy         *y = open_with_client(t, &c);
    CHECK(client_say(&c, "GET /cut HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(client_read(&c, &r, wait_s));
    CHECK_STR(buf_str(&r.body), STR("half a text"));
    CHECK(!r.whole && client_closes(&c, wait_s));
    client_reply_deinit(&r);
    client_close(&c);
    wait_for(t, toy_port(y), "\nlost ", 1);
    toy_close(y);
}

TEST(http_server_pipelines_in_order)
{
    client c;
    toy   *y = open_with_client(t, &c);
    CHECK(client_say(&c,
                     "GET /stream?20 HTTP/1.1\r\n" HOST "\r\nPOST /echo HTTP/1.1\r\n" HOST
                     "Content-Length: 2\r\n\r\nabGET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\nGET /hello"));
    expect(t, &c, 200, NULL);
    expect(t, &c, 200, "ab");
    expect(t, &c, 200, "hello");
    CHECK(client_closes(&c, wait_s));
    close_both(y, &c);
}

TEST(http_server_continues_only_what_it_wants)
{
    client c;
    toy   *y = open_with_client(t, &c);
    CHECK(client_say(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"));
    expect(t, &c, 100, NULL);
    CHECK(client_say(&c, "abc"));
    expect(t, &c, 200, "abc");
    CHECK(client_say(&c, "GET /refused HTTP/1.1\r\n" HOST "\r\n")); /* no body: the connection goes on */
    expect(t, &c, 404, "no such path");
    CHECK(client_say(&c, "POST /refused HTTP/1.1\r\n" HOST "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"));
    expect(t, &c, 404, "no such path");
    CHECK(client_closes(&c, wait_s));
    close_both(y, &c);
}

/* Read in one-byte pieces, written in one-byte pieces. */
TEST(http_server_takes_any_pieces)
{
    static const char text[] =
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    client c;
    toy   *y = open_with_client(t, &c);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        CHECK(client_send(&c, (str){text + i, 1}));
        usleep(300);
    }
    expect(t, &c, 200, "hello");
    close_both(y, &c);
}

TEST(http_server_sends_what_the_client_is_slow_to_take)
{
    client       c;
    client_reply r;
    bool         same = true;
    toy         *y    = open_toy(t, NULL);
    CHECK(client_open_small(&c, toy_port(y), 4096));
    CHECK(client_say(&c, "GET /big?8000000 HTTP/1.1\r\n" HOST "\r\nGET /hello HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(client_read(&c, &r, wait_s));
    CHECK_INT(r.body.n, 8000000);
    for (size_t i = 0; i < r.body.n; i++) same &= r.body.p[i] == (char)('a' + i % 26);
    CHECK(same);
    client_reply_deinit(&r);
    expect(t, &c, 200, "hello");
    close_both(y, &c);
}

/* Sends eight times the limit of unsent bytes: the handler pauses and is called again. */
TEST(http_server_goes_on_when_there_is_room)
{
    client c;
    size_t n = 0;
    toy   *y = open_with_client(t, &c);
    CHECK(client_say(&c, "GET /flood HTTP/1.1\r\n" HOST "\r\n"));
    for (; n < (8 << 20) && client_more(&c, wait_s); buf_clear(&c.in)) n += c.in.n;
    CHECK_MSG(n >= (8 << 20), "%zu bytes came", n);
    CHECK(stat_of(t, toy_port(y), "\nrooms ") > 4);
    CHECK(stat_of(t, toy_port(y), "\nmost_unsent ") <= (1 << 20) + (32 << 10));
    client_close(&c);
    wait_for(t, toy_port(y), "\ncalls ", 1);
    toy_close(y);
}

static void check_leaves(test_case *t, toy *y, const char *request, bool reset)
{
    client c;
    long   lost = stat_of(t, toy_port(y), "\nlost ");
    CHECK(client_open(&c, toy_port(y)));
    CHECK(client_say(&c, request));
    wait_for(t, toy_port(y), "\ncalls ", 2); /* this one, and the question itself */
    if (reset)
        client_reset(&c);
    else
        client_close(&c);
    wait_for(t, toy_port(y), "\nlost ", lost + 1);
    wait_for(t, toy_port(y), "\ncalls ", 1);
}

TEST(http_server_sees_clients_leave)
{
    toy *y = open_toy(t, NULL);
    for (int reset = 0; reset < 2; reset++) {
        check_leaves(t, y, "GET /wait HTTP/1.1\r\n" HOST "\r\n", reset);
        check_leaves(t, y, "GET /stream?1000000 HTTP/1.1\r\n" HOST "\r\n", reset);
        check_leaves(t, y, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 9\r\n\r\nabc", reset);
    }
    toy_close(y);
}

/* Says all of it, ends its own side, and reads the replies that it is owed. */
static void check_half_close(test_case *t, client *c, const char *requests, int n_replies)
{
    client_reply r;
    CHECK(client_say(c, requests));
    shutdown(c->fd, SHUT_WR);
    for (int i = 0; i < n_replies; i++) {
        CHECK(client_read(c, &r, 60));
        CHECK(r.status == 200 && r.whole);
        client_reply_deinit(&r);
    }
    CHECK(client_closes(c, 60));
    client_close(c);
}

TEST(http_server_serves_clients_that_end_their_side)
{
    static const struct {
        const char *requests;
        int         n;
    } all[] = {
        {"GET /hello HTTP/1.1\r\n" HOST "\r\n", 1},
        {"GET /stream?100 HTTP/1.1\r\n" HOST "\r\n", 1},
        {"GET /stream?100 HTTP/1.0\r\n\r\n", 1},
        {"GET /big?3000000 HTTP/1.1\r\n" HOST "\r\n", 1},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc", 1},
        {"GET /stream?50 HTTP/1.1\r\n" HOST "\r\nGET /stream?50 HTTP/1.1\r\n" HOST "\r\nGET /hello HTTP/1.1\r\n" HOST
         "\r\nGET /hello",
         3},
    };
    http_options o;
    client       c;
    char         cert[256], key[256], path[256];
    snprintf(cert, sizeof cert, "%s/half.cert", test_tmp_dir());
    snprintf(key, sizeof key, "%s/half.key", test_tmp_dir());
    snprintf(path, sizeof path, "%s/half", test_tmp_dir());
    CHECK(toy_certificate(cert, key));
    http_options_init(&o);
    o.host      = "127.0.0.1";
    o.unix_path = path;
    for (int tls = 0; tls < 2; tls++) {
        toy *y = open_toy(t, &o);
        for (size_t i = 0; i < COUNT(all); i++) {
            if (CHECK(tls ? client_open_tls(&c, toy_port(y), NULL) : client_open(&c, toy_port(y))))
                check_half_close(t, &c, all[i].requests, all[i].n);
            if (CHECK(client_open_unix(&c, path))) check_half_close(t, &c, all[i].requests, all[i].n);
        }
        toy_close(y);
        o.tls_cert = cert;
        o.tls_key  = key;
    }
}

TEST(http_server_drops_fields_that_break_lines)
{
    client       c;
    client_reply r;
    toy         *y = open_with_client(t, &c);
    CHECK(client_say(&c, "GET /split HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(client_read(&c, &r, wait_s));
    CHECK(!client_field(&r, "X-Evil").s && !client_field(&r, "X-Split").s);
    CHECK_STR(buf_str(&r.body), STR("127.0.0.1"));
    client_reply_deinit(&r);
    close_both(y, &c);
}

TEST(http_server_drains)
{
    client idle, busy, c;
    toy   *y = open_toy(t, NULL);
    CHECK(client_open(&idle, toy_port(y)) && client_say(&idle, "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
    expect(t, &idle, 200, "hello");
    CHECK(client_open(&busy, toy_port(y)) && client_say(&busy, "GET /stream?300 HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(client_open(&c, toy_port(y)) && client_say(&c, "GET /drain HTTP/1.1\r\n" HOST "\r\n"));
    expect(t, &c, 200, "draining");
    CHECK(client_closes(&idle, wait_s) && client_closes(&c, wait_s));
    client_close(&c);
    CHECK(client_open(&c, toy_port(y)) && client_say(&c, "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
    expect(t, &c, 200, "hello");
    CHECK(client_closes(&c, wait_s));
    client_close(&c);
    expect(t, &busy, 200, NULL); /* goes on to its end */
    CHECK(client_closes(&busy, wait_s));
    client_close(&busy);
    client_close(&idle);
    toy_close(y);
}

static void check_leaves_unix(test_case *t, const char *path)
{
    client       c, ask;
    client_reply r;
    CHECK(client_open_unix(&c, path) && client_say(&c, "GET /wait HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(client_open_unix(&ask, path));
    for (int lost = 0; lost < 2; lost++) {
        bool   seen = false;
        double end  = clock_s() + wait_s;
        while (!seen && clock_s() < end && client_say(&ask, "GET /stats HTTP/1.1\r\n" HOST "\r\n") &&
               client_read(&ask, &r, wait_s)) {
            seen = memmem(r.body.p, r.body.n, lost ? "\ncalls 1\n" : "\ncalls 2\n", 9) != NULL;
            client_reply_deinit(&r);
        }
        CHECK(seen);
        if (!lost) client_close(&c);
    }
    client_close(&ask);
}

/* As a server leaves it that was killed: in nobody's way. */
static void leave_stale_socket(test_case *t, const char *path)
{
    struct sockaddr_un a  = {.sun_family = AF_UNIX};
    int                fd = socket(AF_UNIX, SOCK_STREAM, 0);
    memcpy(a.sun_path, path, strlen(path));
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && close(fd) == 0);
}

TEST(http_server_listens_on_a_unix_socket)
{
    http_options o;
    err          e;
    toy         *second;
    client       c;
    char         path[256];
    snprintf(path, sizeof path, "%s/s", test_tmp_dir());
    http_options_init(&o);
    o.unix_path = path;
    for (int i = 0; i < 2; i++) {
        toy *y = open_toy(t, &o);
        CHECK_FAILS(toy_open(&second, &o, 1, &e), e, "cannot listen on");
        CHECK(client_open_unix(&c, path) && client_say(&c, "GET /split HTTP/1.1\r\n" HOST "\r\n"));
        expect(t, &c, 200, ""); /* no peer */
        client_close(&c);
        check_leaves_unix(t, path);
        toy_close(y);
        CHECK(access(path, F_OK) != 0);
        leave_stale_socket(t, path);
    }
}

/* Events of the directory that a socket's file is in, as a mask. */
static uint32_t events_of(test_case *t, int watch)
{
    char     bytes[4096];
    uint32_t seen = 0;
    ssize_t  n    = read(watch, bytes, sizeof bytes);
    if (!CHECK(n > 0)) return 0;
    for (ssize_t i = 0; i < n;) {
        struct inotify_event ev;
        memcpy(&ev, bytes + i, sizeof ev);
        seen |= ev.mask;
        i += (ssize_t)(sizeof ev + ev.len);
    }
    return seen;
}

/* A mode that is narrowed after bind leaves a moment in which anybody may connect. */
TEST(http_server_makes_its_socket_with_its_mode)
{
    static const mode_t masks[] = {0, 022, 077};
    http_options        o;
    char                path[256];
    struct stat         st;
    int                 watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    snprintf(path, sizeof path, "%s/mode", test_tmp_dir());
    http_options_init(&o);
    o.unix_path = path;
    CHECK(inotify_add_watch(watch, test_tmp_dir(), IN_CREATE | IN_ATTRIB) >= 0);
    for (size_t i = 0; i < COUNT(masks); i++) {
        mode_t before = umask(masks[i]);
        toy   *y      = open_toy(t, &o);
        umask(before);
        CHECK(stat(path, &st) == 0);
        CHECK_INT(st.st_mode & 0777, 0660);
        CHECK_INT(events_of(t, watch) & IN_ATTRIB ? 1 : 0, (0660 & masks[i]) != 0); /* set again only to widen it */
        toy_close(y);
    }
    close(watch);
}

TEST(http_server_speaks_tls)
{
    http_options o;
    client       c;
    client_reply r;
    char         cert[256], key[256];
    snprintf(cert, sizeof cert, "%s/cert", test_tmp_dir());
    snprintf(key, sizeof key, "%s/key", test_tmp_dir());
    CHECK(toy_certificate(cert, key));
    http_options_init(&o);
    o.host     = "127.0.0.1";
    o.tls_cert = cert;
    o.tls_key  = key;
    toy *y     = open_toy(t, &o);
    CHECK(client_open_tls(&c, toy_port(y), "\x02h2\x08http/1.1"));
    CHECK(client_say(&c, "GET /stream?20 HTTP/1.1\r\n" HOST "\r\nGET /hello HTTP/1.1\r\n" HOST
                         "\r\nPOST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc"));
    expect(t, &c, 200, NULL);
    expect(t, &c, 200, "hello");
    expect(t, &c, 200, "abc");
    CHECK(client_say(&c, "GET /big?3000000 HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(client_read(&c, &r, wait_s) && r.whole);
    CHECK_INT(r.body.n, 3000000);
    CHECK(client_say(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3000000\r\n\r\n") &&
          client_send(&c, buf_str(&r.body)));
    client_reply_deinit(&r);
    CHECK(client_read(&c, &r, wait_s) && r.whole);
    CHECK_INT(r.body.n, 3000000);
    client_reply_deinit(&r);
    CHECK(client_say(&c, "GET /wait HTTP/1.1\r\n" HOST "\r\n"));
    usleep(20000);
    client_close(&c);
    CHECK(!client_open_tls(&c, toy_port(y), "\x02h2"));                              /* speaks what we do not */
    CHECK(client_open(&c, toy_port(y)) && client_say(&c, "GET / HTTP/1.1\r\n\r\n")); /* no TLS at all */
    CHECK(client_closes(&c, wait_s));
    close_both(y, &c);
}

TEST(http_server_open_says_what_is_wrong)
{
    http_options o, none;
    err          e;
    toy         *y, *second;
    http_options_init(&none);
    CHECK_FAILS(toy_open(&y, &none, 1, &e), e, "no address or path");
    o      = none;
    o.host = "example.org";
    CHECK_FAILS(toy_open(&y, &o, 1, &e), e, "'example.org' is not a numeric address");
    o.host = "127.0.0.1";
    o.port = 70000;
    CHECK_FAILS(toy_open(&y, &o, 1, &e), e, "port 70000 is not in 0..65535");
    o.port     = 0;
    o.tls_cert = "/nowhere";
    CHECK_FAILS(toy_open(&y, &o, 1, &e), e, "both a certificate and its key");
    o.tls_key = "/nowhere";
    CHECK_FAILS(toy_open(&y, &o, 1, &e), e, "cannot use the certificate '/nowhere': No such file or directory");
    o.tls_cert = o.tls_key = NULL;
    o.unix_path            = "/nowhere/at/all";
    CHECK_FAILS(toy_open(&y, &o, 1, &e), e, "cannot listen on /nowhere/at/all: No such file");
    o.unix_path = NULL;
    y           = open_toy(t, &o);
    o.port      = toy_port(y);
    CHECK_FAILS(toy_open(&second, &o, 1, &e), e, "Address already in use");
    toy_close(y);
}

TEST(http_host_is_local)
{
    CHECK(http_host_is_local("127.0.0.1") && http_host_is_local("localhost") && http_host_is_local("127.9.9.9"));
    CHECK(http_host_is_local("::1"));
    CHECK(!http_host_is_local("0.0.0.0") && !http_host_is_local("::") && !http_host_is_local("10.0.0.1"));
    CHECK(!http_host_is_local("example.org") && !http_host_is_local("::ffff:127.0.0.1") && !http_host_is_local(""));
}

TEST(http_server_holds_no_more_bodies_than_allowed)
{
    http_options o;
    client       c, d;
    http_options_init(&o);
    o.host       = "127.0.0.1";
    o.max_bodies = 4096;
    toy *y       = open_toy(t, &o);
    buf  body;
    buf_init(&body, 1 << 20);
    while (body.n < 4000) buf_putc(&body, 'x');
    CHECK(client_open(&c, toy_port(y)) && client_open(&d, toy_port(y)));
    CHECK(client_say(&c, "POST /wait HTTP/1.1\r\n" HOST "Content-Length: 4000\r\n\r\n") &&
          client_send(&c, buf_str(&body)));
    wait_for(t, toy_port(y), "\ncalls ", 2);
    CHECK(client_say(&d, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4000\r\n\r\n") &&
          client_send(&d, buf_str(&body)));
    expect(t, &d, 503, NULL);
    client_close(&d);
    client_close(&c); /* and its memory is given back */
    wait_for(t, toy_port(y), "\ncalls ", 1);
    CHECK(client_open(&d, toy_port(y)));
    CHECK(client_say(&d, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4000\r\n\r\n") &&
          client_send(&d, buf_str(&body)));
    expect(t, &d, 200, NULL);
    client_close(&d);
    buf_deinit(&body);
    toy_close(y);
}

/* A body that was taken outlives its connection. */
TEST(http_server_counts_a_taken_body_until_it_is_given_back)
{
    http_options o;
    client       c;
    buf          text;
    http_options_init(&o);
    o.host       = "127.0.0.1";
    o.max_bodies = 4096;
    toy *y       = open_toy(t, &o);
    buf_init(&text, 1 << 20);
    buf_puts(&text, "POST /keep HTTP/1.1\r\n" HOST "Content-Length: 4000\r\n\r\n");
    for (int i = 0; i < 4000; i++) buf_putc(&text, 'x');
    for (int i = 0; i < 2; i++) {
        CHECK(client_open(&c, toy_port(y)) && client_send(&c, buf_str(&text)));
        wait_for(t, toy_port(y), "\ncalls ", 2);
        client_close(&c);
        wait_for(t, toy_port(y), "\ncalls ", 1);
        CHECK(client_open(&c, toy_port(y)) && client_send(&c, buf_str(&text)));
        expect(t, &c, 503, NULL);
        client_close(&c);
        CHECK(client_open(&c, toy_port(y)) && client_say(&c, "GET /give-back HTTP/1.1\r\n" HOST "\r\n"));
        expect(t, &c, 200, "given back");
        client_close(&c);
    }
    buf_deinit(&text);
    toy_close(y);
}

TEST(http_server_turns_connections_away)
{
    http_options o;
    client       c[6] = {0};
    http_options_init(&o);
    o.host            = "127.0.0.1";
    o.max_connections = 3;
    o.reserved        = 0;
    toy *y            = open_toy(t, &o);
    CHECK(client_open(&c[0], toy_port(y)) && client_say(&c[0], "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
    expect(t, &c[0], 200, "hello"); /* idle from here on */
    for (int i = 1; i < 3; i++)
        CHECK(client_open(&c[i], toy_port(y)) && client_say(&c[i], "GET /wait HTTP/1.1\r\n" HOST "\r\n"));
    usleep(20000);
    CHECK(client_open(&c[3], toy_port(y)) && client_say(&c[3], "GET /wait HTTP/1.1\r\n" HOST "\r\n"));
    CHECK(client_closes(&c[0], wait_s)); /* the idle one gives way */
    usleep(20000);
    CHECK(client_open(&c[4], toy_port(y)));
    expect(t, &c[4], 503, NULL); /* all are busy */
    CHECK(client_closes(&c[4], wait_s));
    client_reset(&c[1]);
    usleep(20000);
    CHECK(client_open(&c[5], toy_port(y)) && client_say(&c[5], "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
    expect(t, &c[5], 200, "hello");
    for (int i = 0; i < 6; i++) client_close(&c[i]);
    toy_close(y);
}
