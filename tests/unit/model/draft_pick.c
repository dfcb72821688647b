/* Picking draft tokens of many jobs at once: each job gets what it gets alone. */
#include "../ops/ops_test.h"
#include "base/mem.h"
#include "model/drafter.h"

#include <math.h>

enum { V = 300, RUN = 3, KINDS = 9, ROWS = KINDS * RUN };

static const logit_bias ban[] = {{7, -INFINITY}, {9, 4}};

typedef struct {
    draft_job      job[KINDS];
    penalty_params penalty[KINDS];
    dev            ids; /* [KINDS][DRAFT_MAX] */
} crew;

/* One job of each way to pick. */
static void make_crew(rig *g, crew *c)
{
    test_case *t = g->t;
    err        e = {0};
    memset(c, 0, sizeof *c);
    c->ids = rig_new(g, sizeof(int32_t[KINDS][DRAFT_MAX]));
    for (int i = 0; i < KINDS; i++) {
        draft_job *j       = &c->job[i];
        bool       biased  = i == 5 || i == 6 || i == 7;
        c->penalty[i]      = (penalty_params){.repeat = i >= 6 ? 1.5f : 1, .bias = ban, .n_bias = COUNT(ban)};
        j->n_text          = 20 + i;
        j->params          = (sample_params){.top_p = 1, .seed = 5, .temp = i == 2 || i == 3 ? 1.5f : 0};
        j->n_top           = i == 4 || i == 7 ? 4 : 0;
        j->soft            = 1;
        j->want_confidence = i != 8;
        if (i == 1 || i == 3) j->device_tokens = dev_at(c->ids, sizeof(int32_t[DRAFT_MAX]) * (size_t)i);
        if (biased && CHECK_OK(history_new(&j->history, V, &e), e)) {
            j->penalty = &c->penalty[i];
            history_bias(j->history, ban, COUNT(ban));
            history_push(j->history, 30 + i);
        }
    }
}

static void free_crew(rig *g, crew *c)
{
    test_case *t   = g->t;
    int32_t   *ids = rig_get_i32(g, c->ids, KINDS * DRAFT_MAX);
    for (int i = 0; i < KINDS; i++) {
        CHECK(c->job[i].later == (c->job[i].device_tokens.p != NULL));
        if (c->job[i].later) memcpy(c->job[i].token, ids + i * DRAFT_MAX, sizeof c->job[i].token);
        history_free(c->job[i].history);
    }
}

/* Picks two runs of each job: of all jobs together, or of one job after the other. Returns the tokens in `to`. */
static int32_t *pick_crew(rig *g, crew *c, const float *logits, bool together)
{
    test_case   *t  = g->t;
    draft_picker p  = {0};
    target       m  = {.o = g->o, .q = g->q, .n_vocab = V};
    err          e  = {0};
    dev          to = rig_new(g, 2 * ROWS * sizeof(int32_t));
    if (!CHECK_OK(draft_picker_init(&p, &m, &e), e)) return NULL;
    draft_pick_begin(&p);
    for (int half = 0; half < 2; half++) {
        dev       rows = rig_put_f32(g, logits + (size_t)half * ROWS * V, (size_t)ROWS * V);
        dev       ids  = dev_at(to, (size_t)half * ROWS * sizeof(int32_t));
        draft_run run[KINDS];
        for (int i = 0; i < KINDS; i++) run[i] = (draft_run){&c->job[i], half * RUN, RUN, i * RUN};
        for (int i = 0; i < KINDS; i += together ? KINDS : 1) {
            CHECK_OK(draft_pick(&p, run + i, together ? KINDS : 1, rows, ids, &e), e);
            if (!together) CHECK_OK(draft_pick_read(&p, &e), e);
        }
    }
    CHECK_OK(draft_pick_read(&p, &e), e);
    draft_picker_deinit(&p);
    return rig_get_i32(g, to, 2 * ROWS);
}

static void pick_both_ways(rig *g)
{
    test_case *t = g->t;
    crew      *c = xnew_n(crew, 2);
    float     *x = rig_randn(g, (size_t)2 * ROWS * V);
    int32_t   *to[2];
    for (int k = 0; k < 2; k++) {
        make_crew(g, &c[k]);
        to[k] = pick_crew(g, &c[k], x, k == 0);
        free_crew(g, &c[k]);
    }
    for (int i = 0; to[0] && to[1] && i < KINDS; i++) {
        const draft_job *a = &c[0].job[i], *b = &c[1].job[i];
        CHECK_INT(a->n, 2 * RUN);
        for (int d = 0; d < 2 * RUN; d++) {
            int at = d / RUN * ROWS + i * RUN + d % RUN;
            CHECK_MSG(a->token[d] == b->token[d] && a->token[d] >= 0 && a->token[d] < V,
                      "job %d, token %d: %d, alone %d", i, d, a->token[d], b->token[d]);
            CHECK_INT(to[0][at], a->token[d]);
            CHECK_INT(to[1][at], b->token[d]);
            if (i >= 5 && i <= 7) CHECK(a->token[d] != 7);
            if (!a->later) CHECK(a->confidence[d] == b->confidence[d]);
            for (int k = 0; k < a->n_top; k++) CHECK(a->top[d][k].id == b->top[d][k].id);
        }
        CHECK((i == 8) == (a->confidence[0] == 0) || a->later);
    }
    mem_free(c);
}

TEST(draft_tokens_of_many_jobs_are_picked_as_alone) { rig_each(t, pick_both_ways); }

/* The host reads more rows than fit, in portions. A row without numbers is an error where the host reads it. */
static void pick_many(rig *g)
{
    enum { MANY = PICK_ROWS + 40 };
    test_case   *t   = g->t;
    draft_picker p   = {0};
    target       m   = {.o = g->o, .q = g->q, .n_vocab = V};
    err          e   = {0};
    draft_job   *job = xnew_n(draft_job, MANY);
    float       *x   = rig_randn(g, (size_t)HEAD_ROWS * V);
    dev          y   = rig_put_f32(g, x, (size_t)HEAD_ROWS * V);
    if (CHECK_OK(draft_picker_init(&p, &m, &e), e)) {
        draft_pick_begin(&p);
        for (int i = 0; i < MANY; i++) {
            job[i].want_confidence = true;
            CHECK_OK(draft_pick(&p, &(draft_run){&job[i], 0, 1, i % HEAD_ROWS}, 1, y, (dev){0}, &e), e);
        }
        CHECK_OK(draft_pick_read(&p, &e), e);
        for (int i = 0; i < MANY; i++) {
            CHECK_INT(job[i].token[0], job[i % HEAD_ROWS].token[0]);
            CHECK(job[i].confidence[0] > 0 && job[i].confidence[0] == job[i % HEAD_ROWS].confidence[0]);
        }
        for (int i = 0; i < V; i++) x[V + i] = NAN;
        y = rig_put_f32(g, x, (size_t)HEAD_ROWS * V);
        CHECK_OK(draft_pick(&p, &(draft_run){&job[0], 0, 1, 0}, 1, y, (dev){0}, &e), e);
        CHECK_OK(draft_pick(&p, &(draft_run){&job[1], 0, 1, 1}, 1, y, (dev){0}, &e), e);
        CHECK_FAILS(draft_pick_read(&p, &e), e, "not a number");
        CHECK_OK(draft_pick(&p, &(draft_run){&job[0], 0, 1, 0}, 1, y, (dev){0}, &e), e);
        CHECK_OK(draft_pick_read(&p, &e), e); /* what failed is forgotten */
    }
    draft_picker_deinit(&p);
    mem_free(job);
}

TEST(draft_tokens_are_read_in_portions) { rig_each(t, pick_many); }
