/* The tail of a chain: the text so far and the draft are looked up as a whole; if the text has been like their end
 * before, the tokens that followed there are added. They cost rows only, no pass of a drafter. */
#include "spec/inside.h"

static bool is_chain_method(spec_method m) { return m == SPEC_DFLASH || m == SPEC_MTP; }

int lane_tail_room(const spec_lane *l, int room_rows)
{
    int room = min_int(min_int(room_rows, DRAFT_MAX), l->room) - l->plan.n;
    if (!l->uses[DRAFTER_NGRAM] || !is_chain_method(l->plan.method) || l->plan.n <= 0 || room <= 0) return 0;
    return min_int(l->opt.spec.draft_tail, room);
}

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
    tree_add_chain(&l->tree, job.token, NULL, l->n_tail);
}

draft_outcome lane_judged(spec_lane *l)
{
    int           depth = tree_depth(&l->tree), accepted = min_int(l->n_path - 1, depth);
    draft_outcome o = {.made = l->n_made, .given = l->n_tail ? min_int(depth, l->n_drafted) : depth};
    o.right         = min_int(accepted, o.given);
    if (depth > o.given && o.right == o.given)
        survival_note(&l->tail_record, depth - o.given, depth - o.given, accepted - o.given);
    if (o.made < o.given) o.made = o.given;
    return o;
}
