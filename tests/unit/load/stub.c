#include "stub.h"

#include "base/mem.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 512 };

typedef struct {
    stub     *s;
    int       fd, number;
    pthread_t thread;
} one;

struct stub {
    stub_reply *reply;
    void       *ctx;
    int         fd, port;
    pthread_t   thread;
    atomic_int  n_requests, n_connections;
    one         connection[MAX_CONNECTIONS];
};

/* The length of the request at the front of `in`; 0: it is not all there. */
static size_t request_size(const buf *in, size_t *head)
{
    const char *end = in->n ? memmem(in->p, in->n, "\r\n\r\n", 4) : NULL;
    if (!end) return 0;
    *head              = (size_t)(end - in->p) + 4;
    const char *length = memmem(in->p, *head, "Content-Length: ", 16);
    size_t      n      = *head + (length ? (size_t)atol(length + 16) : 0);
    return in->n >= n ? n : 0;
}

static bool send_all(int fd, str s)
{
    while (s.n) {
        ssize_t n = send(fd, s.s, s.n, MSG_NOSIGNAL);
        if (n <= 0) return false;
        s = (str){s.s + n, s.n - (size_t)n};
    }
    return true;
}

static bool answer(one *c, buf *in, size_t n, size_t head)
{
    buf          out;
    const char  *from = memchr(in->p, ' ', head), *to = from ? memchr(from + 1, ' ', head) : NULL;
    stub_request q = {.head       = {in->p, head},
                      .body       = {in->p + head, n - head},
                      .number     = atomic_fetch_add(&c->s->n_requests, 1),
                      .connection = c->number};
    if (!to) return false;
    q.path = (str){from + 1, (size_t)(to - from) - 1};
    buf_init(&out, 64 << 20);
    bool keep = c->s->reply(c->s->ctx, &q, &out);
    keep      = send_all(c->fd, buf_str(&out)) && keep;
    buf_deinit(&out);
    buf_drop_front(in, n);
    return keep;
}

static void *serve(void *arg)
{
    one    *c = arg;
    buf     in;
    char    got[65536];
    ssize_t n;
    bool    keep = true;
    buf_init(&in, 64 << 20);
    while (keep && (n = recv(c->fd, got, sizeof got, 0)) > 0) {
        size_t size, head;
        buf_put(&in, got, (size_t)n);
        while (keep && (size = request_size(&in, &head))) keep = answer(c, &in, size, head);
    }
    buf_deinit(&in);
    shutdown(c->fd, SHUT_RDWR);
    return NULL;
}

static void *listen_on(void *arg)
{
    stub *s = arg;
    int   fd;
    while ((fd = accept(s->fd, NULL, NULL)) >= 0) {
        int i = atomic_load(&s->n_connections);
        if (i == MAX_CONNECTIONS) abort();
        s->connection[i] = (one){.s = s, .fd = fd, .number = i};
        pthread_create(&s->connection[i].thread, NULL, serve, &s->connection[i]);
        atomic_fetch_add(&s->n_connections, 1);
    }
    return NULL;
}

stub *stub_open(stub_reply *reply, void *ctx)
{
    stub              *s  = xnew(stub);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t          n  = sizeof at;
    s->reply              = reply;
    s->ctx                = ctx;
    s->fd                 = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(s->fd, (struct sockaddr *)&at, n) || listen(s->fd, 128) || getsockname(s->fd, (struct sockaddr *)&at, &n))
        abort();
    s->port = ntohs(at.sin_port);
    pthread_create(&s->thread, NULL, listen_on, s);
    return s;
}

void stub_close(stub *s)
{
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    for (int i = 0; i < atomic_load(&s->n_connections); i++) {
        shutdown(s->connection[i].fd, SHUT_RDWR);
        pthread_join(s->connection[i].thread, NULL);
        close(s->connection[i].fd);
    }
    close(s->fd);
    mem_free(s);
}

int stub_port(const stub *s) { return s->port; }
int stub_requests(stub *s) { return atomic_load(&s->n_requests); }
int stub_connections(stub *s) { return atomic_load(&s->n_connections); }

void stub_put(buf *out, int status, const char *type, const char *body)
{
    buf_printf(out, "HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n%s", status, type, strlen(body),
               body);
}

static void put_chunk(buf *out, const char *text) { buf_printf(out, "%zx\r\n%s\r\n", strlen(text), text); }

void stub_put_stream(buf *out, int n_tokens, const char *more)
{
    char last[1024];
    buf_puts(out,
             "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n");
    put_chunk(out, "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n");
    put_chunk(out, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"}}]}\n\n: ping\n\n");
    put_chunk(out, "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"lo\"}}]}\n\n");
    put_chunk(out, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
    snprintf(last, sizeof last,
             "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":%d,\"prompt_tokens_details\":"
             "{\"cached_tokens\":4}}%s}\n\ndata: [DONE]\n\n",
             n_tokens, more);
    if (n_tokens) put_chunk(out, last);
    buf_puts(out, "0\r\n\r\n");
}
