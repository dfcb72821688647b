/* The unit test program: build/unit [-v] [-j N] [--quick | --full] [--list] [part of a name | =name ...]
 *
 * Runs the tests whose names contain one of the parts or are the name after =, or all of them. A part with a slash is
 * compared with the name of the source file instead, as in unit/json/. --quick leaves
 * out TEST_LONG tests. --full runs every test at its full length; without it TEST_SLOW tests run only when their full
 * name is given. -j N shares the tests between N processes; a test
 * that crashes one of them is reported and the others still run. -v prints the wall-clock and CPU seconds of each
 * test. --list prints the source and the name of each selected test instead of running it. */
#include "test.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "decode/worker.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WORKERS = 64 };

typedef struct {
    bool        verbose, list;
    int         level; /* the longest tests that run */
    int         n_workers;
    const char *parts[256]; /* parts of names; none: all tests */
    int         n_parts;
} options;

typedef enum { NOT_RUN, PASSED, FAILED, SKIPPED } outcome;

/* Shared between the worker processes. */
typedef struct {
    atomic_int next;                 /* the first test that no worker has taken */
    int        current[MAX_WORKERS]; /* the test that a worker runs, -1: none */
    outcome    outcomes[];
} board;

static test_case *first;
static bool       full;

void test_register(test_case *t)
{
    t->next = first;
    first   = t;
}

bool test_check(test_case *t, bool ok, const char *file, int line, const char *fmt, ...)
{
    if (ok) return true;
    if (t->n_failed++ < 10) {
        char    text[1024];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        fprintf(stderr, "%s:%d: %s: %s\n", file, line, t->name, text); /* one write: workers share stderr */
    }
    return false;
}

bool test_full(void) { return full; }

void test_skip(test_case *t, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "SKIP %s: ", t->name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    const char *ci = getenv("CI");
    if (ci && !strcmp(ci, "true")) t->n_failed++;
    t->skipped = true;
}

static bool is_selected(const test_case *c, const options *o)
{
    for (int i = 0; i < o->n_parts; i++) {
        if (!strcmp(c->name, o->parts[i] + (o->parts[i][0] == '='))) return true;
        const char *in = strchr(o->parts[i], '/') ? c->file : c->name;
        if (strstr(in, o->parts[i]) && c->level <= o->level) return true;
    }
    return !o->n_parts && c->level <= o->level;
}

/* Returns a new array of the selected tests. */
static test_case **select_tests(const options *o, int *n)
{
    int total = 0;
    for (test_case *c = first; c; c = c->next) total++;
    test_case **out = xnew_n(test_case *, (size_t)total + 1);
    *n              = 0;
    for (test_case *c = first; c; c = c->next)
        if (is_selected(c, o)) out[(*n)++] = c;
    return out;
}

static outcome run_test(test_case *c, bool verbose)
{
    double start = clock_s(), cpu = test_cpu_s();
    c->run(c);
    if (verbose) fprintf(stderr, "%6.2f s %6.2f s CPU  %s\n", clock_s() - start, test_cpu_s() - cpu, c->name);
    fault_fail_nth(0);
    test_tmp_clear();
    if (c->n_failed) fprintf(stderr, "FAILED %s\n", c->name);
    return c->n_failed ? FAILED : c->skipped ? SKIPPED : PASSED;
}

/* Starts a worker process; it takes tests from the board until none is left. */
static pid_t start_worker(board *b, int worker, test_case **tests, int n, bool verbose)
{
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(2);
    }
    if (pid) return pid;
    for (int i; (i = atomic_fetch_add(&b->next, 1)) < n;) {
        b->current[worker] = i;
        b->outcomes[i]     = run_test(tests[i], verbose);
    }
    b->current[worker] = -1;
    exit(0);
}

/* Returns false when a worker reported an error after its last test, as a leak checker does. */
static bool run_in_workers(board *b, test_case **tests, int n, const options *o)
{
    pid_t pids[MAX_WORKERS];
    bool  ok     = true;
    int   status = 0, n_live = o->n_workers;
    for (int w = 0; w < o->n_workers; w++) pids[w] = start_worker(b, w, tests, n, o->verbose);
    while (n_live) {
        pid_t pid = wait(&status);
        int   w   = 0;
        while (w < o->n_workers && pids[w] != pid) w++;
        if (w == o->n_workers) continue;
        int i = b->current[w];
        if (i < 0) {
            if (status) fprintf(stderr, "FAILED: a test process ended with status %d after its tests\n", status);
            ok &= !status;
            n_live--;
            continue;
        }
        fprintf(stderr, "FAILED %s: its process ended with %s %d\n", tests[i]->name,
                WIFSIGNALED(status) ? "signal" : "exit status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        b->outcomes[i] = FAILED;
        b->current[w]  = -1;
        pids[w]        = start_worker(b, w, tests, n, o->verbose);
    }
    return ok;
}

static int list_tests(test_case **tests, int n)
{
    for (int i = 0; i < n; i++) printf("%s %s\n", tests[i]->file, tests[i]->name);
    mem_free(tests);
    return 0;
}

static int usage(const char *problem)
{
    fprintf(stderr, "%s\nusage: unit [-v] [-j N] [--quick | --full] [--list] [part of a name | =name ...]\n", problem);
    return 2;
}

static const char *read_options(options *o, int argc, char **argv)
{
    *o = (options){.n_workers = 1, .level = 1};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-v"))
            o->verbose = true;
        else if (!strcmp(argv[i], "--quick"))
            o->level = 0;
        else if (!strcmp(argv[i], "--full"))
            o->level = 2;
        else if (!strcmp(argv[i], "--list"))
            o->list = true;
        else if (!strcmp(argv[i], "-j") && i + 1 < argc)
            o->n_workers = atoi(argv[++i]);
        else if (argv[i][0] == '-')
            return "unknown option";
        else if (o->n_parts == COUNT(o->parts))
            return "too many names";
        else
            o->parts[o->n_parts++] = argv[i];
    }
    return o->n_workers < 1 || o->n_workers > MAX_WORKERS ? "-j takes 1 to 64" : NULL;
}

int main(int argc, char **argv)
{
    options o;
    int     n, count[4] = {0};
    bool    ok = true;
    if (argc > 1 && !strcmp(argv[1], DECODE_WORKER_COMMAND)) return decode_worker_main(argc - 2, argv + 2);
    const char *problem = read_options(&o, argc, argv);
    if (problem) return usage(problem);
    full              = o.level == 2;
    test_case **tests = select_tests(&o, &n);
    if (o.list) return list_tests(tests, n);
    size_t bytes = sizeof(board) + sizeof(outcome) * (size_t)(n + 1);
    board *b     = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) return usage("cannot map memory");
    log_setup(LOG_ERROR, false);
    if (o.n_workers > 1)
        ok = run_in_workers(b, tests, n, &o);
    else
        for (int i = 0; i < n; i++) b->outcomes[i] = run_test(tests[i], o.verbose);
    for (int i = 0; i < n; i++) count[b->outcomes[i]]++;
    printf("%d passed, %d failed, %d skipped\n", count[PASSED], count[FAILED], count[SKIPPED]);
    mem_free(tests);
    return !ok || count[FAILED] || !(count[PASSED] + count[SKIPPED]) ? 1 : 0;
}
