/* The disk tier: texts come back after a restart, for their tenant only, with the same bytes, and are drafted at once. */
#include "sched/tier.h"

#include "engine_rig.h"
#include "sched/inside.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROMPT = 180, ANSWER = 40 };
static int32_t prompt[PROMPT];

static const char *cache_dir(void)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/cache", test_tmp_dir());
    return path;
}

static void cache_options(tandem_options *o)
{
    nano_options(o);
    o->n_ctx     = 512;
    o->max_lanes = 2;
    o->cache_dir = cache_dir();
}

static void ask(test_case *t, tandem *e, tandem_method method, const char *tenant, nano_answer *out)
{
    tandem_request r;
    for (int i = 0; i < PROMPT; i++) prompt[i] = i < NANO_PROMPT ? nano_prompt[i] : 280 + i * 37 % 200;
    nano_request(e, &r, ANSWER);
    r.ids         = prompt;
    r.n_ids       = PROMPT;
    r.tenant      = tenant;
    r.spec.method = method;
    nano_ask(t, e, &r, out);
}

static bool restart(test_case *t, tandem **e, const tandem_options *o)
{
    tandem_close(*e);
    *e = NULL;
    return nano_open(t, e, o);
}

TEST(tier_continues_after_a_restart)
{
    tandem_options o;
    tandem        *e = NULL;
    cache_options(&o);
    static const tandem_method methods[] = {TANDEM_SPEC_DFLASH, TANDEM_SPEC_MTP, TANDEM_SPEC_OFF};
    for (size_t i = 0; i < COUNT(methods); i++) {
        nano_answer cold, back;
        char        tenant[8];
        snprintf(tenant, sizeof tenant, "%zu", i); /* nothing is shared between the methods */
        if (!restart(t, &e, &o)) return;
        ask(t, e, methods[i], tenant, &cold);
        CHECK_INT(cold.result.usage.cached_tokens, 0);
        if (!restart(t, &e, &o)) return;
        ask(t, e, methods[i], tenant, &back);
        CHECK_INT(back.result.usage.cached_tokens, (PROMPT - 1) / KV_PAGE * KV_PAGE);
        nano_same(t, &cold, &back);
        CHECK_INT(back.result.usage.spec.drafted, cold.result.usage.spec.drafted);
        CHECK_INT(back.result.usage.spec.accepted, cold.result.usage.spec.accepted);
    }
    tandem_close(e);
}

TEST(tier_keeps_tenants_apart)
{
    tandem_options o;
    tandem        *e = NULL;
    nano_answer    a, b, c;
    tandem_stats   st;
    cache_options(&o);
    if (!restart(t, &e, &o)) return;
    ask(t, e, TANDEM_SPEC_OFF, "alice", &a);
    if (!restart(t, &e, &o)) return;
    ask(t, e, TANDEM_SPEC_OFF, "bob", &b);
    CHECK_INT(b.result.usage.cached_tokens, 0);
    tandem_get_stats(e, &st);
    CHECK_INT(st.disk.hits, 0);
    ask(t, e, TANDEM_SPEC_OFF, "alice", &c);
    CHECK(c.result.usage.cached_tokens > 0);
    nano_same(t, &a, &c);
    tandem_close(e);
}

/* Returns the number of files, after calling `change` for each. */
static int each_file(void (*change)(int dir, const char *name))
{
    char path[4200];
    int  n = 0;
    snprintf(path, sizeof path, "%s/kv", cache_dir());
    DIR *d = opendir(path);
    for (struct dirent *x; d && (x = readdir(d));) {
        if (x->d_name[0] == '.') continue;
        n++;
        if (change) change(dirfd(d), x->d_name);
    }
    if (d) closedir(d);
    return n;
}

static void flip_bit(int dir, const char *name)
{
    int         fd = openat(dir, name, O_RDWR);
    struct stat st;
    char        c;
    if (fstat(fd, &st) == 0 && pread(fd, &c, 1, st.st_size - 100) == 1) {
        c ^= 4;
        if (pwrite(fd, &c, 1, st.st_size - 100) != 1) return;
    }
    close(fd);
}
static void cut_file(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDWR);
    if (ftruncate(fd, 5000) == 0) close(fd);
}
static void foreign_file(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDWR | O_TRUNC);
    if (write(fd, "hello", 5) == 5) close(fd);
}
static void remove_file(int dir, const char *name) { unlinkat(dir, name, 0); }

TEST_LONG(tier_removes_damaged_files)
{
    static void (*const changes[])(int dir, const char *name) = {flip_bit, cut_file, foreign_file, remove_file};
    tandem_options o;
    tandem        *e = NULL;
    cache_options(&o);
    for (size_t i = 0; i < COUNT(changes); i++) {
        nano_answer  cold, after;
        tandem_stats st;
        char         tenant[8];
        snprintf(tenant, sizeof tenant, "%zu", i);
        if (!restart(t, &e, &o)) return;
        ask(t, e, TANDEM_SPEC_DFLASH, tenant, &cold);
        tandem_close(e);
        e = NULL;
        CHECK(each_file(changes[i]) > 0);
        if (!restart(t, &e, &o)) return;
        test_listen_begin(false);
        ask(t, e, TANDEM_SPEC_DFLASH, tenant, &after);
        const char *log = test_listen_end();
        CHECK_INT(after.result.usage.cached_tokens, 0);
        nano_same(t, &cold, &after);
        tandem_get_stats(e, &st);
        CHECK_INT(st.disk.removed > 0, changes[i] != remove_file);
        CHECK_INT(strstr(log, "a file was removed") != NULL, changes[i] != remove_file);
        ask(t, e, TANDEM_SPEC_DFLASH, tenant, &after); /* it is stored again */
    }
    tandem_close(e);
}

TEST(tier_serves_without_a_directory_that_cannot_be_used)
{
    tandem_options o;
    tandem        *e = NULL;
    nano_answer    a;
    cache_options(&o);
    o.cache_dir = "/dev/null/cache";
    test_listen_begin(false);
    bool ok = restart(t, &e, &o);
    CHECK(strstr(test_listen_end(), "continuing without it"));
    if (!ok) return;
    ask(t, e, TANDEM_SPEC_OFF, "alice", &a);
    CHECK_INT(a.n, ANSWER);
    tandem_close(e);
}

TEST(tier_files_are_private)
{
    tandem_options o;
    tandem        *e = NULL;
    nano_answer    a;
    struct stat    st;
    char           path[4200];
    cache_options(&o);
    if (!restart(t, &e, &o)) return;
    ask(t, e, TANDEM_SPEC_OFF, "alice", &a);
    tandem_close(e);
    CHECK(stat(cache_dir(), &st) == 0 && (st.st_mode & 077) == 0);
    snprintf(path, sizeof path, "%s/index.db", cache_dir());
    CHECK(stat(path, &st) == 0 && (st.st_mode & 077) == 0);
    CHECK(each_file(NULL) > 0);
}

static void ask_other(test_case *t, tandem *e, int number, nano_answer *out)
{
    static int32_t ids[PROMPT];
    tandem_request r;
    for (int i = 0; i < PROMPT; i++) ids[i] = 280 + (i * 37 + number * 11) % 200;
    nano_request(e, &r, ANSWER);
    r.ids   = ids;
    r.n_ids = PROMPT;
    nano_ask(t, e, &r, out);
}

/* Exchanges each two files: all are whole, but of other texts or lengths. */
static struct {
    int  n;
    char last[256];
} found;
static void exchange_files(int dir, const char *name)
{
    if (++found.n % 2 == 0) renameat2(dir, found.last, dir, name, RENAME_EXCHANGE);
    snprintf(found.last, sizeof found.last, "%s", name);
}

TEST(tier_removes_files_of_another_text)
{
    enum { TEXTS = 2 };
    tandem_options o;
    tandem        *e = NULL;
    nano_answer    cold[TEXTS], after[TEXTS];
    tandem_stats   st;
    int            removed = 0;
    cache_options(&o);
    found.n = 0;
    if (!restart(t, &e, &o)) return;
    for (int i = 0; i < TEXTS; i++) ask_other(t, e, i, &cold[i]);
    tandem_close(e);
    e = NULL;
    CHECK_INT(each_file(exchange_files), 2 * TEXTS); /* the pieces of a prompt and of its response */
    test_listen_begin(false);
    for (int i = 0; i < TEXTS; i++) { /* an engine that has computed no prompt waits longest for the disk */
        if (!restart(t, &e, &o)) break;
        ask_other(t, e, i, &after[i]);
        nano_same(t, &cold[i], &after[i]);
        tandem_get_stats(e, &st);
        removed += (int)st.disk.removed;
    }
    CHECK(strstr(test_listen_end(), "it holds another text"));
    CHECK_INT(removed, TEXTS);
    tandem_close(e);
}

/* More texts than the K/V cache holds: those that were evicted come back from host memory. */
TEST_LONG(tier_parks_texts_in_host_memory)
{
    enum { TEXTS = 6 };
    for (int parks = 0; parks < 2; parks++) {
        tandem_options     o;
        tandem            *e = NULL;
        static nano_answer first[TEXTS], again;
        tandem_stats       st;
        int                cached = 0;
        cache_options(&o);
        o.cache_dir  = NULL;
        o.max_lanes  = 1;
        o.n_drafters = 0;
        o.kv_bytes   = 3 << 20;
        o.park_bytes = parks ? 64 << 20 : 0;
        if (!nano_open(t, &e, &o)) return;
        for (int i = 0; i < TEXTS; i++) ask_other(t, e, i, &first[i]);
        for (int i = 0; i < TEXTS; i++) {
            ask_other(t, e, i, &again);
            nano_same(t, &first[i], &again);
            cached += again.result.usage.cached_tokens;
        }
        tandem_get_stats(e, &st);
        CHECK(st.prefix_evicted > 0);
        CHECK_INT(st.disk.parked_bytes > 0, parks);
        CHECK_MSG((cached == TEXTS * ((PROMPT - 1) / KV_PAGE * KV_PAGE)) == parks, "%d tokens were found", cached);
        tandem_close(e);
    }
}

/* A text is not dropped for a request that needs its pages in its first step, when the K/V cache was less than half full
 * before. */
TEST_LONG(tier_parks_a_text_before_a_large_request_evicts_it)
{
    enum { FIRST = 1200, LARGE = 2800 };
    static int32_t ids[LARGE];
    for (int parks = 0; parks < 2; parks++) {
        tandem_options o;
        tandem        *e = NULL;
        tandem_request r;
        nano_answer    first, again, other;
        tandem_stats   st;
        cache_options(&o);
        o.cache_dir   = NULL;
        o.max_lanes   = 1;
        o.n_drafters  = 0;
        o.n_ctx       = 3072;
        o.step_tokens = 2048;
        o.kv_type     = "f32";
        o.kv_bytes    = 24 << 20;
        o.park_bytes  = parks ? 64 << 20 : 0;
        if (!nano_open(t, &e, &o)) return;
        for (int i = 0; i < LARGE; i++) ids[i] = 280 + i * 41 % 200;
        nano_request(e, &r, ANSWER);
        r.ids   = ids + 1; /* another text from the first token on */
        r.n_ids = FIRST;
        nano_ask(t, e, &r, &first);
        tandem_get_stats(e, &st);
        CHECK(st.kv_cached_bytes > 4 << 20 && st.kv_cached_bytes < st.kv_bytes / 2);
        r.ids   = ids;
        r.n_ids = LARGE;
        nano_ask(t, e, &r, &other);
        CHECK_INT(other.n, ANSWER);
        r.ids   = ids + 1;
        r.n_ids = FIRST;
        nano_ask(t, e, &r, &again);
        nano_same(t, &first, &again);
        CHECK_MSG((again.result.usage.cached_tokens == (FIRST - 1) / KV_PAGE * KV_PAGE) == parks,
                  "%d tokens were found", again.result.usage.cached_tokens);
        tandem_close(e);
    }
}

TEST(tier_waits_for_the_disk_no_longer_than_computing_takes)
{
    CHECK(tier_patience(0, 1000) == 10);
    CHECK(tier_patience(1e-6, 1000) == 0.05);
    CHECK(tier_patience(1e-3, 1000) == 1);
    CHECK(tier_patience(1e-3, 5000) == 2);
    CHECK(tier_patience(1e-3, 100000) == 25);
}
