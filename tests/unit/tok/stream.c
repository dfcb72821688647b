#include "tok/small.h"

static void decode(const small *s, const int32_t *id, size_t n, bool show_control, buf *out)
{
    buf_clear(out);
    tok_decode(s->tok, id, n, show_control, out);
}

TEST(stream_prints_spaces_bytes_and_user_tokens_but_no_control)
{
    small s;
    buf   out;
    small_init(&s);
    small_merge(&s, SP, "hi");
    small_build(t, &s);
    buf_init(&out, 1000);
    int32_t       hi = tok_find(s.tok, STR(SP "hi")), channel = tok_find(s.tok, STR("<|channel>"));
    const int32_t ids[] = {2, hi, channel, s.first_byte + 'A', 5, -1, 1 << 30, hi, 3};
    decode(&s, ids, COUNT(ids), false, &out);
    CHECK_STR(buf_str(&out), STR(" hi<|channel>A hi"));
    decode(&s, ids, COUNT(ids), true, &out);
    CHECK_STR(buf_str(&out), STR("<bos> hi<|channel>A<turn|> hi<unk>"));
    CHECK_STR(tok_bytes(s.tok, hi), STR(" hi"));
    CHECK_STR(tok_text(s.tok, hi), STR(SP "hi"));
    CHECK_STR(tok_bytes(s.tok, s.first_byte + 10), STR("\n"));
    buf_deinit(&out);
    small_deinit(&s);
}

TEST(stream_holds_an_unfinished_character_back)
{
    small      s;
    buf        out;
    tok_stream st;
    small_init(&s);
    small_merge(&s, "a", "b");
    small_build(t, &s);
    buf_init(&out, 1000);
    tok_stream_init(&st, s.tok, false);
    static const uint8_t llama[] = {0xF0, 0x9F, 0xA6, 0x99};
    for (int i = 0; i < 4; i++) {
        CHECK_INT(out.n, 0);
        tok_stream_put(&st, s.first_byte + llama[i], &out);
    }
    CHECK_STR(buf_str(&out), STR("\xF0\x9F\xA6\x99"));
    buf_clear(&out);
    tok_stream_put(&st, s.first_byte + 0xE2, &out);
    tok_stream_put(&st, s.first_byte + 0x96, &out);
    CHECK_INT(out.n, 0);
    tok_stream_put(&st, tok_find(s.tok, STR("ab")), &out);
    CHECK_STR(buf_str(&out), STR("\xEF\xBF\xBD"
                                 "ab"));
    buf_clear(&out);
    tok_stream_put(&st, s.first_byte + 0xC3, &out);
    tok_stream_put(&st, 5, &out); /* a marker that is not printed still ends it */
    tok_stream_put(&st, s.first_byte + 0xA9, &out);
    tok_stream_put(&st, s.first_byte + 0xF0, &out);
    tok_stream_finish(&st, &out);
    tok_stream_finish(&st, &out);
    CHECK_STR(buf_str(&out), STR("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"));
    buf_deinit(&out);
    small_deinit(&s);
}

/* The rule, written once more: after a lead byte the second byte has its own range, the others 80 to BF. */
static void repair(buf *out, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint8_t c    = p[i];
        size_t  need = c < 0x80                 ? 1
                       : c >= 0xC2 && c <= 0xDF ? 2
                       : (c & 0xF0) == 0xE0     ? 3
                       : c >= 0xF0 && c <= 0xF4 ? 4
                                                : 0;
        size_t  k    = 1;
        for (; k < need && i + k < n; k++) {
            uint8_t lo = k > 1 ? 0x80 : c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
            uint8_t hi = k > 1 ? 0xBF : c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
            if (p[i + k] < lo || p[i + k] > hi) break;
        }
        if (k == need)
            buf_put(out, p + i, need);
        else
            buf_puts(out, "\xEF\xBF\xBD");
        i += k;
    }
}

static bool is_utf8(str s)
{
    for (size_t i = 0; i < s.n;) {
        uint32_t c;
        int      len = utf8_decode(s.s + i, s.n - i, &c);
        if (!len) return false;
        i += (size_t)len;
    }
    return true;
}

/* Tokens whose texts are pieces of characters, in any order: a file may contain such. */
TEST(stream_gives_the_same_text_however_the_bytes_are_cut)
{
    static const char *const pieces[] = {"\xE2",     "\x96",      "\x81",     "\xE2\x96",     "\x96\x81",
                                         "\xF0\x9F", "\xA6\x99z", "a",        "\xED\xA0\x80", "\xC3",
                                         "\xA9",     "\xF4\x90",  "\xC0\xAF", "\xF0\x9F\xA6"};
    small                    s;
    buf                      out, raw, want;
    uint64_t                 seed = 5;
    small_init(&s);
    int32_t first = s.src.n;
    for (size_t i = 0; i < COUNT(pieces); i++) small_token(&s, str_of(pieces[i]), TOK_NORMAL);
    small_build(t, &s);
    buf_init(&out, 10000);
    buf_init(&raw, 10000);
    buf_init(&want, 10000);
    for (int round = 0; round < 5000; round++) {
        tok_stream st;
        tok_stream_init(&st, s.tok, false);
        buf_clear(&out);
        buf_clear(&raw);
        buf_clear(&want);
        for (int n = (int)(test_rand(&seed) % 12); n > 0; n--) {
            bool    piece = test_rand(&seed) & 1;
            int32_t id =
                piece ? first + (int32_t)(test_rand(&seed) % COUNT(pieces))
                      : s.first_byte + "\xE2\x96\x81\xF0\x9F\xA6\x99 \xC3\xA9\xED\xF4"[test_rand(&seed) % 12] + 256;
            if (!piece) id = s.first_byte + (id - s.first_byte) % 256;
            str bytes = tok_bytes(s.tok, id);
            buf_put(&raw, bytes.s, bytes.n);
            tok_stream_put(&st, id, &out);
            CHECK(is_utf8(buf_str(&out)) && st.n_held <= 3);
        }
        tok_stream_finish(&st, &out);
        repair(&want, (const uint8_t *)raw.p, raw.n);
        CHECK_STR(buf_str(&out), buf_str(&want));
    }
    buf_deinit(&out);
    buf_deinit(&raw);
    buf_deinit(&want);
    small_deinit(&s);
}

TEST(stream_gives_back_what_was_encoded)
{
    small    s;
    tok_ids  ids;
    buf      text, out;
    uint64_t seed = 6;
    small_init(&s);
    small_random(&s, &seed, 8, 50);
    small_build(t, &s);
    tok_ids_init(&ids, 1 << 20);
    buf_init(&text, 1 << 20);
    buf_init(&out, 1 << 20);
    for (int i = 0; i < 300; i++) {
        err e;
        buf_clear(&text);
        tok_ids_clear(&ids);
        small_text(&text, &seed, test_rand(&seed) % 200, 10, TEXT_VALID);
        CHECK_OK(tok_encode(s.tok, &ids, buf_str(&text), i & 1, &e), e);
        decode(&s, ids.p, ids.n, true, &out);
        CHECK_STR(buf_str(&out), buf_str(&text));
    }
    tok_ids_deinit(&ids);
    buf_deinit(&text);
    buf_deinit(&out);
    small_deinit(&s);
}
