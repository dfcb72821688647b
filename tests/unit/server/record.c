#include "server/record.h"
#include "server/request_log_inside.h"

#include "test.h"

static const tandem_result answers[2] = {{.finish = TANDEM_FINISH_LENGTH,
                                          .usage  = {.prompt_tokens     = 31,
                                                     .cached_tokens     = 16,
                                                     .completion_tokens = 41,
                                                     .queue_s           = 0.25,
                                                     .prefill_s         = 0.5,
                                                     .decode_s          = 2,
                                                     .spec.rounds       = 10,
                                                     .spec.drafted      = 40,
                                                     .spec.accepted     = 30,
                                                     .route             = TANDEM_SPEC_DFLASH,
                                                     .route_reason      = "pays"}},
                                         {.finish = TANDEM_FINISH_STOP,
                                          .usage  = {.prompt_tokens     = 31,
                                                     .cached_tokens     = 31,
                                                     .completion_tokens = 11,
                                                     .queue_s           = 0.5,
                                                     .prefill_s         = 0.125,
                                                     .decode_s          = 1,
                                                     .spec.rounds       = 2,
                                                     .spec.drafted      = 8,
                                                     .spec.accepted     = 6,
                                                     .route_reason      = ""}}};

static const server_record two = {.id            = "req-1",
                                  .endpoint      = "/v1/chat/completions",
                                  .status        = 200,
                                  .delivered     = true,
                                  .total_s       = 4,
                                  .choice        = {&answers[0], &answers[1]},
                                  .shares_prompt = {false, true},
                                  .n_choices     = 2};

TEST(server_record_sums)
{
    record_sums   s;
    server_record one = two;
    one.n_choices     = 1;
    record_sum(&s, &one);
    CHECK_INT(s.completion_tokens, 41);
    CHECK_NEAR(s.decode_rate, 20, 0); /* the first token is no decoding */
    CHECK_NEAR(s.total_rate, 10.25, 0);
    CHECK_NEAR(s.acceptance_rate, 0.75, 0);
    CHECK_NEAR(s.acceptance_length, 4, 0);
    CHECK_NEAR(s.first_s, 0.75, 0);
    CHECK_STR(str_of(s.finish), STR("length"));

    record_sum(&s, &two);
    CHECK_INT(s.prompt_tokens, 31); /* one prompt */
    CHECK_INT(s.cached_tokens, 16);
    CHECK_INT(s.completion_tokens, 52);
    CHECK_NEAR(s.decode_rate, 25, 0);
    CHECK_NEAR(s.queue_s, 0.5, 0);
    CHECK_NEAR(s.first_s, 0.625, 0);
    CHECK_NEAR(s.acceptance_length, 4, 0);

    server_record prompts    = two;
    prompts.shares_prompt[1] = false;
    record_sum(&s, &prompts);
    CHECK_INT(s.prompt_tokens, 62);
    CHECK_INT(s.cached_tokens, 47);

    record_sum(&s, &(server_record){.status = 429});
    CHECK(s.completion_tokens == 0 && s.decode_rate == 0 && s.acceptance_length == 0 && !s.finish[0]);
}

static const log_field *field(const log_field *f, size_t n, const char *name)
{
    static const log_field none;
    for (size_t i = 0; i < n; i++)
        if (strcmp(f[i].name, name) == 0) return &f[i];
    return &none;
}

TEST(server_request_log_fields)
{
    log_field f[REQUEST_LOG_FIELDS];
    size_t    n = request_log_fields(f, &two);
    CHECK_INT(field(f, n, "prompt")->i, 31);
    CHECK_INT(field(f, n, "cached")->i, 16);
    CHECK_INT(field(f, n, "tokens")->i, 52);
    CHECK_INT(field(f, n, "status")->i, 200);
    CHECK_NEAR(field(f, n, "decode_tok_s")->d, 25, 0);
    CHECK_NEAR(field(f, n, "total_tok_s")->d, 13, 0);
    CHECK_STR(str_of(field(f, n, "route")->s), STR("dflash"));
    CHECK_STR(str_of(field(f, n, "reason")->s), STR("pays"));
    CHECK_STR(str_of(field(f, n, "finish")->s), STR("length"));
    CHECK(field(f, n, "tenant")->name && !field(f, n, "tenant")->s);

    n = request_log_fields(f, &(server_record){.id = "req-2", .endpoint = "/v1/models", .status = 200});
    CHECK(!field(f, n, "tokens")->name); /* had no answers */
    CHECK_STR(str_of(field(f, n, "sent")->s), STR("cut"));
}
