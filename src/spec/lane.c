/* A lane's life: a request begins, steps decide tokens, some of them are kept. */
#include "base/clock.h"
#include "base/mem.h"
#include "spec/choice.h"
#include "spec/inside.h"

#include <assert.h>

/* --- lanes --------------------------------------------------------------------------------------*/
bool spec_lane_new(spec *s, spec_lane **out, err *e)
{
    int i = 0;
    *out  = NULL;
    while (i < s->opt.max_lanes && s->lanes[i]) i++;
    if (i == s->opt.max_lanes) return err_set(e, ERR_BUSY, "all %d lanes are in use", s->opt.max_lanes);
    spec_lane *l = mem_try(sizeof *l);
    int32_t   *x = mem_try_n((size_t)s->opt.n_ctx + 1, sizeof *x);
    kv_node  **n = mem_try_n((size_t)s->opt.n_ctx / KV_PAGE + 1, sizeof(kv_node *));
    if (!l || !x || !n) {
        mem_free(l);
        mem_free(x);
        mem_free(n);
        return err_set(e, ERR_UNAVAILABLE, "no memory for the text of a lane");
    }
    l->s           = s;
    l->index       = i;
    l->text        = x;
    l->shared.node = n;
    policy_init(&l->policy, &(policy_limits){0}); /* limits are known when a round begins */
    s->lanes[i] = l;
    *out        = l;
    return true;
}

void spec_lane_free(spec_lane *l)
{
    if (!l) return;
    spec_lane_end(l);
    for (int i = 0; i < DRAFTERS; i++) lane_drop_drafter(l, (drafter_index)i);
    l->s->lanes[l->index] = NULL;
    history_free(l->history);
    mem_free(l->shared.node);
    mem_free(l->text);
    mem_free(l);
}

static bool begin_counting(spec_lane *l, err *e)
{
    l->counting = !penalty_is_off(&l->opt.penalty) || l->opt.min_tokens > 0;
    if (!l->counting) return true;
    if (!l->history && !history_new(&l->history, l->s->t->n_vocab, e)) return false;
    history_clear(l->history);
    history_bias(l->history, l->opt.penalty.bias, l->opt.penalty.n_bias);
    history_ends(l->history, l->opt.end_id, l->opt.n_ends);
    if (penalty_counts(&l->opt.penalty)) history_prompt(l->history, l->text, (size_t)l->n_prompt);
    return true;
}

static void set_options(spec_lane *l, const lane_request *r)
{
    assert(r->opt.n_top <= SPEC_MAX_TOP && (!r->opt.score_prompt || r->opt.n_top >= 0));
    l->opt         = r->opt;
    l->limit       = r->max_new > 0 ? r->max_new : INT32_MAX;
    l->out.n       = 0;
    l->out.problem = NULL;
    l->stats       = (spec_stats){0};
    l->shadow_at   = 0;
    l->n_shadow    = 0;
    l->n_scored    = 0;
}

static void set_text(spec_lane *l, const lane_request *r)
{
    int32_t n_ctx = l->s->opt.n_ctx, n = (int32_t)r->n_prompt;
    memcpy(l->text, r->prompt, r->n_prompt * sizeof *r->prompt);
    l->n_text = l->n_prompt = n;
    l->n_cached             = 0;
    l->n_max                = r->max_new > 0 && r->max_new < n_ctx - n ? n + r->max_new : n_ctx;
}

/* What is known of guesses: of the request's class, nothing when that is new; without one, what the lane's last text showed. */
static void choose_policy(spec_lane *l)
{
    if (!l->classes)
        policy_next_text(&l->policy);
    else if (!policy_classes_seed(l->classes, l->class_key, &l->policy))
        policy_init(&l->policy, &(policy_limits){0});
}

bool spec_lane_begin(spec_lane *l, const lane_request *r, size_t *n_reused, err *e)
{
    if (r->n_prompt < 1 || r->n_prompt > (size_t)l->s->opt.n_ctx)
        return err_set(e, ERR_INPUT, "the prompt has %zu tokens and the context holds %d", r->n_prompt,
                       l->s->opt.n_ctx);
    spec_lane_end(l);
    set_options(l, r);
    set_text(l, r);
    if (!begin_counting(l, e)) return false;
    lane_take_drafters(l);
    if (!lane_take_pages(l, r->salt, e)) return false;
    l->classes   = r->classes;
    l->class_key = r->class_key;
    choose_policy(l);
    lane_guide_begin(l, r);
    l->live         = true;
    l->stats.cached = max_int(l->n_cached - l->n_run_again, 0);
    *n_reused       = (size_t)l->stats.cached;
    return true;
}

void spec_lane_end(spec_lane *l)
{
    if (!l->live) return;
    l->live  = false;
    l->out.n = 0;
    if (l->classes) policy_classes_learn(l->classes, l->class_key, &l->policy);
    lane_guide_end(l);
    lane_give_pages(l);
}

int  spec_lane_pending(const spec_lane *l) { return l->n_text - l->n_cached; }
bool spec_lane_can_draft(const spec_lane *l) { return spec_lane_pending(l) == 1 && l->n_text > l->n_prompt; }

bool              spec_lane_full(const spec_lane *l) { return l->n_text > l->n_max; }
void              spec_lane_limit(spec_lane *l, int n) { l->limit = n; }
const spec_out   *spec_lane_out(const spec_lane *l) { return &l->out; }
const spec_stats *spec_lane_stats(const spec_lane *l) { return &l->stats; }
const int32_t    *spec_lane_text(const spec_lane *l, int32_t *n)
{
    *n = l->n_text;
    return l->text;
}

/* --- a step -------------------------------------------------------------------------------------*/
/* Plans the rows of text, at most `rows`. */
static void plan_chunk(const spec_turn *t, int rows)
{
    spec_lane *l       = t->lane;
    int        pending = spec_lane_pending(l);
    l->n_chunk         = min_int(pending, t->max_rows > 0 ? min_int(rows, t->max_rows) : rows);
    l->plan            = (spec_plan){.method = SPEC_OFF};
    l->first_want      = l->n_chunk == pending ? 0 : -1;
    l->out.n           = 0;
    l->later           = false;
}

/* Adds a row of text that is not the anchor. */
static void add_text_row(spec *s, spec_lane *l, int lane, int32_t pos)
{
    bool scored = l->opt.score_prompt && pos + 1 < l->n_prompt;
    if (scored) s->judged[s->step.n_want] = (judged_row){l, 0, l->text[pos + 1]};
    step_add(&s->step, lane, pos, l->text[pos], scored);
}

/* Rows of text up to the anchor, then the guesses; a tree's rows have slots of their own. */
static void add_rows(spec *s, spec_lane *l)
{
    step             *st   = &s->step;
    const draft_tree *t    = &l->tree;
    int               lane = kv_seq_lane(l->seq), before = l->n_chunk - (l->first_want >= 0);
    bool              chain = tree_is_chain(t);
    int32_t           base  = l->n_text - 1;
    l->first_row            = st->n_rows;
    l->first_scored         = st->n_want;
    for (int i = 0; i < before; i++) add_text_row(s, l, lane, l->n_cached + i);
    l->n_scored = st->n_want - l->first_scored;
    if (l->first_want < 0) return;
    l->first_want = st->n_want;
    int anchor    = st->n_rows;
    for (int i = 0; i < t->n; i++) s->judged[st->n_want + i] = (judged_row){l, i, -1};
    if (l->later && t->n > 1) {
        step_add(st, lane, base, t->token[0], true);
        step_add_given(st, lane, base + 1, lane_guesses(l), t->n - 1);
        return;
    }
    for (int i = 0; i < t->n; i++) {
        if (chain)
            step_add(st, lane, base + i, t->token[i], true);
        else
            step_add_tree(st, lane, base, i, i ? anchor + t->parent[i] : -1, t->token[i], true);
    }
}

static bool grow_pages(spec_lane *l, err *e)
{
    int32_t text = l->n_cached + l->n_chunk;
    if (kv_seq_grow(l->seq, text + l->tree.n - 1, NULL)) return true;
    l->tree.n = 1; /* no room for guesses */
    l->plan   = (spec_plan){.method = SPEC_OFF};
    return kv_seq_grow(l->seq, text, e);
}

static bool run_rows(spec *s, spec_lane *const *lanes, int n_lanes, err *e)
{
    step_clear(&s->step);
    for (int i = 0; i < n_lanes; i++) {
        if (!grow_pages(lanes[i], e)) return false;
        add_rows(s, lanes[i]);
    }
    return s->t->step(s->t, s->kv, &s->step, e) && judge_rows(s, e);
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

/* From the anchor along the target's picks, as far as the guesses go. A guess after which nothing can be picked is left
 * for the next round, which will say so. */
static void walk(const spec *s, spec_lane *l)
{
    l->n_path      = 0;
    l->out.problem = NULL;
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

/* The rows of text that the step ran, from pos on, and n_tree rows of the path, the anchor counted in both. */
static void tell_drafters(spec_lane *l, int32_t pos, int n_tree, int hidden)
{
    int32_t    row[STEP_MAX_ROWS];
    draft_rows r = {.pos = pos, .row = row, .n = l->n_chunk, .hidden = hidden};
    for (int i = 0; i < l->n_chunk; i++) row[i] = l->first_row + i;
    for (int i = 1; i < n_tree; i++) row[r.n++] = l->first_row + l->n_chunk - 1 + l->path[i];
    for (int i = 0; i < DRAFTERS; i++) {
        drafter *d   = l->s->slots[i].d;
        err      why = {0};
        if (l->uses[i] && !d->observe(d, l->draft_lane[i], &r, &why)) lane_drafter_failed(l, (drafter_index)i, &why);
    }
}

static void end_chunk(spec_lane *l)
{
    int32_t pos = l->n_cached;
    l->n_cached += l->n_chunk;
    lane_share_pages(l);
    tell_drafters(l, pos, 0, -1);
}

/* Plans the guesses, at most `rows`, and returns how many they are. */
static int plan_guesses(const spec_turn *t, int rows)
{
    spec_lane *l = t->lane;
    if (!spec_lane_can_draft(l)) return 0;
    l->plan = lane_fit_plan(l, &t->plan, rows);
    lane_guide_plan(l, rows);
    return l->plan.n;
}

/* Every lane gets a row at least, then prompts get rows in the order of the lanes. Guesses get what is left, in equal shares
 * where not all of them fit: the first lanes would be served faster in every step otherwise. */
static void plan_lanes(spec *s, const spec_turn *turns, int n_turns, spec_lane **lanes)
{
    int left = s->t->max_rows, guesses[STEP_MAX_ROWS], all = 0;
    assert(n_turns >= 1 && n_turns <= left);
    for (int i = 0; i < n_turns; i++) {
        spec_lane *l = lanes[i] = turns[i].lane;
        assert(l->s == s && l->live && spec_lane_pending(l) > 0 && !spec_lane_full(l));
        plan_chunk(&turns[i], left - (n_turns - 1 - i));
        left -= l->n_chunk;
    }
    for (int i = 0; i < n_turns; i++) all += guesses[i] = plan_guesses(&turns[i], DRAFT_MAX);
    if (all <= left) return;
    choice_share_rows(guesses, n_turns, left);
    for (int i = 0; i < n_turns; i++)
        if (guesses[i] < lanes[i]->plan.n) plan_guesses(&turns[i], guesses[i]);
}

/* Steps with pieces of prompts say little about those without. */
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

bool spec_step(spec *s, const spec_turn *turns, int n_turns, err *e)
{
    spec_lane *lanes[STEP_MAX_ROWS];
    plan_lanes(s, turns, n_turns, lanes);
    double start = clock_s();
    draft_trees(s, lanes, n_turns);
    if (!run_rows(s, lanes, n_turns, e)) {
        for (int i = 0; i < n_turns; i++) kv_seq_cut(lanes[i]->seq, lanes[i]->n_cached);
        return false;
    }
    double took = clock_s() - start - drafts_done(s, lanes, n_turns);
    for (int i = 0; i < n_turns; i++) {
        spec_lane *l = lanes[i];
        if (l->first_want < 0)
            end_chunk(l);
        else
            walk(s, l);
        l->stats.verify_s += took;
    }
    note_cost(s, lanes, n_turns, took);
    return true;
}

bool spec_step_alone(spec *s, spec_lane *const *lanes, int n_lanes, err *e)
{
    spec_turn turns[STEP_MAX_ROWS];
    for (int i = 0; i < n_lanes; i++) turns[i] = (spec_turn){.lane = lanes[i], .plan = spec_choose_alone(lanes[i])};
    return spec_step(s, turns, n_lanes, e);
}

/* --- what is kept -------------------------------------------------------------------------------*/
/* The accepted rows' K/V to the slots of their positions. */
static void compact(spec_lane *l, int n_keep)
{
    spec        *s = l->s;
    kv_move_item move[DRAFT_MAX];
    int          n = 0, lane = kv_seq_lane(l->seq);
    int32_t      base = l->n_text - 1;
    for (int i = 1; i < n_keep; i++)
        if (l->path[i] != i) move[n++] = (kv_move_item){lane, base + l->path[i], lane, base + i, 0};
    if (n == 0) return;
    kv_pool_flush(s->kv, s->t->q); /* other lanes' pages may have been moved since the step */
    s->t->o->upload(s->t->q, s->moves, move, (size_t)n * sizeof *move);
    for (int i = 0; i < s->t->n_kv_classes; i++)
        s->t->o->kv_move(s->t->q, kv_pool_class(s->kv, i), s->moves, n, (dev){0});
}

static void count_round(spec_lane *l, int n_keep)
{
    spec_stats *st    = &l->stats;
    int         depth = tree_depth(&l->tree), right = min_int(l->n_path - 1, n_keep);
    if (l->tree.n == 1) {
        st->plain++;
        return;
    }
    st->rounds++;
    st->by_method[l->plan.method]++;
    st->drafted += l->tree.n - 1;
    st->accepted += right;
    st->drafted_by[l->plan.method] += l->tree.n - 1;
    st->accepted_by[l->plan.method] += right;
    st->tokens += n_keep;
    for (int i = 0; i < depth; i++) st->tried_at[i]++;
    for (int i = 0; i < right; i++) st->right_at[i]++;
}

/* The guesses that the round judged, whether or not the caller keeps them all. */
static void note_outcome(spec_lane *l)
{
    const spec_out *out = &l->out;
    if (l->opt.spec.method != SPEC_AUTO || l->by_guide) return;
    policy_note(&l->policy, &l->s->cost, &l->plan, tree_depth(&l->tree), l->n_path - 1);
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
    if (n_keep == 0) l->n_chunk--; /* the anchor stays one */
    compact(l, n_keep);
    int32_t pos = l->n_cached;
    l->n_cached = l->n_text - 1 + n_keep;
    kv_seq_cut(l->seq, l->n_cached);
    add_text(l, n_keep);
    lane_guide_keep(l, n_keep);
    lane_share_pages(l);
    tell_drafters(l, pos, n_keep, n_keep ? l->first_want + l->path[n_keep - 1] : -1);
    count_round(l, n_keep);
    note_outcome(l);
    l->out.n = 0;
    l->stats.commit_s += clock_s() - start;
}
