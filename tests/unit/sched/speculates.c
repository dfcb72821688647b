/* One request does not decide how the next is speculated: after a long one, after a crowd, after settings. */
#include "engine_rig.h"
#include "sched/job.h"
#include "spec/inside.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { N = NANO_SLOWEST ? 12 : NANO_SLOW ? 24 : 48, CROWD = 16 };

static void set(test_case *t, tandem *e, const char *name, const char *value)
{
    tandem_error why = {0};
    CHECK_OK(tandem_set(e, name, value, &why), why);
}

static int64_t heavy_rounds(const tandem_usage *u) /* with a drafter's weights */
{
    return u->spec.rounds_by_method[TANDEM_SPEC_DFLASH] + u->spec.rounds_by_method[TANDEM_SPEC_TREE] +
           u->spec.rounds_by_method[TANDEM_SPEC_MTP];
}

static void long_prompt(tandem_request *r, int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) ids[i] = nano_prompt[i % NANO_PROMPT];
    r->ids   = ids;
    r->n_ids = (size_t)n;
}

static const tandem_method drafting[] = {TANDEM_SPEC_DFLASH, TANDEM_SPEC_TREE, TANDEM_SPEC_MTP, TANDEM_SPEC_AUTO};

/* A threshold of 0 is passed by the request's own pages. */
TEST(sched_a_full_cache_ends_drafts)
{
    static const char *const threshold[] = {"0", "1"};
    tandem_options           o;
    tandem                  *e;
    tandem_request           r;
    nano_answer              a[COUNT(threshold)];
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    for (size_t i = 0; i < COUNT(threshold); i++) {
        set(t, e, "dflash_kv_pressure_threshold", threshold[i]);
        nano_request(e, &r, N);
        r.spec.method = TANDEM_SPEC_DFLASH;
        nano_ask(t, e, &r, &a[i]);
        CHECK_INT(heavy_rounds(&a[i].result.usage) > 0, i);
        CHECK_INT(!strcmp(a[i].result.usage.route_reason, "kv_pressure"), !i);
    }
    nano_same(t, &a[0], &a[1]);
    tandem_close(e);
}

TEST(sched_a_short_prompt_speculates_after_a_long_one)
{
    int32_t        ids[400];
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    before, after, a;
    nano_options(&o);
    o.n_ctx = 512;
    if (!nano_open(t, &e, &o)) return;
    set(t, e, "dflash_max_ctx", "300");
    for (size_t m = 0; m < COUNT(drafting); m += NANO_SLOW ? 3 : 1) {
        nano_request(e, &r, N);
        r.spec.method = drafting[m];
        nano_ask(t, e, &r, &before);
        bool chooses = drafting[m] == TANDEM_SPEC_AUTO; /* by costs that a busy machine changes */
        CHECK(chooses || heavy_rounds(&before.result.usage) > 0);
        long_prompt(&r, ids, COUNT(ids));
        nano_ask(t, e, &r, &a);
        CHECK_INT(heavy_rounds(&a.result.usage), 0);
        CHECK_MSG(strstr(a.result.usage.route_reason, "ctx"), "the reason is %s", a.result.usage.route_reason);
        nano_request(e, &r, N);
        r.spec.method = drafting[m];
        nano_ask(t, e, &r, &after);
        nano_same(t, &after, &before);
        CHECK(chooses || heavy_rounds(&after.result.usage) > 0);
        if (!chooses) CHECK_INT(after.result.usage.spec.rounds, before.result.usage.spec.rounds);
    }
    tandem_close(e);
}

/* All of a crowd run plainly where none may draft. The next one drafts as before and takes about as much processor time. */
static void crowd(test_case *t, tandem *e, tandem_method m, int64_t *heavy)
{
    tandem_job    *j[CROWD];
    tandem_request r;
    nano_answer    a;
    nano_request(e, &r, N);
    r.spec.method = m;
    *heavy        = 0;
    for (int i = 0; i < CROWD; i++) j[i] = nano_submit(t, e, &r);
    for (int i = 0; i < CROWD && j[i]; i++) {
        nano_collect(j[i], &a);
        CHECK_INT(a.n, N);
        *heavy += heavy_rounds(&a.result.usage);
    }
}

static double cpu_seconds_alone(test_case *t, tandem *e, tandem_method m, tandem_usage *u)
{
    double         best = 1e9;
    tandem_request r;
    nano_answer    a;
    nano_request(e, &r, N);
    r.spec.method = m;
    *u            = (tandem_usage){0};
    for (int i = 0; i < 3; i++) {
        double start = test_cpu_s();
        nano_ask(t, e, &r, &a);
        best = fmin(best, test_cpu_s() - start);
        u->spec.rounds += a.result.usage.spec.rounds;
        for (int k = 0; k < TANDEM_SPEC_METHODS; k++)
            u->spec.rounds_by_method[k] += a.result.usage.spec.rounds_by_method[k];
    }
    return best;
}

TEST_LONG(sched_a_single_request_speculates_after_a_crowd)
{
    tandem_options o;
    tandem        *e;
    tandem_usage   before, after;
    int64_t        heavy;
    nano_options(&o);
    o.max_lanes = CROWD;
    if (!nano_open(t, &e, &o)) return;
    for (size_t m = 0; m < COUNT(drafting); m += NANO_SLOW ? 3 : 1) {
        double fast = cpu_seconds_alone(t, e, drafting[m], &before);
        crowd(t, e, drafting[m], &heavy);
        double again   = cpu_seconds_alone(t, e, drafting[m], &after);
        bool   chooses = drafting[m] == TANDEM_SPEC_AUTO;
        CHECK(heavy_rounds(&after) > 0 || (chooses && heavy_rounds(&before) == 0));
        CHECK_MSG(again < 3 * fast, "%s: %.4f s of CPU before the crowd, %.4f s after",
                  tandem_method_name((int)drafting[m]), fast, again);
        if (!chooses) CHECK_INT(after.spec.rounds, before.spec.rounds);
    }
    set(t, e, "dflash_max_concurrent", "0");
    crowd(t, e, TANDEM_SPEC_DFLASH, &heavy);
    CHECK_INT(heavy, 0);
    set(t, e, "dflash_max_concurrent", "4");
    crowd(t, e, TANDEM_SPEC_DFLASH, &heavy);
    CHECK(heavy > 0);
    set(t, e, "dflash_enabled", "false");
    crowd(t, e, TANDEM_SPEC_AUTO, &heavy);
    CHECK_INT(heavy, 0);
    set(t, e, "dflash_enabled", "true");
    cpu_seconds_alone(t, e, TANDEM_SPEC_DFLASH, &after);
    CHECK(heavy_rounds(&after) > 0);
    tandem_close(e);
}

/* --- what was learnt about guesses ----------------------------------------------------------------*/
typedef struct {
    tandem_job *job;
    atomic_bool go; /* the job is known */
    spec_lane  *lane;
    policy      known; /* when its first token came, before any guess */
} beginning;

static bool note_beginning(void *ctx, int32_t token)
{
    beginning *b = ctx;
    (void)token;
    while (!atomic_load(&b->go)) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    if (!b->lane) b->known = b->job->lane->policy;
    b->lane = b->job->lane;
    return true;
}

/* What a request of this kind begins with, and what its lane knows at its end. */
static void ask_of_kind(test_case *t, tandem *e, const char *kind, policy *known, policy *learnt)
{
    beginning      b = {0};
    tandem_request r;
    nano_answer    a;
    nano_request(e, &r, N);
    r.kind         = kind;
    r.on_token     = note_beginning;
    r.on_token_ctx = &b;
    b.job          = nano_submit(t, e, &r);
    atomic_store(&b.go, true);
    nano_collect(b.job, &a);
    *known  = b.known;
    *learnt = b.lane->policy;
}

static double guesses_seen(const policy *p)
{
    double n = 0;
    for (int m = 0; m < SPEC_METHODS; m++) n += p->record[m].tried[0];
    return n;
}

static bool same_records(const policy *a, const policy *b)
{
    bool same = true;
    for (int m = 0; m < SPEC_METHODS; m++) {
        const survival *x = &a->record[m], *y = &b->record[m];
        same &= !memcmp(x->right, y->right, sizeof x->right) && !memcmp(x->tried, y->tried, sizeof x->tried);
    }
    return same;
}

TEST(sched_kinds_hand_on_what_was_learnt)
{
    tandem_options o;
    tandem        *e;
    policy         known, first, other, unused;
    nano_options(&o);
    o.max_lanes = 1; /* nothing is handed on by the lane, either */
    if (!nano_open(t, &e, &o)) return;
    ask_of_kind(t, e, NULL, &known, &unused);
    ask_of_kind(t, e, "sums", &known, &first);
    CHECK_NEAR(guesses_seen(&known), 0, 0);
    CHECK(guesses_seen(&first) > 1);
    ask_of_kind(t, e, "letters", &known, &other);
    CHECK_NEAR(guesses_seen(&known), 0, 0);
    ask_of_kind(t, e, "sums", &known, &unused);
    policy_next_text(&first);
    CHECK(same_records(&known, &first));
    ask_of_kind(t, e, "letters", &known, &unused);
    policy_next_text(&other);
    CHECK(same_records(&known, &other));
    tandem_close(e);
}
