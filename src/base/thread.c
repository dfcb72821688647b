/* A pool runs one job at a time. `generation` counts jobs. A worker that sees it change joins the crew if the job is
 * still open, takes chunks from `next` until none is left, and leaves the crew. The caller takes chunks too, closes the
 * job when none is left and waits until the crew is empty. A late worker finds the job closed, so nothing waits for a
 * worker without a processor. While the crew is not empty, no field of the job changes.
 *
 * Workers may cost more time than they save: to wake one takes 30 us in a virtual machine, longer than many jobs, and
 * a worker that loses its processor to another program in the middle of a chunk makes the caller wait for milliseconds.
 * The caller keeps a balance of both. When it is overdrawn, the caller runs jobs alone for a multiple of the time that
 * was lost, unless a job turns out to be long. */
#include "base/thread.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/inside.h"
#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPIN_NS = 30000, MAX_THREADS = 256 };
enum { CREDIT = 8000000, LOSS = 200000 }; /* range of the balance, in ticks() */
enum { FACTOR_MIN = 16, FACTOR_MAX = 256, ALONE_MAX_NS = 500000000 };
enum { LONG_JOB_NS = 300000 }; /* from here on, workers are called in any case */
#define OPEN 0x80000000u

struct pool {
    int         n_threads;
    int64_t     spin_ns; /* 0 when there are more threads than processors */
    pthread_t  *worker;  /* [n_threads - 1] */
    pool_fn    *fn;      /* the job; written before it is opened */
    void       *ctx;
    int         n_chunks;
    const char *fault_scope;
    atomic_int  next; /* first chunk that is not taken */
    atomic_uint generation;
    atomic_uint crew;     /* OPEN while workers may join, plus the number of workers inside */
    atomic_uint sleepers; /* workers asleep on `generation` */
    /* Used by the caller only. */
    double      chunk;       /* moving average of the time that a chunk takes the caller, in ticks() */
    double      balance;     /* time that workers have saved, less what they have cost, in ticks() */
    int64_t     alone_until; /* jobs before this time of clock_ns do not call workers; 0: all call them */
    int         factor;      /* multiple of a loss that the caller stays alone */
    atomic_bool stop;
};

typedef struct {
    pool *p;
    int   thread;
} worker_arg;

static void futex_wait(atomic_uint *word, unsigned seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Spins until *word differs from `seen`. Returns false when the spin time is over. */
static bool spin_while(const pool *p, atomic_uint *word, unsigned seen)
{
    if (!p->spin_ns) return atomic_load_explicit(word, memory_order_acquire) != seen;
    int64_t until = clock_ns() + p->spin_ns;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen) return true;
            relax();
        }
    } while (clock_ns() < until);
    return false;
}

/* Runs chunks until none is left. Returns their number. */
static int take_chunks(pool *p, int thread)
{
    for (int n = 0;; n++) {
        int chunk = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (chunk >= p->n_chunks) return n;
        p->fn(p->ctx, chunk, thread);
    }
}

static void wait_for_job(pool *p, unsigned seen)
{
    while (!spin_while(p, &p->generation, seen)) {
        atomic_fetch_add(&p->sleepers, 1);
        futex_wait(&p->generation, seen); /* returns immediately when it has changed */
        atomic_fetch_sub(&p->sleepers, 1);
    }
}

static bool join_crew(pool *p)
{
    unsigned now = atomic_load_explicit(&p->crew, memory_order_relaxed);
    while (now & OPEN)
        if (atomic_compare_exchange_weak_explicit(&p->crew, &now, now + 1, memory_order_acquire, memory_order_relaxed))
            return true;
    return false;
}

static void leave_crew(pool *p)
{
    if (atomic_fetch_sub_explicit(&p->crew, 1, memory_order_release) == 1) futex_wake_all(&p->crew);
}

static void *worker_main(void *arg)
{
    worker_arg a    = *(worker_arg *)arg;
    pool      *p    = a.p;
    unsigned   seen = 0;
    mem_free(arg);
    for (;;) {
        wait_for_job(p, seen);
        if (atomic_load(&p->stop)) return NULL;
        seen = atomic_load(&p->generation);
        if (!join_crew(p)) continue;
        fault_scope_set(p->fault_scope);
        take_chunks(p, a.thread);
        fault_scope_set(NULL);
        leave_crew(p);
    }
}

/* --- how many processors there are for us -------------------------------------------------------*/
/* Reads the numbers of a file such as cpu.max ("200000 100000" or "max 100000"). Returns how many there are. */
static int read_longs(const char *root, const char *dir, const char *name, long *a, long *b)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/%s", root, dir, name);
    FILE *f = fopen(path, "re");
    int   n = f ? fscanf(f, "%ld %ld", a, b) : 0;
    if (f) fclose(f);
    return n;
}

static int processors(long quota, long period)
{
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

static int smaller(int a, int b) { return !a ? b : !b || a < b ? a : b; } /* 0: no limit */

/* Returns the minimum limit of the group and its parents. Shortens dir. */
static int limit_of_group(const char *root, char *dir, bool v2)
{
    int limit = 0;
    for (;;) {
        long quota = 0, period = 0;
        if (v2) {
            if (read_longs(root, dir, "cpu.max", &quota, &period) == 2)
                limit = smaller(limit, processors(quota, period));
        } else if (read_longs(root, dir, "cpu.cfs_quota_us", &quota, &(long){0}) >= 1 &&
                   read_longs(root, dir, "cpu.cfs_period_us", &period, &(long){0}) >= 1) {
            limit = smaller(limit, processors(quota, period));
        }
        char *slash = strrchr(dir, '/');
        if (!slash || (!v2 && slash == dir)) return limit;
        *slash = 0;
    }
}

/* Reads a line of /proc/self/cgroup: "0::/group" (version 2), or "4:cpu,cpuacct:/group". */
static int limit_of_line(const char *root, char *line)
{
    char *kinds = strchr(line, ':'), *group = kinds ? strchr(kinds + 1, ':') : NULL, dir[600];
    if (!group) return 0;
    *group++                    = 0;
    group[strcspn(group, "\n")] = 0;
    if (!kinds[1]) return snprintf(dir, sizeof dir, "%s", group), limit_of_group(root, dir, true);
    for (char *kind = strtok(kinds + 1, ","); kind; kind = strtok(NULL, ","))
        if (!strcmp(kind, "cpu")) return snprintf(dir, sizeof dir, "/cpu%s", group), limit_of_group(root, dir, false);
    return 0;
}

int cpu_quota(const char *root)
{
    char path[512], line[512], top[8] = "";
    int  limit = limit_of_group(root, top, true); /* in a container, the visible root is often our group */
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) limit = smaller(limit, limit_of_line(root, line));
    if (f) fclose(f);
    return limit;
}

int cpu_allowed(void)
{
    cpu_set_t set;
    int       n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    n           = smaller(cpu_quota(""), n);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

bool thread_start(pthread_t *out, void *(*body)(void *), void *arg)
{
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT};
    sigset_t         others, before;
    sigfillset(&others);
    for (size_t i = 0; i < COUNT(own); i++) sigdelset(&others, own[i]);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    bool started = pthread_create(out, NULL, body, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

pool *pool_new(int n_threads)
{
    pool *p      = xnew(pool);
    int   cpus   = cpu_allowed();
    p->n_threads = n_threads < 1 ? cpus : n_threads > MAX_THREADS ? MAX_THREADS : n_threads;
    p->spin_ns   = p->n_threads > cpus ? 0 : SPIN_NS;
    p->factor    = FACTOR_MIN;
    p->worker    = xnew_n(pthread_t, p->n_threads);
    for (int i = 1; i < p->n_threads; i++) {
        worker_arg *a = xnew(worker_arg);
        *a            = (worker_arg){p, i};
        if (!thread_start(&p->worker[i - 1], worker_main, a)) { /* at a limit of threads: use those that started */
            mem_free(a);
            p->n_threads = i;
        }
    }
    return p;
}

/* Announces a job. Returns whether workers had to be woken. */
static bool call_workers(pool *p)
{
    atomic_fetch_add(&p->generation, 1); /* seq_cst: ordered against the sleepers' count */
    bool asleep = atomic_load(&p->sleepers) > 0;
    if (asleep) futex_wake_all(&p->generation);
    return asleep;
}

/* Closes the job and returns when the crew is empty. Returns whether it was not empty at once. */
static bool close_job(pool *p)
{
    unsigned inside = atomic_fetch_and_explicit(&p->crew, ~OPEN, memory_order_acquire) & ~OPEN;
    bool     waits  = inside != 0;
    for (; inside; inside = atomic_load_explicit(&p->crew, memory_order_acquire))
        if (!spin_while(p, &p->crew, inside)) futex_wait(&p->crew, inside);
    return waits;
}

void pool_free(pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    call_workers(p);
    for (int i = 1; i < p->n_threads; i++) pthread_join(p->worker[i - 1], NULL);
    mem_free(p->worker);
    mem_free(p);
}

int pool_threads(const pool *p) { return p->n_threads; }

/* Returns a time that only this thread uses, in units of a quarter to one nanosecond; quicker than the clock. */
static int64_t ticks(void)
{
#if defined(__x86_64__)
    return (int64_t)__builtin_ia32_rdtsc();
#else
    return clock_ns();
#endif
}

/* Enters a job in the balance, in ticks. own: chunks of the caller, which took it own_time; others: those of workers,
 * which would have taken it as long each; cost: to wake them and to wait for them. */
static void enter_job(pool *p, int own, int others, int64_t own_time, int64_t cost)
{
    double each = own > 0 ? (double)own_time / own : p->chunk;
    if (p->chunk > 0 && each > 2 * p->chunk) each = 2 * p->chunk; /* it may have lost its processor */
    p->chunk += (each - p->chunk) / 8;
    p->balance += others * p->chunk - (double)cost;
    if (p->balance > CREDIT) {
        p->balance = CREDIT;
        p->factor  = FACTOR_MIN;
    } else if (p->balance < -LOSS) {
        double alone   = -p->balance * p->factor;
        p->alone_until = clock_ns() + (alone < ALONE_MAX_NS ? (int64_t)alone : ALONE_MAX_NS);
        p->factor      = p->factor < FACTOR_MAX ? 2 * p->factor : FACTOR_MAX;
        p->balance     = 0;
    }
}

/* Runs the chunks from `first` on with the workers. */
static void run_together(pool *p, int first)
{
    int64_t start = ticks(), called = start, wait = 0;
    atomic_store_explicit(&p->next, first, memory_order_relaxed);
    atomic_store_explicit(&p->crew, OPEN, memory_order_release);
    if (call_workers(p)) called = ticks();
    int     own = take_chunks(p, 0);
    int64_t ran = ticks();
    if (close_job(p)) wait = ticks() - ran;
    enter_job(p, own, p->n_chunks - first - own, ran - called, called - start + wait);
}

/* Runs chunks on the caller, unless it may call workers again. Returns the first that is left when the job is long. */
static int run_alone(pool *p)
{
    int     i    = 0;
    int64_t now  = clock_ns();
    int64_t late = now + LONG_JOB_NS;
    if (now >= p->alone_until) p->alone_until = late = 0;
    for (; i < p->n_chunks && now < late; now = clock_ns()) p->fn(p->ctx, i++, 0);
    return i;
}

void pool_run(pool *p, int n_chunks, pool_fn *fn, void *ctx)
{
    if (p->n_threads == 1 || n_chunks <= 1) {
        for (int i = 0; i < n_chunks; i++) fn(ctx, i, 0);
        return;
    }
    p->fn          = fn;
    p->ctx         = ctx;
    p->n_chunks    = n_chunks;
    p->fault_scope = fault_scope();
    int first      = p->alone_until ? run_alone(p) : 0;
    if (first < n_chunks) run_together(p, first);
}
