#include "base/clock.h"
#include "base/fault.h"
#include "tok/small.h"

static void encode(test_case *t, const small *s, tok_ids *out, str text, bool parse_special)
{
    err e;
    tok_ids_clear(out);
    CHECK_OK(tok_encode(s->tok, out, text, parse_special, &e), e);
}

/* --- exactness --------------------------------------------------------------------------------- */
static void compare_with_reference(test_case *t, uint64_t *seed, int n_texts, size_t min_chars, size_t max_chars,
                                   int mode)
{
    small   s;
    tok_ids got, want;
    buf     text;
    int     n_letters = 2 + (int)(test_rand(seed) % (min_chars ? 3 : 9));
    small_init(&s);
    small_random(&s, seed, n_letters, (min_chars ? 20 : 0) + (int)(test_rand(seed) % 60));
    small_build(t, &s);
    tok_ids_init(&got, 1 << 20);
    tok_ids_init(&want, 1 << 20);
    buf_init(&text, 1 << 20);
    for (int i = 0; i < n_texts; i++) {
        buf_clear(&text);
        tok_ids_clear(&want);
        size_t n_chars = min_chars + test_rand(seed) % (max_chars - min_chars + 1);
        small_text(&text, seed, n_chars, mode == TEXT_PURE ? n_letters : 10, mode);
        encode(t, &s, &got, buf_str(&text), false);
        small_reference(&s, &want, buf_str(&text));
        check_ids(t, &got, want.p, want.n, "random text");
    }
    buf_deinit(&text);
    tok_ids_deinit(&got);
    tok_ids_deinit(&want);
    small_deinit(&s);
}

TEST(bpe_agrees_with_the_slow_one_on_short_texts)
{
    uint64_t seed = 1;
    for (int i = 0; i < 300; i++) compare_with_reference(t, &seed, 10, 0, i % 2 ? 12 : 60, i % 3);
}

/* Few letters and no odd ones make most texts one piece: 5000 need a tree of four levels. */
TEST(bpe_agrees_with_the_slow_one_on_long_pieces)
{
    uint64_t seed = 2;
    for (int i = 0; i < 40; i++) compare_with_reference(t, &seed, 2, i % 4 ? 200 : 4200, i % 4 ? 700 : 5000, TEXT_PURE);
}

/* Every length around the block sizes of the tree, in one piece. */
TEST(bpe_agrees_with_the_slow_one_at_every_length)
{
    small   s;
    tok_ids got, want;
    char    text[600];
    small_init(&s);
    small_merge(&s, "aa", "a");
    small_merge(&s, "a", "a");
    small_merge(&s, "aaa", "aa");
    small_build(t, &s);
    tok_ids_init(&got, 1000);
    tok_ids_init(&want, 1000);
    memset(text, 'a', sizeof text);
    for (size_t n = 0; n <= sizeof text; n++) {
        tok_ids_clear(&want);
        small_reference(&s, &want, (str){text, n});
        encode(t, &s, &got, (str){text, n}, false);
        check_ids(t, &got, want.p, want.n, "run of a");
    }
    tok_ids_deinit(&got);
    tok_ids_deinit(&want);
    small_deinit(&s);
}

/* Ids of characters, parts and results may be any, 0 included. */
TEST(bpe_merges_tokens_of_any_id)
{
    static const char *const texts[]    = {"a", "b", "ab", "ba", "abba"};
    static const char *const merge[][2] = {{"a", "b"}, {"b", "a"}, {"ab", "ba"}};
    for (size_t turn = 0; turn < COUNT(texts); turn++) {
        small   s = {0};
        tok_ids ids;
        vocab_source_init(&s.src, NULL);
        arena_init(&s.mem, 1 << 20);
        for (size_t i = 0; i < COUNT(texts); i++) small_token(&s, str_of(texts[(i + turn) % COUNT(texts)]), TOK_NORMAL);
        for (size_t i = 0; i < COUNT(merge); i++)
            vocab_source_merge(&s.src, str_of(merge[i][0]), str_of(merge[i][1]), NULL);
        small_build(t, &s);
        tok_ids_init(&ids, 100);
        for (size_t i = 0; i < COUNT(texts); i++) {
            encode(t, &s, &ids, str_of(texts[i]), false);
            CHECK(ids.n == 1 && ids.p[0] == small_find(&s, str_of(texts[i])));
        }
        tok_ids_deinit(&ids);
        small_deinit(&s);
    }
}

/* --- markers ----------------------------------------------------------------------------------- */
/* Merges that would build a marker, a byte token or an unused one, as a hostile or careless file may have. */
static void init_tricky(test_case *t, small *s)
{
    small_init(s);
    for (const char *c = "<>|0x41turnbosunsd"; *c; c++) small_token(s, (str){c, 1}, TOK_NORMAL);
    small_merge(s, "<", "b");
    small_merge(s, "<b", "o");
    small_merge(s, "<bo", "s");
    vocab_source_merge(&s->src, STR("<bos"), STR(">"), NULL); /* <bos> is there already */
    small_merge(s, "<", "0");
    small_merge(s, "<0", "x");
    small_merge(s, "4", "1");
    small_merge(s, "41", ">");
    vocab_source_merge(&s->src, STR("<0x"), STR("41>"), NULL);
    small_token(s, STR("uns"), TOK_UNUSED);
    small_merge(s, "u", "n");
    vocab_source_merge(&s->src, STR("un"), STR("s"), NULL);
    small_token(s, STR("<|turn>2"), TOK_CONTROL);
    small_token(s, STR("<"), TOK_CONTROL); /* a second one of that text never comes out of it */
    small_build(t, s);
}

TEST(bpe_text_never_makes_a_marker_a_byte_or_an_unused_token)
{
    small   s;
    tok_ids ids;
    init_tricky(t, &s);
    tok_ids_init(&ids, 1000);
    static const char *const texts[] = {"<bos>", "<0x41>", "uns", "a<bos><|turn><bos>", "<|channel><|turn>2"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        encode(t, &s, &ids, str_of(texts[i]), false);
        CHECK(ids.n > 1);
        for (size_t k = 0; k < ids.n; k++) {
            str text = tok_text(s.tok, ids.p[k]);
            CHECK_MSG(tok_kind(s.tok, ids.p[k]) == TOK_NORMAL || (text.n == 6 && !str_eq(text, STR("<0x41>"))),
                      "'%s' gave '%.*s'", texts[i], STR_ARG(text));
        }
    }
    tok_ids_deinit(&ids);
    small_deinit(&s);
}

TEST(bpe_finds_the_longest_marker_when_asked)
{
    small   s;
    tok_ids ids;
    init_tricky(t, &s);
    tok_ids_init(&ids, 1000);
    int32_t turn = tok_find(s.tok, STR("<|turn>")), turn2 = tok_find(s.tok, STR("<|turn>2"));
    int32_t channel = tok_find(s.tok, STR("<|channel>")), b = tok_find(s.tok, STR("b")), lt = s.src.n - 1;
    encode(t, &s, &ids, STR("<bos><|turn>2<|turn>b<|channel><turn|><|turn"), true);
    const int32_t want[] = {2,
                            turn2,
                            turn,
                            b,
                            channel,
                            5,
                            lt,
                            tok_find(s.tok, STR("|")),
                            tok_find(s.tok, STR("t")),
                            tok_find(s.tok, STR("u")),
                            tok_find(s.tok, STR("r")),
                            tok_find(s.tok, STR("n"))};
    check_ids(t, &ids, want, COUNT(want), "markers");
    encode(t, &s, &ids, STR("<0x41>"), true); /* not a marker: only '<' is one here */
    CHECK(ids.n > 1 && tok_kind(s.tok, ids.p[1]) == TOK_NORMAL);
    tok_ids_deinit(&ids);
    small_deinit(&s);
}

/* A marker may be a merge's neighbour, but no merge crosses it. */
TEST(bpe_does_not_merge_across_markers)
{
    small   s;
    tok_ids ids;
    small_init(&s);
    small_merge(&s, "a", "b");
    small_build(t, &s);
    tok_ids_init(&ids, 1000);
    encode(t, &s, &ids, STR("ab<eos>a<eos>b"), true);
    const int32_t want[] = {tok_find(s.tok, STR("ab")), 1, tok_find(s.tok, STR("a")), 1, tok_find(s.tok, STR("b"))};
    check_ids(t, &ids, want, COUNT(want), "across markers");
    tok_ids_deinit(&ids);
    small_deinit(&s);
}

/* As an added token, two U+2581 in the text are that token; two spaces are merged with what follows. */
TEST(bpe_finds_white_space_that_is_listed_as_added)
{
    small   s;
    tok_ids ids;
    small_init(&s);
    int32_t two = small_token(&s, STR(SP SP), TOK_USER);
    small_merge(&s, SP SP, SP);
    small_merge(&s, SP, SP);
    small_build(t, &s);
    int32_t one = tok_find(s.tok, STR(SP)), three = tok_find(s.tok, STR(SP SP SP));
    tok_ids_init(&ids, 1000);
    for (int markers = 0; markers < 2; markers++) {
        encode(t, &s, &ids, STR(SP SP " " SP SP SP SP "   " SP "  "), markers);
        const int32_t want[] = {two, one, two, two, three, three};
        check_ids(t, &ids, want, COUNT(want), "white space");
    }
    tok_ids_deinit(&ids);
    small_deinit(&s);
}

/* --- bytes, limits ----------------------------------------------------------------------------- */
TEST(bpe_gives_bytes_for_what_has_no_token)
{
    small   s;
    tok_ids ids;
    small_init(&s);
    small_merge(&s, "a", "b");
    small_build(t, &s);
    tok_ids_init(&ids, 1000);
    encode(t, &s, &ids,
           STR("a\xFF"
               "b\xD0\x96\xE2\x96\x00"),
           false);
    int32_t       f      = s.first_byte;
    const int32_t want[] = {
        tok_find(s.tok, STR("a")), f + 0xFF, tok_find(s.tok, STR("b")), f + 0xD0, f + 0x96, f + 0xE2, f + 0x96, f};
    check_ids(t, &ids, want, COUNT(want), "bytes");
    tok_ids_deinit(&ids);
    small_deinit(&s);
}

TEST(bpe_gives_each_lone_byte_its_token)
{
    small   s;
    tok_ids ids;
    small_init(&s);
    small_token(&s, STR("a"), TOK_NORMAL);
    small_build(t, &s);
    tok_ids_init(&ids, 1000);
    for (int c = 0; c < 256; c++) {
        encode(t, &s, &ids, (str){(const char[]){(char)c}, 1}, false);
        CHECK_INT(ids.n, 1);
        CHECK_INT(ids.p[0], c == 'a' ? s.src.n - 1 : s.first_byte + c);
    }
    tok_ids_deinit(&ids);
    small_deinit(&s);
}

/* Characters at the edges of the table: the first and last of a page, of a plane and of all. */
TEST(bpe_finds_characters_at_the_edges_of_pages)
{
    static const char *const only[] = {"\xC4\x80",         "\xC3\xBF",     "\x7F",
                                       "\xF4\x8F\xBF\xBF", "\xEF\xBF\xBF", "\xF0\x90\x80\x80"};
    tok_ids                  ids;
    tok_ids_init(&ids, 1000);
    for (size_t i = 0; i <= COUNT(only); i++) {
        small s;
        str   text = i < COUNT(only) ? str_of(only[i]) : STR("\0");
        small_init(&s);
        int32_t id = small_token(&s, text, TOK_NORMAL);
        small_build(t, &s);
        encode(t, &s, &ids, text, false);
        CHECK(ids.n == 1 && ids.p[0] == id);
        encode(t, &s, &ids, STR("\xC4\x81"), false);
        CHECK_INT(ids.n, 2);
        small_deinit(&s);
    }
    tok_ids_deinit(&ids);
}

TEST(bpe_says_which_byte_has_no_token)
{
    small   s = {0};
    tok_ids ids;
    err     e = {0};
    vocab_source_init(&s.src, &small_family);
    arena_init(&s.mem, 1 << 20);
    small_token(&s, STR("a"), TOK_NORMAL);
    small_build(t, &s);
    tok_ids_init(&ids, 1000);
    CHECK(tok_ids_put(&ids, 7));
    CHECK_FAILS(tok_encode(s.tok, &ids, STR("aaz"), false, &e), e, "byte 0x7A");
    CHECK(ids.n == 1 && ids.p[0] == 7);
    encode(t, &s, &ids, STR("aa"), false);
    CHECK_INT(ids.n, 2);
    CHECK(tok_bos(s.tok) == -1 && tok_eos(s.tok) == -1 && !tok_add_bos(s.tok));
    tok_ids_deinit(&ids);
    small_deinit(&s);
}

TEST(bpe_stops_at_the_ceilings_and_leaves_the_ids_alone)
{
    small   s;
    tok_ids ids;
    err     e   = {0};
    char   *big = xalloc(TOK_MAX_INPUT + 1);
    small_init(&s);
    small_build(t, &s);
    tok_ids_init(&ids, 3);
    encode(t, &s, &ids, STR("xyz"), false);
    CHECK_INT(ids.n, 3);
    CHECK_FAILS(tok_encode(s.tok, &ids, STR("u"), false, &e), e, "more than 3 tokens");
    CHECK(ids.n == 3 && !ids.failed);
    CHECK_INT(e.code, ERR_TOO_LARGE);
    CHECK_FAILS(tok_encode(s.tok, &ids, (str){big, TOK_MAX_INPUT + 1}, false, &e), e, "more than 33554432");
    tok_ids_deinit(&ids);
    small_deinit(&s);
    mem_free(big);
}

TEST(bpe_answers_when_memory_runs_out)
{
    small   s;
    tok_ids ids;
    err     e;
    char    text[5000];
    small_init(&s);
    small_merge(&s, "a", "a");
    small_build(t, &s);
    memset(text, 'a', sizeof text);
    for (long n = 1; n < 40; n++) {
        tok_ids_init(&ids, 1 << 20);
        fault_fail_nth(n);
        bool ok    = tok_encode(s.tok, &ids, (str){text, sizeof text}, false, &e);
        long tries = fault_tries();
        fault_fail_nth(0);
        CHECK(ok == (tries < n));
        CHECK_INT(ids.n, ok ? 2500 : 0);
        if (!ok) CHECK_INT(e.code, ERR_UNAVAILABLE);
        tok_ids_deinit(&ids);
    }
    small_deinit(&s);
}

/* --- speed ------------------------------------------------------------------------------------- */
static double seconds(test_case *t, const small *s, tok_ids *ids, str text)
{
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double from = clock_thread_s();
        encode(t, s, ids, text, true);
        double took = clock_thread_s() - from;
        if (took < best) best = took;
    }
    return best;
}

/* Inputs that make one long piece, or nothing but cuts; a quadratic step would take sixteen times as long. */
TEST(bpe_takes_linear_time_whatever_the_text)
{
    static const char *const unit[] = {"a", " ", SP, "ab", "\xFF", "\n", "\xE4\xB8\xAD", "<", "<|turn", "ba "};
    enum { N = 1 << 16 };
    small    s;
    tok_ids  ids;
    uint64_t seed = 3;
    char    *text = xalloc(4 * N + 16);
    small_init(&s);
    small_merge(&s, "aaaaaaa", "a");
    for (int n = 1; n < 8; n++) small_merge(&s, &"aaaaaaa"[7 - n], "a");
    small_merge(&s, SP SP, SP SP);
    small_merge(&s, SP, SP);
    small_merge(&s, "a", "b");
    small_merge(&s, "ab", "ab");
    small_merge(&s, "\n", "\n");
    small_merge(&s, "\xE4\xB8\xAD", "\xE4\xB8\xAD");
    small_build(t, &s);
    tok_ids_init(&ids, 8 * N);
    for (size_t k = 0; k <= COUNT(unit); k++) {
        const char *u = k < COUNT(unit) ? unit[k] : "random";
        for (size_t i = 0, n = strlen(u); i < 4 * N; i += n) memcpy(text + i, u, n);
        for (size_t i = 0; k == COUNT(unit) && i < 4 * N; i++) text[i] = "ab"[test_rand(&seed) & 1];
        double one = seconds(t, &s, &ids, (str){text, N}), four = seconds(t, &s, &ids, (str){text, 4 * N});
        CHECK_MSG(four < 8 * one + 0.01, "'%s': %.4f s for n, %.4f s for 4n", u, one, four);
        CHECK_MSG(4 * N / four > 1e6 / TEST_SLOWER, "'%s': %.2f MB/s", u, 4 * N / four / 1e6);
    }
    mem_free(text);
    tok_ids_deinit(&ids);
    small_deinit(&s);
}
