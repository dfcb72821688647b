/* Byte-level BPE: the vocabulary, its files, encoding and decoding. */
#include "base/clock.h"
#include "base/fault.h"
#include "chat/qwen35_inside.h"
#include "tok/inside.h"
#include "tok/small.h"
#include "tok/unicode.h"

#define G "\xC4\xA0" /* U+0120, the alphabet's space */
#define C "\xC4\x8A" /* U+010A, a newline */

static void encode(test_case *t, const tok *k, tok_ids *out, str text, bool parse_special)
{
    err e;
    tok_ids_clear(out);
    CHECK_OK(tok_encode(k, out, text, parse_special, &e), e);
}

/* Compares the texts of the tokens, joined with '/'. */
static void check_texts(test_case *t, const tok *k, const char *text, bool parse_special, const char *want)
{
    tok_ids ids;
    buf     got;
    tok_ids_init(&ids, 1000);
    buf_init(&got, 10000);
    encode(t, k, &ids, str_of(text), parse_special);
    for (size_t i = 0; i < ids.n; i++) {
        if (i) buf_putc(&got, '/');
        buf_put(&got, tok_text(k, ids.p[i]).s, tok_text(k, ids.p[i]).n);
    }
    CHECK_STR(buf_str(&got), str_of(want));
    tok_ids_deinit(&ids);
    buf_deinit(&got);
}

static void check_decoded(test_case *t, const tok *k, const tok_ids *ids, str want)
{
    buf out;
    buf_init(&out, 1 << 24);
    tok_decode(k, ids->p, ids->n, true, &out);
    CHECK_STR(buf_str(&out), want);
    buf_deinit(&out);
}

/* "the" and " the", "\n\n", an e with an accent, and two Chinese characters that share their first two bytes. */
static void init_words(test_case *t, small *s)
{
    small_init_bytes(s);
    small_merge(s, "t", "h");
    small_merge(s, "th", "e");
    small_merge(s, G, "the");
    small_merge(s, C, C);
    small_merge(s, "\xC3\x83", "\xC2\xA9");         /* C3 A9 */
    small_merge(s, "\xC3\xA4", "\xC2\xB8");         /* E4 B8 */
    small_merge(s, "\xC3\xA4\xC2\xB8", "\xC5\x83"); /* and AD */
    small_merge(s, "'", "t");
    small_merge(s, "e", "e");
    small_build(t, s);
}

TEST(byte_level_alphabet_spells_every_byte)
{
    small   s;
    tok_ids ids;
    small_init_bytes(&s);
    small_build(t, &s);
    tok_ids_init(&ids, 1000);
    for (int i = 0; i < 256; i++) {
        char c = (char)i;
        encode(t, s.tok, &ids, (str){&c, 1}, false);
        CHECK(ids.n == 1 && ids.p[0] == s.first_byte + i);
        CHECK_STR(tok_bytes(s.tok, s.first_byte + i), ((str){&c, 1}));
        CHECK_INT(tok_kind(s.tok, s.first_byte + i), TOK_NORMAL);
    }
    tok_ids_deinit(&ids);
    small_deinit(&s);
}

TEST(byte_level_merges_stay_inside_words)
{
    small s;
    init_words(t, &s);
    check_texts(t, s.tok, "the the", false, "the/" G "the");
    check_texts(t, s.tok, "the  the\n\n\n", false, "the/" G "/" G "the/" C C "/" C);
    check_texts(t, s.tok, "can't 'the", false, "c/a/n/'t/" G "/'/the");
    check_texts(t, s.tok, "e1e ee", false, "e/1/e/" G "/ee");
    check_texts(t, s.tok, "\xC3\xA9 \xE4\xB8\xAD\xE4\xB8\x80", false,
                "\xC3\x83\xC2\xA9/" G "/\xC3\xA4\xC2\xB8\xC5\x83/\xC3\xA4\xC2\xB8/\xC4\xA2");
    small_deinit(&s);
}

/* The text is normalised, but not across markers that are found; byte tokens of the other scheme are plain text. */
TEST(byte_level_text_is_normalised)
{
    small s;
    init_words(t, &s);
    check_texts(t, s.tok, "e\xCC\x81", false, "\xC3\x83\xC2\xA9");
    check_texts(t, s.tok, "e<|turn>\xCC\x81", true, "e/<|turn>/\xC3\x8C/\xC4\xA3");
    check_texts(t, s.tok, "<0x41>", false, "</0/x/4/1/>");
    small_deinit(&s);
}

/* Markers are found only with parse_special; user-defined tokens always, spelled as they are, and normalized ones in
 * the NFC of the text. */
TEST(byte_level_added_tokens)
{
    small s;
    small_init_bytes(&s);
    int32_t user                = small_token(&s, STR("a b\xC3\xA9"), TOK_USER);
    int32_t nfc                 = small_token(&s, STR("<u\xCC\x88>"), TOK_USER);
    int32_t raw                 = small_token(&s, STR("<e\xCC\x81>"), TOK_USER);
    s.src.entry[nfc].normalized = true;
    small_build(t, &s);
    check_texts(t, s.tok, "<|turn>x", false, "</|/t/u/r/n/>/x");
    check_texts(t, s.tok, "<|turn>x<|channel>", true, "<|turn>/x/<|channel>");
    check_texts(t, s.tok, "xa b\xC3\xA9y", false, "x/a b\xC3\xA9/y");
    check_texts(t, s.tok, "<\xC3\xBC>", false, "<u\xCC\x88>");
    check_texts(t, s.tok, "<u\xCC\x88>", false, "<u\xCC\x88>");
    check_texts(t, s.tok, "<e\xCC\x81>", false, "<e\xCC\x81>");
    check_texts(t, s.tok, "<\xC3\xA9>", false, "</\xC3\x83/\xC2\xA9/>"); /* not normalized: found as it is only */
    CHECK_STR(tok_bytes(s.tok, user), STR("a b\xC3\xA9"));
    CHECK_STR(tok_bytes(s.tok, raw), STR("<e\xCC\x81>"));
    CHECK(tok_bos(s.tok) == -1 && !tok_add_bos(s.tok) && tok_eos(s.tok) == 1 && tok_pad(s.tok) == 0);
    small_deinit(&s);
}

/* A merge that would make a token with other bytes than its parts is left out: the user-defined token "G x" is spelled
 * as it is, and so has more bytes. A normal token with a character outside the alphabet spells itself. */
TEST(byte_level_merges_keep_the_bytes)
{
    small   s;
    tok_ids ids;
    err     e;
    small_init_bytes(&s);
    small_token(&s, STR(G "x"), TOK_USER);
    small_token(&s, STR("xy"), TOK_USER);
    int32_t other = small_token(&s, STR(G "\xE4\xB8\xAD"), TOK_NORMAL);
    int32_t byte  = small_token(&s, STR("<0x41>"), TOK_BYTE);
    vocab_source_merge(&s.src, STR(G), STR("x"), &e);
    vocab_source_merge(&s.src, STR("x"), STR("y"), &e);
    small_build(t, &s);
    check_texts(t, s.tok, " x", false, G "/x");
    check_texts(t, s.tok, "xy", false, "xy");
    CHECK_STR(tok_bytes(s.tok, other), STR(G "\xE4\xB8\xAD"));
    CHECK_INT(tok_kind(s.tok, byte), TOK_UNUSED);
    tok_ids_init(&ids, 10);
    encode(t, s.tok, &ids, STR(" x"), false);
    check_decoded(t, s.tok, &ids, STR(" x"));
    tok_ids_deinit(&ids);
    small_deinit(&s);
}

TEST(byte_level_vocabulary_needs_every_byte)
{
    small s;
    err   e = {0};
    small_init_bytes(&s);
    s.src.entry[s.first_byte + 0xE9].kind = TOK_USER; /* spells U+00E9 now */
    CHECK_FAILS(vocab_build(&s.tok, &s.src, &e), e, "has no token for byte 0xE9");
    s.src.entry[s.first_byte + 0xE9].kind = TOK_NORMAL;
    s.src.entry[s.first_byte].text        = STR("?");
    CHECK_FAILS(vocab_build(&s.tok, &s.src, &e), e, "has no token for byte 0x00");
    small_deinit(&s);
}

/* Each byte of a character is a token: the text comes with the last one. */
TEST(byte_level_stream_holds_split_characters)
{
    static const char text[] = "\xF0\x9F\x98\x80 \xE4\xB8\xAD\xFF\xC3<";
    static const char want[] = "\xF0\x9F\x98\x80 \xE4\xB8\xAD\xEF\xBF\xBD\xEF\xBF\xBD<";
    small             s;
    tok_stream        stream;
    buf               out;
    small_init_bytes(&s);
    small_build(t, &s);
    buf_init(&out, 1000);
    tok_stream_init(&stream, s.tok, false);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        tok_stream_put(&stream, s.first_byte + (uint8_t)text[i], &out);
        CHECK_INT(out.n, i < 3 ? 0 : i == 3 ? 4 : i < 7 ? 5 : i == 7 ? 8 : i < 10 ? 11 : 15);
    }
    tok_stream_finish(&stream, &out);
    CHECK_STR(buf_str(&out), str_of(want));
    buf_deinit(&out);
    small_deinit(&s);
}

/* Random merges over a few bytes, compared with a search of all pairs. */
static void compare_with_reference(test_case *t, uint64_t *seed, size_t max_bytes)
{
    static const char *const letters[] = {"a",        "b", " ", "\n", "'", "s", "1", "\xC3\xA9", "\xE4\xB8\xAD",
                                          "\xCC\x81", "!"};
    small                    s;
    tok_ids                  got, want;
    buf                      text, nfc;
    err                      e;
    small_init_bytes(&s);
    for (int i = 0; i < 60; i++) {
        static const uint8_t used[] = {'a', 'b', ' ', '\n', '\'', 's', 0xC3, 0xA9, 0xE4, 0xB8, 0xAD, 0xCC, 0x81};
        int32_t              n      = s.src.n - s.first_byte - 256, id[2];
        for (int k = 0; k < 2; k++)
            id[k] = n && test_rand(seed) % 2 ? s.first_byte + 256 + (int32_t)(test_rand(seed) % (uint64_t)n)
                                             : s.first_byte + used[test_rand(seed) % sizeof used];
        str a = s.src.entry[id[0]].text, b = s.src.entry[id[1]].text;
        if (a.n + b.n < 40) small_merge(&s, arena_str(&s.mem, a), arena_str(&s.mem, b));
    }
    small_build(t, &s);
    tok_ids_init(&got, 1 << 20);
    tok_ids_init(&want, 1 << 20);
    buf_init(&text, 1 << 20);
    buf_init(&nfc, 1 << 20);
    for (int i = 0; i < 4; i++) {
        buf_clear(&text);
        buf_clear(&nfc);
        tok_ids_clear(&want);
        while (text.n < max_bytes) {
            const char *x = letters[test_rand(seed) % COUNT(letters)];
            for (uint64_t n = test_rand(seed) % 4 ? 1 : test_rand(seed) % 20; n; n--) buf_puts(&text, x);
            if (test_rand(seed) % 50 == 0) buf_putc(&text, (char)test_rand(seed));
        }
        CHECK(nfc_put(&nfc, buf_str(&text)));
        small_reference_bytes(&s, &want, buf_str(&nfc));
        CHECK_OK(tok_encode(s.tok, &got, buf_str(&text), false, &e), e);
        check_ids(t, &got, want.p, want.n, "random text");
        tok_ids_clear(&got);
    }
    buf_deinit(&text);
    buf_deinit(&nfc);
    tok_ids_deinit(&got);
    tok_ids_deinit(&want);
    small_deinit(&s);
}

TEST(byte_level_agrees_with_the_slow_bpe)
{
    uint64_t seed = 1;
    for (int i = 0; i < 60; i++) compare_with_reference(t, &seed, i % 10 ? 5 + (size_t)i : 2000);
}

TEST(byte_level_takes_linear_time)
{
    static const char *const unit[] = {
        "a", " ", "th", "the ", "\n", "\xFF", "\xE4\xB8\xAD", "e\xCC\x81", "\xCC\x87\xCC\xA3", "<|turn"};
    enum { N = 1 << 18 };
    small   s;
    tok_ids ids;
    char   *text = xalloc(N + 16);
    small_init_bytes(&s);
    small_merge(&s, "t", "h");
    for (int i = 0, n = 1; i < 8; i++, n *= 2) { /* a aa aaaa ... and the same of spaces */
        char a[2 * 256 + 1] = "", b[2 * 256 + 1] = "";
        for (int k = 0; k < n; k++) {
            strcat(a, "a");
            strcat(b, G);
        }
        small_merge(&s, arena_str(&s.mem, str_of(a)), arena_str(&s.mem, str_of(a)));
        small_merge(&s, arena_str(&s.mem, str_of(b)), arena_str(&s.mem, str_of(b)));
    }
    small_build(t, &s);
    tok_ids_init(&ids, 2 * N);
    for (size_t i = 0; i < COUNT(unit); i++) {
        size_t len = strlen(unit[i]), at = 0;
        for (; at < N; at += len) memcpy(text + at, unit[i], len);
        double from = clock_thread_s();
        encode(t, s.tok, &ids, (str){text, at}, i & 1);
        double spent = clock_thread_s() - from;
        CHECK_MSG(spent < 1.0 * TEST_SLOWER, "'%s': %.2f s", unit[i], spent);
    }
    tok_ids_deinit(&ids);
    small_deinit(&s);
    mem_free(text);
}

TEST(byte_level_encoding_answers_when_memory_runs_out)
{
    small s;
    init_words(t, &s);
    for (long n = 1; n < 100; n++) {
        tok_ids ids;
        err     e = {0};
        tok_ids_init(&ids, 1000);
        fault_fail_nth(n);
        bool ok    = tok_encode(s.tok, &ids, STR("the e\xCC\x81 the"), false, &e);
        long tries = fault_tries();
        fault_fail_nth(0);
        CHECK(ok == (tries < n));
        CHECK(ok ? ids.n == 4 : !ids.n && e.code == ERR_UNAVAILABLE);
        tok_ids_deinit(&ids);
        if (ok) break;
    }
    small_deinit(&s);
}

/* --- tokenizer.json --------------------------------------------------------------------------------- */
#define PATTERN                                                                                                        \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}| "                        \
    "?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define NFC        "\"normalizer\":{\"type\":\"NFC\"}"
#define SPLIT(p)   "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" p "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define BYTES      "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}"
#define PRE(parts) "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" parts "]}"
#define ADDED                                                                                                          \
    "\"added_tokens\":[{\"id\":260,\"content\":\"<|im_end|>\",\"special\":true},{\"id\":261,\"content\":\"<think>\"}," \
    "{\"id\":262,\"content\":\"<|endoftext|>\",\"special\":true},{\"id\":263,\"content\":\"<x>\"}]"

/* Writes a tokenizer.json with the alphabet at 0 to 255 and three merges. */
static void put_json(buf *b, const char *members)
{
    buf_printf(b, "{%s%s\"model\":{\"type\":\"BPE\",\"unk_token\":null,\"byte_fallback\":false,\"vocab\":{", members,
               *members ? "," : "");
    for (int i = 0; i < 256; i++) {
        char text[8];
        small_spell_byte(text, i);
        buf_printf(b, "\"%s%s\":%d,", *text == '"' || *text == '\\' ? "\\" : "", text, i);
    }
    buf_puts(b, "\"th\":256,\"the\":257,\"" G "the\":258},\"merges\":[[\"t\",\"h\"],\"th e\",[\"" G "\",\"the\"]]}}");
}

static bool load(tok **out, const char *members, const tok_family *f, err *e)
{
    buf b;
    buf_init(&b, 1 << 20);
    put_json(&b, members);
    bool ok = tok_from_json_bytes(out, buf_str(&b), f, e);
    buf_deinit(&b);
    return ok;
}

TEST(byte_level_tokenizer_json)
{
    tok    *k;
    tok_ids ids;
    err     e;
    if (!CHECK_OK(load(&k, NFC "," ADDED "," PRE(SPLIT(PATTERN) "," BYTES), &qwen35_tokens, &e), e)) return;
    check_texts(t, k, "the the<think><x>", false, "the/" G "the/</th/i/n/k/>/<x>"); /* <x> is no marker */
    check_texts(t, k, "the<think> the<|im_end|>", true, "the/<think>/" G "the/<|im_end|>");
    CHECK_INT(tok_kind(k, 260), TOK_CONTROL);
    CHECK_INT(tok_kind(k, 261), TOK_USER);
    CHECK_INT(tok_kind(k, 259), TOK_UNUSED);
    CHECK(tok_eos(k) == 260 && tok_pad(k) == 262 && tok_bos(k) == -1 && tok_unk(k) == -1);
    tok_ids_init(&ids, 10);
    tok_stop_ids(k, &ids);
    static const int32_t stops[] = {260, 262};
    check_ids(t, &ids, stops, 2, "stops");
    tok_ids_deinit(&ids);
    tok_free(k);
    CHECK_OK(load(&k, NFC "," PRE(SPLIT(PATTERN) "," BYTES), NULL, &e), e); /* without a family */
    if (k) check_texts(t, k, "the the", false, "the/" G "the");
    tok_free(k);
}

TEST(byte_level_tokenizer_json_says_whether_to_normalise)
{
    static const struct {
        const char *members, *want;
    } cases[] = {{NFC ",", "\xC3\x83/\xC2\xA9"},
                 {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]},", "\xC3\x83/\xC2\xA9"},
                 {"\"normalizer\":null,", "e/\xC3\x8C/\xC4\xA3"},
                 {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]},", "e/\xC3\x8C/\xC4\xA3"},
                 {"", "e/\xC3\x8C/\xC4\xA3"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char members[2000];
        tok *k;
        err  e;
        snprintf(members, sizeof members, "%s%s", cases[i].members, PRE(SPLIT(PATTERN) "," BYTES));
        if (!CHECK_OK(load(&k, members, &qwen35_tokens, &e), e)) continue;
        CHECK_INT(tok_normalizes(k), i < 2);
        check_texts(t, k, "e\xCC\x81", false, cases[i].want);
        tok_free(k);
    }
}

/* The list decides by the scheme, and the first family that has it is used. */
TEST(byte_level_tokenizer_json_chooses_its_family)
{
    const tok_family *const both[]  = {&small_family, &small_bytes_family, &qwen35_tokens, NULL};
    const tok_family *const other[] = {&small_family, NULL};
    tok                    *k;
    buf                     b;
    err                     e = {0};
    buf_init(&b, 1 << 20);
    put_json(&b, NFC ",\"added_tokens\":[{\"id\":300,\"content\":\"<turn|>\"}]," PRE(SPLIT(PATTERN) "," BYTES));
    char path[4096];
    snprintf(path, sizeof path, "%s", test_tmp_file("byte_level.json", b.p, b.n));
    CHECK_OK(tok_from_json_any(&k, path, both, &e), e);
    if (k) CHECK_INT(tok_kind(k, 300), TOK_USER);
    tok_free(k);
    CHECK_FAILS(tok_from_json_any(&k, path, other, &e), e, "the pre_tokenizer 'ByteLevel' is not supported");
    CHECK(!k);
    snprintf(path, sizeof path, "%s", test_path("tests/golden/demo/tokenizer.json"));
    CHECK_OK(tok_from_json_any(&k, path, both, &e), e);
    if (k) CHECK_INT(tok_size(k), 512);
    tok_free(k);
    CHECK_FAILS(tok_from_json(&k, path, &small_bytes_family, &e), e, "has no pre_tokenizer 'ByteLevel'");
    buf_deinit(&b);
}

TEST(byte_level_tokenizer_json_says_what_is_wrong)
{
    static const char *const cases[][2] = {
        {"\"normalizer\":{\"type\":\"NFKC\"}," PRE(SPLIT(PATTERN) "," BYTES), "the normalizer 'NFKC' is not supported"},
        {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}," PRE(
             SPLIT(PATTERN) "," BYTES),
         "the normalizer 'Lowercase' is not supported"},
        {NFC ",\"pre_tokenizer\":" BYTES, "not a sequence of 'Split' and 'ByteLevel'"},
        {NFC "," PRE(BYTES), "not a sequence of 'Split' and 'ByteLevel'"},
        {NFC "," PRE(BYTES "," SPLIT(PATTERN)), "not a sequence of 'Split' and 'ByteLevel'"},
        {NFC "," PRE(SPLIT(PATTERN) "," BYTES "," BYTES), "not a sequence of 'Split' and 'ByteLevel'"},
        {NFC "," PRE(BYTES "," BYTES "," BYTES "," BYTES "," BYTES), "a Sequence has more than 4 parts"},
        {NFC "," PRE(SPLIT("x+") "," BYTES), "the pre_tokenizer's pattern 'x+' is not supported"},
        {NFC "," PRE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" PATTERN "\"},\"behavior\":\"Removed\"}," BYTES),
         "'behavior' is not 'Isolated'"},
        {NFC "," PRE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" PATTERN "\"},\"behavior\":\"Isolated\","
                     "\"invert\":true}," BYTES),
         "'invert' is set"},
        {NFC "," PRE(SPLIT(PATTERN) ",{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}"),
         "add_prefix_space or use_regex set"},
        {NFC "," PRE(SPLIT(PATTERN) ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"),
         "add_prefix_space or use_regex set"},
        {NFC "," PRE(SPLIT(PATTERN) ",7"), "part 1 of a Sequence is not an object"},
        {NFC ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":7}", "'pretokenizers' is not an array"},
        {NFC, "has no pre_tokenizer 'ByteLevel'"},
        {NFC ",\"added_tokens\":[{\"id\":1,\"content\":\"<x>\"}]," PRE(SPLIT(PATTERN) "," BYTES), "the same id 1"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        tok *k;
        err  e = {0};
        CHECK_FAILS(load(&k, cases[i][0], &qwen35_tokens, &e), e, cases[i][1]);
        CHECK(!k);
    }
}

TEST(byte_level_tokenizer_json_answers_when_memory_runs_out)
{
    buf b;
    buf_init(&b, 1 << 20);
    put_json(&b, NFC ",\"added_tokens\":[{\"id\":300,\"content\":\"<e\xCC\x81>\",\"normalized\":true}]," PRE(
                     SPLIT(PATTERN) "," BYTES));
    for (long n = 1; n < 1000; n++) {
        tok *k;
        err  e = {0};
        fault_fail_nth(n);
        bool ok    = tok_from_json_bytes(&k, buf_str(&b), &qwen35_tokens, &e);
        long tries = fault_tries();
        fault_fail_nth(0);
        CHECK(ok == (tries < n));
        CHECK(ok ? k != NULL : k == NULL && e.code == ERR_UNAVAILABLE);
        tok_free(k);
        if (ok) break;
    }
    buf_deinit(&b);
}
