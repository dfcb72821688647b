/* One step of the target for many lanes: plan, draft, verify, accept, commit. */
#include "base/clock.h"
#include "spec/choice.h"
#include "spec/inside.h"

#include <assert.h>
#include <math.h>

/* --- a step -------------------------------------------------------------------------------------*/
/* Returns how many of n rows of text can run: none of a span whose soft tokens are missing, and no part of a span whose
 * rows see each other. */
static int media_chunk(const spec_lane *l, int n)
{
    int missing = spec_lane_next_span(l);
    if (missing >= 0) n = min_int(n, media_prompt_span(l->media, missing)->first - l->n_cached);
    if (l->s->t->sees_ahead) n = media_prompt_chunk(l->media, l->n_cached, n);
    assert(n > 0); /* spec_lane_min_rows */
    return n;
}

/* Plans the rows of text: at most `rows`, of which at most `kept` are kept rows (kv/lane.h). */
static void plan_chunk(const spec_part *t, int rows, int kept)
{
    spec_lane *l       = t->lane;
    int        pending = spec_lane_pending(l);
    l->n_chunk         = media_chunk(l, min_int(pending, t->max_rows > 0 ? min_int(rows, t->max_rows) : rows));
    l->plan            = (spec_plan){.method = SPEC_OFF};
    l->max_tail        = 0;
    l->first_want      = l->n_chunk == pending ? 0 : -1;
    l->out.n           = 0;
    l->later           = false;
    lane_plan_states(l, kept);
}

/* Adds a row of text that is not the anchor. */
static void add_text_row(spec *s, spec_lane *l, int lane, int32_t pos)
{
    bool scored = l->opt.score_prompt && pos + 1 < l->n_prompt;
    if (scored) s->judged[s->step.n_want] = (judged_row){l, 0, l->text[pos + 1]};
    step_add(&s->step, lane, pos, max_int(l->text[pos], 0), scored);
}

/* Sets up the rows of pictures among n rows of text from l->first_row on, which have the positions from n_cached on. */
static void add_pictures(spec *s, const spec_lane *l, int n)
{
    size_t H = (size_t)s->t->n_embd;
    for (int i = 0; i < media_prompt_spans(l->media); i++) {
        const media_span *x    = media_prompt_span(l->media, i);
        int32_t           last = x->first + x->n - 1, from = max_int(x->first, l->n_cached);
        int               rows = min_int(last + 1, l->n_cached + n) - from, first = l->first_row + from - l->n_cached;
        if (rows <= 0) continue;
        step_embed(&s->step, first, rows, l->soft[i] + (size_t)(from - x->first) * H);
        for (int r = first; s->t->sees_ahead && r < first + rows; r++) step_see_ahead(&s->step, r, last);
    }
}

/* Sets the section positions of the lane's rows. */
static void place_rows(spec *s, const spec_lane *l)
{
    step *st = &s->step;
    if (!s->t->sections || !l->media) return;
    for (int r = l->first_row; r < st->n_rows; r++)
        media_prompt_place(l->media, s->t->media->image.cell, st->pos[r], st->section + ROPE_SECTIONS * r);
}

/* Adds the rows of text up to the anchor, then the draft tokens. The rows of a tree have slots of their own. */
static void add_rows(spec *s, spec_lane *l)
{
    step             *st   = &s->step;
    const draft_tree *t    = &l->tree;
    int               lane = kv_lane_index(l->kv), before = l->n_chunk - (l->first_want >= 0);
    bool              chain = tree_is_chain(t);
    int32_t           base  = l->n_text - 1;
    l->first_row            = st->n_rows;
    l->first_scored         = st->n_want;
    for (int i = 0; i < before; i++) add_text_row(s, l, lane, l->n_cached + i);
    add_pictures(s, l, before);
    l->n_scored = st->n_want - l->first_scored;
    if (l->first_want < 0) return;
    l->first_want = st->n_want;
    int anchor    = st->n_rows;
    for (int i = 0; i < t->n; i++) s->judged[st->n_want + i] = (judged_row){l, i, -1};
    if (l->later && t->n > 1) {
        step_add(st, lane, base, t->token[0], true);
        step_add_given(st, lane, base + 1, lane_device_tokens(l), t->n - 1);
    } else {
        for (int i = 0; i < t->n; i++) {
            if (chain)
                step_add(st, lane, base + i, t->token[i], true);
            else
                step_add_tree(st, lane, base, i, i ? anchor + t->parent[i] : -1, t->token[i], true);
        }
    }
    if (s->t->n_states) step_keep(st, l->n_kept_text - 1 + t->n, kv_lane_kept(l->kv));
}

static bool grow_lane(spec_lane *l, err *e)
{
    int n_sure = l->n_chunk - l->n_kept_text;
    if (kv_lane_grow(l->kv, n_sure, l->n_kept_text + l->tree.n - 1, NULL)) return true;
    l->tree.n = 1; /* no room for draft tokens */
    l->plan   = (spec_plan){.method = SPEC_OFF};
    return kv_lane_grow(l->kv, n_sure, l->n_kept_text, e);
}

/* Runs the rows of all lanes. Sets *ran when the target may have run them. */
static bool run_rows(spec *s, spec_lane *const *lanes, int n_lanes, bool *ran, err *e)
{
    step_clear(&s->step);
    kv_step_begin(s->kv);
    for (int i = 0; i < n_lanes; i++) {
        if (!grow_lane(lanes[i], e)) return false;
        add_rows(s, lanes[i]);
        place_rows(s, lanes[i]);
    }
    *ran = true;
    if (!s->t->step(s->t, s->kv, &s->step, e)) return false;
    note_wait(s, clock_s() - s->drafted_at);
    return judge_rows(s, e);
}

static void put_out(const spec *s, spec_lane *l, int want)
{
    spec_out *out        = &l->out;
    out->token[out->n]   = s->pick[want];
    out->closing[out->n] = l->guide && s->closing[want];
    if (l->opt.n_top >= 0)
        memcpy(out->logprob[out->n], s->host_logprobs + (size_t)want * (size_t)(1 + s->n_shown),
               (size_t)(1 + l->opt.n_top) * sizeof(token_logprob));
    out->n++;
}

static void set_problem(spec_lane *l, err_code code, const char *why)
{
    l->out.problem      = why;
    l->out.problem_code = code;
}

/* Follows the target's picks from the anchor as far as the draft tokens go. A draft token after which no token can be
 * picked is not accepted: the next round reports the problem. */
static void accept_path(const spec *s, spec_lane *l)
{
    l->n_path      = 0;
    l->out.problem = NULL;
    l->out.n_draft = l->tree.n - 1;
    l->out.method  = l->out.n_draft ? l->plan.method : SPEC_OFF;
    if (l->guide && s->lost[l->first_want])
        set_problem(l, l->lost.code, l->lost.text);
    else if (s->pick[l->first_want] < 0)
        set_problem(l, ERR_FORMAT, "no token can be picked: all are banned, or the weights are damaged");
    for (int row = 0; row >= 0 && s->pick[l->first_want + row] >= 0;) {
        int want             = l->first_want + row;
        l->path[l->n_path++] = row;
        put_out(s, l, want);
        row = tree_child(&l->tree, row, s->pick[want]);
    }
}

/* Removes the rows of the step. If that costs the lane its states, its text starts again. */
static void roll_back(spec_lane *l, bool ran)
{
    if (kv_lane_rollback(l->kv, ran) < l->n_cached) lane_restart(l);
}

/* Lists the committed rows of pictures, in a chunk from pos on. Returns the number of entries. */
static int soft_rows(const spec_lane *l, int32_t pos)
{
    size_t H = (size_t)l->s->t->n_embd;
    int    n = 0;
    for (int i = 0; i < media_prompt_spans(l->media); i++) {
        const media_span *x    = media_prompt_span(l->media, i);
        int32_t           from = max_int(x->first, pos), end = min_int(x->first + x->n, pos + l->n_chunk);
        if (from < end)
            l->s->soft_rows[n++] = (draft_soft){from - pos, end - from, l->soft[i] + (size_t)(from - x->first) * H};
    }
    return n;
}

/* Shows the drafters the committed rows: the rows of text from pos on, and n_tree rows of the accepted path. The
 * anchor is the last of the text and the first of the path. */
static void show_drafters(spec_lane *l, int32_t pos, int n_tree, int hidden)
{
    int32_t   *row = l->s->row;
    draft_rows r   = {.pos = pos, .row = row, .token = l->text + pos, .n = l->n_chunk, .hidden = hidden};
    r.n_soft       = soft_rows(l, pos);
    r.soft         = l->s->soft_rows;
    for (int i = 0; i < l->n_chunk; i++) row[i] = l->first_row + i;
    for (int i = 1; i < n_tree; i++) row[r.n++] = l->first_row + l->n_chunk - 1 + l->path[i];
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        drafter *d   = l->s->slots[i].d;
        err      why = {0};
        if (l->uses[i] && !d->observe(d, l->draft_lane[i], &r, &why)) lane_drafter_failed(l, (drafter_kind)i, &why);
    }
}

static void end_chunk(spec_lane *l)
{
    int32_t pos = l->n_cached;
    lane_commit_sure(l);
    kv_lane_commit(l->kv, NULL, 0);
    l->n_cached = kv_lane_len(l->kv);
    lane_share_pages(l);
    show_drafters(l, pos, 0, -1);
}

/* Plans up to `rows` draft tokens and returns their number. */
static int plan_draft(const spec_part *t, int rows)
{
    spec_lane *l = t->lane;
    if (!spec_lane_can_draft(l)) return 0;
    l->plan = lane_fit_plan(l, &t->plan, rows);
    lane_guide_plan(l, rows);
    l->max_tail = lane_tail_room(l, rows);
    return l->plan.n + l->max_tail;
}

/* Divides the rows of the step. Every lane gets at least one row, then prompts get rows in the order of the lanes.
 * Draft tokens get the remaining rows, in equal shares if they do not all fit: otherwise the first lanes would be
 * faster in every step. */
static void plan_lanes(spec *s, const spec_part *parts, int n_parts, spec_lane **lanes)
{
    int  rows_left = s->t->max_rows, kept = max_kept_rows(s->t);
    int *n_draft = s->by_lane.n_draft, all = 0;
    assert(n_parts >= 1 && n_parts <= rows_left && n_parts <= kept && n_parts <= s->opt.max_lanes);
    for (int i = 0; i < n_parts; i++) {
        spec_lane *l = lanes[i] = parts[i].lane;
        assert(l->s == s && l->live && spec_lane_pending(l) > 0 && !spec_lane_full(l));
        plan_chunk(&parts[i], rows_left - (n_parts - 1 - i), kept - (n_parts - 1 - i));
        rows_left -= l->n_chunk;
        kept -= l->n_kept_text;
    }
    rows_left = min_int(rows_left, SPEC_MAX_DRAFT_ROWS);
    if (s->t->n_states) rows_left = min_int(rows_left, kept);
    for (int i = 0; i < n_parts; i++) all += n_draft[i] = plan_draft(&parts[i], DRAFT_MAX);
    if (all <= rows_left) return;
    choice_share_rows(n_draft, n_parts, rows_left);
    for (int i = 0; i < n_parts; i++)
        if (n_draft[i] < lanes[i]->plan.n + lanes[i]->max_tail) plan_draft(&parts[i], n_draft[i]);
}

/* Records the cost of a step, unless it has prompt chunks: they say little about steps without. */
static void note_cost(spec *s, spec_lane *const *lanes, int n_lanes, double seconds)
{
    int     rows = 0;
    int64_t text = 0;
    for (int i = 0; i < n_lanes; i++) {
        if (lanes[i]->n_chunk > 1) return;
        rows += lanes[i]->tree.n;
        text += lanes[i]->n_text;
    }
    cost_note_step(&s->cost, rows, (int32_t)(text / n_lanes), seconds);
}

/* Charges trials what the step really took: the costs of plans that are hardly used are not known well. One slow step
 * may have another reason, so at most twice the expected time counts. */
static void charge_trials(spec *s, spec_lane *const *lanes, int n_lanes, double seconds)
{
    int n = 0;
    for (int i = 0; i < n_lanes; i++) {
        if (lanes[i]->n_chunk > 1) return;
        n += lanes[i]->plan.trial;
    }
    for (int i = 0; i < n_lanes; i++) {
        spec_plan *p = &lanes[i]->plan;
        if (p->trial) p->par += p->rate * (fmin(seconds / cost_pace(&s->cost), 2 * p->step_s) - p->step_s) / n;
    }
}

spec_scores spec_lane_scores(const spec_lane *l)
{
    const spec *s      = l->s;
    int         stride = 1 + s->n_shown;
    if (!l->n_scored) return (spec_scores){0};
    return (spec_scores){.n      = l->n_scored,
                         .stride = stride,
                         .first  = s->step.pos[s->step.want[l->first_scored]] + 1,
                         .item   = s->host_logprobs + (size_t)l->first_scored * (size_t)stride};
}

bool spec_step(spec *s, const spec_part *parts, int n_parts, err *e)
{
    spec_lane **lanes = s->by_lane.lane;
    plan_lanes(s, parts, n_parts, lanes);
    double start = clock_s();
    draft_trees(s, lanes, n_parts);
    bool ran = false;
    if (!run_rows(s, lanes, n_parts, &ran, e)) {
        for (int i = 0; i < n_parts; i++) roll_back(lanes[i], ran);
        return false;
    }
    double all = clock_s() - start, took = all - drafts_done(s, lanes, n_parts);
    for (int i = 0; i < n_parts; i++) {
        spec_lane *l = lanes[i];
        if (l->first_want < 0)
            end_chunk(l);
        else
            accept_path(s, l);
        if (l->out.problem) roll_back(l, true);
        l->stats.verify_s += took;
    }
    charge_trials(s, lanes, n_parts, all);
    note_cost(s, lanes, n_parts, took);
    return true;
}

bool spec_step_alone(spec *s, spec_lane *const *lanes, int n_lanes, err *e)
{
    spec_part *parts = s->by_lane.part;
    for (int i = 0; i < n_lanes; i++) parts[i] = (spec_part){.lane = lanes[i], .plan = spec_choose_alone(lanes[i])};
    return spec_step(s, parts, n_lanes, e);
}

/* --- commit -------------------------------------------------------------------------------*/
/* Commits the rows of text before the anchor and the first n_keep rows of the accepted path. */
static void commit_rows(spec_lane *l, int n_keep)
{
    int path[KV_PAGE + 1 + DRAFT_MAX], n = 0, before = l->n_kept_text - 1;
    lane_commit_sure(l);
    while (n < before) {
        path[n] = n;
        n++;
    }
    for (int i = 0; i < n_keep; i++) path[n++] = before + l->path[i];
    kv_lane_commit(l->kv, path, n);
    l->n_cached = kv_lane_len(l->kv);
}

static void count_round(spec_lane *l, int n_keep)
{
    tandem_spec_counts *st    = &l->stats;
    int                 depth = tree_depth(&l->tree), right = min_int(l->n_path - 1, n_keep);
    if (l->tree.n == 1) {
        st->plain_rounds++;
        return;
    }
    st->rounds++;
    st->rounds_by_method[l->plan.method]++;
    st->drafted += l->tree.n - 1;
    st->accepted += right;
    int tail = l->n_tail ? max_int(l->tree.n - 1 - l->n_drafted, 0) : 0; /* drafted by n-grams */
    int late = l->n_tail ? max_int(right - l->n_drafted, 0) : 0;
    st->drafted_by_method[l->plan.method] += l->tree.n - 1 - tail;
    st->accepted_by_method[l->plan.method] += right - late;
    st->drafted_by_method[SPEC_NGRAM] += tail;
    st->accepted_by_method[SPEC_NGRAM] += late;
    st->tokens += n_keep;
    for (int i = 0; i < depth; i++) st->tried_at[i]++;
    for (int i = 0; i < right; i++) st->right_at[i]++;
}

/* Records the acceptance of the round, including accepted tokens that the caller did not keep. */
static void note_outcome(spec_lane *l)
{
    const spec_out *out = &l->out;
    draft_outcome   o   = lane_judged(l);
    if (l->opt.spec.method != SPEC_AUTO || lane_draft_is_forced(l)) return;
    policy_note(&l->policy, &l->s->cost, &l->plan, o.made, o.given, o.right);
    lane_note_confidence(l, o.right);
    if (l->plan.method == SPEC_TREE && lane_shares_rows(l)) policy_note_tree(&l->policy, l->n_grown, l->tree.n - 1);
    if (l->n_shadow == 0 || l->plan.method == SPEC_NGRAM) return;
    int right = 0, judged = min_int(l->n_shadow, out->n);
    while (right < judged && l->shadow[right] == out->token[right]) right++;
    policy_note_idle(&l->policy, SPEC_NGRAM, right < judged ? l->n_shadow : judged, right);
}

static void add_text(spec_lane *l, int n)
{
    bool counts = penalty_counts(&l->opt.penalty);
    for (int i = 0; i < n; i++) {
        l->text[l->n_text++] = l->out.token[i];
        if (counts) history_push(l->history, l->out.token[i]);
    }
}

void spec_lane_keep(spec_lane *l, int n_keep)
{
    double start = clock_s();
    if (l->out.n == 0) return;
    assert(n_keep >= 0 && n_keep <= l->out.n && l->n_text + n_keep <= l->n_max + 1);
    int32_t pos = l->n_cached;
    commit_rows(l, n_keep);
    if (n_keep == 0) l->n_chunk--; /* the anchor is not part of the text yet */
    add_text(l, n_keep);
    lane_guide_keep(l, n_keep);
    lane_share_pages(l);
    show_drafters(l, pos, n_keep, n_keep ? l->first_want + l->path[n_keep - 1] : -1);
    count_round(l, n_keep);
    note_outcome(l);
    l->out.n = 0;
    l->stats.commit_s += clock_s() - start;
}
