/* The directory of stored K/V: entries survive kill -9, old ones leave, damaged indexes are replaced. */
#include "store/disk.h"

#include "base/mem.h"
#include "base/num.h"
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4 }; /* tokens */

static const char *dir_path(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", test_tmp_dir(), name);
    return path;
}

static void free_pack(void *p)
{
    pack_deinit(p);
    mem_free(p);
}

/* A text of n pages that is different for each number, and the pack of its last page. */
static disk_request *save_request(int number, int32_t n, size_t bytes)
{
    int32_t text[64 * PAGE] = {number};
    pack   *p               = xnew(pack);
    for (int i = 1; i < n * PAGE; i++) text[i] = i;
    disk_request *r = disk_request_new(DISK_SAVE, (hash128){1, 2}, 3, text, n, PAGE);
    pack_section *s = pack_add(p, 20, (uint32_t)number, bytes);
    memset(s->data, number, bytes);
    r->from      = n - 1;
    r->to        = n;
    r->save      = p;
    r->free_pack = free_pack;
    r->pack_ctx  = p;
    return r;
}

static bool wants_all(const void *ctx, const pack_section *s, int32_t end)
{
    (void)ctx, (void)s, (void)end;
    return true;
}

static void wait_for(disk *d, disk_request *r)
{
    disk_submit(d, r);
    while (!disk_is_done(d, r)) usleep(200);
}

static bool save(disk *d, int number, int32_t n, size_t bytes)
{
    disk_request *r = save_request(number, n, bytes);
    wait_for(d, r);
    bool saved = r->saved;
    disk_drop(d, r);
    return saved;
}

/* Returns the pages found of the text, and checks the bytes of the images. */
static int find(test_case *t, disk *d, int number, int32_t n)
{
    int32_t text[64 * PAGE] = {number};
    for (int i = 1; i < n * PAGE; i++) text[i] = i;
    disk_request *r = disk_request_new(DISK_LOAD, (hash128){1, 2}, 3, text, n, PAGE);
    r->max_load     = SIZE_MAX;
    r->wants        = wants_all;
    wait_for(d, r);
    for (int i = 0; i < r->n_images; i++) {
        const pack_section *s = &r->image[i]->section[0];
        for (size_t k = 0; k < s->bytes; k++)
            if (((char *)s->data)[k] != (char)number) {
                CHECK_MSG(false, "entry %d has other bytes", number);
                break;
            }
    }
    int end = r->end;
    disk_drop(d, r);
    return end;
}

static bool open_disk(test_case *t, disk **d, const char *dir, uint64_t max)
{
    err          e = {0};
    disk_options o = {.dir = dir, .max_bytes = max};
    return CHECK_OK(disk_open(d, &o, &e), e);
}

TEST(disk_finds_the_longest_chain)
{
    disk *d;
    if (!open_disk(t, &d, dir_path("a"), 1 << 20)) return;
    for (int n = 1; n <= 3; n++) CHECK(save(d, 7, n, 100));
    CHECK(!save(d, 7, 2, 100)); /* it is there */
    CHECK(save(d, 8, 2, 100));  /* its first page is missing */
    CHECK_INT(find(t, d, 7, 5), 3);
    CHECK_INT(find(t, d, 7, 2), 2);
    CHECK_INT(find(t, d, 8, 5), 0);
    CHECK_INT(find(t, d, 9, 5), 0);
    disk_close(d, 60);
}

static atomic_int stuck; /* 1: a request waits; 2: it may go on */
static bool       wants_after_a_while(const void *ctx, const pack_section *s, int32_t end)
{
    (void)ctx, (void)s, (void)end;
    atomic_store(&stuck, 1);
    while (atomic_load(&stuck) == 1) usleep(200);
    return true;
}

static bool has_file(const char *dir, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* A disk that does not respond is not waited for. The thread frees all when the disk responds after all. */
TEST(disk_closes_while_a_request_is_stuck)
{
    disk       *d;
    const char *dir        = dir_path("stuck");
    int32_t     text[PAGE] = {1, 1, 2, 3};
    if (!open_disk(t, &d, dir, 1 << 20)) return;
    CHECK(save(d, 1, 1, 1000));
    disk_request *r = disk_request_new(DISK_LOAD, (hash128){1, 2}, 3, text, 1, PAGE);
    r->max_load     = 1 << 20;
    r->wants        = wants_after_a_while;
    disk_submit(d, r);
    while (!atomic_load(&stuck)) usleep(200);
    disk_drop(d, r);
    test_listen_begin(false);
    disk_close(d, 0);
    CHECK(strstr(test_listen_end(), "the disk does not respond"));
    CHECK(has_file(dir, "index.db-wal"));
    atomic_store(&stuck, 2);
    for (int i = 0; has_file(dir, "index.db-wal") && i < 50000; i++) usleep(200); /* removed when the index is closed */
    CHECK(!has_file(dir, "index.db-wal"));
}

/* An error that may pass is a miss, and the entry stays. */
TEST(disk_keeps_an_entry_that_it_cannot_open_now)
{
    struct rlimit old, few = {1, 1};
    disk         *d;
    if (!open_disk(t, &d, dir_path("few"), 1 << 20)) return;
    CHECK(save(d, 1, 1, 1000));
    CHECK_INT(find(t, d, 1, 1), 1);
    getrlimit(RLIMIT_NOFILE, &old);
    few.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_NOFILE, &few);
    int found = find(t, d, 1, 1);
    setrlimit(RLIMIT_NOFILE, &old);
    CHECK_INT(found, 0);
    CHECK_INT(find(t, d, 1, 1), 1);
    disk_close(d, 60);
}

/* Returns the pages found with this limit of bytes and this speed of computing. */
static int find_within(disk *d, int number, int32_t n, uint64_t max_load, double page_s)
{
    int32_t text[64 * PAGE] = {number};
    for (int i = 1; i < n * PAGE; i++) text[i] = i;
    disk_request *r = disk_request_new(DISK_LOAD, (hash128){1, 2}, 3, text, n, PAGE);
    r->max_load     = max_load;
    r->page_s       = page_s;
    r->wants        = wants_all;
    wait_for(d, r);
    int end = r->end;
    disk_drop(d, r);
    return end;
}

TEST(disk_finds_the_part_of_a_chain_that_fits)
{
    disk *d;
    if (!open_disk(t, &d, dir_path("fits"), 1 << 20)) return;
    for (int n = 1; n <= 3; n++) CHECK(save(d, 7, n, 1000));
    CHECK_INT(find_within(d, 7, 3, 3000, 0), 3);
    CHECK_INT(find_within(d, 7, 3, 2999, 0), 2);
    CHECK_INT(find_within(d, 7, 3, 999, 0), 0);
    CHECK_INT(find(t, d, 7, 3), 3);
    disk_close(d, 60);
}

/* A disk that was slower than computing is tried again now and then. */
TEST(disk_measures_a_slow_disk_again)
{
    enum { BYTES = 24 << 20, LOADS = 32 };
    disk      *d;
    disk_stats st;
    int        found = 0;
    if (!open_disk(t, &d, dir_path("slow"), 64 << 20)) return;
    CHECK(save(d, 1, 1, BYTES));
    CHECK(save(d, 2, 1, 1000));
    for (int i = 0; i < 3; i++) CHECK_INT(find_within(d, 1, 1, SIZE_MAX, 1e-12), 1);
    for (int i = 0; i < LOADS; i++) found += find_within(d, 2, 1, SIZE_MAX, 1e-12);
    CHECK_INT(found, LOADS / 16);
    disk_get_stats(d, &st);
    CHECK_INT(st.skipped, LOADS - LOADS / 16);
    disk_close(d, 60);
}

static bool save_with_draft(disk *d, int number, uint64_t draft)
{
    disk_request *r = save_request(number, 1, 1000);
    r->save_draft   = (hash128){draft, draft};
    wait_for(d, r);
    bool saved = r->saved;
    disk_drop(d, r);
    return saved;
}

TEST(disk_replaces_an_entry_in_memory_that_lacks_the_drafters_part)
{
    err          e = {0};
    disk        *d;
    disk_stats   st;
    disk_options o = {.park_bytes = 1 << 20};
    if (!CHECK_OK(disk_open(&d, &o, &e), e)) return;
    CHECK(save_with_draft(d, 1, 0));
    disk_get_stats(d, &st);
    uint64_t before = st.parked_bytes;
    CHECK(save_with_draft(d, 1, 5));
    CHECK(!save_with_draft(d, 1, 5));
    CHECK(!save_with_draft(d, 1, 0));
    disk_get_stats(d, &st);
    CHECK_INT((int)st.parked_bytes, (int)before);
    CHECK_INT(find(t, d, 1, 1), 1);
    disk_close(d, 60);
}

TEST(disk_is_shared_by_two_users)
{
    disk      *a, *b;
    disk_stats st;
    if (!open_disk(t, &a, dir_path("two"), 1 << 20) || !open_disk(t, &b, dir_path("two"), 1 << 20)) return;
    CHECK(!memcmp(disk_secret(a), disk_secret(b), INDEX_SECRET));
    for (int i = 0; i < 10; i++) {
        CHECK(save(i % 2 ? a : b, i, 1, 1000));
        CHECK(!save(i % 2 ? b : a, i, 1, 1000));
        CHECK_INT(find(t, i % 2 ? b : a, i, 3), 1);
    }
    disk_get_stats(a, &st);
    CHECK_INT(st.entries, 10);
    disk_close(a, 60);
    disk_close(b, 60);
}

TEST(disk_removes_the_least_recently_used_leaves)
{
    enum { BYTES = 10000 };
    disk      *d;
    disk_stats st;
    if (!open_disk(t, &d, dir_path("lru"), 5 * (BYTES + 500))) return;
    for (int n = 1; n <= 2; n++) CHECK(save(d, 1, n, BYTES));
    for (int i = 2; i <= 4; i++) CHECK(save(d, i, 1, BYTES));
    CHECK_INT(find(t, d, 2, 2), 1); /* used: 3 is the oldest leaf after the second page of 1 */
    CHECK(save(d, 5, 1, BYTES));
    CHECK_INT(find(t, d, 1, 3), 1); /* its first page was no leaf */
    CHECK(save(d, 6, 1, BYTES));
    CHECK_INT(find(t, d, 3, 2), 0);
    CHECK_INT(find(t, d, 2, 2), 1);
    CHECK(!save(d, 9, 1, 6 * BYTES)); /* more than all */
    disk_get_stats(d, &st);
    CHECK(st.bytes <= 5 * (BYTES + 500) && st.evicted == 2 && st.entries == 5);
    disk_close(d, 60);
}

/* Returns the number of files, and checks that none is temporary. */
static int count_files(test_case *t, const char *dir)
{
    char path[4200];
    int  n = 0;
    snprintf(path, sizeof path, "%s/kv", dir);
    DIR *d = opendir(path);
    for (struct dirent *x; d && (x = readdir(d));) {
        CHECK_MSG(strncmp(x->d_name, ".part", 5), "%s was left", x->d_name);
        n += x->d_name[0] != '.';
    }
    if (d) closedir(d);
    return n;
}

TEST(disk_applies_a_lower_limit_at_the_next_start)
{
    enum { BYTES = 10000, ENTRIES = 100 };
    disk      *d;
    disk_stats st;
    if (!open_disk(t, &d, dir_path("lower"), 1 << 30)) return;
    for (int i = 1; i <= ENTRIES; i++) CHECK(save(d, i, 1, BYTES));
    disk_close(d, 60);
    if (!open_disk(t, &d, dir_path("lower"), 20 * BYTES)) return;
    for (int i = 0; i < 5000; i++) {
        disk_get_stats(d, &st);
        if (st.bytes <= 20 * BYTES) break;
        usleep(1000);
    }
    CHECK(st.bytes <= 20 * BYTES && st.entries == 19);
    CHECK_INT(find(t, d, ENTRIES, 2), 1);
    CHECK_INT(find(t, d, 1, 2), 0);
    disk_close(d, 60);
    CHECK_INT(count_files(t, dir_path("lower")), 19);
}

TEST(disk_goes_on_when_files_cannot_be_written)
{
    struct rlimit old, small = {20000, 20000};
    disk         *d;
    disk_stats    st;
    if (!open_disk(t, &d, dir_path("full"), 1 << 20)) return;
    CHECK(save(d, 1, 1, 1000));
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    test_listen_begin(false);
    CHECK(!save(d, 2, 1, 100000));
    const char *log = test_listen_end();
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(strstr(log, "nothing is written for"));
    CHECK_INT(find(t, d, 1, 1), 1);
    CHECK_INT(find(t, d, 2, 1), 0);
    disk_get_stats(d, &st);
    CHECK_INT(st.failures, 1);
    CHECK_INT(st.entries, 1);
    disk_close(d, 60);
}

static void run_sql(test_case *t, const char *dir, const char *sql)
{
    char     path[4200];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/index.db", dir);
    CHECK_INT(sqlite3_open(path, &db), SQLITE_OK);
    CHECK_MSG(sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK, "%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

TEST(disk_replaces_an_index_that_it_cannot_read)
{
    static const char *const changes[] = {"garbage", "PRAGMA user_version = 0", "PRAGMA user_version = 2"};
    for (size_t i = 0; i < COUNT(changes); i++) {
        char         name[8], path[4200];
        disk        *d;
        err          e = {0};
        disk_options o = {.max_bytes = 1 << 20};
        snprintf(name, sizeof name, "i%zu", i);
        o.dir = dir_path(name);
        if (!open_disk(t, &d, o.dir, 1 << 20)) return;
        CHECK(save(d, 1, 1, 100));
        disk_close(d, 60);
        snprintf(path, sizeof path, "%s/index.db", o.dir);
        if (i == 0) {
            int fd = open(path, O_WRONLY | O_TRUNC);
            CHECK(write(fd, changes[0], 7) == 7 && ftruncate(fd, 8192) == 0);
            close(fd);
        } else
            run_sql(t, o.dir, changes[i]);
        if (i == 2) { /* a newer format is left alone */
            CHECK_FAILS(disk_open(&d, &o, &e), e, "format 2");
            continue;
        }
        if (!open_disk(t, &d, o.dir, 1 << 20)) return;
        CHECK_INT(find(t, d, 1, 1), 0);
        CHECK(save(d, 1, 1, 100));
        CHECK_INT(find(t, d, 1, 1), 1);
        disk_close(d, 60);
    }
}

/* A load does not wait for a write that waits. */
TEST(disk_reads_while_a_write_waits)
{
    disk    *d;
    sqlite3 *db;
    char     path[4200];
    if (!open_disk(t, &d, dir_path("both"), 1 << 20)) return;
    CHECK(save(d, 1, 1, 1000));
    snprintf(path, sizeof path, "%s/index.db", dir_path("both"));
    CHECK_INT(sqlite3_open(path, &db), SQLITE_OK);
    CHECK_INT(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK); /* as another process that writes */
    disk_request *r = save_request(2, 1, 1000);
    disk_submit(d, r);
    CHECK_INT(find(t, d, 1, 1), 1);
    CHECK_INT(find(t, d, 2, 1), 0);
    CHECK(!disk_is_done(d, r));
    CHECK_INT(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    while (!disk_is_done(d, r)) usleep(200);
    CHECK(r->saved);
    disk_drop(d, r);
    CHECK_INT(find(t, d, 2, 1), 1);
    disk_close(d, 60);
}

/* An entry that another process removes while its file is written is no failure of the disk. */
TEST(disk_goes_on_when_an_entry_is_removed_meanwhile)
{
    disk      *d;
    disk_stats st;
    if (!open_disk(t, &d, dir_path("meanwhile"), 1 << 20)) return;
    run_sql(t, dir_path("meanwhile"),
            "CREATE TRIGGER gone BEFORE UPDATE OF state ON entry BEGIN DELETE FROM entry WHERE key = NEW.key; END");
    test_listen_begin(false);
    CHECK(!save(d, 1, 1, 1000));
    CHECK(!test_listen_end()[0]);
    run_sql(t, dir_path("meanwhile"), "DROP TRIGGER gone");
    CHECK(save(d, 1, 1, 1000));
    disk_get_stats(d, &st);
    CHECK(st.failures == 0 && st.entries == 1);
    disk_close(d, 60);
    CHECK_INT(count_files(t, dir_path("meanwhile")), 1);
}

TEST_LONG(disk_opens_a_large_directory_at_once)
{
    const char *dir = dir_path("large");
    disk       *d;
    disk_stats  st;
    char        sql[1000];
    int         n = test_full() ? 100000 : 20000;
    if (!open_disk(t, &d, dir, 1 << 20)) return;
    disk_close(d, 60);
    snprintf(sql, sizeof sql,
             "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)"
             " INSERT INTO entry SELECT randomblob(16), zeroblob(16), zeroblob(16), 1, 10, i, 1, 1, 1, '', 0 FROM n",
             n);
    run_sql(t, dir, sql);
    double start = test_cpu_s();
    if (!open_disk(t, &d, dir, 1 << 30)) return;
    double took = test_cpu_s() - start;
    disk_get_stats(d, &st);
    CHECK_INT(st.entries, n);
    CHECK_MSG(took < 0.1, "opening took %.3f s", took);
    CHECK(save(d, 1, 1, 100));
    disk_close(d, 60);
}

/* Writes entries, and the number of each to the pipe when it is complete, until it is killed. */
static void write_until_killed(const char *dir, int first, int to)
{
    disk        *d;
    disk_options o = {.dir = dir, .max_bytes = 1 << 30};
    if (!disk_open(&d, &o, NULL)) _exit(1);
    for (int i = first;; i++)
        if (save(d, i, 1, (size_t)(i % 7 + 1) * 3000) && write(to, &i, sizeof i) != sizeof i) _exit(1);
}

TEST_LONG(disk_survives_kill_9)
{
    static char dir[4096];
    uint64_t    seed = 11;
    int         n = test_full() ? 200 : 12, n_acked = 0, *acked = xnew_n(int, 100000);
    snprintf(dir, sizeof dir, "%s", dir_path("kill"));
    for (int round = 0; round < n; round++) {
        int to[2], number;
        if (!CHECK(pipe(to) == 0)) return;
        pid_t pid = fork();
        if (pid == 0) {
            close(to[0]);
            write_until_killed(dir, round * 1000 + 1, to[1]);
        }
        close(to[1]);
        if (round % 4 && read(to[0], &number, sizeof number) == sizeof number) acked[n_acked++] = number;
        usleep((useconds_t)(test_rand(&seed) % 40000));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        while (read(to[0], &number, sizeof number) == sizeof number) acked[n_acked++] = number;
        close(to[0]);
        disk *d;
        if (!open_disk(t, &d, dir, 1 << 30)) return;
        disk_stats st;
        disk_get_stats(d, &st);
        CHECK_MSG(st.entries >= n_acked && st.entries <= n_acked + round + 1, "%d entries, %d acknowledged",
                  (int)st.entries, n_acked);
        CHECK_INT(count_files(t, dir), st.entries);
        for (int i = max_int(0, n_acked - 20); i < n_acked; i++) CHECK_INT(find(t, d, acked[i], 2), 1);
        disk_close(d, 60);
    }
    disk *d;
    if (!open_disk(t, &d, dir, 1 << 30)) return;
    for (int i = 0; i < n_acked; i++) CHECK_INT(find(t, d, acked[i], 2), 1);
    CHECK(n_acked > 0);
    disk_close(d, 60);
    mem_free(acked);
}

/* --- several processes, full and read-only disks ------------------------------------------------*/
/* Runs fn in another process. Returns its exit status; 255: it was killed. */
static int run_apart(test_case *t, int (*fn)(test_case *t, int number), int number, bool wait, pid_t *pid)
{
    int status;
    *pid = fork();
    if (*pid == 0) _exit(fn(t, number));
    if (!wait) return 0;
    waitpid(*pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static char shared_dir[4096];

/* Saves and finds entries, far more than there is room for. Returns 1 when an entry has other bytes or none was found. */
static int use_shared(test_case *t, int number)
{
    uint64_t     seed = (uint64_t)number + 1;
    int          n = test_full() ? 2000 : 200, found = 0, written = 0;
    disk        *d;
    disk_options o = {.dir = shared_dir, .max_bytes = 200000};
    if (!disk_open(&d, &o, NULL)) return 2;
    for (int i = 0; i < n; i++) {
        int text = 1 + (int)(test_rand(&seed) % 60), pages = 1 + (int)(test_rand(&seed) % 2);
        written += save(d, text, pages, 5000);
        found += find(t, d, text, 2) > 0;
    }
    disk_close(d, 60);
    return !found || !written || t->n_failed;
}

/* Three processes add, find and evict the same entries at the same time. */
TEST_LONG(disk_is_shared_by_processes)
{
    enum { PROCESSES = 3 };
    pid_t      pid[PROCESSES];
    int        status;
    disk      *d;
    disk_stats st;
    snprintf(shared_dir, sizeof shared_dir, "%s", dir_path("processes"));
    for (int i = 0; i < PROCESSES; i++) run_apart(t, use_shared, i, false, &pid[i]);
    for (int i = 0; i < PROCESSES; i++) {
        waitpid(pid[i], &status, 0);
        CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d: status %x", i, status);
    }
    if (!open_disk(t, &d, shared_dir, 200000)) return;
    disk_get_stats(d, &st);
    CHECK(st.bytes <= 200000 && st.entries > 0);
    CHECK_INT(count_files(t, shared_dir), st.entries);
    for (int i = 1; i <= 60; i++) find(t, d, i, 2);
    disk_close(d, 60);
}

/* Opens and closes the index each time that it reads a byte, and answers with one. */
static int between[2][2]; /* pipes to and from the process */
static int open_when_asked(test_case *t, int number)
{
    disk        *d;
    char         c;
    disk_options o = {.dir = shared_dir, .max_bytes = 200000};
    (void)t, (void)number;
    close(between[0][1]);
    while (read(between[0][0], &c, 1) == 1) {
        if (!disk_open(&d, &o, NULL)) return 1;
        disk_close(d, 60);
        if (write(between[1][1], &c, 1) != 1) return 1;
    }
    return 0;
}

static bool ask_other_process(void)
{
    char c = 1;
    return write(between[0][1], &c, 1) == 1 && read(between[1][0], &c, 1) == 1;
}

/* A process that closes the index is not the last one: the write-ahead log stays, and what is in it. The other process
 * is started first: it shall have nothing of SQLite's memory of this one. */
TEST(disk_keeps_its_log_when_another_process_closes_the_index)
{
    disk *d;
    pid_t pid;
    int   status;
    snprintf(shared_dir, sizeof shared_dir, "%s", dir_path("log"));
    if (!CHECK(pipe(between[0]) == 0 && pipe(between[1]) == 0)) return;
    run_apart(t, open_when_asked, 0, false, &pid);
    if (!open_disk(t, &d, shared_dir, 200000)) return;
    for (int i = 1; i <= 3; i++) {
        CHECK(save(d, i, 1, 1000));
        CHECK(ask_other_process());
        CHECK(has_file(shared_dir, "index.db-wal"));
        for (int k = 1; k <= i; k++) CHECK_INT(find(t, d, k, 1), 1);
    }
    disk_close(d, 60);
    close(between[0][1]);
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int i = 0; i < 3; i++) close(i < 1 ? between[0][0] : between[1][i - 1]);
}

enum { NOT_PERMITTED = 77 };

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    if (!f) return;
    fputs(text, f);
    fclose(f);
}

/* Mounts an empty file system of 1 MB at shared_dir, in name spaces of this process. */
static bool mount_small(void)
{
    char map[64];
    snprintf(map, sizeof map, "0 %u 1", (unsigned)getuid());
    if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
        write_text("/proc/self/setgroups", "deny");
        write_text("/proc/self/uid_map", map);
    }
    mkdir(shared_dir, 0700);
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("small", shared_dir, "tmpfs", 0, "size=1m,mode=0700") == 0;
}

static int use_full_disk(test_case *t, int number)
{
    disk        *d;
    disk_stats   st;
    disk_options o    = {.dir = shared_dir, .max_bytes = 1 << 30};
    int          last = 0;
    (void)number;
    if (!mount_small()) return NOT_PERMITTED;
    if (!disk_open(&d, &o, NULL)) return 2;
    test_listen_begin(false);
    while (last < 200 && save(d, last + 1, 1, 20000)) last++;
    const char *log = test_listen_end();
    CHECK(last > 5 && last < 60 && strstr(log, "nothing is written for"));
    CHECK(strstr(log, "No space left on device") || strstr(log, "disk is full"));
    CHECK(!save(d, 1000, 1, 100)); /* writing pauses */
    for (int i = 1; i <= last; i++) CHECK_INT(find(t, d, i, 1), 1);
    CHECK_INT(find(t, d, last + 1, 1), 0);
    disk_get_stats(d, &st);
    CHECK(st.failures == 1 && st.entries == last);
    CHECK_INT(count_files(t, shared_dir), last);
    disk_close(d, 60);
    if (!CHECK(disk_open(&d, &o, NULL))) return 1; /* a start with a full disk */
    CHECK_INT(find(t, d, 1, 1), 1);
    disk_close(d, 60);
    return t->n_failed > 0;
}

static int use_read_only_disk(test_case *t, int number)
{
    disk        *d;
    err          e = {0};
    disk_options o = {.dir = shared_dir, .max_bytes = 1 << 30};
    (void)number;
    if (!mount_small()) return NOT_PERMITTED;
    if (!disk_open(&d, &o, NULL)) return 2;
    CHECK(save(d, 1, 1, 1000));
    disk_close(d, 60);
    if (mount("small", shared_dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0) return NOT_PERMITTED;
    CHECK_FAILS(disk_open(&d, &o, &e), e, "cannot use the cache directory");
    CHECK(d == NULL);
    return t->n_failed > 0;
}

static void check_mounted(test_case *t, const char *name, int (*fn)(test_case *t, int number))
{
    pid_t pid;
    snprintf(shared_dir, sizeof shared_dir, "%s", dir_path(name));
    int status = run_apart(t, fn, 0, true, &pid);
    if (status == NOT_PERMITTED)
        test_skip(t, "a file system cannot be mounted here");
    else
        CHECK_INT(status, 0);
}

TEST(disk_goes_on_when_it_is_full) { check_mounted(t, "small", use_full_disk); }
TEST(disk_that_is_read_only_is_refused_with_a_sentence) { check_mounted(t, "fixed", use_read_only_disk); }
