#include "toy.h"

#include "base/clock.h"
#include "base/mem.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

enum { FLOOD_BYTES = 16 << 10 };

typedef struct job job;
struct job {
    http_call *call;
    job       *next, **at; /* in the list of streams; at NULL: in none */
    uint64_t   left;       /* events */
    bool       floods;
};

struct toy {
    http_server *server;
    pthread_t    engine, io;
    bool         has_engine, has_io;
    double       event_s;
    atomic_bool  stopped;
    atomic_long  events_made;
    job         *streams;
    long         events_heard, wakes, delivered, lost, most_unsent, rooms, ticks, puts;
    int64_t      lost_ns;
    size_t       kept; /* bytes of bodies that were taken, as they count */
};

static const http_field event_stream = {{"Content-Type", 12}, {"text/event-stream", 17}};

static void add_stream(toy *t, job *j)
{
    j->next = t->streams;
    j->at   = &t->streams;
    if (t->streams) t->streams->at = &j->next;
    t->streams = j;
}

static void leave_streams(job *j)
{
    if (!j->at) return;
    *j->at = j->next;
    if (j->next) j->next->at = j->at;
    j->at = NULL;
}

static void put_event(toy *t, job *j)
{
    http_put(j->call,
             STR("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"finish_reason\":null}],"
                 "\"object\":\"chat.completion.chunk\",\"model\":\"toy\",\"created\":1700000000}\n\n"));
    t->puts++;
    if (--j->left) return;
    leave_streams(j);
    http_end(j->call);
}

static void flood(toy *t, job *j)
{
    static const char piece[FLOOD_BYTES];
    while (http_unsent(j->call) <= (size_t)(1 << 20)) {
        http_put(j->call, (str){piece, sizeof piece});
        if ((long)http_unsent(j->call) > t->most_unsent) t->most_unsent = (long)http_unsent(j->call);
    }
}

static void reply_stats(toy *t, http_call *c)
{
    http_stats    s;
    struct rusage u;
    buf           b;
    http_get_stats(t->server, &s);
    getrusage(RUSAGE_THREAD, &u);
    long cpu_us = (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000L + u.ru_utime.tv_usec + u.ru_stime.tv_usec;
    buf_init(&b, 4096);
    buf_printf(
        &b, "connections %d\ncalls %d\naccepted %ld\nrefused %ld\nevicted %ld\nrequests %ld\nbad %ld\ntimeouts %ld\n",
        s.connections, s.calls, (long)s.accepted, (long)s.refused, (long)s.evicted, (long)s.requests,
        (long)s.bad_requests, (long)s.timeouts);
    buf_printf(&b,
               "delivered %ld\nlost %ld\nlost_ns %ld\nmost_unsent %ld\nrooms %ld\nwakes %ld\nputs %ld\ncpu_us "
               "%ld\nticks %ld\n",
               t->delivered, t->lost, (long)t->lost_ns, t->most_unsent, t->rooms, t->wakes, t->puts, cpu_us, t->ticks);
    buf_printf(&b, "bytes_in %ld\nbytes_out %ld\nevents_heard %ld\n", (long)s.bytes_in, (long)s.bytes_out,
               t->events_heard);
    http_reply(c, 200, NULL, 0, buf_str(&b));
    buf_deinit(&b);
}

static void reply_big(http_call *c, str query)
{
    uint64_t n = 0;
    buf      b;
    str_to_u64(query, &n);
    buf_init(&b, 256 << 20);
    while (b.n < n) buf_putc(&b, (char)('a' + b.n % 26));
    http_reply(c, 200, NULL, 0, buf_str(&b));
    buf_deinit(&b);
}

static bool on_head(void *ctx, http_call *c)
{
    toy *t = ctx;
    (void)t;
    http_call_set_user(c, NULL);
    if (!str_is(http_call_request(c)->path, "/refused")) return true;
    http_reply(c, 404, NULL, 0, STR("no such path"));
    return false;
}

static job *new_job(http_call *c)
{
    job *j  = xnew(job);
    j->call = c;
    http_call_set_user(c, j);
    return j;
}

static void begin_stream(toy *t, http_call *c, str query)
{
    job *j = new_job(c);
    http_begin(c, 200, &event_stream, 1);
    if (str_to_u64(query, &j->left) && j->left)
        add_stream(t, j);
    else
        http_end(c);
}

static void begin_flood(toy *t, http_call *c)
{
    job *j    = new_job(c);
    j->floods = true;
    http_begin(c, 200, NULL, 0);
    flood(t, j);
}

static void on_request(void *ctx, http_call *c)
{
    toy                *t     = ctx;
    const http_request *r     = http_call_request(c);
    http_field          split = {STR("X-Split"), STR("a\r\nX-Evil: b")};
    if (str_is(r->path, "/hello")) {
        http_reply(c, 200, NULL, 0, STR("hello"));
    } else if (str_is(r->path, "/echo")) {
        buf    body;
        size_t counted = http_take_body(c, &body);
        http_reply(c, 200, NULL, 0, buf_str(&body));
        buf_deinit(&body);
        http_give_back(t->server, counted);
    } else if (str_is(r->path, "/keep")) {
        buf body;
        t->kept += http_take_body(c, &body);
        buf_deinit(&body);
    } else if (str_is(r->path, "/give-back")) {
        http_give_back(t->server, t->kept);
        t->kept = 0;
        http_reply(c, 200, NULL, 0, STR("given back"));
    } else if (str_is(r->path, "/big")) {
        reply_big(c, r->query);
    } else if (str_is(r->path, "/stream")) {
        begin_stream(t, c, r->query);
    } else if (str_is(r->path, "/flood")) {
        begin_flood(t, c);
    } else if (str_is(r->path, "/cut")) {
        http_begin(c, 200, NULL, 0);
        http_put(c, STR("half a text"));
        http_cut(c);
    } else if (str_is(r->path, "/split")) {
        http_reply(c, 200, &split, 1, r->peer);
    } else if (str_is(r->path, "/stats")) {
        reply_stats(t, c);
    } else if (str_is(r->path, "/drain")) {
        http_drain(t->server);
        http_reply(c, 200, NULL, 0, STR("draining"));
    } else if (!str_is(r->path, "/wait")) {
        http_reply(c, 404, NULL, 0, STR("?"));
    }
}

static void on_done(void *ctx, http_call *c, bool delivered)
{
    toy *t = ctx;
    job *j = http_call_user(c);
    if (j) leave_streams(j);
    mem_free(j);
    *(delivered ? &t->delivered : &t->lost) += 1;
    if (!delivered) t->lost_ns = clock_ns();
}

static void on_room(void *ctx, http_call *c)
{
    toy *t = ctx;
    job *j = http_call_user(c);
    t->rooms++;
    if (j && j->floods) flood(t, j);
}

static void on_wake(void *ctx)
{
    toy *t = ctx;
    t->wakes++;
    long made = atomic_load(&t->events_made);
    for (; t->events_heard < made; t->events_heard++)
        for (job *j = t->streams, *next; j; j = next) {
            next = j->next;
            put_event(t, j);
        }
}

static void on_tick(void *ctx) { ((toy *)ctx)->ticks++; }

static void *make_events(void *ctx)
{
    toy            *t     = ctx;
    time_t          whole = (time_t)t->event_s;
    struct timespec wait  = {whole, (long)((t->event_s - (double)whole) * 1e9)};
    while (!atomic_load(&t->stopped)) {
        nanosleep(&wait, NULL);
        atomic_fetch_add(&t->events_made, 1);
        http_wake(t->server);
    }
    return NULL;
}

bool toy_open(toy **out, const http_options *o, double event_s, err *e)
{
    toy         *t = xnew(toy);
    http_handler h = {.on_head    = on_head,
                      .on_request = on_request,
                      .on_done    = on_done,
                      .on_room    = on_room,
                      .on_wake    = on_wake,
                      .on_tick    = on_tick,
                      .ctx        = t};
    *out           = t;
    t->event_s     = event_s;
    if (http_open(&t->server, o, &h, e)) return true;
    mem_free(t);
    *out = NULL;
    return false;
}

int toy_port(const toy *t) { return http_port(t->server); }

void toy_run(toy *t)
{
    t->has_engine = pthread_create(&t->engine, NULL, make_events, t) == 0;
    http_run(t->server);
}

static void *run_on_thread(void *t)
{
    toy_run(t);
    return NULL;
}

bool toy_start(toy *t) { return t->has_io = pthread_create(&t->io, NULL, run_on_thread, t) == 0; }

void toy_stop(toy *t)
{
    atomic_store(&t->stopped, true);
    http_stop(t->server);
}

void toy_close(toy *t)
{
    if (!t) return;
    toy_stop(t);
    if (t->has_io) pthread_join(t->io, NULL);
    if (t->has_engine) pthread_join(t->engine, NULL);
    http_close(t->server);
    mem_free(t);
}

/* --- a certificate -------------------------------------------------------------------------------- */
static X509 *sign_own(EVP_PKEY *key)
{
    X509      *x    = X509_new();
    X509_NAME *name = X509_get_subject_name(x);
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 86400);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1, 0);
    X509_set_issuer_name(x, name);
    X509_set_pubkey(x, key);
    X509_sign(x, key, EVP_sha256());
    return x;
}

bool toy_certificate(const char *cert_path, const char *key_path)
{
    EVP_PKEY *key  = EVP_EC_gen("P-256");
    X509     *x    = sign_own(key);
    FILE     *cert = fopen(cert_path, "w"), *k = fopen(key_path, "w");
    bool      ok = cert && k && PEM_write_X509(cert, x) && PEM_write_PrivateKey(k, key, NULL, NULL, 0, NULL, NULL);
    if (cert) fclose(cert);
    if (k) fclose(k);
    X509_free(x);
    EVP_PKEY_free(key);
    return ok;
}
