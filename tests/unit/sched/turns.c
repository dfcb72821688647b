/* A conversation: each turn runs only what its prompt has changed, and at most one page besides. */
#include "engine_rig.h"

#include <string.h>

enum { TURNS = NANO_SLOWEST ? 4 : NANO_SLOW ? 5 : 7, METHOD_STEP = NANO_SLOWEST ? 5 : NANO_SLOW ? 4 : 1 };
enum { MAX_ANSWER = 40, PAGE = 16 };

typedef struct {
    tandem_message message[2 * TURNS];
    size_t         n;
    char           text[2 * TURNS][1024];
    int32_t        run[4096]; /* tokens whose K/V the engine has made: the last prompt and answer, but for its last */
    size_t         n_run;
} talk;

static void say(talk *k, const char *role, const char *text)
{
    snprintf(k->text[k->n], sizeof k->text[k->n], "%s", text);
    k->message[k->n] = (tandem_message){.role = role, .content = k->text[k->n]};
    k->n++;
}

static size_t common(const talk *k, const tandem_ids *prompt)
{
    size_t n = 0;
    while (n < k->n_run && n < prompt->n && k->run[n] == prompt->p[n]) n++;
    return n < prompt->n - 1 ? n : prompt->n - 1; /* the last one is always run */
}

static void remember(talk *k, const tandem_ids *prompt, const nano_answer *a)
{
    memcpy(k->run, prompt->p, prompt->n * sizeof *k->run);
    memcpy(k->run + prompt->n, a->token, (size_t)a->n * sizeof *k->run);
    k->n_run = prompt->n + (size_t)a->n - 1;
}

static void hear(talk *k, const tandem *e, const nano_answer *a)
{
    char text[1024];
    tandem_detokenize(e, a->token, (size_t)a->n, false, text, sizeof text);
    say(k, "assistant", text);
}

/* Other people's requests between the turns. */
static void strangers(test_case *t, tandem *e, int turn)
{
    tandem_request r;
    nano_answer    a;
    int32_t        ids[NANO_PROMPT];
    nano_request(e, &r, 20);
    memcpy(ids, nano_prompt, sizeof ids);
    ids[1 + turn] += 7;
    r.ids = ids;
    nano_ask(t, e, &r, &a);
}

static const char *const questions[] = {
    "What is 27 plus 58?",
    "Sort these numbers: 9 2 7 4 15 3 22 8 1 12 6 31",
    "Tell me a short story about a cat who lives near the sea and wants to learn how to swim with the ducks.",
    "What is 318 plus 276? Show every step of the sum, please.",
    "Write a function that adds two numbers.",
    "Sort these numbers: 44 12 9 3 78 51 20 6 33 17 2 90",
    "Tell me a story about a dog.",
};

static void converse(test_case *t, tandem *e, tandem *alone, tandem_method m, bool think, bool thought_goes)
{
    static talk    k;
    tandem_error   why = {0};
    tandem_request r;
    nano_answer    a, want;
    int64_t        cached = 0;
    k                     = (talk){0};
    say(&k, "system", "You are a helpful assistant. Answer in one sentence, and never use more words than are needed.");
    for (size_t i = 0; i < TURNS - 1; i++) {
        tandem_ids prompt;
        say(&k, "user", questions[i]);
        if (!CHECK_OK(tandem_chat_prompt(e, k.message, k.n, think, &prompt, NULL, &why), why)) return;
        nano_request(e, &r, MAX_ANSWER);
        r.ids             = prompt.p;
        r.n_ids           = prompt.n;
        r.ignore_stop_ids = false;
        r.spec.method     = m;
        r.tenant          = tandem_method_name((int)m);
        nano_ask(t, e, &r, &a);
        nano_ask(t, alone, &r, &want);
        nano_same(t, &a, &want);
        size_t shared = common(&k, &prompt);
        CHECK_MSG(a.result.usage.cached_tokens >= (int32_t)(shared / PAGE * PAGE) &&
                      a.result.usage.cached_tokens < (int32_t)prompt.n,
                  "%s, turn %zu: %d of %zu tokens are from the cache, %zu are as before", r.tenant, i,
                  a.result.usage.cached_tokens, prompt.n, shared);
        CHECK_INT(want.result.usage.cached_tokens, 0);
        cached += a.result.usage.cached_tokens;
        if (i > 0 && (m == TANDEM_SPEC_DFLASH || m == TANDEM_SPEC_MTP))
            CHECK_INT(a.result.usage.spec.drafted,
                      want.result.usage.spec.drafted); /* the drafter has its context again, too */
        remember(&k, &prompt, &a);
        hear(&k, e, &a);
        strangers(t, e, (int)i);
        tandem_ids_free(&prompt);
    }
    CHECK(cached > 100 || thought_goes);
}

TEST_LONG(sched_a_turn_runs_what_has_changed)
{
    tandem_options o;
    tandem        *e, *alone;
    nano_options(&o);
    o.n_ctx = 1024;
    if (!nano_open(t, &e, &o)) return;
    o.no_prefix = true;
    o.max_lanes = 1;
    if (nano_open(t, &alone, &o)) {
        for (int m = NANO_SLOW ? TANDEM_SPEC_DFLASH : TANDEM_SPEC_OFF; m <= TANDEM_SPEC_AUTO;
             m += test_full() ? METHOD_STEP : METHOD_STEP + 2)
            converse(t, e, alone, (tandem_method)m, false, false);
        if (!NANO_SLOW) converse(t, e, alone, TANDEM_SPEC_AUTO, true, true);
        nano_check_idle(t, e);
        tandem_close(alone);
    }
    tandem_close(e);
}

TEST(sched_tenants_do_not_share_prefixes)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    a;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 16);
    static const struct {
        const char *tenant;
        int         cached;
    } step[] = {{NULL, 0}, {NULL, PAGE}, {"one", 0}, {"two", 0}, {"one", PAGE}, {NULL, PAGE}};
    for (size_t i = 0; i < COUNT(step); i++) {
        r.tenant = step[i].tenant;
        nano_ask(t, e, &r, &a);
        CHECK_INT(a.result.usage.cached_tokens, step[i].cached);
    }
    tandem_close(e);
}

/* A request that did not draft leaves no K/V of the drafter's. One that drafts finds the target's all the same: it runs the
 * first page, which the drafter keeps as a sink, and the drafter's window again. */
TEST_LONG(sched_prefix_after_a_request_that_did_not_draft)
{
    enum { N = 1210, WINDOW = 512 }; /* WINDOW: the context that nano's DFlash drafter was trained on */
    static const struct {
        tandem_method method;
        int           cached, cached_at_most; /* the whole pages before the last token; or all but the window */
    } step[] = {{TANDEM_SPEC_OFF, 0, 0},
                {TANDEM_SPEC_OFF, (N - 1) / PAGE * PAGE, N},
                {TANDEM_SPEC_DFLASH, N - WINDOW - 2 * PAGE, N - WINDOW / 2},
                {TANDEM_SPEC_DFLASH, (N - 1) / PAGE * PAGE, N},
                {TANDEM_SPEC_TREE, (N - 1) / PAGE * PAGE, N},
                {TANDEM_SPEC_OFF, (N - 1) / PAGE * PAGE, N}};
    static int32_t     ids[N];
    static nano_answer a, want;
    tandem_options     o;
    tandem            *e, *alone;
    tandem_request     r;
    for (int i = 0; i < N; i++) ids[i] = i ? nano_prompt[1 + i % (NANO_PROMPT - 1)] : nano_prompt[0];
    nano_options(&o);
    o.n_ctx = 2048;
    if (!nano_open(t, &e, &o)) return;
    o.no_prefix = true;
    o.max_lanes = 1;
    if (nano_open(t, &alone, &o)) {
        nano_request(e, &r, 48);
        r.ids   = ids;
        r.n_ids = N;
        for (size_t i = 0; i < COUNT(step); i++) {
            const tandem_usage *u = &a.result.usage;
            r.spec.method         = step[i].method;
            nano_ask(t, e, &r, &a);
            CHECK_MSG(u->cached_tokens >= step[i].cached && u->cached_tokens <= step[i].cached_at_most,
                      "request %zu: %d of %d tokens are from the cache", i, u->cached_tokens, N);
            CHECK_INT(u->prompt_tokens, N);
            if (i > 0 && step[i].method == step[i - 1].method) continue; /* the same as the one before */
            nano_ask(t, alone, &r, &want);
            nano_same(t, &a, &want);
            CHECK_INT(u->spec.drafted, want.result.usage.spec.drafted);
            CHECK_INT(u->spec.accepted, want.result.usage.spec.accepted);
            CHECK(step[i].method == TANDEM_SPEC_OFF || u->spec.accepted > 0);
        }
        nano_check_idle(t, e);
        tandem_close(alone);
    }
    tandem_close(e);
}
