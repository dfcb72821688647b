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
    CHECK_FAILS(vocab_build(&s.tok, &s.src, &e), e, "texts are made to collide");
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
    CHECK_FAILS(vocab_build(&s.tok, &s.src, &e), e, "merges are made to collide");
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
