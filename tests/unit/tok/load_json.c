#include "base/fault.h"
#include "base/file.h"
#include "chat/gemma4_inside.h"
#include "tok/inside.h"
#include "tok/small.h"

#define NORMALIZER "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}"
#define VOCAB      "\"vocab\":{\"<eos>\":1,\"a\":2,\"b\":3,\"ab\":4,\"<0x41>\":5,\"\\n\":6,\"\xE2\x96\x81\":7,\"</s>\":9}"
#define MERGES     "\"merges\":[[\"a\",\"b\"],\"ab a\"]"
#define MODEL      "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true," VOCAB "," MERGES "}"
#define ADDED                                                                                                          \
    "\"added_tokens\":[{\"id\":1,\"content\":\"<eos>\",\"special\":true},{\"id\":10,\"content\":\"<turn|>\","          \
    "\"special\":true},{\"id\":11,\"content\":\"<|channel>\",\"special\":true},{\"id\":12,\"content\":\"<b>\"},"       \
    "{\"id\":6,\"content\":\"\\n\",\"special\":false}]"

static tok *load(test_case *t, const char *text)
{
    tok *k;
    err  e;
    CHECK_OK(tok_from_json_bytes(&k, str_of(text), &small_family, &e), e);
    return k;
}

static void check_refused(test_case *t, const char *text, const char *part)
{
    tok *k;
    err  e = {0};
    CHECK_FAILS(tok_from_json_bytes(&k, str_of(text), &small_family, &e), e, part);
    CHECK(k == NULL);
}

TEST(tokenizer_json_gives_texts_kinds_and_stops)
{
    static const int kinds[] = {TOK_UNUSED, TOK_CONTROL, TOK_NORMAL, TOK_NORMAL,  TOK_NORMAL, TOK_BYTE,   TOK_NORMAL,
                                TOK_NORMAL, TOK_UNUSED,  TOK_NORMAL, TOK_CONTROL, TOK_USER,   TOK_NORMAL, TOK_UNUSED};
    tok             *k       = load(t, "{" ADDED "," NORMALIZER "," MODEL "}");
    tok_ids          ids;
    if (!k) return;
    CHECK_INT(tok_size(k), 13);
    for (int32_t i = 0; i < (int32_t)COUNT(kinds); i++) CHECK_INT(tok_kind(k, i), kinds[i]);
    CHECK_INT(tok_find(k, STR("ab")), 4);
    CHECK_INT(tok_find(k, STR("zz")), -1);
    CHECK_INT(tok_find(k, STR("")), -1);
    CHECK_STR(tok_text(k, 11), STR("<|channel>"));
    CHECK_STR(tok_text(k, 8), STR(""));
    CHECK_STR(tok_text(k, 13), STR(""));
    CHECK(tok_bos(k) == -1 && tok_eos(k) == 1 && tok_unk(k) == -1 && tok_pad(k) == -1);
    tok_ids_init(&ids, 100);
    tok_stop_ids(k, &ids);
    const int32_t stops[] = {1, 10}; /* </s> is a token like any other */
    check_ids(t, &ids, stops, 2, "stops");
    tok_ids_deinit(&ids);
    tok_free(k);
}

/* The model may come before the added tokens, and the merges before the vocabulary. */
TEST(tokenizer_json_does_not_care_about_the_order)
{
    tok    *k = load(t, "{\"model\":{" MERGES "," VOCAB ",\"byte_fallback\":true}," NORMALIZER "," ADDED "}");
    tok_ids ids;
    err     e;
    if (!k) return;
    tok_ids_init(&ids, 100);
    CHECK_OK(tok_encode(k, &ids, STR("aab<turn|>A"), true, &e), e);
    const int32_t want[] = {2, 4, 10, 5};
    check_ids(t, &ids, want, COUNT(want), "encoded");
    tok_ids_deinit(&ids);
    tok_free(k);
}

/* Options that change nothing pass, and so does a pre-tokenizer at spaces, of which the normalizer leaves none. */
TEST(tokenizer_json_takes_neutral_options)
{
    tok *k = load(
        t, "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"}},\"model\":{\"dropout\":null,"
           "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null,\"ignore_merges\":false,\"fuse_unk\":true,"
           "\"unk_token\":\"b\",\"byte_fallback\":true," VOCAB "," MERGES "}," NORMALIZER ",\"version\":\"1.0\"}");
    if (k) CHECK_INT(tok_unk(k), 3);
    tok_free(k);
    k = load(t, "{\"pre_tokenizer\":null,\"model\":{\"dropout\":0,\"byte_fallback\":true," VOCAB "," MERGES
                "}," NORMALIZER "}");
    tok_free(k);
    k = load(t, "{\"model\":{\"dropout\":0.0,\"byte_fallback\":true," VOCAB "}," NORMALIZER "}");
    tok_free(k);
}

/* The flags of added tokens, in any order: special, normalized, and those that are new to the vocabulary. */
TEST(tokenizer_json_flags_of_added_tokens_count)
{
    tok *k =
        load(t, "{\"added_tokens\":[{\"normalized\":true,\"id\":10,\"content\":\"a b\",\"special\":false},{\"id\":11,"
                "\"content\":\"b a\",\"normalized\":false},{\"special\":true,\"id\":12,\"content\":\"<x>\"},"
                "{\"id\":3,\"content\":\"b\",\"special\":null}]," NORMALIZER "," MODEL "}");
    tok_ids ids;
    err     e;
    if (!k) return;
    tok_ids_init(&ids, 100);
    CHECK_OK(tok_encode(k, &ids, STR("b aa" SP "ab" SP "a"), false, &e), e);
    const int32_t want[] = {11, 2, 7, 2, 3, 7, 2}; /* "b" is found before "a b" is looked for */
    check_ids(t, &ids, want, COUNT(want), "added tokens");
    tok_ids_clear(&ids);
    CHECK_OK(tok_encode(k, &ids, STR("<x>"), true, &e), e);
    CHECK(ids.n == 1 && ids.p[0] == 12);
    CHECK_INT(tok_kind(k, 12), TOK_CONTROL);
    CHECK_INT(tok_listed_kind(k, 3), TOK_USER);
    CHECK_INT(tok_listed_kind(k, 2), TOK_NORMAL);
    tok_ids_deinit(&ids);
    tok_free(k);
    k = load(t, "{\"added_tokens\":[{\"normalized\":true,\"id\":10,\"content\":\"a a\"}]," NORMALIZER "," MODEL "}");
    if (!k) return;
    tok_ids_init(&ids, 100);
    CHECK_OK(tok_encode(k, &ids, STR("a" SP "aa a"), false, &e), e);
    CHECK(ids.n == 2 && ids.p[0] == 10 && ids.p[1] == 10);
    tok_ids_deinit(&ids);
    tok_free(k);
}

TEST(tokenizer_json_says_what_is_wrong)
{
    check_refused(t, "", "1");
    check_refused(t, "[]", "'the document' is not an object");
    check_refused(t, "{}", "no byte_fallback");
    check_refused(t, "{" MODEL "}", "does not replace spaces");
    check_refused(t, "{" NORMALIZER ",\"model\":{\"byte_fallback\":true}}", "vocabulary is empty");
    check_refused(t, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}", "'ByteLevel'");
    check_refused(t, "{\"model\":{\"type\":\"Unigram\"}}", "is 'Unigram', expected 'BPE'");
    check_refused(t, "{\"model\":{\"ignore_merges\":true}}", "'ignore_merges' is not supported");
    check_refused(t, "{\"model\":{\"dropout\":0.1}}", "'dropout' is not supported");
    check_refused(t, "{\"model\":{\"vocab\":[]}}", "'vocab' is not an object");
    check_refused(t, "{\"model\":{\"vocab\":{\"a\":\"1\"}}}", "'a' is not mapped to an integer");
    check_refused(t, "{\"model\":{\"vocab\":{\"a\":-1}}}", "id -1");
    check_refused(t, "{\"model\":{\"vocab\":{\"a\":1048576}}}", "expected 0 to 1048575");
    check_refused(t, "{\"model\":{\"vocab\":{\"a\":3,\"b\":3}}}", "'a' and 'b' have the same id 3");
    check_refused(t, "{\"model\":{\"merges\":[\"ab\"]}}", "merge 0, 'ab', is not two parts");
    check_refused(t, "{\"model\":{\"merges\":[[\"a\"]]}}", "merge 0 is neither");
    check_refused(t, "{\"model\":{\"merges\":[[\"a\",\"b\",\"c\"]]}}", "merge 0 is neither");
    check_refused(t, "{\"model\":{\"merges\":[\"a b\",7]}}", "merge 1 is neither");
    check_refused(t, "{\"added_tokens\":[3]}", "added token 0 is not an object");
    check_refused(t, "{\"added_tokens\":[{\"id\":\"x\"}]}", "'id' is not an integer");
    check_refused(t, "{\"added_tokens\":[{\"content\":\"<x>\",\"lstrip\":true}]}", "'<x>' uses lstrip");
    check_refused(t, "{\"added_tokens\":[{\"rstrip\":true,\"content\":\"<x>\"}]}", "'<x>' uses lstrip");
    check_refused(t, "{\"added_tokens\":[{\"single_word\":true,\"lstrip\":false,\"content\":\"<x>\"}]}", "'<x>' uses");
    check_refused(t, "{\"added_tokens\":[{\"special\":1}]}", "'special' is not true or false");
    check_refused(t, "{\"added_tokens\":[{\"normalized\":\"x\"}]}", "'normalized' is not true or false");
    check_refused(t, "{\"added_tokens\":[{\"content\":7}]}", "'content' is not a string");
    check_refused(t, "{\"added_tokens\":{}}", "'added_tokens' is not an array");
    check_refused(t, "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"}}}", "'Split'");
    check_refused(t, "{\"pre_tokenizer\":7}", "'pre_tokenizer' is not an object");
    check_refused(t, "{\"model\":{\"dropout\":1}}", "'dropout' is not supported");
    check_refused(t, "{\"model\":{\"continuing_subword_prefix\":\"#\"}}", "'continuing_subword_prefix' is not");
    check_refused(t, "{\"model\":{\"end_of_word_suffix\":\"#\"}}", "'end_of_word_suffix' is not");
    check_refused(t, "{\"model\":{\"merges\":[[\"a\",7]]}}", "merge 0 is neither");
    check_refused(t, "{\"model\":{\"merges\":[[7,\"a\"]]}}", "merge 0 is neither");
    check_refused(t, "{\"model\":{\"byte_fallback\":\"yes\"}}", "'byte_fallback' is not true or false");
    check_refused(t, "{\"normalizer\":{\"type\":\"NFC\"}," MODEL "}", "does not replace spaces");
    check_refused(t, "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"}}," MODEL "}",
                  "does not replace");
    check_refused(t, "{\"added_tokens\":[{\"content\":\"<x>\"}]," NORMALIZER "," MODEL "}", "'<x>' has id -1");
    check_refused(t, "{\"added_tokens\":[{\"id\":2,\"content\":\"x\"}]," NORMALIZER "," MODEL "}", "the same id 2");
    check_refused(t, "{" NORMALIZER "," MODEL, "end of the text");
}

/* Wherever the file ends early, the reader's own sentence says so. */
TEST(tokenizer_json_that_is_cut_off_is_refused)
{
    static const char text[] =
        "{" ADDED "," NORMALIZER
        ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"}},\"model\":{\"type\":"
        "\"BPE\",\"unk_token\":null,\"dropout\":null,\"byte_fallback\":true," VOCAB "," MERGES "}}";
    for (size_t n = 0; n < sizeof text; n++) {
        tok *k;
        err  e  = {0};
        bool ok = tok_from_json_bytes(&k, (str){text, n}, &small_family, &e);
        CHECK(ok == (n == sizeof text - 1));
        CHECK(ok == (k != NULL));
        if (!ok) CHECK_MSG(strstr(e.text, "line 1, column "), "%zu bytes: %s", n, e.text);
        tok_free(k);
    }
}

TEST(tokenizer_json_refuses_a_token_that_is_too_long)
{
    buf  b;
    tok *k;
    err  e = {0};
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"model\":{\"vocab\":{\"");
    for (int i = 0; i <= TOK_MAX_TEXT_BYTES; i++) buf_putc(&b, 'a');
    buf_puts(&b, "\":0}}}");
    CHECK_FAILS(tok_from_json_bytes(&k, buf_str(&b), &small_family, &e), e, "65537 bytes, more than 65536");
    buf_deinit(&b);
}

TEST(tokenizer_json_answers_when_memory_runs_out)
{
    const char *text = "{" ADDED "," NORMALIZER "," MODEL "}";
    for (long n = 1; n < 1000; n++) {
        tok *k;
        err  e = {0};
        fault_fail_nth(n);
        bool ok    = tok_from_json_bytes(&k, str_of(text), &small_family, &e);
        long tries = fault_tries();
        fault_fail_nth(0);
        CHECK(ok == (tries < n));
        CHECK(ok ? k != NULL : k == NULL && e.code == ERR_UNAVAILABLE);
        tok_free(k);
        if (ok) return;
    }
    CHECK(!"it never had enough memory");
}

TEST(tokenizer_json_takes_names_from_the_config_beside_it)
{
    static const char config[] = "{\"eos_token\":{\"content\":\"<turn|>\"},\"bos_token\":\"<|channel>\",\"x\":[{}]}";
    static const char text[]   = "{" ADDED "," NORMALIZER "," MODEL "}";
    tok              *k;
    err               e;
    char              path[4096];
    test_tmp_file("tokenizer_config.json", config, sizeof config - 1);
    snprintf(path, sizeof path, "%s", test_tmp_file("tokenizer.json", text, sizeof text - 1));
    CHECK_OK(tok_from_json(&k, path, &small_family, &e), e);
    if (!k) return;
    CHECK(tok_eos(k) == 10 && tok_bos(k) == 11 && tok_add_bos(k));
    tok_free(k);
    test_tmp_file("tokenizer_config.json", "{\"eos_token\":null,\"bos_token\":\"\"}", 33);
    CHECK_OK(tok_from_json(&k, path, &small_family, &e), e);
    if (k) CHECK(tok_eos(k) == 1 && tok_bos(k) == -1 && !tok_add_bos(k)); /* the family's names */
    tok_free(k);
    test_tmp_file("tokenizer_config.json", "{\"eos_token\":7}", 15);
    CHECK_FAILS(tok_from_json(&k, path, &small_family, &e), e,
                "tokenizer_config.json: 'eos_token' is not a token's name");
    test_tmp_file("tokenizer_config.json", "{}", 2);
    CHECK_FAILS(tok_from_json(&k, "/nonexistent/tokenizer.json", &small_family, &e), e, "cannot load the tokenizer");
}

TEST(demo_tokenizer_has_512_tokens_and_gives_text_back)
{
    const str text = STR("The user asks:  what is \xC2\xBD?\n\n\n\n\tna\xC3\xAFve {\"x\": 1}");
    tok      *k;
    tok_ids   ids;
    buf       out;
    err       e;
    CHECK_OK(tok_from_json(&k, test_path("tests/golden/demo/tokenizer.json"), &gemma4_tokens, &e), e);
    if (!k) return;
    CHECK_INT(tok_size(k), 512);
    CHECK(tok_pad(k) == 0 && tok_eos(k) == 1 && tok_bos(k) == 2 && tok_unk(k) == 3);
    CHECK_INT(tok_kind(k, tok_find(k, STR("<|turn>"))), TOK_CONTROL);
    CHECK_INT(tok_kind(k, tok_find(k, STR("<|tool_call>"))), TOK_USER);
    tok_ids_init(&ids, 1000);
    buf_init(&out, 1000);
    tok_stop_ids(k, &ids);
    CHECK_INT(ids.n, 3);
    tok_ids_clear(&ids);
    CHECK_OK(tok_encode(k, &ids, text, false, &e), e);
    tok_decode(k, ids.p, ids.n, true, &out);
    CHECK_STR(buf_str(&out), text);
    tok_ids_clear(&ids);
    CHECK_OK(tok_encode(k, &ids, STR("<bos><|turn>user hello<turn|>"), true, &e), e);
    CHECK(ids.p[0] == 2 && ids.p[1] == 15 && ids.p[ids.n - 1] == 16);
    CHECK_STR(tok_text(k, ids.p[ids.n - 2]), STR(SP "hello"));
    buf_deinit(&out);
    tok_ids_deinit(&ids);
    tok_free(k);
}

/* Any number of merges and added tokens: every one of them is used. Tables grow and are filled in pieces on the way. */
TEST(tokenizer_json_uses_all_merges_and_added_tokens)
{
    static const int counts[] = {1, 31, 32, 33, 63, 64, 65, 300};
    for (size_t c = 0; c < COUNT(counts); c++) {
        int     n = counts[c];
        err     e = {0};
        buf     b;
        tok    *k;
        tok_ids ids;
        buf_init(&b, 1 << 20);
        buf_puts(&b, "{\"added_tokens\":[");
        for (int i = 0; i < n; i++) buf_printf(&b, "%s{\"id\":%d,\"content\":\"<%d>\"}", i ? "," : "", 1000 + i, i);
        buf_puts(&b, "]," NORMALIZER ",\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"<eos>\":30");
        for (int i = 0; i < 26; i++) buf_printf(&b, ",\"%c\":%d", 'a' + i, i);
        for (int i = 0; i < n; i++) buf_printf(&b, ",\"%c%c\":%d", 'a' + i / 26, 'a' + i % 26, 100 + i);
        buf_puts(&b, "},\"merges\":[");
        for (int i = 0; i < n; i++) buf_printf(&b, "%s\"%c %c\"", i ? "," : "", 'a' + i / 26, 'a' + i % 26);
        buf_puts(&b, "]}}");
        tok_ids_init(&ids, 100);
        if (CHECK_OK(tok_from_json_bytes(&k, buf_str(&b), &small_family, &e), e)) {
            for (int i = 0; i < n; i++) {
                char text[64];
                snprintf(text, sizeof text, "%c%c<%d>", 'a' + i / 26, 'a' + i % 26, i);
                tok_ids_clear(&ids);
                CHECK_OK(tok_encode(k, &ids, str_of(text), false, &e), e);
                CHECK_MSG(ids.n == 2 && ids.p[0] == 100 + i && ids.p[1] == 1000 + i, "'%s' of %d merges", text, n);
            }
            tok_free(k);
        }
        tok_ids_deinit(&ids);
        buf_deinit(&b);
    }
}

TEST(tok_json_of_no_file)
{
    tok *k = (tok *)&k;
    err  e = {0};
    CHECK_FAILS(tok_from_json(&k, "/nowhere/tokenizer.json", &small_family, &e), e,
                "cannot load the tokenizer /nowhere/tokenizer.json");
    CHECK(!k);
}
