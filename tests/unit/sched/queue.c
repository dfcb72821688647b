#include "sched/queue.h"
#include "test.h"

enum { N = 120, KEYS = 5 };

typedef struct {
    job_queue  q;
    account    of[KEYS];
    tandem_job job[N];
    bool       in[N];
    uint64_t   orders;
} rig;

static bool is_first_in_account(const rig *r, const tandem_job *j)
{
    for (int i = 0; i < N; i++) {
        const tandem_job *x = &r->job[i];
        if (!r->in[i] || x == j || x->account != j->account) continue;
        if (x->priority > j->priority || (x->priority == j->priority && x->order < j->order)) return false;
    }
    return true;
}

/* Whether a, the first of its account, is to be admitted before b, the first of another. */
static bool is_due_before(const tandem_job *a, const tandem_job *b)
{
    if (a->priority != b->priority) return a->priority > b->priority;
    if (a->account->n_running != b->account->n_running) return a->account->n_running < b->account->n_running;
    return a->account->served < b->account->served;
}

static int count_of(const rig *r, const account *x)
{
    int n = 0;
    for (int i = 0; i < N; i++) n += r->in[i] && r->job[i].account == x;
    return n;
}

static void check_walk(test_case *t, const rig *r)
{
    bool seen[N] = {0};
    int  n       = 0;
    for (const tandem_job *j = queue_first(&r->q); j; j = queue_after(j), n++) {
        CHECK(r->in[j - r->job] && !seen[j - r->job]);
        seen[j - r->job] = true;
        CHECK(!j->prev == is_first_in_account(r, j));
    }
    CHECK_INT(n, r->q.n);
    for (int i = 0; i < N; i++) CHECK(seen[i] == r->in[i]);
    for (int k = 0; k < KEYS; k++) CHECK_INT(r->of[k].n_waiting, count_of(r, &r->of[k]));
}

static void check_next(test_case *t, const rig *r, int64_t max_lanes_per_key)
{
    const tandem_job *next = queue_next(&r->q, max_lanes_per_key);
    if (next) CHECK(r->in[next - r->job] && is_first_in_account(r, next));
    for (int i = 0; i < N; i++) {
        const tandem_job *j = &r->job[i];
        if (!r->in[i] || !is_first_in_account(r, j)) continue;
        if (max_lanes_per_key != SETTING_UNLIMITED && j->account->n_running >= max_lanes_per_key) {
            CHECK(j != next);
            continue;
        }
        CHECK(next && !(j->account != next->account && is_due_before(j, next)));
    }
}

static void check_longest(test_case *t, const rig *r)
{
    const tandem_job *last = queue_last_of_longest(&r->q);
    CHECK(!last == !r->q.n);
    for (int k = 0; last && k < KEYS; k++) CHECK(count_of(r, last->account) >= count_of(r, &r->of[k]));
    for (int i = 0; last && i < N; i++)
        if (r->in[i] && r->job[i].account == last->account && &r->job[i] != last)
            CHECK(r->job[i].priority > last->priority ||
                  (r->job[i].priority == last->priority && r->job[i].order < last->order));
}

static void put(rig *r, int i, int key, int priority)
{
    tandem_job *j = &r->job[i];
    j->account    = &r->of[key];
    j->priority   = priority;
    j->order      = ++r->orders;
    queue_put(&r->q, j);
    r->in[i] = true;
}

static void take(rig *r, const tandem_job *j)
{
    queue_take(&r->q, &r->job[j - r->job]);
    r->in[j - r->job] = false;
}

static void admit_next(test_case *t, rig *r)
{
    tandem_job *j = queue_next(&r->q, SETTING_UNLIMITED);
    CHECK(!j == !r->q.n);
    if (!j) return;
    account *x      = j->account;
    uint64_t before = x->served;
    take(r, j);
    queue_note_admission(&r->q, x);
    CHECK(x->served > before);
    x->n_running++;
}

TEST(queue_against_a_search)
{
    static rig r;
    uint64_t   seed = 11;
    r               = (rig){0};
    for (int round = 0; round < 3000; round++) {
        int      i = (int)(test_rand(&seed) % N);
        account *x = &r.of[test_rand(&seed) % KEYS];
        if (r.in[i])
            take(&r, &r.job[i]);
        else
            put(&r, i, (int)(test_rand(&seed) % (1 + (unsigned)round % KEYS)), (int)(test_rand(&seed) % 5) / 2);
        if (test_rand(&seed) % 3 == 0) admit_next(t, &r);
        if (x->n_running) x->n_running--;
        check_walk(t, &r);
        check_next(t, &r, round % 2 ? SETTING_UNLIMITED : (int64_t)(test_rand(&seed) % 4));
        check_longest(t, &r);
    }
}

/* Returns how many requests of others are admitted before one of the account `key` that arrives now. */
static int admissions_before(rig *r, int key, int slot, int n_lanes)
{
    int n = 0, lanes = 0;
    for (int k = 0; k < KEYS; k++) lanes += r->of[k].n_running;
    put(r, slot, key, 0);
    for (;; n++) {
        for (int k = 0; lanes >= n_lanes; k = (k + 1) % KEYS) /* one that runs ends */
            if (r->of[k].n_running) {
                r->of[k].n_running--;
                lanes--;
            }
        const tandem_job *j = queue_next(&r->q, SETTING_UNLIMITED);
        account          *x = j->account;
        take(r, j);
        queue_note_admission(&r->q, x);
        x->n_running++;
        lanes++;
        if (x == &r->of[key]) return n;
    }
}

TEST(queue_new_account_waits_for_one_admission)
{
    static rig r;
    for (int lanes = 1; lanes <= 8; lanes++) {
        r = (rig){0};
        for (int i = 0; i < 100; i++) put(&r, i, 0, 0);
        for (int i = 0; i < lanes; i++) admit_next(t, &r);
        for (int i = 0; i < 3; i++) {
            int n = admissions_before(&r, 1, 100 + i, lanes);
            CHECK_MSG(n <= 1, "%d lanes: %d others were admitted before it", lanes, n);
            r.of[1].n_running = 0; /* it is answered before the next one arrives */
        }
    }
}

/* Accounts that come and go for single requests do not starve one that waits: with one lane, two of them and a batch. */
TEST(queue_short_accounts_do_not_starve_a_long_one)
{
    static rig r;
    int        served = 0;
    r                 = (rig){0};
    for (int i = 0; i < 100; i++) put(&r, i, 0, 0);
    admit_next(t, &r);
    for (int round = 0; round < 60; round++) {
        for (int k = 1; k <= 2; k++)
            if (!r.of[k].n_waiting && !r.of[k].n_running) {
                r.of[k] = (account){0}; /* it was forgotten in between */
                put(&r, 100 + k, k, 0);
            }
        for (int k = 0; k < KEYS; k++) r.of[k].n_running = 0;
        const tandem_job *j = queue_next(&r.q, SETTING_UNLIMITED);
        served += j->account == &r.of[0];
        admit_next(t, &r);
    }
    CHECK_MSG(served >= 18 && served <= 30, "the batch was served %d of 60 times", served);
}
