/* spec/policy.h - how far to speculate in the next round, from measured costs and the lane's own record.
 *
 * The choice is a pure function: no clock, no randomness, no hidden state. What it maximises is tokens per second,
 *
 *     (1 + sum over d of P(the first d guesses are right)) / (cost of drafting + cost of a step of 1 + n rows)
 *
 * over all methods and lengths, plain decoding (n = 0) included. Costs are moving averages by number of rows, shared by
 * all lanes; survival is the lane's own, per method and depth. A method that does not pay is tried again now and then, at
 * growing distances, so that no choice is for ever; a trial is one round. docs/speculation.md has the reasons. */
#ifndef TANDEM_SPEC_POLICY_H
#define TANDEM_SPEC_POLICY_H
#include "model/drafter.h"

typedef enum { SPEC_OFF, SPEC_DFLASH, SPEC_TREE, SPEC_MTP, SPEC_NGRAM, SPEC_METHODS } spec_method;
extern const char *const spec_method_names[]; /* "auto" after the methods, then NULL */

/* --- costs -------------------------------------------------------------------------------------- */
enum { COST_MAX_ROWS = 1 + DRAFT_MAX };
typedef struct {
    double seconds; /* 0: not measured */
    double last;    /* measurement */
    int    n;       /* measurements, for the first ones to count more */
    long   at;      /* cost_table.n_steps when it was last measured */
} cost;
typedef struct {
    cost step[COST_MAX_ROWS + 1]; /* of a target step with so many rows of one lane, judging included */
    cost block[SPEC_TREE + 1]
              [COST_MAX_ROWS + 1]; /* DFlash, tree: a draft of so many rows, the anchor and the guesses */
    cost guess[SPEC_METHODS];      /* MTP, n-gram: one of them */
    long n_steps;                  /* measured, of any number of rows */
} cost_table;

void cost_note_step(cost_table *c, int rows, double seconds);
void cost_note_draft(cost_table *c, spec_method m, int n_guesses, double seconds);
/* Between and beyond what was measured: interpolated, never falling with the rows. */
double cost_step(const cost_table *c, int rows);
double cost_draft(const cost_table *c, spec_method m, int n_guesses); /* in a row: the depth of a tree */

/* --- a lane's record ---------------------------------------------------------------------------- */
typedef struct {
    double right[DRAFT_MAX], tried[DRAFT_MAX]; /* decayed counts: guess d right, given that those before it were */
    double surprise; /* smoothed, in standard deviations: by how much the last rounds were better than the record */
} survival;
/* n guesses in a row (the depth of a tree) were judged, the first `right` of them were right. */
void survival_note(survival *s, int n, int right);
/* P(the first d guesses are all right), d >= 1. */
double survival_at(const survival *s, int d);

typedef struct {
    spec_method method;
    int         n;     /* guesses; a tree's budget of rows beside the anchor */
    bool        trial; /* chosen to learn, not to win */
    double      rate;  /* tokens per second that are expected; 0: no step was measured yet */
    double      par;   /* of a trial: tokens of this round that would be as good as the best other plan */
} spec_plan;

typedef struct {
    bool there[SPEC_METHODS];     /* methods that the lane may use; plain decoding always */
    int  max_draft[SPEC_METHODS]; /* guesses; a tree's depth */
    int  tree_budget;             /* rows beside the anchor */
} policy_limits;

typedef struct {
    policy_limits limits; /* may change between rounds: say, max_draft of n-grams to the guesses that were found */
    survival      record[SPEC_METHODS];
    double        tree_gain;          /* of the budgets in the tree's record, on average (policy.c) */
    int           wait[SPEC_METHODS]; /* rounds until the method is tried again; plain: if its cost is old */
    int           gap[SPEC_METHODS];  /* the last distance between two trials */
    int lost[SPEC_METHODS]; /* trials that were not worth their time, since it was last chosen for its merit */
} policy;

void policy_init(policy *p, const policy_limits *l);
/* A new text: what the lane knows is a guess about it, and methods that did not pay are tried again before long. */
void policy_next_text(policy *p);
/* room: guesses that may still be verified (context, length limit); a tree's budget keeps to it too. */
spec_plan policy_choose(const policy *p, const cost_table *c, int room);
/* After the round: n_judged guesses in a row were judged, n_right of them were right. No guess at all (n_judged 0) counts
 * as a wrong one. */
void policy_note(policy *p, const spec_plan *plan, int n_judged, int n_right);
/* What a chain would have got that was not verified, but can be compared with the text: n-grams cost nothing to judge. */
void policy_note_idle(policy *p, spec_method m, int n_judged, int n_right);
#endif
