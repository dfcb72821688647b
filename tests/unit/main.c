#include "test.h"

#include "base/fault.h"
#include "base/log.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

static test_case *first;
static bool       verbose;
static char       tmp_dir[64];

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

static void remove_tmp_dir(void)
{
    char           path[512];
    DIR           *d = opendir(tmp_dir);
    struct dirent *f;
    while (d && (f = readdir(d)))
        if (strcmp(f->d_name, ".") && strcmp(f->d_name, "..")) {
            snprintf(path, sizeof path, "%s/%s", tmp_dir, f->d_name);
            unlink(path);
        }
    if (d) closedir(d);
    rmdir(tmp_dir);
}

const char *test_tmp_dir(void)
{
    if (!tmp_dir[0]) {
        strcpy(tmp_dir, "/tmp/tandem-unit-XXXXXX");
        if (!mkdtemp(tmp_dir)) abort();
        atexit(remove_tmp_dir);
    }
    return tmp_dir;
}

const char *test_tmp_file(const char *name, const void *bytes, size_t n)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp_dir(), name);
    FILE *f = fopen(path, "wb");
    if (!f || (n && fwrite(bytes, 1, n, f) != n)) abort();
    fclose(f);
    return path;
}

const char *test_path(const char *rel)
{
    static char path[4][1024];
    static int  turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[0], "%s/%s", TANDEM_ROOT, rel);
    return path[turn];
}

uint64_t test_rand(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z          = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z          = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

float test_randn(uint64_t *state)
{
    double u = ((double)(test_rand(state) >> 11) + 0.5) * 0x1p-53, v = (double)(test_rand(state) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
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
        if (verbose) fprintf(stderr, "%s\n", c->name);
        c->run(c);
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
