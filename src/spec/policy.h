/* spec/policy.h - how far to speculate in the next round, from measured costs and the lane's own record.
 *
 * The choice is a pure function: no clock, no randomness, no hidden state. What it maximises is tokens per second,
 *
 *     (1 + sum over d of P(the first d guesses are right)) / (cost of drafting + cost of a step of 1 + n rows)
 *
 * over all methods and lengths, plain decoding (n = 0) included. Costs are moving averages by number of rows, shared by
 * all lanes; survival is the lane's own, per method and depth. A method that does not pay is tried again now and then, at
 * growing distances, so that no choice is for ever; a trial is one round. */
#ifndef TANDEM_SPEC_POLICY_H
#define TANDEM_SPEC_POLICY_H
#include "model/drafter.h"

typedef enum { SPEC_OFF, SPEC_DFLASH, SPEC_TREE, SPEC_MTP, SPEC_NGRAM, SPEC_METHODS } spec_method;
const char *spec_method_name(spec_method m);

/* --- costs -------------------------------------------------------------------------------------- */
enum { COST_MAX_ROWS = 1 + DRAFT_MAX };
typedef struct {
    double step_s[COST_MAX_ROWS +
                  1]; /* of a target step with so many rows of one lane, judging included; 0: not measured */
    double draft_s[SPEC_METHODS];      /* DFlash, tree: one draft; MTP, n-gram: one guess; 0: not measured */
    int    n_steps[COST_MAX_ROWS + 1]; /* measurements, for the first ones to count more */
    int    n_drafts[SPEC_METHODS];
} cost_table;

void cost_note_step(cost_table *c, int rows, double seconds);
void cost_note_draft(cost_table *c, spec_method m, int n_guesses, double seconds);
/* Between and beyond what was measured: interpolated, never falling with the rows. */
double cost_step(const cost_table *c, int rows);
double cost_draft(const cost_table *c, spec_method m, int n_guesses);

/* --- a lane's record ---------------------------------------------------------------------------- */
typedef struct {
    double right[DRAFT_MAX], tried[DRAFT_MAX]; /* decayed counts: guess d right, given that those before it were */
} survival;
/* n guesses in a row (the depth of a tree) were judged, the first `right` of them were right. */
void survival_note(survival *s, int n, int right);
/* P(the first d guesses are all right), d >= 1. */
double survival_at(const survival *s, int d);

typedef struct {
    spec_method method;
    int         n;     /* guesses; a tree's budget of rows beside the anchor */
    bool        trial; /* chosen to learn, not to win */
    double      rate;  /* tokens per second that are expected; 0: not known */
} spec_plan;

typedef struct {
    bool there[SPEC_METHODS];     /* methods that the lane may use */
    int  max_draft[SPEC_METHODS]; /* guesses; a tree's depth */
    int  tree_budget;             /* rows beside the anchor */
} policy_limits;

typedef struct {
    policy_limits limits;
    survival      record[SPEC_METHODS];
    int           wait[SPEC_METHODS]; /* rounds until the method is tried again */
    int           gap[SPEC_METHODS];  /* the last distance between two trials */
} policy;

void policy_init(policy *p, const policy_limits *l);
/* room: guesses that may still be verified (context, length limit). */
spec_plan policy_choose(const policy *p, const cost_table *c, int room);
/* After the round: n_judged guesses in a row were judged, n_right of them were right. */
void policy_note(policy *p, const spec_plan *plan, int n_judged, int n_right);
#endif
