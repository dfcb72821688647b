#include "tok/vocab.h"

#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>

enum { AHEAD = 32 }; /* merges whose memory is prefetched */

/* --- vocab_source -------------------------------------------------------------------- */
static str name_or_empty(const char *name) { return name ? str_of(name) : STR(""); }

void vocab_source_init(vocab_source *s, const tok_family *f)
{
    *s = (vocab_source){.bos = -1, .eos = -1, .pad = -1, .unk = -1};
    if (f) vocab_source_family(s, f);
}

void vocab_source_family(vocab_source *s, const tok_family *f)
{
    s->family = *f;
    if (!s->bos_name.n) s->bos_name = name_or_empty(f->bos);
    if (!s->eos_name.n) s->eos_name = name_or_empty(f->eos);
    if (!s->pad_name.n) s->pad_name = name_or_empty(f->pad);
    if (!s->unk_name.n) s->unk_name = name_or_empty(f->unk);
}

void vocab_source_deinit(vocab_source *s)
{
    mem_free(s->entry);
    mem_free(s->merge);
    *s = (vocab_source){0};
}

/* Makes room for item n of an array of items of `each` bytes. New items are zero. */
static bool grow_array(void **p, int32_t *cap, int32_t n, size_t each, err *e)
{
    if (n < *cap) return true;
    size_t more = (size_t)n * 2 + 256;
    void  *q    = mem_try_resize(*p, more * each);
    if (!q) return err_set(e, ERR_UNAVAILABLE, "no memory for a vocabulary of %zu entries", more);
    memset((char *)q + (size_t)*cap * each, 0, (more - (size_t)*cap) * each);
    *p   = q;
    *cap = (int32_t)more;
    return true;
}

bool vocab_source_set(vocab_source *s, int64_t id, str text, tok_kind_t kind, err *e)
{
    if (id < 0 || id >= TOK_MAX_TOKENS)
        return err_set(e, ERR_FORMAT, "token '%.*s' has id %lld, expected 0 to %d", STR_ARG(text), (long long)id,
                       TOK_MAX_TOKENS - 1);
    if (text.n > TOK_MAX_TEXT_BYTES)
        return err_set(e, ERR_FORMAT, "token %lld has %zu bytes, more than %d", (long long)id, text.n,
                       TOK_MAX_TEXT_BYTES);
    if (!grow_array((void **)&s->entry, &s->entry_cap, (int32_t)id, sizeof *s->entry, e)) return false;
    vocab_entry *v = &s->entry[id];
    if (v->kind)
        return err_set(e, ERR_FORMAT, "tokens '%.*s' and '%.*s' have the same id %lld", STR_ARG(v->text), STR_ARG(text),
                       (long long)id);
    *v = (vocab_entry){.text = text, .kind = kind};
    if (id >= s->n) s->n = (int32_t)id + 1;
    return true;
}

bool vocab_source_merge(vocab_source *s, str left, str right, err *e)
{
    if (s->n_merges >= TOK_MAX_MERGES)
        return err_set(e, ERR_FORMAT, "the vocabulary has more than %d merges", TOK_MAX_MERGES);
    if (!grow_array((void **)&s->merge, &s->merge_cap, s->n_merges, sizeof *s->merge, e)) return false;
    s->merge[s->n_merges++] = (vocab_merge){left, right};
    return true;
}

/* Splits "left right". The parts contain no spaces; the first byte is never the separator. */
bool vocab_source_merge_text(vocab_source *s, str both, err *e)
{
    const char *space = both.n > 1 ? memchr(both.s + 1, ' ', both.n - 1) : NULL;
    if (!space)
        return err_set(e, ERR_FORMAT, "merge %d, '%.*s', is not two parts separated by a space", s->n_merges,
                       STR_ARG(both));
    size_t n = (size_t)(space - both.s);
    return vocab_source_merge(s, (str){both.s, n}, (str){space + 1, both.n - n - 1}, e);
}

/* --- texts ------------------------------------------------------------------------------------- */
static bool no_memory(err *e) { return err_set(e, ERR_UNAVAILABLE, "no memory for the tokenizer's tables"); }

static str pool_get(const text_pool *p, int32_t i) { return (str){p->p + p->at[i], p->at[i + 1] - p->at[i]}; }

/* Returns the value of a text of the form <0xHH>, else -1. */
static int byte_value(str s)
{
    static const char digits[] = "0123456789ABCDEF";
    if (s.n != 6 || memcmp(s.s, "<0x", 3) || s.s[5] != '>' || !s.s[3] || !s.s[4]) return -1;
    const char *hi = strchr(digits, s.s[3]), *lo = strchr(digits, s.s[4]);
    return hi && lo ? (int)(hi - digits) << 4 | (int)(lo - digits) : -1;
}

static bool is_named(const char *const *names, str text)
{
    for (; names && *names; names++)
        if (str_is(text, *names)) return true;
    return false;
}

/* Returns the kind as files list it. The family may mark a control token as printed. Some files list byte tokens as
 * normal tokens, so their text decides. */
static tok_kind_t listed_kind(vocab_entry v, const tok_family *f)
{
    if (!v.kind) return TOK_UNUSED;
    if (v.kind == TOK_CONTROL && is_named(f->printed, v.text)) return TOK_USER;
    if (f->scheme == TOK_BYTE_LEVEL) return v.kind == TOK_BYTE ? TOK_UNUSED : v.kind;
    if (v.kind == TOK_NORMAL && byte_value(v.text) >= 0) return TOK_BYTE;
    if (v.kind == TOK_BYTE && byte_value(v.text) < 0) return TOK_UNUSED;
    return v.kind;
}

/* Returns the kind. A user-defined token that is not a marker of the family is plain text: it is found in every text,
 * and by merges (a run of spaces is spelled with U+2581 in the file, so only merges find it). */
static tok_kind_t settled_kind(tok_kind_t listed, str text, const tok_family *f)
{
    return listed == TOK_USER && !is_named(f->markers, text) ? TOK_NORMAL : listed;
}

/* Returns the byte that a character of the byte-level alphabet spells, -1 when it is not in the alphabet. */
static int alphabet_byte(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 255)) return c == 173 ? -1 : (int)c;
    if (c >= 256 && c < 256 + 33) return (int)c - 256;                   /* 0 to 32 */
    if (c >= 256 + 33 && c < 256 + 67) return (int)c - (256 + 33) + 127; /* 127 to 160 */
    return c == 256 + 67 ? 173 : -1;
}

/* Writes the bytes that a text of the byte-level alphabet spells. A text with other characters spells itself. */
static size_t put_spelled(char *out, str text)
{
    size_t n = 0;
    for (size_t i = 0; i < text.n;) {
        uint32_t c    = 0;
        int      len  = utf8_decode(text.s + i, text.n - i, &c);
        int      byte = len ? alphabet_byte(c) : -1;
        if (byte < 0) {
            memcpy(out, text.s, text.n);
            return text.n;
        }
        out[n++] = (char)byte;
        i += (size_t)len;
    }
    return n;
}

/* Writes the bytes that a token's text decodes to. Returns their number. */
static size_t put_bytes(char *out, str text, tok_kind_t listed, tok_scheme scheme)
{
    size_t n = 0;
    if (listed == TOK_BYTE) {
        out[0] = (char)byte_value(text);
        return 1;
    }
    if (scheme == TOK_BYTE_LEVEL && !vocab_is_marker(listed)) return put_spelled(out, text);
    if (scheme == TOK_BYTE_LEVEL) {
        if (text.n) memcpy(out, text.s, text.n);
        return text.n;
    }
    for (size_t i = 0; i < text.n;) {
        bool space = i + 3 <= text.n && !memcmp(text.s + i, "\xE2\x96\x81", 3);
        out[n++]   = space ? ' ' : text.s[i];
        i += space ? 3 : 1;
    }
    return n;
}

static bool store_texts(tok *t, const vocab_source *s, err *e)
{
    size_t total = 0, n = (size_t)t->n, at = 0;
    for (size_t i = 0; i < n; i++) total += s->entry[i].text.n; /* at most 2^36 */
    if (total > UINT32_MAX / 4) return err_set(e, ERR_FORMAT, "the vocabulary's texts have %zu bytes", total);
    t->kind     = mem_try(n);
    t->listed   = mem_try(n);
    t->text.p   = mem_try(total + 1);
    t->text.at  = mem_try_n(n + 1, sizeof *t->text.at);
    t->bytes.p  = mem_try(total + 1);
    t->bytes.at = mem_try_n(n + 1, sizeof *t->bytes.at);
    if (!t->kind || !t->listed || !t->text.p || !t->text.at || !t->bytes.p || !t->bytes.at) return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        str        text   = s->entry[i].text;
        tok_kind_t listed = listed_kind(s->entry[i], &s->family), kind = settled_kind(listed, text, &s->family);
        if (vocab_is_marker(listed) && text.n > TOK_MAX_ADDED)
            return err_set(e, ERR_FORMAT, "added token %zu has %zu bytes, more than %d", i, text.n, TOK_MAX_ADDED);
        t->listed[i]  = (uint8_t)listed;
        t->kind[i]    = (uint8_t)kind;
        t->text.at[i] = (uint32_t)at;
        if (text.n) memcpy(t->text.p + at, text.s, text.n);
        at += text.n;
        t->bytes.at[i + 1] =
            t->bytes.at[i] + (uint32_t)put_bytes(t->bytes.p + t->bytes.at[i], text, listed, s->family.scheme);
    }
    t->text.at[n] = (uint32_t)at;
    return true;
}

/* Returns log2 of the table's size: at least 1.5 times the entries. */
static int table_bits(size_t n)
{
    int bits = 4;
    while (((size_t)1 << bits) < n + n / 2) bits++;
    return bits;
}

static uint64_t *new_table(int bits)
{
    uint64_t *p = mem_try_n((size_t)1 << bits, sizeof *p);
    if (p) memset(p, 0xFF, ((size_t)1 << bits) * sizeof *p);
    return p;
}

/* Returns the slot of a text, or the free slot where it belongs; NULL when it is absent and there is no free slot. */
static uint64_t *find_slot(const tok *t, str text, uint64_t hash)
{
    uint64_t mask = (UINT64_C(1) << (64 - t->slot_shift)) - 1;
    for (uint64_t k = 0; k < VOCAB_MAX_PROBES; k++) { /* (1) */
        uint64_t *slot = &t->slots[((hash >> t->slot_shift) + k) & mask];
        if (*slot == UINT64_MAX) return slot;
        if (*slot >> 32 == (uint32_t)hash && str_eq(pool_get(&t->text, (int32_t)(uint32_t)*slot), text)) return slot;
    }
    return NULL;
}

static int32_t find_id(const tok *t, str text, uint64_t hash)
{
    const uint64_t *slot = text.n ? find_slot(t, text, hash) : NULL;
    return slot && *slot != UINT64_MAX ? (int32_t)(uint32_t)*slot : -1;
}

static bool crowded(err *e, const char *what)
{
    return err_set(e, ERR_FORMAT, "the vocabulary's %s collide too often in a hash table", what);
}

static bool index_texts(tok *t, err *e)
{
    int bits      = table_bits((size_t)t->n);
    t->slot_shift = 64 - bits;
    t->slots      = new_table(bits);
    if (!t->slots) return no_memory(e);
    for (int32_t i = 0; i < t->n; i++) {
        str text = pool_get(&t->text, i);
        if (!text.n) continue;
        uint64_t hash = str_hash(text), *slot = find_slot(t, text, hash);
        if (!slot) return crowded(e, "texts");
        if (*slot == UINT64_MAX) *slot = hash << 32 | (uint32_t)i; /* the first of equal texts wins */
    }
    return true;
}

/* --- characters -------------------------------------------------------------------------------- */
/* Returns the code point of a token that is one character and may come from plain text, else -1. */
static int64_t only_char(const tok *t, int32_t id)
{
    uint32_t c;
    str      s = pool_get(&t->text, id);
    if (t->kind[id] != TOK_NORMAL || !s.n || s.n > 4 || utf8_decode(s.s, s.n, &c) != (int)s.n) return -1;
    if (t->byte_level && (t->listed[id] != TOK_NORMAL || alphabet_byte(c) < 0)) return -1;
    return c;
}

static bool index_chars(tok *t, err *e)
{
    uint16_t n_pages = 1;
    t->page          = mem_try_n(VOCAB_PAGES, sizeof *t->page);
    if (!t->page) return no_memory(e);
    for (int32_t i = 0; i < t->n; i++) {
        int64_t c = only_char(t, i);
        if (c >= 0 && !t->page[c >> 8]) t->page[c >> 8] = n_pages++;
    }
    t->page_ids = mem_try_n((size_t)n_pages << 8, sizeof *t->page_ids);
    if (!t->page_ids) return no_memory(e);
    memset(t->page_ids, 0xFF, ((size_t)n_pages << 8) * sizeof *t->page_ids);
    memset(t->byte_id, 0xFF, sizeof t->byte_id);
    for (int32_t i = t->n - 1; i >= 0; i--) { /* downwards: the first of equals is written last */
        int64_t c = only_char(t, i);
        if (c >= 0) t->page_ids[t->page[c >> 8] << 8 | (c & 255)] = i;
        if (c >= 0 && t->byte_level) t->byte_id[alphabet_byte((uint32_t)c)] = i;
        if (t->kind[i] == TOK_BYTE) t->byte_id[byte_value(pool_get(&t->text, i))] = i;
    }
    for (uint32_t c = 0; c < 128; c++) t->ascii[c] = vocab_char(t, c == ' ' ? 0x2581 : c);
    for (int i = 0; i < 256 && t->byte_level; i++)
        if (t->byte_id[i] < 0)
            return err_set(e, ERR_FORMAT, "the byte-level vocabulary has no token for byte 0x%02X", i);
    return true;
}

/* --- merges ------------------------------------------------------------------------------------ */
static bool filter_init(pair_filter *f, size_t n)
{
    int bits = table_bits(n) + 3; /* 16 to 32 bits per entry: 3 to 6% false positives */
    if (bits > 23) bits = 23;     /* 1 MiB stays in the second-level cache */
    f->shift = 64 - bits;
    f->bits  = mem_try((size_t)1 << (bits - 3));
    return f->bits != NULL;
}

static void filter_add(pair_filter *f, uint64_t hash)
{
    uint64_t bit = hash >> f->shift;
    f->bits[bit >> 6] |= UINT64_C(1) << (bit & 63);
}

/* Finds the tokens of the first and last character of a text, -1 when there is none. */
static int32_t first_char(const tok *t, str s)
{
    uint32_t c;
    return utf8_decode(s.s, s.n, &c) ? vocab_char(t, c) : -1;
}

static int32_t last_char(const tok *t, str s)
{
    uint32_t c;
    for (size_t back = 1; back <= 4 && back <= s.n; back++)
        if (utf8_decode(s.s + s.n - back, back, &c) == (int)back) return vocab_char(t, c);
    return -1;
}

/* The three texts of a merge: left, right, both. Empty when too long for a token. */
static void merge_texts(vocab_merge m, char joined[TOK_MAX_TEXT_BYTES], str out[3])
{
    size_t n = m.left.n + m.right.n;
    out[0]   = m.left;
    out[1]   = m.right;
    out[2]   = (str){joined, 0};
    if (m.left.n > TOK_MAX_TEXT_BYTES || n > TOK_MAX_TEXT_BYTES) return;
    memcpy(joined, m.left.s, m.left.n);
    memcpy(joined + m.left.n, m.right.s, m.right.n);
    out[2].n = n;
}

/* Prefetches the slots of a later merge. Half a million merges look up three texts each at random places of the tables;
 * prefetching halves the time. */
static void hash_merge(const tok *t, vocab_merge m, char *joined, uint64_t hash[3])
{
    str text[3];
    merge_texts(m, joined, text);
    for (int k = 0; k < 3; k++) {
        hash[k] = str_hash(text[k]);
        __builtin_prefetch(&t->slots[hash[k] >> t->slot_shift]);
    }
}

/* Finds the ids of a merge's texts. Returns false when one is not in the vocabulary or may not come from plain text. */
static bool merge_ids(const tok *t, vocab_merge m, char *joined, const uint64_t hash[3], int32_t id[3])
{
    str text[3];
    merge_texts(m, joined, text);
    for (int k = 0; k < 3; k++) {
        id[k] = find_id(t, text[k], hash[k]);
        if (id[k] < 0 || t->kind[id[k]] != TOK_NORMAL) return false;
    }
    if (!t->byte_level) return true;
    return tok_bytes(t, id[0]).n + tok_bytes(t, id[1]).n == tok_bytes(t, id[2]).n; /* (2) */
}

/* Adds a merge. Returns false when too many entries collide. */
static bool add_merge(tok *t, const int32_t id[3], int32_t rank)
{
    uint64_t key = pair_key(id[0], id[1]), hash = pair_hash(key), k = 0;
    uint64_t mask = (UINT64_C(1) << (64 - t->merge_shift)) - 1, *m;
    for (;; k++) {
        if (k == VOCAB_MAX_PROBES) return false; /* (1) */
        m = &t->merges[((hash >> t->merge_shift) + k) & mask];
        if (*m == UINT64_MAX) break;
        if (*m >> 24 == key) return true; /* the first of equals ranks lower */
    }
    *m              = key << 24 | (uint64_t)rank;
    t->merged[rank] = id[2];
    filter_add(&t->pairs, hash);
    int32_t a = last_char(t, pool_get(&t->text, id[0])), b = first_char(t, pool_get(&t->text, id[1]));
    if (a >= 0 && b >= 0) filter_add(&t->joins, pair_hash(pair_key(a, b)));
    return true;
}

static bool new_merge_tables(tok *t, size_t n)
{
    int bits       = table_bits(n);
    t->merge_shift = 64 - bits;
    t->merges      = new_table(bits);
    t->merged      = mem_try_n(n + 1, sizeof *t->merged);
    return t->merges && t->merged && filter_init(&t->pairs, n) && filter_init(&t->joins, n < 1 << 16 ? n : 1 << 16);
}

static bool index_merges(tok *t, const vocab_source *s, err *e)
{
    int32_t n = s->n_merges, n_ignored = 0;
    bool    ok = new_merge_tables(t, (size_t)n);
    if (!ok) return no_memory(e);
    char *joined = xalloc(TOK_MAX_TEXT_BYTES);
    for (int32_t from = 0; ok && from < n; from += AHEAD) {
        int32_t  to = n - from < AHEAD ? n : from + AHEAD, id[3];
        uint64_t hash[AHEAD][3];
        for (int32_t rank = from; rank < to; rank++) hash_merge(t, s->merge[rank], joined, hash[rank - from]);
        for (int32_t rank = from; ok && rank < to; rank++) {
            if (!merge_ids(t, s->merge[rank], joined, hash[rank - from], id))
                n_ignored++;
            else
                ok = add_merge(t, id, rank);
        }
    }
    mem_free(joined);
    if (n_ignored)
        log_event(LOG_INFO, "tokenizer", "%d of %d merges join or make tokens that are not plain text and are ignored",
                  n_ignored, n);
    return ok || crowded(e, "merges");
}

/* --- special ids ------------------------------------------------------------------------------- */
static bool special_id(const tok *t, int32_t *out, int32_t id, str name, const char *what, err *e)
{
    *out = id >= 0 ? id : tok_find(t, name);
    if (*out < t->n) return true;
    return err_set(e, ERR_FORMAT, "the %s token's id is %d, but the vocabulary has %d tokens", what, id, t->n);
}

/* Inserts an id. Keeps the list ascending and without duplicates. Fails when the list is full. */
static bool add_stop(tok *t, int32_t id, err *e)
{
    int32_t i = 0;
    if (id >= t->n)
        return err_set(e, ERR_FORMAT, "a stop token's id is %d, but the vocabulary has %d tokens", id, t->n);
    while (i < t->n_stop && t->stop[i] < id) i++;
    if (id < 0 || (i < t->n_stop && t->stop[i] == id)) return true;
    if (t->n_stop == TOK_MAX_STOPS) return err_set(e, ERR_FORMAT, "more than %d stop tokens", TOK_MAX_STOPS);
    memmove(t->stop + i + 1, t->stop + i, (size_t)(t->n_stop - i) * sizeof *t->stop);
    t->stop[i] = id;
    t->n_stop++;
    return true;
}

static bool set_specials(tok *t, const vocab_source *s, err *e)
{
    if (!special_id(t, &t->bos, s->bos, s->bos_name, "bos", e)) return false;
    if (!special_id(t, &t->eos, s->eos, s->eos_name, "eos", e)) return false;
    if (!special_id(t, &t->pad, s->pad, s->pad_name, "pad", e)) return false;
    if (!special_id(t, &t->unk, s->unk, s->unk_name, "unknown", e)) return false;
    if (s->family.no_bos) t->bos = -1;
    for (int32_t i = 0; i < s->n_stop; i++)
        if (!add_stop(t, s->stop[i], e)) return false;
    if (!add_stop(t, t->eos, e)) return false;
    for (const char *const *name = s->family.stops; name && *name; name++) {
        int32_t id = tok_find(t, str_of(*name));
        if (id >= 0 && vocab_is_marker((tok_kind_t)t->kind[id]) && !add_stop(t, id, e)) return false;
    }
    return true;
}

/* --- construction ------------------------------------------------------------------------------------- */
static const tok_markup no_markup;

bool vocab_build(tok **out, const vocab_source *s, err *e)
{
    bool ok = false;
    tok *t  = xnew(tok);

    *out          = NULL;
    t->n          = s->n;
    t->byte_level = s->family.scheme == TOK_BYTE_LEVEL;
    t->nfc        = t->byte_level && s->nfc;
    t->gguf_model = s->family.gguf_model;
    t->gguf_pre   = s->family.gguf_pre;
    t->markup     = s->family.markup ? s->family.markup : &no_markup;
    if (!t->n) {
        err_set(e, ERR_FORMAT, "the vocabulary is empty");
        goto done;
    }
    if (!store_texts(t, s, e)) goto done;
    if (!index_texts(t, e)) goto done;
    if (!index_chars(t, e)) goto done;
    if (!index_merges(t, s, e)) goto done;
    if (!added_build(&t->added[0], t, s, false, e)) goto done;
    if (!added_build(&t->added[1], t, s, true, e)) goto done;
    if (!set_specials(t, s, e)) goto done;
    *out = t;
    t    = NULL;
    ok   = true;
done:
    tok_free(t);
    return ok;
}

void tok_free(tok *t)
{
    if (!t) return;
    mem_free(t->text.p);
    mem_free(t->text.at);
    mem_free(t->bytes.p);
    mem_free(t->bytes.at);
    mem_free(t->kind);
    mem_free(t->listed);
    mem_free(t->slots);
    mem_free(t->page);
    mem_free(t->page_ids);
    mem_free(t->merges);
    mem_free(t->merged);
    mem_free(t->pairs.bits);
    mem_free(t->joins.bits);
    added_free(&t->added[0]);
    added_free(&t->added[1]);
    mem_free(t);
}

static bool in_range(const tok *t, int32_t id) { return id >= 0 && id < t->n; }

int32_t    tok_size(const tok *t) { return t->n; }
str        tok_text(const tok *t, int32_t id) { return in_range(t, id) ? pool_get(&t->text, id) : STR(""); }
str        tok_bytes(const tok *t, int32_t id) { return in_range(t, id) ? pool_get(&t->bytes, id) : STR(""); }
tok_kind_t tok_kind(const tok *t, int32_t id) { return in_range(t, id) ? (tok_kind_t)t->kind[id] : TOK_UNUSED; }
tok_kind_t tok_listed_kind(const tok *t, int32_t id)
{
    return in_range(t, id) ? (tok_kind_t)t->listed[id] : TOK_UNUSED;
}
int32_t tok_bos(const tok *t) { return t->bos; }
int32_t tok_eos(const tok *t) { return t->eos; }
int32_t tok_pad(const tok *t) { return t->pad; }
int32_t tok_unk(const tok *t) { return t->unk; }
bool    tok_add_bos(const tok *t) { return t->bos >= 0; }

int32_t tok_find(const tok *t, str text) { return find_id(t, text, str_hash(text)); }

const char *tok_gguf_model(const tok *t) { return t->gguf_model; }
const char *tok_gguf_pre(const tok *t) { return t->gguf_pre; }
bool        tok_normalizes(const tok *t) { return t->nfc; }

const tok_markup *tok_markup_of(const tok *t) { return t->markup; }

int32_t tok_find_marker(const tok *t, const char *name) { return name ? tok_find(t, str_of(name)) : -1; }

void tok_stop_ids(const tok *t, tok_ids *out)
{
    for (int32_t i = 0; i < t->n_stop; i++) tok_ids_put(out, t->stop[i]);
}
