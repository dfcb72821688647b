/* Steering a running engine: errands on its thread, drafters parked, several settings at once, what it decided of late. */
#include "base/clock.h"
#include "base/file.h"
#include "engine_rig.h"
#include "sched/errand.h"
#include "sched/inside.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void nap(double ms) { nanosleep(&(struct timespec){.tv_nsec = (long)(ms * 1e6)}, NULL); }

/* --- errands ------------------------------------------------------------------------------------*/
enum { ERRAND_THREADS = 4, ERRANDS_EACH = 200 };
typedef struct {
    errands    *all;
    int         sum; /* without a lock: errands run on one thread */
    atomic_int  rings, done, refused;
    atomic_bool stop;
} errand_world;

static void add_one(void *ctx) { ((errand_world *)ctx)->sum++; }
static void count_ring(void *ctx) { atomic_fetch_add(&((errand_world *)ctx)->rings, 1); }

static void *send_errands(void *ctx)
{
    errand_world *w = ctx;
    for (int i = 0; i < ERRANDS_EACH; i++)
        atomic_fetch_add(errands_do(w->all, add_one, w, count_ring, w) ? &w->done : &w->refused, 1);
    return NULL;
}

TEST(errands_are_run_once_each_and_refused_at_the_end)
{
    errands      x;
    errand_world w = {.all = &x};
    pthread_t    thread[ERRAND_THREADS];
    errands_init(&x);
    CHECK(!errands_run(&x));
    for (int i = 0; i < ERRAND_THREADS; i++) pthread_create(&thread[i], NULL, send_errands, &w);
    while (w.done < ERRAND_THREADS * ERRANDS_EACH / 2) errands_run(&x);
    errands_close(&x);
    for (int i = 0; i < ERRAND_THREADS; i++) pthread_join(thread[i], NULL);
    CHECK_INT(w.sum, w.done);
    CHECK_INT(w.done + w.refused, ERRAND_THREADS * ERRANDS_EACH);
    CHECK(w.rings >= w.done && w.rings <= w.done + ERRAND_THREADS);
    CHECK(!errands_do(&x, add_one, &w, count_ring, &w));
    errands_deinit(&x);
}

/* --- drafters -----------------------------------------------------------------------------------*/
static tandem_drafter_info drafter_of(test_case *t, const tandem *e, tandem_method m)
{
    tandem_drafter_info all[TANDEM_MAX_DRAFTERS] = {0};
    int                 n                        = tandem_drafters(e, all);
    for (int i = 0; i < n; i++)
        if (all[i].method == m) return all[i];
    CHECK_MSG(false, "there is no drafter for %s", tandem_method_name((int)m));
    return all[0];
}

TEST(sched_drafters_are_parked_one_by_one)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_error   why = {0};
    nano_answer    plain, a;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    CHECK_INT(drafter_of(t, e, TANDEM_SPEC_DFLASH).state, TANDEM_DRAFTER_OPEN);
    CHECK(drafter_of(t, e, TANDEM_SPEC_MTP).weight_bytes > 0);
    CHECK(drafter_of(t, e, TANDEM_SPEC_DFLASH).quantisation[0]);
    nano_request(e, &r, 40);
    r.spec.method = TANDEM_SPEC_OFF;
    nano_ask(t, e, &r, &plain);
    for (int m = TANDEM_SPEC_DFLASH; m <= TANDEM_SPEC_MTP; m += TANDEM_SPEC_MTP - TANDEM_SPEC_DFLASH) {
        tandem_method other = m == TANDEM_SPEC_MTP ? TANDEM_SPEC_DFLASH : TANDEM_SPEC_MTP;
        for (int twice = 0; twice < 2; twice++) CHECK_OK(tandem_park_drafter(e, (tandem_method)m, &why), why);
        CHECK_INT(drafter_of(t, e, (tandem_method)m).state, TANDEM_DRAFTER_PARKED);
        CHECK_INT(drafter_of(t, e, other).state, TANDEM_DRAFTER_OPEN);
        r.spec.method = (tandem_method)m;
        nano_ask(t, e, &r, &a);
        nano_same(t, &a, &plain);
        CHECK_INT(a.result.usage.spec.drafted, 0);
        CHECK_STR(str_of(a.result.usage.route_reason), STR("no_drafter"));
        r.spec.method = other;
        nano_ask(t, e, &r, &a);
        nano_same(t, &a, &plain);
        CHECK(a.result.usage.spec.drafted_by_method[other] > 0);
        for (int twice = 0; twice < 2; twice++) CHECK_OK(tandem_unpark_drafter(e, (tandem_method)m, &why), why);
        CHECK_INT(drafter_of(t, e, (tandem_method)m).state, TANDEM_DRAFTER_OPEN);
        r.spec.method = (tandem_method)m;
        nano_ask(t, e, &r, &a);
        nano_same(t, &a, &plain);
        CHECK(a.result.usage.spec.drafted_by_method[m] > 0);
    }
    CHECK_FAILS(tandem_park_drafter(e, TANDEM_SPEC_NGRAM, &why), why, "no drafter for ngram");
    CHECK_INT(why.code, TANDEM_NOT_FOUND);
    CHECK_FAILS(tandem_unpark_drafter(e, TANDEM_SPEC_OFF, &why), why, "not a method");
    CHECK_FAILS(tandem_park_drafter(e, TANDEM_SPEC_AUTO, &why), why, "not a method");
    nano_check_idle(t, e);
    tandem_shutdown(e, 0);
    CHECK_FAILS(tandem_park_drafter(e, TANDEM_SPEC_MTP, &why), why, "shutting down");
    tandem_close(e);
}

TEST(sched_a_model_without_drafters_parks_none)
{
    tandem_options      o;
    tandem             *e;
    tandem_error        why = {0};
    tandem_drafter_info all[TANDEM_MAX_DRAFTERS];
    nano_options(&o);
    o.n_drafters = 0;
    if (!nano_open(t, &e, &o)) return;
    CHECK_INT(tandem_drafters(e, all), 0);
    CHECK_FAILS(tandem_park_drafter(e, TANDEM_SPEC_DFLASH, &why), why, "no drafter for dflash");
    tandem_close(e);
}

TEST(sched_a_lazy_drafter_stays_lazy_when_parked)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_error   why = {0};
    nano_answer    a;
    nano_options(&o);
    nano_setting(&o, "dflash_lazy_drafter", "true");
    if (!nano_open(t, &e, &o)) return;
    CHECK_INT(drafter_of(t, e, TANDEM_SPEC_DFLASH).state, TANDEM_DRAFTER_LAZY);
    CHECK_OK(tandem_park_drafter(e, TANDEM_SPEC_DFLASH, &why), why);
    nano_request(e, &r, 10);
    r.spec.method = TANDEM_SPEC_DFLASH;
    nano_ask(t, e, &r, &a);
    CHECK_INT(a.result.usage.spec.drafted, 0);
    CHECK_OK(tandem_unpark_drafter(e, TANDEM_SPEC_DFLASH, &why), why);
    CHECK_INT(drafter_of(t, e, TANDEM_SPEC_DFLASH).state, TANDEM_DRAFTER_LAZY);
    nano_ask(t, e, &r, &a);
    CHECK(a.result.usage.spec.drafted > 0);
    CHECK_INT(drafter_of(t, e, TANDEM_SPEC_DFLASH).state, TANDEM_DRAFTER_OPEN);
    tandem_close(e);
}

static char *copy_of(const char *path, const char *name)
{
    static char to[600];
    file_map    m = {0};
    if (!file_map_open(&m, path, NULL)) return NULL;
    snprintf(to, sizeof to, "%s", test_tmp_file(name, m.p, m.n));
    file_map_close(&m);
    return to;
}

TEST(sched_a_drafter_that_cannot_be_opened_again_is_tried_again)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_error   why = {0};
    nano_answer    a, plain;
    char           away[700];
    nano_options(&o);
    tandem_drafter d = o.drafters[0];
    d.path           = copy_of(d.path, "drafter.gguf");
    o.drafters       = &d;
    o.n_drafters     = 1;
    if (!d.path || !nano_open(t, &e, &o)) return;
    tandem_method m = drafter_of(t, e, TANDEM_SPEC_DFLASH).method;
    snprintf(away, sizeof away, "%s.away", d.path);
    nano_request(e, &r, 20);
    nano_ask(t, e, &r, &plain);
    CHECK_OK(tandem_park_drafter(e, m, &why), why);
    CHECK(rename(d.path, away) == 0);
    CHECK_FAILS(tandem_unpark_drafter(e, m, &why), why, "drafter");
    CHECK_INT(drafter_of(t, e, m).state, TANDEM_DRAFTER_FAILED);
    CHECK(drafter_of(t, e, m).problem[0]);
    nano_ask(t, e, &r, &a);
    nano_same(t, &a, &plain);
    CHECK(rename(away, d.path) == 0);
    CHECK_OK(tandem_unpark_drafter(e, m, &why), why);
    CHECK_INT(drafter_of(t, e, m).state, TANDEM_DRAFTER_OPEN);
    CHECK(!drafter_of(t, e, m).problem[0]);
    r.spec.method = m;
    nano_ask(t, e, &r, &a);
    nano_same(t, &a, &plain);
    CHECK(a.result.usage.spec.drafted > 0);
    tandem_close(e);
}

typedef struct {
    tandem     *e;
    test_case  *t;
    atomic_bool stop;
    atomic_int  n;
} parker;

static void *park_and_unpark(void *ctx)
{
    parker      *p   = ctx;
    test_case   *t   = p->t;
    tandem_error why = {0};
    while (!p->stop) {
        int           k = p->n++;
        tandem_method m = k % 2 ? TANDEM_SPEC_DFLASH : TANDEM_SPEC_MTP;
        CHECK_OK(tandem_park_drafter(p->e, m, &why), why);
        nap(k % 3);
        CHECK_OK(tandem_unpark_drafter(p->e, m, &why), why);
    }
    return NULL;
}

TEST_LONG(sched_parking_changes_no_text)
{
    enum { AT_ONCE = 6, N = NANO_SLOW ? 40 : 100 };
    int            n_rounds = NANO_SLOWEST ? 2 : NANO_SLOW || !test_full() ? 4 : 8;
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    plain, a;
    tandem_job    *j[AT_ONCE];
    parker         p = {.t = t};
    pthread_t      thread[2];
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, N);
    r.spec.method = TANDEM_SPEC_OFF;
    nano_ask(t, e, &r, &plain);
    p.e = e;
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, park_and_unpark, &p);
    for (int k = 0; k < n_rounds; k++) {
        for (int i = 0; i < AT_ONCE; i++) {
            r.spec.method = (tandem_method)(1 + (k + i) % TANDEM_SPEC_AUTO);
            j[i]          = nano_submit(t, e, &r);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            nano_collect(j[i], &a);
            nano_same(t, &a, &plain);
        }
    }
    p.stop = true;
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    CHECK_MSG(p.n > 2, "parked %d times", p.n);
    nano_check_idle(t, e);
    tandem_close(e);
}

/* --- counts -------------------------------------------------------------------------------------*/
TEST(sched_guesses_are_counted_by_method)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_stats   s;
    nano_answer    a;
    int64_t        drafted = 0, accepted = 0;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    for (int m = TANDEM_SPEC_OFF; m <= TANDEM_SPEC_AUTO; m++) {
        nano_request(e, &r, 24);
        r.spec.method = (tandem_method)m;
        nano_ask(t, e, &r, &a);
        const tandem_usage *u = &a.result.usage;
        for (int k = 0; k < TANDEM_SPEC_METHODS; k++) {
            if (m < TANDEM_SPEC_AUTO && k != m) CHECK_INT(u->spec.drafted_by_method[k], 0);
            CHECK(u->spec.accepted_by_method[k] <= u->spec.drafted_by_method[k]);
            CHECK((u->spec.rounds_by_method[k] > 0) == (u->spec.drafted_by_method[k] > 0));
        }
        if (m > TANDEM_SPEC_OFF && m < TANDEM_SPEC_AUTO) CHECK_INT(u->spec.drafted_by_method[m], u->spec.drafted);
        if (m > TANDEM_SPEC_OFF && m < TANDEM_SPEC_AUTO) CHECK_INT(u->spec.accepted_by_method[m], u->spec.accepted);
    }
    tandem_get_stats(e, &s);
    for (int k = 0; k < TANDEM_SPEC_METHODS; k++)
        drafted += s.spec.drafted_by_method[k], accepted += s.spec.accepted_by_method[k];
    CHECK_INT(drafted, s.spec.drafted);
    CHECK_INT(accepted, s.spec.accepted);
    CHECK(accepted > 0);
    tandem_close(e);
}

/* --- settings -----------------------------------------------------------------------------------*/
static bool set_json(tandem *e, const char *json, tandem_error *why)
{
    err               bad = {0};
    arena             mem;
    const json_value *v;
    *why = (tandem_error){0};
    arena_init(&mem, 1 << 22);
    bool ok = json_parse(&v, &mem, str_of(json), NULL, &bad) && engine_change_settings(e, v, &bad);
    if (!ok) {
        why->code = (tandem_code)bad.code;
        memcpy(why->text, bad.text, sizeof why->text);
    }
    arena_deinit(&mem);
    return ok;
}

static void shown(test_case *t, const tandem *e, const char *member)
{
    char text[8192];
    CHECK(tandem_settings(e, text, sizeof text) < sizeof text);
    CHECK_MSG(strstr(text, member), "%s is not in %s", member, text);
}

TEST(sched_several_settings_at_once_or_none)
{
    static const struct {
        const char *json, *says;
    } bad[] = {{"{\"queue_max\": 3, \"dflash_max_concurrent\": -1}", "dflash_max_concurrent is -1"},
               {"{\"queue_max\": 3, \"hat\": 1}", "there is no setting 'hat'"},
               {"{\"queue_max\": 3, \"kv_cap\": 0.5}", "there is no settings file"},
               {"{\"queue_max\": 3, \"dflash_enabled\": \"yes\"}", "dflash_enabled"},
               {"{\"queue_max\": 3", "line 1"},
               {"[1]", "an object"},
               {"", "line 1"}};
    tandem_options o;
    tandem        *e;
    tandem_error   why;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    for (size_t i = 0; i < COUNT(bad); i++) {
        CHECK_FAILS(set_json(e, bad[i].json, &why), why, bad[i].says);
        shown(t, e, "\"queue_max\":256");
    }
    CHECK_OK(set_json(e, "{\"queue_max\": 3, \"dflash_max_concurrent\": 0, \"queue_timeout_ms\": 5}", &why), why);
    shown(t, e, "\"queue_max\":3");
    shown(t, e, "\"dflash_max_concurrent\":0");
    CHECK_OK(set_json(e, "{}", &why), why);
    CHECK_OK(set_json(e, "{\"queue_max\": null, \"queue_timeout_ms\": null}", &why), why);
    shown(t, e, "\"queue_max\":256");
    shown(t, e, "\"queue_timeout_ms\":30000");
    shown(t, e, "\"dflash_max_concurrent\":0");
    tandem_close(e);
}

TEST(sched_settings_know_where_they_come_from)
{
    const setting_info *waiting = setting_find(STR("queue_max")), *most = setting_find(STR("dflash_max_concurrent")),
                       *cap = setting_find(STR("kv_cap"));
    tandem_options    o;
    tandem           *e;
    tandem_error      why = {0};
    settings          s;
    char              path[600];
    static const char text[] = "{\"models\": {\"nano\": {\"queue_max\": 7, \"default_max_tokens\": 9}}}";
    snprintf(path, sizeof path, "%s", test_tmp_file("from.json", text, sizeof text - 1));
    nano_options(&o);
    o.name          = "nano";
    o.settings_path = path;
    nano_setting(&o, "dflash_max_concurrent", "2");
    if (!nano_open(t, &e, &o)) return;
    sched_get_settings(e->sched, &s);
    CHECK_INT(settings_source(&s, waiting), SETTING_FROM_FILE);
    CHECK_INT(settings_source(&s, most), SETTING_FROM_OPTIONS);
    CHECK_INT(s.changed, 0);
    CHECK_OK(set_json(e, "{\"queue_max\": null, \"dflash_max_concurrent\": 3, \"kv_cap\": 0.5}", &why), why);
    sched_get_settings(e->sched, &s);
    CHECK_INT(settings_source(&s, waiting), SETTING_FROM_API);
    CHECK_INT(settings_source(&s, most), SETTING_FROM_FILE);
    CHECK(s.changed == (settings_bit(waiting) | settings_bit(most) | settings_bit(cap)));
    tandem_close(e);
    /* Opened by somebody else, the option is over the file. Opened with what was changed, the file is over the option. */
    settings before = s;
    if (!nano_open(t, &e, &o)) return;
    sched_get_settings(e->sched, &s);
    CHECK_INT(s.dflash_max_concurrent, 2);
    CHECK_NEAR(s.kv_cap, 0.5, 1e-9);
    CHECK_INT(s.queue_max, 256);
    CHECK_INT(s.pending, 0);
    tandem_close(e);
    err bad       = {0};
    before.kv_cap = 0.25; /* the file has 0.5 */
    if (!CHECK_OK(engine_open(&e, &o, &(engine_extra){.changed = &before}, &bad), bad)) return;
    sched_get_settings(e->sched, &s);
    CHECK_INT(s.dflash_max_concurrent, 3);
    CHECK_NEAR(s.kv_cap, 0.5, 1e-9);
    CHECK(s.changed == before.changed && s.pending == 0);
    CHECK_INT(settings_source(&s, most), SETTING_FROM_FILE);
    tandem_close(e);
    /* Without a file, what was changed is kept by itself, also what is not live. */
    o.settings_path = NULL;
    if (!CHECK_OK(engine_open(&e, &o, &(engine_extra){.changed = &before}, &bad), bad)) return;
    sched_get_settings(e->sched, &s);
    CHECK_INT(s.dflash_max_concurrent, 3);
    CHECK_NEAR(s.kv_cap, 0.25, 1e-9);
    tandem_close(e);
}

/* --- decisions ----------------------------------------------------------------------------------*/
TEST(routing_recent_is_newest_first_and_bounded)
{
    routing_recent x;
    routing_seen  *out = calloc(ENGINE_ROUTING_MAX, sizeof *out);
    routing_record r   = {0};
    routing_recent_init(&x);
    CHECK_INT(routing_recent_get(&x, NULL, out, ENGINE_ROUTING_MAX), 0);
    for (int i = 0; i < ENGINE_ROUTING_MAX + 10; i++) {
        snprintf(r.request_id, sizeof r.request_id, "req-%d", i % 4);
        r.ctx_len = i;
        routing_recent_put(&x, &r);
    }
    CHECK_INT(routing_recent_get(&x, NULL, out, ENGINE_ROUTING_MAX), ENGINE_ROUTING_MAX);
    for (int i = 0; i < ENGINE_ROUTING_MAX; i++) CHECK_INT(out[i].r.ctx_len, ENGINE_ROUTING_MAX + 9 - i);
    CHECK_INT(routing_recent_get(&x, NULL, out, 3), 3);
    CHECK_INT(routing_recent_get(&x, "req-2", out, ENGINE_ROUTING_MAX), ENGINE_ROUTING_MAX / 4);
    for (int i = 0; i < ENGINE_ROUTING_MAX / 4; i++) CHECK_INT(out[i].r.ctx_len % 4, 2);
    CHECK(out[0].ts >= out[1].ts);
    CHECK_INT(routing_recent_get(&x, "req-9", out, ENGINE_ROUTING_MAX), 0);
    routing_recent_deinit(&x);
    free(out);
}

TEST(sched_tells_its_last_decisions_without_a_log)
{
    tandem_options    o;
    tandem           *e;
    tandem_request    r;
    nano_answer       a;
    const json_value *v;
    arena             mem;
    char             *text = malloc(1 << 20);
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 20);
    for (int i = 0; i < 3; i++) {
        char id[200];
        snprintf(id, sizeof id, "req-%d-%0150d", i, 7); /* longer than a record has room for */
        r.id          = id;
        r.spec.method = i ? TANDEM_SPEC_OFF : TANDEM_SPEC_DFLASH;
        nano_ask(t, e, &r, &a);
        CHECK(nano_routing(e, id, 100, text, 1 << 20) > 2);
    }
    arena_init(&mem, 1 << 22);
    size_t n = nano_routing(e, NULL, 100, text, 1 << 20);
    if (CHECK(n < 1 << 20 && json_parse(&v, &mem, (str){text, n}, NULL, NULL) && v->n == 6)) {
        CHECK_STR(json_get(&v->item[0], "event")->s, STR("end"));
        CHECK_STR(json_get(&v->item[5], "event")->s, STR("route"));
        CHECK_STR(json_get(&v->item[5], "routed_to")->s, STR("dflash"));
        CHECK_STR(json_get(&v->item[5], "reason")->s, STR("request"));
        CHECK_INT(json_get(json_get(&v->item[0], "outcome"), "tokens")->i, 20);
    }
    CHECK_INT(nano_routing(e, "nobody", 100, text, 1 << 20), 2);
    CHECK_INT(nano_routing(e, NULL, 0, text, 1 << 20), 2);
    CHECK_INT(nano_routing(e, NULL, -5, text, 1 << 20), 2);
    arena_deinit(&mem);
    free(text);
    tandem_close(e);
}
