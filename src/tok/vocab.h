/* tok/vocab.h - the tables of a tok, and their construction by the loaders. Private to tok/ and its tests.
 *
 * A merge joins two tokens into a third. It is found by a hash of the two ids; an entry is one word:
 *
 *     63      44 43      24 23        0
 *    |  left id  | right id  |   rank   |         rank = the merge's index in the file
 *
 * and merged[rank] is the result. Two bit filters answer most lookups without reading that table:
 * `pairs` has a bit for every merge, `joins` has a bit for every merge's (last character of the left part, first
 * character of the right part). No merge can cross two neighbouring characters that are not in `joins`, so the text may
 * be cut there. A false positive of a filter costs time, never exactness.
 *
 * In a byte-level vocabulary the characters are those of an alphabet that spells bytes: 33 to 126, 161 to 172 and 174
 * to 255 stand for themselves, and U+0100 to U+0143 for the other 68 bytes in ascending order, so U+0120 is a space.
 * Added tokens are spelled as they are.
 *
 * (1) In the hash tables of texts and of merges, an entry is less than VOCAB_MAX_PROBES places after the place that its
 *     hash gives. A file whose entries collide more than that is refused, so no lookup is long, even for texts
 *     chosen to collide.
 * (2) In a byte-level vocabulary a merge makes a token with as many bytes as its two parts have together. */
#ifndef TANDEM_TOK_VOCAB_H
#define TANDEM_TOK_VOCAB_H
#include "tok/tok.h"

enum {
    VOCAB_NO_RANK    = 1 << 26, /* above all ranks; 16 times it still fits an int32 */
    VOCAB_MAX_PROBES = 512,
    VOCAB_PAGES      = 0x110000 >> 8, /* pages of 256 code points */
};

typedef struct { /* a set of pairs of ids, with false positives */
    uint64_t *bits;
    int       shift; /* 64 - log2(number of bits) */
} pair_filter;

typedef struct { /* strings one after another: string i is p[at[i]] .. p[at[i + 1]] */
    char     *p;
    uint32_t *at;
} text_pool;

/* A trie of added tokens: control, unknown and user-defined ones. States are numbered level by level, so the children
 * of a state are adjacent, in the order of their labels. State 0 is the root. */
typedef struct {
    int32_t *child;      /* children of state s: child[s] .. child[s + 1] - 1 */
    int32_t *found;      /* the token whose text ends in this state, or -1 */
    uint8_t *label;      /* the byte that leads to this state */
    int32_t  first[256]; /* the root's child for each byte, or 0: no token starts with it */
    bool     spaced;     /* a space of the text is compared as U+2581 */
} added_trie;

struct tok {
    int32_t   n;           /* number of ids */
    bool      byte_level;  /* the scheme */
    bool      nfc;         /* texts are normalised; only with byte_level */
    text_pool text, bytes; /* [n]: tok_text, tok_bytes */
    uint8_t  *kind;        /* [n], tok_kind_t */
    uint8_t  *listed;      /* [n], the same for tok_listed_kind */

    uint64_t *slots;      /* text -> id: lower half of the hash << 32 | id; ~0: empty */
    int       slot_shift; /* 64 - log2(number of slots) */

    int32_t  *page_ids;     /* character -> id of its token or -1: page_ids[page[c >> 8] << 8 | (c & 255)] */
    uint16_t *page;         /* page 0 holds -1 only */
    int32_t   ascii[128];   /* the same for ASCII; a space gives the token of U+2581 */
    int32_t   byte_id[256]; /* byte -> id of <0xHH> or of its letter in the byte-level alphabet, or -1 */

    uint64_t   *merges;      /* as drawn above; ~0: empty */
    int         merge_shift; /* 64 - log2(number of entries) */
    int32_t    *merged;      /* [rank] */
    pair_filter pairs, joins;

    added_trie added[2]; /* searched one after the other: tokens that match the text as it is, then normalized ones */

    int32_t           bos, eos, pad, unk;
    int32_t           stop[TOK_MAX_STOPS]; /* ascending */
    int32_t           n_stop;
    const char       *gguf_model, *gguf_pre; /* may be NULL */
    const tok_markup *markup;                /* not NULL; borrowed */
};

/* The input of vocab_build, filled by a loader. The strings are borrowed until vocab_build returns. */
typedef struct {
    str        text;
    tok_kind_t kind;       /* 0: no such token */
    bool       normalized; /* for an added token: see added_trie */
} vocab_entry;
typedef struct {
    str left, right;
} vocab_merge;
typedef struct {
    vocab_entry *entry;
    int32_t      n, entry_cap;
    vocab_merge *merge;
    int32_t      n_merges, merge_cap;
    tok_family   family;
    bool         nfc;                                    /* texts are normalised; only with TOK_BYTE_LEVEL */
    int32_t      bos, eos, pad, unk;                     /* ids; -1: find by name */
    str          bos_name, eos_name, pad_name, unk_name; /* may be empty */
    int32_t      stop[TOK_MAX_STOPS];                    /* as the file names them */
    int32_t      n_stop;
} vocab_source;

void vocab_source_init(vocab_source *s, const tok_family *f); /* without entries; f may be NULL: see below */
/* Sets the family, and the names of special tokens that the source does not have yet. */
void vocab_source_family(vocab_source *s, const tok_family *f);
void vocab_source_deinit(vocab_source *s);
/* Adds a token. Fails when the id was set before or is out of range, or the text is too long. */
bool vocab_source_set(vocab_source *s, int64_t id, str text, tok_kind_t kind, err *e);
/* Add the merge of the next rank. vocab_source_merge_text takes both parts with a space between them. */
bool vocab_source_merge(vocab_source *s, str left, str right, err *e);
bool vocab_source_merge_text(vocab_source *s, str both, err *e);
/* Builds a tok; on failure *out is NULL. Merges whose parts or result are not TOK_NORMAL tokens are left out, and their
 * number is logged. */
bool vocab_build(tok **out, const vocab_source *s, err *e);

/* Builds the trie of the added tokens that are, or are not, normalized. Call added_free also after a failure. */
bool added_build(added_trie *a, const tok *t, const vocab_source *s, bool normalized, err *e);
void added_free(added_trie *a);
/* Returns the longest token of the trie that text starts with, and sets *len to its length in text. Returns -1, with
 * *len unchanged, when there is none. */
int32_t added_match(const added_trie *a, str text, size_t *len);

/* Takes a kind of tok_kind; tok_listed_kind's TOK_USER includes tokens that are no markers. */
static inline bool vocab_is_marker(tok_kind_t k) { return k == TOK_CONTROL || k == TOK_USER || k == TOK_UNKNOWN; }

/* Return the key of a pair of ids in `merges` (bits 24 to 63), and its hash, which the filters use too. */
static inline uint64_t pair_key(int32_t left, int32_t right) { return (uint64_t)left << 20 | (uint64_t)right; }
static inline uint64_t pair_hash(uint64_t key)
{
    key = (key ^ key >> 23) * 0x9E3779B97F4A7C15u;
    return (key ^ key >> 29) * 0xBF58476D1CE4E5B9u;
}
static inline bool pair_filter_has(const pair_filter *f, uint64_t hash)
{
    uint64_t bit = hash >> f->shift;
    return f->bits[bit >> 6] >> (bit & 63) & 1;
}
/* Returns the rank of the merge of two tokens, VOCAB_NO_RANK when they have none. */
static inline int32_t vocab_rank(const tok *t, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right), hash = pair_hash(key);
    if (!pair_filter_has(&t->pairs, hash)) return VOCAB_NO_RANK;
    uint64_t mask = (UINT64_C(1) << (64 - t->merge_shift)) - 1;
    for (uint64_t k = 0; k < VOCAB_MAX_PROBES; k++) { /* (1) */
        uint64_t m = t->merges[((hash >> t->merge_shift) + k) & mask];
        if (m >> 24 == key) return (int32_t)(m & 0xFFFFFF);
        if (m == UINT64_MAX) break;
    }
    return VOCAB_NO_RANK;
}
/* Returns the token of the character c, at most U+10FFFF; -1 when it has none. */
static inline int32_t vocab_char(const tok *t, uint32_t c) { return t->page_ids[t->page[c >> 8] << 8 | (c & 255)]; }
#endif
