/* Encodes text.
 *
 * A text is cut where no merge can cross (vocab.h), so most pieces are words. A piece can still be the whole text,
 * such as a megabyte of one letter, so merging must be fast at any length. A symbol is stored at the index of its
 * first character. Its length is stored at its first and last index, so both neighbours are found in one step:
 *
 *      index    0   1   2   3   4   5         "hel" "l" "o!"
 *      id       hel .   .   l   o!  .
 *      len      3   .   3   1   2   2
 *      rank     r0  -   -   r3  -   -         rank of the symbol and its right neighbour; - is VOCAB_NO_RANK
 *
 * A tree of minima with fan-out 16 covers the ranks: level[l + 1][i] is the minimum of level[l][16i .. 16i + 15]. A
 * walk down the tree finds the leftmost lowest rank. A merge changes three ranks and the few minima above them. A
 * piece of up to 16 characters needs no tree. So n characters take n log n steps, in any order of merges. */
#include "base/mem.h"
#include "tok/unicode.h"
#include "tok/vocab.h"

enum { FAN = 16, MAX_LEVELS = 7, SHORT = 256 }; /* 16^7 > TOK_MAX_INPUT; SHORT: characters that need no heap */

typedef struct {
    int32_t  id;
    uint32_t len; /* characters */
} symbol;

typedef struct {
    const tok *t;
    tok_ids   *out;
    symbol    *sym; /* the piece being gathered */
    size_t     n, cap;
    int32_t   *level[MAX_LEVELS]; /* the piece being merged; level[0] are the ranks */
    int        n_levels;
    int32_t   *ranks; /* memory for the levels */
    size_t     rank_cap;
    bool       parse_special;
    bool       failed; /* no memory */
    bool       no_byte;
    uint8_t    missing; /* a byte that has no token, when no_byte */
    symbol     short_sym[SHORT];
    int32_t    short_ranks[2 * SHORT];
} bpe;

/* --- the tree of ranks ------------------------------------------------------------------------- */
/* Returns the minimum of rank * 16 + index over 16 ranks, so the leftmost of equal ranks wins. */
static int32_t lowest16(const int32_t *r)
{
    int32_t best = INT32_MAX;
    for (int32_t i = 0; i < FAN; i++) {
        int32_t x = r[i] * FAN + i;
        best      = x < best ? x : best;
    }
    return best;
}

static size_t round_up(size_t n) { return (n + FAN - 1) / FAN * FAN; }

/* Allocates the levels for the piece, each padded with VOCAB_NO_RANK to a multiple of FAN. */
static bool lay_levels(bpe *b)
{
    size_t at[MAX_LEVELS], total = 0, n = b->n;
    b->n_levels = 0;
    for (;; n = (n + FAN - 1) / FAN) {
        at[b->n_levels++] = total;
        total += round_up(n);
        if (n <= FAN) break;
    }
    if (total > b->rank_cap) {
        int32_t *p = mem_try_n(total, sizeof *p);
        if (!p) return false;
        if (b->ranks != b->short_ranks) mem_free(b->ranks);
        b->ranks    = p;
        b->rank_cap = total;
    }
    for (int l = 0; l < b->n_levels; l++) b->level[l] = b->ranks + at[l];
    return true;
}

static void fill_levels(bpe *b)
{
    size_t n = b->n;
    for (size_t i = 0; i + 1 < n; i++) b->level[0][i] = vocab_rank(b->t, b->sym[i].id, b->sym[i + 1].id);
    for (size_t i = n - 1; i < round_up(n); i++) b->level[0][i] = VOCAB_NO_RANK;
    for (int l = 1; l < b->n_levels; l++) {
        size_t blocks = (n + FAN - 1) / FAN;
        for (size_t i = 0; i < blocks; i++) b->level[l][i] = lowest16(b->level[l - 1] + i * FAN) / FAN;
        for (size_t i = blocks; i < round_up(blocks); i++) b->level[l][i] = VOCAB_NO_RANK;
        n = blocks;
    }
}

/* Updates the minima above rank i. */
static void refresh(bpe *b, size_t i)
{
    for (int l = 0; l + 1 < b->n_levels; l++) {
        i /= FAN;
        int32_t low = lowest16(b->level[l] + i * FAN) / FAN;
        if (b->level[l + 1][i] == low) return;
        b->level[l + 1][i] = low;
    }
}

/* Finds the index of the leftmost lowest rank. Returns false when no pair has a merge. */
static bool find_lowest(const bpe *b, size_t *out)
{
    size_t  at = 0;
    int32_t x  = 0;
    for (int l = b->n_levels - 1; l >= 0; l--) {
        x  = lowest16(b->level[l] + at * FAN);
        at = at * FAN + (size_t)(x % FAN);
    }
    *out = at;
    return x / FAN != VOCAB_NO_RANK;
}

/* --- merging ----------------------------------------------------------------------------------- */
static void rank_pair(bpe *b, size_t i)
{
    size_t j       = i + b->sym[i].len;
    b->level[0][i] = j < b->n ? vocab_rank(b->t, b->sym[i].id, b->sym[j].id) : VOCAB_NO_RANK;
}

/* Merges symbol i with its right neighbour. */
static void merge_at(bpe *b, size_t i)
{
    size_t j = i + b->sym[i].len, len = b->sym[i].len + b->sym[j].len;
    size_t left             = i ? i - b->sym[i - 1].len : i;
    b->sym[i].id            = b->t->merged[b->level[0][i]];
    b->sym[i].len           = (uint32_t)len;
    b->sym[i + len - 1].len = (uint32_t)len;
    b->level[0][j]          = VOCAB_NO_RANK;
    rank_pair(b, i);
    if (left != i) rank_pair(b, left);
    if (b->n_levels == 1) return;
    refresh(b, i);
    if (j / FAN != i / FAN) refresh(b, j);
    if (left / FAN != i / FAN) refresh(b, left);
}

/* Merges the gathered piece, appends its ids and starts a new piece. */
static void end_piece(bpe *b)
{
    size_t at;
    if (b->n > 1) {
        if (!lay_levels(b)) {
            b->failed = true;
            b->n      = 0;
            return;
        }
        fill_levels(b);
        while (find_lowest(b, &at)) merge_at(b, at);
    }
    for (size_t i = 0; i < b->n; i += b->sym[i].len) tok_ids_put(b->out, b->sym[i].id);
    b->n = 0;
}

static bool grow_piece(bpe *b)
{
    symbol *p = mem_try_n(b->cap, 2 * sizeof *p);
    if (!p) return false;
    memcpy(p, b->sym, b->n * sizeof *p);
    if (b->sym != b->short_sym) mem_free(b->sym);
    b->sym = p;
    b->cap *= 2;
    return true;
}

static void add_char(bpe *b, int32_t id)
{
    if (b->n && !pair_filter_has(&b->t->joins, pair_hash(pair_key(b->sym[b->n - 1].id, id)))) end_piece(b);
    if (b->n == b->cap && !grow_piece(b)) {
        b->failed = true;
        b->n      = 0;
    }
    b->sym[b->n++] = (symbol){id, 1};
}

/* Appends byte tokens for a character without a token, or for a byte that is not UTF-8. No merge crosses them. */
static void add_bytes(bpe *b, const char *s, size_t n)
{
    end_piece(b);
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->t->byte_id[(uint8_t)s[i]];
        if (id < 0) id = b->t->unk;
        if (id >= 0) {
            tok_ids_put(b->out, id);
        } else if (!b->no_byte) {
            b->no_byte = true;
            b->missing = (uint8_t)s[i];
        }
    }
}

/* Encodes a run of text without added tokens. */
static void encode_plain(bpe *b, str text)
{
    for (size_t i = 0; i < text.n;) {
        uint32_t c   = (uint8_t)text.s[i];
        size_t   len = 1;
        int32_t  id  = -1;
        if (c < 128) {
            id = b->t->ascii[c];
        } else if ((len = (size_t)utf8_decode(text.s + i, text.n - i, &c))) {
            id = vocab_char(b->t, c);
        } else {
            len = 1;
        }
        if (id >= 0)
            add_char(b, id);
        else
            add_bytes(b, text.s + i, len);
        i += len;
    }
    end_piece(b);
}

/* Encodes a run of text without added tokens, which is in NFC. */
static void encode_words(bpe *b, str text)
{
    while (text.n) {
        size_t n = word_length(text);
        for (size_t i = 0; i < n; i++) add_char(b, b->t->byte_id[(uint8_t)text.s[i]]);
        end_piece(b);
        text = (str){text.s + n, text.n - n};
    }
}

/* --- added tokens ------------------------------------------------------------------------------ */
static bool may_give(const bpe *b, int32_t id)
{
    return b->parse_special || !vocab_is_marker((tok_kind_t)b->t->kind[id]);
}

static void encode_part(bpe *b, str text, int which);

/* Encodes text between tokens of the first trie. The tokens of the second one are searched for in the NFC. */
static void encode_nfc(bpe *b, str text)
{
    buf nfc;
    if (!b->t->nfc || nfc_quick_check(text)) {
        encode_part(b, text, 1);
        return;
    }
    buf_init(&nfc, NFC_GROWTH * text.n);
    if (nfc_put(&nfc, text))
        encode_part(b, buf_str(&nfc), 1);
    else
        b->failed = true;
    buf_deinit(&nfc);
}

static void encode_rest(bpe *b, str text, int which)
{
    if (!which)
        encode_nfc(b, text);
    else if (b->t->byte_level)
        encode_words(b, text);
    else
        encode_plain(b, text);
}

/* Encodes text: searches it for added tokens of trie `which`, and the text between them for those of later tries. A
 * marker without parse_special is skipped as a whole: a user-defined token inside it is not found. */
static void encode_part(bpe *b, str text, int which)
{
    const added_trie *a    = &b->t->added[which];
    size_t            from = 0, i = 0, len = 0;
    while (i < text.n) {
        int32_t id = -1;
        if (a->first[(uint8_t)text.s[i]]) id = added_match(a, (str){text.s + i, text.n - i}, &len);
        i += id < 0 ? 1 : len;
        if (id < 0 || !may_give(b, id)) continue;
        encode_rest(b, (str){text.s + from, i - len - from}, which);
        tok_ids_put(b->out, id);
        from = i;
    }
    encode_rest(b, (str){text.s + from, text.n - from}, which);
}

/* --- entry point --------------------------------------------------------------------------------- */
static bool outcome(const bpe *b, err *e)
{
    if (b->failed || (b->out->failed && b->out->n < b->out->max))
        return err_set(e, ERR_UNAVAILABLE, "no memory to encode the text");
    if (b->out->failed) return err_set(e, ERR_TOO_LARGE, "the text has more than %zu tokens", b->out->max);
    if (b->no_byte)
        return err_set(e, ERR_FORMAT, "the vocabulary has neither a token nor a byte token for byte 0x%02X",
                       b->missing);
    return true;
}

bool tok_encode(const tok *t, tok_ids *out, str text, bool parse_special, err *e)
{
    bpe     b      = {.t = t, .out = out, .parse_special = parse_special, .cap = SHORT, .rank_cap = 2 * SHORT};
    tok_ids before = *out;

    if (text.n > TOK_MAX_INPUT)
        return err_set(e, ERR_TOO_LARGE, "the text has %zu bytes, more than %zu", text.n, TOK_MAX_INPUT);
    b.sym   = b.short_sym;
    b.ranks = b.short_ranks;
    encode_part(&b, text, 0);
    bool ok = outcome(&b, e);
    if (!ok) {
        out->n      = before.n;
        out->failed = before.failed;
    }
    if (b.sym != b.short_sym) mem_free(b.sym);
    if (b.ranks != b.short_ranks) mem_free(b.ranks);
    return ok;
}
