#include "base/arena.h"
#include "base/buf.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/inside.h"
#include "base/log.h"
#include "base/thread.h"
#include "test.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(err_wrap_puts_the_cause_last_and_keeps_the_code)
{
    err e = {0};
    CHECK(!err_set(&e, ERR_FORMAT, "tensor '%s' is\nodd", "x"));
    CHECK(!err_wrap(&e, "cannot load %s", "a.gguf"));
    CHECK_STR(str_of(e.text), STR("cannot load a.gguf: tensor 'x' is?odd"));
    CHECK_INT(e.code, ERR_FORMAT);
}

TEST(err_wrap_cuts_a_long_path_rather_than_the_cause)
{
    err  e = {0};
    char path[2000];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = 0;
    err_set(&e, ERR_IO, "the disk is on fire");
    err_wrap(&e, "cannot load %s", path);
    CHECK(str_ends(str_of(e.text), "...: the disk is on fire"));
    CHECK_INT(strlen(e.text), sizeof e.text - 1);
}

TEST(arena_restores_zeroes_and_keeps_its_ceiling)
{
    arena a;
    arena_init(&a, 1 << 20);
    char *p = arena_alloc(&a, 100);
    memset(p, 1, 100);
    arena_mark m = arena_save(&a);
    memset(arena_alloc(&a, 1000), 2, 1000);
    CHECK(arena_try(&a, 300, 1000) != NULL); /* a chunk of its own */
    arena_restore(&a, m);
    char *q = arena_alloc(&a, 1000);
    for (int i = 0; i < 1000; i++) CHECK(q[i] == 0);
    CHECK_INT(p[99], 1);
    CHECK(arena_try(&a, 2, (size_t)1 << 20) == NULL);
    CHECK(arena_try(&a, SIZE_MAX / 2, 4) == NULL);
    fault_fail_nth(1);
    CHECK(arena_try(&a, 200, 1000) == NULL);
    arena_deinit(&a);
}

TEST(buf_stops_at_its_ceiling_and_stays_failed)
{
    buf b;
    buf_init(&b, 8);
    CHECK(buf_puts(&b, "12345678"));
    CHECK(!buf_putc(&b, '9'));
    CHECK(b.failed && b.n == 8);
    buf_clear(&b);
    CHECK(!buf_printf(&b, "%d", 123456789));
    buf_deinit(&b);
}

TEST(buf_json_string_escapes_what_json_must)
{
    buf b;
    buf_init(&b, 1000);
    CHECK(buf_put_json_string(&b, STR("a\"\\\n\x01\xff\xe2\x80\xa8z")));
    CHECK_STR(buf_str(&b), STR("\"a\\\"\\\\\\n\\u0001\xEF\xBF\xBD\\u2028z\""));
    buf_deinit(&b);
}

TEST(str_numbers_are_whole_and_in_range)
{
    int64_t  i;
    uint64_t u;
    double   d;
    CHECK(str_to_i64(STR("-9223372036854775808"), &i) && i == INT64_MIN);
    CHECK(!str_to_i64(STR("9223372036854775808"), &i));
    CHECK(str_to_u64(STR("18446744073709551615"), &u) && u == UINT64_MAX);
    CHECK(!str_to_u64(STR("18446744073709551616"), &u));
    CHECK(!str_to_u64(STR(""), &u) && !str_to_u64(STR("1 "), &u) && !str_to_i64(STR("-"), &i));
    CHECK(str_to_f64(STR("1e-3"), &d) && d == 1e-3);
    CHECK(!str_to_f64(STR("nan"), &d) && !str_to_f64(STR("1e999"), &d) && !str_to_f64(STR("0x10"), &d));
}

TEST(utf8_refuses_what_is_not_a_character)
{
    static const char *const bad[] = {"\x80",         "\xC0\x80",         "\xC1\xBF",         "\xE0\x80\x80",
                                      "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
                                      "\xE2\x82"};
    uint32_t                 cp;
    for (size_t i = 0; i < COUNT(bad); i++) CHECK_MSG(utf8_decode(bad[i], strlen(bad[i]), &cp) == 0, "case %zu", i);
    for (uint32_t c = 1; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        char s[4];
        int  n = utf8_encode(s, c);
        CHECK_MSG(utf8_decode(s, (size_t)n, &cp) == n && cp == c, "U+%04X", c);
        for (int cut = 1; cut < n; cut++)
            CHECK_MSG(utf8_open_tail(s, (size_t)cut) == (size_t)cut, "U+%04X cut %d", c, cut);
        CHECK(utf8_open_tail(s, (size_t)n) == 0);
    }
    CHECK_INT(utf8_open_tail("\xE0\x80", 2), 0); /* can never become valid */
    CHECK_INT(utf8_open_tail("a\xF0\x9F", 3), 2);
}

typedef struct {
    atomic_int hits[1000];
    atomic_int threads_seen;
} pool_probe;

static void count_chunk(void *ctx, int chunk, int thread)
{
    pool_probe *p = ctx;
    atomic_fetch_add(&p->hits[chunk], 1);
    atomic_fetch_or(&p->threads_seen, 1 << thread);
}

TEST(thread_pool_runs_every_chunk_once)
{
    for (int n = 1; n <= 5; n++) {
        pool       *p     = pool_new(n);
        pool_probe *probe = xnew(pool_probe);
        for (int round = 0; round < 200; round++) {
            pool_run(p, 1 + round * 5 % 1000, count_chunk, probe);
            if (round % 50 == 0) usleep(2000); /* let the workers fall asleep */
        }
        int total = 0, expected = 0;
        for (int i = 0; i < 1000; i++) total += atomic_load(&probe->hits[i]);
        for (int round = 0; round < 200; round++) expected += 1 + round * 5 % 1000;
        CHECK_INT(total, expected);
        CHECK_INT(pool_threads(p), n);
        mem_free(probe);
        pool_free(p);
    }
}

static void allocate_in_worker(void *ctx, int chunk, int thread)
{
    (void)ctx, (void)thread;
    if (chunk == 3) mem_free(mem_try(10));
}

static int exit_of_child(void (*fn)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(9);
        fn();
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void allocate_in_scope(void)
{
    fault_no_alloc_begin("test");
    char *volatile p = __builtin_malloc(10); /* libc's own, through the wrapper */
    (void)p;
}

static void allocate_in_pool(void)
{
    pool *p = pool_new(2);
    fault_no_alloc_begin("test");
    pool_run(p, 8, allocate_in_worker, NULL);
}

TEST(fault_no_alloc_scope_aborts_here_and_in_pool_workers)
{
    CHECK_MSG(exit_of_child(allocate_in_scope) != 0, "a malloc inside the scope went unseen");
    CHECK_MSG(exit_of_child(allocate_in_pool) != 0, "a malloc in a pool worker went unseen");
}

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp_dir(), dir);
    for (char *p = path + strlen(test_tmp_dir()) + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(path, 0700);
            *p = '/';
        }
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    test_tmp_file(path, text, strlen(text));
}

static int quota_of(const char *machine)
{
    char root[256];
    snprintf(root, sizeof root, "%s/%s", test_tmp_dir(), machine);
    return cpu_quota(root);
}

TEST(cpu_quota_is_the_least_of_the_group_and_those_above)
{
    put_file("v2/proc/self", "cgroup", "0::/user.slice/a.scope\n");
    put_file("v2/sys/fs/cgroup", "cpu.max", "max 100000\n");
    put_file("v2/sys/fs/cgroup/user.slice", "cpu.max", "250000 100000\n");
    put_file("v2/sys/fs/cgroup/user.slice/a.scope", "cpu.max", "800000 100000\n");
    CHECK_INT(quota_of("v2"), 3);
    put_file("v1/proc/self", "cgroup", "7:memory:/x\n4:cpu,cpuacct:/docker/x\n");
    put_file("v1/sys/fs/cgroup/cpu/docker", "cpu.cfs_quota_us", "-1\n");
    put_file("v1/sys/fs/cgroup/cpu/docker", "cpu.cfs_period_us", "100000\n");
    put_file("v1/sys/fs/cgroup/cpu/docker/x", "cpu.cfs_quota_us", "150000\n");
    put_file("v1/sys/fs/cgroup/cpu/docker/x", "cpu.cfs_period_us", "100000\n");
    CHECK_INT(quota_of("v1"), 2);
    put_file("bare/proc/self", "cgroup", "0::/\n");
    CHECK_INT(quota_of("bare"), 0);
    put_file("root/proc/self", "cgroup", "0::/\n");
    put_file("root/sys/fs/cgroup", "cpu.max", "50000 100000\n");
    CHECK_INT(quota_of("root"), 1);
    CHECK_INT(quota_of("nothing"), 0);
}

TEST(file_map_says_what_is_wrong)
{
    file_map m;
    err      e = {0};
    CHECK_FAILS(file_map_open(&m, "/nonexistent/file", &e), e, "No such file");
    CHECK_FAILS(file_map_open(&m, "/tmp", &e), e, "is a directory");
    CHECK_FAILS(file_map_open(&m, "/dev/zero", &e), e, "not a regular file");
    CHECK_OK(file_map_open(&m, test_tmp_file("empty", "", 0), &e), e);
    CHECK(m.p == NULL && m.n == 0);
    CHECK_OK(file_map_open(&m, test_tmp_file("three", "abc", 3), &e), e);
    CHECK_STR(((str){m.p, m.n}), STR("abc"));
    file_map_close(&m);
}

/* A drafter that fails inside a step says so, and the step goes on. */
TEST(log_inside_a_scope_without_allocation)
{
    test_listen_begin(false);
    fault_no_alloc_begin("a step");
    log_event(LOG_ERROR, "test", "something went wrong");
    CHECK(fault_scope() && strcmp(fault_scope(), "a step") == 0);
    fault_no_alloc_end();
    CHECK(strstr(test_listen_end(), "something went wrong"));
}
