#include "base/fault.h"
#include "tok/small.h"

/* --- a GGUF file with metadata only ------------------------------------------------------------ */
typedef struct {
    buf      b;
    uint64_t n_values;
} writer;

static void put_u32(writer *w, uint32_t x) { buf_put(&w->b, &x, 4); }
static void put_u64(writer *w, uint64_t x) { buf_put(&w->b, &x, 8); }
static void put_str(writer *w, const char *s)
{
    put_u64(w, strlen(s));
    buf_puts(&w->b, s);
}

static void begin_value(writer *w, const char *key, gguf_type type)
{
    put_str(w, key);
    put_u32(w, type);
    w->n_values++;
}

static void put_string(writer *w, const char *key, const char *s)
{
    begin_value(w, key, GGUF_STRING);
    put_str(w, s);
}

static void put_int(writer *w, const char *key, uint32_t x)
{
    begin_value(w, key, GGUF_U32);
    put_u32(w, x);
}

static void put_strings(writer *w, const char *key, const char *const *s, size_t n)
{
    begin_value(w, key, GGUF_ARRAY);
    put_u32(w, GGUF_STRING);
    put_u64(w, n);
    for (size_t i = 0; i < n; i++) put_str(w, s[i]);
}

static void put_ints(writer *w, const char *key, const int32_t *x, size_t n)
{
    begin_value(w, key, GGUF_ARRAY);
    put_u32(w, GGUF_I32);
    put_u64(w, n);
    for (size_t i = 0; i < n; i++) put_u32(w, (uint32_t)x[i]);
}

static void writer_begin(writer *w)
{
    *w = (writer){0};
    buf_init(&w->b, 1 << 20);
    put_u32(w, 0x46554747);
    put_u32(w, 3);
    put_u64(w, 0);
    put_u64(w, 0); /* the number of values, at byte 16 */
}

static gguf *writer_open(test_case *t, writer *w)
{
    gguf *g = NULL;
    err   e;
    memcpy(w->b.p + 16, &w->n_values, 8);
    while (w->b.n % 32) buf_putc(&w->b, 0);
    CHECK_OK(gguf_open(&g, test_tmp_file("tok.gguf", w->b.p, w->b.n), &e), e);
    buf_deinit(&w->b);
    return g;
}

/* --- the cases --------------------------------------------------------------------------------- */
static const char *const tokens[] = {"<pad>", "<eos>",  "<bos>", "<unk>", "a",       "b",
                                     "ab",    "<0x41>", "a",     "",      "<turn|>", SP};
static const int32_t     types[]  = {3, 3, 3, 2, 1, 1, 1, 6, 1, 5, 3, 4};
static const char *const merges[] = {"t 1", "a b", "ab z"};

enum part { NO_MODEL = 1, NO_TYPES = 2, NO_MERGES = 4 };

static void write_vocab(writer *w, int leave_out)
{
    writer_begin(w);
    if (!(leave_out & NO_MODEL)) put_string(w, "tokenizer.ggml.model", "gemma4");
    put_strings(w, "tokenizer.ggml.tokens", tokens, COUNT(tokens));
    if (!(leave_out & NO_TYPES)) put_ints(w, "tokenizer.ggml.token_type", types, COUNT(types));
    if (!(leave_out & NO_MERGES)) put_strings(w, "tokenizer.ggml.merges", merges, COUNT(merges));
}

/* Writes, opens, and expects the tokenizer to be refused. */
static void check_refused(test_case *t, writer *w, err_code code, const char *part)
{
    tok  *k;
    err   e = {0};
    gguf *g = writer_open(t, w);
    if (!g) return;
    CHECK_FAILS(tok_from_gguf(&k, g, &small_family, &e), e, part);
    CHECK(k == NULL);
    CHECK_INT(e.code, code);
    gguf_close(g);
}

/* Merges of unknown parts are passed over, of equal texts the first counts, U+2581 is plain text whatever its type. */
TEST(gguf_tokenizer_loads)
{
    static const int32_t eos[] = {10, 1}, want[] = {6, 11, 7, 7, 4, 3};
    writer               w;
    tok                 *k;
    tok_ids              ids;
    err                  e;
    write_vocab(&w, 0);
    put_ints(&w, "tokenizer.ggml.eos_token_id", eos, 2);
    put_int(&w, "tokenizer.ggml.bos_token_id", 2);
    put_int(&w, "tokenizer.ggml.eot_token_id", 4);
    put_int(&w, "tokenizer.ggml.unknown_token_id", 3);
    gguf *g = writer_open(t, &w);
    if (!g) return;
    CHECK_OK(tok_from_gguf(&k, g, &small_family, &e), e);
    gguf_close(g); /* nothing is borrowed */
    if (!k) return;
    CHECK(tok_size(k) == (int32_t)COUNT(tokens) && tok_bos(k) == 2 && tok_eos(k) == 10 && tok_add_bos(k));
    tok_ids_init(&ids, 100);
    CHECK_OK(tok_encode(k, &ids, STR("ab AAa\xFF"), false, &e), e);
    check_ids(t, &ids, want, COUNT(want), "encoded");
    tok_ids_clear(&ids);
    tok_stop_ids(k, &ids);
    static const int32_t stops[] = {1, 4, 10};
    check_ids(t, &ids, stops, COUNT(stops), "stops");
    tok_ids_deinit(&ids);
    tok_free(k);
}

TEST(gguf_tokenizer_without_types_goes_by_the_texts)
{
    writer w;
    tok   *k;
    err    e;
    write_vocab(&w, NO_TYPES);
    gguf *g = writer_open(t, &w);
    if (!g) return;
    CHECK_OK(tok_from_gguf(&k, g, &small_family, &e), e);
    gguf_close(g);
    if (!k) return;
    CHECK_INT(tok_kind(k, 7), TOK_BYTE);
    CHECK_INT(tok_kind(k, 4), TOK_NORMAL);
    tok_free(k);
}

TEST(gguf_tokenizer_that_is_not_there_is_said_so)
{
    writer w;
    writer_begin(&w);
    put_string(&w, "general.architecture", "gemma4");
    check_refused(t, &w, ERR_NOT_FOUND, "the file has no tokenizer");
}

TEST(gguf_tokenizer_of_no_kind_is_said_to_be_absent)
{
    static const char *const kinds[] = {"none", "no_vocab"};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        writer w;
        writer_begin(&w);
        put_string(&w, "tokenizer.ggml.model", kinds[i]);
        check_refused(t, &w, ERR_NOT_FOUND, kinds[i]);
    }
}

/* Each key that names where generation ends, with one id or several. */
TEST(gguf_tokenizer_takes_stops_from_all_keys)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eos_token_ids",
                                       "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    static const int32_t     two[]  = {4, 5};
    for (size_t i = 0; i < COUNT(keys); i++)
        for (int many = 0; many < 2; many++) {
            writer  w;
            tok    *k;
            tok_ids ids;
            err     e;
            write_vocab(&w, 0);
            if (many)
                put_ints(&w, keys[i], two, 2);
            else
                put_int(&w, keys[i], 5);
            put_int(&w, "tokenizer.ggml.padding_token_id", 0);
            gguf *g = writer_open(t, &w);
            if (!g) return;
            CHECK_OK(tok_from_gguf(&k, g, &small_family, &e), e);
            gguf_close(g);
            if (!k) return;
            tok_ids_init(&ids, 100);
            tok_stop_ids(k, &ids);
            const int32_t  eos[] = {1}, want_one[] = {5, 10}, want_two[] = {4, 5, 10};
            const int32_t *want = many ? want_two : want_one;
            size_t         n = many ? 3 : 2, from = i ? 1 : 0; /* <eos> by name, unless the file says */
            if (from) check_ids(t, &(tok_ids){.p = ids.p, .n = 1}, eos, 1, keys[i]);
            check_ids(t, &(tok_ids){.p = ids.p + from, .n = ids.n - from}, want, n, keys[i]);
            CHECK_INT(tok_eos(k), i ? 1 : want[0]);
            CHECK_INT(tok_pad(k), 0);
            tok_ids_deinit(&ids);
            tok_free(k);
        }
}

TEST(gguf_tokenizer_says_what_is_wrong)
{
    static const int32_t bad_type[] = {3, 3, 3, 2, 1, 1, 1, 6, 1, 5, 7, 1}, no_type[12] = {0}, minus[] = {-1};
    int32_t              many[TOK_MAX_STOPS + 1] = {0};
    writer               w;
    write_vocab(&w, NO_TYPES);
    put_ints(&w, "tokenizer.ggml.token_type", no_type, COUNT(no_type));
    check_refused(t, &w, ERR_FORMAT, "token 0 has type 0");
    write_vocab(&w, 0);
    put_ints(&w, "tokenizer.ggml.eom_token_id", minus, 1);
    check_refused(t, &w, ERR_FORMAT, "'tokenizer.ggml.eom_token_id' is -1");
    write_vocab(&w, 0);
    put_ints(&w, "tokenizer.ggml.bos_token_id", minus, 0);
    check_refused(t, &w, ERR_FORMAT, "'tokenizer.ggml.bos_token_id' is not an integer");
    write_vocab(&w, 0);
    put_ints(&w, "tokenizer.ggml.eot_token_id", many, COUNT(many));
    check_refused(t, &w, ERR_FORMAT, "names more than 64 stop tokens");
    write_vocab(&w, 0);
    put_strings(&w, "tokenizer.ggml.eot_token_id", tokens, 1);
    check_refused(t, &w, ERR_FORMAT, "'tokenizer.ggml.eot_token_id' is not an integer");
    write_vocab(&w, NO_MODEL);
    check_refused(t, &w, ERR_FORMAT, "'tokenizer.ggml.model' is not a string");
    write_vocab(&w, NO_MODEL);
    put_string(&w, "tokenizer.ggml.model", "gpt2");
    check_refused(t, &w, ERR_FORMAT, "of the kind 'gpt2'");
    writer_begin(&w);
    put_string(&w, "tokenizer.ggml.model", "gemma4");
    put_ints(&w, "tokenizer.ggml.tokens", types, 3);
    check_refused(t, &w, ERR_FORMAT, "'tokenizer.ggml.tokens' is not an array of strings");
    write_vocab(&w, NO_TYPES);
    put_ints(&w, "tokenizer.ggml.token_type", types, 5);
    check_refused(t, &w, ERR_FORMAT, "a number for each token");
    write_vocab(&w, NO_TYPES);
    put_strings(&w, "tokenizer.ggml.token_type", tokens, COUNT(tokens));
    check_refused(t, &w, ERR_FORMAT, "'tokenizer.ggml.token_type' is not an array of integers");
    write_vocab(&w, NO_TYPES);
    put_ints(&w, "tokenizer.ggml.token_type", bad_type, COUNT(bad_type));
    check_refused(t, &w, ERR_FORMAT, "token 10 has type 7");
    write_vocab(&w, NO_MERGES);
    check_refused(t, &w, ERR_FORMAT, "'tokenizer.ggml.merges' is not an array");
    write_vocab(&w, NO_MERGES);
    put_strings(&w, "tokenizer.ggml.merges", tokens, 1);
    check_refused(t, &w, ERR_FORMAT, "merge 0, '<pad>', is not two parts");
    write_vocab(&w, 0);
    put_int(&w, "tokenizer.ggml.bos_token_id", 12);
    check_refused(t, &w, ERR_FORMAT, "bos token's id is 12");
    static const char *const ids[][2] = {{"tokenizer.ggml.eos_token_id", "the eos token's id is 99"},
                                         {"tokenizer.ggml.padding_token_id", "the pad token's id is 99"},
                                         {"tokenizer.ggml.unknown_token_id", "the unknown token's id is 99"}};
    for (size_t i = 0; i < COUNT(ids); i++) {
        write_vocab(&w, 0);
        put_int(&w, ids[i][0], 99);
        check_refused(t, &w, ERR_FORMAT, ids[i][1]);
    }
    write_vocab(&w, 0);
    put_int(&w, "tokenizer.ggml.eot_token_id", 99);
    check_refused(t, &w, ERR_FORMAT, "stop token's id is 99");
    write_vocab(&w, 0);
    put_int(&w, "tokenizer.ggml.padding_token_id", UINT32_MAX);
    check_refused(t, &w, ERR_FORMAT, "'tokenizer.ggml.padding_token_id' is 4294967295");
    write_vocab(&w, 0);
    put_string(&w, "tokenizer.ggml.eos_token_id", "1");
    check_refused(t, &w, ERR_FORMAT, "'tokenizer.ggml.eos_token_id' is not an integer");
}

/* --- byte-level ---------------------------------------------------------------------------------- */
/* Writes the alphabet at 0 to 255, a merge, a control token that the family prints, and a filler. */
static void write_bytes(writer *w, const char *pre)
{
    enum { N = 256 + 4 };
    static char letter[256][8];
    const char *text[N]  = {[256] = "th", [257] = "<turn|>", [258] = "<|channel>", [259] = "[PAD259]"};
    int32_t     kind[N]  = {[256] = 1, [257] = 3, [258] = 3, [259] = 5};
    const char *merge[1] = {"t h"};
    for (int i = 0; i < 256; i++) {
        small_spell_byte(letter[i], i);
        text[i] = letter[i];
        kind[i] = 1;
    }
    writer_begin(w);
    put_string(w, "tokenizer.ggml.model", "gpt2");
    if (pre) put_string(w, "tokenizer.ggml.pre", pre);
    put_strings(w, "tokenizer.ggml.tokens", text, N);
    put_ints(w, "tokenizer.ggml.token_type", kind, N);
    put_strings(w, "tokenizer.ggml.merges", merge, 1);
    put_int(w, "tokenizer.ggml.bos_token_id", 257);
    put_int(w, "tokenizer.ggml.eos_token_id", 257);
}

TEST(gguf_byte_level_tokenizer_loads)
{
    static const int32_t plain[]   = {' ', 256, '<', '|', 'c'},
                         special[] = {256, 258, '[', 'P', 'A', 'D', '2', '5', '9', ']'};
    writer  w;
    tok    *k;
    tok_ids ids;
    err     e;
    write_bytes(&w, "small");
    gguf *g = writer_open(t, &w);
    if (!g) return;
    CHECK_OK(tok_from_gguf(&k, g, &small_bytes_family, &e), e);
    gguf_close(g);
    if (!k) return;
    CHECK(tok_bos(k) == -1 && !tok_add_bos(k) && tok_eos(k) == 257);
    CHECK_INT(tok_kind(k, 258), TOK_USER);
    CHECK_INT(tok_kind(k, 259), TOK_UNUSED);
    tok_ids_init(&ids, 100);
    CHECK_OK(tok_encode(k, &ids, STR(" th<|c"), false, &e), e);
    check_ids(t, &ids, plain, COUNT(plain), "plain");
    tok_ids_clear(&ids);
    CHECK_OK(tok_encode(k, &ids, STR("th<|channel>[PAD259]"), true, &e), e);
    check_ids(t, &ids, special, COUNT(special), "special");
    tok_ids_deinit(&ids);
    tok_free(k);
}

/* Texts are normalised only where the file says so; the merges of the small vocabulary join no accent. */
TEST(gguf_byte_level_tokenizer_normalises_when_the_file_says_so)
{
    static const int32_t raw[] = {'e', 0xCC, 0x81}, nfc[] = {0xC3, 0xA9};
    for (int says = -1; says < 2; says++) {
        writer  w;
        tok    *k;
        tok_ids ids;
        err     e;
        write_bytes(&w, "small");
        if (says >= 0) {
            begin_value(&w, "tokenizer.ggml.normalizer.nfc", GGUF_BOOL);
            buf_putc(&w.b, (char)says);
        }
        gguf *g = writer_open(t, &w);
        if (!g) return;
        CHECK_OK(tok_from_gguf(&k, g, &small_bytes_family, &e), e);
        gguf_close(g);
        if (!k) return;
        tok_ids_init(&ids, 100);
        CHECK_OK(tok_encode(k, &ids, STR("e\xCC\x81"), false, &e), e);
        check_ids(t, &ids, says == 1 ? nfc : raw, says == 1 ? 2 : 3, "e with an accent");
        tok_ids_deinit(&ids);
        tok_free(k);
    }
    writer w;
    tok   *k;
    err    e = {0};
    write_bytes(&w, "small");
    put_int(&w, "tokenizer.ggml.normalizer.nfc", 1);
    gguf *g = writer_open(t, &w);
    if (!g) return;
    CHECK_FAILS(tok_from_gguf(&k, g, &small_bytes_family, &e), e,
                "'tokenizer.ggml.normalizer.nfc' is not true or false");
    gguf_close(g);
}

TEST(gguf_byte_level_tokenizer_of_other_words_is_refused)
{
    static const char *const cases[][2] = {{NULL, "'tokenizer.ggml.pre' is not a string"},
                                           {"llama-bpe", "pre-tokenizer is 'llama-bpe', expected 'small'"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        writer w;
        tok   *k;
        err    e = {0};
        write_bytes(&w, cases[i][0]);
        gguf *g = writer_open(t, &w);
        if (!g) return;
        CHECK_FAILS(tok_from_gguf(&k, g, &small_bytes_family, &e), e, cases[i][1]);
        CHECK(!k);
        gguf_close(g);
    }
}

TEST(gguf_tokenizer_answers_when_memory_runs_out)
{
    writer w;
    write_vocab(&w, 0);
    gguf *g = writer_open(t, &w);
    if (!g) return;
    for (long n = 1; n < 1000; n++) {
        tok *k;
        err  e = {0};
        fault_fail_nth(n);
        bool ok    = tok_from_gguf(&k, g, &small_family, &e);
        long tries = fault_tries();
        fault_fail_nth(0);
        CHECK(ok == (tries < n));
        CHECK(ok ? k != NULL : k == NULL && e.code == ERR_UNAVAILABLE);
        tok_free(k);
        if (ok) break;
    }
    gguf_close(g);
}
