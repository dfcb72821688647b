/* Where answers may not end yet, and where they do. */
#include "engine_rig.h"

enum { MORE = 12 };

/* "Hi", which nano answers in a few tokens. */
static bool greet(test_case *t, const tandem *e, tandem_request *r, tandem_ids *ids)
{
    tandem_error   why = {0};
    tandem_message m   = {"user", "Hi"};
    if (!CHECK_MSG(tandem_chat_prompt(e, &m, 1, false, ids, NULL, &why), "%s", why.text)) return false;
    tandem_request_init(e, r);
    r->ids         = ids->p;
    r->n_ids       = ids->n;
    r->max_tokens  = 64;
    r->spec.method = TANDEM_SPEC_OFF;
    return true;
}

/* Every method and temperature gives the text of plain decoding, which has no end before min_tokens are there. */
TEST(ends_do_not_come_before_min_tokens)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_ids     ids;
    nano_answer    free, plain, a;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    if (greet(t, e, &r, &ids)) {
        for (int temp = 0; temp < 2; temp++) {
            r.temp       = (float)temp;
            r.has_seed   = true;
            r.seed       = 3;
            r.min_tokens = 0;
            nano_ask(t, e, &r, &free);
            CHECK(free.n > 0 && free.n < 64 && free.result.finish == TANDEM_FINISH_STOP);
            r.min_tokens = free.n + MORE;
            nano_ask(t, e, &r, &plain);
            CHECK_MSG(plain.n > free.n + MORE || plain.n == 64, "%d tokens, at least %d", plain.n, free.n + MORE);
            CHECK(!memcmp(plain.token, free.token, (size_t)(free.n - 1) * sizeof *free.token));
            CHECK(plain.token[free.n - 1] != free.token[free.n - 1]);
            for (int m = TANDEM_SPEC_DFLASH; m <= TANDEM_SPEC_AUTO; m++) {
                r.spec.method = (tandem_method)m;
                nano_ask(t, e, &r, &a);
                nano_same(t, &a, &plain);
            }
            r.spec.method = TANDEM_SPEC_OFF;
            r.min_tokens  = free.n - 1; /* the end itself comes behind so many */
            nano_ask(t, e, &r, &a);
            nano_same(t, &a, &free);
        }
        tandem_ids_free(&ids);
    }
    nano_check_idle(t, e);
    tandem_close(e);
}

/* A round whose guesses reach beyond min_tokens judges each of them by its own place. */
TEST(ends_come_at_their_place_within_a_round)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    plain, a;
    int64_t        accepted = 0;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    for (int min = 1; min <= 16; min++) {
        nano_request(e, &r, 24);
        r.ignore_stop_ids = true;
        r.spec.method     = TANDEM_SPEC_OFF;
        nano_ask(t, e, &r, &plain);
        int32_t stop = plain.token[min]; /* it would end here */
        r.stop_ids   = &stop;
        r.n_stop_ids = 1;
        r.min_tokens = min;
        nano_ask(t, e, &r, &plain);
        for (int m = TANDEM_SPEC_DFLASH; m <= TANDEM_SPEC_NGRAM; m++) {
            r.spec.method = (tandem_method)m;
            nano_ask(t, e, &r, &a);
            nano_same(t, &a, &plain);
            CHECK_INT(a.result.finish, plain.result.finish);
            accepted += a.result.usage.spec.accepted;
        }
    }
    CHECK(accepted > 0);
    tandem_close(e);
}

/* Stop ids of the request are held back as well, and biases stay. */
TEST(ends_of_the_request_do_not_come_before_min_tokens)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_ids     ids;
    nano_answer    free, a;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    if (greet(t, e, &r, &ids)) {
        r.temp = 0;
        nano_ask(t, e, &r, &free);
        int32_t     stop = free.token[1];
        tandem_bias bias = {stop, 5};
        r.stop_ids       = &stop;
        r.n_stop_ids     = 1;
        nano_ask(t, e, &r, &a);
        CHECK_INT(a.n, 2);
        r.min_tokens = 4;
        r.bias       = &bias;
        r.n_bias     = 1;
        nano_ask(t, e, &r, &a);
        CHECK(a.n > 4);
        for (int i = 0; i < 4 && i < a.n; i++) CHECK(a.token[i] != stop);
        tandem_ids_free(&ids);
    }
    tandem_close(e);
}

TEST(ends_and_grammars_do_not_go_together)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    tandem_job    *j   = NULL;
    tandem_error   why = {0};
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 8);
    r.min_tokens = 2;
    r.grammar    = (tandem_grammar){.kind = TANDEM_GRAMMAR_OBJECT};
    CHECK(!tandem_submit(e, &r, &j, &why) && why.code == TANDEM_INPUT && strstr(why.text, "min_tokens"));
    r.grammar    = (tandem_grammar){0};
    r.min_tokens = -1;
    CHECK(!tandem_submit(e, &r, &j, &why) && strstr(why.text, "min_tokens"));
    tandem_close(e);
}
