/* Promise 6: what is delivered, what usage says and what the engine counts are the same, however an answer ends. */
#include "engine_rig.h"

#include <pthread.h>
#include <string.h>

enum { LONGEST = NANO_SLOWEST ? 9 : NANO_SLOW ? 12 : 28 };
enum { BLOCK = 5 }; /* tokens that one round decides at most: draft_max is one less */

typedef struct {
    test_case   *t;
    tandem      *e;
    nano_answer  plain; /* LONGEST tokens of it */
    tandem_stats before;
    int64_t      cut, accepted; /* rounds cut short can be seen only from many answers */
} ledger;

static bool open_ledger(test_case *t, ledger *l)
{
    tandem_options o;
    tandem_request r;
    *l = (ledger){.t = t};
    nano_options(&o);
    if (!nano_open(t, &l->e, &o)) return false;
    nano_request(l->e, &r, LONGEST);
    r.spec.method = TANDEM_SPEC_OFF;
    nano_ask(t, l->e, &r, &l->plain);
    return CHECK(l->plain.n == LONGEST);
}

static void ask_for(const ledger *l, tandem_request *r, tandem_method m)
{
    nano_request(l->e, r, LONGEST);
    r->spec.method      = m;
    r->spec.draft_max   = BLOCK - 1;
    r->spec.tree_budget = BLOCK - 1;
}

/* The sums of all that was counted since the last call are those of one answer with n tokens. */
static void check_counts(ledger *l, const tandem_usage *u, int n)
{
    test_case   *t = l->t;
    tandem_stats s;
    tandem_get_stats(l->e, &s);
    CHECK_INT(u->completion_tokens, n);
    CHECK_INT(s.completion_tokens - l->before.completion_tokens, n);
    CHECK_INT(s.spec.rounds - l->before.spec.rounds, u->spec.rounds);
    CHECK_INT(s.spec.plain_rounds - l->before.spec.plain_rounds, u->spec.plain_rounds);
    CHECK_INT(s.spec.drafted - l->before.spec.drafted, u->spec.drafted);
    CHECK_INT(s.spec.accepted - l->before.spec.accepted, u->spec.accepted);
    CHECK_INT(s.running + s.queued, 0);
    CHECK(u->spec.accepted <= u->spec.drafted && u->spec.accepted <= (n ? n - 1 : 0));
    l->before = s;
    l->accepted += u->spec.accepted;
}

static void check_ended(ledger *l, const nano_answer *a, tandem_finish finish, int n)
{
    test_case *t = l->t;
    CHECK_INT(a->result.finish, finish);
    CHECK_INT(a->n, n);
    CHECK(memcmp(a->token, l->plain.token, (size_t)a->n * sizeof *a->token) == 0);
    check_counts(l, &a->result.usage, a->n);
}

static const tandem_method methods[] = {TANDEM_SPEC_OFF, TANDEM_SPEC_DFLASH, TANDEM_SPEC_TREE,
                                        TANDEM_SPEC_MTP, TANDEM_SPEC_NGRAM,  TANDEM_SPEC_AUTO};

/* --- cancelled ------------------------------------------------------------------------------------*/
/* The engine stands still at every delivery until the reader has looked. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t  moved;
    long            came, looked_at;
    bool            open;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

static void hold(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&gate.lock);
    long mine = ++gate.came;
    pthread_cond_broadcast(&gate.moved);
    while (!gate.open && gate.looked_at < mine) pthread_cond_wait(&gate.moved, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static void gate_set(bool open)
{
    pthread_mutex_lock(&gate.lock);
    gate.open      = open;
    gate.looked_at = gate.came;
    pthread_cond_broadcast(&gate.moved);
    pthread_mutex_unlock(&gate.lock);
}

static void gate_wait(void)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.came == gate.looked_at) pthread_cond_wait(&gate.moved, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static int take_tokens(tandem_job *j, nano_answer *a)
{
    tandem_token x;
    while (tandem_poll(j, &x, 1)) a->token[a->n++] = x.id;
    return a->n;
}

/* Cancels once k tokens were delivered. Returns how many were at that time. */
static int cancel_at(ledger *l, tandem_method m, int k, nano_answer *a)
{
    tandem_request r;
    int            there = -1;
    bool           over  = false;
    ask_for(l, &r, m);
    r.wake = hold;
    *a     = (nano_answer){0};
    gate_set(false);
    tandem_job *j = nano_submit(l->t, l->e, &r);
    if (!j) return 0;
    if (k == 0) tandem_cancel(j);
    while (!over) {
        gate_wait();
        over = tandem_job_result(j) != NULL;
        if (take_tokens(j, a) >= k && there < 0) {
            there = a->n;
            tandem_cancel(j);
        }
        gate_set(over);
    }
    a->result = *tandem_job_result(j);
    tandem_release(j);
    return there;
}

TEST(sched_usage_when_cancelled_after_every_token)
{
    ledger      l;
    nano_answer a;
    if (open_ledger(t, &l)) {
        tandem_get_stats(l.e, &l.before);
        for (size_t m = 0; m < COUNT(methods); m++)
            for (int k = 0; k <= LONGEST; k++) {
                int there = cancel_at(&l, methods[m], k, &a);
                if (a.n == LONGEST) {
                    check_ended(&l, &a, TANDEM_FINISH_LENGTH, LONGEST);
                    CHECK(k + BLOCK > LONGEST);
                } else {
                    check_ended(&l, &a, TANDEM_FINISH_CANCELLED, a.n);
                    CHECK_INT(a.n, there); /* no step was begun behind it */
                }
            }
        CHECK(l.accepted > 0);
        nano_check_idle(t, l.e);
    }
    tandem_close(l.e);
}

/* --- ended inside a block -------------------------------------------------------------------------*/
static int first_of(const nano_answer *a, int32_t id)
{
    int i = 0;
    while (a->token[i] != id) i++;
    return i;
}

TEST_LONG(sched_usage_when_a_block_is_cut)
{
    ledger         l;
    nano_answer    a;
    tandem_request r;
    if (open_ledger(t, &l)) {
        tandem_get_stats(l.e, &l.before);
        for (size_t m = 0; m < COUNT(methods); m++)
            for (int k = 1; k <= LONGEST; k++) {
                int32_t id = l.plain.token[k - 1];
                ask_for(&l, &r, methods[m]);
                r.max_tokens = k;
                nano_ask(t, l.e, &r, &a);
                check_ended(&l, &a, TANDEM_FINISH_LENGTH, k);
                ask_for(&l, &r, methods[m]);
                r.stop_ids   = &id;
                r.n_stop_ids = 1;
                nano_ask(t, l.e, &r, &a);
                check_ended(&l, &a, TANDEM_FINISH_STOP, first_of(&l.plain, id) + 1);
            }
        CHECK(l.accepted > 0);
        nano_check_idle(t, l.e);
    }
    tandem_close(l.e);
}

/* --- stop strings ---------------------------------------------------------------------------------*/
/* Tokens until their text holds `stop`, and where in the text it is; by hand. */
static int tokens_until(const ledger *l, const char *stop, size_t *where)
{
    char text[1024];
    for (int n = 1; n <= LONGEST; n++) {
        tandem_detokenize(l->e, l->plain.token, (size_t)n, false, text, sizeof text);
        char *at = strstr(text, stop);
        if (at) return *where = (size_t)(at - text), n;
    }
    return LONGEST + 1;
}

static void try_stop(ledger *l, tandem_method m, const char *all, size_t from, size_t n_bytes)
{
    test_case     *t        = l->t;
    char           stop[64] = {0}, text[1024];
    const char    *stops[]  = {"\x01never", stop};
    size_t         where = 0, n_text = 0, got;
    nano_answer    a = {0};
    tandem_request r;
    memcpy(stop, all + from, n_bytes);
    int want = tokens_until(l, stop, &where);
    if (!CHECK(want <= LONGEST)) return;
    ask_for(l, &r, m);
    r.stop   = stops;
    r.n_stop = COUNT(stops);
    nano_ask(t, l->e, &r, &a);
    check_ended(l, &a, TANDEM_FINISH_STOP_STRING, want);
    tandem_job *j = nano_submit(t, l->e, &r);
    while (tandem_wait(j, -1), (got = tandem_read(j, text + n_text, sizeof text - n_text))) n_text += got;
    if (CHECK(tandem_job_result(j))) check_counts(l, &tandem_job_result(j)->usage, want);
    tandem_release(j);
    CHECK_INT(n_text, where);
    CHECK(memcmp(text, all, where) == 0);
}

TEST(sched_usage_when_a_stop_string_spans_a_block)
{
    ledger l;
    char   all[1024];
    if (open_ledger(t, &l)) {
        tandem_get_stats(l.e, &l.before);
        size_t n = tandem_detokenize(l.e, l.plain.token, LONGEST, false, all, sizeof all);
        CHECK(n > 8 && n < sizeof all);
        for (size_t m = 0; m < COUNT(methods); m++)
            for (size_t from = m % 3; from + 9 <= n; from += 7) try_stop(&l, methods[m], all, from, 3 + from % 7);
        CHECK(l.accepted > 0);
        nano_check_idle(t, l.e);
    }
    tandem_close(l.e);
}

/* --- the caller says so, the context is full, time is over ------------------------------------------*/
static bool keep_some(void *ctx, int32_t token)
{
    (void)token;
    return --*(int *)ctx > 0;
}

TEST(sched_usage_when_the_caller_has_enough)
{
    ledger         l;
    nano_answer    a;
    tandem_request r;
    if (open_ledger(t, &l)) {
        tandem_get_stats(l.e, &l.before);
        for (size_t m = 0; m < COUNT(methods); m++)
            for (int k = 1; k < LONGEST; k += 3) {
                int left = k;
                ask_for(&l, &r, methods[m]);
                r.on_token     = keep_some;
                r.on_token_ctx = &left;
                nano_ask(t, l.e, &r, &a);
                check_ended(&l, &a, TANDEM_FINISH_STOP_STRING, k);
                CHECK_INT(left, 0); /* nothing was shown behind it */
            }
    }
    tandem_close(l.e);
}

TEST(sched_usage_when_the_context_is_full)
{
    ledger         l = {.t = t};
    nano_answer    a;
    tandem_options o;
    tandem_request r;
    nano_options(&o);
    o.n_ctx = NANO_PROMPT + LONGEST / 2;
    if (nano_open(t, &l.e, &o)) {
        nano_request(l.e, &r, LONGEST);
        r.spec.method = TANDEM_SPEC_OFF;
        nano_ask(t, l.e, &r, &l.plain);
        tandem_get_stats(l.e, &l.before);
        for (size_t m = 0; m < COUNT(methods); m++) {
            ask_for(&l, &r, methods[m]);
            nano_ask(t, l.e, &r, &a);
            check_ended(&l, &a, TANDEM_FINISH_LENGTH, l.plain.n);
            CHECK(a.result.context_full);
        }
        CHECK(l.plain.n >= LONGEST / 2 && l.plain.n <= LONGEST / 2 + 1);
    }
    tandem_close(l.e);
}

TEST(sched_usage_when_time_is_over)
{
    ledger         l = {.t = t};
    nano_answer    a;
    tandem_options o;
    tandem_request r;
    nano_options(&o);
    o.n_ctx = 2048;
    if (nano_open(t, &l.e, &o)) {
        tandem_get_stats(l.e, &l.before);
        for (int i = 0; i < 3; i++) {
            ask_for(&l, &r, methods[i]);
            r.max_tokens   = NANO_MAX_OUT;
            r.time_limit_s = 0.02;
            nano_ask(t, l.e, &r, &a);
            CHECK_INT(a.result.finish, TANDEM_FINISH_TIMEOUT);
            check_counts(&l, &a.result.usage, a.n);
            CHECK(a.result.usage.decode_s < 1);
        }
    }
    tandem_close(l.e);
}
