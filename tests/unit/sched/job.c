/* From a request to the options of a lane: every field arrives, limits are kept, the model's bans stay. */
#include "sched/job.h"
#include "sched/settings.h"
#include "test.h"

enum { VOCAB = 1000 };

static const target model = {
    .n_vocab        = VOCAB,
    .suppress_id    = {7, 500, VOCAB - 1},
    .n_suppress_ids = 3,
    .defaults       = {.temp = 0.25f, .top_p = 0.5f, .min_p = 0.125f, .top_k = 12},
};

static float bias_of(const penalty_params *p, int32_t token, int *n_found)
{
    float found = 0;
    *n_found    = 0;
    for (int i = 0; i < p->n_bias; i++)
        if (p->bias[i].token == token) {
            found = p->bias[i].bias;
            ++*n_found;
        }
    return found;
}

/* A request may ban a token that the model bans, or favour it: it stays banned, and is there once. */
TEST(job_biases_do_not_lift_the_models_bans)
{
    static const tandem_bias asked[] = {{500, 100}, {3, -1}, {7, 0}, {4, 2}, {VOCAB - 1, -INFINITY}};
    logit_bias               room[JOB_MAX_BIAS];
    lane_options             o;
    tandem_request           r;
    err                      e = {0};
    int                      n;
    for (size_t n_asked = 0; n_asked <= COUNT(asked); n_asked++) {
        job_request_init(&r, &model);
        r.bias   = asked;
        r.n_bias = n_asked;
        if (!CHECK_OK(job_lane_options(&o, &model, &r, room, &e), e)) return;
        for (int i = 0; i < model.n_suppress_ids; i++) {
            CHECK(bias_of(&o.penalty, model.suppress_id[i], &n) == -INFINITY);
            CHECK_INT(n, 1);
        }
        CHECK_NEAR((double)bias_of(&o.penalty, 3, &n), n_asked > 1 ? -1 : 0, 0);
        CHECK_NEAR((double)bias_of(&o.penalty, 4, &n), n_asked > 3 ? 2 : 0, 0);
        CHECK_INT(o.penalty.n_bias, 3 + (n_asked > 1) + (n_asked > 3));
    }
}

TEST(job_biases_are_checked)
{
    static tandem_bias many[TANDEM_MAX_BIAS + 1];
    static logit_bias  room[JOB_MAX_BIAS];
    static target      large = {.n_vocab = 2 * TANDEM_MAX_BIAS, .defaults.top_p = 1};
    lane_options       o;
    tandem_request     r;
    err                e       = {0};
    const tandem_bias  bad[]   = {{-1, 1}, {VOCAB, 1}, {5, NAN}, {5, INFINITY}};
    const char        *why[]   = {"not in the vocabulary", "not in the vocabulary", "not a number", "not a number"};
    const tandem_bias  twice[] = {{5, 1}, {6, 1}, {5, 1}}, good[] = {{0, 1}, {VOCAB - 2, 1}};
    job_request_init(&r, &model);
    for (size_t i = 0; i < COUNT(bad); i++) {
        r.bias   = &bad[i];
        r.n_bias = 1;
        CHECK_FAILS(job_lane_options(&o, &model, &r, room, &e), e, why[i]);
        CHECK_INT(e.code, ERR_INPUT);
    }
    r.bias   = twice;
    r.n_bias = 3;
    CHECK_FAILS(job_lane_options(&o, &model, &r, room, &e), e, "token 5 is there twice");
    r.bias   = good;
    r.n_bias = 2;
    CHECK_OK(job_lane_options(&o, &model, &r, room, &e), e);
    for (int i = 0; i <= TANDEM_MAX_BIAS; i++) many[i] = (tandem_bias){i, 1};
    large.n_suppress_ids = MODEL_MAX_STOPS;
    for (int i = 0; i < MODEL_MAX_STOPS; i++) large.suppress_id[i] = TANDEM_MAX_BIAS + i;
    r.bias   = many;
    r.n_bias = TANDEM_MAX_BIAS;
    if (CHECK_OK(job_lane_options(&o, &large, &r, room, &e), e)) CHECK_INT(o.penalty.n_bias, JOB_MAX_BIAS);
    r.n_bias = TANDEM_MAX_BIAS + 1;
    CHECK_FAILS(job_lane_options(&o, &large, &r, room, &e), e, "the number of entries");
}

TEST(job_options_are_those_of_the_request)
{
    logit_bias     room[JOB_MAX_BIAS];
    lane_options   o;
    tandem_request r;
    err            e = {0};
    job_request_init(&r, &model);
    CHECK(r.temp == 0.25f && r.top_p == 0.5f && r.min_p == 0.125f && r.top_k == 12);
    CHECK(r.max_tokens == -1 && r.logprobs == -1 && r.repeat_penalty == 1 && r.spec.method == TANDEM_SPEC_AUTO);
    r.temp              = 1.5f;
    r.top_p             = 0.75f;
    r.min_p             = 0.0625f;
    r.top_k             = 33;
    r.seed              = 99;
    r.repeat_penalty    = 1.25f;
    r.presence_penalty  = 0.5f;
    r.frequency_penalty = -0.5f;
    r.logprobs          = 3;
    r.spec              = (tandem_speculation){.method        = TANDEM_SPEC_TREE,
                                               .draft_max     = 5,
                                               .tree_budget   = 11,
                                               .tree_temp     = 2,
                                               .no_chain_seed = true,
                                               .draft_noise   = 0.5f};
    if (!CHECK_OK(job_lane_options(&o, &model, &r, room, &e), e)) return;
    CHECK(o.params.temp == 1.5f && o.params.top_p == 0.75f && o.params.min_p == 0.0625f && o.params.top_k == 33);
    CHECK(o.params.seed == 99);
    CHECK(o.penalty.repeat == 1.25f && o.penalty.presence == 0.5f && o.penalty.frequency == -0.5f && o.n_top == 3);
    tandem_speculation back = job_speculation(&o.spec);
    CHECK(back.method == r.spec.method && back.draft_max == 5 && back.tree_budget == 11 && back.tree_temp == 2 &&
          back.no_chain_seed && back.draft_noise == 0.5f);
    r.choice = 1;
    if (CHECK_OK(job_lane_options(&o, &model, &r, room, &e), e)) CHECK(o.params.seed != 99); /* another answer */
}

/* The first value beyond each end is refused by name, the last one within is taken. */
TEST(job_limits_of_numbers)
{
    logit_bias     room[JOB_MAX_BIAS];
    lane_options   o;
    tandem_request r;
    err            e = {0};
#define LIMITS(field, low, high, step)                                                                                 \
    do {                                                                                                               \
        const double ends[] = {low, high}, beyond[] = {(low) - (step), (high) + (step)};                               \
        for (int i = 0; i < 2; i++) {                                                                                  \
            job_request_init(&r, &model);                                                                              \
            r.field = (__typeof__(r.field))ends[i];                                                                    \
            CHECK_OK(job_lane_options(&o, &model, &r, room, &e), e);                                                   \
            r.field = (__typeof__(r.field))beyond[i];                                                                  \
            CHECK_FAILS(job_lane_options(&o, &model, &r, room, &e), e, #field);                                        \
        }                                                                                                              \
    } while (0)
    LIMITS(temp, 0, 100, 0.001);
    LIMITS(top_p, 0, 1, 0.001);
    LIMITS(min_p, 0, 1, 0.001);
    LIMITS(top_k, 0, 1 << 22, 1);
    LIMITS(choice, 0, 1 << 20, 1);
    LIMITS(repeat_penalty, 0.011, 100, 0.002);
    LIMITS(presence_penalty, -100, 100, 0.01);
    LIMITS(frequency_penalty, -100, 100, 0.01);
    LIMITS(logprobs, -1, TANDEM_MAX_LOGPROBS, 1);
    LIMITS(spec.draft_max, 0, DRAFT_MAX, 1);
    LIMITS(spec.tree_budget, 0, DRAFT_MAX, 1);
    LIMITS(spec.tree_temp, 0, 100, 0.01);
    LIMITS(spec.draft_noise, 0, 1, 0.001);
    job_request_init(&r, &model);
    r.spec.method = (tandem_method)(TANDEM_SPEC_AUTO + 1);
    CHECK_FAILS(job_lane_options(&o, &model, &r, room, &e), e, "spec.method");
    r.spec.method = TANDEM_SPEC_AUTO;
    r.temp        = NAN;
    CHECK_FAILS(job_lane_options(&o, &model, &r, room, &e), e, "temp");
#undef LIMITS
}

TEST(sched_nothing_is_fine_to_free)
{
    forms_free(NULL);
    form_drop(NULL);
    settings_file_close(NULL);
}
