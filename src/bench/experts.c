#include "bench/experts.h"

#include "base/mem.h"
#include "bench/inside.h"

#include <assert.h>
#include <math.h>

enum { MAX_PAIRS = 1 << 14, MAX_EXPERTS = 1 << 14 }; /* maximum of a step that is counted; larger ones are skipped */

static struct {
    ops            *inner;
    bool            counting;
    experts_touched sum;           /* distinct and uniform are sums over layers */
    int32_t         id[MAX_PAIRS]; /* a step allocates nothing */
} watch;

double experts_uniform(int n_experts, int n_slots, int n_rows)
{
    return n_experts * (1 - pow(1 - (double)n_slots / n_experts, n_rows));
}

int experts_distinct(const int32_t *id, int n, int n_experts)
{
    uint64_t seen[MAX_EXPERTS / 64] = {0};
    int      sum                    = 0;
    assert(n_experts <= MAX_EXPERTS);
    for (int i = 0; i < n; i++) {
        if (id[i] < 0) continue; /* a padding row's */
        uint64_t bit = UINT64_C(1) << id[i] % 64, *word = &seen[id[i] / 64];
        sum += !(*word & bit);
        *word |= bit;
    }
    return sum;
}

/* Returns the number of rows that are not padding. */
static int routed_rows(int n_rows, int n_slots)
{
    int n = 0;
    for (int r = 0; r < n_rows; r++) n += watch.id[r * n_slots] >= 0;
    return n;
}

static void count_experts(queue *q, dev id, int n_rows, int n_experts, int n_slots)
{
    int n = n_rows * n_slots;
    if (n > MAX_PAIRS || n_experts > MAX_EXPERTS) return;
    watch.inner->download(q, watch.id, id, (size_t)n * sizeof *watch.id);
    watch.inner->sync(q);
    experts_touched *t    = &watch.sum;
    int              here = experts_distinct(watch.id, n, n_experts);
    t->distinct += here;
    t->uniform += experts_uniform(n_experts, n_slots, routed_rows(n_rows, n_slots));
    t->min       = t->n_layers == 0 || here < t->min ? here : t->min;
    t->max       = here > t->max ? here : t->max;
    t->n_experts = n_experts;
    t->n_layers++;
}

static void w_router(queue *q, dev id, dev w, dev logits, dev expert_scale, int n_rows, int n_experts, int n_slots)
{
    watch.inner->router(q, id, w, logits, expert_scale, n_rows, n_experts, n_slots);
    if (watch.counting) count_experts(q, id, n_rows, n_experts, n_slots);
}

static void w_experts(queue *q, const expert_rows *e, int n_rows)
{
    watch.inner->experts(q, e, n_rows);
    if (watch.counting) count_experts(q, e->id, n_rows, e->n_experts, e->n_slots);
}

static bool w_replay(queue *q, uint64_t key) { return !watch.counting && watch.inner->replay(q, key); }
static bool w_record_end(queue *q) { return watch.counting || watch.inner->record_end(q); }

static void w_close(ops *o)
{
    ops_close(watch.inner);
    watch.inner = NULL;
    mem_free(o);
}

ops *experts_watch(ops *inner)
{
    ops *o      = xnew(ops);
    watch.inner = inner;
    *o          = *inner; /* its queues, weights and state are the inner one's own */
    o->router   = w_router;
    if (inner->experts) o->experts = w_experts;
    o->replay     = w_replay;
    o->record_end = w_record_end;
    o->close      = w_close;
    return o;
}

void experts_count_begin(void)
{
    watch.counting = true;
    watch.sum      = (experts_touched){0};
}

experts_touched experts_count_end(void)
{
    experts_touched t = watch.sum;
    watch.counting    = false;
    t.distinct /= t.n_layers ? t.n_layers : 1;
    t.uniform /= t.n_layers ? t.n_layers : 1;
    return t;
}
