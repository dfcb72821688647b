#include "server_rig.h"

#include "../sched/engine_rig.h"
#include "base/fault.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* --- the server ---------------------------------------------------------------------------------*/
static bool open_nano(void *ctx, const settings *changed, tandem **out, void (*wake)(void *wake_ctx), void *wake_ctx,
                      err *e)
{
    server_rig *r          = ctx;
    r->engine_opt.wake     = wake;
    r->engine_opt.wake_ctx = wake_ctx;
    bool ok                = engine_open(&r->engine, &r->engine_opt, &(engine_extra){.changed = changed}, e);
    *out                   = r->engine;
    return ok;
}

static void on_ready(void *ctx, const http_server *h)
{
    server_rig *r = ctx;
    r->port       = http_port(h);
    sem_post(&r->ready);
}

void rig_init(server_rig *r, test_case *t)
{
    *r = (server_rig){.t = t};
    sem_init(&r->ready, 0, 0);
    nano_options(&r->engine_opt);
    r->engine_opt.n_ctx = 512;
    server_options_init(&r->opt);
    r->opt.model     = "nano";
    r->opt.http.port = 0;
    r->opt.open      = open_nano;
    r->opt.open_ctx  = r;
    r->opt.ready     = on_ready;
    r->opt.ready_ctx = r;
}

void *rig_run(void *arg)
{
    server_rig *r = arg;
    r->ok         = server_run(&r->opt, &r->e);
    sem_post(&r->ready);
    return NULL;
}

void rig_start(server_rig *r)
{
    pthread_create(&r->thread, NULL, rig_run, r);
    sem_wait(&r->ready);
    test_check(r->t, r->port, __FILE__, __LINE__, "the server does not start: %s", r->e.text);
}

void rig_stop(server_rig *r)
{
    pthread_kill(r->thread, SIGTERM);
    pthread_join(r->thread, NULL);
    sem_destroy(&r->ready);
    test_check(r->t, r->ok, __FILE__, __LINE__, "the server ended with: %s", r->e.text);
}

void rig_wait_idle(const server_rig *r) { nano_check_idle(r->t, r->engine); }

/* --- a client -----------------------------------------------------------------------------------*/
void rig_reset(int fd)
{
    struct linger now = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

int rig_connect(const server_rig *r)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)r->port)};
    to.sin_addr.s_addr    = htonl(INADDR_LOOPBACK);
    int fd                = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    close(fd);
    return -1;
}

static void send_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0) return;
        p += k;
        n -= (size_t)k;
    }
}

void rig_send_text(int fd, const char *text) { send_all(fd, text, strlen(text)); }

void rig_send(int fd, const char *method, const char *path, const char *fields, const char *body)
{
    buf b;
    buf_init(&b, (size_t)1 << 28);
    buf_printf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n", method,
               path, strlen(body), fields);
    buf_puts(&b, body);
    send_all(fd, b.p, b.n);
    buf_deinit(&b);
}

/* Takes the chunks of all[0..n) apart; true when the last one is there. */
static bool join_chunks(buf *out, const char *p, const char *end)
{
    for (;;) {
        char         *after;
        unsigned long n = strtoul(p, &after, 16);
        if (after == p || end - after < 2) return false;
        p = after + 2;
        if (!n) return true;
        if ((size_t)(end - p) < n + 2) return false;
        buf_put(out, p, n);
        p += n + 2;
    }
}

static void take_apart(rig_reply *r, buf *all)
{
    char *end = all->n ? strstr(all->p, "\r\n\r\n") : NULL;
    if (!end) return;
    buf_put(&r->head, all->p, (size_t)(end + 2 - all->p));
    buf_putc(&r->head, 0);
    r->head.n--;
    r->status = atoi(all->p + 9);
    end += 4;
    str length = rig_field(r, "Content-Length");
    if (length.s) {
        buf_put(&r->body, end, (size_t)(all->p + all->n - end));
        r->complete = (size_t)atoll(length.s) == r->body.n;
    } else {
        r->complete = join_chunks(&r->body, end, all->p + all->n);
    }
    buf_putc(&r->body, 0);
    r->body.n--;
}

void rig_read(int fd, rig_reply *out)
{
    buf     all;
    char    piece[65536];
    ssize_t n;
    *out = (rig_reply){0};
    buf_init(&all, (size_t)1 << 28);
    buf_init(&out->head, 1 << 20);
    buf_init(&out->body, (size_t)1 << 28);
    arena_init(&out->mem, (size_t)1 << 28);
    while ((n = read(fd, piece, sizeof piece)) > 0) buf_put(&all, piece, (size_t)n);
    buf_putc(&all, 0);
    all.n--;
    take_apart(out, &all);
    buf_deinit(&all);
    close(fd);
}

void rig_reply_deinit(rig_reply *r)
{
    buf_deinit(&r->head);
    buf_deinit(&r->body);
    arena_deinit(&r->mem);
}

void rig_ask(const server_rig *r, const char *method, const char *path, const char *fields, const char *body,
             rig_reply *out)
{
    int fd = rig_connect(r);
    rig_send(fd, method, path, fields, body);
    rig_read(fd, out);
}

void rig_post(const server_rig *r, const char *path, const char *body, rig_reply *out)
{
    rig_ask(r, "POST", path, "Content-Type: application/json\r\n", body, out);
}

str rig_field(const rig_reply *r, const char *name)
{
    char wanted[128];
    snprintf(wanted, sizeof wanted, "\r\n%s: ", name);
    const char *at = r->head.n ? strstr(r->head.p, wanted) : NULL;
    if (!at) return (str){0};
    at += strlen(wanted);
    return (str){at, strcspn(at, "\r")};
}

/* --- what it was told ---------------------------------------------------------------------------*/
const json_value *rig_json(rig_reply *r)
{
    const json_value *v;
    return json_parse(&v, &r->mem, buf_str(&r->body), NULL, NULL) ? v : NULL;
}

const json_value *rig_at(const json_value *v, const char *path)
{
    while (v && *path) {
        char   key[64];
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        if (v->kind == JSON_ARRAY)
            v = (size_t)atoi(key) < v->n ? &v->item[atoi(key)] : NULL;
        else
            v = json_get(v, key);
        path += n + (path[n] == '.');
    }
    return v;
}

str rig_str(const json_value *v, const char *path)
{
    v = rig_at(v, path);
    return v && v->kind == JSON_STRING ? v->s : STR("");
}

int64_t rig_int(const json_value *v, const char *path)
{
    v = rig_at(v, path);
    return v && v->kind == JSON_INT ? v->i : -1;
}

bool rig_event(const rig_reply *r, size_t *at, str *data)
{
    while (*at < r->body.n) {
        str line = {r->body.p + *at, strcspn(r->body.p + *at, "\n")};
        *at += line.n + 1;
        if (!str_starts(line, "data: ")) continue;
        *data = (str){line.s + 6, line.n - 6};
        return true;
    }
    return false;
}

void rig_post_with_fault(const server_rig *r, const char *path, const char *body, long nth, rig_reply *out)
{
    char          all[1024];
    struct pollfd p = {.fd = rig_connect(r), .events = POLLRDHUP};
    int           n = snprintf(all, sizeof all,
                               "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", path,
                               strlen(body), body);
    fault_fail_nth(nth);
    (void)!send(p.fd, all, (size_t)n, MSG_NOSIGNAL);
    poll(&p, 1, 10000);
    fault_fail_nth(0);
    rig_read(p.fd, out);
}

const json_value *rig_ask_json(const server_rig *r, const char *method, const char *path, const char *body,
                               rig_reply *out, int status)
{
    test_case *t = r->t;
    rig_ask(r, method, path, "", body, out);
    CHECK_MSG(out->status == status, "%s %s: %d, %s", method, path, out->status, out->body.p);
    return rig_json(out);
}

void rig_expect(const server_rig *r, const char *method, const char *path, const char *body, int status, const char *at,
                const char *want)
{
    test_case        *t = r->t;
    rig_reply         a;
    const json_value *v = rig_ask_json(r, method, path, body, &a, status);
    CHECK_MSG(str_is(rig_str(v, at), want), "%s %s: %s is not '%s' in %s", method, path, at, want, a.body.p);
    rig_reply_deinit(&a);
}

void rig_check_lost_bytes(test_case *t, const char *path, const char *first, const char *members,
                          rig_read_fn *told_whole)
{
    server_rig r;
    rig_reply  a;
    buf        want, got;
    size_t     n_want, n_got;
    char       body[512];
    int        failed = 0;
    rig_init(&r, t);
    rig_start(&r);
    buf_init(&want, 1 << 20);
    buf_init(&got, 1 << 20);
    snprintf(body, sizeof body, "{%s}", first);
    rig_post(&r, path, body, &a); /* the prompt is cached from here on */
    rig_reply_deinit(&a);
    snprintf(body, sizeof body, "{%s}", members);
    rig_post(&r, path, body, &a);
    CHECK(told_whole(&a, &want, &n_want) && want.n && n_want > 4);
    rig_reply_deinit(&a);
    for (long nth = 1; nth <= 240; nth++) {
        bool streams = nth % 2;
        snprintf(body, sizeof body, "{\"stream\":%s,%s}", streams ? "true" : "false", members);
        rig_post_with_fault(&r, path, body, 1 + nth / 2, &a);
        buf_clear(&got);
        bool whole = told_whole(&a, &got, &n_got);
        CHECK_MSG(!whole || (str_eq(buf_str(&got), buf_str(&want)) && n_got == n_want), "%ld: '%.*s', %zu of %zu", nth,
                  STR_ARG(buf_str(&got)), n_got, n_want);
        failed += !whole;
        rig_reply_deinit(&a);
    }
    CHECK(failed > 5);
    buf_deinit(&want);
    buf_deinit(&got);
    rig_wait_idle(&r);
    rig_stop(&r);
}
