/* When a connection closes after a reply, and says so. */
#include "base/mem.h"
#include "hall.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const http_from from = {{[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}};

/* Whether the reply to `request` is the last of its connection; what it says and what happens must agree. */
static bool is_last(hall *h, const char *request)
{
    test_case *t          = h->t;
    char       text[1024] = "";
    int        fd         = hall_arrive(h, &from, request);
    if (h->s->first && h->s->first->phase == PHASE_BODY) hall_say(h, fd, h->s->first, ""); /* read in two turns */
    CHECK(recv(fd, text, sizeof text - 1, 0) > 0 && strstr(text, "HTTP/1.1 200"));
    bool says = strstr(text, "Connection: close\r\n") != NULL, closes = hall_look(fd) == 0;
    CHECK_MSG(says == closes, "'%s' says %d and does %d", request, says, closes);
    close(fd);
    return closes;
}

TEST(http_replies_say_when_they_are_the_last)
{
    hall h;
    hall_open(&h, t, NULL);
    CHECK(!is_last(&h, hall_whole));
    CHECK(!is_last(&h, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"));
    CHECK(is_last(&h, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    CHECK(is_last(&h, "GET / HTTP/1.0\r\n\r\n"));
    http_keep_alive(h.s, false);
    CHECK(is_last(&h, hall_whole));
    http_keep_alive(h.s, true);
    CHECK(!is_last(&h, hall_whole));
    http_drain(h.s);
    CHECK(is_last(&h, hall_whole));
    hall_close(&h, NULL, 0);
}

/* Every byte of a target: printable ASCII except '#', which clients never send. */
TEST(http_targets_by_every_byte)
{
    hall h;
    hall_open(&h, t, NULL);
    for (int b = 1; b < 256; b++) {
        char text[64];
        snprintf(text, sizeof text, "GET /a?%cb HTTP/1.1\r\nHost: x\r\n\r\n", b);
        int fd   = hall_arrive(&h, &from, text);
        int want = b > 0x20 && b < 0x7f && b != '#' ? 200 : 400;
        CHECK_MSG(hall_look(fd) == want, "byte %d gives %d", b, hall_look(fd));
        close(fd);
        if (h.s->first) http_conn_lose(h.s->first);
    }
    hall_close(&h, NULL, 0);
}
