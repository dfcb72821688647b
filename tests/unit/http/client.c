#include "client.h"

#include "base/clock.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static bool connect_to(client *c, const struct sockaddr *a, socklen_t n, int receive_bytes)
{
    *c = (client){.fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    buf_init(&c->in, 256 << 20);
    if (receive_bytes) setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    if (c->fd >= 0 && connect(c->fd, a, n) == 0) return true;
    client_close(c);
    return false;
}

bool client_open_small(client *c, int port, int receive_bytes)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr    = htonl(INADDR_LOOPBACK);
    return connect_to(c, (struct sockaddr *)&a, sizeof a, receive_bytes);
}

bool client_open(client *c, int port) { return client_open_small(c, port, 0); }

bool client_open_from(client *c, int port, int last)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    from.sin_addr.s_addr = htonl(0x7f000000u | (uint32_t)last);
    to.sin_addr.s_addr   = htonl(INADDR_LOOPBACK);
    *c                   = (client){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    buf_init(&c->in, 256 << 20);
    if (c->fd >= 0 && bind(c->fd, (struct sockaddr *)&from, sizeof from) == 0 &&
        connect(c->fd, (struct sockaddr *)&to, sizeof to) == 0)
        return true;
    client_close(c);
    return false;
}

bool client_open_unix(client *c, const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strncpy(a.sun_path, path, sizeof a.sun_path - 1);
    return connect_to(c, (struct sockaddr *)&a, sizeof a, 0);
}

bool client_open_tls(client *c, int port, const char *alpn)
{
    static SSL_CTX *ctx;
    if (!ctx) ctx = SSL_CTX_new(TLS_client_method());
    if (!client_open(c, port)) return false;
    SSL *ssl = SSL_new(ctx);
    c->tls   = ssl;
    if (alpn) SSL_set_alpn_protos(ssl, (const unsigned char *)alpn, (unsigned)strlen(alpn));
    SSL_set_fd(ssl, c->fd);
    if (SSL_connect(ssl) == 1) return true;
    client_close(c);
    return false;
}

void client_close(client *c)
{
    SSL_free(c->tls);
    if (c->fd > 0) close(c->fd);
    buf_deinit(&c->in);
    *c = (client){0};
}

void client_reset(client *c)
{
    struct linger now = {.l_onoff = 1};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    client_close(c);
}

long client_send_some(client *c, const void *p, size_t n)
{
    ssize_t sent = send(c->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    return sent;
}

bool client_send(client *c, str bytes)
{
    while (bytes.n) {
        ssize_t n = c->tls ? SSL_write(c->tls, bytes.s, (int)bytes.n) : send(c->fd, bytes.s, bytes.n, MSG_NOSIGNAL);
        if (n <= 0) return false;
        bytes.s += n;
        bytes.n -= (size_t)n;
    }
    return true;
}

bool client_say(client *c, const char *bytes) { return client_send(c, str_of(bytes)); }

bool client_more(client *c, double seconds)
{
    static _Thread_local char piece[64 << 10];
    struct pollfd             p  = {.fd = c->fd, .events = POLLIN};
    int                       ms = seconds < 0 ? 0 : (int)(seconds * 1e3) + 1;
    if (!(c->tls && SSL_pending(c->tls)) && poll(&p, 1, ms) <= 0) return false;
    ssize_t n = c->tls ? SSL_read(c->tls, piece, sizeof piece) : recv(c->fd, piece, sizeof piece, 0);
    return n > 0 && buf_put(&c->in, piece, (size_t)n);
}

bool client_closes(client *c, double seconds)
{
    double end = clock_s() + seconds;
    while (client_more(c, end - clock_s())) buf_clear(&c->in);
    char          byte;
    struct pollfd p    = {.fd = c->fd, .events = POLLIN};
    double        left = end - clock_s(); /* the end of a TLS session comes before that of its connection */
    return poll(&p, 1, left > 0 ? (int)(left * 1e3) : 0) == 1 && recv(c->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) <= 0;
}

/* --- replies -------------------------------------------------------------------------------------- */
static bool need(client *c, size_t n, double end)
{
    while (c->in.n < n)
        if (!client_more(c, end - clock_s())) return false;
    return true;
}

/* The next line, CR LF included, moved to out. */
static bool take_line(client *c, buf *out, double end)
{
    for (size_t at = 0;; at++) {
        if (!need(c, at + 1, end)) return false;
        if (c->in.p[at] != '\n') continue;
        buf_put(out, c->in.p, at + 1);
        buf_drop_front(&c->in, at + 1);
        return true;
    }
}

static bool take(client *c, buf *out, size_t n, double end)
{
    if (!need(c, n, end)) return false;
    buf_put(out, c->in.p, n);
    buf_drop_front(&c->in, n);
    return true;
}

str client_field(const client_reply *r, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = r->head.p, *end = p + r->head.n; p < end;) {
        const char *eol = memchr(p, '\r', (size_t)(end - p));
        if (!eol) break;
        if ((size_t)(eol - p) > n + 1 && !strncasecmp(p, name, n) && p[n] == ':')
            return (str){p + n + 2, (size_t)(eol - p) - n - 2};
        p = eol + 2;
    }
    return (str){0};
}

bool client_read_head(client *c, client_reply *r, double seconds)
{
    double end = clock_s() + seconds;
    size_t line;
    *r = (client_reply){0};
    buf_init(&r->head, 1 << 20);
    buf_init(&r->body, 256 << 20);
    do {
        line = r->head.n;
        if (!take_line(c, &r->head, end)) return false;
    } while (r->head.n - line > 2);
    buf_putc(&r->head, 0);
    r->head.n--;
    r->status = r->head.n > 12 ? atoi(r->head.p + 9) : 0;
    return true;
}

static bool read_chunks(client *c, client_reply *r, double end)
{
    for (;;) {
        buf  line;
        bool ok;
        buf_init(&line, 1 << 20);
        ok       = take_line(c, &line, end) && buf_putc(&line, 0);
        size_t n = ok ? strtoul(line.p, NULL, 16) : 0;
        if (ok) ok = take(c, &r->body, n + 2, end);
        buf_deinit(&line);
        if (!ok) return false;
        r->body.n -= 2;
        if (!n) return true;
        r->n_chunks++;
    }
}

bool client_read(client *c, client_reply *r, double seconds)
{
    double end = clock_s() + seconds;
    if (!client_read_head(c, r, seconds)) return false;
    str length = client_field(r, "Content-Length"), coding = client_field(r, "Transfer-Encoding");
    if (r->status == 100 || r->status == 204) {
        r->whole = true;
    } else if (length.s) {
        uint64_t n = 0;
        r->whole   = str_to_u64(length, &n) && take(c, &r->body, (size_t)n, end);
    } else if (coding.s) {
        r->whole = read_chunks(c, r, end);
    } else {
        while (client_more(c, end - clock_s())) {}
        r->whole = take(c, &r->body, c->in.n, end);
    }
    return true;
}

void client_reply_deinit(client_reply *r)
{
    buf_deinit(&r->head);
    buf_deinit(&r->body);
}
