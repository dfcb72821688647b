/* What HTTP costs: rates TANDEM MODEL [STREAMS] [TOKENS] [PAIRS]. The same answers by the engine in this process and by
 * `tandem serve`, in turns; with one stream by `tandem run` as well. Medians, and how far the server's own figures are from the
 * client's. Speculation is off: its gain differs from text to text. */
#include "base/clock.h"
#include "base/mem.h"
#include "figures/stats.h"
#include "tandem.h"

#include <arpa/inet.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_STREAMS = 64, MAX_PAIRS = 64, TAIL = 8192 };

static const char *program, *model;
static int         n_streams = 32, n_tokens = 128, n_pairs = 7;

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "rates: %s\n", what);
    exit(1);
}

static void prompt_of(int i, char out[64]) { snprintf(out, 64, "Question %d: tell me a story about it.", i); }

/* --- the engine here ----------------------------------------------------------------------------*/
static tandem *open_engine(void)
{
    tandem_options o;
    tandem_error   e;
    tandem        *t;
    tandem_options_init(&o);
    o.path      = model;
    o.n_ctx     = 1024;
    o.max_lanes = 32;
    if (!tandem_open(&t, &o, &e)) fail(e.text);
    return t;
}

/* Tokens per second of all together; *alone: of the first one after its first token. */
static double rate_here(tandem *t, double *alone)
{
    tandem_job  *job[MAX_STREAMS];
    tandem_token token[256];
    int64_t      total = 0;
    double       start = clock_s();
    for (int i = 0; i < n_streams; i++) {
        tandem_request r;
        tandem_error   e;
        char           text[64], tenant[32];
        prompt_of(i, text);
        snprintf(tenant, sizeof tenant, "%ld", random()); /* nothing is found in the cache */
        tandem_request_init(t, &r);
        r.tenant          = tenant;
        r.text            = text;
        r.max_tokens      = n_tokens;
        r.ignore_stop_ids = true;
        r.temp            = 0;
        r.spec.method     = TANDEM_SPEC_OFF;
        if (!tandem_submit(t, &r, &job[i], &e)) fail(e.text);
    }
    for (int i = 0; i < n_streams; i++) {
        while (!tandem_job_result(job[i])) {
            tandem_wait(job[i], -1);
            while (tandem_poll(job[i], token, 256) == 256) continue;
        }
        total += tandem_job_result(job[i])->usage.completion_tokens;
    }
    double rate = (double)total / (clock_s() - start);
    *alone      = (n_tokens - 1) / tandem_job_result(job[0])->usage.decode_s;
    for (int i = 0; i < n_streams; i++) tandem_release(job[i]);
    return rate;
}

/* --- tandem run ---------------------------------------------------------------------------------*/
/* NaN: its answer ended early, which a server's does not. */
static double rate_of_run(void)
{
    char   command[4096], line[512];
    double rate = 0, seconds;
    int    n;
    snprintf(command, sizeof command,
             "'%s' run -m '%s' --raw --temp 0 --ctx 1024 -n %d --spec off --stats 'Question 0: tell me a story about "
             "it.' 2>&1 >/dev/null",
             program, model, n_tokens);
    FILE *f = popen(command, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "answer ");
        if (at && sscanf(at, "answer %d tokens in %lf s (%lf tok/s)", &n, &seconds, &rate) == 3 && n != n_tokens)
            rate = NAN;
    }
    if (!f || pclose(f) || rate == 0) fail("tandem run failed");
    return rate;
}

/* --- the server ---------------------------------------------------------------------------------*/
typedef struct {
    pid_t pid;
    int   port;
} child;

static child start_server(void)
{
    int   out[2];
    char  log[16384];
    child c = {0};
    if (pipe(out)) fail("no pipe");
    if (!(c.pid = fork())) {
        dup2(out[1], 2);
        execl(program, program, "serve", "-m", model, "--port", "0", "--ctx", "1024", "--max-lanes", "32",
              "--log-level", "error", (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    for (size_t n = 0; n + 1 < sizeof log;) {
        ssize_t k = read(out[0], log + n, sizeof log - 1 - n);
        if (k <= 0) fail("the server did not start");
        log[n += (size_t)k] = 0;
        const char *at      = strstr(log, "http://127.0.0.1:");
        if (at && strchr(at, '\n')) {
            c.port = atoi(at + 17);
            return c;
        }
    }
    fail("the server did not say where it is");
}

/* Of the thread that does HTTP, in seconds. */
static double io_cpu(const child *c)
{
    char path[64];
    long ns = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", c->pid, c->pid);
    FILE *f = fopen(path, "r");
    if (!f || fscanf(f, "%ld", &ns) != 1) fail("no schedstat");
    fclose(f);
    return (double)ns * 1e-9;
}

typedef struct {
    int    fd, tokens;
    bool   done;
    double first, last, told; /* told: the server's own rate */
    size_t n;
    char   tail[TAIL + 1];
} stream;

static void ask(stream *s, const child *c, int i)
{
    char               body[256], head[512], text[64];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)c->port)};
    *s                    = (stream){.fd = socket(AF_INET, SOCK_STREAM, 0)};
    prompt_of(i, text);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (s->fd < 0 || connect(s->fd, (struct sockaddr *)&to, sizeof to)) fail("cannot connect");
    int n_body = snprintf(body, sizeof body,
                          "{\"prompt\":\"%s\",\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
                          "\"speculative\":\"off\",\"cache_salt\":\"%ld\",\"stream_options\":{\"include_usage\":true}}",
                          text, n_tokens, random());
    int n      = snprintf(
             head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", n_body,
             body);
    if (write(s->fd, head, (size_t)n) != n) fail("cannot ask");
}

static double number_behind(const stream *s, const char *key)
{
    const char *at = strstr(s->tail, key);
    return at ? atof(at + strlen(key)) : 0;
}

static void take(stream *s)
{
    char    got[65536];
    ssize_t k = read(s->fd, got, sizeof got);
    if (k <= 0) {
        s->done   = true;
        s->tokens = (int)number_behind(s, "\"completion_tokens\":");
        s->told   = number_behind(s, "\"predicted_per_second\":");
        close(s->fd);
        return;
    }
    if (!s->first && memmem(got, (size_t)k, "\"text\":", 7)) s->first = clock_s();
    if (memmem(got, (size_t)k, "\"text\":", 7)) s->last = clock_s();
    size_t keep = (size_t)k < TAIL ? (size_t)k : TAIL, old = s->n < TAIL - keep ? s->n : TAIL - keep;
    memmove(s->tail, s->tail + s->n - old, old);
    memcpy(s->tail + old, got + k - (ssize_t)keep, keep);
    s->n          = old + keep;
    s->tail[s->n] = 0;
}

typedef struct {
    double rate, alone, told,
        cpu_us; /* of all; of the first stream by its client, and by the server; of the I/O thread per token */
} served;

static served rate_served(const child *c)
{
    static stream s[MAX_STREAMS];
    struct pollfd p[MAX_STREAMS];
    int           left = n_streams, total = 0;
    double        cpu = io_cpu(c), start = clock_s();
    for (int i = 0; i < n_streams; i++) {
        ask(&s[i], c, i);
        p[i] = (struct pollfd){.fd = s[i].fd, .events = POLLIN};
    }
    while (left) {
        poll(p, (nfds_t)n_streams, -1);
        for (int i = 0; i < n_streams; i++) {
            if (!p[i].revents) continue;
            take(&s[i]);
            if (s[i].done) {
                p[i].fd = -1;
                left--;
            }
        }
    }
    double seconds = clock_s() - start;
    for (int i = 0; i < n_streams; i++) {
        if (s[i].tokens != n_tokens) fail("an answer is not as long as it should be");
        total += s[i].tokens;
    }
    return (served){.rate   = total / seconds,
                    .alone  = (n_tokens - 1) / (s[0].last - s[0].first),
                    .told   = s[0].told,
                    .cpu_us = (io_cpu(c) - cpu) * 1e6 / total};
}

/* --- figures ------------------------------------------------------------------------------------*/
/* The median, a 90% interval, and the most that the median may be; 0: anything. */
static void row(const char *what, double *x, const char *unit, double limit)
{
    interval m = stats_median(x, n_pairs);
    printf("%-44s %10.1f %-5s (%.1f to %.1f)", what, m.median, unit, m.low, m.high);
    if (limit > 0) printf("   %s, at most %g", m.median <= limit ? "ok" : "OVER", limit);
    putchar('\n');
}

int main(int argc, char **args)
{
    double alone, decode[MAX_PAIRS], here[MAX_PAIRS], there[MAX_PAIRS], run[MAX_PAIRS], ratio[MAX_PAIRS],
        to_run[MAX_PAIRS], gap[MAX_PAIRS], cpu[MAX_PAIRS];
    if (argc < 3) fail("usage: rates TANDEM MODEL [STREAMS] [TOKENS] [PAIRS]");
    program = args[1];
    model   = args[2];
    if (argc > 3) n_streams = atoi(args[3]);
    if (argc > 4) n_tokens = atoi(args[4]);
    if (argc > 5) n_pairs = atoi(args[5]);
    if (n_streams < 1 || n_streams > 32 || n_tokens < 16 || n_tokens > 900 || n_pairs < 1 || n_pairs > MAX_PAIRS)
        fail("1 to 32 streams, 16 to 900 tokens, 1 to 64 pairs");
    child   c = start_server();
    tandem *t = open_engine();
    rate_here(t, &alone);
    rate_served(&c);
    for (int i = 0; i < n_pairs; i++) {
        here[i]   = rate_here(t, &alone);
        served s  = rate_served(&c);
        run[i]    = n_streams == 1 && (!i || run[0] > 0) ? rate_of_run() : NAN;
        there[i]  = s.rate;
        ratio[i]  = 100 * (1 - s.rate / here[i]);
        decode[i] = 100 * (1 - s.told / alone);
        to_run[i] = 100 * (1 - s.alone / run[i]);
        gap[i]    = 100 * fabs(s.told / s.alone - 1);
        cpu[i]    = s.cpu_us;
    }
    tandem_close(t);
    kill(c.pid, SIGTERM);
    waitpid(c.pid, NULL, 0);
    printf("%s, %d streams of %d tokens, medians of %d pairs with 90%% intervals\n", model, n_streams, n_tokens,
           n_pairs);
    row("engine in process", here, "tok/s", 0);
    row("over HTTP, client included", there, "tok/s", 0);
    row("HTTP is slower by", ratio, "%", 5);
    row("  decoding alone", decode, "%", 0);
    if (run[0] > 0) {
        row("tandem run", run, "tok/s", 0);
        row("HTTP is slower than tandem run by", to_run, "%", 3);
    }
    row("the server's own rate is off by", gap, "%", 1);
    row("processor time of the HTTP thread, a token", cpu, "us", 25);
    return 0;
}
