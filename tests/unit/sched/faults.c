/* What goes wrong for one request is that request's alone: memory, pages, damaged numbers, the end of the engine. */
#include "engine_rig.h"

#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "gguf/safetensors.h"
#include "sched/sched.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL); }

/* --- memory ---------------------------------------------------------------------------------------*/
enum { NTH_STEP = NANO_SLOWEST ? 2 : 4 };

/* A request that wants some of everything. */
static void greedy_request(const tandem *e, tandem_request *r)
{
    static const char *const stops[] = {"zzz", "\x01nothing"};
    static const tandem_bias bias[]  = {{291, 1}};
    static const int32_t     ends[]  = {4001, 4002};
    nano_request(e, r, 12);
    r->stop           = stops;
    r->n_stop         = COUNT(stops);
    r->bias           = bias;
    r->n_bias         = COUNT(bias);
    r->stop_ids       = ends;
    r->n_stop_ids     = COUNT(ends);
    r->logprobs       = 3;
    r->repeat_penalty = 1.1f;
    r->tenant         = "somebody";
}

/* With the n-th allocation failing: an answer, or a sentence that says what is missing. True when one failed. */
static bool ask_without_memory(test_case *t, tandem *e, const nano_answer *want, long n)
{
    tandem_request r;
    tandem_error   why = {0};
    tandem_job    *j   = NULL;
    nano_answer    a;
    greedy_request(e, &r);
    fault_fail_nth(n);
    bool taken = tandem_submit(e, &r, &j, &why);
    if (taken) {
        nano_collect(j, &a);
        why = a.result.error;
    }
    bool failed = fault_tries() >= n;
    fault_fail_nth(0);
    if (taken && a.result.finish != TANDEM_FINISH_ERROR) {
        nano_same(t, &a, want);
        return failed;
    }
    CHECK_MSG(failed && why.code == TANDEM_UNAVAILABLE && strstr(why.text, "memory"), "allocation %ld: code %d, %s", n,
              why.code, why.text);
    return failed;
}

TEST(sched_requests_without_memory)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    want, a;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    greedy_request(e, &r);
    nano_ask(t, e, &r, &want);
    CHECK_INT(want.n, 12);
    long n = 1;
    while (ask_without_memory(t, e, &want, n)) {
        nano_ask(t, e, &r, &a); /* nothing of it is left */
        nano_same(t, &a, &want);
        n++;
    }
    CHECK(n > 3); /* the job, its tokens, its prompt */
    nano_check_idle(t, e);
    tandem_close(e);
}

/* In a new engine, whose first request opens the drafters. */
TEST(sched_first_requests_without_memory)
{
    tandem_options o;
    tandem_drafter lazy[2];
    tandem        *e;
    tandem_request r;
    nano_answer    want, a;
    bool           more = true;
    nano_options(&o);
    memcpy(lazy, o.drafters, sizeof lazy);
    lazy[0].lazy = lazy[1].lazy = true;
    o.drafters                  = lazy;
    if (!nano_open(t, &e, &o)) return;
    greedy_request(e, &r);
    nano_ask(t, e, &r, &want);
    tandem_close(e);
    for (long n = 1; more && nano_open(t, &e, &o); n += 1 + n / NTH_STEP) {
        more = ask_without_memory(t, e, &want, n);
        nano_ask(t, e, &r, &a);
        nano_same(t, &a, &want);
        nano_check_idle(t, e);
        tandem_close(e);
    }
}

TEST(sched_opens_without_memory)
{
    tandem_options o;
    tandem_request r;
    tandem        *e;
    nano_answer    a;
    bool           more     = true;
    int            n_failed = 0;
    nano_options(&o);
    for (long n = 1; more; n += 1 + n / NTH_STEP) {
        tandem_error why = {0};
        fault_fail_nth(n);
        bool ok = tandem_open(&e, &o, &why);
        more    = fault_tries() >= n;
        fault_fail_nth(0);
        if (!ok) {
            n_failed++;
            CHECK_MSG(more && strstr(why.text, "memory"), "allocation %ld: code %d, %s", n, why.code, why.text);
            continue;
        }
        nano_request(e, &r, 4);
        nano_ask(t, e, &r, &a);
        CHECK_INT(a.n, 4);
        tandem_close(e);
    }
    CHECK(n_failed > 0);
}

/* --- pages ----------------------------------------------------------------------------------------*/
enum { BIG = NANO_SLOWEST ? 120 : 180 }; /* tokens of a long answer */

static bool opens_with(test_case *t, tandem **e, tandem_options *o, uint64_t kv_bytes)
{
    tandem_error why = {0};
    o->kv_bytes      = kv_bytes;
    bool ok          = tandem_open(e, o, &why);
    if (!ok) CHECK_MSG(strstr(why.text, "K/V") || strstr(why.text, "page"), "the reason is %s", why.text);
    return ok;
}

static void big_request(const tandem *e, tandem_request *r)
{
    nano_request(e, r, BIG);
    r->spec.method = TANDEM_SPEC_OFF;
}

/* The smallest pool, by steps of a tenth, in which a big request runs. */
static uint64_t pool_for_one(test_case *t, tandem_options *o, nano_answer *a)
{
    tandem        *e;
    tandem_request r;
    int            refused = 0;
    for (uint64_t bytes = 256 << 10; bytes < 256 << 20; bytes += bytes / 10) {
        if (!opens_with(t, &e, o, bytes)) continue;
        big_request(e, &r);
        tandem_error why = {0};
        tandem_job  *j;
        *a      = (nano_answer){0};
        bool ok = tandem_submit(e, &r, &j, &why);
        if (ok) {
            nano_collect(j, a);
            ok  = a->result.finish != TANDEM_FINISH_ERROR;
            why = a->result.error;
        }
        tandem_close(e);
        if (ok) {
            CHECK_INT(a->n, BIG);
            CHECK(refused > 0);
            return bytes;
        }
        refused++;
        CHECK_INT(why.code, TANDEM_CONTEXT);
        CHECK_MSG(why.text[0] && !strstr(why.text, "busy"), "the reason is %s", why.text);
    }
    return CHECK(!"no pool is large enough"), 0;
}

static tandem_stats stats_when(tandem *e, int running, int queued)
{
    tandem_stats s;
    for (int i = 0; i < 2000; i++) {
        tandem_get_stats(e, &s);
        if (s.running == running && s.queued == queued) break;
        nap();
    }
    return s;
}

TEST(sched_waits_for_pages_and_then_runs)
{
    tandem_options o;
    tandem_request r;
    tandem        *e;
    nano_answer    want, a;
    tandem_job    *j[4];
    nano_options(&o);
    o.n_drafters   = 0;
    uint64_t bytes = pool_for_one(t, &o, &want);
    if (!bytes || !opens_with(t, &e, &o, bytes)) return;
    big_request(e, &r);
    for (int i = 0; i < 4; i++) j[i] = nano_submit(t, e, &r);
    tandem_stats s = stats_when(e, 1, 3);
    CHECK_INT(s.running, 1);
    CHECK_INT(s.queued, 3);
    CHECK(s.kv_reserved_bytes > 0 && s.kv_reserved_bytes <= s.kv_bytes);
    tandem_cancel(j[2]); /* while it waits */
    for (int i = 0; i < 4; i++) {
        nano_collect(j[i], &a);
        CHECK_INT(a.result.finish, i == 2 ? TANDEM_FINISH_CANCELLED : TANDEM_FINISH_LENGTH);
        if (i != 2) nano_same(t, &a, &want);
        CHECK_INT(a.result.usage.completion_tokens, i == 2 ? 0 : BIG);
    }
    nano_check_idle(t, e);
    tandem_get_stats(e, &s);
    CHECK_INT(s.kv_reserved_bytes, 0);
    tandem_close(e);
}

/* Small requests run beside each other in the same pool, filled and emptied many times; kept prefixes give way. */
TEST_LONG(sched_a_small_pool_serves_many)
{
    enum { ROUNDS = NANO_SLOWEST ? 1 : 3, EACH = NANO_SLOWEST ? 12 : 24, N = NANO_SLOWEST ? 24 : 40 };
    tandem_options o;
    tandem_request r;
    tandem        *e;
    nano_answer    want[8], a;
    tandem_job    *j[EACH];
    int32_t        ids[8][NANO_PROMPT];
    nano_options(&o);
    uint64_t bytes = pool_for_one(t, &o, &a);
    if (!bytes || !opens_with(t, &e, &o, bytes)) return;
    for (int i = 0; i < 8; i++) {
        memcpy(ids[i], nano_prompt, sizeof ids[i]);
        ids[i][5] += i;
        nano_request(e, &r, N);
        r.ids = ids[i];
        nano_ask(t, e, &r, &want[i]);
        CHECK_INT(want[i].result.finish, TANDEM_FINISH_LENGTH);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < EACH; i++) {
            nano_request(e, &r, N);
            r.ids         = ids[i % 8];
            r.spec.method = (tandem_method)(i % (TANDEM_SPEC_AUTO + 1));
            j[i]          = nano_submit(t, e, &r);
        }
        for (int i = 0; i < EACH && j[i]; i++) {
            nano_collect(j[i], &a);
            CHECK_INT(a.result.finish, TANDEM_FINISH_LENGTH);
            nano_same(t, &a, &want[i % 8]);
        }
    }
    nano_check_idle(t, e);
    tandem_close(e);
}

static void check_busy(test_case *t, const tandem_error *why)
{
    CHECK_INT(why->code, TANDEM_BUSY);
    CHECK_STR(str_of(why->text), STR("the server is busy; try again"));
}

/* The error is the same for every kind of missing memory, so that it reveals nothing about other requests. */
TEST(sched_busy_says_nothing_else)
{
    tandem_options o;
    tandem_request r;
    tandem        *e;
    tandem_error   why = {0};
    tandem_job    *first, *second, *third;
    nano_answer    a;
    nano_options(&o);
    o.n_ctx     = 1024;
    o.max_lanes = 1;
    nano_setting(&o, "queue_max", "1");
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, NANO_MAX_OUT);
    first = nano_submit(t, e, &r);
    stats_when(e, 1, 0);
    second = nano_submit(t, e, &r);
    stats_when(e, 1, 1);
    CHECK(!tandem_submit(e, &r, &third, &why));
    check_busy(t, &why);
    tandem_release(second);
    tandem_release(first);
    tandem_close(e);

    nano_setting(&o, "queue_timeout_ms", "20");
    if (!nano_open(t, &e, &o)) return;
    first = nano_submit(t, e, &r);
    stats_when(e, 1, 0);
    second = nano_submit(t, e, &r);
    nano_collect(second, &a);
    CHECK_INT(a.result.finish, TANDEM_FINISH_ERROR);
    CHECK_INT(a.result.usage.completion_tokens, 0);
    check_busy(t, &a.result.error);
    tandem_release(first);
    tandem_close(e);
}

TEST(sched_context_is_checked_first)
{
    tandem_options o;
    tandem_request r;
    tandem        *e;
    tandem_error   why = {0}, again = {0};
    tandem_job    *j[2], *none;
    int32_t        ids[300];
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 8);
    for (int i = 0; i < 300; i++) ids[i] = nano_prompt[i % NANO_PROMPT];
    r.ids   = ids;
    r.n_ids = 300;
    CHECK(!tandem_submit(e, &r, &none, &why));
    CHECK_INT(why.code, TANDEM_CONTEXT);
    CHECK_MSG(strstr(why.text, "300") && strstr(why.text, "256"), "%s", why.text);
    tandem_request other;
    nano_request(e, &other, 100);
    for (int i = 0; i < 2; i++) j[i] = nano_submit(t, e, &other);
    CHECK(!tandem_submit(e, &r, &none, &again));
    CHECK_STR(str_of(again.text), str_of(why.text));
    for (int i = 0; i < 2; i++) tandem_release(j[i]);
    tandem_close(e);
}

/* --- damaged numbers ------------------------------------------------------------------------------*/
enum { POISON = 77 };

static void write_copy(test_case *t, const char *dir, const char *name, const char *spoil)
{
    char         to[512], from[128];
    err          e   = {0};
    file_map     map = {0};
    safetensors *s;
    snprintf(to, sizeof to, "%s/%s", dir, name);
    snprintf(from, sizeof from, "tests/golden/gemma4-ple/%s", name);
    if (!CHECK_OK(file_map_open(&map, test_path(from), &e), e)) return;
    char *bytes = xalloc(map.n);
    memcpy(bytes, map.p, map.n);
    if (spoil && CHECK_OK(safetensors_open(&s, test_path("tests/golden/gemma4-ple"), &e), e)) {
        const tensor *x   = tensor_find(safetensors_tensors(s), str_of(spoil));
        char         *at  = x ? memmem(bytes, map.n, x->data, x->bytes) : NULL;
        size_t        row = x ? x->bytes / (size_t)x->dim[1] : 0;
        if (CHECK(at)) memset(at + POISON * row, 0xFF, row);
        safetensors_close(s);
    }
    FILE *f = fopen(to, "wb");
    if (CHECK(f)) {
        CHECK_INT(fwrite(bytes, 1, map.n, f), map.n);
        fclose(f);
    }
    mem_free(bytes);
    file_map_close(&map);
}

/* A model in which one token is not a number wherever it is read; its own logit is one. */
static const char *poisoned_model(test_case *t)
{
    static char dir[256];
    snprintf(dir, sizeof dir, "%s/poisoned", test_tmp_dir());
    mkdir(dir, 0700);
    write_copy(t, dir, "config.json", NULL);
    write_copy(t, dir, "generation_config.json", NULL);
    write_copy(t, dir, "model.safetensors", "model.embed_tokens_per_layer.weight");
    return dir;
}

static void clean_request(const tandem *e, tandem_request *r, int i)
{
    static const tandem_bias bias[] = {{POISON, -INFINITY}};
    static int32_t           ids[8][24];
    for (int k = 0; k < 24; k++) ids[i][k] = 100 + (i * 37 + k * 5) % 300;
    nano_request(e, r, 40);
    r->ids    = ids[i];
    r->n_ids  = 24;
    r->bias   = bias;
    r->n_bias = COUNT(bias);
}

/* In the prompt, or picked as the first token. */
static void ill_request(const tandem *e, tandem_request *r, bool in_prompt)
{
    static const tandem_bias bias[] = {{POISON, 100}};
    static int32_t           ids[40];
    clean_request(e, r, 7);
    memcpy(ids, r->ids, 24 * sizeof *ids);
    r->ids = ids;
    if (in_prompt)
        ids[10] = POISON;
    else
        r->bias = bias;
}

TEST(sched_a_lane_that_is_not_a_number_is_alone)
{
    tandem_options o;
    tandem_request r;
    tandem        *e;
    nano_answer    want[6], a;
    tandem_job    *j[6], *ill[2];
    tandem_drafter assistant = {.path = test_path("tests/golden/gemma4-ple-assistant")};
    nano_options(&o);
    o.path       = poisoned_model(t);
    o.drafters   = &assistant;
    o.n_drafters = 1;
    o.n_ctx      = 96;
    o.max_lanes  = 8;
    o.no_prefix  = true; /* damaged pages come back at once */
    if (!nano_open(t, &e, &o)) return;
    for (int i = 0; i < 6; i++) {
        clean_request(e, &r, i);
        r.spec.method = TANDEM_SPEC_OFF;
        nano_ask(t, e, &r, &want[i]);
        CHECK_INT(want[i].n, 40);
    }
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 6; i++) {
            clean_request(e, &r, i);
            r.spec.method = i % 3 == 0 ? TANDEM_SPEC_OFF : i % 3 == 1 ? TANDEM_SPEC_MTP : TANDEM_SPEC_NGRAM;
            j[i]          = nano_submit(t, e, &r);
            if (i % 3 != 1) continue;
            ill_request(e, &r, i / 3 == 0);
            r.spec.method = round % 2 ? TANDEM_SPEC_MTP : TANDEM_SPEC_NGRAM;
            ill[i / 3]    = nano_submit(t, e, &r);
        }
        for (int i = 0; i < 2 && ill[i]; i++) {
            nano_collect(ill[i], &a);
            CHECK_INT(a.result.finish, TANDEM_FINISH_ERROR);
            CHECK_INT(a.result.error.code, TANDEM_FORMAT);
            CHECK_MSG(strstr(a.result.error.text, "weights are damaged"), "%s", a.result.error.text);
            CHECK_INT(a.n, i); /* the token itself was picked from good numbers */
            CHECK_INT(a.result.usage.completion_tokens, a.n);
        }
        for (int i = 0; i < 6 && j[i]; i++) {
            nano_collect(j[i], &a);
            CHECK_INT(a.result.finish, TANDEM_FINISH_LENGTH);
            nano_same(t, &a, &want[i]);
        }
    }
    nano_check_idle(t, e);
    tandem_close(e);
}

/* --- the end of the engine ------------------------------------------------------------------------*/
TEST(sched_closes_with_work_in_flight)
{
    tandem_options o;
    tandem_request r;
    tandem        *e;
    tandem_job    *j[12];
    nano_answer    want, a;
    nano_options(&o);
    o.n_ctx = 600;
    for (int round = 0; round < 4; round++) {
        if (!nano_open(t, &e, &o)) return;
        nano_request(e, &r, NANO_MAX_OUT);
        if (round == 0) nano_ask(t, e, &r, &want);
        for (int i = 0; i < 12; i++) {
            r.spec.method = (tandem_method)(i % (TANDEM_SPEC_AUTO + 1));
            j[i]          = nano_submit(t, e, &r);
        }
        for (int i = 0; i < round && j[0]; i++) tandem_wait(j[i], -1);
        if (round == 2) tandem_shutdown(e, 0.01);
        tandem_close(e);
        for (int i = 0; i < 12 && j[i]; i++) {
            CHECK(tandem_wait(j[i], 0) && tandem_job_result(j[i]));
            nano_collect(j[i], &a);
            CHECK(a.result.finish == TANDEM_FINISH_CANCELLED || a.result.finish == TANDEM_FINISH_LENGTH);
            CHECK_INT(a.result.usage.completion_tokens, a.n);
            CHECK(memcmp(a.token, want.token, (size_t)a.n * sizeof *a.token) == 0);
        }
    }
}

typedef struct {
    test_case   *t;
    tandem      *e;
    int          who;
    atomic_bool *over;
    atomic_long  n_taken, n_refused;
} customer;

/* Submits, looks, cancels and changes its mind until the engine takes no more. */
static void *keep_asking(void *arg)
{
    customer      *c = arg;
    tandem_request r;
    for (int i = 0; !atomic_load(c->over) || c->n_refused == 0; i++) {
        tandem_error why = {0};
        tandem_job  *j;
        nano_answer  a;
        tandem_stats s;
        nano_request(c->e, &r, 4 + (i * 7 + c->who * 3) % 20);
        r.spec.method = (tandem_method)((i + c->who) % (TANDEM_SPEC_AUTO + 1));
        if (!tandem_submit(c->e, &r, &j, &why)) {
            if (why.code == TANDEM_UNAVAILABLE) c->n_refused++;
            if (why.code != TANDEM_UNAVAILABLE && why.code != TANDEM_BUSY) c->n_taken = -1000000;
            nap();
            continue;
        }
        c->n_taken++;
        if (i % 3 == 1) tandem_cancel(j);
        if (i % 5 == 2) tandem_set(c->e, "dflash_max_concurrent", i % 2 ? "auto" : "1", NULL);
        tandem_get_stats(c->e, &s);
        if (i % 7 == 3) {
            tandem_release(j);
            continue;
        }
        nano_collect(j, &a);
        if (a.result.usage.completion_tokens != a.n) c->n_taken = -1000000;
    }
    return NULL;
}

TEST(sched_submits_race_the_end)
{
    enum { CUSTOMERS = 4 };
    tandem_options o;
    tandem        *e;
    nano_options(&o);
    nano_setting(&o, "queue_max", "3");
    for (int round = 0; round < 3; round++) {
        pthread_t   thread[CUSTOMERS];
        customer    c[CUSTOMERS];
        atomic_bool over = false;
        if (!nano_open(t, &e, &o)) return;
        for (int i = 0; i < CUSTOMERS; i++) {
            c[i] = (customer){.t = t, .e = e, .who = i, .over = &over};
            pthread_create(&thread[i], NULL, keep_asking, &c[i]);
        }
        for (int i = 0; i < 60 * round; i++) nap();
        for (int i = 0; round && i < CUSTOMERS; i++)
            while (!atomic_load(&c[i].n_taken)) nap(); /* a busy machine may take its time */
        tandem_shutdown(e, round == 1 ? 0.02 : 0);
        atomic_store(&over, true);
        for (int i = 0; i < CUSTOMERS; i++) {
            pthread_join(thread[i], NULL);
            CHECK(c[i].n_taken >= 0 && c[i].n_refused > 0);
            if (round) CHECK(c[i].n_taken > 0);
        }
        tandem_stats s;
        tandem_get_stats(e, &s);
        CHECK_INT(s.running + s.queued, 0);
        tandem_close(e);
    }
}
