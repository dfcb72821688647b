#include "base/mem.h"
#include "tok/small.h"

/* Texts whose hashes have the same upper bits all want the same place of the table. */
TEST(vocab_refuses_texts_made_to_collide)
{
    small s;
    err   e = {0};
    small_init(&s);
    for (int i = 0, n = 0; n < VOCAB_MAX_PROBES + 100; i++) {
        char text[16];
        int  len = snprintf(text, sizeof text, "%d", i);
        if (str_hash((str){text, (size_t)len}) >> 53) continue;
        small_token(&s, (str){text, (size_t)len}, TOK_NORMAL);
        n++;
    }
    CHECK_FAILS(vocab_build(&s.tok, &s.src, &e), e, "texts collide too often");
    small_deinit(&s);
}

/* The ids are the file's to choose, so merges can be made to collide as well. */
TEST(vocab_refuses_merges_made_to_collide)
{
    small   s = {0};
    err     e = {0};
    int32_t n = 0, first = 0;
    vocab_source_init(&s.src, &small_family);
    arena_init(&s.mem, 1 << 20);
    for (int32_t left = 0; left < 8; left++) {
        char text[2] = {(char)('a' + left), 0};
        vocab_source_set(&s.src, left, (str){arena_str(&s.mem, str_of(text)), 1}, TOK_NORMAL, NULL);
    }
    for (int32_t right = 20000; right < TOK_MAX_TOKENS && n < VOCAB_MAX_PROBES + 100; right++)
        for (int32_t left = 0; left < 8; left++) {
            if (pair_hash(pair_key(left, right)) >> 54) continue;
            char text[16];
            snprintf(text, sizeof text, "%c%d", 'a' + left, right);
            char *both = arena_str(&s.mem, str_of(text));
            if (s.src.n <= right || !s.src.entry[right].kind)
                vocab_source_set(&s.src, right, str_of(both + 1), TOK_NORMAL, NULL);
            vocab_source_set(&s.src, 8 + first++, str_of(both), TOK_NORMAL, NULL);
            vocab_source_merge(&s.src, (str){both, 1}, str_of(both + 1), NULL);
            n++;
        }
    CHECK_FAILS(vocab_build(&s.tok, &s.src, &e), e, "merges collide too often");
    s.src.n_merges = VOCAB_MAX_PROBES; /* as many as may stand together */
    CHECK_OK(vocab_build(&s.tok, &s.src, &e), e);
    small_deinit(&s);
}

TEST(vocab_holds_odd_entries)
{
    small s;
    small_init(&s);
    int32_t x = small_token(&s, STR("x"), TOK_NORMAL), x2 = small_token(&s, STR("x"), TOK_NORMAL);
    int32_t odd = small_token(&s, STR("<0xZZ>"), TOK_BYTE), low = small_token(&s, STR("<0xab>"), TOK_NORMAL);
    int32_t empty = small_token(&s, STR(""), TOK_CONTROL), nul = small_token(&s, STR("a\0b"), TOK_NORMAL);
    int32_t white = small_token(&s, STR("\n\n \t" SP), TOK_USER), user = small_token(&s, STR("\nx"), TOK_USER);
    small_build(t, &s);
    CHECK(tok_find(s.tok, STR("x")) == x && tok_find(s.tok, STR("a\0b")) == nul);
    CHECK_STR(tok_text(s.tok, x2), STR("x"));
    CHECK_INT(tok_kind(s.tok, odd), TOK_UNUSED);
    CHECK_INT(tok_kind(s.tok, low), TOK_NORMAL);
    CHECK_INT(tok_kind(s.tok, empty), TOK_CONTROL);
    CHECK_INT(tok_kind(s.tok, white), TOK_NORMAL);
    CHECK_INT(tok_kind(s.tok, user), TOK_NORMAL);
    CHECK_INT(tok_listed_kind(s.tok, white), TOK_USER);
    CHECK_INT(tok_listed_kind(s.tok, user), TOK_USER);
    CHECK_STR(tok_bytes(s.tok, white), STR("\n\n \t "));
    small_deinit(&s);
}

TEST(vocab_stop_set_has_a_limit)
{
    small s;
    err   e = {0};
    small_init(&s);
    for (int32_t i = 0; i < TOK_MAX_STOPS; i++) s.src.stop[s.src.n_stop++] = 100 + i;
    CHECK_FAILS(vocab_build(&s.tok, &s.src, &e), e, "more than 64 stop tokens");
    small_deinit(&s);
}

TEST(vocab_too_many_merges_are_refused)
{
    vocab_source s;
    err          e = {0};
    vocab_source_init(&s, NULL);
    s.n_merges = TOK_MAX_MERGES;
    CHECK_FAILS(vocab_source_merge(&s, STR("a"), STR("b"), &e), e, "more than 4194304 merges");
    vocab_source_deinit(&s);
}

/* A merge whose result would be too long for a token is ignored; the longest possible one works. */
TEST(vocab_takes_merges_up_to_the_longest_token)
{
    enum { HALF = TOK_MAX_TEXT_BYTES / 2 };
    char *text = xalloc(TOK_MAX_TEXT_BYTES + 2);
    memset(text, 'a', TOK_MAX_TEXT_BYTES + 2);
    for (size_t more = 0; more < 2; more++) {
        small   s;
        tok_ids ids;
        err     e;
        small_init(&s);
        s.src.family  = (tok_family){0};
        int32_t left  = small_token(&s, (str){text, HALF}, TOK_NORMAL);
        int32_t right = small_token(&s, (str){text, HALF + more}, TOK_NORMAL), both = -1;
        if (!more) both = small_token(&s, (str){text, TOK_MAX_TEXT_BYTES}, TOK_NORMAL);
        CHECK(vocab_source_merge(&s.src, (str){text, HALF}, (str){text, HALF + more}, NULL));
        CHECK(vocab_source_merge(&s.src, (str){text, TOK_MAX_TEXT_BYTES + 1}, STR("a"), NULL));
        small_build(t, &s);
        CHECK_INT(vocab_rank(s.tok, left, more ? right : left), more ? VOCAB_NO_RANK : 0);
        if (!more) CHECK_INT(s.tok->merged[0], both);
        tok_ids_init(&ids, 100);
        CHECK_OK(tok_encode(s.tok, &ids, STR("aa"), false, &e), e);
        CHECK_INT(ids.n, 2);
        tok_ids_deinit(&ids);
        small_deinit(&s);
    }
    vocab_source src;
    err          e;
    vocab_source_init(&src, NULL);
    CHECK_OK(vocab_source_set(&src, 0, (str){text, TOK_MAX_TEXT_BYTES}, TOK_NORMAL, &e), e);
    CHECK_OK(vocab_source_set(&src, TOK_MAX_TOKENS - 1, STR("x"), TOK_NORMAL, &e), e);
    CHECK_FAILS(vocab_source_set(&src, 1, (str){text, TOK_MAX_TEXT_BYTES + 1}, TOK_NORMAL, &e), e, "more than 65536");
    CHECK_FAILS(vocab_source_set(&src, TOK_MAX_TOKENS, STR("y"), TOK_NORMAL, &e), e, "expected 0 to 1048575");
    vocab_source_deinit(&src);
    mem_free(text);
}

/* The rank of a merge that a file lists twice is the first one. */
TEST(vocab_takes_the_first_of_equal_merges)
{
    small   s;
    tok_ids ids;
    err     e;
    small_init(&s);
    small_merge(&s, "a", "b");
    small_merge(&s, "b", "c");
    small_merge(&s, "a", "b");
    small_build(t, &s);
    tok_ids_init(&ids, 100);
    CHECK_OK(tok_encode(s.tok, &ids, STR("abc"), false, &e), e);
    const int32_t want[] = {tok_find(s.tok, STR("ab")), tok_find(s.tok, STR("c"))};
    check_ids(t, &ids, want, COUNT(want), "equal merges");
    tok_ids_deinit(&ids);
    small_deinit(&s);
}

/* Parts need no space around the first; the first byte is never the separator. */
TEST(vocab_splits_a_merge_at_its_first_space)
{
    vocab_source s;
    err          e = {0};
    vocab_source_init(&s, NULL);
    CHECK_OK(vocab_source_merge_text(&s, STR("ab c"), &e), e);
    CHECK_OK(vocab_source_merge_text(&s, STR("  c"), &e), e);
    CHECK_OK(vocab_source_merge_text(&s, STR("a b c"), &e), e);
    CHECK_FAILS(vocab_source_merge_text(&s, STR(" c"), &e), e, "merge 3, ' c', is not two parts");
    CHECK_FAILS(vocab_source_merge_text(&s, STR(""), &e), e, "is not two parts");
    CHECK_FAILS(vocab_source_merge_text(&s, STR("a"), &e), e, "is not two parts");
    CHECK_FAILS(vocab_source_merge_text(&s, (str){"ab c", 2}, &e), e,
                "'ab', is not two parts"); /* the text ends there */
    static const char *const want[][2] = {{"ab", "c"}, {" ", "c"}, {"a", "b c"}};
    CHECK_INT(s.n_merges, COUNT(want));
    for (size_t i = 0; i < COUNT(want); i++) {
        CHECK_STR(s.merge[i].left, str_of(want[i][0]));
        CHECK_STR(s.merge[i].right, str_of(want[i][1]));
    }
    vocab_source_deinit(&s);
}

/* Ascending, each once, up to the limit; the family's stops count only as markers. */
TEST(vocab_stop_set_is_sorted_and_without_repeats)
{
    for (int named = 0; named < 2; named++) {
        small   s;
        tok_ids ids;
        small_init(&s);
        if (!named) s.src.entry[5].kind = TOK_NORMAL; /* <turn|> */
        for (int32_t i = 0; i < TOK_MAX_STOPS - 2; i++) s.src.stop[s.src.n_stop++] = 100 + (i * 37) % 62;
        s.src.stop[s.src.n_stop++] = 100;
        s.src.stop[s.src.n_stop++] = 1; /* <eos> again */
        small_build(t, &s);
        tok_ids_init(&ids, 100);
        tok_stop_ids(s.tok, &ids);
        CHECK_INT(ids.n, TOK_MAX_STOPS - 1 + named);
        for (size_t i = 1; i < ids.n; i++) CHECK(ids.p[i - 1] < ids.p[i]);
        CHECK(ids.p[0] == 1 && (ids.p[1] == 5) == named && ids.p[ids.n - 1] == 161);
        tok_ids_deinit(&ids);
        small_deinit(&s);
    }
}

TEST(vocab_without_tokens_is_refused)
{
    vocab_source s;
    tok         *k;
    err          e = {0};
    vocab_source_init(&s, NULL);
    CHECK_FAILS(vocab_build(&k, &s, &e), e, "the vocabulary is empty");
    CHECK(k == NULL);
    vocab_source_deinit(&s);
    vocab_source_deinit(&s); /* nothing is left */
    tok_free(NULL);
}

TEST(vocab_may_begin_with_bos)
{
    small s = {0};
    vocab_source_init(&s.src, &small_family);
    arena_init(&s.mem, 1 << 20);
    small_token(&s, STR("<bos>"), TOK_CONTROL);
    small_build(t, &s);
    CHECK(tok_bos(s.tok) == 0 && tok_add_bos(s.tok) && tok_eos(s.tok) == -1);
    small_deinit(&s);
}

/* Ids that are out of range on either side name nothing. */
TEST(vocab_answers_for_any_id)
{
    small s;
    small_init(&s);
    small_build(t, &s);
    int32_t n = tok_size(s.tok), odd[] = {-1, n, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < COUNT(odd); i++) {
        CHECK_INT(tok_text(s.tok, odd[i]).n + tok_bytes(s.tok, odd[i]).n, 0);
        CHECK_INT(tok_kind(s.tok, odd[i]), TOK_UNUSED);
        CHECK_INT(tok_listed_kind(s.tok, odd[i]), TOK_UNUSED);
    }
    CHECK_STR(tok_text(s.tok, 0), STR("<pad>"));
    CHECK_STR(tok_text(s.tok, n - 1), STR("<0xFF>"));
    CHECK_STR(tok_bytes(s.tok, n - 1), STR("\xFF"));
    CHECK_INT(tok_kind(s.tok, n - 1), TOK_BYTE);
    small_deinit(&s);
}

/* Only <0xHH> in capitals is a byte. */
TEST(vocab_knows_the_form_of_byte_tokens)
{
    static const char *const none[] = {"<0x4>",  "<0x411>", "<0xg1>", "<0x1g>",
                                       "<0X41>", "<0x41)",  "(0x41>", "<0x\0001>"};
    small                    s      = {0};
    vocab_source_init(&s.src, NULL);
    arena_init(&s.mem, 1 << 20);
    for (size_t i = 0; i < COUNT(none); i++) small_token(&s, str_of(none[i]), TOK_NORMAL);
    small_token(&s, STR("<0x1\000>"), TOK_NORMAL);
    int32_t nul = small_token(&s, STR("<0x\0001>"), TOK_NORMAL), low = small_token(&s, STR("<0x00>"), TOK_NORMAL);
    int32_t high = small_token(&s, STR("<0xF9>"), TOK_BYTE), user = small_token(&s, STR("<0x9F>"), TOK_USER);
    small_build(t, &s);
    for (int32_t i = 0; i <= nul; i++) CHECK_INT(tok_kind(s.tok, i), TOK_NORMAL);
    CHECK(tok_kind(s.tok, low) == TOK_BYTE && tok_kind(s.tok, high) == TOK_BYTE && tok_kind(s.tok, user) == TOK_NORMAL);
    CHECK_STR(tok_bytes(s.tok, low), STR("\0"));
    CHECK_STR(tok_bytes(s.tok, high), STR("\xF9"));
    small_deinit(&s);
}
