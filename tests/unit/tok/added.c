/* Added tokens in a text: user-defined ones in any, markers only when asked. */
#include "tok/small.h"

static void encode(test_case *t, const small *s, tok_ids *out, str text, bool parse_special)
{
    err e;
    tok_ids_clear(out);
    CHECK_OK(tok_encode(s->tok, out, text, parse_special, &e), e);
}

static void check_encodes(test_case *t, const small *s, const char *text, bool parse_special, const int32_t *want,
                          size_t n)
{
    tok_ids ids;
    tok_ids_init(&ids, 1000);
    encode(t, s, &ids, str_of(text), parse_special);
    check_ids(t, &ids, want, n, text);
    tok_ids_deinit(&ids);
}

#define CHECK_PLAIN(text, ...)                                                                                         \
    check_encodes(t, &s, text, false, (const int32_t[]){__VA_ARGS__}, COUNT(((const int32_t[]){__VA_ARGS__})))
#define CHECK_SPECIAL(text, ...)                                                                                       \
    check_encodes(t, &s, text, true, (const int32_t[]){__VA_ARGS__}, COUNT(((const int32_t[]){__VA_ARGS__})))

/* --- which are found --------------------------------------------------------------------------- */
TEST(added_user_defined_tokens_are_found_in_every_text)
{
    small   s;
    int32_t a, x, b, end, table;
    small_init(&s);
    a     = small_token(&s, STR("a"), TOK_NORMAL);
    x     = small_token(&s, STR("x"), TOK_NORMAL);
    b     = small_token(&s, STR("<b>"), TOK_USER);
    end   = small_token(&s, STR("</b>"), TOK_USER);
    table = small_token(&s, STR("<table>"), TOK_USER);
    small_build(t, &s);
    CHECK_PLAIN("a<b>x</b><table>", a, b, x, end, table);
    CHECK_SPECIAL("a<b>x</b><table>", a, b, x, end, table);
    CHECK_PLAIN("<tablea", s.first_byte + '<', s.first_byte + 't', a, s.first_byte + 'b', s.first_byte + 'l',
                s.first_byte + 'e', a);
    CHECK_INT(tok_kind(s.tok, b), TOK_NORMAL);
    CHECK_INT(tok_listed_kind(s.tok, b), TOK_USER);
    CHECK_INT(tok_listed_kind(s.tok, a), TOK_NORMAL);
    CHECK_INT(tok_listed_kind(s.tok, s.src.n), TOK_UNUSED);
    small_deinit(&s);
}

/* The family's markers stay markers where a file calls them user-defined; a control token needs no name. */
TEST(added_markers_are_found_only_when_asked)
{
    static const char *const texts[] = {"<|channel>", "<|turn>", "<turn|>", "<eos>", "<secret>"};
    small                    s;
    tok_ids                  ids;
    small_init(&s);
    small_token(&s, STR("<secret>"), TOK_CONTROL);
    s.src.entry[4].kind = TOK_USER; /* <|turn> */
    small_build(t, &s);
    tok_ids_init(&ids, 1000);
    for (size_t i = 0; i < COUNT(texts); i++) {
        int32_t id = tok_find(s.tok, str_of(texts[i]));
        encode(t, &s, &ids, str_of(texts[i]), true);
        CHECK(ids.n == 1 && ids.p[0] == id && id >= 0);
        encode(t, &s, &ids, str_of(texts[i]), false);
        CHECK_INT(ids.n, strlen(texts[i]));
        for (size_t k = 0; k < ids.n; k++) CHECK_INT(tok_kind(s.tok, ids.p[k]), TOK_BYTE);
    }
    CHECK_INT(tok_kind(s.tok, 4), TOK_USER);
    CHECK_INT(tok_kind(s.tok, 5), TOK_CONTROL);
    tok_ids_deinit(&ids);
    small_deinit(&s);
}

/* The family says which of its control tokens are printed; no other name makes one so. */
TEST(added_markers_that_the_family_prints_are_printed)
{
    small s;
    buf   out;
    small_init(&s);
    s.src.entry[6].kind = TOK_CONTROL; /* <|channel> */
    small_build(t, &s);
    buf_init(&out, 1000);
    CHECK_INT(tok_kind(s.tok, 6), TOK_USER);
    CHECK_INT(tok_listed_kind(s.tok, 6), TOK_USER);
    tok_decode(s.tok, (const int32_t[]){4, 6, 2}, 3, false, &out);
    CHECK_STR(buf_str(&out), STR("<|channel>"));
    buf_deinit(&out);
    small_deinit(&s);
}

TEST(added_tokens_without_a_family_go_by_their_flags)
{
    small s = {0};
    vocab_source_init(&s.src, NULL);
    arena_init(&s.mem, 1 << 20);
    small_token(&s, STR("<bos>"), TOK_CONTROL);
    small_token(&s, STR("<|channel>"), TOK_USER);
    small_token(&s, STR("<unk>"), TOK_UNKNOWN);
    small_build(t, &s);
    CHECK_PLAIN("<|channel>", 1);
    CHECK_SPECIAL("<bos><unk><|channel>", 0, 2, 1);
    CHECK(tok_bos(s.tok) == -1 && tok_unk(s.tok) == -1);
    small_deinit(&s);
}

TEST(added_token_with_the_lower_id_counts)
{
    small s;
    small_init(&s);
    int32_t one = small_token(&s, STR("<x>"), TOK_USER), y = small_token(&s, STR("<y>"), TOK_USER);
    small_token(&s, STR("<x>"), TOK_USER);
    small_token(&s, STR("<x>"), TOK_CONTROL);
    small_build(t, &s);
    CHECK_PLAIN("<x><y>", one, y);
    CHECK_SPECIAL("<x><y>", one, y);
    small_deinit(&s);
}

/* As the reference does: a marker that is not to be found takes its characters out of the search. */
TEST(added_tokens_inside_a_marker_are_not_found)
{
    small   s;
    int32_t lt, a, gt, user, longer;
    small_init(&s);
    lt   = small_token(&s, STR("<"), TOK_NORMAL);
    a    = small_token(&s, STR("a"), TOK_NORMAL);
    gt   = small_token(&s, STR(">"), TOK_NORMAL);
    user = small_token(&s, STR("a>"), TOK_USER);
    small_token(&s, STR("<a"), TOK_CONTROL);
    longer = small_token(&s, STR("<a>a"), TOK_USER);
    small_build(t, &s);
    CHECK_PLAIN("a>", user);
    CHECK_PLAIN("<a>", lt, a, gt);
    CHECK_PLAIN("<a>a", longer);
    CHECK_PLAIN("<a>>a>", lt, a, gt, gt, user);
    small_deinit(&s);
}

/* Normalized tokens are searched for after the others, in the text with its spaces replaced. */
TEST(added_normalized_tokens_match_after_the_replacement_of_spaces)
{
    small   s;
    int32_t a, b, sp, nl, spaced, broken, exact;
    small_init(&s);
    a                              = small_token(&s, STR("a"), TOK_NORMAL);
    b                              = small_token(&s, STR("b"), TOK_NORMAL);
    sp                             = small_token(&s, STR(SP), TOK_NORMAL);
    nl                             = small_token(&s, STR("\n"), TOK_USER);
    spaced                         = small_token(&s, STR("a b"), TOK_USER);
    broken                         = small_token(&s, STR("a\nb"), TOK_USER);
    exact                          = small_token(&s, STR("b b"), TOK_USER);
    s.src.entry[spaced].normalized = s.src.entry[broken].normalized = true;
    small_build(t, &s);
    CHECK_PLAIN("a ba" SP "b", spaced, spaced);
    CHECK_PLAIN("a\nb", a, nl, b);
    CHECK_PLAIN("b bb" SP "b", exact, b, sp, b);
    CHECK_PLAIN("a b b", a, sp, exact);
    CHECK_PLAIN("a ", a, sp);
    CHECK_PLAIN(" a", sp, a);
    small_deinit(&s);
}

TEST(added_token_that_is_too_long_is_refused)
{
    static const tok_kind_t kinds[] = {TOK_USER, TOK_CONTROL, TOK_NORMAL};
    char                    text[TOK_MAX_ADDED + 1];
    memset(text, 'x', sizeof text);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        small s;
        err   e = {0};
        small_init(&s);
        int32_t longest = small_token(&s, (str){text, TOK_MAX_ADDED}, kinds[i]);
        small_build(t, &s);
        if (s.tok && kinds[i] == TOK_USER) {
            tok_ids ids;
            tok_ids_init(&ids, 1000);
            encode(t, &s, &ids, (str){text, TOK_MAX_ADDED}, false);
            CHECK(ids.n == 1 && ids.p[0] == longest);
            tok_ids_deinit(&ids);
        }
        tok_free(s.tok);
        small_token(&s, (str){text, TOK_MAX_ADDED + 1}, kinds[i]);
        bool ok = vocab_build(&s.tok, &s.src, &e);
        CHECK(ok == (kinds[i] == TOK_NORMAL));
        if (!ok) CHECK(strstr(e.text, "has 1025 bytes, more than 1024") != NULL);
        small_deinit(&s);
    }
}

/* --- against a slow search --------------------------------------------------------------------- */
/* Bytes of the space or U+2581 that s starts with, or 0. */
static size_t space_at(str s)
{
    if (s.n && *s.s == ' ') return 1;
    return s.n >= 3 && !memcmp(s.s, SP, 3) ? 3 : 0;
}

/* Returns the length of the token's text at the start of text, else 0. For a normalized token a space counts as
 * U+2581. */
static bool starts_with(str text, vocab_entry v, size_t *len)
{
    size_t i = 0;
    for (str rest = v.text; rest.n;) {
        size_t a = v.normalized ? space_at(rest) : 0, b = v.normalized ? space_at((str){text.s + i, text.n - i}) : 0;
        if (!a != !b || (!a && (i == text.n || text.s[i] != *rest.s))) return false;
        i += b ? b : 1;
        rest = (str){rest.s + (a ? a : 1), rest.n - (a ? a : 1)};
    }
    *len = i;
    return true;
}

static int32_t slow_match(const small *s, str text, bool normalized, size_t *len)
{
    int32_t found = -1;
    size_t  n;
    *len = 0;
    for (int32_t i = 0; i < s->src.n; i++) {
        vocab_entry v = s->src.entry[i];
        if ((v.kind != TOK_USER && v.kind != TOK_CONTROL) || v.normalized != normalized) continue;
        if (starts_with(text, v, &n) && n > *len) {
            *len  = n;
            found = i;
        }
    }
    return found;
}

static void slow_encode(const small *s, tok_ids *out, str text, bool special, int pass)
{
    size_t from = 0, len;
    if (pass == 2) {
        small_reference(s, out, text);
        return;
    }
    for (size_t i = 0; i < text.n;) {
        int32_t id = slow_match(s, (str){text.s + i, text.n - i}, pass, &len);
        i += id < 0 ? 1 : len;
        if (id < 0 || (!special && s->src.entry[id].kind == TOK_CONTROL)) continue;
        slow_encode(s, out, (str){text.s + from, i - len - from}, special, pass + 1);
        tok_ids_put(out, id);
        from = i;
    }
    slow_encode(s, out, (str){text.s + from, text.n - from}, special, pass + 1);
}

static const char *const letters[] = {"a", "b", " ", SP, "<", ">", "\n", "c"};

static str random_text(buf *b, uint64_t *seed, size_t max)
{
    buf_clear(b);
    for (size_t n = 1 + test_rand(seed) % max; n; n--) buf_puts(b, letters[test_rand(seed) % COUNT(letters)]);
    return buf_str(b);
}

/* Control tokens get a '<', which no merge has; a text that is a token already becomes a user-defined one. */
static void add_random_tokens(small *s, uint64_t *seed, buf *b)
{
    for (uint64_t n = test_rand(seed) % 12; n; n--) {
        str     text    = random_text(b, seed, 4);
        bool    control = test_rand(seed) % 3 == 0 && text.n > 1 && memchr(text.s, '<', text.n);
        int32_t id      = small_find(s, text);
        if (id < 0) id = small_token(s, text, TOK_NORMAL);
        if (s->src.entry[id].kind != TOK_NORMAL) continue;
        s->src.entry[id].kind       = control ? TOK_CONTROL : TOK_USER;
        s->src.entry[id].normalized = test_rand(seed) % 3 == 0;
    }
}

TEST(added_tokens_agree_with_a_slow_search)
{
    uint64_t seed = 11;
    tok_ids  got, want;
    buf      b;
    tok_ids_init(&got, 1 << 16);
    tok_ids_init(&want, 1 << 16);
    buf_init(&b, 1 << 16);
    for (int i = 0; i < 300; i++) {
        small s;
        small_init(&s);
        small_random(&s, &seed, 3, (int)(test_rand(&seed) % 20));
        add_random_tokens(&s, &seed, &b);
        small_build(t, &s);
        for (int k = 0; k < 20; k++) {
            str text = random_text(&b, &seed, 30);
            encode(t, &s, &got, text, k % 2);
            tok_ids_clear(&want);
            slow_encode(&s, &want, text, k % 2, 0);
            check_ids(t, &got, want.p, want.n, b.p);
        }
        small_deinit(&s);
    }
    buf_deinit(&b);
    tok_ids_deinit(&got);
    tok_ids_deinit(&want);
}
