/* Places in the table. */
#include "base/mem.h"
#include "hall.h"

#include <unistd.h>

static void open_hall(hall *h, test_case *t, int places, int reserved, int per_peer)
{
    http_options o;
    http_options_init(&o);
    o.max_connections = places;
    o.reserved        = reserved;
    o.max_per_peer    = per_peer;
    hall_open(h, t, &o);
}

static int arrive_n(hall *h, int *out, int n, http_from from, const char *text)
{
    for (int i = 0; i < n; i++) out[i] = hall_arrive(h, &from, text);
    return n;
}

static int count(const int *fd, int n, int state)
{
    int same = 0;
    for (int i = 0; i < n; i++) same += hall_look(fd[i]) == state;
    return same;
}

TEST(http_admit_half_heads_give_way_to_others)
{
    hall h;
    int  fd[200], n = 0;
    open_hall(&h, t, 60, 4, 512);
    for (int a = 1; a <= 3; a++) n += arrive_n(&h, fd + n, 22, hall_v4(10, 0, 0, a), hall_half);
    CHECK_INT(h.s->stats.connections, 60);
    CHECK_INT(h.s->stats.refused + h.s->stats.evicted, 6); /* each as many as the others: no grace for the last */
    int64_t refused = h.s->stats.refused, evicted = h.s->stats.evicted;
    for (int i = 0; i < 30; i++) {
        http_from other = hall_v4(10, 1, 0, i);
        CHECK_INT(hall_look(fd[n] = hall_arrive(&h, &other, hall_whole)), 200);
        n++;
    }
    CHECK_INT(h.s->stats.connections, 60);
    CHECK_INT(h.s->stats.evicted, evicted + 30);
    CHECK_INT(h.s->stats.refused, refused);
    hall_close(&h, fd, n);
}

/* The victim is the oldest of the address that holds the most. */
TEST(http_admit_takes_from_who_has_most)
{
    hall h;
    int  few[3], many[7], late;
    open_hall(&h, t, 10, 0, 512);
    arrive_n(&h, few, 3, hall_v4(10, 0, 0, 1), hall_half);
    h.s->now += 5;
    for (int i = 0; i < 7; i++, h.s->now += 0.01) arrive_n(&h, many + i, 1, hall_v4(10, 0, 0, 2), hall_half);
    for (int i = 0; i < 4; i++) {
        http_from other = hall_v4(10, 0, 1, i);
        late            = hall_arrive(&h, &other, hall_half);
        CHECK_INT(count(few, 3, -1), 3);
        CHECK_INT(count(many, i + 1, 503), i + 1);
        CHECK_INT(count(many + i + 1, 6 - i, -1), 6 - i);
        CHECK_INT(hall_look(late), -1);
        close(late);
    }
    http_from last = hall_v4(10, 0, 2, 1); /* three each now: the older one */
    late           = hall_arrive(&h, &last, hall_half);
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
    arrive_n(&h, fd, 2, hall_v4(10, 0, 0, 1), "");
    arrive_n(&h, fd + 2, 1, hall_v4(10, 0, 0, 1), hall_half);
    CHECK_INT(hall_look(fd[2]), 503);
    h.s->now += 1;
    arrive_n(&h, fd + 3, 1, hall_v4(10, 0, 0, 1), hall_half);
    CHECK_INT(hall_look(fd[3]), 503);
    h.s->now += 0.01;
    arrive_n(&h, fd + 4, 1, hall_v4(10, 0, 0, 1), hall_whole);
    CHECK_INT(hall_look(fd[4]), 200);
    CHECK_INT(count(fd, 2, 0), 1);
    arrive_n(&h, fd + 5, 1, hall_v4(10, 0, 0, 1), hall_whole); /* the older of the first two */
    CHECK_INT(count(fd, 2, 0), 2);
    arrive_n(&h, fd + 6, 1, hall_v4(10, 0, 0, 1), hall_whole); /* both are idle */
    CHECK_INT(hall_look(fd[6]), 200);
    CHECK_INT(h.s->stats.evicted, 3);
    hall_close(&h, fd, 7);
}

TEST(http_admit_calls_do_not_give_way)
{
    hall h;
    int  fd[8];
    open_hall(&h, t, 2, 0, 512);
    h.waits = true;
    arrive_n(&h, fd, 1, hall_v4(10, 0, 0, 1), hall_whole);
    arrive_n(&h, fd + 1, 1, hall_v4(10, 0, 0, 1), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
    h.s->now += 100;
    arrive_n(&h, fd + 2, 1, hall_v4(10, 0, 0, 2), hall_whole);
    CHECK_INT(hall_look(fd[2]), 503);
    CHECK_INT(count(fd, 2, -1), 2);
    CHECK_INT(h.s->stats.evicted, 0);
    CHECK_INT(h.s->stats.refused, 1);
    hall_close(&h, fd, 3);
}

TEST(http_admit_keeps_places_for_this_machine)
{
    static const http_from v6_loopback = {{[15] = 1}}, v6_other = {{[0] = 0x20, [1] = 1, [15] = 1}};
    const http_from        v4_loopback = hall_v4(127, 0, 0, 1);
    hall                   h;
    int                    fd[20], n;
    open_hall(&h, t, 8, 4, 512);
    h.waits = true;
    n       = arrive_n(&h, fd, 8, hall_v4(10, 0, 0, 1), hall_whole);
    CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, &(http_from){{[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 2}},
                                              hall_whole)),
              503);
    CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, &v6_other, hall_whole)), 503);
    CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, &v4_loopback, hall_whole)), -1);
    CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, &v6_loopback, hall_whole)), -1);
    CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, NULL, hall_whole)), -1);
    CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, NULL, hall_whole)), -1);
    CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, NULL, hall_whole)), 503);
    CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, &v4_loopback, hall_whole)), 503);
    CHECK_INT(h.s->stats.connections, 12);
    hall_close(&h, fd, n);
}

/* An address gets a quarter of its share while three quarters of the places carry calls. Unfinished heads do not
 * count. */
TEST(http_admit_shares_shrink_under_pressure)
{
    hall h;
    int  fd[100], n;
    open_hall(&h, t, 40, 0, 20);
    h.waits = true;
    n       = arrive_n(&h, fd, 20, hall_v4(10, 0, 0, 1), hall_whole);
    n += arrive_n(&h, fd + n, 9, hall_v4(10, 0, 0, 2), hall_whole);
    n += arrive_n(&h, fd + n, 5, hall_v4(10, 0, 0, 3), hall_half);
    CHECK_INT(h.s->stats.refused, 0);
    n += arrive_n(&h, fd + n, 1, hall_v4(10, 0, 0, 1), hall_whole); /* over its share in quiet times */
    CHECK_INT(hall_look(fd[n - 1]), 503);
    n += arrive_n(&h, fd + n, 1, hall_v4(10, 0, 0, 2), hall_whole); /* 30 calls with it */
    CHECK_INT(hall_look(fd[n - 1]), -1);
    n += arrive_n(&h, fd + n, 1, hall_v4(10, 0, 0, 2), hall_whole);
    CHECK_INT(hall_look(fd[n - 1]), 503);
    n += arrive_n(&h, fd + n, 5, hall_v4(10, 0, 0, 4), hall_whole);
    CHECK_INT(count(fd + n - 5, 5, -1), 5);
    n += arrive_n(&h, fd + n, 1, hall_v4(10, 0, 0, 4), hall_whole);
    CHECK_INT(hall_look(fd[n - 1]), 503);
    hall_close(&h, fd, n);
}

/* A greedy address loses its own unfinished ones, nobody else's. */
TEST(http_admit_a_greedy_address_replaces_its_own)
{
    hall h;
    int  fd[20], n;
    open_hall(&h, t, 40, 0, 4);
    n = arrive_n(&h, fd, 1, hall_v4(10, 0, 0, 2), hall_half);
    h.s->now += 1;
    n += arrive_n(&h, fd + n, 4, hall_v4(10, 0, 0, 1), hall_half);
    h.s->now += 2;
    n += arrive_n(&h, fd + n, 1, hall_v4(10, 0, 0, 1), hall_whole);
    CHECK_INT(hall_look(fd[n - 1]), 200);
    CHECK_INT(hall_look(fd[0]), -1);
    CHECK_INT(count(fd + 1, 4, -1), 3);
    n += arrive_n(&h, fd + n, 5, hall_v4(10, 0, 0, 2), hall_whole);
    CHECK_INT(count(fd + n - 5, 5, 200), 5);
    CHECK_INT(h.s->stats.connections, 8);
    hall_close(&h, fd, n);
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
        http_from neighbour = hall_v4(10, 0, 0, i);
        CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, &same_net, hall_whole)), i < 2 ? -1 : 503);
        CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, &other_net, hall_whole)), -1);
        CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, &neighbour, hall_whole)), -1);
        CHECK_INT(hall_look(fd[n++] = hall_arrive(&h, NULL, hall_whole)), -1);
    }
    http_conn_lose(h.s->first->next); /* a place comes back when a connection goes */
    hall_close(&h, fd, n);
}

/* A peer's count goes down with its connections. */
TEST(http_admit_forgets_who_left)
{
    hall            h;
    int             fd[8];
    const http_from from = hall_v4(10, 0, 0, 1);
    open_hall(&h, t, 40, 0, 2);
    h.waits = true;
    for (int i = 0; i < 6; i++) {
        CHECK_INT(hall_look(fd[i] = hall_arrive(&h, &from, hall_whole)), -1);
        if (i) http_conn_lose(h.s->first);
    }
    CHECK_INT(h.s->stats.connections, 1);
    http_conn_lose(h.s->first);
    for (int i = 0; i < PEER_SLOTS; i++) CHECK(!h.s->peer[i]);
    hall_close(&h, fd, 6);
}
