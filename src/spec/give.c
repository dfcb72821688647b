/* Gives the rows of a step to draft tokens, after the drafts of all lanes were made.
 *
 * Before drafting, the policy chooses methods and lengths from the records of the lanes. After it, the drafters'
 * confidences of this round are known, and say much more: on nano's stories they separate the draft tokens that are
 * accepted from the others with an AUC of 0.97, their depth alone with 0.74. With a_i, the probability that draft token
 * i and all before it are accepted, the tokens of all lanes with `auto` get rows in the order of a_i, as many as
 * maximise
 *
 *     sum of a_i - rate * seconds of the step
 *
 * where `rate` is the rate in tokens per second that the policy expects. So a row goes to the likeliest draft token of
 * all lanes while it is worth its time. Chains and trees share the rows: a tree's branches compete with other lanes.
 *
 * Lanes whose request names a method keep all rows, and so do trials and n-grams, about which nothing new is known. */
#include "spec/choice.h"
#include "spec/inside.h"

#include <assert.h>

enum {
    SORT_BINS   = 256,
    WAIT_SMOOTH = 16, /* steps */
    WAIT_AGAIN  = 64, /* steps after which waiting is measured again */
};

static const calibration *lane_calibration(const spec_lane *l, spec_method m)
{
    return &l->s->calibrated[m][l->opt.params.temp > 0];
}

bool lane_shares_rows(const spec_lane *l)
{
    return l->opt.spec.method == SPEC_AUTO && !l->plan.trial && !lane_draft_is_forced(l) &&
           l->plan.method != SPEC_OFF && l->plan.method != SPEC_NGRAM;
}

/* Sets a[i] to the probability that row i of the tree and its ancestors are accepted. a[0] is 1. */
static void row_chances(const spec_lane *l, float *a)
{
    const draft_tree  *t    = &l->tree;
    const calibration *c    = lane_calibration(l, l->plan.method);
    double             rate = SURVIVAL_FIRST;
    a[0]                    = 1;
    for (int i = 1; i < t->n; i++) {
        if (l->n_tail == 0 || i <= l->n_drafted)
            rate = calibration_rate(c, t->depth[i] - 1, (double)t->confidence[i]);
        else
            rate = survival_rate(&l->tail_record, i - l->n_drafted - 1, rate);
        a[i] = a[t->parent[i]] * (float)rate;
    }
}

typedef struct {
    uint16_t lane, row;
} place;

/* The draft tokens that compete. Sorted by chance; of about equal ones parents come first. */
typedef struct {
    float chance[SPEC_MAX_DRAFT_ROWS];
    place at[SPEC_MAX_DRAFT_ROWS];
    int   n;
} contest;

static int bin_of(float chance) { return (int)((1 - chance) * (SORT_BINS - 1)); }

/* first: the lane that comes first among equals. */
static void sort_rows(contest *c, spec_lane *const *lanes, int n_lanes, int first)
{
    int   start[SORT_BINS + 1] = {0};
    float a[1 + DRAFT_MAX];
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; k < n_lanes; k++) {
            int              at = (first + k) % n_lanes;
            const spec_lane *l  = lanes[at];
            if (!lane_shares_rows(l) || l->later) continue;
            row_chances(l, a);
            for (int row = 1; row < l->tree.n; row++) {
                int bin = bin_of(a[row]);
                if (pass == 0)
                    start[bin + 1]++;
                else {
                    c->at[start[bin]]       = (place){(uint16_t)at, (uint16_t)row};
                    c->chance[start[bin]++] = a[row];
                }
            }
        }
        for (int b = 0; pass == 0 && b < SORT_BINS; b++) start[b + 1] += start[b];
        if (pass == 0) c->n = start[SORT_BINS];
        assert(c->n <= SPEC_MAX_DRAFT_ROWS);
    }
}

/* Returns how many of the draft tokens get rows. */
static int worthwhile(const contest *c, const double *steps, double rate)
{
    double tokens = 0, best = 0;
    int    n = 0;
    for (int i = 0; i < c->n; i++) {
        tokens += (double)c->chance[i];
        double worth = tokens - rate * (steps[i + 1] - steps[0]);
        if (worth <= best) continue;
        best = worth;
        n    = i + 1;
    }
    return n;
}

/* Removes from the trees of the lanes the rows after the first n of the contest. */
static void cut_rows(const contest *c, int n, spec_lane *const *lanes, int n_lanes)
{
    uint64_t given[POLICY_MAX_LANES] = {0}; /* bit i: row 1 + i */
    for (int i = 0; i < n; i++) given[c->at[i].lane] |= (uint64_t)1 << (c->at[i].row - 1);
    for (int k = 0; k < n_lanes; k++) {
        bool       kept[1 + DRAFT_MAX];
        spec_lane *l = lanes[k];
        if (!lane_shares_rows(l) || l->later) continue;
        for (int row = 1; row < l->tree.n; row++) kept[row] = given[k] >> (row - 1) & 1;
        tree_keep(&l->tree, kept);
        l->n_drafted = min_int(l->n_drafted, l->tree.n - 1);
        l->n_tail    = l->n_tail ? l->tree.n - 1 - l->n_drafted : 0;
    }
}

/* The expected rate of the step's plans; 0: not known. */
static double expected_rate(spec_lane *const *lanes, int n_lanes)
{
    double rate = 0;
    for (int i = 0; i < n_lanes; i++)
        if (lane_shares_rows(lanes[i]) && lanes[i]->plan.rate > rate) rate = lanes[i]->plan.rate;
    return rate;
}

/* The step without the draft tokens that compete. */
typedef struct {
    double steps[COST_MAX_ROWS + 1]; /* seconds by rows, from `rows` on */
    int    rows, n_lanes;
    double rate; /* expected tokens per second; 0: not known */
    double pass; /* seconds of a pass of the MTP drafter, per lane */
} base_step;

/* n_more: rows that may be added. */
static void base_init(base_step *b, const spec *s, spec_lane *const *lanes, int n_lanes, int n_more)
{
    cost_view v;
    int64_t   text = 0;
    b->rate        = expected_rate(lanes, n_lanes);
    b->rows        = 0;
    if (!(b->rate > 0)) return;
    for (int i = 0; i < n_lanes; i++) {
        bool shares = lane_shares_rows(lanes[i]) && !lanes[i]->later;
        b->rows += lanes[i]->n_chunk + (shares ? 0 : lanes[i]->tree.n - 1);
        text += lanes[i]->n_text;
    }
    cost_view_init(&v, &s->cost, (int32_t)(text / n_lanes));
    b->rows    = max_int(1, min_int(b->rows, COST_MAX_ROWS - n_more)); /* the cost model ends there */
    b->n_lanes = min_int(b->rows, n_lanes);
    b->pass    = v.pass[b->n_lanes] / b->n_lanes;
    choice_row_costs(b->steps, v.step, b->rows - b->n_lanes, b->n_lanes, b->rows + n_more);
}

double row_price(const spec *s, spec_lane *const *lanes, int n_lanes)
{
    base_step b;
    base_init(&b, s, lanes, n_lanes, 1);
    return b.rate > 0 ? b.rate * (b.steps[b.rows + 1] - b.steps[b.rows] + b.pass) : 0;
}

/* The tokens that the first n draft tokens of the contest are worth, less their cost. */
static double worth_of(const contest *c, const base_step *b, int n)
{
    double tokens = 0;
    for (int i = 0; i < n; i++) tokens += (double)c->chance[i];
    return tokens - b->rate * (b->steps[b->rows + n] - b->steps[b->rows]);
}

void give_rows(spec *s, spec_lane *const *lanes, int n_lanes)
{
    contest   c;
    base_step b;
    sort_rows(&c, lanes, n_lanes, (int)(s->cost.n_steps % n_lanes));
    c.n = min_int(c.n, COST_MAX_ROWS - 1);
    base_init(&b, s, lanes, n_lanes, c.n);
    if (c.n == 0 || !(b.rate > 0)) return;
    int n = worthwhile(&c, b.steps + b.rows, b.rate);
    s->wait.gain += (worth_of(&c, &b, n) - worth_of(&c, &b, c.n) - s->wait.gain) / WAIT_SMOOTH;
    s->wait.at = s->cost.n_steps;
    cut_rows(&c, n, lanes, n_lanes);
}

/* --- waiting ---------------------------------------------------------------------------------------
 * A device that runs ops later could begin the step at once after the draft. Reading the draft first leaves it idle for
 * a moment. Both the gain and the moment are measured; while the gain is smaller, they are measured again now and
 * then. Where the draft of one lane is read in any case, the other lanes' are read at the same time. */
bool lane_draft_is_read(const spec_lane *l)
{
    if (l->plan.method == SPEC_OFF || l->plan.method == SPEC_NGRAM || lane_draft_is_forced(l)) return false;
    return l->plan.method == SPEC_TREE || l->counting || l->guide || l->max_tail > 0;
}

bool drafts_wait(const spec *s, spec_lane *const *lanes, int n_lanes)
{
    if (!s->t->o->runs_later) return true;
    for (int i = 0; i < n_lanes; i++)
        if (lane_draft_is_read(lanes[i])) return true;
    return s->wait.gain > expected_rate(lanes, n_lanes) * s->wait.seconds || s->cost.n_steps - s->wait.at >= WAIT_AGAIN;
}

void note_wait(spec *s, double seconds)
{
    if (s->wait.at == s->cost.n_steps) s->wait.seconds += (seconds - s->wait.seconds) / WAIT_SMOOTH;
}

/* --- after the step ------------------------------------------------------------------------------- */
/* Records the tokens of a chain: those with rows up to the first that was wrong, and one without a row if the target's
 * own token after the accepted ones shows whether it was right. */
static void note_chain(const spec_lane *l, calibration *c, int n_right)
{
    const draft_job *j = &l->job;
    for (int d = 0; d < min_int(l->n_made, l->out.n) && d <= n_right; d++)
        calibration_note(c, d, (double)j->confidence[d], j->token[d] == l->out.token[d]);
}

/* Records all children of the accepted rows. */
static void note_tree(const spec_lane *l, calibration *c)
{
    const draft_tree *t = &l->tree;
    for (int i = 1; i < t->n; i++)
        for (int k = 0; k < l->n_path; k++)
            if (t->parent[i] == l->path[k])
                calibration_note(c, t->depth[i] - 1, (double)t->confidence[i], t->token[i] == l->out.token[k]);
}

void lane_note_confidence(spec_lane *l, int n_right)
{
    calibration *c = &l->s->calibrated[l->plan.method][l->opt.params.temp > 0];
    if (!l->job.want_confidence || l->later || l->guide) return;
    if (l->plan.method == SPEC_TREE)
        note_tree(l, c);
    else
        note_chain(l, c, n_right);
}
