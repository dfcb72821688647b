#include "sched/accounts.h"

#include "sched/settings.h"
#include "test.h"

/* Counts the waiting requests without those that yield. */
static int count_waiting(const account *x) { return x->n_live - x->n_running - x->n_yield; }

enum { KEYS = 4, LANES = 3 };

typedef struct {
    accounts       all;
    account_limits limits;
    account       *of[KEYS]; /* NULL: it has no requests */
} rig;

static rig start(int64_t queue_max, int64_t lanes_per_key, int64_t queue_per_key)
{
    return (rig){.limits = {.max_lanes         = LANES,
                            .queue_max         = queue_max,
                            .max_lanes_per_key = lanes_per_key,
                            .max_queue_per_key = queue_per_key}};
}

static bool join(test_case *t, rig *r, int key)
{
    err      e = {0};
    account *x;
    bool     ok = accounts_join(&r->all, (uint64_t)key, &r->limits, &x, "busy", &e);
    CHECK(ok == (x != NULL));
    if (!ok) CHECK(e.code == ERR_BUSY && !strcmp(e.text, "busy"));
    if (!ok) return false;
    CHECK(!r->of[key] || r->of[key] == x);
    CHECK(x->key == (uint64_t)key);
    r->of[key] = x;
    return true;
}

static void leave(rig *r, int key)
{
    bool last = r->of[key]->n_live == 1;
    accounts_leave(&r->all, r->of[key]);
    if (last) r->of[key] = NULL;
}

static int live(const rig *r, int key) { return r->of[key] ? r->of[key]->n_live : 0; }

static void leave_all(rig *r)
{
    for (int k = 0; k < KEYS; k++)
        while (r->of[k]) {
            r->of[k]->n_running = r->of[k]->n_waiting = 0;
            leave(r, k);
        }
}

TEST(accounts_one_key_has_all_places)
{
    rig r = start(5, SETTING_UNLIMITED, SETTING_UNLIMITED);
    for (int i = 0; i < LANES + 5; i++) CHECK(join(t, &r, 0));
    CHECK(!join(t, &r, 0));
    CHECK_INT(r.all.n_live, LANES + 5);
    leave(&r, 0);
    CHECK(join(t, &r, 0));
    CHECK(!join(t, &r, 0));
    leave_all(&r);
    CHECK(!r.all.first && !r.all.n_live && !r.all.n_yield);
}

/* The places of a full queue end up shared equally, whoever came first, and the newcomer gets none when they are. */
TEST(accounts_share_a_full_queue)
{
    rig r = start(12, SETTING_UNLIMITED, SETTING_UNLIMITED);
    for (int i = 0; i < LANES + 12; i++) CHECK(join(t, &r, 0));
    r.of[0]->n_running = LANES;
    int n              = 0;
    while (n < 20 && join(t, &r, 1)) n++;
    CHECK_INT(n, 6);
    CHECK_INT(r.of[0]->n_yield, 6);
    CHECK_INT(count_waiting(r.of[0]), 6);
    CHECK_INT(count_waiting(r.of[1]), 6);
    CHECK(!join(t, &r, 0) && !join(t, &r, 1));
    for (n = 0; n < 20 && join(t, &r, 2);) n++;
    CHECK_INT(n, 4);
    CHECK(count_waiting(r.of[0]) >= 4 && count_waiting(r.of[1]) >= 4);
    CHECK_INT(r.all.n_yield, r.of[0]->n_yield + r.of[1]->n_yield);
    for (int k = 0; k < 2; k++)
        for (int i = r.of[k]->n_yield; i > 0; i--) leave(&r, k); /* as the engine refuses them */
    accounts_settle(&r.all);
    CHECK_INT(r.all.n_live, LANES + 12);
    CHECK(!r.all.n_yield && !r.of[0]->n_yield && !r.of[1]->n_yield);
    CHECK(!join(t, &r, 2));
    CHECK(join(t, &r, 3)); /* one place of four */
    leave_all(&r);
    CHECK(!r.all.first && !r.all.n_live && !r.all.n_yield);
}

TEST(accounts_no_queue_has_no_shares)
{
    rig r = start(0, SETTING_UNLIMITED, SETTING_UNLIMITED);
    for (int i = 0; i < LANES; i++) CHECK(join(t, &r, 0));
    r.of[0]->n_running = LANES;
    CHECK(!join(t, &r, 1) && !join(t, &r, 0));
    leave_all(&r);
}

TEST(accounts_limits_of_a_key)
{
    rig r = start(100, SETTING_UNLIMITED, 2);
    for (int i = 0; i < LANES + 2; i++) CHECK(join(t, &r, 0));
    CHECK(!join(t, &r, 0));
    CHECK(join(t, &r, 1));
    leave_all(&r);
    r = start(100, 1, 2);
    for (int i = 0; i < 3; i++) CHECK(join(t, &r, 0));
    CHECK(!join(t, &r, 0));
    CHECK(join(t, &r, 1));
    leave_all(&r);
    r = start(100, LANES + 7, 0); /* more than there are */
    for (int i = 0; i < LANES; i++) CHECK(join(t, &r, 0));
    CHECK(!join(t, &r, 0));
    leave_all(&r);
    r = start(2, 1, SETTING_UNLIMITED); /* lanes alone do not limit what may wait */
    for (int i = 0; i < LANES + 2; i++) CHECK(join(t, &r, 0));
    CHECK(!join(t, &r, 0));
    leave_all(&r);
}

/* Whatever comes and goes: counts are right, and no account is refused while another has two waiting requests more. */
TEST(accounts_at_random)
{
    rig      r    = start(9, SETTING_UNLIMITED, SETTING_UNLIMITED);
    uint64_t seed = 5;
    for (int round = 0; round < 5000; round++) {
        int key = (int)(test_rand(&seed) % KEYS), sum = 0, yields = 0, longest = 0;
        if (test_rand(&seed) % 5 < 2) {
            if (live(&r, key) && r.of[key]->n_running) r.of[key]->n_running--;
            if (live(&r, key) && count_waiting(r.of[key]) > 0) leave(&r, key);
        } else if (live(&r, key) && count_waiting(r.of[key]) > 0 && test_rand(&seed) % 4 == 0)
            r.of[key]->n_running++;
        else {
            bool full = r.all.n_live - r.all.n_yield >= LANES + 9;
            int  own  = r.of[key] ? count_waiting(r.of[key]) : 0;
            for (int k = 0; k < KEYS; k++)
                if (r.of[k] && count_waiting(r.of[k]) > longest) longest = count_waiting(r.of[k]);
            CHECK(join(t, &r, key) == (!full || own + 1 < longest));
        }
        if (test_rand(&seed) % 16 == 0) accounts_settle(&r.all);
        for (int k = 0; k < KEYS; k++) {
            sum += live(&r, k);
            yields += r.of[k] ? r.of[k]->n_yield : 0;
        }
        CHECK_INT(r.all.n_live, sum);
        CHECK_INT(r.all.n_yield, yields);
    }
    leave_all(&r);
    CHECK(!r.all.first && !r.all.n_live && !r.all.n_yield);
}
