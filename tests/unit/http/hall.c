#include "hall.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

const char hall_half[] = "GET / HTTP/1.1\r\nHost: x\r\n", hall_whole[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

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

static void on_done(void *ctx, http_call *c, bool delivered)
{
    hall *h = ctx;
    (void)c;
    *(delivered ? &h->n_delivered : &h->n_lost) += 1;
}

static size_t on_refuse(void *ctx, http_call *c, int status, const char *why, http_field *fields, buf *body)
{
    (void)ctx, (void)c;
    buf_printf(body, "refused %d: %s", status, why);
    fields[0] = (http_field){STR("X-Refused"), STR("yes")};
    return 1;
}

void hall_open(hall *h, test_case *t, const http_options *o)
{
    static int   n;
    http_options opt;
    err          e = {0};
    *h             = (hall){.t = t};
    snprintf(h->path, sizeof h->path, "%s/hall%d", test_tmp_dir(), n++);
    http_options_init(&opt);
    if (o) opt = *o;
    opt.unix_path        = h->path;
    http_handler handler = {
        .on_head = on_head, .on_request = on_request, .on_done = on_done, .on_refuse = on_refuse, .ctx = h};
    if (!CHECK_OK(http_open(&h->s, &opt, &handler, &e), e)) exit(1);
    h->s->now = 1000;
}

void hall_close(hall *h, const int *fd, int n)
{
    http_close(h->s);
    for (int i = 0; i < n; i++) close(fd[i]);
}

http_from hall_v4(int a, int b, int c, int d)
{
    return (http_from){
        {[10] = 0xff, [11] = 0xff, [12] = (uint8_t)a, [13] = (uint8_t)b, [14] = (uint8_t)c, [15] = (uint8_t)d}};
}

static void settle(hall *h)
{
    while (h->s->touched) {
        conn *c       = h->s->touched;
        h->s->touched = c->next_touched;
        c->touched    = false;
        if (!h->s->touched) h->s->touched_end = &h->s->touched;
        http_settle(c);
    }
}

void hall_say(hall *h, int fd, conn *c, const char *text)
{
    test_case *t = h->t;
    CHECK(send(fd, text, strlen(text), 0) == (ssize_t)strlen(text));
    http_conn_event(c, EPOLLIN);
    settle(h);
}

int hall_arrive(hall *h, const http_from *from, const char *text)
{
    test_case *t = h->t;
    int        fd[2];
    if (!CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0)) exit(1);
    CHECK(send(fd[1], text, strlen(text), 0) == (ssize_t)strlen(text));
    http_admit(h->s, fd[0], false, from);
    conn *c = h->s->first;
    if (c && c->fd == fd[0]) http_conn_event(c, EPOLLIN);
    settle(h);
    return fd[1];
}

void hall_pass(hall *h, double seconds)
{
    for (double end = h->s->now + seconds; h->s->now < end;) {
        h->s->now = h->s->now + 0.25 < end ? h->s->now + 0.25 : end;
        for (conn *c = h->s->first, *next; c; c = next) {
            next = c->next;
            http_conn_check_deadline(c);
        }
        settle(h);
    }
}

int hall_look(int fd)
{
    char    text[512] = "";
    ssize_t n         = recv(fd, text, sizeof text - 1, MSG_PEEK);
    return n == 0 ? 0 : n < 0 ? -1 : atoi(text + 9);
}

void hall_read(int fd)
{
    char text[4096];
    while (recv(fd, text, sizeof text, 0) > 0) {}
}
