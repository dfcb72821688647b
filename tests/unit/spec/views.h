/* tests/unit/spec/views.h - values that the tests of spec compute with the functions of spec. */
#ifndef TANDEM_TEST_SPEC_VIEWS_H
#define TANDEM_TEST_SPEC_VIEWS_H
#include "spec/choice.h"
#include "spec/spec.h"

/* Returns why a drafter is not used; NULL: no problem. */
static inline const char *drafter_problem(const spec *s, spec_method m)
{
    drafter_view v;
    spec_drafter_view(s, m, &v);
    return v.problem[0] ? v.problem : NULL;
}

static inline bool has_slot(const spec *s, spec_method m)
{
    drafter_view v;
    return spec_drafter_view(s, m, &v);
}

/* Park or unpark all drafters that were added. unpark_all tries all of them, also after a failure. */
static inline void park_all(spec *s)
{
    static const spec_method with_file[] = {SPEC_DFLASH, SPEC_MTP};
    for (int i = 0; i < 2; i++)
        if (has_slot(s, with_file[i])) spec_park(s, with_file[i], NULL);
}

static inline bool unpark_all(spec *s, err *e)
{
    static const spec_method with_file[] = {SPEC_DFLASH, SPEC_MTP};
    bool                     ok          = true;
    for (int i = 0; i < 2; i++)
        if (has_slot(s, with_file[i])) ok = spec_unpark(s, with_file[i], ok ? e : NULL) && ok;
    return ok;
}

/* Returns the expected seconds of a step at the current pace. */
static inline double cost_step(const cost_table *c, int rows, int32_t ctx)
{
    cost_view v;
    cost_view_init(&v, c, ctx);
    return cost_pace(c) * v.step[rows];
}

/* Returns the expected seconds of a draft of one lane: n_draft tokens in a row, or the depth of a tree. */
static inline double cost_draft(const cost_table *c, spec_method m, int n_draft)
{
    cost_view v;
    cost_view_init(&v, c, 0);
    double at_pace_1 = m == SPEC_MTP     ? n_draft * v.pass[1]
                       : m == SPEC_NGRAM ? n_draft * v.ngram
                                         : v.block[m][1 + n_draft];
    return cost_pace(c) * at_pace_1;
}

/* Returns P(the first d tokens are all accepted), d >= 1. */
static inline double survival_at(const survival *s, int d)
{
    double curve[DRAFT_MAX];
    survival_curve(s, curve, d);
    return curve[d - 1];
}

/* Returns the expected tokens of a round with a tree. */
static inline double tree_tokens(const policy *p, int budget, int depth)
{
    double rate[DRAFT_MAX];
    policy_tree_rates(p, rate, depth);
    return policy_tree_tokens(p, rate, budget, depth);
}
#endif
