#include "tok/small.h"

#include "tok/unicode.h"

#include <time.h>

static const char *const alphabet[] = {"a", "b", SP, "c", "\xC3\xA9", "\xE4\xB8\xAD", "\n", "d", "\xF0\x9F\x98\x80",
                                       "e"};

static const char *const markers[]    = {"<|turn>", "<turn|>", "<|channel>", NULL};
static const char *const printed[]    = {"<|channel>", NULL};
static const char *const stops[]      = {"<turn|>", NULL};
const tok_family         small_family = {.gguf_model = "gemma4",
                                         .bos        = "<bos>",
                                         .eos        = "<eos>",
                                         .pad        = "<pad>",
                                         .unk        = "<unk>",
                                         .markers    = markers,
                                         .printed    = printed,
                                         .stops      = stops};

const tok_family small_bytes_family = {.scheme     = TOK_BYTE_LEVEL,
                                       .gguf_model = "gpt2",
                                       .gguf_pre   = "small",
                                       .bos        = "<bos>",
                                       .eos        = "<eos>",
                                       .pad        = "<pad>",
                                       .markers    = markers,
                                       .printed    = printed,
                                       .stops      = stops,
                                       .no_bos     = true};

int32_t small_token(small *s, str text, tok_kind_t kind)
{
    err   e;
    char *copy = arena_str(&s->mem, text);
    bool  ok   = vocab_source_set(&s->src, s->src.n, (str){copy, text.n}, kind, &e);
    return ok ? s->src.n - 1 : -1;
}

static void init_markers(small *s, const tok_family *f)
{
    static const char *const control[] = {"<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"};
    *s                                 = (small){0};
    vocab_source_init(&s->src, f);
    arena_init(&s->mem, (size_t)64 << 20);
    for (size_t i = 0; i < COUNT(control); i++) small_token(s, str_of(control[i]), TOK_CONTROL);
    small_token(s, STR("<|channel>"), TOK_USER);
    s->first_byte = s->src.n;
}

/* As the alphabet was published: printable bytes are themselves, the others are numbered from 256 on. */
void small_spell_byte(char out[8], int byte)
{
    uint32_t c = 0;
    for (int b = 0, next = 256; b <= byte; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
        c              = (uint32_t)(printable ? b : next++);
    }
    out[utf8_encode(out, c)] = 0;
}

void small_init_bytes(small *s)
{
    init_markers(s, &small_bytes_family);
    s->src.nfc = true;
    for (int i = 0; i < 256; i++) {
        char text[8];
        small_spell_byte(text, i);
        small_token(s, str_of(text), TOK_NORMAL);
    }
}

void small_init(small *s)
{
    init_markers(s, &small_family);
    for (int i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        small_token(s, str_of(text), TOK_BYTE);
    }
}

void small_deinit(small *s)
{
    tok_free(s->tok);
    vocab_source_deinit(&s->src);
    arena_deinit(&s->mem);
}

int32_t small_find(const small *s, str text)
{
    for (int32_t i = 0; i < s->src.n; i++)
        if (str_eq(s->src.entry[i].text, text)) return i;
    return -1;
}

static void add_merge(small *s, str left, str right)
{
    char joined[512];
    memcpy(joined, left.s, left.n);
    memcpy(joined + left.n, right.s, right.n);
    str both = {joined, left.n + right.n};
    if (small_find(s, both) < 0) small_token(s, both, TOK_NORMAL);
    vocab_source_merge(&s->src, left, right, NULL);
}

void small_merge(small *s, const char *left, const char *right)
{
    if (small_find(s, str_of(left)) < 0) small_token(s, str_of(left), TOK_NORMAL);
    if (small_find(s, str_of(right)) < 0) small_token(s, str_of(right), TOK_NORMAL);
    add_merge(s, s->src.entry[small_find(s, str_of(left))].text, s->src.entry[small_find(s, str_of(right))].text);
}

/* Merges of tokens that are there already, then shuffled: a merge may rank before those that make its parts. */
void small_random(small *s, uint64_t *seed, int n_chars, int n_merges)
{
    int32_t first = s->src.n;
    for (int i = 0; i < n_chars; i++) small_token(s, str_of(alphabet[i]), TOK_NORMAL);
    for (int i = 0; i < n_merges; i++) {
        int32_t n = s->src.n - first;
        str     a = s->src.entry[first + (int32_t)(test_rand(seed) % (uint64_t)n)].text;
        str     b = s->src.entry[first + (int32_t)(test_rand(seed) % (uint64_t)n)].text;
        if (a.n + b.n <= 40) add_merge(s, a, b);
    }
    for (int32_t i = s->src.n_merges - 1; i > 0; i--) {
        int32_t     j   = (int32_t)(test_rand(seed) % (uint64_t)(i + 1));
        vocab_merge tmp = s->src.merge[i];
        s->src.merge[i] = s->src.merge[j];
        s->src.merge[j] = tmp;
    }
}

void small_build(test_case *t, small *s)
{
    err e;
    CHECK_OK(vocab_build(&s->tok, &s->src, &e), e);
}

static int32_t *rank_table(const small *s, int32_t **result)
{
    size_t   n    = (size_t)s->src.n;
    int32_t *rank = xnew_n(int32_t, n * n);
    *result       = xnew_n(int32_t, n * n);
    memset(rank, 0x7F, n * n * sizeof *rank);
    for (int32_t r = s->src.n_merges - 1; r >= 0; r--) {
        char        joined[512];
        vocab_merge m = s->src.merge[r];
        memcpy(joined, m.left.s, m.left.n);
        memcpy(joined + m.left.n, m.right.s, m.right.n);
        size_t at     = (size_t)small_find(s, m.left) * n + (size_t)small_find(s, m.right);
        rank[at]      = r;
        (*result)[at] = small_find(s, (str){joined, m.left.n + m.right.n});
    }
    return rank;
}

/* Appends n ids, merged. */
static void put_merged(const small *s, tok_ids *out, int32_t *id, size_t n, const int32_t *rank, const int32_t *result)
{
    size_t size = (size_t)s->src.n;
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[(size_t)id[i] * size + (size_t)id[i + 1]] < rank[(size_t)id[best] * size + (size_t)id[best + 1]])
                best = i;
        if (n < 2 || rank[(size_t)id[best] * size + (size_t)id[best + 1]] == 0x7F7F7F7F) break;
        id[best] = result[(size_t)id[best] * size + (size_t)id[best + 1]];
        memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof *id);
        n--;
    }
    for (size_t i = 0; i < n; i++) tok_ids_put(out, id[i]);
}

void small_reference_bytes(const small *s, tok_ids *out, str text)
{
    int32_t *result, *rank = rank_table(s, &result), *id = xnew_n(int32_t, text.n + 1);
    for (size_t at = 0; at < text.n;) {
        size_t n = word_length((str){text.s + at, text.n - at});
        for (size_t i = 0; i < n; i++) id[i] = s->first_byte + (uint8_t)text.s[at + i];
        put_merged(s, out, id, n, rank, result);
        at += n;
    }
    mem_free(result);
    mem_free(rank);
    mem_free(id);
}

void small_reference(const small *s, tok_ids *out, str text)
{
    int32_t *result, *rank = rank_table(s, &result), *id = xnew_n(int32_t, text.n + 1);
    size_t   n = 0;
    for (size_t i = 0; i < text.n;) {
        uint32_t c;
        int      len = utf8_decode(text.s + i, text.n - i, &c);
        int32_t  x   = len ? small_find(s, c == ' ' ? STR(SP) : (str){text.s + i, (size_t)len}) : -1;
        if (x >= 0) id[n++] = x;
        for (int k = 0; x < 0 && k < (len ? len : 1); k++) id[n++] = s->first_byte + (uint8_t)text.s[i + (size_t)k];
        i += len ? (size_t)len : 1;
    }
    put_merged(s, out, id, n, rank, result);
    mem_free(result);
    mem_free(rank);
    mem_free(id);
}

void small_text(buf *out, uint64_t *seed, size_t n_chars, int n_letters, int mode)
{
    size_t run = 0, letter = 0;
    for (size_t i = 0; i < n_chars; i++) {
        if (!run) { /* runs of one letter, and jumbles */
            letter = test_rand(seed) % (uint64_t)n_letters;
            run    = test_rand(seed) % 4 ? 1 : 1 + test_rand(seed) % 40;
        }
        run--;
        uint64_t odd = test_rand(seed) % 64;
        if (odd == 0 && mode == TEXT_ANY)
            buf_putc(out, (char)test_rand(seed));
        else if (odd == 1 && mode >= TEXT_VALID)
            buf_puts(out, "\xD0\x96");
        else if (letter == 2)
            buf_putc(out, ' ');
        else
            buf_puts(out, alphabet[letter]);
    }
}

void check_ids(test_case *t, const tok_ids *got, const int32_t *want, size_t n, const char *what)
{
    size_t i = 0;
    while (i < n && i < got->n && got->p[i] == want[i]) i++;
    CHECK_MSG(i == n && i == got->n, "%s: %zu ids, expected %zu; at %zu %d, expected %d", what, got->n, n, i,
              i < got->n ? got->p[i] : -1, i < n ? want[i] : -1);
}
