/* Searches a text for added tokens: the leftmost one, and the longest of several that start there. */
#include "base/mem.h"
#include "tok/unicode.h"
#include "tok/vocab.h"

#include <stdlib.h>

static const char SPACE[] = "\xE2\x96\x81"; /* U+2581 */

typedef struct {
    str     text; /* as it is searched for */
    int32_t id;
} added_key;

typedef struct { /* state of one added_build */
    added_key *key;
    int32_t    n;
    char      *spelled;   /* texts of normalized tokens */
    int32_t   *from, *to; /* the keys that start with a state's path */
} builder;

static int compare_keys(const void *a, const void *b)
{
    const added_key *x = a, *y = b;
    int              c = memcmp(x->text.s, y->text.s, x->text.n < y->text.n ? x->text.n : y->text.n);
    if (!c) c = (x->text.n > y->text.n) - (x->text.n < y->text.n);
    return c ? c : (x->id > y->id) - (x->id < y->id);
}

/* Copies text to out with every space as U+2581, as the normalizer would. */
static str spell_spaces(char *out, str text)
{
    size_t n = 0;
    for (size_t i = 0; i < text.n; i++) {
        size_t len = text.s[i] == ' ' ? 3 : 1;
        memcpy(out + n, len == 3 ? SPACE : text.s + i, len);
        n += len;
    }
    return (str){out, n};
}

/* Copies text to out in NFC. Returns false when there is no memory. */
static bool copy_nfc(char *out, str *text)
{
    buf b;
    buf_init(&b, NFC_GROWTH * text->n);
    bool ok = nfc_put(&b, *text);
    if (ok) memcpy(out, b.p, b.n);
    *text = (str){out, b.n};
    buf_deinit(&b);
    return ok;
}

static bool is_added(const tok *t, const vocab_source *s, int32_t id, bool normalized)
{
    return vocab_is_marker((tok_kind_t)t->listed[id]) && s->entry[id].text.n && s->entry[id].normalized == normalized;
}

static bool collect_keys(builder *b, const tok *t, const vocab_source *s, bool normalized)
{
    size_t n_bytes = 0, at = 0;
    for (int32_t i = 0; i < t->n; i++) {
        if (!is_added(t, s, i, normalized)) continue;
        b->n++;
        n_bytes += normalized ? 3 * s->entry[i].text.n : 0; /* U+2581 has 3 bytes, and NFC_GROWTH is 3 */
    }
    b->key     = mem_try_n((size_t)b->n + 1, sizeof *b->key);
    b->spelled = mem_try(n_bytes + 1);
    if (!b->key || !b->spelled) return false;
    for (int32_t i = 0, n = 0; i < t->n; i++) {
        if (!is_added(t, s, i, normalized)) continue;
        str text = tok_text(t, i);
        if (normalized && !t->byte_level) text = spell_spaces(b->spelled + at, text);
        if (normalized && t->nfc && !copy_nfc(b->spelled + at, &text)) return false;
        at += normalized ? text.n : 0;
        b->key[n++] = (added_key){text, i};
    }
    qsort(b->key, (size_t)b->n, sizeof *b->key, compare_keys);
    return true;
}

/* Returns how many bytes key i shares with the key before it. */
static size_t shared_start(const builder *b, int32_t i)
{
    size_t n = 0;
    if (!i) return 0;
    str x = b->key[i - 1].text, y = b->key[i].text;
    while (n < x.n && n < y.n && x.s[n] == y.s[n]) n++;
    return n;
}

static bool new_states(added_trie *a, builder *b)
{
    size_t n = 1;
    for (int32_t i = 0; i < b->n; i++) n += b->key[i].text.n - shared_start(b, i);
    a->child = mem_try_n(n + 1, sizeof *a->child);
    a->found = mem_try_n(n, sizeof *a->found);
    a->label = mem_try_n(n, sizeof *a->label);
    b->from  = mem_try_n(n, sizeof *b->from);
    b->to    = mem_try_n(n, sizeof *b->to);
    return n < INT32_MAX && a->child && a->found && a->label && b->from && b->to;
}

/* Goes through the states level by level; a state at `depth` divides its keys by their next byte. */
static void fill_states(added_trie *a, builder *b)
{
    int32_t n = 1, level_end = 1;
    size_t  depth = 0;
    b->to[0]      = b->n;
    for (int32_t s = 0; s < n; s++) {
        int32_t i = b->from[s], to = b->to[s];
        if (s == level_end) {
            depth++;
            level_end = n;
        }
        a->child[s] = n;
        a->found[s] = i < to && b->key[i].text.n == depth ? b->key[i].id : -1; /* the lowest id of equal texts */
        while (i < to && b->key[i].text.n == depth) i++;
        for (; i < to; n++) {
            char c      = b->key[i].text.s[depth];
            a->label[n] = (uint8_t)c;
            b->from[n]  = i;
            while (i < to && b->key[i].text.s[depth] == c) i++;
            b->to[n] = i;
        }
    }
    a->child[n] = n;
    for (int32_t s = a->child[0]; s < a->child[1]; s++) a->first[a->label[s]] = s;
    if (a->spaced) a->first[' '] = a->first[(uint8_t)SPACE[0]];
}

bool added_build(added_trie *a, const tok *t, const vocab_source *s, bool normalized, err *e)
{
    builder b = {0};
    a->spaced = normalized && !t->byte_level;
    bool ok   = collect_keys(&b, t, s, normalized) && new_states(a, &b);
    if (ok) fill_states(a, &b);
    mem_free(b.key);
    mem_free(b.spelled);
    mem_free(b.from);
    mem_free(b.to);
    return ok || err_set(e, ERR_UNAVAILABLE, "no memory for the tokenizer's added tokens");
}

void added_free(added_trie *a)
{
    mem_free(a->child);
    mem_free(a->found);
    mem_free(a->label);
    *a = (added_trie){0};
}

/* Returns the child of state s for byte c, or 0. */
static int32_t next_state(const added_trie *a, int32_t s, uint8_t c)
{
    int32_t lo = a->child[s], end = a->child[s + 1], hi = end;
    if (!s) return a->first[c];
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (a->label[mid] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < end && a->label[lo] == c ? lo : 0;
}

/* Returns the state that U+2581 leads to from s, or 0. */
static int32_t next_space(const added_trie *a, int32_t s)
{
    for (int i = 0; i < 3 && (s || !i); i++) s = next_state(a, s, (uint8_t)SPACE[i]);
    return s;
}

int32_t added_match(const added_trie *a, str text, size_t *len)
{
    int32_t s = 0, found = -1;
    for (size_t i = 0; i < text.n; i++) {
        bool space = a->spaced && text.s[i] == ' ';
        s          = space ? next_space(a, s) : next_state(a, s, (uint8_t)text.s[i]);
        if (!s) break;
        if (a->found[s] < 0) continue;
        found = a->found[s];
        *len  = i + 1;
    }
    return found;
}
