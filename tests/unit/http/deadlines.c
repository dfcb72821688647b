/* Deadlines of connections. A test waits for the short one of two deadlines to pass, then looks at what has the long one:
 * a slow machine only makes it wait longer. */
#include "client.h"
#include "http/client.h"
#include "test.h"
#include "toy.h"

#include <stdlib.h>

#define HELLO "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"

static const double short_s = 0.2, long_s = 600, wait_s = 60;

static toy *open_with(test_case *t, double head_s, double body_s, double idle_s)
{
    err          e;
    toy         *y;
    http_options o;
    http_options_init(&o);
    o.host   = "127.0.0.1";
    o.head_s = head_s;
    o.body_s = body_s;
    o.idle_s = idle_s;
    if (!CHECK_OK(toy_open(&y, &o, 0.001, &e), e) || !CHECK(toy_start(y))) exit(1);
    return y;
}

static void ask(test_case *t, client *c, const char *what, int status)
{
    client_reply r;
    CHECK(client_say(c, what));
    if (!CHECK(client_read(c, &r, wait_s))) return;
    CHECK_INT(r.status, status);
    client_reply_deinit(&r);
}

/* A connection that was used is closed after idle_s, without a word; one that has not spoken yet has head_s. */
TEST(http_deadline_of_idle_connections)
{
    toy   *y = open_with(t, long_s, long_s, short_s);
    client used, fresh;
    CHECK(client_open(&used, toy_port(y)) && client_open(&fresh, toy_port(y)));
    ask(t, &used, HELLO, 200);
    CHECK(!client_more(&used, wait_s) && used.in.n == 0); /* closed, and nothing was sent */
    ask(t, &fresh, HELLO, 200);
    client_close(&used);
    client_close(&fresh);
    toy_close(y);
}

/* A connection that is used again and again is never idle for long; one that idles has idle_s, not head_s. */
TEST(http_deadline_of_heads)
{
    toy   *y = open_with(t, short_s, long_s, long_s);
    client used, silent, part, second;
    CHECK(client_open(&used, toy_port(y)) && client_open(&silent, toy_port(y)) && client_open(&part, toy_port(y)) &&
          client_open(&second, toy_port(y)));
    ask(t, &used, HELLO, 200);
    ask(t, &second, HELLO, 200);
    CHECK(client_say(&second, "GET /hello HTT")); /* the next head is begun: head_s counts from here */
    ask(t, &part, "GET /hello HTTP/1.1\r\nHo", 408);
    CHECK(client_closes(&part, wait_s));
    CHECK(client_closes(&silent, wait_s));
    ask(t, &second, "", 408);
    ask(t, &used, HELLO, 200); /* still there: it has sent nothing of a head */
    client_close(&used);
    client_close(&silent);
    client_close(&part);
    client_close(&second);
    toy_close(y);
}

/* A head that is whole within its deadline is served, whatever its body takes; the body has its own. */
TEST(http_deadline_of_bodies)
{
    toy   *y = open_with(t, long_s, short_s, long_s);
    client slow, other;
    CHECK(client_open(&slow, toy_port(y)) && client_open(&other, toy_port(y)));
    CHECK(client_say(&other, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Len"));
    ask(t, &slow, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc", 408);
    CHECK(client_closes(&slow, wait_s));
    ask(t, &other, "gth: 3\r\n\r\nabc", 200);
    client_close(&slow);
    client_close(&other);
    toy_close(y);
}

TEST(http_nothing_is_fine_to_close)
{
    http_close(NULL);
    http_client_close(NULL);
}
