/* Answers that are held to a grammar: the same whatever guesses them, complete at any length, and nobody else's trouble. */
#include "../grammar/schemas.h"
#include "engine_rig.h"
#include "json/json.h"

#include <pthread.h>
#include <stdlib.h>

#define PERSON                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{\"type\":"          \
    "\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\","  \
    "\"blue\"]},\"maxItems\":3}},\"required\":[\"name\",\"age\",\"tags\"]}"
#define TOOLS                                                                                                          \
    "[{\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{"          \
    "\"type\":\"string\"},\"days\":{\"type\":\"integer\"}},\"required\":[\"city\"]}}},{\"function\":{\"name\":"        \
    "\"stop\"}}]"
#define STRICT_TOOLS                                                                                                   \
    "[{\"function\":{\"name\":\"get_weather\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{"    \
    "\"city\":{\"enum\":[\"Oslo\",\"Rome\"]}},\"required\":[\"city\"]}}}]"

static const tandem_grammar grammars[] = {
    {.kind = TANDEM_GRAMMAR_SCHEMA, .text = PERSON},
    {.kind = TANDEM_GRAMMAR_SCHEMA, .text = PERSON, .may_think = true},
    {.kind = TANDEM_GRAMMAR_SCHEMA, .text = PERSON, .in_thought = true, .may_call = true},
    {.kind = TANDEM_GRAMMAR_OBJECT, .may_call = true},
    {.kind = TANDEM_GRAMMAR_TOOL_CALLS, .text = TOOLS, .may_think = true},
    {.kind = TANDEM_GRAMMAR_TOOL_CALL, .text = TOOLS},
    {.kind = TANDEM_GRAMMAR_TOOLS, .text = "{\"tools\":" STRICT_TOOLS "}"},
    {.kind = TANDEM_GRAMMAR_TOOLS, .text = "{\"tools\":" STRICT_TOOLS ",\"answer\":" PERSON "}", .may_think = true},
    {.kind = TANDEM_GRAMMAR_GBNF, .text = "root ::= line+\nline ::= [a-z ]{3,20} \"\\n\""},
    {.kind = TANDEM_GRAMMAR_GBNF, .text = "root ::= \"always the same words, one after another\" root | \"!\""},
};

static void form_request(const tandem *e, tandem_request *r, const tandem_grammar *g, int n, float temp, uint64_t seed)
{
    nano_request(e, r, n);
    r->grammar         = *g;
    r->temp            = temp;
    r->top_k           = seed % 2 ? 40 : 0;
    r->has_seed        = true;
    r->seed            = seed;
    r->ignore_stop_ids = seed % 3 == 0;
    if (seed % 4 == 3) r->repeat_penalty = 1.2f;
}

static void same_answer(test_case *t, const nano_answer *a, const nano_answer *plain)
{
    nano_same(t, a, plain);
    CHECK_INT(a->result.finish, plain->result.finish);
}

/* All methods at once in one batch, against plain decoding alone. */
TEST_LONG(constrained_text_does_not_depend_on_guesses)
{
    enum { N = TANDEM_SPEC_AUTO };
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    plain, a;
    tandem_job    *j[N];
    int64_t        accepted = 0;
    nano_options(&o);
    o.max_lanes = N;
    if (!nano_open(t, &e, &o)) return;
    for (size_t i = 0; i < COUNT(grammars); i++)
        for (int seed = 0; seed < (test_full() && !NANO_SLOW ? 4 : 1); seed++)
            for (int temp = 0; temp < 2; temp++) {
                form_request(e, &r, &grammars[i], seed == 1 ? 30 : 90, (float)temp, (uint64_t)(seed + 10 * (int)i));
                r.spec.method = TANDEM_SPEC_OFF;
                nano_ask(t, e, &r, &plain);
                CHECK(plain.n > 0 && plain.result.finish != TANDEM_FINISH_ERROR);
                CHECK_INT(plain.result.usage.spec.drafted, 0);
                for (int m = 0; m < N; m++) {
                    r.spec.method = (tandem_method)(m + 1);
                    j[m]          = nano_submit(t, e, &r);
                }
                for (int m = 0; m < N; m++) {
                    nano_collect(j[m], &a);
                    same_answer(t, &a, &plain);
                    accepted += a.result.usage.spec.accepted;
                }
            }
    CHECK(accepted > 100);
    nano_check_idle(t, e);
    tandem_close(e);
}

static bool is_json(const tandem *e, const nano_answer *a)
{
    char              text[4096];
    arena             mem;
    const json_value *v;
    arena_init(&mem, 1 << 20);
    tandem_detokenize(e, a->token, (size_t)a->n, false, text, sizeof text);
    const char *thought = strstr(text, "thought\n"); /* the marker that closes it is not shown */
    bool        ok      = thought || json_parse(&v, &mem, str_of(text), NULL, NULL);
    arena_deinit(&mem);
    return ok;
}

/* Cut at any length that the shortest answer fits into, it is complete, and says that it was cut. */
TEST(constrained_answers_end_before_the_limit)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    plain, a, shortest;
    nano_options(&o);
    o.n_ctx = 512;
    if (!nano_open(t, &e, &o)) return;
    form_request(e, &r, &grammars[0], 400, 1, 4);
    nano_ask(t, e, &r, &plain);
    CHECK_INT(plain.result.finish, TANDEM_FINISH_STOP);
    int least = 0;
    for (int n = 1; n < plain.n; n += test_full() && !NANO_SLOW ? 1 : 5) {
        form_request(e, &r, &grammars[0], n, 1, 4);
        r.spec.method = TANDEM_SPEC_OFF;
        nano_ask(t, e, &r, &shortest);
        CHECK_INT(shortest.result.finish, TANDEM_FINISH_LENGTH);
        CHECK(shortest.n <= n);
        if (is_json(e, &shortest) && !least) least = n;
        CHECK_MSG(!least || is_json(e, &shortest), "at %d tokens", n);
        for (int m = TANDEM_SPEC_DFLASH; m <= TANDEM_SPEC_AUTO; m++) {
            r.spec.method = (tandem_method)m;
            r.logprobs    = 2;
            nano_ask(t, e, &r, &a);
            same_answer(t, &a, &shortest);
        }
    }
    CHECK(least > 3 && least < 20); /* {"name":"","age":0,"tags":[]} */
    nano_check_idle(t, e);
    tandem_close(e);
}

TEST(constrained_thoughts_end_before_the_limit)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    a;
    int32_t        close;
    tandem_ids     marker;
    tandem_error   why = {0};
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    CHECK_OK(tandem_tokenize(e, "<channel|>", 10, true, &marker, &why), why);
    close = marker.p[0];
    tandem_ids_free(&marker);
    for (int n = 24; n < 60; n += 6) {
        form_request(e, &r, &grammars[2], n, 1, (uint64_t)n);
        r.grammar.may_call = false;
        nano_ask(t, e, &r, &a);
        int at = 0;
        while (at < a.n && a.token[at] != close) at++;
        if (!CHECK_MSG(at < a.n, "the thought goes on to the end at %d tokens", n)) continue;
        memmove(a.token, a.token + at + 1, (size_t)(a.n - at - 1) * sizeof *a.token);
        a.n -= at + 1;
        CHECK_MSG(is_json(e, &a), "at %d tokens", n);
    }
    tandem_close(e);
}

/* The log-probabilities are of the logits as the model made them, whoever guessed, and also of tokens that were chosen for it. */
TEST(constrained_logprobs_do_not_depend_on_guesses)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    static float   want[64];
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    for (int m = TANDEM_SPEC_OFF; m <= TANDEM_SPEC_AUTO; m++) {
        form_request(e, &r, &grammars[0], 20, 1, 7);
        r.logprobs     = 1;
        r.spec.method  = (tandem_method)m;
        tandem_job  *j = nano_submit(t, e, &r);
        tandem_token x;
        int          n = 0;
        do {
            tandem_wait(j, -1);
            while (tandem_poll(j, &x, 1)) {
                CHECK_INT(x.logprobs[0].id, x.id);
                if (m == TANDEM_SPEC_OFF) want[n] = x.logprobs[0].logprob;
                CHECK_NEAR(x.logprobs[0].logprob, want[n], 0);
                CHECK(x.logprobs[0].logprob <= 0 && x.logprobs[1].id >= 0);
                n++;
            }
        } while (!tandem_job_result(j));
        CHECK(n > 0);
        tandem_release(j);
    }
    tandem_close(e);
}

TEST(constrained_requests_are_refused_by_a_sentence)
{
    static const struct {
        tandem_grammar g;
        const char    *says;
    } bad[] = {{{.kind = TANDEM_GRAMMAR_GBNF, .text = "root ::= x"}, "'x'"},
               {{.kind = TANDEM_GRAMMAR_GBNF}, "root"},
               {{.kind = TANDEM_GRAMMAR_SCHEMA, .text = "{\"not\":1}"}, "#/not"},
               {{.kind = TANDEM_GRAMMAR_SCHEMA, .text = "{"}, "line 1"},
               {{.kind = TANDEM_GRAMMAR_TOOL_CALL, .text = "[]"}, "list"},
               {{.kind = TANDEM_GRAMMAR_TOOL_CALL, .text = "[{}]"}, "tool 0"},
               {{.kind = TANDEM_GRAMMARS}, "kind"}};
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    for (size_t i = 0; i < COUNT(bad); i++) {
        tandem_error why = {0};
        tandem_job  *j;
        form_request(e, &r, &bad[i].g, 20, 1, 7);
        CHECK(!tandem_submit(e, &r, &j, &why));
        CHECK_INT(why.code, TANDEM_INPUT);
        CHECK_MSG(strstr(why.text, bad[i].says), "%s", why.text);
    }
    tandem_close(e);
}

/* A grammar that nobody can follow ends its own request; the others go on. */
TEST(constrained_trouble_is_its_own)
{
    enum { LEVELS = 16 }; /* after n letters 2^n stacks */
    static char    text[4096];
    tandem_grammar bad = {.kind = TANDEM_GRAMMAR_GBNF, .text = text};
    int n = snprintf(text, sizeof text, "root ::= a0\nb ::= \"y\"\nc ::= \"z\" \"z\"\na%d ::= \"x\"\n", LEVELS);
    for (int i = 0; i < LEVELS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "a%d ::= \"x\" a%d b | \"x\" a%d c\n", i, i + 1, i + 1);
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    alone, a;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    form_request(e, &r, &grammars[0], 60, 1, 1);
    nano_ask(t, e, &r, &alone);
    tandem_error why   = {0};
    tandem_job  *other = nano_submit(t, e, &r), *j = NULL;
    form_request(e, &r, &bad, 200, 1, 1);
    if (CHECK_OK(tandem_submit(e, &r, &j, &why), why)) {
        nano_collect(j, &a);
        CHECK_INT(a.result.finish, TANDEM_FINISH_ERROR);
        CHECK_INT(a.result.error.code, TANDEM_TOO_LARGE);
        CHECK_MSG(strstr(a.result.error.text, "ambiguous"), "%s", a.result.error.text);
    }
    nano_collect(other, &a);
    nano_same(t, &a, &alone);
    nano_check_idle(t, e);
    tandem_close(e);
}

/* More grammars than are kept, from several threads, some of them the same; a job that outlives the engine. */
typedef struct {
    test_case *t;
    tandem    *e;
    int        first;
} sender;

static void *send_many(void *arg)
{
    enum { MANY = NANO_SLOWEST ? 12 : 40 };
    sender        *s = arg;
    test_case     *t = s->t;
    tandem_request r;
    nano_answer    a;
    char           text[64];
    for (int i = 0; i < MANY; i++) {
        snprintf(text, sizeof text, "root ::= \"number %d\" [a-z]{2,5}", (s->first + i) % (MANY + 10));
        form_request(s->e, &r, &(tandem_grammar){.kind = TANDEM_GRAMMAR_GBNF, .text = text}, 20, 1, 5);
        tandem_job *j = nano_submit(t, s->e, &r);
        if (i % 5 == 4) tandem_cancel(j);
        nano_collect(j, &a);
        CHECK(i % 5 == 4 || a.result.finish == TANDEM_FINISH_STOP);
    }
    return NULL;
}

TEST_LONG(constrained_grammars_are_shared_and_forgotten)
{
    enum { THREADS = 3 };
    tandem_options o;
    tandem        *e;
    tandem_request r;
    pthread_t      thread[THREADS];
    sender         s[THREADS];
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    for (int i = 0; i < THREADS; i++) {
        s[i] = (sender){t, e, 7 * i};
        pthread_create(&thread[i], NULL, send_many, &s[i]);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    form_request(e, &r, &grammars[0], 60, 1, 1);
    tandem_job *last = nano_submit(t, e, &r);
    tandem_close(e);
    CHECK(tandem_job_result(last));
    tandem_release(last);
}

/* Draft tokens that a grammar forces are counted as the method "grammar" in usage, statistics and the routing log, not as
 * n-grams. */
TEST(constrained_drafts_are_counted_as_grammar)
{
    static const tandem_method methods[] = {TANDEM_SPEC_DFLASH, TANDEM_SPEC_MTP, TANDEM_SPEC_AUTO};
    tandem_options             o;
    tandem                    *e;
    tandem_request             r;
    tandem_stats               s;
    nano_answer                a;
    int64_t                    rounds = 0;
    char                      *text   = malloc(1 << 20);
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    for (size_t i = 0; i < COUNT(methods); i++) {
        char words[128]; /* one of its own for each: a grammar whose drafts are rejected drafts no more */
        snprintf(words, sizeof words, "root ::= (\"the same words again and again %zu \" [a-z]){30}", i);
        form_request(e, &r, &(tandem_grammar){.kind = TANDEM_GRAMMAR_GBNF, .text = words}, 60, 0, 2);
        r.spec.method = methods[i];
        r.id          = "words";
        nano_ask(t, e, &r, &a);
        const tandem_spec_counts *c = &a.result.usage.spec;
        CHECK_MSG(c->rounds_by_method[TANDEM_SPEC_GRAMMAR] > 0 && c->drafted_by_method[TANDEM_SPEC_GRAMMAR] > 0,
                  "%s: the grammar drafted nothing", tandem_method_name((int)methods[i]));
        if (methods[i] != TANDEM_SPEC_AUTO) CHECK_INT(c->rounds_by_method[TANDEM_SPEC_NGRAM], 0);
        CHECK_INT(c->rounds_by_method[TANDEM_SPEC_AUTO], 0);
        rounds += c->rounds_by_method[TANDEM_SPEC_GRAMMAR];
    }
    tandem_get_stats(e, &s);
    CHECK_INT(s.spec.rounds_by_method[TANDEM_SPEC_GRAMMAR], rounds);
    size_t n = nano_routing(e, "words", 100, text, 1 << 20);
    CHECK(n < 1 << 20 && memmem(text, n, "\"grammar\":", 10));
    free(text);
    tandem_close(e);
}
