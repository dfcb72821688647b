/* Timeouts, exact to the quarter second at which they are checked. */
#include "base/mem.h"
#include "hall.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static http_from from = {{[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}};

/* `state` holds until `seconds` have passed, and `then` soon after. */
static void check_ends(test_case *t, hall *h, int fd, double seconds, int state, int then)
{
    hall_pass(h, seconds);
    CHECK_INT(hall_look(fd), state);
    hall_pass(h, 0.3);
    CHECK_INT(hall_look(fd), then);
}

TEST(http_deadline_of_kept_connections)
{
    hall h;
    int  fd;
    hall_open(&h, t, NULL);
    fd = hall_arrive(&h, &from, hall_whole);
    hall_read(fd);
    check_ends(t, &h, fd, 75, -1, 0);
    CHECK_INT(h.s->stats.connections, 0);
    CHECK_INT(h.s->stats.timeouts, 0);
    close(fd);

    fd = hall_arrive(&h, &from, hall_whole); /* each request begins it anew */
    for (int i = 0; i < 3; i++) {
        hall_read(fd);
        hall_pass(&h, 70);
        CHECK_INT(hall_look(fd), -1);
        hall_say(&h, fd, h.s->first, hall_whole);
        CHECK_INT(hall_look(fd), 200);
    }
    hall_read(fd);
    check_ends(t, &h, fd, 75, -1, 0);
    CHECK_INT(h.n_delivered, 5);
    hall_close(&h, &fd, 1);
}

TEST(http_deadline_of_heads)
{
    hall h;
    int  fd;
    hall_open(&h, t, NULL);
    fd = hall_arrive(&h, &from, "");
    check_ends(t, &h, fd, 10, -1, 0); /* nothing was said: nothing is answered */
    CHECK_INT(h.s->stats.timeouts, 0);
    close(fd);
    fd = hall_arrive(&h, &from, hall_half);
    hall_pass(&h, 5);
    hall_say(&h, fd, h.s->first, "A: b\r\n"); /* a byte now and then buys no time */
    check_ends(t, &h, fd, 5, -1, 408);
    CHECK_INT(h.s->stats.timeouts, 1);
    hall_read(fd);
    check_ends(t, &h, fd, 1.5, 0, 0); /* our side has ended */
    CHECK_INT(h.s->stats.connections, 1);
    hall_pass(&h, 0.5);
    CHECK_INT(h.s->stats.connections, 0);
    close(fd);
    fd = hall_arrive(&h, &from, hall_whole);
    hall_read(fd);
    hall_pass(&h, 60);
    hall_say(&h, fd, h.s->first, hall_half); /* from its first byte on */
    check_ends(t, &h, fd, 10, -1, 408);
    hall_close(&h, &fd, 1);
}

/* A KiB a second after the first second, and 60 s in all. */
TEST(http_deadline_of_bodies)
{
    static char piece[1025];
    hall        h;
    int         fd;
    memset(piece, 'x', 1024);
    hall_open(&h, t, NULL);
    fd = hall_arrive(&h, &from, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
    check_ends(t, &h, fd, 1, -1, 408);
    CHECK_INT(h.n_lost, 1);
    close(fd);
    fd      = hall_arrive(&h, &from, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
    conn *c = h.s->first;
    for (int i = 0; i < 60; i++) {
        hall_say(&h, fd, c, piece);
        hall_pass(&h, 1);
        CHECK_INT(hall_look(fd), -1);
    }
    hall_pass(&h, 0.3);
    CHECK_INT(hall_look(fd), 408);
    close(fd);
    fd = hall_arrive(&h, &from, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
    c  = h.s->first;
    for (int i = 0; i < 5; i++) {
        hall_say(&h, fd, c, piece);
        hall_pass(&h, 1);
    }
    check_ends(t, &h, fd, 1, -1, 408); /* 5 KiB are good for 6 s */
    CHECK_INT(h.s->stats.timeouts, 3);
    hall_close(&h, &fd, 1);
}

/* A call has no deadline while nothing of its reply waits. */
TEST(http_deadline_calls_have_none)
{
    hall h;
    int  fd;
    hall_open(&h, t, NULL);
    h.waits = true;
    fd      = hall_arrive(&h, &from, hall_whole);
    hall_pass(&h, 1000);
    CHECK_INT(hall_look(fd), -1);
    CHECK_INT(h.s->stats.calls, 1);
    http_reply(h.s->first, 200, NULL, 0, STR("late"));
    hall_pass(&h, 0.1);
    CHECK_INT(hall_look(fd), 200);
    CHECK_INT(h.n_delivered, 1);
    hall_close(&h, &fd, 1);
}

/* A client that ended its side and waits is written to after 2 s, then every 15; one of HTTP/1.0 never. */
TEST(http_deadline_probes_of_half_closed_clients)
{
    hall h;
    int  fd, old;
    hall_open(&h, t, NULL);
    h.waits = true;
    fd      = hall_arrive(&h, &from, hall_whole);
    shutdown(fd, SHUT_WR);
    http_conn_event(h.s->first, EPOLLRDHUP);
    check_ends(t, &h, fd, 0.2, -1, 100);
    hall_read(fd);
    check_ends(t, &h, fd, 14.7, -1, 100);
    hall_read(fd);
    http_reply(h.s->first, 200, NULL, 0, STR("ok"));
    hall_pass(&h, 0.1);
    CHECK_INT(hall_look(fd), 200);
    old = hall_arrive(&h, &from, "GET / HTTP/1.0\r\n\r\n");
    http_conn_event(h.s->first, EPOLLRDHUP);
    hall_pass(&h, 100);
    CHECK_INT(hall_look(old), -1);
    close(old);
    hall_close(&h, &fd, 1);
}

/* Nothing of a reply is taken for 20 s: it is cut, and counted. */
TEST(http_deadline_of_readers)
{
    static char large[8 << 20];
    hall        h;
    int         fd;
    hall_open(&h, t, NULL);
    h.waits = true;
    fd      = hall_arrive(&h, &from, hall_whole);
    http_reply(h.s->first, 200, NULL, 0, (str){large, sizeof large});
    hall_pass(&h, 20);
    CHECK_INT(h.s->stats.connections, 1);
    CHECK_INT(h.s->stats.timeouts, 0);
    hall_pass(&h, 0.6);
    CHECK_INT(h.s->stats.connections, 0);
    CHECK_INT(h.s->stats.timeouts, 1);
    CHECK_INT(h.n_lost, 1);
    hall_close(&h, &fd, 1);
}

/* After a refusal as many bytes are thrown away as a body may have. */
TEST(http_refused_clients_may_send_a_body)
{
    http_options o;
    hall         h;
    int          fd;
    http_options_init(&o);
    o.max_body = 10;
    hall_open(&h, t, &o);
    fd      = hall_arrive(&h, &from, "NONSENSE\r\n\r\n");
    conn *c = h.s->first;
    CHECK_INT(hall_look(fd), 400);
    hall_say(&h, fd, c, "1234");
    hall_say(&h, fd, c, "567890");
    CHECK_INT(h.s->stats.connections, 1);
    hall_say(&h, fd, c, "1");
    CHECK_INT(h.s->stats.connections, 0);
    hall_close(&h, &fd, 1);
}

/* The handler writes the body and the fields of what HTTP itself refuses. */
TEST(http_refusals_are_the_handlers)
{
    hall h;
    char text[1024] = "";
    hall_open(&h, t, NULL);
    int fd = hall_arrive(&h, &from, "GET nothing HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(recv(fd, text, sizeof text - 1, 0) > 0);
    CHECK_MSG(strstr(text, "HTTP/1.1 400 Bad Request\r\n") == text && strstr(text, "\r\nX-Refused: yes\r\n") &&
                  strstr(text, "\r\n\r\nrefused 400: The request's target does not begin with a slash."),
              "%s", text);
    hall_close(&h, &fd, 1);
}
