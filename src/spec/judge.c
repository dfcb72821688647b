/* The target's picks: masks, penalties, sampling and log-probabilities of the rows of a step. */
#include "ops/sampling.h"
#include "spec/inside.h"

static sample_params row_params(const spec *s, int row)
{
    sample_params p = s->judged[row].lane->opt.params;
    p.pos           = s->step.pos[s->step.want[row]] + 1;
    if (s->judged[row].scored >= 0) p.temp = 0; /* the pick is not used */
    return p;
}

/* Returns how many of the best logits suffice to pick in every row of the step; 0: a row needs all logits. */
static int best_needed(const spec *s)
{
    int max = 0;
    if (!s->t->head_top) return 0;
    for (int i = 0; i < s->step.n_want; i++) {
        const spec_lane *l = s->judged[i].lane;
        int              n = sampling_needs(&l->opt.params);
        if (n == 0 || l->counting || l->guide || l->opt.n_top >= 0) return 0;
        max = n > max ? n : max;
    }
    return max;
}

static void upload_params(spec *s, int first, int n)
{
    sample_params rows[HEAD_ROWS];
    for (int i = 0; i < n; i++) rows[i] = row_params(s, first + i);
    s->t->o->upload(s->t->q, s->params, rows, (size_t)n * sizeof *rows);
}

/* Returns the maximum n_top of the rows of the step; -1: no row needs log-probabilities. */
static int max_shown(const spec *s)
{
    int max = -1;
    for (int i = 0; i < s->step.n_want; i++)
        if (s->judged[i].lane->opt.n_top > max) max = s->judged[i].lane->opt.n_top;
    return max;
}

/* Returns whether the token picked after the row is one of the first min_tokens of the response. */
static bool is_early(const judged_row *j)
{
    const spec_lane *l = j->lane;
    return l->n_text - l->n_prompt + l->opt.n_continued + l->tree.depth[j->node] < l->opt.min_tokens;
}

/* Collects the changes of the row's logits for its own text: the lane's, and the draft tokens on the path to the row.
 * */
static int row_changes(const judged_row *j, int row, logit_change *out)
{
    spec_lane        *l    = j->lane;
    const draft_tree *t    = &l->tree;
    int               leaf = penalty_counts(&l->opt.penalty) ? j->node : 0; /* biases do not depend on the text */
    for (int r = leaf; r > 0; r = t->parent[r]) history_push(l->history, t->token[r]);
    int n = history_changes(l->history, &l->opt.penalty, row, is_early(j), out);
    for (int r = leaf; r > 0; r = t->parent[r]) history_pop(l->history, t->token[r]);
    return n;
}

/* Collects the changes of as many rows from `from` on as fit, and sets *n_changes. Returns the row after the last. */
static int collect_changes(spec *s, const judged_row *j, int from, int n, int *n_changes)
{
    int row    = from;
    *n_changes = 0;
    for (; row < n; row++) {
        if (!j[row].lane->counting || j[row].scored >= 0) continue;
        if (*n_changes + history_size(j[row].lane->history) + DRAFT_MAX > s->max_changes && row > from) break;
        *n_changes += row_changes(&j[row], row, s->host_changes + *n_changes);
    }
    return row;
}

/* --- grammars -----------------------------------------------------------------------------------*/
/* Uploads the row's mask. Returns false when it has none; its pick is then invalid. */
static bool upload_mask(spec *s, const judged_row *j, int to)
{
    spec_lane      *l     = j->lane;
    size_t          words = sampling_mask_words(s->t->n_vocab), known = guide_mask_words(l->guide);
    err             why  = {0};
    const uint64_t *mask = guide_mask(l->guide, l->row_at[j->node], &why);
    if (!mask && j->node == 0) l->lost = why;
    if (!mask) return false;
    if (known < words) { /* the model has more rows than the tokenizer has tokens */
        memset(s->host_mask, 0, words * sizeof *mask);
        mask = memcpy(s->host_mask, mask, known * sizeof *mask);
    }
    s->t->o->upload(s->t->q, dev_at(s->masks, (size_t)to * words * sizeof *mask), mask, words * sizeof *mask);
    return true;
}

static void mask_piece(spec *s, int first, int n)
{
    int32_t row[HEAD_ROWS];
    int     m = 0;
    for (int i = 0; i < n; i++) {
        const judged_row *j      = &s->judged[first + i];
        bool              masked = j->lane->guide && j->scored < 0;
        s->lost[first + i]       = masked && !upload_mask(s, j, m);
        if (masked && !s->lost[first + i]) row[m++] = i;
    }
    if (m == 0) return;
    s->t->o->upload(s->t->q, s->masked, row, (size_t)m * sizeof *row);
    s->t->o->mask_logits(s->t->q, s->t->logits, s->t->n_vocab, s->masks, s->masked, m);
}

/* Replaces picks after which the grammar could not end within the length limit. */
static void settle_picks(spec *s)
{
    for (int i = 0; i < s->step.n_want; i++) {
        const judged_row *j = &s->judged[i];
        spec_lane        *l = j->lane;
        s->closing[i]       = false;
        if (j->scored >= 0) s->pick[i] = j->scored;
        if (!l->guide || j->scored >= 0) continue;
        int32_t pick = s->pick[i], tokens_left = lane_tokens_left(l) - l->tree.depth[j->node];
        if (s->lost[i])
            s->pick[i] = -1;
        else if (pick >= 0)
            s->pick[i] = lane_guide_settle(l, l->row_at[j->node], pick, tokens_left);
        s->closing[i] = s->pick[i] != pick;
    }
}

static bool any_guided(const spec *s)
{
    for (int i = 0; i < s->step.n_want; i++)
        if (s->judged[i].lane->guide) return true;
    return false;
}

/* Picks rows i to end - 1 of the logits, which are rows first + i and so on of the step. */
static void pick_some(spec *s, int first, int i, int end)
{
    const ops *o      = s->t->o;
    int        V      = s->t->n_vocab;
    dev        picked = dev_at(s->picked, (size_t)i * sizeof(int32_t));
    dev        logits = dev_at_f32(s->t->logits, (size_t)i * (size_t)V);
    bool       greedy = true;
    for (int r = i; r < end; r++) greedy = greedy && row_params(s, first + r).temp <= 0;
    if (greedy)
        o->argmax(s->t->q, picked, logits, end - i, V);
    else
        o->sample(s->t->q, picked, logits, dev_at(s->params, (size_t)i * sizeof(sample_params)), end - i, V);
}

static void pick_piece(spec *s, int first, int n)
{
    const ops *o = s->t->o;
    queue     *q = s->t->q;
    int        V = s->t->n_vocab, m;
    for (int i = 0, end; i < n; i = end) {
        end = collect_changes(s, &s->judged[first], i, n, &m);
        if (m) {
            o->upload(q, s->changes, s->host_changes, (size_t)m * sizeof(logit_change));
            o->change_logits(q, s->t->logits, V, s->changes, m);
        }
        pick_some(s, first, i, end);
        if (m && s->n_shown >= 0) o->restore_logits(q, s->t->logits, V, s->changes, m);
    }
    o->download(q, s->pick + first, s->picked, (size_t)n * sizeof(int32_t));
}

/* Computes log-probabilities from the unchanged logits. All rows of the step have room for n_shown tokens. */
static void logprobs_piece(spec *s, int first, int n)
{
    const ops *o    = s->t->o;
    size_t     each = (size_t)(1 + s->n_shown);
    if (s->n_shown < 0) return;
    o->logprobs(s->t->q, s->logprobs, s->t->logits, s->picked, n, s->t->n_vocab, s->n_shown);
    o->download(s->t->q, s->host_logprobs + (size_t)first * each, s->logprobs,
                (size_t)n * each * sizeof(token_logprob));
}

/* Replaces picks by prompt tokens in the rows that score the prompt. */
static void put_scored(spec *s, int first, int n)
{
    bool any = false;
    for (int i = first; i < first + n; i++) any |= s->judged[i].scored >= 0;
    if (!any) return;
    s->t->o->sync(s->t->q); /* waits for the picks */
    for (int i = first; i < first + n; i++)
        if (s->judged[i].scored >= 0) s->pick[i] = s->judged[i].scored;
    s->t->o->upload(s->t->q, s->picked, s->pick + first, (size_t)n * sizeof *s->pick);
}

static void judge_piece(spec *s, int first, int n, bool guided)
{
    s->t->head(s->t, first, n);
    upload_params(s, first, n);
    if (guided) mask_piece(s, first, n);
    pick_piece(s, first, n);
    if (guided) return;
    put_scored(s, first, n);
    logprobs_piece(s, first, n);
}

/* Computes logits and log-probabilities again: masks and penalties have changed the logits, and picks may have
 * changed. */
static bool redo_logprobs(spec *s, err *e)
{
    for (int first = 0; first < s->step.n_want; first += HEAD_ROWS) {
        int n = min_int(s->step.n_want - first, HEAD_ROWS);
        s->t->head(s->t, first, n);
        s->t->o->upload(s->t->q, s->picked, s->pick + first, (size_t)n * sizeof *s->pick);
        logprobs_piece(s, first, n);
    }
    s->t->o->sync(s->t->q);
    return s->t->o->check(s->t->q, e);
}

static void best_of_piece(spec *s, int first, int n, int n_best)
{
    s->t->head_top(s->t, first, n, n_best);
    s->t->o->download(s->t->q, s->host_best + (size_t)first * (size_t)n_best, s->t->best,
                      (size_t)n * (size_t)n_best * sizeof(token_logit));
}

static void pick_of_best(spec *s, int n_best)
{
    for (int i = 0; i < s->step.n_want; i++) {
        sample_params p = row_params(s, i);
        s->pick[i]      = sampling_pick_best(s->host_best + (size_t)i * (size_t)n_best, n_best, &p);
    }
}

bool judge_rows(spec *s, err *e)
{
    int  n_best = best_needed(s);
    bool guided = any_guided(s);
    s->n_shown  = max_shown(s);
    for (int first = 0; first < s->step.n_want; first += HEAD_ROWS) {
        int n = min_int(s->step.n_want - first, HEAD_ROWS);
        if (n_best)
            best_of_piece(s, first, n, n_best);
        else
            judge_piece(s, first, n, guided);
    }
    if (s->n_later)
        s->t->o->download(s->t->q, s->host_tokens, s->device_tokens,
                          (size_t)s->opt.max_lanes * DRAFT_MAX * sizeof *s->host_tokens);
    s->t->o->sync(s->t->q);
    if (!s->t->o->check(s->t->q, e)) return false;
    if (n_best) pick_of_best(s, n_best);
    if (guided) settle_picks(s);
    return !guided || s->n_shown < 0 || redo_logprobs(s, e);
}
