#include "sched/grammar_cache.h"

#include "base/buf.h"
#include "engine_rig.h"
#include "grammar/rig.h"
#include "sched/inside.h"

#include <stdio.h>

enum { OF_TENANT = GRAMMARS_LANES + GRAMMARS_WAITING, ALL = GRAMMARS_LANES + GRAMMARS_SPARE };

static grammar_cache *open_forms(void)
{
    static int32_t end;
    end = rig_nano()->end;
    return grammar_cache_new(rig_nano()->tok, &end, 1, 1);
}

/* A grammar that allows one word. */
static tandem_grammar word(char text[64], int i)
{
    snprintf(text, 64, "root ::= \"word %d\"", i);
    return (tandem_grammar){.kind = TANDEM_GRAMMAR_GBNF, .text = text};
}

static response_grammar *take(test_case *t, grammar_cache *f, int i, uint64_t tenant)
{
    char              text[64];
    tandem_grammar    g = word(text, i);
    response_grammar *x;
    err               e = {0};
    CHECK_OK(grammar_cache_take(f, &(grammar_source){&g, tenant, NULL}, &x, &e), e);
    return x;
}

static bool is_there(grammar_cache *f, int i, uint64_t tenant)
{
    char              text[64];
    tandem_grammar    g = word(text, i);
    response_grammar *x = grammar_cache_find(f, &(grammar_source){&g, tenant, NULL});
    response_grammar_drop(x);
    return x != NULL;
}

TEST(forms_are_each_tenants_own)
{
    grammar_cache    *f = open_forms();
    response_grammar *a = take(t, f, 1, 1), *b = take(t, f, 1, 1), *c = take(t, f, 1, 2);
    CHECK(a == b && a != c);
    CHECK(is_there(f, 1, 1) && is_there(f, 1, 2) && !is_there(f, 1, 3) && !is_there(f, 2, 1));
    response_grammar_drop(a), response_grammar_drop(b), response_grammar_drop(c);
    CHECK(is_there(f, 1, 1) && is_there(f, 1, 2));
    grammar_cache_free(f);
}

TEST(forms_that_are_held_stay)
{
    grammar_cache    *f = open_forms();
    response_grammar *a = take(t, f, 0, 1), *twice = response_grammar_hold(a);
    response_grammar_drop(a);
    for (int i = 1; i <= 2 * GRAMMARS_IDLE; i++) response_grammar_drop(take(t, f, i, 1));
    CHECK(twice == a && is_there(f, 0, 1));
    CHECK(is_there(f, 2 * GRAMMARS_IDLE, 1) && is_there(f, GRAMMARS_IDLE + 1, 1) && !is_there(f, GRAMMARS_IDLE, 1));
    response_grammar_drop(a);
    for (int i = 1; i <= GRAMMARS_IDLE; i++) response_grammar_drop(take(t, f, 100 + i, 1));
    CHECK(!is_there(f, 0, 1));
    grammar_cache_free(f);
}

/* A tenant with many loses its own oldest, not another's. */
TEST(forms_of_one_tenant_do_not_push_out_anothers)
{
    grammar_cache *f = open_forms();
    response_grammar_drop(take(t, f, 0, 1));
    for (int i = 1; i <= 3 * GRAMMARS_IDLE; i++) response_grammar_drop(take(t, f, i, 2));
    CHECK(is_there(f, 0, 1) && !is_there(f, 1, 2) && is_there(f, 3 * GRAMMARS_IDLE, 2));
    grammar_cache_free(f);
}

TEST(forms_of_one_tenant_leave_room_for_others)
{
    grammar_cache    *f = open_forms();
    response_grammar *held[OF_TENANT], *x;
    char              text[64];
    tandem_grammar    g = word(text, -1);
    err               e = {0};
    for (int i = 0; i < OF_TENANT; i++) held[i] = take(t, f, i, 1);
    CHECK(!grammar_cache_take(f, &(grammar_source){&g, 1, NULL}, &x, &e));
    CHECK_INT(e.code, ERR_BUSY);
    CHECK_OK(grammar_cache_take(f, &(grammar_source){&g, 2, NULL}, &x, &e), e);
    response_grammar_drop(x);
    response_grammar_drop(held[0]);
    CHECK_OK(grammar_cache_take(f, &(grammar_source){&g, 1, NULL}, &x, &e), e);
    response_grammar_drop(x);
    for (int i = 1; i < OF_TENANT; i++) response_grammar_drop(held[i]);
    grammar_cache_free(f);
}

/* Every lane may hold a grammar of its own. */
TEST(forms_are_enough_for_all_lanes)
{
    enum { LANES = 200 };
    int32_t           end = 1;
    grammar_cache    *f   = grammar_cache_new(rig_nano()->tok, &end, 1, LANES);
    response_grammar *held[LANES];
    for (int i = 0; i < LANES; i++) held[i] = take(t, f, i, 1);
    for (int i = 0; i < LANES; i++) response_grammar_drop(held[i]);
    grammar_cache_free(f);
}

TEST(forms_can_be_cancelled)
{
    static atomic_bool cancel = true;
    grammar_cache     *f      = open_forms();
    tandem_grammar     g[]    = {{.kind = TANDEM_GRAMMAR_GBNF, .text = "root ::= [a-z]+"},
                                 {.kind = TANDEM_GRAMMAR_SCHEMA, .text = "{\"type\":\"integer\"}"},
                                 {.kind = TANDEM_GRAMMAR_TOOL_CALL, .text = "[{\"function\":{\"name\":\"a\"}}]"}};
    for (size_t i = 0; i < COUNT(g); i++) {
        response_grammar *x;
        err               e = {0};
        CHECK(!grammar_cache_take(f, &(grammar_source){&g[i], 0, &cancel}, &x, &e) && !x);
        CHECK_INT(e.code, ERR_UNAVAILABLE);
        CHECK(!grammar_cache_find(f, &(grammar_source){&g[i], 0, NULL}));
    }
    grammar_cache_free(f);
}

/* Later answers of a request compile nothing: what they are held to comes with them, whatever the text says. */
TEST(forms_that_come_with_a_request_are_not_compiled_again)
{
    tandem_options    o;
    tandem           *e;
    tandem_request    r;
    tandem_job       *j;
    nano_answer       a;
    response_grammar *x;
    err               why = {0};
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 8);
    r.grammar = (tandem_grammar){.kind = TANDEM_GRAMMAR_GBNF, .text = "root ::= \"abc\""};
    CHECK(!sched_find_compiled(e->sched, &r));
    CHECK_OK(sched_compile(e->sched, &r, NULL, &x, &why), why);
    r.grammar.text = "this is not a grammar";
    for (int i = 0; i < 2; i++) {
        CHECK_OK(sched_submit_with(e->sched, &r, NULL, x, &j, &why), why);
        nano_collect(j, &a);
        CHECK_INT(a.result.finish, TANDEM_FINISH_STOP);
    }
    CHECK(!sched_submit(e->sched, &r, &j, &why));
    response_grammar_drop(x);
    nano_check_idle(t, e);
    tandem_close(e);
}

static bool compiles(grammar_cache *f, const tandem_grammar *g, err *e)
{
    response_grammar *x;
    *e      = (err){0};
    bool ok = grammar_cache_take(f, &(grammar_source){g, 0, NULL}, &x, e);
    response_grammar_drop(x);
    return ok;
}

/* A list of tools, each with one member beside its name. */
static const char *tools(buf *b, int n, const char *more)
{
    buf_clear(b);
    buf_putc(b, '[');
    for (int i = 0; i < n; i++) buf_printf(b, "%s{\"function\":{\"name\":\"t%d\"%s}}", i ? "," : "", i, more);
    buf_puts(b, "]");
    buf_putc(b, 0);
    return b->p;
}

TEST(forms_of_tools)
{
    static const char *const         bad[]   = {"[{\"function\":{\"name\":\"a\"}},{}]",
                                                "[{\"function\":{\"name\":\"a\"}},{\"function\":{}}]",
                                                "[{\"function\":{\"name\":\"a\"}},{\"function\":{\"name\":1}}]",
                                                "[{\"function\":{\"name\":\"a\"}},{\"function\":{\"name\":\"\"}}]"};
    static const tandem_grammar_kind kinds[] = {TANDEM_GRAMMAR_TOOL_CALL, TANDEM_GRAMMAR_TOOL_CALLS};
    grammar_cache                   *f       = open_forms();
    err                              e;
    buf                              b;
    buf_init(&b, 1 << 20);
    for (size_t k = 0; k < COUNT(kinds); k++) {
        for (size_t i = 0; i < COUNT(bad); i++)
            CHECK_FAILS(compiles(f, &(tandem_grammar){.kind = kinds[k], .text = bad[i]}, &e), e,
                        "tool 1 is not a function with a name");
        CHECK_OK(compiles(f, &(tandem_grammar){.kind = kinds[k], .text = tools(&b, 2, "")}, &e), e);
        CHECK_OK(compiles(f, &(tandem_grammar){.kind = kinds[k], .text = tools(&b, 1, ",\"parameters\":null")}, &e), e);
        CHECK_OK(compiles(f, &(tandem_grammar){.kind = kinds[k], .text = tools(&b, 1, ",\"parameters\":7")}, &e), e);
        CHECK_FAILS(
            compiles(f, &(tandem_grammar){.kind = kinds[k], .text = tools(&b, 1, ",\"strict\":true,\"parameters\":7")},
                     &e),
            e, "is not a schema");
        CHECK_FAILS(compiles(f, &(tandem_grammar){.kind = kinds[k], .text = "{}"}, &e), e, "a list of 1 to 1024");
        CHECK_FAILS(compiles(f, &(tandem_grammar){.kind = kinds[k], .text = "[]"}, &e), e, "a list of 1 to 1024");
        CHECK_FAILS(compiles(f, &(tandem_grammar){.kind = kinds[k], .text = tools(&b, 1025, "")}, &e), e,
                    "a list of 1 to 1024");
        CHECK_FAILS(compiles(f, &(tandem_grammar){.kind = kinds[k], .text = "["}, &e), e, "the schema is not JSON");
        CHECK_INT(e.code, ERR_INPUT);
    }
    CHECK_OK(compiles(f, &(tandem_grammar){.kind = TANDEM_GRAMMAR_TOOL_CALL, .text = tools(&b, 1024, "")}, &e), e);
    buf_deinit(&b);
    grammar_cache_free(f);
}

/* A text has n_text bytes, or ends with its NUL; what lies behind it does not count. */
TEST(forms_of_texts)
{
    static const char text[] = "root ::= \"a\" this is not a grammar";
    grammar_cache    *f      = open_forms();
    tandem_grammar    whole  = {.kind = TANDEM_GRAMMAR_GBNF, .text = "root ::= \"a\""},
                   part      = {.kind = TANDEM_GRAMMAR_GBNF, .text = text, .n_text = 12},
                   object = {.kind = TANDEM_GRAMMAR_OBJECT}, none = {.kind = TANDEM_GRAMMAR_GBNF};
    response_grammar *x, *y, *z;
    err               e = {0};
    CHECK_OK(grammar_cache_take(f, &(grammar_source){&whole, 0, NULL}, &x, &e), e);
    CHECK_OK(grammar_cache_take(f, &(grammar_source){&part, 0, NULL}, &y, &e), e);
    CHECK_OK(grammar_cache_take(f, &(grammar_source){&object, 0, NULL}, &z, &e), e);
    CHECK(x == y && x != z && response_grammar_guide(x) && response_grammar_guide(x) != response_grammar_guide(z));
    response_grammar_drop(x), response_grammar_drop(y), response_grammar_drop(z);
    part.n_text = 0;
    CHECK(!compiles(f, &part, &e) && !compiles(f, &none, &e));
    CHECK_FAILS(compiles(f, &(tandem_grammar){.kind = TANDEM_GRAMMARS}, &e), e, "grammar.kind is");
    grammar_cache_free(f);
    f = grammar_cache_new(NULL, NULL, 0, 1);
    CHECK_FAILS(compiles(f, &whole, &e), e, "the model has no tokenizer");
    grammar_cache_free(f);
}

/* As many as there may be are held; one that nobody holds gives way, the one that was not used for longest. */
TEST(forms_are_so_many)
{
    grammar_cache    *f = open_forms();
    response_grammar *held[ALL], *x;
    char              text[64];
    tandem_grammar    g = word(text, -1);
    err               e = {0};
    for (int i = 0; i < ALL; i++) held[i] = take(t, f, i, (uint64_t)(1 + i % 3));
    CHECK(!grammar_cache_take(f, &(grammar_source){&g, 9, NULL}, &x, &e) && !x);
    CHECK_INT(e.code, ERR_BUSY);
    response_grammar_drop(held[6]);
    response_grammar_drop(held[3]);                /* of the same tenant */
    CHECK(is_there(f, 3, 1) && is_there(f, 6, 1)); /* and 6 was used last */
    CHECK_OK(grammar_cache_take(f, &(grammar_source){&g, 9, NULL}, &x, &e), e);
    CHECK(!is_there(f, 3, 1) && is_there(f, 6, 1));
    response_grammar_drop(x);
    for (int i = 0; i < ALL; i++)
        if (i != 3 && i != 6) response_grammar_drop(held[i]);
    int n = 0;
    for (int i = 0; i < ALL; i++) n += is_there(f, i, (uint64_t)(1 + i % 3));
    CHECK_INT(n + is_there(f, -1, 9), GRAMMARS_IDLE);
    grammar_cache_free(f);
}
