/* Lanes with a grammar: the grammar state after each row of a lane's tree, and draft tokens that the grammar forces. */
#include "spec/inside.h"

/* Adds the work of the machine since `before` to the lane's count. */
static void note_work(spec_lane *l, int64_t before) { l->mask_work += guide_work(l->guide) - before; }

static void drop_rows(spec_lane *l)
{
    for (int i = 1; i < l->n_row_states; i++) guide_drop(l->guide, l->row_at[i]);
    l->n_row_states = 0;
}

void lane_guide_begin(spec_lane *l, const lane_request *r)
{
    l->guide        = r->guide;
    l->n_row_states = 0;
    l->mask_work    = 0;
    if (l->guide) l->at = guide_begin(l->guide, &r->begins);
}

void lane_guide_end(spec_lane *l)
{
    if (!l->guide) return;
    drop_rows(l);
    guide_drop(l->guide, l->at);
    l->guide = NULL;
}

int lane_tokens_left(const spec_lane *l) { return min_int(l->limit, l->n_max + 1 - l->n_text); }

/* A drafter with a longer plan goes first; forced tokens are then added after its draft tokens. */
void lane_guide_plan(spec_lane *l, int room_rows)
{
    enum { ENOUGH = 4 };
    l->n_forced = 0;
    if (!l->guide || l->opt.spec.method == SPEC_OFF || !guide_draft_pays(l->guide)) return;
    int64_t before = guide_work(l->guide);
    int     room   = min_int(min_int(room_rows, l->room), DRAFT_MAX);
    l->n_forced    = room > 0 ? guide_draft(l->guide, l->at, lane_tokens_left(l), l->forced, room) : 0;
    note_work(l, before);
    if (l->n_forced > 0 && l->n_forced >= min_int(l->plan.n, ENOUGH))
        l->plan = (spec_plan){.method = SPEC_GRAMMAR, .n = l->n_forced};
}

/* Removes rows that the grammar does not allow, and sets the state after each row. */
static void cut_tree(spec_lane *l)
{
    draft_tree *t = &l->tree;
    int         to[1 + DRAFT_MAX], n = 1;
    to[0] = 0;
    for (int i = 1; i < t->n; i++) {
        int           parent = to[t->parent[i]];
        grammar_state s      = parent < 0 ? GRAMMAR_NO : guide_take(l->guide, l->row_at[parent], t->token[i]);
        to[i]                = -1;
        if (!guide_goes_on(s)) continue;
        to[i]        = n;
        l->row_at[n] = s;
        t->token[n]  = t->token[i];
        t->parent[n] = parent;
        t->depth[n]  = t->depth[i];
        n++;
    }
    t->n = l->n_row_states = n;
}

static void add_forced_row(spec_lane *l, int32_t token)
{
    draft_tree   *t = &l->tree;
    int           i = t->n;
    grammar_state s = guide_take(l->guide, l->row_at[i - 1], token);
    if (!guide_goes_on(s)) return;
    l->row_at[i] = s;
    t->token[i]  = token;
    t->parent[i] = i - 1;
    t->depth[i]  = t->depth[i - 1] + 1;
    t->n = l->n_row_states = i + 1;
}

/* Adds forced tokens after the last draft token of a chain, up to the length of the plan. */
static void extend_chain(spec_lane *l)
{
    draft_tree *t    = &l->tree;
    int         room = min_int(l->plan.n, l->room) - (t->n - 1), n;
    if (l->plan.method == SPEC_OFF || !l->n_forced || room <= 0 || !tree_is_chain(t)) return;
    n = t->n == 1
            ? min_int(l->n_forced, room)
            : guide_draft(l->guide, l->row_at[t->n - 1], lane_tokens_left(l) - t->depth[t->n - 1], l->forced, room);
    for (int i = 0, before = t->n; i < n && t->n == before + i; i++) add_forced_row(l, l->forced[i]);
}

/* Removes rows whose mask would take too long, with all rows below them. Their positions are decided in a later step.
 * */
static void cut_costly(spec_lane *l)
{
    draft_tree *t = &l->tree;
    int         to[1 + DRAFT_MAX], n = 1;
    to[0] = 0;
    for (int i = 1; i < t->n; i++) {
        int  parent = to[t->parent[i]];
        bool keep   = parent >= 0 && guide_mask_work(l->guide, l->row_at[i], &l->s->mask_work, NULL) == GRAMMAR_READY;
        to[i]       = keep ? n : -1;
        if (!keep) {
            guide_drop(l->guide, l->row_at[i]);
            continue;
        }
        l->row_at[n] = l->row_at[i];
        t->token[n]  = t->token[i];
        t->parent[n] = parent;
        t->depth[n]  = t->depth[i];
        n++;
    }
    t->n = l->n_row_states = n;
}

void lane_guide_tree(spec_lane *l)
{
    if (!l->guide) return;
    int64_t before = guide_work(l->guide);
    drop_rows(l);
    l->row_at[0]    = l->at;
    l->n_row_states = 1;
    cut_tree(l);
    extend_chain(l);
    cut_costly(l);
    note_work(l, before);
}

bool spec_lane_prepare(spec_lane *l, int64_t *work)
{
    if (!l->guide) return true;
    int64_t before = guide_work(l->guide);
    int     done   = guide_mask_work(l->guide, l->at, work, NULL);
    note_work(l, before);
    return done != GRAMMAR_LATER;
}

int32_t lane_guide_settle(spec_lane *l, grammar_state at, int32_t pick, int32_t left)
{
    int64_t before = guide_work(l->guide);
    pick           = guide_settle(l->guide, at, pick, left);
    note_work(l, before);
    return pick;
}

bool    spec_lane_is_guided(const spec_lane *l) { return l->guide != NULL; }
int64_t spec_lane_mask_work(const spec_lane *l) { return l->mask_work; }
void    spec_grant_mask_work(spec *s, int64_t work) { s->mask_work = work; }

void lane_guide_keep(spec_lane *l, int n)
{
    if (!l->guide) return;
    if (lane_draft_is_forced(l) && l->tree.n > 1) guide_note(l->guide, l->tree.n - 1, l->n_path - 1);
    int64_t before = guide_work(l->guide);
    drop_rows(l);
    for (int i = 0; i < n; i++) {
        grammar_state next = guide_take(l->guide, l->at, l->out.token[i]);
        guide_drop(l->guide, l->at);
        l->at = next;
    }
    note_work(l, before);
}
