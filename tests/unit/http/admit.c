/* Places in the table, driven without the loop: addresses and the time are the test's. */
#include "base/mem.h"
#include "http/inside.h"
#include "test.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    test_case   *t;
    http_server *s;
    char         path[256];
    bool         waits; /* requests are left running */
} hall;

static bool on_head(void *ctx, http_call *c)
{
    (void)ctx, (void)c;
    return true;
}

static void on_request(void *ctx, http_call *c)
{
    hall *h = ctx;
    if (!h->waits) http_reply(c, 200, NULL, 0, STR("ok"));
}

static void open_hall(hall *h, test_case *t, int places, int reserved, int per_peer)
{
    static int   n;
    http_options o;
    err          e = {0};
    *h             = (hall){.t = t};
    snprintf(h->path, sizeof h->path, "%s/hall%d", test_tmp_dir(), n++);
    http_options_init(&o);
    o.unix_path          = h->path;
    o.max_connections    = places;
    o.reserved           = reserved;
    o.max_per_peer       = per_peer;
    http_handler handler = {.on_head = on_head, .on_request = on_request, .ctx = h};
    if (!CHECK_OK(http_open(&h->s, &o, &handler, &e), e)) exit(1);
    h->s->now = 1000;
}

static http_from v4(int a, int b, int c, int d)
{
    return (http_from){
        {[10] = 0xff, [11] = 0xff, [12] = (uint8_t)a, [13] = (uint8_t)b, [14] = (uint8_t)c, [15] = (uint8_t)d}};
}

static void settle(conn *c)
{
    c->touched = false;
    http_settle(c);
}

/* A connection of this address that has said `text`; returns the client's end. */
static int arrive(hall *h, const http_from *from, const char *text)
{
    test_case *t = h->t;
    int        fd[2];
    if (!CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0)) exit(1);
    CHECK(send(fd[1], text, strlen(text), 0) == (ssize_t)strlen(text));
    conn *before = h->s->first;
    http_admit(h->s, fd[0], false, from);
    conn *c = h->s->first;
    if (c && c != before && c->fd == fd[0]) {
        http_conn_event(c, EPOLLIN);
        if (c->phase != PHASE_DEAD) settle(c);
    }
    h->s->touched     = NULL; /* the loop that would look at them does not run */
    h->s->touched_end = &h->s->touched;
    return fd[1];
}

static int arrive_n(hall *h, int *out, int n, http_from from, const char *text)
{
    for (int i = 0; i < n; i++) out[i] = arrive(h, &from, text);
    return n;
}

static const char half[] = "GET / HTTP/1.1\r\nHost: x\r\n", whole[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

/* 0: the server closed it; -1: it is open and silent; else the status that came. */
static int look(int fd)
{
    char    text[512] = "";
    ssize_t n         = recv(fd, text, sizeof text - 1, MSG_PEEK);
    return n == 0 ? 0 : n < 0 ? -1 : atoi(text + 9);
}

static int count(const int *fd, int n, int state)
{
    int same = 0;
    for (int i = 0; i < n; i++) same += look(fd[i]) == state;
    return same;
}

static void close_hall(hall *h, const int *fd, int n)
{
    http_close(h->s);
    for (int i = 0; i < n; i++) close(fd[i]);
}

TEST(http_admit_half_heads_give_way_to_others)
{
    hall h;
    int  fd[200], n = 0;
    open_hall(&h, t, 60, 4, 512);
    for (int a = 1; a <= 3; a++) n += arrive_n(&h, fd + n, 22, v4(10, 0, 0, a), half);
    CHECK_INT(h.s->stats.connections, 60);
    CHECK_INT(h.s->stats.refused + h.s->stats.evicted, 6); /* each as many as the others: no grace for the last */
    int64_t refused = h.s->stats.refused, evicted = h.s->stats.evicted;
    for (int i = 0; i < 30; i++) {
        http_from other = v4(10, 1, 0, i);
        CHECK_INT(look(fd[n] = arrive(&h, &other, whole)), 200);
        n++;
    }
    CHECK_INT(h.s->stats.connections, 60);
    CHECK_INT(h.s->stats.evicted, evicted + 30);
    CHECK_INT(h.s->stats.refused, refused);
    close_hall(&h, fd, n);
}

/* The victim is the oldest of the address that holds the most. */
TEST(http_admit_takes_from_who_has_most)
{
    hall h;
    int  few[3], many[7], late;
    open_hall(&h, t, 10, 0, 512);
    arrive_n(&h, few, 3, v4(10, 0, 0, 1), half);
    h.s->now += 5;
    for (int i = 0; i < 7; i++, h.s->now += 0.01) arrive_n(&h, many + i, 1, v4(10, 0, 0, 2), half);
    for (int i = 0; i < 4; i++) {
        http_from other = v4(10, 0, 1, i);
        late            = arrive(&h, &other, half);
        CHECK_INT(count(few, 3, -1), 3);
        CHECK_INT(count(many, i + 1, 503), i + 1);
        CHECK_INT(count(many + i + 1, 6 - i, -1), 6 - i);
        CHECK_INT(look(late), -1);
        close(late);
    }
    http_from last = v4(10, 0, 2, 1); /* three each now: the older one */
    late           = arrive(&h, &last, half);
    CHECK_INT(count(few, 3, 503), 1);
    CHECK_INT(count(many, 7, -1), 3);
    close(late);
    http_close(h.s);
    for (int i = 0; i < 3; i++) close(few[i]);
    for (int i = 0; i < 7; i++) close(many[i]);
}

/* Among equals a connection has a second to speak; one that was used and idles has none. */
TEST(http_admit_leaves_time_to_speak)
{
    hall h;
    int  fd[8];
    open_hall(&h, t, 2, 0, 512);
    arrive_n(&h, fd, 2, v4(10, 0, 0, 1), "");
    arrive_n(&h, fd + 2, 1, v4(10, 0, 0, 1), half);
    CHECK_INT(look(fd[2]), 503);
    h.s->now += 1;
    arrive_n(&h, fd + 3, 1, v4(10, 0, 0, 1), half);
    CHECK_INT(look(fd[3]), 503);
    h.s->now += 0.01;
    arrive_n(&h, fd + 4, 1, v4(10, 0, 0, 1), whole);
    CHECK_INT(look(fd[4]), 200);
    CHECK_INT(count(fd, 2, 0), 1);
    arrive_n(&h, fd + 5, 1, v4(10, 0, 0, 1), whole); /* the older of the first two */
    CHECK_INT(count(fd, 2, 0), 2);
    arrive_n(&h, fd + 6, 1, v4(10, 0, 0, 1), whole); /* both are idle */
    CHECK_INT(look(fd[6]), 200);
    CHECK_INT(h.s->stats.evicted, 3);
    close_hall(&h, fd, 7);
}

TEST(http_admit_calls_do_not_give_way)
{
    hall h;
    int  fd[8];
    open_hall(&h, t, 2, 0, 512);
    h.waits = true;
    arrive_n(&h, fd, 1, v4(10, 0, 0, 1), whole);
    arrive_n(&h, fd + 1, 1, v4(10, 0, 0, 1), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
    h.s->now += 100;
    arrive_n(&h, fd + 2, 1, v4(10, 0, 0, 2), whole);
    CHECK_INT(look(fd[2]), 503);
    CHECK_INT(count(fd, 2, -1), 2);
    CHECK_INT(h.s->stats.evicted, 0);
    CHECK_INT(h.s->stats.refused, 1);
    close_hall(&h, fd, 3);
}

TEST(http_admit_keeps_places_for_this_machine)
{
    static const http_from v6_loopback = {{[15] = 1}}, v6_other = {{[0] = 0x20, [1] = 1, [15] = 1}};
    const http_from        v4_loopback = v4(127, 0, 0, 1);
    hall                   h;
    int                    fd[20], n;
    open_hall(&h, t, 8, 4, 512);
    h.waits = true;
    n       = arrive_n(&h, fd, 8, v4(10, 0, 0, 1), whole);
    CHECK_INT(look(fd[n++] = arrive(&h, &(http_from){{[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 2}}, whole)), 503);
    CHECK_INT(look(fd[n++] = arrive(&h, &v6_other, whole)), 503);
    CHECK_INT(look(fd[n++] = arrive(&h, &v4_loopback, whole)), -1);
    CHECK_INT(look(fd[n++] = arrive(&h, &v6_loopback, whole)), -1);
    CHECK_INT(look(fd[n++] = arrive(&h, NULL, whole)), -1);
    CHECK_INT(look(fd[n++] = arrive(&h, NULL, whole)), -1);
    CHECK_INT(look(fd[n++] = arrive(&h, NULL, whole)), 503);
    CHECK_INT(look(fd[n++] = arrive(&h, &v4_loopback, whole)), 503);
    CHECK_INT(h.s->stats.connections, 12);
    close_hall(&h, fd, n);
}

/* An address gets a quarter of its share while three quarters of the places carry calls; unfinished heads count for nothing. */
TEST(http_admit_shares_shrink_under_pressure)
{
    hall h;
    int  fd[100], n;
    open_hall(&h, t, 40, 0, 20);
    h.waits = true;
    n       = arrive_n(&h, fd, 20, v4(10, 0, 0, 1), whole);
    n += arrive_n(&h, fd + n, 9, v4(10, 0, 0, 2), whole);
    n += arrive_n(&h, fd + n, 5, v4(10, 0, 0, 3), half);
    CHECK_INT(h.s->stats.refused, 0);
    n += arrive_n(&h, fd + n, 1, v4(10, 0, 0, 1), whole); /* over its share in quiet times */
    CHECK_INT(look(fd[n - 1]), 503);
    n += arrive_n(&h, fd + n, 1, v4(10, 0, 0, 2), whole); /* 30 calls with it */
    CHECK_INT(look(fd[n - 1]), -1);
    n += arrive_n(&h, fd + n, 1, v4(10, 0, 0, 2), whole);
    CHECK_INT(look(fd[n - 1]), 503);
    n += arrive_n(&h, fd + n, 5, v4(10, 0, 0, 4), whole);
    CHECK_INT(count(fd + n - 5, 5, -1), 5);
    n += arrive_n(&h, fd + n, 1, v4(10, 0, 0, 4), whole);
    CHECK_INT(look(fd[n - 1]), 503);
    close_hall(&h, fd, n);
}

/* A greedy address loses its own unfinished ones, nobody else's. */
TEST(http_admit_a_greedy_address_replaces_its_own)
{
    hall h;
    int  fd[20], n;
    open_hall(&h, t, 40, 0, 4);
    n = arrive_n(&h, fd, 1, v4(10, 0, 0, 2), half);
    h.s->now += 1;
    n += arrive_n(&h, fd + n, 4, v4(10, 0, 0, 1), half);
    h.s->now += 2;
    n += arrive_n(&h, fd + n, 1, v4(10, 0, 0, 1), whole);
    CHECK_INT(look(fd[n - 1]), 200);
    CHECK_INT(look(fd[0]), -1);
    CHECK_INT(count(fd + 1, 4, -1), 3);
    n += arrive_n(&h, fd + n, 5, v4(10, 0, 0, 2), whole);
    CHECK_INT(count(fd + n - 5, 5, 200), 5);
    CHECK_INT(h.s->stats.connections, 8);
    close_hall(&h, fd, n);
}

/* An IPv6 /64 is one client; the unix socket has no share. */
TEST(http_admit_counts_networks)
{
    hall h;
    int  fd[20], n = 0;
    open_hall(&h, t, 40, 0, 2);
    h.waits = true;
    for (int i = 0; i < 3; i++) {
        http_from same_net  = {{[0] = 0x20, [7] = 1, [8] = (uint8_t)i, [15] = 9}},
                  other_net = {{[0] = 0x20, [7] = (uint8_t)(i + 2)}};
        http_from neighbour = v4(10, 0, 0, i);
        CHECK_INT(look(fd[n++] = arrive(&h, &same_net, whole)), i < 2 ? -1 : 503);
        CHECK_INT(look(fd[n++] = arrive(&h, &other_net, whole)), -1);
        CHECK_INT(look(fd[n++] = arrive(&h, &neighbour, whole)), -1);
        CHECK_INT(look(fd[n++] = arrive(&h, NULL, whole)), -1);
    }
    http_conn_lose(h.s->first->next); /* a place comes back when a connection goes */
    close_hall(&h, fd, n);
}

/* A peer's count goes down with its connections. */
TEST(http_admit_forgets_who_left)
{
    hall            h;
    int             fd[8];
    const http_from from = v4(10, 0, 0, 1);
    open_hall(&h, t, 40, 0, 2);
    h.waits = true;
    for (int i = 0; i < 6; i++) {
        CHECK_INT(look(fd[i] = arrive(&h, &from, whole)), -1);
        if (i) http_conn_lose(h.s->first);
    }
    CHECK_INT(h.s->stats.connections, 1);
    http_conn_lose(h.s->first);
    for (int i = 0; i < PEER_SLOTS; i++) CHECK(!h.s->peer[i]);
    close_hall(&h, fd, 6);
}
