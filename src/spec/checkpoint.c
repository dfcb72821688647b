/* Checkpoints: which states of recurrent layers a lane leaves in the prefix tree. A prefix hit can end only at a
 * length whose state was saved, so states are saved where texts are likely to meet again:
 *  - at the last full page of a prompt, for the same prompt and for the next turn;
 *  - where the prompt leaves a text that is in the tree, for further requests with the same beginning;
 *  - every save_every positions of a long prompt;
 *  - at the last full page of the answer, when the request ends (kv/lane.h saves that one while rows are committed).
 * A step saves a state between two rows of a lane by ending its sure rows there (kv/lane.h). */
#include "spec/inside.h"

enum { SAVE_EVERY = 4096 };

static bool saves_states(const spec_lane *l) { return l->s->t->n_states > 0 && l->s->tree; }

/* Returns the last end of a page of the prompt that another request for the same prompt can start from. */
static int32_t prompt_end(const spec_lane *l) { return (l->n_prompt - 1) / KV_PAGE * KV_PAGE; }

static int32_t save_every(const spec_lane *l)
{
    int32_t n = l->s->opt.save_every > 0 ? l->s->opt.save_every : SAVE_EVERY;
    return (n + KV_PAGE - 1) / KV_PAGE * KV_PAGE;
}

/* Returns the first length above `from` at which a state of the prompt is to be saved, INT32_MAX if there is none. */
static int32_t next_save(const spec_lane *l, int32_t from)
{
    int32_t end = prompt_end(l), next = from - from % save_every(l) + save_every(l);
    if (from >= end) return INT32_MAX;
    if (l->branch > from) next = min_int(next, l->branch);
    return min_int(next, end);
}

void lane_plan_states(spec_lane *l, int kept_rows)
{
    l->n_kept_text = l->first_want >= 0;
    if (!saves_states(l)) return;
    int32_t save = next_save(l, l->n_cached), n_after = l->n_text - save;
    if (save >= l->n_cached + l->n_chunk) return;
    if (l->first_want >= 0 && n_after <= min_int(KV_PAGE, kept_rows)) {
        l->n_kept_text = n_after; /* the step goes on after the state, with rows that do not change it */
        return;
    }
    l->n_chunk     = save - l->n_cached;
    l->n_kept_text = 0;
    l->first_want  = -1;
}

void lane_commit_sure(spec_lane *l)
{
    int32_t end = l->n_cached + l->n_chunk - l->n_kept_text;
    if (!saves_states(l) || end <= l->n_cached || next_save(l, l->n_cached) != end) return;
    kv_lane_commit_sure(l->kv, true);
    l->n_cached = end;
    lane_share_pages(l);
    lane_give_state(l);
}

void lane_give_state(spec_lane *l)
{
    int32_t n = saves_states(l) ? kv_lane_saved(l->kv) : 0;
    if (n == 0 || n / KV_PAGE > l->shared.n_nodes) return;
    kv_node *node = l->shared.node[n / KV_PAGE - 1];
    kv_lane_save(l->kv, l->s->tree, node);
    if (n >= prompt_end(l)) kv_prefix_keep(l->s->tree, node);
}
