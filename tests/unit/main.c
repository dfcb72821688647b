#include "test.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

#include <stdarg.h>
#include <stdlib.h>

static test_case *first;
static bool       verbose;

void test_register(test_case *t)
{
    t->next = first;
    first   = t;
}

bool test_check(test_case *t, bool ok, const char *file, int line, const char *fmt, ...)
{
    if (ok) return true;
    if (t->n_failed++ < 10) {
        va_list ap;
        fprintf(stderr, "%s:%d: %s: ", file, line, t->name);
        va_start(ap, fmt);
        vfprintf(stderr, fmt, ap);
        va_end(ap);
        fputc('\n', stderr);
    }
    return false;
}

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

static bool selected(const char *name, int argc, char **argv)
{
    bool any = false;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') continue;
        any = true;
        if (strstr(name, argv[i])) return true;
    }
    return !any;
}

int main(int argc, char **argv)
{
    int n_passed = 0, n_failed = 0, n_skipped = 0;
    for (int i = 1; i < argc; i++) verbose |= !strcmp(argv[i], "-v");
    log_setup(LOG_ERROR, false);
    for (test_case *c = first; c; c = c->next) {
        if (!selected(c->name, argc, argv)) continue;
        double start = clock_s();
        c->run(c);
        if (verbose) fprintf(stderr, "%6.2f s  %s\n", clock_s() - start, c->name);
        fault_fail_nth(0);
        if (c->n_failed) fprintf(stderr, "FAILED %s\n", c->name);
        if (c->n_failed)
            n_failed++;
        else if (c->skipped)
            n_skipped++;
        else
            n_passed++;
    }
    printf("%d passed, %d failed, %d skipped\n", n_passed, n_failed, n_skipped);
    return n_failed || !(n_passed + n_skipped) ? 1 : 0;
}
