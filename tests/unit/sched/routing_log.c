#include "sched/routing_log.h"

#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "sched/inside.h"
#include "test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *log_path(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", test_tmp_dir(), name);
    return path;
}

static routing_record a_record(int i)
{
    routing_record r = {
        .ctx_len            = 100 + i,
        .active_count       = 3,
        .kv_usage_ratio     = 0.25,
        .projected_kv_after = 0.5,
        .to = {.plan = {.method = SPEC_DFLASH, .n = 7}, .reason = ROUTE_DEFAULT, .rate_plain = 40, .rate_plan = 90}};
    snprintf(r.request_id, sizeof r.request_id, "req-%d", i);
    snprintf(r.dflash, sizeof r.dflash, "sha256:bb");
    snprintf(r.mtp, sizeof r.mtp, "sha256:cc");
    return r;
}

static routing_log *open_log(test_case *t, const char *path, int64_t max_bytes, int n_files)
{
    routing_log        *l;
    err                 e = {0};
    routing_log_options o = {.path        = path,
                             .model       = "nano",
                             .fingerprint = "sha256:aa",
                             .max_bytes   = max_bytes,
                             .n_files     = n_files,
                             .on          = true};
    CHECK_OK(routing_log_open(&l, &o, &e), e);
    return l;
}

static double number(const json_value *v, const char *key)
{
    const json_value *m = json_get(v, key);
    return m ? m->d : NAN;
}

static str text(const json_value *v, const char *key)
{
    const json_value *m = json_get(v, key);
    return m ? m->s : STR("(missing)");
}

/* Calls fn for each line, which must be JSON; returns how many there are. */
static int each_line(test_case *t, const char *path, void (*fn)(test_case *t, int i, const json_value *v))
{
    file_map m;
    err      e = {0};
    int      n = 0;
    if (!file_map_open(&m, path, &e)) return 0;
    for (const char *at = m.p, *end = m.p + m.n; at < end; n++) {
        const char       *line = memchr(at, '\n', (size_t)(end - at));
        const json_value *v;
        arena             a;
        arena_init(&a, 1 << 20);
        if (!CHECK_MSG(line != NULL, "the last line has no end")) break;
        if (CHECK_OK(json_parse(&v, &a, (str){at, (size_t)(line - at)}, NULL, &e), e) && fn) fn(t, n, v);
        arena_deinit(&a);
        at = line + 1;
    }
    file_map_close(&m);
    return n;
}

static void check_fields(test_case *t, int i, const json_value *v)
{
    CHECK(number(v, "ts") > 1.6e9);
    CHECK_STR(text(v, "request_id"), i < 2 ? STR("req-0") : STR("req-1"));
    CHECK_STR(text(v, "event"), i == 1 ? STR("end") : STR("route"));
    CHECK_INT(number(v, "ctx_len"), i < 2 ? 100 : 101);
    CHECK_INT(number(v, "active_count"), 3);
    CHECK_STR(text(v, "model"), STR("nano"));
    CHECK_STR(text(v, "target"), STR("sha256:aa"));
    CHECK_STR(text(json_get(v, "drafters"), "dflash"), STR("sha256:bb"));
    CHECK_STR(text(json_get(v, "drafters"), "mtp"), STR("sha256:cc"));
    if (i < 2) {
        CHECK_NEAR(number(v, "kv_usage_ratio"), 0.25, 0);
        CHECK_NEAR(number(v, "projected_kv_after"), 0.5, 0);
        CHECK_STR(text(v, "routed_to"), STR("dflash"));
        CHECK_STR(text(v, "reason"), STR("default"));
        CHECK_INT(number(json_get(v, "plan"), "guesses"), 7);
        CHECK_INT(number(json_get(v, "costs"), "plan_tokens_per_s"), 90);
    } else {
        CHECK_INT(json_get(v, "kv_usage_ratio")->kind, JSON_NULL);
        CHECK_STR(text(v, "routed_to"), STR("plain"));
        CHECK_STR(text(v, "reason"), STR("kv_pressure"));
        CHECK_INT(json_get(json_get(v, "costs"), "plain_tokens_per_s")->kind, JSON_NULL);
    }
    const json_value *o = json_get(v, "outcome");
    CHECK((o != NULL) == (i == 1));
    if (!o) return;
    CHECK_INT(number(o, "tokens"), 50);
    CHECK_INT(number(o, "drafted"), 80);
    CHECK_INT(number(o, "accepted"), 40);
    CHECK_NEAR(number(o, "acceptance"), 0.5, 0);
    CHECK_NEAR(number(o, "tokens_per_s"), 25, 1e-9);
    CHECK_INT(number(o, "route_changes"), 2);
}

TEST(routing_log_fields)
{
    const char    *path = log_path("fields.jsonl");
    routing_log   *l    = open_log(t, path, 1 << 20, 1);
    routing_record r    = a_record(0);
    fault_no_alloc_begin("routing_log_put");
    routing_log_put(l, &r);
    fault_no_alloc_end();
    r.end       = true;
    r.tokens    = 50;
    r.drafted   = 80;
    r.accepted  = 40;
    r.seconds   = 2;
    r.n_changes = 2;
    routing_log_put(l, &r);
    r                    = a_record(1);
    r.kv_usage_ratio     = -1;
    r.projected_kv_after = -1;
    r.to                 = (route){.reason = ROUTE_KV_PRESSURE};
    routing_log_put(l, &r);
    routing_log_close(l);
    CHECK_INT(each_line(t, path, check_fields), 3);
}

TEST(routing_log_off_is_silent)
{
    const char    *path = log_path("off.jsonl");
    routing_log   *l    = open_log(t, path, 1 << 20, 1);
    routing_record r    = a_record(0);
    struct stat    st;
    routing_log_put(NULL, &r);
    routing_log_set(l, false, 1 << 20);
    routing_log_put(l, &r);
    routing_log_close(l);
    CHECK(stat(path, &st) == 0 && st.st_size == 0);
    routing_log_close(NULL);
}

/* All that was put is written, or counted as dropped. */
TEST(routing_log_loses_nothing_unsaid)
{
    const char  *path = log_path("many.jsonl");
    routing_log *l    = open_log(t, path, 1 << 30, 1);
    for (int i = 0; i < 5000; i++) {
        routing_record r = a_record(i);
        routing_log_put(l, &r);
        if (i % 256 == 0) usleep(1000);
    }
    int64_t dropped = routing_log_dropped(l);
    routing_log_close(l);
    CHECK_INT(each_line(t, path, NULL) + dropped, 5000);
    CHECK_MSG(dropped < 5000, "%lld dropped", (long long)dropped);
}

static int64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? st.st_size : -1;
}

static void put_slowly(routing_log *l, int n)
{
    for (int i = 0; i < n; i++) {
        routing_record r = a_record(i);
        routing_log_put(l, &r);
        if (i % 128 == 127) usleep(20000);
    }
}

TEST(routing_log_rotates)
{
    char        name[32], path[600];
    const char *first = log_path("rotated.jsonl");
    snprintf(path, sizeof path, "%s", first);
    routing_log *l = open_log(t, path, 30000, 3);
    put_slowly(l, 300);
    routing_log_close(l);
    int64_t all = 0;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, i ? "rotated.jsonl.%d" : "rotated.jsonl", i);
        CHECK_MSG(size_of(log_path(name)) > 0, "%s is not there", name);
        CHECK(each_line(t, log_path(name), NULL) > 0);
        all += size_of(log_path(name));
    }
    CHECK_MSG(all <= 30000 && all > 18000, "%lld bytes", (long long)all);
    CHECK(!file_exists(log_path("rotated.jsonl.3")));
}

/* One file: writing ends at the limit, with one warning, and goes on when the limit is raised. */
TEST(routing_log_ends_at_its_limit)
{
    char path[600], said[4096] = {0};
    int  keep = dup(STDERR_FILENO);
    snprintf(path, sizeof path, "%s", log_path("limit.jsonl"));
    int to = open(log_path("stderr.txt"), O_RDWR | O_CREAT | O_TRUNC, 0666);
    dup2(to, STDERR_FILENO);
    log_setup(LOG_WARN, false);
    routing_log *l = open_log(t, path, 2000, 1);
    put_slowly(l, 200);
    usleep(20000);
    int64_t before = size_of(path);
    routing_log_set(l, true, 1 << 20);
    put_slowly(l, 1);
    routing_log_close(l);
    log_setup(LOG_ERROR, false);
    dup2(keep, STDERR_FILENO);
    close(keep);
    CHECK(pread(to, said, sizeof said - 1, 0) > 0);
    close(to);
    CHECK_MSG(before > 1000 && before <= 2000, "%lld bytes", (long long)before);
    CHECK(size_of(path) > before);
    const char *warning = strstr(said, "reached its limit");
    CHECK_MSG(warning && !strstr(warning + 1, "reached its limit"), "%s", said);
}

TEST(routing_log_ends_a_torn_line)
{
    char path[600];
    snprintf(path, sizeof path, "%s", test_tmp_file("torn.jsonl", "{\"ts\":1}\n{\"ts\"", 14));
    routing_log *l = open_log(t, path, 1 << 20, 1);
    put_slowly(l, 1);
    routing_log_close(l);
    file_map m;
    err      e = {0};
    CHECK_OK(file_map_open(&m, path, &e), e);
    CHECK(m.n > 20 && !memcmp(m.p, "{\"ts\":1}\n{\"ts\"\n{\"ts\":", 21));
    file_map_close(&m);
}

TEST(routing_log_ends_a_line_of_one_byte)
{
    static const char *const before[] = {"", "{", "\n"}, *const want[] = {"{\"ts\":", "{\n{\"ts\":", "\n{\"ts\":"};
    for (size_t i = 0; i < COUNT(before); i++) {
        char     path[600];
        file_map m;
        err      e = {0};
        snprintf(path, sizeof path, "%s", test_tmp_file("byte.jsonl", before[i], strlen(before[i])));
        routing_log *l = open_log(t, path, 1 << 20, 1);
        put_slowly(l, 1);
        routing_log_close(l);
        if (!CHECK_OK(file_map_open(&m, path, &e), e)) return;
        CHECK(str_starts((str){m.p, m.n}, want[i]));
        file_map_close(&m);
    }
}

TEST(routing_log_without_a_place)
{
    routing_log        *l;
    err                 e = {0};
    routing_log_options o = {.path = "/proc/no-such-place/routing.jsonl", .max_bytes = 1 << 20, .on = true};
    CHECK_FAILS(routing_log_open(&l, &o, &e), e, "cannot open /proc/no-such-place/routing.jsonl: No such file");
    o.on = false;
    CHECK_OK(routing_log_open(&l, &o, &e), e);
    routing_log_set(l, true, 1 << 20);
    put_slowly(l, 3); /* said once, and the engine goes on */
    routing_log_close(l);
}

TEST(routing_trace_lines_are_few)
{
    routing_trace trace = {0};
    route         r     = {.plan = {.method = SPEC_DFLASH, .n = 4}, .reason = ROUTE_DEFAULT};
    int           lines = 0;
    CHECK(routing_trace_note(&trace, &r));
    r.plan.n = 9;
    CHECK(!routing_trace_note(&trace, &r)); /* a length is no route */
    r.reason      = ROUTE_TRIAL;
    r.plan.method = SPEC_MTP;
    CHECK(!routing_trace_note(&trace, &r));
    r = (route){.reason = ROUTE_KV_PRESSURE};
    CHECK(routing_trace_note(&trace, &r));
    CHECK_INT(trace.n_changes, 2);
    for (int i = 0; i < 1000; i++) {
        r.reason = i % 2 ? ROUTE_COST : ROUTE_DEFAULT;
        lines += routing_trace_note(&trace, &r);
    }
    CHECK_INT(lines, ROUTING_LINES_MAX - 2);
    CHECK_INT(trace.n_changes, 1002);
}

/* What is not known is null, and drafters that are not open are not named. */
TEST(routing_records_say_what_is_known)
{
    routing_record    r = {.end = true,
                           .to  = {.plan = {.method = SPEC_MTP, .n = 2, .trial = true}, .reason = ROUTE_TRIAL}};
    json_writer       w;
    buf               b;
    arena             a;
    const json_value *v;
    buf_init(&b, 1 << 16);
    arena_init(&a, 1 << 20);
    json_writer_init(&w, &b);
    json_begin_object(&w);
    routing_put_record(&w, &r, 1.5);
    json_end(&w);
    if (CHECK(json_parse(&v, &a, buf_str(&b), NULL, NULL))) {
        const json_value *o = json_get(v, "outcome");
        CHECK_NEAR(number(v, "ts"), 1.5, 0);
        CHECK_NEAR(number(v, "kv_usage_ratio"), 0, 0); /* is a number */
        CHECK(json_get(json_get(v, "plan"), "trial")->b);
        CHECK_STR(text(json_get(v, "plan"), "method"), STR("mtp"));
        CHECK_INT(json_get(json_get(v, "costs"), "plan_tokens_per_s")->kind, JSON_NULL);
        CHECK_INT(json_get(v, "drafters")->n, 0);
        CHECK(!json_get(v, "choice"));
        CHECK_INT(json_get(o, "acceptance")->kind, JSON_NULL);
        CHECK_INT(json_get(o, "tokens_per_s")->kind, JSON_NULL);
        CHECK_NEAR(number(o, "seconds"), 0, 0);
    }
    arena_deinit(&a);
    buf_deinit(&b);
}

static int count_of(const char *said, const char *word)
{
    int n = 0;
    for (const char *at = said; (at = strstr(at, word)); at++) n++;
    return n;
}

/* What an earlier run has written counts, a file of the limit's share is moved on, and no number of files is one file. */
TEST(routing_log_goes_on_with_its_file)
{
    static char before[1500];
    char        path[600], other[700];
    memset(before, ' ', sizeof before);
    before[sizeof before - 1] = '\n';
    snprintf(path, sizeof path, "%s", test_tmp_file("on.jsonl", before, sizeof before));
    routing_log *l = open_log(t, path, 1600, 0);
    put_slowly(l, 1);
    routing_log_close(l);
    CHECK_INT(size_of(path), sizeof before); /* no room for a line */
    l = open_log(t, path, 3200, 2);
    put_slowly(l, 1);
    routing_log_close(l);
    snprintf(other, sizeof other, "%s.1", path);
    CHECK_INT(size_of(other), sizeof before);
    CHECK(size_of(path) > 100 && size_of(path) < 1500);
    l = open_log(t, path, 4000, 2);
    put_slowly(l, 1);
    routing_log_close(l);
    CHECK_INT(size_of(other), sizeof before);
    CHECK_INT(each_line(t, path, NULL), 2);
}

TEST(routing_log_says_trouble_once)
{
    static char         name[5000];
    char                path[600], in_the_way[700];
    routing_log        *l;
    err                 e = {0};
    routing_log_options o = {.path = "/proc/no-such-place/routing.jsonl", .max_bytes = 1 << 20};
    test_listen_begin(false);
    CHECK_OK(routing_log_open(&l, &o, &e), e);
    routing_log_set(l, true, 1 << 20);
    put_slowly(l, 3);
    routing_log_close(l);
    const char *said = test_listen_end();
    CHECK_MSG(count_of(said, "cannot open /proc/no-such-place") == 1, "%s", said);
    memset(name, 'x', 4096);
    o.path = name;
    CHECK_FAILS(routing_log_open(&l, &o, &e), e, "path is too long");
    CHECK(!l);
    /* A line that is longer than a file may be is not written, and nothing is moved on for it. */
    snprintf(path, sizeof path, "%s", test_tmp_file("small.jsonl", "{}\n", 3));
    test_listen_begin(false);
    l = open_log(t, path, 100, 2);
    put_slowly(l, 3);
    routing_log_close(l);
    said = test_listen_end();
    CHECK_MSG(count_of(said, "has reached its limit of 100 bytes") == 1, "%s", said);
    CHECK_INT(size_of(path), 3);
    /* What cannot be moved on is said; a directory stands in the way. */
    snprintf(in_the_way, sizeof in_the_way, "%s.1", path);
    mkdir(in_the_way, 0777);
    test_listen_begin(false);
    l = open_log(t, path, 1200, 2);
    put_slowly(l, 4);
    routing_log_close(l);
    said = test_listen_end();
    CHECK_MSG(count_of(said, "cannot move on") == 1, "%s", said);
    CHECK(size_of(path) <= 600);
    rmdir(in_the_way);
}
