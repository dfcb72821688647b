/* Drafts from the lane's own text: the tokens that followed an earlier occurrence of the text's end.
 *
 *     text:   ... the cat sat on | the mat . Then ... the cat sat on |
 *                            `at`^ ^ draft tokens             the end^
 *
 * Every position p >= 2 is in a list by the hash of tokens p-2, p-1, p: head[] has the latest position of a hash,
 * before[p] the previous one. A draft walks the list of the text's end, latest first, and compares backwards beyond
 * the three tokens. The longest match wins, the latest of equals. A match counts up to MATCH_MAX tokens, and at most
 * PLACES_MAX places are compared, so that no text makes a draft slow. Fewer than three common tokens give no draft:
 * on plain text such drafts are mostly wrong, and each draft token is a row to verify.
 *
 * Invariants: (1) each position from 2 to n_filed - 1 is on exactly one list, and each list descends from its head;
 * (2) positions leave lists from the end only, so `before` is also the log that cut() undoes. The text at the time of
 * filing is not stored: a list may contain places with other tokens, and the comparison skips them. */
#include "base/mem.h"
#include "model/drafter.h"

#include <assert.h>

enum {
    GRAM       = 3,
    PLACES_MAX = 32,  /* places with the same three tokens */
    LINKS_MAX  = 256, /* list entries visited, with hash collisions */
    MATCH_MAX  = 64,
};

struct draft_lane {
    int32_t *head;   /* [1 << hash_bits] position + 1; 0: none */
    int32_t *before; /* [max_text] position + 1 filed before this one; 0: none */
    int32_t *hash;   /* [max_text] hash of the position's list */
    int      hash_bits;
    int32_t  n_filed;
};

typedef struct {
    drafter d; /* first member: a drafter * is an ngram * */
    int32_t max_text;
} ngram;

static int32_t hash_at(const draft_lane *l, const int32_t *text, int32_t p)
{
    uint64_t h = 0;
    for (int i = 0; i < GRAM; i++) h = (h ^ (uint32_t)text[p - i]) * 0x9e3779b97f4a7c15u;
    return (int32_t)(h >> (64 - l->hash_bits));
}

static void file_text(draft_lane *l, const int32_t *text, int32_t n)
{
    for (int32_t p = l->n_filed; p < n; p++) {
        if (p < GRAM - 1) continue;
        int32_t h    = hash_at(l, text, p);
        l->hash[p]   = h;
        l->before[p] = l->head[h];
        l->head[h]   = p + 1;
    }
    if (n > l->n_filed) l->n_filed = n;
}

/* Returns the number of equal tokens, backwards from positions `at` and `end`. */
static int match_length(const int32_t *text, int32_t at, int32_t end)
{
    int n = 0;
    while (n < MATCH_MAX && n <= at && text[at - n] == text[end - n]) n++;
    return n;
}

/* Returns the best match of the text's end, or -1. */
static int32_t find_place(const draft_lane *l, const int32_t *text, int32_t end)
{
    int32_t best   = -1;
    int     length = GRAM - 1, places = 0, links = 0;
    if (end < GRAM) return -1;
    for (int32_t p = l->head[hash_at(l, text, end)] - 1; p >= 0 && links < LINKS_MAX; p = l->before[p] - 1, links++) {
        int n = p < end ? match_length(text, p, end) : 0;
        if (n < GRAM) continue;
        if (n > length) {
            best   = p;
            length = n;
        }
        if (++places == PLACES_MAX || length == MATCH_MAX) break;
    }
    return best;
}

/* Copies the tokens after the match. At the end of the text it continues as if the text were periodic. */
static void draft_one(int32_t max_text, draft_job *job)
{
    draft_lane *l   = job->lane;
    int32_t     end = job->n_text - 1;
    assert(job->n_top == 0 && job->n_want <= DRAFT_MAX); /* one_pass is false */
    job->n = 0;
    if (job->n_text < 1 || job->n_text > max_text) return;
    file_text(l, job->text, job->n_text);
    int32_t at = find_place(l, job->text, end);
    if (at < 0) return;
    for (; job->n < job->n_want; job->n++) {
        int32_t from = at + 1 + job->n, token = from <= end ? job->text[from] : job->token[from - end - 1];
        if (token < 0) break; /* a picture */
        job->token[job->n] = token;
    }
}

static bool ngram_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    (void)kv, (void)e;
    for (int i = 0; i < n_jobs; i++) draft_one(((const ngram *)d)->max_text, jobs[i]);
    return true;
}

static void ngram_cut(drafter *d, draft_lane *l, int32_t n_pos)
{
    (void)d;
    for (; l->n_filed > n_pos && l->n_filed > 0; l->n_filed--) {
        int32_t p = l->n_filed - 1;
        if (p >= GRAM - 1) l->head[l->hash[p]] = l->before[p]; /* (2) */
    }
}

/* Does nothing: the text has all that is needed. */
static bool ngram_observe(drafter *d, draft_lane *l, const draft_rows *r, err *e)
{
    (void)d, (void)l, (void)r, (void)e;
    return true;
}

static void ngram_lane_free(drafter *d, draft_lane *l)
{
    (void)d;
    if (!l) return;
    mem_free(l->head);
    mem_free(l->before);
    mem_free(l->hash);
    mem_free(l);
}

static bool ngram_lane_new(drafter *d, draft_lane **out, err *e)
{
    draft_lane *l = xnew(draft_lane);
    size_t      n = (size_t)((const ngram *)d)->max_text;

    *out         = NULL;
    l->hash_bits = 8;
    while (l->hash_bits < 30 && (size_t)1 << l->hash_bits < n) l->hash_bits++;
    l->head   = mem_try_n((size_t)1 << l->hash_bits, sizeof *l->head);
    l->before = mem_try_n(n, sizeof *l->before);
    l->hash   = mem_try_n(n, sizeof *l->hash);
    if (!l->head || !l->before || !l->hash) {
        ngram_lane_free(d, l);
        return err_set(e, ERR_UNAVAILABLE, "no memory for an index of %zu positions of text", n);
    }
    *out = l;
    return true;
}

static void ngram_close(drafter *d) { mem_free(d); }

drafter *drafter_open_ngram(target *t, int32_t max_text)
{
    ngram   *g   = xnew(ngram);
    drafter *d   = &g->d;
    g->max_text  = max_text;
    d->kind      = DRAFTER_NGRAM;
    d->t         = t;
    d->max_draft = DRAFT_MAX;
    d->lane_new  = ngram_lane_new;
    d->lane_free = ngram_lane_free;
    d->cut       = ngram_cut;
    d->observe   = ngram_observe;
    d->draft     = ngram_draft;
    d->close     = ngram_close;
    return d;
}
