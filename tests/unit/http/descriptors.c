/* Descriptors: all come back, and a server without any left still answers for itself. */
#include "base/mem.h"
#include "client.h"
#include "hall.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static int n_open(void)
{
    int  n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

TEST(http_descriptors_come_back)
{
    static const http_from from   = {{[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}};
    int                    before = n_open(), fd[4];
    hall                   h;
    hall_open(&h, t, NULL);
    CHECK_INT(n_open(), before + 4); /* epoll, the event, the spare one, the socket */
    fd[0]   = hall_arrive(&h, &from, "");
    fd[1]   = hall_arrive(&h, &from, hall_half);
    fd[2]   = hall_arrive(&h, &from, hall_whole);
    h.waits = true;
    fd[3]   = hall_arrive(&h, &from, hall_whole);
    CHECK_INT(n_open(), before + 12);
    hall_close(&h, fd, 4);
    CHECK_INT(n_open(), before);
    CHECK_INT(h.n_lost, 1);
    CHECK(access(h.path, F_OK) != 0);
}

/* No descriptor can be opened from here on. */
static bool use_up(struct rlimit *before)
{
    int lowest = dup(0);
    if (lowest < 0 || close(lowest) != 0 || getrlimit(RLIMIT_NOFILE, before) != 0) return false;
    return setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)lowest, before->rlim_max}) == 0;
}

TEST(http_descriptors_run_out)
{
    static const http_from from = {{[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}};
    hall                   h;
    client                 c[3];
    int                    fd;
    struct rlimit          before;
    hall_open(&h, t, NULL);
    listener *l = &h.s->listener[1];
    fd          = hall_arrive(&h, &from, hall_half);
    for (int i = 0; i < 3; i++) CHECK(client_open_unix(&c[i], h.path));
    if (!CHECK(use_up(&before))) return;
    h.s->now += 0.5;
    http_accept(h.s, l); /* the one that is there has not had its second: the others are taken and closed */
    CHECK_INT(h.s->stats.refused, 3);
    CHECK_INT(h.s->stats.connections, 1);
    CHECK(h.s->spare >= 0 && !l->paused);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(hall_look(c[i].fd), 0);
        client_close(&c[i]);
    }
    CHECK(client_open_unix(&c[0], h.path) && use_up(&before));
    h.s->now += 1;
    http_accept(h.s, l); /* now it gives way */
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK_INT(h.s->stats.evicted, 1);
    CHECK_INT(h.s->stats.refused, 3);
    CHECK_INT(hall_look(fd), 503);
    CHECK_INT(h.s->stats.connections, 1);
    CHECK_INT(send(c[0].fd, "", 0, MSG_NOSIGNAL), 0);
    client_close(&c[0]);

    CHECK(client_open_unix(&c[0], h.path) && use_up(&before));
    int spare  = h.s->spare;
    h.s->spare = -1; /* not even the spare one: accepting pauses until the next tick */
    h.s->now -= 1;
    http_accept(h.s, l);
    CHECK(l->paused);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    if (h.s->spare < 0) h.s->spare = spare;
    client_close(&c[0]);
    hall_close(&h, &fd, 1);
}
