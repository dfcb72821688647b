/* From a request to the options of a lane: every field arrives, limits are kept, the model's bans stay. */
#include "sched/sched.h"
#include "test.h"

#include <malloc.h>

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
    CHECK_FAILS(job_lane_options(&o, &model, &r, room, &e), e, "token 5 appears twice");
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
                                               .draft_noise   = 0.5f,
                                               .draft_tail    = 7};
    if (!CHECK_OK(job_lane_options(&o, &model, &r, room, &e), e)) return;
    CHECK(o.params.temp == 1.5f && o.params.top_p == 0.75f && o.params.min_p == 0.0625f && o.params.top_k == 33);
    CHECK(o.params.seed == 99);
    CHECK(o.penalty.repeat == 1.25f && o.penalty.presence == 0.5f && o.penalty.frequency == -0.5f && o.n_top == 3);
    spec_settings back = o.spec;
    CHECK(back.method == (int)r.spec.method && back.draft_max == 5 && back.tree_budget == 11 && back.tree_temp == 2 &&
          back.no_chain_seed && back.draft_noise == 0.5f && back.draft_tail == 7);
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
    LIMITS(spec.draft_tail, 0, DRAFT_MAX, 1);
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
    grammar_cache_free(NULL);
    response_grammar_drop(NULL);
    settings_file_close(NULL);
}

/* --- from a request to a job, and its tokens ------------------------------------------------------ */
enum { CTX = 32, END = 9 };
static const target  short_model = {.n_vocab = VOCAB, .stop_id = {END}, .n_stop_ids = 1, .defaults.top_p = 1};
static const int32_t some_ids[CTX + 1];

typedef struct {
    job_maker      maker;
    settings       now;
    tandem_request r;
    err            e;
} workshop;

static bool open_workshop(test_case *t, workshop *w)
{
    *w = (workshop){0};
    settings_init(&w->now);
    job_request_init(&w->r, &short_model);
    w->r.ids   = some_ids;
    w->r.n_ids = 4;
    return CHECK_OK(job_maker_init(&w->maker, &short_model, NULL, CTX, 1, &w->e), w->e);
}

static tandem_job *make(workshop *w)
{
    tandem_job *j;
    w->e    = (err){0};
    bool ok = job_new(&j, &w->maker, &w->now, &w->r, NULL, NULL, &w->e);
    return ok ? j : NULL;
}

static bool is_refused_as(workshop *w, err_code code, const char *part)
{
    tandem_job *j = make(w);
    if (j) job_drop(j);
    return !j && w->e.code == code && strstr(w->e.text, part);
}

static bool is_refused(workshop *w, const char *part) { return is_refused_as(w, ERR_INPUT, part); }

static bool is_taken(workshop *w)
{
    tandem_job *j = make(w);
    if (j) job_drop(j);
    return j != NULL;
}

/* One token of an answer may lie beyond the context; a request without an answer may fill it. */
TEST(job_lengths_fit_the_context)
{
    workshop w;
    if (!open_workshop(t, &w)) return;
    w.now.default_max_tokens = 5;
    for (int n = 0; n <= CTX + 1; n++)
        for (int asked = -1; asked <= CTX + 2; asked++) {
            int want = asked < 0 ? 5 : asked, room = CTX + 1 - n;
            w.r.n_ids      = (size_t)n;
            w.r.max_tokens = asked;
            if (n == 0) {
                CHECK(is_refused(&w, "the prompt is empty"));
            } else if (n > CTX || (n == CTX && asked != 0)) {
                CHECK(is_refused_as(&w, ERR_CONTEXT, "tokens and the context holds 32") && w.e.limit == CTX);
            } else {
                tandem_job *j = make(&w);
                if (!CHECK_MSG(j, "%d and %d: %s", n, asked, w.e.text)) continue;
                CHECK_INT(j->max_out, want < room ? want : room);
                CHECK_INT(j->cut, want > room);
                CHECK_INT(j->result.usage.prompt_tokens, n);
                job_drop(j);
            }
        }
    job_maker_deinit(&w.maker);
}

TEST(job_numbers_have_ends)
{
    static int32_t stops[1025];
    int32_t        id[2] = {0, 0};
    workshop       w;
    if (!open_workshop(t, &w)) return;
#define ENDS(field, low, high, step, name)                                                                             \
    do {                                                                                                               \
        w.r.field = low;                                                                                               \
        CHECK(is_taken(&w));                                                                                           \
        w.r.field = (low) - (step);                                                                                    \
        CHECK(is_refused(&w, name));                                                                                   \
        w.r.field = high;                                                                                              \
        CHECK(is_taken(&w));                                                                                           \
        w.r.field = (high) + (step);                                                                                   \
        CHECK(is_refused(&w, name));                                                                                   \
        w.r.field = 0;                                                                                                 \
    } while (0)
    ENDS(priority, -100, 100, 1, "priority must be between -100 and 100");
    ENDS(time_limit_s, 0, 1e9, 1, "time_limit_s must be between");
    w.r.ids        = id;
    w.r.n_ids      = 2;
    w.r.max_tokens = INT32_MAX;
    CHECK(is_taken(&w));
    w.r.max_tokens = -2;
    CHECK(is_refused(&w, "max_tokens must be between -1 and"));
    w.r.max_tokens = 1;
    for (int i = 0; i < 2; i++) {
        static const int32_t bad[] = {-1, VOCAB};
        id[1]                      = bad[i];
        CHECK(is_refused(&w, "of the prompt is not in the vocabulary of 1000"));
        id[1] = i ? VOCAB - 1 : 0;
        CHECK(is_taken(&w));
    }
#undef ENDS
    w.r.stop_ids   = stops;
    w.r.n_stop_ids = 1024;
    CHECK(is_taken(&w));
    w.r.n_stop_ids = 1025;
    CHECK(is_refused(&w, "stop_ids must be between 0 and 1024, got 1025"));
    w.r.n_stop_ids = 0;
    w.r.stop       = (const char *const[]){"x"};
    w.r.n_stop     = 1;
    CHECK(is_refused(&w, "no tokenizer: stop strings cannot be used"));
    w.r.n_stop = 0;
    w.r.ids    = NULL;
    w.r.text   = "text";
    CHECK(is_refused(&w, "no tokenizer: the prompt must be token ids"));
    job_maker_deinit(&w.maker);
}

TEST(job_deadlines)
{
    workshop w;
    if (!open_workshop(t, &w)) return;
    static const struct {
        double  limit_s;
        int64_t request_ms, queue_ms;
        double  deadline, queue_deadline;
    } k[] = {{0, SETTING_UNLIMITED, SETTING_UNLIMITED, INFINITY, INFINITY},
             {5, SETTING_UNLIMITED, 30000, 5, 30},
             {5, 1000, 0, 5, 0},
             {0, 1500, 250, 1.5, 0.25},
             {0, 0, 1, 0, 0.001}};
    for (size_t i = 0; i < COUNT(k); i++) {
        w.r.time_limit_s         = k[i].limit_s;
        w.now.request_timeout_ms = k[i].request_ms;
        w.now.queue_timeout_ms   = k[i].queue_ms;
        tandem_job *j            = make(&w);
        if (!CHECK_MSG(j, "%s", w.e.text)) continue;
        double at[]   = {j->deadline - j->submitted, j->queue_deadline - j->submitted},
               want[] = {k[i].deadline, k[i].queue_deadline};
        for (int x = 0; x < 2; x++) CHECK_MSG(at[x] == want[x] || fabs(at[x] - want[x]) < 1e-6, "%g", at[x]);
        job_drop(j);
    }
    job_maker_deinit(&w.maker);
}

/* Equal names have equal numbers within an engine, and other names, no name and other engines have others. */
TEST(job_names_are_hashed)
{
    static const char *const name[] = {"a", "b", "a", NULL, ""};
    tandem_job              *j[COUNT(name)];
    workshop                 w, other;
    if (!open_workshop(t, &w) || !open_workshop(t, &other)) return;
    for (size_t i = 0; i < COUNT(name); i++) {
        w.r.tenant = w.r.account = w.r.kind = w.r.id = name[i];
        w.r.choice                                   = (int)i;
        j[i]                                         = make(&w);
        if (!CHECK_MSG(j[i], "%s", w.e.text)) return;
        CHECK_STR(str_of(j[i]->id), str_of(name[i] ? name[i] : ""));
        CHECK_INT(j[i]->is_repeat, i > 0);
    }
    for (size_t a = 0; a < COUNT(name); a++)
        for (size_t b = 0; b < a; b++) {
            bool same = a == 2 && b == 0;
            CHECK((j[a]->salt == j[b]->salt) == same && (j[a]->account_key == j[b]->account_key) == same);
            CHECK((j[a]->kind == j[b]->kind) == same);
        }
    CHECK(!j[3]->salt && !j[3]->account_key && !j[3]->kind);
    other.r.tenant = other.r.kind = "a";
    tandem_job *elsewhere         = make(&other);
    CHECK(elsewhere->salt != j[0]->salt && elsewhere->kind == j[0]->kind);
    job_drop(elsewhere);
    for (size_t i = 0; i < COUNT(name); i++) job_drop(j[i]);
    job_maker_deinit(&w.maker);
    job_maker_deinit(&other.maker);
}

static spec_out *tokens(int n, int first)
{
    static spec_out out;
    out = (spec_out){.n = n};
    for (int i = 0; i < n; i++) {
        out.token[i] = first + i;
        for (int k = 0; k < 3; k++) out.logprob[i][k] = (token_logprob){first + i + k, -(float)k};
    }
    return &out;
}

/* Keeps tokens 5, 6 and so on, END is the fifth; returns how many became text. */
static int keep_all(tandem_job *j, int n)
{
    job_scratch s;
    err         e = {0};
    job_scratch_init(&s, NULL, &e);
    int kept = job_keep(j, tokens(n, END - 4), &s);
    job_scratch_deinit(&s);
    return kept;
}

static bool until_seven(void *ctx, int32_t token)
{
    ++*(int *)ctx;
    return token != 7;
}

TEST(job_answers_end)
{
    static const int32_t own[] = {6, 8};
    workshop             w;
    int                  asked = 0;
    if (!open_workshop(t, &w)) return;
    w.r.max_tokens = 10;
#define ENDS(kept, why, at)                                                                                            \
    do {                                                                                                               \
        tandem_job *j = make(&w);                                                                                      \
        CHECK_INT(keep_all(j, 8), kept);                                                                               \
        CHECK_INT(j->n_kept, kept);                                                                                    \
        CHECK_INT(j->result.finish, why);                                                                              \
        CHECK_INT(j->stop_at, at);                                                                                     \
        for (int i = 0; i < j->n_kept; i++) CHECK_INT(j->token[i], END - 4 + i);                                       \
        job_drop(j);                                                                                                   \
    } while (0)
    ENDS(5, TANDEM_FINISH_STOP, 4);
    w.r.ignore_stop_ids = true;
    ENDS(8, TANDEM_FINISH_NONE, -1);
    w.r.stop_ids   = own;
    w.r.n_stop_ids = 1;
    ENDS(2, TANDEM_FINISH_STOP, 1); /* its own are not ignored */
    w.r.stop_ids = own + 1;
    ENDS(4, TANDEM_FINISH_STOP, 3);
    w.r.n_stop_ids = 0;
    w.r.max_tokens = 3;
    ENDS(3, TANDEM_FINISH_LENGTH, -1);
    w.r.max_tokens = 0;
    ENDS(0, TANDEM_FINISH_LENGTH, -1);
    w.r.max_tokens   = 8;
    w.r.on_token     = until_seven;
    w.r.on_token_ctx = &asked;
    ENDS(3, TANDEM_FINISH_STOP_STRING, -1);
    CHECK_INT(asked, 3);
    w.r.on_token = NULL;
    ENDS(8, TANDEM_FINISH_LENGTH, -1);
#undef ENDS
    for (int n = 0; n < 2; n++) { /* the first token of the vocabulary is as good as any */
        job_scratch s;
        w.r.n_stop_ids = (size_t)n;
        tandem_job *j  = make(&w);
        job_scratch_init(&s, NULL, &w.e);
        CHECK_INT(job_keep(j, tokens(3, 0), &s), 3);
        CHECK(!j->result.finish);
        job_scratch_deinit(&s);
        job_drop(j);
    }
    w.r.n_stop_ids = 0;
    for (int full = 0; full < 2; full++) { /* the context is full only where more was asked for */
        w.r.n_ids      = CTX - 2;
        w.r.max_tokens = 3 + full;
        tandem_job *j  = make(&w);
        CHECK_INT(keep_all(j, 2), 2);
        CHECK(!j->result.finish && !j->result.context_full);
        CHECK_INT(keep_all(j, 2), 1);
        CHECK_INT(j->result.finish, TANDEM_FINISH_LENGTH);
        CHECK_INT(j->result.context_full, full);
        job_drop(j);
    }
    tandem_job *j = make(&w);
    atomic_store(&j->cancelled, true);
    CHECK_INT(keep_all(j, 2), 0);
    CHECK_INT(j->result.finish, TANDEM_FINISH_CANCELLED);
    job_drop(j);
    job_maker_deinit(&w.maker);
}

static void count(void *ctx) { ++*(int *)ctx; }

/* Tokens can be read when they are published; the reader is told once in a while, and of the end. */
TEST(job_readers_are_told)
{
    workshop     w;
    tandem_token x[8];
    int          told = 0;
    if (!open_workshop(t, &w)) return;
    w.r.max_tokens = 10;
    w.r.logprobs   = 2;
    w.r.wake       = count;
    w.r.wake_ctx   = &told;
    tandem_job *j  = make(&w);
    atomic_store(&j->holders, 2);
    CHECK(!job_publish(j, 100, 0) && !job_wake_reader(j, 100)); /* nothing is new */
    keep_all(j, 2);
    CHECK_INT(tandem_poll(j, x, 8), 0);
    CHECK(!tandem_wait(j, 0));
    CHECK(job_publish(j, 100, 100)); /* a long time since never */
    CHECK(tandem_wait(j, 0) && told == 1 && !job_wake_reader(j, 100));
    CHECK_INT(tandem_poll(j, x, 1), 1);
    CHECK(x[0].id == 5 && !x[0].is_stop);
    CHECK_INT(tandem_poll(j, x, 8), 1);
    CHECK(x[0].id == 6 && x[0].logprobs[0].id == 6 && x[0].logprobs[2].id == 8 && x[0].logprobs[2].logprob == -2);
    CHECK_INT(tandem_poll(j, x, 8), 0);
    keep_all(j, 1);
    CHECK(!job_publish(j, 100.5, 1) && told == 1);
    CHECK(tandem_wait(j, 0) && tandem_poll(j, x, 8) == 1); /* though nobody said so */
    CHECK(job_wake_reader(j, 100.6) && told == 2 && !job_wake_reader(j, 100.7));
    keep_all(j, 1);
    CHECK(!job_publish(j, 101.5, 1) && job_wake_reader(j, 101.5) && told == 3);
    keep_all(j, 1);
    CHECK(job_publish(j, 102.5, 1) && told == 4); /* just long enough ago */
    keep_all(j, 8);                               /* 6, 7, 8 and END */
    CHECK(!tandem_job_result(j));
    job_finish(j);
    CHECK(told == 5 && tandem_job_result(j) && !j->compiled);
    CHECK_INT(tandem_job_result(j)->usage.completion_tokens, 10);
    CHECK_INT(tandem_poll(j, x, 8), 7);
    CHECK(x[6].is_stop && !x[5].is_stop);
    CHECK(tandem_wait(j, 0));
    tandem_cancel(j); /* of what is done: nothing */
    CHECK(!atomic_load(&j->cancelled));
    job_drop(j);
    job_maker_deinit(&w.maker);
}

/* The last of its holders frees a job, and no one before. */
TEST(job_memory_goes_with_the_last_holder)
{
    workshop w;
    if (!open_workshop(t, &w)) return;
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 300; i++) {
        tandem_job *j = make(&w);
        atomic_store(&j->holders, 2);
        job_drop(j);
        CHECK_INT(j->max_out, CTX + 1 - 4); /* still there */
        job_drop(j);
    }
    CHECK(mallinfo2().uordblks < before + 20000); /* 300 jobs take more than 300,000 bytes */
    job_maker_deinit(&w.maker);
}

TEST(job_names_of_enums)
{
    static const char *const finishes[] = {"none", "stop", "stop_string", "length", "cancelled", "timeout", "error"};
    for (int i = 0; i < TANDEM_FINISHES; i++)
        CHECK_STR(str_of(tandem_finish_name((tandem_finish)i)), str_of(finishes[i]));
    CHECK(!tandem_finish_name((tandem_finish)-1) && !tandem_finish_name(TANDEM_FINISHES));
    for (int i = 0; i < TANDEM_SPEC_METHODS; i++) CHECK(tandem_method_name(i));
    CHECK_STR(str_of(tandem_method_name(0)), STR("off"));
    CHECK_STR(str_of(tandem_method_name(SPEC_AUTO)), STR("auto"));
    CHECK_STR(str_of(tandem_method_name(TANDEM_SPEC_GRAMMAR)), STR("grammar"));
    CHECK(!tandem_method_name(-1) && !tandem_method_name(TANDEM_SPEC_METHODS));
    for (int i = 0; i < ROUTE_REASONS; i++) CHECK_STR(str_of(tandem_route_name(i)), str_of(route_reason_names[i]));
    CHECK(!tandem_route_name(-1) && !tandem_route_name(ROUTE_REASONS));
}

/* Every count of a request's usage is added to the same count of the engine's. */
TEST(job_usage_is_added_up)
{
    tandem_usage u  = {.spec = {.rounds = 1, .plain_rounds = 2, .drafted = 3, .accepted = 4}};
    tandem_stats to = {0};
    for (int i = 0; i < TANDEM_MAX_DRAFT; i++) u.spec.tried_at[i] = 100 + i, u.spec.right_at[i] = 200 + i;
    for (int i = 0; i < TANDEM_SPEC_METHODS; i++)
        u.spec.rounds_by_method[i] = 300 + i, u.spec.drafted_by_method[i] = 400 + i,
        u.spec.accepted_by_method[i] = 500 + i;
    for (int n = 1; n <= 3; n++) {
        spec_counts_add(&to.spec, &u.spec);
        CHECK(to.spec.rounds == n && to.spec.plain_rounds == 2 * n && to.spec.drafted == 3 * n &&
              to.spec.accepted == 4 * n);
        for (int i = 0; i < TANDEM_MAX_DRAFT; i++)
            CHECK(to.spec.tried_at[i] == n * (100 + i) && to.spec.right_at[i] == n * (200 + i));
        for (int i = 0; i < TANDEM_SPEC_METHODS; i++)
            CHECK(to.spec.rounds_by_method[i] == n * (300 + i) && to.spec.drafted_by_method[i] == n * (400 + i) &&
                  to.spec.accepted_by_method[i] == n * (500 + i));
    }
}

/* Requests may ask for less than tandem_options.spec, and not for more. */
TEST(job_speculation_has_limits)
{
    static const struct {
        tandem_speculation limit, ask, want;
    } c[] = {
        {{TANDEM_SPEC_AUTO, 0, 0, 0, false, 0, 0},
         {TANDEM_SPEC_TREE, 9, 40, 2, true, 1, 0},
         {TANDEM_SPEC_TREE, 9, 40, 2, true, 1, 0}},
        {{TANDEM_SPEC_AUTO, 4, 8, 3, true, 1, 0},
         {TANDEM_SPEC_AUTO, 0, 0, 0, false, 0, 0},
         {TANDEM_SPEC_AUTO, 4, 8, 0, false, 0, 0}},
        {{TANDEM_SPEC_MTP, 4, 8, 3, true, 1, 0},
         {TANDEM_SPEC_DFLASH, 3, 9, 2, false, 0, 0},
         {TANDEM_SPEC_MTP, 3, 8, 2, false, 0, 0}},
        {{TANDEM_SPEC_MTP, 4, 0, 0, false, 0, 0},
         {TANDEM_SPEC_OFF, 5, 9, 2, true, 0, 0},
         {TANDEM_SPEC_OFF, 4, 9, 2, true, 0, 0}},
        {{TANDEM_SPEC_OFF, 0, 0, 0, false, 0, 0},
         {TANDEM_SPEC_AUTO, 5, 0, 0, true, 0, 0},
         {TANDEM_SPEC_OFF, 5, 0, 0, true, 0, 0}},
    };
    workshop w;
    if (!open_workshop(t, &w)) return;
    for (size_t i = 0; i < COUNT(c); i++) {
        w.r.spec      = c[i].ask;
        w.maker.limit = &c[i].limit;
        tandem_job *j = make(&w);
        if (!CHECK_MSG(j != NULL, "%s", w.e.text)) break;
        const spec_settings *s = &j->opt.spec, want = job_spec_settings(&c[i].want);
        CHECK_MSG(s->method == want.method && s->draft_max == want.draft_max && s->tree_budget == want.tree_budget &&
                      s->tree_temp == want.tree_temp && s->no_chain_seed == want.no_chain_seed &&
                      s->draft_noise == want.draft_noise,
                  "case %zu: method %d, draft_max %d, tree_budget %d", i, s->method, s->draft_max, s->tree_budget);
        job_drop(j);
    }
    job_maker_deinit(&w.maker);
}
