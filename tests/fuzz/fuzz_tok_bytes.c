/* A text through a byte-level vocabulary and back. The first byte chooses the options. */
#include "base/mem.h"
#include "require.h"
#include "tok/unicode.h"
#include "tok/vocab.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MARKERS = 1, SHOW = 2, REFERENCE_BYTES = 300, FIRST_BYTE = 2 };

static const char *const markers[] = {"<|x|>", "<t>", NULL};
static const char *const merges[]  = {"t h",
                                      "th e",
                                      "\xC4\xA0 t",
                                      "\xC4\xA0t he",
                                      "h e",
                                      "a a",
                                      "aa aa",
                                      "\xC4\xA0 \xC4\xA0",
                                      "\xC4\x8A \xC4\x8A",
                                      "\xC3\x83 \xC2\xA9",
                                      "\xC3\xA4 \xC2\xB8",
                                      "\xC3\xA4\xC2\xB8 \xC5\x83",
                                      "' s",
                                      "< t"};

/* Adds a token of the two parts of a merge. */
static bool put_merged(vocab_source *s, const char *merge, char *joined, err *e)
{
    size_t      n     = 0;
    const char *space = strchr(merge, ' ');
    for (const char *c = merge; *c; c++)
        if (c != space) joined[n++] = *c;
    return vocab_source_set(s, s->n, (str){joined, n}, TOK_NORMAL, e) && vocab_source_merge_text(s, str_of(merge), e);
}

/* Spells the bytes as vocab.h says: printable ones as themselves, the others from U+0100 on. */
static bool fill(vocab_source *s, char letter[256][4], char joined[][16], err *e)
{
    bool ok = vocab_source_set(s, 0, STR("<|x|>"), TOK_CONTROL, e) && vocab_source_set(s, 1, STR("<t>"), TOK_USER, e);
    uint32_t other = 0x100;
    for (uint32_t i = 0; ok && i < 256; i++) {
        bool printable = (i > 32 && i < 127) || (i > 160 && i != 173);
        int  n         = utf8_encode(letter[i], printable ? i : other++);
        ok             = vocab_source_set(s, s->n, (str){letter[i], (size_t)n}, TOK_NORMAL, e);
    }
    for (size_t i = 0; ok && i < COUNT(merges); i++) ok = put_merged(s, merges[i], joined[i], e);
    return ok && vocab_source_set(s, s->n, STR("user \xC3\xA9"), TOK_USER, e);
}

static const tok *vocabulary(void)
{
    static tok      *t;
    static char      letter[256][4], joined[COUNT(merges)][16];
    const tok_family family = {.scheme = TOK_BYTE_LEVEL, .markers = markers};
    vocab_source     s;
    err              e;
    if (t) return t;
    vocab_source_init(&s, &family);
    s.nfc = true;
    if (!fill(&s, letter, joined, &e) || !vocab_build(&t, &s, &e)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    vocab_source_deinit(&s);
    return t;
}

/* Encodes a word by the definition: searches all pairs for every merge. */
static size_t merge_word(const tok *t, str word, int32_t id[REFERENCE_BYTES])
{
    size_t n = word.n;
    for (size_t i = 0; i < n; i++) id[i] = FIRST_BYTE + (uint8_t)word.s[i];
    for (;;) {
        size_t  best = 0;
        int32_t low  = VOCAB_NO_RANK;
        for (size_t i = 0; i + 1 < n; i++) {
            int32_t rank = vocab_rank(t, id[i], id[i + 1]);
            if (rank < low) {
                low  = rank;
                best = i;
            }
        }
        if (low == VOCAB_NO_RANK) return n;
        id[best] = t->merged[low];
        memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof *id);
        n--;
    }
}

static void check_words(const tok *t, str text, const tok_ids *ids)
{
    size_t at = 0;
    while (text.n) {
        int32_t id[REFERENCE_BYTES];
        size_t  len = word_length(text), n;
        REQUIRE(len > 0 && len <= text.n);
        n = merge_word(t, (str){text.s, len}, id);
        REQUIRE(n <= ids->n - at && !memcmp(id, ids->p + at, n * sizeof *id));
        at += n;
        text = (str){text.s + len, text.n - len};
    }
    REQUIRE(at == ids->n);
}

/* The NFC of the NFC is the same, and the quick check accepts only a text that is its own NFC. */
static void check_nfc(str text, const buf *nfc)
{
    buf again;
    buf_init(&again, NFC_GROWTH * nfc->n);
    REQUIRE(nfc_put(&again, buf_str(nfc)));
    REQUIRE(str_eq(buf_str(&again), buf_str(nfc)));
    REQUIRE(!nfc_quick_check(text) || str_eq(text, buf_str(nfc)));
    buf_deinit(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const tok *t = vocabulary();
    tok_ids    ids;
    buf        bytes, nfc, printed;
    err        e;
    if (!size) return 0;
    bool special = data[0] & MARKERS;
    str  text    = {(const char *)data + 1, size - 1};
    tok_ids_init(&ids, NFC_GROWTH * size);
    buf_init(&bytes, NFC_GROWTH * size);
    buf_init(&nfc, NFC_GROWTH * size);
    buf_init(&printed, 3 * NFC_GROWTH * size);
    REQUIRE(tok_encode(t, &ids, text, special, &e));
    REQUIRE(nfc_put(&nfc, text));
    check_nfc(text, &nfc);
    bool plain = true; /* no added token */
    for (size_t i = 0; i < ids.n; i++) {
        REQUIRE(ids.p[i] >= 0 && ids.p[i] < tok_size(t));
        REQUIRE(special || tok_kind(t, ids.p[i]) == TOK_NORMAL);
        plain &= tok_listed_kind(t, ids.p[i]) == TOK_NORMAL;
        buf_put(&bytes, tok_bytes(t, ids.p[i]).s, tok_bytes(t, ids.p[i]).n);
    }
    if (plain) REQUIRE(str_eq(buf_str(&bytes), buf_str(&nfc)));
    if (plain && nfc.n <= REFERENCE_BYTES) check_words(t, buf_str(&nfc), &ids);
    tok_decode(t, ids.p, ids.n, data[0] & SHOW, &printed);
    REQUIRE(!printed.failed);
    tok_ids_deinit(&ids);
    buf_deinit(&bytes);
    buf_deinit(&nfc);
    buf_deinit(&printed);
    return 0;
}
