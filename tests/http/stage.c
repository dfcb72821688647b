#include "stage.h"

#include "base/clock.h"

#include <dirent.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static toy *running; /* in the child */

static void give_up(const char *what)
{
    perror(what);
    exit(2);
}

void setup_init(setup *s)
{
    *s = (setup){.event_s = 0.02};
    http_options_init(&s->o);
    s->o.host            = "127.0.0.1";
    s->o.max_connections = s->o.max_per_peer = 4096;
}

static void on_term(int signal)
{
    (void)signal;
    toy_stop(running);
}

static void serve(const stage *g, const setup *s, int tell)
{
    setup         mine = *s;
    struct rlimit few  = {(rlim_t)s->n_descriptors, (rlim_t)s->n_descriptors};
    char          cert[96], key[96], log[96];
    err           e;
    snprintf(log, sizeof log, "%s/log", g->dir);
    snprintf(cert, sizeof cert, "%s/cert", g->dir);
    snprintf(key, sizeof key, "%s/key", g->dir);
    if (!freopen(log, "w", stderr)) give_up(log);
    mallopt(M_MMAP_THRESHOLD, 128 << 10); /* fixed: large buffers go back to the system, as in `tandem serve` */
    if (s->n_descriptors && setrlimit(RLIMIT_NOFILE, &few) != 0) give_up("setrlimit");
    if (s->tls && toy_certificate(cert, key)) {
        mine.o.tls_cert = cert;
        mine.o.tls_key  = key;
    }
    if (!toy_open(&running, &mine.o, s->event_s, &e)) {
        puts(e.text);
        exit(2);
    }
    signal(SIGTERM, on_term);
    int port = toy_port(running);
    if (write(tell, &port, sizeof port) != sizeof port) give_up("write");
    close(tell);
    toy_run(running);
    toy_close(running);
    exit(0);
}

void stage_open(stage *g, const setup *s)
{
    int tell[2];
    *g = (stage){.dir = "/tmp/http_stage_XXXXXX", .tls = s->tls};
    fflush(stdout);
    malloc_trim(0); /* inherited memory must not count as the child's own */
    if (!mkdtemp(g->dir) || pipe(tell) != 0) give_up("stage");
    g->pid = fork();
    if (g->pid < 0) give_up("fork");
    if (!g->pid) {
        close(tell[0]);
        serve(g, s, tell[1]);
    }
    close(tell[1]);
    if (read(tell[0], &g->port, sizeof g->port) != sizeof g->port) give_up("the server did not start");
    close(tell[0]);
}

bool stage_close(stage *g)
{
    static const char *const file[] = {"log", "cert", "key"};
    int                      status = -1;
    kill(g->pid, SIGTERM);
    waitpid(g->pid, &status, 0);
    for (size_t i = 0; i < sizeof file / sizeof file[0]; i++) {
        char path[96];
        snprintf(path, sizeof path, "%s/%s", g->dir, file[i]);
        if (status && !i) {
            char show[128];
            snprintf(show, sizeof show, "cat %s", path);
            if (system(show)) perror(path);
        }
        unlink(path);
    }
    rmdir(g->dir);
    return status == 0;
}

static FILE *open_proc(const stage *g, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)g->pid, name);
    FILE *f = fopen(path, "r");
    if (!f) give_up(path);
    return f;
}

long stage_memory_kib(const stage *g)
{
    FILE *f = open_proc(g, "smaps_rollup");
    char  line[128];
    long  kib = -1;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "Anonymous: %ld", &kib) == 1) break;
    fclose(f);
    return kib;
}

int stage_descriptors(const stage *g)
{
    char path[64];
    int  n = -2; /* . and .. */
    snprintf(path, sizeof path, "/proc/%d/fd", (int)g->pid);
    DIR *d = opendir(path);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

long stage_cpu_us(const stage *g)
{
    FILE *f  = open_proc(g, "schedstat");
    long  ns = -1;
    if (fscanf(f, "%ld", &ns) != 1) give_up("schedstat");
    fclose(f);
    return ns / 1000;
}

int stage_log_lines(const stage *g)
{
    char path[96];
    int  n = 0, c;
    snprintf(path, sizeof path, "%s/log", g->dir);
    FILE *f = fopen(path, "r");
    while (f && (c = fgetc(f)) != EOF) n += c == '\n';
    if (f) fclose(f);
    return n;
}

bool stage_connect(const stage *g, client *c)
{
    return g->tls ? client_open_tls(c, g->port, NULL) : client_open(c, g->port);
}

long stage_stat(const stage *g, const char *name)
{
    client       c;
    client_reply r     = {0};
    long         value = -1;
    if (!stage_connect(g, &c)) return -1;
    if (client_say(&c, "GET /stats HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") && client_read(&c, &r, 5)) {
        char key[64];
        snprintf(key, sizeof key, "\n%s ", name);
        buf_putc(&r.body, 0);
        const char *p = strstr(r.body.p, key);
        if (p) value = atol(p + strlen(key));
    }
    client_reply_deinit(&r);
    client_close(&c);
    return value;
}

bool stage_stat_becomes(const stage *g, const char *name, long value, double seconds)
{
    double end = clock_s() + seconds;
    while (stage_stat(g, name) != value) {
        if (clock_s() > end) return false;
        usleep(1000);
    }
    return true;
}
