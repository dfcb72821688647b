/* The end of a chain. Two things happen there before the target verifies it.
 *
 * A tail: the text so far and the draft are looked up as a whole; if the text has been like their end before, the
 * tokens that followed there are added. They cost rows only, no pass of a drafter.
 *
 * An early end, with `auto` and a lane that is alone: rows are kept while they raise the expected tokens per second,
 *
 *     (1 + a_1 + ... + a_m) / (cost of the draft + cost of a step of 1 + m rows)
 *
 * where a_k, the probability that the first k tokens are accepted, comes from the drafter's confidences, else from the
 * lane's record, and continues in the tail with the record of tails. */
#include "spec/inside.h"

static bool is_chain_method(spec_method m) { return m == SPEC_DFLASH || m == SPEC_MTP; }

int lane_tail_room(const spec_lane *l, int room_rows)
{
    int room = min_int(min_int(room_rows, DRAFT_MAX), l->room) - l->plan.n;
    if (!l->uses[DRAFTER_NGRAM] || !is_chain_method(l->plan.method) || l->plan.n <= 0 || room <= 0) return 0;
    return min_int(l->opt.spec.draft_tail, room);
}

/* Returns whether the end of the lane's chain is chosen when it is known. */
static bool ends_early(const spec_lane *l)
{
    const drafter *d = l->s->slots[spec_method_drafter(l->plan.method)].d;
    return l->opt.spec.method == SPEC_AUTO && !l->plan.trial && (d->confident || l->max_tail > 0);
}

bool lane_waits_for_draft(const spec_lane *l, bool alone) { return l->max_tail > 0 || (alone && ends_early(l)); }

/* Looks up text and draft together. The draft is written after the text and indexed for the moment. */
void lane_add_tail(spec_lane *l)
{
    drafter  *d = l->s->slots[DRAFTER_NGRAM].d;
    draft_job job, *jobs[] = {&job};
    int       n  = l->tree.n - 1;
    l->n_drafted = n;
    l->n_tail    = 0;
    if (n < 1 || l->later || l->max_tail <= 0) return;
    memcpy(l->text + l->n_text, l->tree.token + 1, (size_t)n * sizeof *l->text);
    job = (draft_job){.lane   = l->draft_lane[DRAFTER_NGRAM],
                      .text   = l->text,
                      .n_text = l->n_text + n,
                      .n_want = min_int(l->max_tail, DRAFT_MAX - n)};
    if (d->draft(d, l->s->kv, jobs, 1, NULL)) l->n_tail = job.n;
    d->cut(d, l->draft_lane[DRAFTER_NGRAM], l->n_text);
    tree_add_chain(&l->tree, job.token, l->n_tail);
}

/* Sets a[k] to the probability that the first k + 1 rows are accepted. */
static void acceptance(const spec_lane *l, double *a, int n)
{
    bool   confident = l->s->slots[spec_method_drafter(l->plan.method)].d->confident;
    double all = 1, rate = SURVIVAL_FIRST, curve[DRAFT_MAX];
    survival_curve(&l->policy.record[l->plan.method], curve, l->n_drafted);
    for (int k = 0; k < n; k++) {
        if (k < l->n_drafted)
            all = confident ? all * l->job.confidence[k] : curve[k];
        else
            all *= rate = survival_rate(&l->tail_record, k - l->n_drafted, rate);
        a[k] = all;
    }
}

void lane_end_chain(spec_lane *l)
{
    double    a[DRAFT_MAX], tokens = 1, best = 0;
    int       n = l->tree.n - 1, keep = 1;
    cost_view v;
    if (n < 2 || l->later || !is_chain_method(l->plan.method) || !ends_early(l)) return;
    cost_view_init(&v, &l->s->cost, l->n_text);
    if (!v.measured) return;
    acceptance(l, a, n);
    double draft = l->plan.method == SPEC_MTP ? v.pass[1] * l->n_drafted : v.block[SPEC_DFLASH][1 + l->n_drafted];
    for (int m = 1; m <= n; m++) {
        tokens += a[m - 1];
        double rate = tokens / (draft + v.step[1 + m]);
        if (rate <= best) continue;
        best = rate;
        keep = m;
    }
    l->tree.n    = 1 + keep;
    l->n_tail    = keep > l->n_drafted ? keep - l->n_drafted : 0;
    l->n_drafted = keep - l->n_tail;
}

int lane_judged(spec_lane *l, int *right)
{
    int depth = tree_depth(&l->tree), n = l->n_tail ? min_int(depth, l->n_drafted) : depth;
    *right = min_int(l->n_path - 1, n);
    if (depth > n && *right == n) survival_note(&l->tail_record, depth - n, min_int(l->n_path - 1, depth) - n);
    return n;
}
