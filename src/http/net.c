#include "http/inside.h"

#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

ssize_t http_net_outcome(ssize_t n)
{
    if (n >= 0) return n;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? IO_AGAIN : IO_BROKEN;
}

ssize_t http_net_read(conn *c, void *p, size_t n, bool peek)
{
    ssize_t got =
        c->tls.ssl ? http_tls_read(&c->tls, p, n, peek) : http_net_outcome(recv(c->fd, p, n, peek ? MSG_PEEK : 0));
    if (got > 0 && !peek) c->s->stats.bytes_in += got;
    return got;
}

ssize_t http_net_write(conn *c, const void *p, size_t n)
{
    ssize_t sent = c->tls.ssl ? http_tls_write(&c->tls, p, n) : http_net_outcome(send(c->fd, p, n, MSG_NOSIGNAL));
    if (sent > 0) {
        c->s->stats.bytes_out += sent;
        c->sent += sent;
    }
    return sent;
}

int64_t http_net_arrived(const conn *c)
{
    int waiting = 0;
    (void)ioctl(c->fd, SIOCOUTQ, &waiting);
    return c->sent - waiting;
}

bool http_net_pending(const conn *c) { return c->tls.ssl && http_tls_pending(&c->tls); }

void http_net_shut_down(conn *c)
{
    if (c->tls.ssl) http_tls_send_end(&c->tls);
    shutdown(c->fd, SHUT_WR);
}

void http_net_close(conn *c)
{
    if (c->tls.ssl) http_tls_detach(&c->tls);
    close(c->fd);
    c->fd = -1;
}

void http_net_drop_unsent(conn *c)
{
    struct linger now = {.l_onoff = 1};
    (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}
