#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "http/inside.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 512, ACCEPTS_A_TURN = 64, UNIX_MODE = 0660 };

typedef union {
    struct sockaddr     any;
    struct sockaddr_in  v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un  un;
} address;

/* --- opening -------------------------------------------------------------------------------------- */
static socklen_t parse_host(address *a, const char *host, int port)
{
    if (!strcmp(host, "localhost")) host = "127.0.0.1";
    *a = (address){0};
    if (inet_pton(AF_INET, host, &a->v4.sin_addr) == 1) {
        a->v4.sin_family = AF_INET;
        a->v4.sin_port   = htons((uint16_t)port);
        return sizeof a->v4;
    }
    if (inet_pton(AF_INET6, host, &a->v6.sin6_addr) == 1) {
        a->v6.sin6_family = AF_INET6;
        a->v6.sin6_port   = htons((uint16_t)port);
        return sizeof a->v6;
    }
    return 0;
}

bool http_host_is_local(const char *host)
{
    address a;
    if (!parse_host(&a, host, 0)) return false;
    if (a.any.sa_family == AF_INET) return ntohl(a.v4.sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&a.v6.sin6_addr);
}

static bool os_error(err *e, const char *what, const char *where)
{
    return err_set(e, errno == EADDRINUSE ? ERR_BUSY : ERR_IO, "cannot %s %s: %s", what, where, strerror(errno));
}

static bool add_listener(http_server *s, int i, int fd, err *e)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &s->listener[i]};
    if (listen(fd, BACKLOG) != 0) return os_error(e, "listen on", i ? s->o.unix_path : s->o.host);
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev) != 0) return os_error(e, "wait for", "connections");
    return true;
}

/* Sets options that accepted sockets inherit. Keep-alive finds clients that vanished without a FIN. */
static void tune(int fd)
{
    static const struct {
        int level, name, value;
    } option[] = {
        {SOL_SOCKET, SO_REUSEADDR, 1},   {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_NODELAY, 1},   {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 128 << 10},
        {IPPROTO_TCP, TCP_KEEPIDLE, 30}, {IPPROTO_TCP, TCP_KEEPINTVL, 10},
        {IPPROTO_TCP, TCP_KEEPCNT, 3},
    };
    for (size_t i = 0; i < COUNT(option); i++)
        (void)setsockopt(fd, option[i].level, option[i].name, &option[i].value, sizeof option[i].value);
}

static bool listen_tcp(http_server *s, err *e)
{
    address   a;
    listener *l = &s->listener[0];
    char      where[96];
    socklen_t n = parse_host(&a, s->o.host, s->o.port);

    if (!n) return err_set(e, ERR_INPUT, "'%s' is not a numeric address, nor localhost", s->o.host);
    if (s->o.port < 0 || s->o.port > 65535) return err_set(e, ERR_INPUT, "port %d is not in 0..65535", s->o.port);
    snprintf(where, sizeof where, "%s port %d", s->o.host, s->o.port);
    l->is_tls = s->tls != NULL;
    l->fd     = socket(a.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0) return os_error(e, "open a socket for", where);
    tune(l->fd);
    if (bind(l->fd, &a.any, n) != 0) return os_error(e, "listen on", where);
    if (getsockname(l->fd, &a.any, &n) != 0) return os_error(e, "read the port of", where);
    s->port = ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
    return add_listener(s, 0, l->fd, e);
}

/* Removes the socket file of a server that no longer runs: one on which connecting fails. */
static void remove_stale(const address *a, socklen_t n)
{
    struct stat st;
    int         fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && lstat(a->un.sun_path, &st) == 0 && S_ISSOCK(st.st_mode) && connect(fd, &a->any, n) != 0 &&
        errno == ECONNREFUSED)
        unlink(a->un.sun_path);
    if (fd >= 0) close(fd);
}

/* Adds the mode bits of a socket file that the umask removed. */
static bool restore_mode(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && ((st.st_mode & 0777) == UNIX_MODE || chmod(path, UNIX_MODE) == 0);
}

static bool listen_unix(http_server *s, err *e)
{
    address   a = {.un.sun_family = AF_UNIX};
    listener *l = &s->listener[1];
    size_t    n = strlen(s->o.unix_path);

    if (!n || n >= sizeof a.un.sun_path)
        return err_set(e, ERR_INPUT, "'%s' is empty or too long for a unix socket", s->o.unix_path);
    memcpy(a.un.sun_path, s->o.unix_path, n);
    l->is_unix = true;
    l->fd      = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0) return os_error(e, "open a socket for", s->o.unix_path);
    remove_stale(&a, sizeof a.un);
    /* bind applies the descriptor's mode and the umask, so the file never has more permissions than wanted */
    if (fchmod(l->fd, UNIX_MODE) != 0) return os_error(e, "set the mode of", s->o.unix_path);
    if (bind(l->fd, &a.any, sizeof a.un) != 0) return os_error(e, "listen on", s->o.unix_path);
    s->unix_path = xnew_n(char, n + 1);
    memcpy(s->unix_path, s->o.unix_path, n);
    if (!restore_mode(s->unix_path)) return os_error(e, "set the mode of", s->unix_path);
    return add_listener(s, 1, l->fd, e);
}

bool http_listen(http_server *s, err *e)
{
    if (!s->o.host && !s->o.unix_path) return err_set(e, ERR_INPUT, "no address or path to listen on");
    s->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (s->spare < 0) return os_error(e, "open", "/dev/null");
    return (!s->o.host || listen_tcp(s, e)) && (!s->o.unix_path || listen_unix(s, e));
}

void http_unlisten(http_server *s)
{
    for (int i = 0; i < LISTENERS; i++) {
        if (s->listener[i].fd >= 0) close(s->listener[i].fd);
        s->listener[i].fd = -1;
    }
    if (s->unix_path) unlink(s->unix_path);
    mem_free(s->unix_path);
    s->unix_path = NULL;
}

/* --- accepting ------------------------------------------------------------------------------------ */
/* Returns the address as 16 bytes, IPv4 mapped to IPv6; NULL for a unix socket. */
static const http_from *read_address(http_from *out, const address *a)
{
    *out = (http_from){{[10] = 0xff, [11] = 0xff}};
    if (a->any.sa_family == AF_INET)
        memcpy(out->byte + 12, &a->v4.sin_addr, 4);
    else if (a->any.sa_family == AF_INET6)
        memcpy(out->byte, &a->v6.sin6_addr, 16);
    else
        return NULL;
    return out;
}

static bool somebody_waits(const listener *l)
{
    return poll(&(struct pollfd){.fd = l->fd, .events = POLLIN}, 1, 0) == 1;
}

/* Accepts a connection with the spare descriptor and closes it. Without descriptors it would stay in the queue, and
 * epoll would report it again and again. */
static bool accept_and_close(http_server *s, listener *l)
{
    close(s->spare);
    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) close(fd);
    s->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    http_refuse_full(s, "No file descriptors are left");
    return fd >= 0 && s->spare >= 0;
}

/* Stops accepting until the next tick. */
static void pause_accepting(http_server *s, listener *l)
{
    struct epoll_event ev = {.data.ptr = l};
    l->paused             = epoll_ctl(s->epoll, EPOLL_CTL_MOD, l->fd, &ev) == 0;
}

void http_accept(http_server *s, listener *l)
{
    for (int i = 0; i < ACCEPTS_A_TURN && l->fd >= 0; i++) {
        address   a = {0};
        http_from from;
        socklen_t n  = sizeof a;
        int       fd = accept4(l->fd, &a.any, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            http_admit(s, fd, l->is_tls, read_address(&from, &a));
        } else if (errno == EMFILE || errno == ENFILE) { /* also returned when no connection waits */
            if (!somebody_waits(l)) return;
            if (!http_make_room(s, NULL) && !accept_and_close(s, l)) {
                pause_accepting(s, l);
                return;
            }
        } else if (errno == ENOBUFS || errno == ENOMEM) {
            http_refuse_full(s, "The system has no memory for sockets");
            pause_accepting(s, l);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}
