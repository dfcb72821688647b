#include "http/parse.h"

#include "base/fault.h"
#include "test.h"

#include <limits.h>

#define GET  "GET / HTTP/1.1\r\n"
#define POST "POST / HTTP/1.1\r\nHost: x\r\n"
#define HOST "Host: x\r\n"

enum { MAX_HEAD = 1024, MAX_FIELDS = 8, MAX_BODY = 100 };

typedef struct {
    http_scan    scan;
    http_head    head;
    http_body    bytes_left;
    buf          body;
    http_verdict verdict;
    size_t       used;
    bool         done;
} parsed;

static void parse(parsed *p, str in)
{
    *p = (parsed){0};
    http_scan_init(&p->scan, MAX_HEAD);
    buf_init(&p->body, MAX_BODY);
    p->verdict = http_scan_feed(&p->scan, in, &p->used);
    if (p->verdict.status || !p->scan.done) return;
    p->verdict = http_head_parse(&p->head, &p->scan, MAX_FIELDS, MAX_BODY);
    if (p->verdict.status) return;
    size_t used = 0;
    http_body_init(&p->bytes_left, &p->head, MAX_BODY);
    p->verdict = http_body_read(&p->bytes_left, (str){in.s + p->used, in.n - p->used}, &used, &p->body);
    p->used += used;
    p->done = !p->verdict.status && p->bytes_left.state == BODY_DONE;
}

static void drop(parsed *p)
{
    http_scan_deinit(&p->scan);
    mem_free(p->head.field);
    buf_deinit(&p->body);
}

static int status_of(str in)
{
    parsed p;
    parse(&p, in);
    int status = p.verdict.status ? p.verdict.status : p.done ? 200 : 0;
    drop(&p);
    return status;
}

TEST(http_parse_takes_a_request_apart)
{
    parsed p;
    parse(&p, STR("POST /v1/a%2fb%20c?q=%20 HTTP/1.1\r\nHost: x:80\r\nX-Empty:\r\nX-Padded: \t a b "
                  "\t\r\nContent-Length: 3\r\n\r\nabcGET"));
    CHECK(p.done);
    CHECK_STR(p.head.method, STR("POST"));
    CHECK_STR(p.head.target, STR("/v1/a%2fb%20c?q=%20"));
    CHECK_STR(p.head.path, STR("/v1/a/b c"));
    CHECK_STR(p.head.query, STR("q=%20"));
    CHECK_INT(p.head.minor, 1);
    CHECK_INT(p.head.n_fields, 4);
    CHECK_STR(p.head.field[1].name, STR("X-Empty"));
    CHECK_STR(p.head.field[1].value, STR(""));
    CHECK_STR(p.head.field[2].value, STR("a b"));
    CHECK_STR(buf_str(&p.body), STR("abc"));
    CHECK(p.head.keep_alive && !p.head.expects_continue);
    CHECK_INT(p.scan.bytes.n + 3, p.used); /* the bytes after it are not touched */
    drop(&p);
}

TEST(http_parse_puts_chunks_together)
{
    parsed p;
    parse(&p, STR(POST "transfer-ENCODING: Chunked\r\n\r\n3\r\nabc\r\n00A\r\n0123456789\r\n0\r\n\r\nrest"));
    CHECK(p.done);
    CHECK_STR(buf_str(&p.body), STR("abc0123456789"));
    drop(&p);
}

TEST(http_parse_knows_when_a_connection_goes_on)
{
    static const struct {
        str  in;
        bool keeps;
    } c[] = {
        {STR(GET HOST "\r\n"), true},
        {STR(GET HOST "Connection: close\r\n\r\n"), false},
        {STR(GET HOST "Connection: upgrade , CLOSE,x\r\n\r\n"), false},
        {STR(GET HOST "Connection: keep-alive, x-close\r\n\r\n"), true},
        {STR("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), false},
    };
    for (size_t i = 0; i < COUNT(c); i++) {
        parsed p;
        parse(&p, c[i].in);
        CHECK(p.done && p.head.keep_alive == c[i].keeps);
        drop(&p);
    }
}

TEST(http_parse_expects_only_what_it_knows)
{
    parsed p;
    parse(&p, STR(POST "Expect: 100-Continue\r\nContent-Length: 0\r\n\r\n"));
    CHECK(p.done && p.head.expects_continue);
    drop(&p);
    CHECK_INT(status_of(STR(POST "Expect: gold\r\n\r\n")), 417);
    CHECK_INT(status_of(STR("GET / HTTP/1.0\r\nExpect: gold\r\n\r\n")), 200); /* 1.0 has no such thing */
}

TEST(http_parse_refuses)
{
    static const struct {
        int status;
        str in;
    } c[] = {
        {200, STR("\r\n" GET HOST "\r\n")},
        {200, STR("OPTIONS * HTTP/1.1\r\n" HOST "\r\n")},
        {200, STR("GET / HTTP/1.0\r\n\r\n")},
        {200,
         STR(POST
             "Content-Length: 100\r\n\r\n"
             "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789")},
        {400, STR("\r\n\r\n" GET HOST "\r\n")},
        {400, STR("GET / HTTP/1.1\n" HOST "\r\n")},
        {400, STR(GET "Host: x\n\r\n")},
        {400, STR(GET HOST "\n")},
        {400, STR(GET HOST "X: a\rb\r\n\r\n")},
        {400, STR(GET HOST "X:\rTransfer-Encoding: chunked\r\n\r\n")},
        {400, STR(GET HOST "X: a\0b\r\n\r\n")},
        {400, STR(GET HOST "X: \x7f\r\n\r\n")},
        {400, STR(GET HOST "X: a\r\n b\r\n\r\n")},
        {400, STR(GET HOST "X : a\r\n\r\n")},
        {400, STR(GET HOST "X\r\n\r\n")},
        {400, STR(GET HOST ": a\r\n\r\n")},
        {400, STR(GET HOST "a(b: c\r\n\r\n")},
        {400, STR(GET "\r\n")},
        {400, STR(GET HOST HOST "\r\n")},
        {400, STR(GET "Host: a b\r\n\r\n")},
        {400, STR(GET "Host: a/b\r\n\r\n")},
        {400, STR("GET /\r\n" HOST "\r\n")},
        {400, STR("GET  / HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR("GET / HTTP/1.1 \r\n" HOST "\r\n")},
        {400, STR(" GET / HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR("GET / http/1.1\r\n" HOST "\r\n")},
        {400, STR("GET / HTTP/11\r\n" HOST "\r\n")},
        {400, STR("G@T / HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR("GET x HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR("GET * HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR("GET http://x/ HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR("GET /a#b HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR("GET /\xc3\xa9 HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR("GET /% HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR("GET /%4 HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR("GET /%4g HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR("GET /%00 HTTP/1.1\r\n" HOST "\r\n")},
        {400, STR(POST "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx")},
        {400, STR(POST "Content-Length: 1, 1\r\n\r\nx")},
        {400, STR(POST "Content-Length: +1\r\n\r\nx")},
        {400, STR(POST "Content-Length: 0x1\r\n\r\nx")},
        {400, STR(POST "Content-Length:\r\n\r\nx")},
        {400, STR(POST "Content-Length: 1\t\r\n\r\nx")},
        {400, STR(POST "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: identity\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")},
        {400, STR("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: chunked\r\n\r\n1\r\nx\n0\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: chunked\r\n\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: chunked\r\n\r\n-1\r\n")},
        {400, STR(POST "Transfer-Encoding: chunked\r\n\r\n00000000000000001\r\nx\r\n")},
        {400, STR(POST "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n")},
        {400, STR(POST "Transfer-Encoding: chunked\r\n\r\n0\r\n\rx")},
        {400, STR("\x16\x03\x01\x02")},
        {413, STR(POST "Content-Length: 101\r\n\r\n")},
        {413, STR(POST "Content-Length: 107374182400\r\n\r\n")},
        {413, STR(POST "Content-Length: 99999999999999999999999999999999\r\n\r\n")},
        {413, STR(POST "Transfer-Encoding: chunked\r\n\r\n65\r\n")},
        {413, STR(POST "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n")},
        {413, STR(POST "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n64\r\n")},
        {431, STR(GET "a:1\r\na:1\r\na:1\r\na:1\r\na:1\r\na:1\r\na:1\r\na:1\r\n" HOST "\r\n")},
        {501, STR("BREW / HTTP/1.1\r\n" HOST "\r\n")},
        {501, STR("get / HTTP/1.1\r\n" HOST "\r\n")},
        {501, STR("CONNECT x:1 HTTP/1.1\r\n" HOST "\r\n")},
        {505, STR("GET / HTTP/2.0\r\n" HOST "\r\n")},
        {505, STR("GET / HTTP/1.2\r\n" HOST "\r\n")},
    };
    for (size_t i = 0; i < COUNT(c); i++) {
        int got = status_of(c[i].in);
        CHECK_MSG(got == c[i].status, "case %zu: %d, expected %d: %.*s", i, got, c[i].status, STR_ARG(c[i].in));
    }
}

/* A head of exactly the limit is fine, one byte more is not; so are lines. */
TEST(http_parse_limits_are_exact)
{
    for (int extra = 0; extra < 2; extra++) {
        buf b;
        buf_init(&b, 4096);
        buf_puts(&b, GET HOST "X: ");
        while (b.n < (size_t)(MAX_HEAD - 4 + extra)) buf_putc(&b, 'a');
        buf_puts(&b, "\r\n\r\n");
        CHECK_INT(status_of(buf_str(&b)), extra ? 431 : 200);
        buf_deinit(&b);
    }
}

TEST(http_parse_survives_without_memory)
{
    str  in = STR(POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    long n;
    fault_fail_nth(LONG_MAX);
    CHECK_INT(status_of(in), 200);
    n = fault_tries();
    CHECK(n >= 3);
    for (long i = 1; i <= n; i++) {
        fault_fail_nth(i);
        CHECK_INT(status_of(in), 503);
    }
    fault_fail_nth(0);
}
