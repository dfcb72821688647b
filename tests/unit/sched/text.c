/* The public functions for text, options and what was opened: each with its bounds. */
#include "chat/chat.h"
#include "engine_rig.h"
#include "sched/inside.h"

#include <stdlib.h>

/* Pieces of an answer are whole characters, whatever room there is for them. */
TEST(sched_reads_whole_characters)
{
    static const char want[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z\xc3\xa9\xe2\x82\xac";
    tandem_options    o;
    tandem           *e;
    tandem_request    r;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    for (size_t cap = 4; cap <= sizeof want + 1; cap++) {
        char   all[100], piece[40];
        size_t n = 0, got;
        nano_request(e, &r, 60);
        r.grammar     = (tandem_grammar){.kind = TANDEM_GRAMMAR_GBNF,
                                         .text = "root ::= \"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z\xc3\xa9\xe2\x82\xac\""};
        tandem_job *j = nano_submit(t, e, &r);
        if (!j) break;
        while (!tandem_job_result(j)) tandem_wait(j, 0.001); /* so that there is more to read than room */
        while ((got = tandem_read(j, piece, cap)) > 0 && n + got < sizeof all) {
            CHECK(got <= cap && ((unsigned char)piece[0] & 0xC0) != 0x80);
            memcpy(all + n, piece, got);
            n += got;
        }
        CHECK_STR(((str){all, n}), str_of(want));
        CHECK_INT(tandem_read(j, piece, cap), 0);
        tandem_release(j);
    }
    nano_check_idle(t, e);
    tandem_close(e);
}

/* As snprintf: the length that is needed, and as much as there is room for with a NUL behind it. */
TEST(sched_text_fits_its_room)
{
    tandem_options o;
    tandem        *e;
    tandem_ids     ids;
    tandem_error   why = {0};
    char           out[32];
    nano_options(&o);
    o.n_drafters = 0;
    if (!nano_open(t, &e, &o)) return;
    CHECK_OK(tandem_tokenize(e, "27 + 58", 7, false, &ids, &why), why);
    for (size_t cap = 0; cap <= 9; cap++) {
        memset(out, '#', sizeof out);
        CHECK_INT(tandem_detokenize(e, ids.p, ids.n, false, out, cap), 7);
        size_t n = cap == 0 ? 0 : cap <= 7 ? cap - 1 : 7;
        CHECK(!memcmp(out, "27 + 58", n) && (cap == 0 || out[n] == 0) && out[cap < 8 ? cap : 8] == '#');
    }
    tandem_ids_free(&ids);
    CHECK(!ids.p && !ids.n);
    size_t n = tandem_settings(e, out, sizeof out);
    CHECK(n > sizeof out && strlen(out) == sizeof out - 1 && str_starts(str_of(out), "{\"dflash_enabled\":"));
    CHECK_INT(tandem_settings(e, NULL, 0), n);
    tandem_close(e);
}

static bool asks(const tandem *e, const char *role, bool think, size_t *n, bool *in_thought, tandem_error *why)
{
    const tandem_message talk[] = {{role, "Hello."}, {"user", "Hi"}};
    tandem_ids           ids;
    bool                 ok = tandem_chat_prompt(e, talk, 2, think, &ids, in_thought, why);
    *n                      = ids.n;
    tandem_ids_free(&ids);
    return ok;
}

TEST(sched_chats_have_these_roles)
{
    static const char *const        good[] = {"system", "developer", "user", "assistant"},
                             *const bad[]  = {"tool", "", "System", "a role with a name of more than forty characters"};
    tandem_options                  o;
    tandem                         *e;
    tandem_error                    why = {0};
    size_t                          n, thinking;
    bool                            in_thought;
    nano_options(&o);
    o.n_drafters = 0;
    if (!nano_open(t, &e, &o)) return;
    for (size_t i = 0; i < COUNT(good); i++) {
        CHECK_OK(asks(e, good[i], false, &n, &in_thought, &why), why);
        CHECK_OK(asks(e, good[i], true, &thinking, &in_thought, &why), why);
        CHECK_MSG(n > 6 && thinking != n, "%s: %zu and %zu tokens", good[i], n, thinking);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        CHECK_FAILS(asks(e, bad[i], false, &n, NULL, &why), why,
                    "is not a role, expected system, developer, user or assistant");
        CHECK_INT(why.code, TANDEM_INPUT);
        CHECK_INT(n, 0);
    }
    CHECK(!asks(e, "tool", false, &n, NULL, NULL)); /* nobody wants to know why */
    tandem_close(e);
}

/* Returns the path of a copy of nano in which the tokenizer's keys have other names. */
static const char *without_tokenizer(test_case *t)
{
    err      e = {0};
    file_map m;
    if (!CHECK_OK(file_map_open(&m, test_path("models/nano/target.gguf"), &e), e)) return "";
    char *copy = malloc(m.n);
    memcpy(copy, m.p, m.n);
    for (char *at = copy; (at = memmem(at, (size_t)(copy + m.n - at), "tokenizer.ggml.", 15));) memcpy(at, "t0", 2);
    const char *path = test_tmp_file("no_tokenizer.gguf", copy, m.n);
    free(copy);
    file_map_close(&m);
    return path;
}

/* A model without a tokenizer takes ids; text in and out is refused. */
TEST(sched_without_a_tokenizer)
{
    static const tandem_message talk[] = {{"user", "Hi"}};
    tandem_options              o;
    tandem                     *e;
    tandem_request              r;
    tandem_ids                  ids;
    tandem_info                 info;
    nano_answer                 a;
    tandem_error                why = {0};
    tandem_job                 *j;
    char                        text[8] = "#";
    err                         bad     = {0};
    nano_options(&o);
    o.n_drafters = 0;
    o.path       = without_tokenizer(t);
    if (!CHECK_OK(engine_open(&e, &o, &(engine_extra){0}, &bad), bad)) return;
    tandem_get_info(e, &info);
    CHECK(!info.has_tokenizer && !info.has_dflash && !info.has_mtp);
    CHECK_FAILS(tandem_tokenize(e, "x", 1, false, &ids, &why), why, "which text needs");
    CHECK_FAILS(tandem_chat_prompt(e, talk, 1, false, &ids, NULL, &why), why, "which text needs");
    CHECK_INT(tandem_detokenize(e, nano_prompt, 3, false, text, sizeof text), 0);
    CHECK_INT(text[0], 0);
    nano_request(e, &r, 5);
    r.ids  = NULL;
    r.text = "Hi";
    CHECK_FAILS(tandem_submit(e, &r, &j, &why), why, "must be token ids");
    nano_request(e, &r, 5);
    nano_ask(t, e, &r, &a);
    CHECK_INT(a.n, 5);
    j = nano_submit(t, e, &r);
    CHECK_INT(tandem_read(j, text, sizeof text), 0); /* at once */
    tandem_release(j);
    tandem_close(e);
}

/* --- opening ------------------------------------------------------------------------------------*/
static bool opens(const tandem_options *o, tandem_error *why)
{
    tandem *e;
    *why    = (tandem_error){0};
    bool ok = tandem_open(&e, o, why);
    tandem_close(e);
    return ok;
}

TEST(sched_options_have_ends)
{
    tandem_options o;
    tandem_error   why;
#define ENDS(field, low, high, name)                                                                                   \
    do {                                                                                                               \
        nano_options(&o);                                                                                              \
        o.n_drafters = 0;                                                                                              \
        o.field      = low;                                                                                            \
        CHECK_OK(opens(&o, &why), why);                                                                                \
        o.field = (low)-1;                                                                                             \
        CHECK_FAILS(opens(&o, &why), why, name " must be between ");                                                   \
        o.field = high;                                                                                                \
        CHECK_OK(opens(&o, &why), why);                                                                                \
        o.field = (high) + 1;                                                                                          \
        CHECK_FAILS(opens(&o, &why), why, name " must be between ");                                                   \
    } while (0)
    ENDS(max_lanes, 1, TANDEM_MAX_LANES, "max_lanes");
    ENDS(step_tokens, 16, TANDEM_MAX_STEP_TOKENS, "step_tokens");
    ENDS(wake_ms, 0, 1000, "wake_ms");
#undef ENDS
    nano_options(&o);
    o.n_drafters  = 0;
    o.max_lanes   = 20; /* each lane has a row */
    o.step_tokens = 20;
    CHECK_OK(opens(&o, &why), why);
    o.step_tokens = 19;
    CHECK_FAILS(opens(&o, &why), why, "step_tokens must be between 20 and 4096, got 19");
    nano_options(&o);
    o.n_threads = -1;
    CHECK_FAILS(opens(&o, &why), why, "n_threads must be between 0 and 256, got -1");
    o.n_threads = 257;
    CHECK_FAILS(opens(&o, &why), why, "n_threads must be between 0 and 256, got 257");
    nano_options(&o);
    o.n_ctx = -1;
    CHECK_FAILS(opens(&o, &why), why, "n_ctx must be between 0 and 16777216, got -1");
    nano_options(&o);
    o.n_drafters = -1;
    CHECK_FAILS(opens(&o, &why), why, "n_drafters must be between 0 and 64, got -1");
    o.n_drafters = 65;
    CHECK_FAILS(opens(&o, &why), why, "n_drafters must be between 0 and 64, got 65");
    nano_options(&o);
    o.kv_bytes = (uint64_t)1 << 50;
    CHECK_FAILS(opens(&o, &why), why, "the K/V cache of this context needs 1125899.9 GB of memory");
    tandem *e;
    CHECK(!tandem_open(&e, &o, NULL) && !e); /* nobody wants to know why */
}

TEST(sched_tells_what_was_opened)
{
    tandem_options o;
    tandem        *e;
    tandem_info    i;
    for (int named = 0; named < 2; named++) {
        nano_options(&o);
        o.n_ctx        = 0;
        o.max_lanes    = 3;
        o.step_tokens  = 99;
        o.kv_type      = named ? "f32" : "f16";
        o.name         = named ? "a name" : NULL;
        o.shown        = named ? "a path" : NULL;
        o.fingerprints = named;
        if (!nano_open(t, &e, &o)) return;
        tandem_get_info(e, &i);
        CHECK_STR(str_of(i.name), str_of(named ? "a name" : o.path));
        CHECK_STR(str_of(i.shown), str_of(named ? "a path" : o.path));
        CHECK_STR(str_of(i.path), str_of(o.path));
        CHECK_STR(str_of(i.kv_type), str_of(o.kv_type));
        CHECK_INT(str_starts(str_of(i.fingerprint), "sha256"), named);
        CHECK(i.n_threads == 1 && i.max_lanes == 3 && i.step_tokens == 99 && i.has_tokenizer);
        CHECK(i.n_vocab == e->m.model->n_vocab && i.n_layers == e->m.model->n_layers && i.weight_bytes && i.kv_bytes);
        CHECK_INT(i.n_ctx, e->m.model->n_ctx < 8192 ? e->m.model->n_ctx : 8192);
        CHECK(i.has_dflash && i.has_mtp);
        CHECK_STR(str_of(i.device), STR("cpu"));
        tandem_close(e);
    }
}

TEST(sched_contexts_are_within_the_models)
{
    target m = {.n_ctx = 10000};
    err    e = {0};
    static const struct {
        int model, asked, want; /* want 0: refused */
    } k[] = {{10000, 0, 8192}, {8192, 0, 8192}, {8191, 0, 8191}, {100, 0, 100},
             {100, 100, 100},  {100, 99, 99},   {100, 101, 0},   {10000, 10000, 10000}};
    for (size_t i = 0; i < COUNT(k); i++) {
        int n   = k[i].asked;
        m.n_ctx = k[i].model;
        CHECK_INT(open_context(&n, &m, &e), k[i].want > 0);
        if (k[i].want) CHECK_INT(n, k[i].want);
    }
    CHECK(strstr(e.text, "a context of 101 is over the model's limit of 100"));
}

/* Lanes share what is free but for a fifth; one lane has what it needs. */
TEST(sched_pools_fit_what_is_free)
{
    static const struct {
        int    lanes;
        size_t all, single, free, want;
    } k[] = {{4, 400, 100, 1000, 0},    {4, 799, 100, 1000, 0},    {4, 800, 100, 1000, 800},
             {4, 5000, 100, 1000, 800}, {4, 5000, 799, 1000, 800}, {4, 5000, 900, 1000, 900},
             {1, 900, 900, 1000, 0},    {2, 900, 450, 1000, 800},  {1, 100, 100, 1000, 0}};
    for (size_t i = 0; i < COUNT(k); i++)
        CHECK_INT(open_pool_bytes(k[i].lanes, k[i].all, k[i].single, k[i].free), k[i].want);
}

TEST(sched_leaves_room_for_recorded_steps)
{
    ops plain = {0}, recording = {.padding = (void (*)(queue *, dev))1}; /* not called */
    CHECK_INT(open_free_bytes(&plain, 100), 100);
    CHECK_INT(open_free_bytes(&recording, 100), 0);
    CHECK_INT(open_free_bytes(&recording, (size_t)OPEN_GRAPH_BYTES + 5), 5);
}

TEST(sched_tokenizers_are_found)
{
    static char long_path[5000];
    char        dir[600];
    tok        *words;
    err         e = {0};
    CHECK_OK(open_tok(&words, test_path("models/nano/target.gguf"), &e), e);
    tok_free(words);
    snprintf(dir, sizeof dir, "%s", test_tmp_dir());
    CHECK_FAILS(open_tok(&words, dir, &e), e, "has no tokenizer.json");
    CHECK(e.code == ERR_NOT_FOUND && !words);
    CHECK_FAILS(open_tok(&words, "/nowhere/tokenizer.json", &e), e, "/nowhere/tokenizer.json");
    CHECK_FAILS(open_tok(&words, "/nowhere/model.gguf", &e), e, "/nowhere/model.gguf");
    for (size_t n = 0; n + 2 < sizeof long_path - 900; n += 2) memcpy(long_path + n, "./", 2);
    CHECK_FAILS(open_tok(&words, long_path, &e), e, "");
}

/* --- drafters and settings ----------------------------------------------------------------------*/
TEST(sched_drafters_are_named_by_their_method)
{
    tandem_options o;
    tandem        *e;
    tandem_error   why = {0};
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    static const tandem_method bad[] = {(tandem_method)-1, TANDEM_SPEC_OFF, TANDEM_SPEC_AUTO};
    for (size_t i = 0; i < COUNT(bad); i++) {
        CHECK_FAILS(tandem_park_drafter(e, bad[i], &why), why, "is not a method");
        CHECK_FAILS(tandem_unpark_drafter(e, bad[i], &why), why, "is not a method");
        CHECK(!tandem_park_drafter(e, bad[i], NULL));
    }
    CHECK_FAILS(tandem_set(e, "hat", "1", &why), why, "there is no setting 'hat'");
    CHECK_FAILS(tandem_set(e, "queue_max", "many", &why), why, "queue_max is \"many\"");
    CHECK_OK(tandem_set(e, "queue_max", "3", &why), why);
    CHECK_OK(tandem_set(e, "max_lanes_per_key", "none", &why), why);
    char text[8192];
    tandem_settings(e, text, sizeof text);
    CHECK(strstr(text, "\"queue_max\":3") && strstr(text, "\"max_lanes_per_key\":\"none\""));
    tandem_close(e);
    nano_options(&o);
    tandem_drafter list[1] = {o.drafters[0]};
    list[0].quantise       = "q5_0";
    o.drafters             = list;
    o.n_drafters           = 1;
    CHECK_FAILS(opens(&o, &why), why, "a drafter cannot be quantised to 'q5_0', expected none, q8_0 or q4_0");
    list[0].quantise = NULL;
    list[0].path     = "/nowhere/drafter.gguf";
    CHECK_OK(opens(&o, &why), why); /* with a warning */
    list[0].required = true;
    CHECK_FAILS(opens(&o, &why), why, "/nowhere/drafter.gguf");
}

/* A length that the drafter was not trained on is taken, with a warning when it is set and at the start. */
TEST(sched_warns_of_long_contexts_for_drafters)
{
    tandem_options      o;
    tandem             *e;
    tandem_error        why = {0};
    tandem_drafter_info d[TANDEM_MAX_DRAFTERS];
    char                value[32];
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    CHECK(tandem_drafters(e, d) == 2 && d[0].method == TANDEM_SPEC_DFLASH && d[1].method == TANDEM_SPEC_MTP);
    CHECK_INT(engine_trained_ctx((tandem_drafter_info[]){{.method = TANDEM_SPEC_MTP, .trained_ctx = 5},
                                                         {.method = TANDEM_SPEC_DFLASH, .trained_ctx = 7}},
                                 2),
              7);
    CHECK_INT(engine_trained_ctx(d + 1, 1), 0);
    for (int over = 0; over < 2; over++) {
        snprintf(value, sizeof value, "%d", d[0].trained_ctx + over);
        test_listen_begin(false);
        CHECK_OK(tandem_set(e, "dflash_max_ctx", value, &why), why);
        CHECK_INT(strstr(test_listen_end(), "the drafter was trained on") != NULL, over && d[0].trained_ctx);
    }
    test_listen_begin(false);
    CHECK_OK(tandem_set(e, "queue_max", "5", &why), why);
    CHECK(!strstr(test_listen_end(), "the drafter was trained on")); /* once is enough */
    tandem_close(e);
}
