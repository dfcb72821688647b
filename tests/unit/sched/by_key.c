/* Requests of several API keys at one engine: who is admitted, and who is refused. */
#include "engine_rig.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { BATCH = 12, SINGLE = 3 };

static void nap_1ms(void) { nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); }

/* The order in which requests write their first tokens. Until `go` the first one waits there. */
typedef struct {
    char        order[64];
    atomic_int  n;
    atomic_bool go;
} arrivals;

typedef struct {
    arrivals *all;
    char      name; /* 0: it was noted */
} arrival;

static bool note_first(void *ctx, int32_t token)
{
    arrival *a = ctx;
    (void)token;
    while (!atomic_load(&a->all->go)) nap_1ms();
    if (a->name) a->all->order[atomic_fetch_add(&a->all->n, 1)] = a->name;
    a->name = 0;
    return true;
}

typedef struct {
    tandem        *e;
    tandem_request r;
    arrivals       all;
    arrival        each[64];
    tandem_job    *job[64];
    int            n;
} rig;

static bool open_rig(test_case *t, rig *k, int lanes, const char *settings[][2], int n_settings)
{
    tandem_options o;
    *k = (rig){0};
    nano_options(&o);
    o.max_lanes = lanes;
    for (int i = 0; i < n_settings; i++) nano_setting(&o, settings[i][0], settings[i][1]);
    if (!nano_open(t, &k->e, &o)) return false;
    nano_request(k->e, &k->r, 4);
    k->r.on_token = note_first;
    return true;
}

/* Whether it was accepted; else with the words for all. */
static bool submit(test_case *t, rig *k, const char *account)
{
    tandem_error why  = {0};
    arrival     *a    = &k->each[k->n];
    *a                = (arrival){&k->all, account[0]};
    k->r.account      = account;
    k->r.on_token_ctx = a;
    bool ok           = tandem_submit(k->e, &k->r, &k->job[k->n], &why);
    if (!ok) CHECK_STR(str_of(why.text), str_of("the server is busy; try again"));
    k->n += ok;
    return ok;
}

/* Lets the engine go on; returns how many were refused in the queue. */
static int finish(test_case *t, rig *k)
{
    nano_answer a;
    int         refused = 0;
    atomic_store(&k->all.go, true);
    for (int i = 0; i < k->n; i++) {
        nano_collect(k->job[i], &a);
        refused += a.result.finish == TANDEM_FINISH_ERROR && a.result.error.code == TANDEM_BUSY;
    }
    nano_check_idle(t, k->e);
    tandem_close(k->e);
    return refused;
}

/* Waits until so many requests have lanes. The engine then waits in note_first. */
static void wait_running(rig *k, int n)
{
    tandem_stats s;
    do {
        nap_1ms();
        tandem_get_stats(k->e, &s);
    } while (s.running < n);
}

TEST(sched_keys_take_turns)
{
    for (int lanes = 1; lanes <= 2; lanes++) {
        static rig k;
        if (!open_rig(t, &k, lanes, NULL, 0)) return;
        CHECK(submit(t, &k, "holds the engine until all have come"));
        wait_running(&k, 1);
        for (int i = 0; i < BATCH; i++) CHECK(submit(t, &k, "batch"));
        for (int i = 0; i < SINGLE; i++) CHECK(submit(t, &k, "interactive"));
        CHECK_INT(finish(t, &k), 0);
        for (int i = 0; i < SINGLE; i++) { /* every second one after the first */
            const char *at   = strchr(k.all.order, 'i');
            int         most = 2 * i + 2;
            CHECK_MSG(at && at - k.all.order <= most, "%d lanes, request %d: %s", lanes, i, k.all.order);
            if (at) k.all.order[at - k.all.order] = '-';
        }
    }
}

TEST(sched_keys_share_a_full_queue)
{
    static rig  k;
    const char *set[][2] = {{"queue_max", "6"}};
    if (!open_rig(t, &k, 1, set, 1)) return;
    for (int i = 0; i < 7; i++) CHECK(submit(t, &k, "batch"));
    wait_running(&k, 1);
    CHECK(!submit(t, &k, "batch"));
    for (int i = 0; i < 3; i++) CHECK(submit(t, &k, "interactive"));
    CHECK(!submit(t, &k, "interactive"));
    CHECK(!submit(t, &k, "batch"));
    CHECK_INT(finish(t, &k), 3);
    int interactive = 0;
    for (int i = 0; i < 7; i++) interactive += k.all.order[i] == 'i';
    CHECK_INT(interactive, 3); /* the batch gave way */
    CHECK_INT(atomic_load(&k.all.n), 7);
}

TEST(sched_lanes_of_a_key)
{
    static rig   k;
    tandem_stats s;
    const char  *set[][2] = {{"max_lanes_per_key", "1"}, {"max_queue_per_key", "2"}};
    if (!open_rig(t, &k, 3, set, 2)) return;
    for (int i = 0; i < 3; i++) CHECK(submit(t, &k, "batch"));
    CHECK(!submit(t, &k, "batch"));
    CHECK(submit(t, &k, "interactive"));
    wait_running(&k, 1);
    atomic_store(&k.all.go, true);
    tandem_get_stats(k.e, &s);
    CHECK(s.running <= 2);
    CHECK_INT(finish(t, &k), 0);
    const char *at = strchr(k.all.order, 'i');
    CHECK_MSG(at && at - k.all.order <= 1, "%s", k.all.order);
}

/* A setting that becomes lower while requests wait: the last ones of the key are refused. */
TEST(sched_queue_of_a_key_becomes_shorter)
{
    static rig   k;
    tandem_error why = {0};
    if (!open_rig(t, &k, 1, NULL, 0)) return;
    for (int i = 0; i < 5; i++) CHECK(submit(t, &k, "batch"));
    for (int i = 0; i < 2; i++) CHECK(submit(t, &k, "interactive"));
    wait_running(&k, 1);
    CHECK_OK(tandem_set(k.e, "max_queue_per_key", "2", &why), why);
    CHECK_INT(finish(t, &k), 2);
    CHECK_INT(atomic_load(&k.all.n), 5);
}

/* A prompt of another key is not read after all prompts of the first one. */
TEST(sched_prompts_of_keys_take_turns)
{
    enum { LONG = 200 };
    static rig     k;
    tandem_options o;
    int32_t        ids[3][LONG];
    k = (rig){0};
    nano_options(&o);
    o.max_lanes   = 4;
    o.step_tokens = 64;
    o.no_prefix   = true;
    if (!nano_open(t, &k.e, &o)) return;
    nano_request(k.e, &k.r, 4);
    k.r.on_token = note_first;
    for (int i = 0; i < 3; i++)
        for (int p = 0; p < LONG; p++) ids[i][p] = nano_prompt[(p + i) % NANO_PROMPT];
    CHECK(submit(t, &k, "holds the engine until all have come"));
    wait_running(&k, 1);
    k.r.n_ids = LONG;
    for (int i = 0; i < 3; i++) {
        k.r.ids = ids[i];
        CHECK(submit(t, &k, i < 2 ? "batch" : "interactive"));
    }
    CHECK_INT(finish(t, &k), 0);
    CHECK_MSG(strcmp(k.all.order, "hbib") == 0, "%s", k.all.order);
}
