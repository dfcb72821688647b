/* Costly grammars take their time from themselves, and from nobody else. */
#include "sched/masks.h"

#include "base/clock.h"
#include "engine_rig.h"

#include <time.h>

static const char *const costly[] = {
    "root ::= ((a{1,90} b{1,90}){1,90})+\na ::= [a-m ]+\nb ::= [h-z ]+",
    "root ::= w{1,1000000}\nw ::= \"a\" | \"b\" | [c-z ]+",
    "root ::= w{1,1000000}\nw ::= [a-z]+ \" \"?",
    "root ::= (a b?){1,100000}\na ::= [a-z]{1,40}\nb ::= \" \" [a-z]{2,30}",
    "root ::= (w{1,1000} \" \"?){1,1000}\nw ::= [a-z ]+",
    "root ::= (([a-z ]{1,9}){1,9}){1,99}",
    "root ::= x\nx ::= [a-z ] x [a-z ] | [a-z ] x? | [a-z ]{2,9}",
    "root ::= x\nx ::= [a-z ] x? [a-z .]? | [a-m] x",
    "root ::= (a | b | c){2,100000}\na ::= [a-z]{1,100} [ .]\nb ::= [a-z "
    "]{1,200} [a-z]\nc ::= [^z]{1,300} \" \"?",
    "root ::= (l \" \"?){3,500000}\nl ::= [a-z] | [a-z] [a-z] | [a-z] [a-z] "
    "[a-z] | [a-z]+",
};
static const char cheap[] = "root ::= [a-zA-Z0-9 .,]{150,}";

typedef struct {
    int    n;
    double first, last; /* CPU time of the engine's thread */
} pace;
enum { FROM = 8, TO = 48 };

static bool note_pace(void *ctx, int32_t token)
{
    pace *p = ctx;
    (void)token;
    if (++p->n == FROM) p->first = clock_thread_s();
    if (p->n == TO) p->last = clock_thread_s();
    return true;
}

/* CPU time of a plain answer's tokens beside n answers that are held to a
 * grammar. */
static double measure(test_case *t, tandem *e, const char *text, int n)
{
    tandem_request r;
    tandem_job    *beside[64], *j;
    nano_answer    a;
    pace           p = {0};
    for (int i = 0; i < n; i++) {
        nano_request(e, &r, 200);
        r.grammar     = (tandem_grammar){.kind = TANDEM_GRAMMAR_GBNF, .text = text};
        r.temp        = 1;
        r.spec.method = TANDEM_SPEC_OFF; /* guesses would make the rows of a step differ */
        r.has_seed    = true;
        r.seed        = (uint64_t)i;
        beside[i]     = nano_submit(t, e, &r);
    }
    nano_request(e, &r, TO);
    r.spec.method  = TANDEM_SPEC_OFF;
    r.on_token     = note_pace;
    r.on_token_ctx = &p;
    j              = nano_submit(t, e, &r);
    nano_collect(j, &a);
    CHECK_INT(a.n, TO);
    for (int i = 0; i < n; i++) {
        tandem_cancel(beside[i]);
        nano_collect(beside[i], &a);
    }
    nano_check_idle(t, e);
    return p.last - p.first;
}

/* In turns, so that a change of the machine's pace hits both; the best of each.
 */
TEST(masks_leave_plain_answers_their_rate)
{
    bool           full  = test_full() && !NANO_SLOW;
    int            n     = full ? 31 : 7;
    size_t         kinds = full ? COUNT(costly) : 2;
    tandem_options o;
    tandem        *e;
    nano_options(&o);
    o.max_lanes = n + 1;
    if (!nano_open(t, &e, &o)) return;
    for (size_t i = 0; i < kinds; i++) {
        double with = 1e9, without = 1e9;
        for (int first_lane = 0; first_lane < 8 && (first_lane < 1 || without < 0.8 * with); first_lane++) {
            double a = measure(t, e, cheap, n), b = measure(t, e, costly[i], n);
            without = a < without ? a : without;
            with    = b < with ? b : with;
        }
        CHECK_MSG(without >= 0.8 * with, "beside grammar %zu a plain answer has %.0f %% of its rate", i,
                  100 * without / with);
    }
    tandem_close(e);
}

static void ask_costly(const tandem *e, tandem_request *r, int i)
{
    nano_request(e, r, 6 + i);
    r->grammar     = (tandem_grammar){.kind = TANDEM_GRAMMAR_GBNF, .text = costly[i % (int)COUNT(costly)]};
    r->temp        = i % 2 ? 1 : 0;
    r->has_seed    = true;
    r->seed        = (uint64_t)i;
    r->spec.method = i % 3 ? TANDEM_SPEC_AUTO : TANDEM_SPEC_OFF;
}

/* Lanes that sit out steps, and guesses that leave the tree for their masks, change when a token comes, not which. */
TEST(masks_that_wait_do_not_change_the_text)
{
    enum { N = 6 };
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_job    *j[N], *plain;
    nano_answer    alone[N], free_alone, a;
    nano_options(&o);
    o.max_lanes = N + 1;
    if (!nano_open(t, &e, &o)) return;
    for (int i = 0; i < N; i++) {
        ask_costly(e, &r, i);
        nano_ask(t, e, &r, &alone[i]);
        CHECK(alone[i].n > 0 && alone[i].result.finish != TANDEM_FINISH_ERROR);
    }
    nano_request(e, &r, 100);
    nano_ask(t, e, &r, &free_alone);
    plain = nano_submit(t, e, &r);
    for (int i = 0; i < N; i++) {
        ask_costly(e, &r, i);
        j[i] = nano_submit(t, e, &r);
    }
    for (int i = 0; i < N; i++) {
        nano_collect(j[i], &a);
        nano_same(t, &a, &alone[i]);
    }
    nano_collect(plain, &a);
    nano_same(t, &a, &free_alone);
    nano_check_idle(t, e);
    tandem_close(e);
}

TEST(masks_that_take_too_long_end_their_request)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_job    *j, *plain;
    tandem_stats   st;
    nano_answer    a, alone;
    nano_options(&o);
    nano_setting(&o, "max_mask_ms", "1");
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 60);
    nano_ask(t, e, &r, &alone);
    plain = nano_submit(t, e, &r);
    ask_costly(e, &r, 0);
    r.max_tokens = 200;
    j            = nano_submit(t, e, &r);
    nano_collect(j, &a);
    CHECK_INT(a.result.finish, TANDEM_FINISH_ERROR);
    CHECK_MSG(strstr(a.result.error.text, "max_mask_ms"), "%s", a.result.error.text);
    nano_collect(plain, &a);
    nano_same(t, &a, &alone);
    tandem_get_stats(e, &st);
    int64_t n = 0;
    for (int i = 0; i < TANDEM_STEP_BUCKETS; i++) n += st.mask_bucket[i];
    CHECK(n > 0 && st.mask_s > 1e-4);
    nano_check_idle(t, e);
    tandem_close(e);
}

/* Masks are counted once: all of them together take no more than the process has used. */
TEST(masks_take_what_they_are_said_to_take)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_stats   st;
    nano_answer    a;
    nano_options(&o);
    o.n_drafters = 0;
    if (!nano_open(t, &e, &o)) return;
    double from = test_cpu_s();
    for (int i = 0; i < (int)COUNT(costly); i++) {
        ask_costly(e, &r, i);
        r.max_tokens = 30;
        nano_ask(t, e, &r, &a);
    }
    double used = test_cpu_s() - from;
    tandem_get_stats(e, &st);
    CHECK_MSG(st.mask_s > 0.3 * used && st.mask_s < 1.15 * used, "masks took %.4f s of %.4f s", st.mask_s, used);
    tandem_close(e);
}

/* What a step's masks took beyond their share is a debt; what they left of it pays debts back, and saves nothing. */
TEST(masks_debts)
{
    mask_budget b;
    masks_init(&b);
    CHECK(b.step_s == 1e-3 && b.unit_s > 0 && !b.debt_s && !b.spent_s && !b.crowded);
    b.unit_s = 1e-6;
    b.step_s = 8e-3;
    masks_note_step(&b, 8e-3, 0); /* a step as usual, without masks */
    CHECK_NEAR(b.step_s, 8e-3, 1e-12);
    CHECK_NEAR(b.debt_s, 0, 0);
    masks_note_step(&b, 8e-3 + 5e-3, 5000); /* masks in the step are not the model's part */
    CHECK_NEAR(b.step_s, 8e-3, 1e-12);
    CHECK_NEAR(b.spent_s, 5e-3, 1e-12);
    CHECK_NEAR(b.debt_s, 4e-3, 1e-12); /* an eighth of a step was theirs */
    b.spent_s = 0;
    masks_note_step(&b, 8e-3, 0);
    CHECK_NEAR(b.debt_s, 3e-3, 1e-12);
    for (int i = 0; i < 5; i++) masks_note_step(&b, 8e-3, 0);
    CHECK_NEAR(b.debt_s, 0, 0);
    b.spent_s = 2e-3; /* before the step */
    masks_note_step(&b, 8e-3, 0);
    CHECK_NEAR(b.debt_s, 1e-3, 1e-12);
    masks_note_step(&b, 18e-3, 0);
    CHECK_NEAR(b.step_s, 9e-3, 1e-12); /* a tenth of the way to the new time */
    b.step_s = 1e-3;
    masks_note_step(&b, 1e-3, 100000); /* measured badly: never below nothing */
    CHECK_NEAR(b.step_s, 0.9e-3, 1e-12);
}
