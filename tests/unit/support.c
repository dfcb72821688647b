/* Shared by the unit tests and the mutation runner: scratch files, paths, reproducible random numbers. */
#include "test.h"

#include "base/log.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static char tmp_dir[128];

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

void test_tmp_clear(void)
{
    if (tmp_dir[0]) nftw(tmp_dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    tmp_dir[0] = 0;
}

const char *test_tmp_dir(void)
{
    static bool clears_at_exit;
    if (!tmp_dir[0]) {
        const char *above = getenv("TMPDIR");
        snprintf(tmp_dir, sizeof tmp_dir, "%s/tandem-unit-XXXXXX", above && strlen(above) < 64 ? above : "/tmp");
        if (!mkdtemp(tmp_dir)) abort();
        if (!clears_at_exit) atexit(test_tmp_clear);
        clears_at_exit = true;
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

double test_cpu_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* --- the log --------------------------------------------------------------------------------------*/
static int err_fd;

void test_listen_begin(bool json)
{
    int fd = open(test_tmp_file("log", "", 0), O_RDWR);
    err_fd = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
    log_setup(LOG_INFO, json);
}

const char *test_listen_end(void)
{
    static char said[8192];
    ssize_t     n       = pread(STDERR_FILENO, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = 0;
    dup2(err_fd, STDERR_FILENO);
    close(err_fd);
    log_setup(LOG_ERROR, false);
    return said;
}

const char *test_path(const char *rel)
{
    static char path[4][1024];
    static int  turn;
    turn              = (turn + 1) % 4;
    const char *moved = getenv("TANDEM_ROOT"); /* tests that were built elsewhere */
    snprintf(path[turn], sizeof path[0], "%s/%s", moved ? moved : TANDEM_ROOT, rel);
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
