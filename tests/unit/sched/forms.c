#include "sched/forms.h"

#include "engine_rig.h"
#include "grammar/rig.h"
#include "sched/engine.h"

#include <stdio.h>

static answer_forms *open_forms(void)
{
    static int32_t end;
    end = rig_nano()->end;
    return forms_new(rig_nano()->tok, &end, 1);
}

/* A grammar that allows one word. */
static tandem_grammar word(char text[64], int i)
{
    snprintf(text, 64, "root ::= \"word %d\"", i);
    return (tandem_grammar){.kind = TANDEM_GRAMMAR_GBNF, .text = text};
}

static answer_form *take(test_case *t, answer_forms *f, int i, uint64_t tenant)
{
    char           text[64];
    tandem_grammar g = word(text, i);
    answer_form   *x;
    err            e = {0};
    CHECK_OK(forms_take(f, &(form_source){&g, tenant, NULL}, &x, &e), e);
    return x;
}

static bool is_there(answer_forms *f, int i, uint64_t tenant)
{
    char           text[64];
    tandem_grammar g = word(text, i);
    answer_form   *x = forms_find(f, &(form_source){&g, tenant, NULL});
    form_drop(x);
    return x != NULL;
}

TEST(forms_are_each_tenants_own)
{
    answer_forms *f = open_forms();
    answer_form  *a = take(t, f, 1, 1), *b = take(t, f, 1, 1), *c = take(t, f, 1, 2);
    CHECK(a == b && a != c);
    CHECK(is_there(f, 1, 1) && is_there(f, 1, 2) && !is_there(f, 1, 3) && !is_there(f, 2, 1));
    form_drop(a), form_drop(b), form_drop(c);
    CHECK(is_there(f, 1, 1) && is_there(f, 1, 2));
    forms_free(f);
}

TEST(forms_that_are_held_stay)
{
    answer_forms *f = open_forms();
    answer_form  *a = take(t, f, 0, 1), *twice = form_hold(a);
    form_drop(a);
    for (int i = 1; i <= 2 * FORMS_IDLE; i++) form_drop(take(t, f, i, 1));
    CHECK(twice == a && is_there(f, 0, 1));
    CHECK(is_there(f, 2 * FORMS_IDLE, 1) && is_there(f, FORMS_IDLE + 1, 1) && !is_there(f, FORMS_IDLE, 1));
    form_drop(a);
    for (int i = 1; i <= FORMS_IDLE; i++) form_drop(take(t, f, 100 + i, 1));
    CHECK(!is_there(f, 0, 1));
    forms_free(f);
}

/* A tenant with many loses its own oldest, not another's. */
TEST(forms_of_one_tenant_do_not_push_out_anothers)
{
    answer_forms *f = open_forms();
    form_drop(take(t, f, 0, 1));
    for (int i = 1; i <= 3 * FORMS_IDLE; i++) form_drop(take(t, f, i, 2));
    CHECK(is_there(f, 0, 1) && !is_there(f, 1, 2) && is_there(f, 3 * FORMS_IDLE, 2));
    forms_free(f);
}

TEST(forms_of_one_tenant_leave_room_for_others)
{
    answer_forms  *f = open_forms();
    answer_form   *held[FORMS_OF_TENANT], *x;
    char           text[64];
    tandem_grammar g = word(text, -1);
    err            e = {0};
    for (int i = 0; i < FORMS_OF_TENANT; i++) held[i] = take(t, f, i, 1);
    CHECK(!forms_take(f, &(form_source){&g, 1, NULL}, &x, &e));
    CHECK_INT(e.code, ERR_BUSY);
    CHECK_OK(forms_take(f, &(form_source){&g, 2, NULL}, &x, &e), e);
    form_drop(x);
    form_drop(held[0]);
    CHECK_OK(forms_take(f, &(form_source){&g, 1, NULL}, &x, &e), e);
    form_drop(x);
    for (int i = 1; i < FORMS_OF_TENANT; i++) form_drop(held[i]);
    forms_free(f);
}

TEST(forms_can_be_cancelled)
{
    static atomic_bool cancel = true;
    answer_forms      *f      = open_forms();
    tandem_grammar     g[]    = {{.kind = TANDEM_GRAMMAR_GBNF, .text = "root ::= [a-z]+"},
                                 {.kind = TANDEM_GRAMMAR_SCHEMA, .text = "{\"type\":\"integer\"}"},
                                 {.kind = TANDEM_GRAMMAR_TOOL_CALL, .text = "[{\"function\":{\"name\":\"a\"}}]"}};
    for (size_t i = 0; i < COUNT(g); i++) {
        answer_form *x;
        err          e = {0};
        CHECK(!forms_take(f, &(form_source){&g[i], 0, &cancel}, &x, &e) && !x);
        CHECK_INT(e.code, ERR_UNAVAILABLE);
        CHECK(!forms_find(f, &(form_source){&g[i], 0, NULL}));
    }
    forms_free(f);
}

/* Later answers of a request compile nothing: what they are held to comes with them, whatever the text says. */
TEST(forms_that_come_with_a_request_are_not_compiled_again)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_job    *j;
    nano_answer    a;
    answer_form   *x;
    err            why = {0};
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 8);
    r.grammar = (tandem_grammar){.kind = TANDEM_GRAMMAR_GBNF, .text = "root ::= \"abc\""};
    CHECK(!sched_find_compiled(e->sched, &r));
    CHECK_OK(sched_compile(e->sched, &r, NULL, &x, &why), why);
    r.grammar.text = "this is not a grammar";
    for (int i = 0; i < 2; i++) {
        CHECK_OK(sched_submit_with(e->sched, &r, x, &j, &why), why);
        nano_collect(j, &a);
        CHECK_INT(a.result.finish, TANDEM_FINISH_STOP);
    }
    CHECK(!sched_submit(e->sched, &r, &j, &why));
    form_drop(x);
    nano_check_idle(t, e);
    tandem_close(e);
}
