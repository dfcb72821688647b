/* A sparse set of two arrays: `entries` lists the distinct tokens in order of arrival, `where` has the index of a
 * token's entry. An entry with two counts of 0 (after a pop) stays and changes nothing. */
#include "ops/history.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>

typedef struct {
    int32_t token, n_prompt, n_out;
    float   bias;
    bool    is_end;
} entry;

struct history {
    int      n_vocab, n;
    int32_t *where;   /* [n_vocab]: index in entries + 1; 0: never seen */
    entry   *entries; /* [n_vocab] */
};

bool history_new(history **out, int n_vocab, err *e)
{
    history *h = xnew(history);
    h->n_vocab = n_vocab;
    h->where   = mem_try_n((size_t)n_vocab, sizeof *h->where);
    h->entries = mem_try_n((size_t)n_vocab, sizeof *h->entries);
    *out       = h;
    if (h->where && h->entries) return true;
    history_free(h);
    *out = NULL;
    return err_set(e, ERR_UNAVAILABLE, "no memory to count the tokens of a sequence");
}

void history_free(history *h)
{
    if (!h) return;
    mem_free(h->where);
    mem_free(h->entries);
    mem_free(h);
}

void history_clear(history *h)
{
    for (int i = 0; i < h->n; i++) h->where[h->entries[i].token] = 0;
    h->n = 0;
}

static entry *entry_of(history *h, int32_t id)
{
    assert(id >= 0 && id < h->n_vocab);
    if (!h->where[id]) {
        h->entries[h->n] = (entry){.token = id};
        h->where[id]     = ++h->n;
    }
    return &h->entries[h->where[id] - 1];
}

void history_bias(history *h, const logit_bias *b, int n)
{
    for (int i = 0; i < n; i++) entry_of(h, b[i].token)->bias = b[i].bias;
}

void history_ends(history *h, const int32_t *id, int n)
{
    for (int i = 0; i < n; i++) entry_of(h, id[i])->is_end = true;
}

int history_size(const history *h) { return h->n; }

void history_prompt(history *h, const int32_t *id, size_t n)
{
    for (size_t i = 0; i < n; i++) entry_of(h, id[i])->n_prompt++;
}

void history_push(history *h, int32_t id) { entry_of(h, id)->n_out++; }

void history_pop(history *h, int32_t id)
{
    entry *x = entry_of(h, id);
    assert(x->n_out > 0);
    x->n_out--;
}

bool penalty_counts(const penalty_params *p) { return p->repeat != 1 || p->presence != 0 || p->frequency != 0; }

bool penalty_is_off(const penalty_params *p) { return !penalty_counts(p) && p->n_bias == 0; }

static logit_change change_of(const entry *x, const penalty_params *p, int row, bool early)
{
    logit_change c = {.row = row, .token = x->token, .repeat = 1, .bias = x->bias};
    if (early && x->is_end) c.bias = -INFINITY;
    if (x->n_prompt + x->n_out > 0) c.repeat = p->repeat;
    if (x->n_out > 0) c.minus = p->presence + p->frequency * (float)x->n_out;
    return c;
}

static bool changes_nothing(const logit_change *c) { return c->bias == 0 && c->repeat == 1 && c->minus == 0; }

int history_changes(const history *h, const penalty_params *p, int row, bool early, logit_change *out)
{
    int n = 0;
    for (int i = 0; i < h->n; i++) {
        out[n] = change_of(&h->entries[i], p, row, early);
        n += !changes_nothing(&out[n]);
    }
    return n;
}
