#include "http/response.h"

#include "http/client.h"
#include "test.h"

/* Reads bytes in pieces of this size and writes down status, body and end. */
static void transcribe(str in, size_t piece, bool ends, buf *out)
{
    http_response r;
    err           e  = {0};
    bool          ok = true;
    size_t        at = 0;
    http_response_init(&r);
    while (ok && at < in.n && r.state != RESPONSE_DONE) {
        size_t end = in.n - at < piece ? in.n : at + piece;
        while (ok && at < end && r.state != RESPONSE_DONE) {
            size_t used = 0;
            str    body;
            ok = http_response_feed(&r, (str){in.s + at, end - at}, &used, &body, &e);
            at += used;
            if (ok) buf_put(out, body.s, body.n);
        }
    }
    if (ok && ends) ok = http_response_end(&r, &e);
    buf_printf(out, "|%d %d %zu %s", r.status, r.keep_alive, in.n - at,
               ok ? r.state == RESPONSE_DONE ? "whole" : "more" : e.text);
    http_response_deinit(&r);
}

static const struct {
    const char *in, *want;
    bool        ends;
} cases[] = {
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello|200 1 0 whole", false},
    {"HTTP/1.1 200\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhello", "he|200 1 3 whole", false},
    {"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "hello|200 1 0 whole", false},
    {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello|200 0 0 whole", false},
    {"HTTP/1.1 200 OK\r\ncOnnection: keep-alive, CLOSE\r\nContent-Length: 1\r\n\r\nx", "x|200 0 0 whole", false},
    {"HTTP/1.1 200 OK\r\n\r\nuntil the end", "until the end|200 0 0 whole", true},
    {"HTTP/1.1 200 OK\r\n\r\nuntil the end", "until the end|200 0 0 more", false},
    {"HTTP/1.1 204 No Content\r\n\r\nx", "|204 1 1 whole", false},
    {"HTTP/1.1 304 X\r\nContent-Length: 9\r\n\r\n", "|304 1 0 whole", false},
    {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "|200 1 0 whole", false},
    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 X\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
     "x|200 1 0 whole", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\nA;x=\"y\"\r\n0123456789\r\n0\r\n\r\n",
     "hello0123456789|200 1 0 whole", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1 \r\nx\r\n000\r\nA: b\r\nC: d\r\n\r\nrest",
     "x|200 1 4 whole", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
     "hel|200 1 0 the server closed the connection in the middle of its response", true},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
     "hell|200 1 0 the server closed the connection in the middle of its response", true},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
     "hello|200 1 0 the server closed the connection in the middle of its response", true},
    {"HTTP/1.1 200 OK\r\n", "|0 0 0 the server closed the connection without a response", true},
    {"", "|0 0 0 the server closed the connection without a response", true},
    {"SSH-2.0-OpenSSH_9.2\r\n", "|0 0 0 the server does not speak HTTP/1.1", false},
    {"HTTP/2 200\r\n\r\n", "|0 0 2 the server does not speak HTTP/1.1", false},
    {"HTTP/1.1 2x0 OK\r\n\r\n", "|0 0 0 the server does not speak HTTP/1.1", false},
    {"HTTP/1.1 099 OK\r\n\r\n", "|99 1 0 the reply's status is 99", false},
    {"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "|200 1 0 a line of the reply's head has no name", false},
    {"HTTP/1.1 200 OK\r\n: x\r\n\r\n", "|200 1 0 a line of the reply's head has no name", false},
    {"HTTP/1.1 200 OK\r\nA: \x01\r\n\r\n", "|0 0 2 there is a control character in the reply's head", false},
    {"HTTP/1.1 101 X\r\n\r\n", "|101 1 0 the server switches protocols, which is not supported", false},
    {"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "|200 1 0 the reply's Content-Length is not a number", false},
    {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
     "|200 1 0 the reply's Content-Length is not a number", false},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "|200 1 0 the reply has two Content-Lengths",
     false},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
     "|200 1 0 the reply has both Content-Length and Transfer-Encoding", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
     "|200 1 0 the reply's Transfer-Encoding is not chunked", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
     "|200 1 0 the size of a chunk of the reply is not a number", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
     "|200 1 0 the size of a chunk of the reply is not a number", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000000000000000\r\n",
     "|200 1 0 a chunk of the reply is too large", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n",
     "x|200 1 0 a chunk of the reply is not followed by CRLF", false},
};

TEST(http_response_is_the_same_in_all_pieces)
{
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t piece = 1; piece <= strlen(cases[i].in) + 1; piece++) {
            buf out;
            buf_init(&out, 1 << 16);
            transcribe(str_of(cases[i].in), piece, cases[i].ends, &out);
            CHECK_MSG(str_is(buf_str(&out), cases[i].want), "in pieces of %zu '%s' is '%.*s', expected '%s'", piece,
                      cases[i].in, (int)out.n, out.p, cases[i].want);
            buf_deinit(&out);
        }
}

static void check_long(test_case *t, const char *start, const char *line, const char *want)
{
    buf in, out;
    buf_init(&in, 1 << 22);
    buf_init(&out, 1 << 22);
    buf_puts(&in, start);
    for (int i = 0; i < 20000; i++) buf_puts(&in, line);
    transcribe(buf_str(&in), 1000, false, &out);
    buf_putc(&out, 0);
    CHECK_MSG(strstr(out.p, want), "%s", out.p);
    buf_deinit(&in);
    buf_deinit(&out);
}

TEST(http_response_is_bounded)
{
    check_long(t, "HTTP/1.1 200 OK\r\n", "A: b\r\n", "head is longer than 64 KiB");
    check_long(t, "HTTP/1.1 200 OK\r\nA:", "bbbb", "a line of the reply is longer than 16 KiB");
    check_long(t, "", "HTTP/1.1 100 X\r\n\r\n", "too many interim responses");
    check_long(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "A: b\r\n", "trailers are too long");
    check_long(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", "abc", "line of the reply is longer");
}

TEST(http_response_fields)
{
    http_response r;
    err           e;
    size_t        used = 0, at = 0;
    str           body, in     = STR("HTTP/1.1 200 OK\r\nContent-Type:  text/html \r\nX: 1\r\nx: 2\r\nEmpty:\r\n\r\n");
    http_response_init(&r);
    for (; at < in.n; at += used) CHECK_OK(http_response_feed(&r, (str){in.s + at, in.n - at}, &used, &body, &e), e);
    CHECK_STR(http_response_field(&r, "content-type"), STR("text/html"));
    CHECK_STR(http_response_field(&r, "X"), STR("1"));
    CHECK_INT(http_response_field(&r, "empty").n, 0);
    CHECK(!http_response_field(&r, "HTTP/1.1 200 OK\r\nContent-Type").s && !http_response_field(&r, "y").s);
    http_response_deinit(&r);
}

TEST(http_urls)
{
    static const struct {
        const char *text, *host, *authority, *path;
        int         port;
        bool        is_tls;
    } good[] = {
        {"http://127.0.0.1:8080", "127.0.0.1", "127.0.0.1:8080", "", 8080, false},
        {"https://api.example.org", "api.example.org", "api.example.org", "", 443, true},
        {"http://localhost/", "localhost", "localhost", "", 80, false},
        {"http://[::1]:81/v1//", "::1", "[::1]:81", "/v1", 81, false},
        {"https://[fe80::1]/a/b", "fe80::1", "[fe80::1]", "/a/b", 443, true},
        {"http://h/~!a", "h", "h", "/~!a", 80, false}, /* the last and the first character that a path may have */
    };
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"127.0.0.1:8080", "does not begin with http://"},
        {"ftp://x", "does not begin"},
        {"", "does not begin"},
        {"http://", "not the name of a host"},
        {"http://:80", "not the name of a host"},
        {"http://a b", "not the name of a host"},
        {"http://u:p@h", "not a port"},
        {"http://u@h", "not the name of a host"},
        {"http://h:0", "not a port from 1"},
        {"http://h:65536", "not a port"},
        {"http://h:", "not a port"},
        {"http://[::1", "not the name of a host"},
        {"http://[::1]x", "not a port"},
        {"http://h/a?b", "is not a path"},
        {"http://h/a b", "is not a path"},
        {"http://h/a\x7f", "is not a path"},
        {"http://h/\xC3\xA9", "is not a path"},
        {"http://h/a\r\nX: y", "is not a path"},
        {"http://h\r\n", "not the name of a host"},
    };
    http_url u;
    err      e;
    for (size_t i = 0; i < COUNT(good); i++) {
        CHECK_OK(http_url_parse(&u, str_of(good[i].text), &e), e);
        CHECK_STR(str_of(u.host), str_of(good[i].host));
        CHECK_STR(str_of(u.authority), str_of(good[i].authority));
        CHECK_STR(str_of(u.path), str_of(good[i].path));
        CHECK_INT(u.port, good[i].port);
        CHECK_INT(u.is_tls, good[i].is_tls);
    }
    for (size_t i = 0; i < COUNT(bad); i++) CHECK_FAILS(http_url_parse(&u, str_of(bad[i].text), &e), e, bad[i].why);
    char long_one[3000] = "http://";
    memset(long_one + 7, 'a', 300);
    CHECK_FAILS(http_url_parse(&u, str_of(long_one), &e), e, "not the name of a host");
    memset(long_one + 8, '/', 1);
    memset(long_one + 9, 'a', 2000);
    CHECK_FAILS(http_url_parse(&u, str_of(long_one), &e), e, "is not a path");
}
