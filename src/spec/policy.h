/* spec/policy.h - how far each lane speculates in the next step, from measured costs and the lanes' own records.
 *
 * The choice is a pure function: no clock, no randomness, no hidden state. What it maximises is tokens per second,
 *
 *     sum over lanes of (1 + sum over d of P(the first d guesses are right))
 *     -------------------------------------------------------------------------
 *     cost of the drafts + cost of one step of all rows: 1 + n a lane
 *
 * over all methods and lengths, plain decoding (n = 0) included. Costs are shared by all lanes (cost.h); survival is the
 * lane's own, per method and depth. A method that does not pay is tried again now and then, at growing distances, so that
 * no choice is for ever; a trial is one round. docs/speculation.md has the reasons. */
#ifndef TANDEM_SPEC_POLICY_H
#define TANDEM_SPEC_POLICY_H
#include "spec/cost.h"
#include "spec/survival.h"

typedef struct {
    spec_method method;
    int         n;     /* guesses; a tree's budget of rows beside the anchor */
    bool        trial; /* chosen to learn, not to win */
    double      rate;  /* tokens per second at pace 1 that are expected, of all lanes; 0: no step was measured yet */
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
/* A new text of a kind that others had before: what they learnt, as policy_next_text leaves it. The limits stay. */
void policy_seed(policy *p, const policy *from);

/* A lane that decodes in this step. */
typedef struct {
    const policy *p;
    int      room;    /* guesses that may still be verified (context, length limit); a tree's budget keeps to it too */
    int32_t  ctx;     /* tokens of its text */
    unsigned without; /* methods that it may not use now: bit m */
    const spec_plan *fixed; /* not NULL: settled elsewhere; it only counts in the costs */
} policy_lane;

/* What is expected of the step, and of the same step without any guess; less what pieces of prompts add to both. */
typedef struct {
    double tokens, draft_s, step_s;
    double plain_tokens, plain_s;
} policy_forecast;

enum { POLICY_MAX_LANES = STEP_MAX_ROWS };
/* fixed_rows: of prompts, in the same step. max_rows: of the step in all; n_lanes + fixed_rows fit. forecast may be NULL.
 * One lane: the best of its plans. Several: plans of which no lane has a better one given the others', from several
 * starts the best. */
void policy_choose_all(const policy_lane *lanes, int n_lanes, const cost_table *c, int fixed_rows, int max_rows,
                       spec_plan *out, policy_forecast *forecast);
/* One lane alone. */
spec_plan policy_choose(const policy *p, const cost_table *c, int room, int32_t ctx);

/* After the round: n_judged guesses in a row were judged, n_right of them were right. No guess at all (n_judged 0) counts
 * as a wrong one. What a trial cost is kept in the table, for all lanes together. */
void policy_note(policy *p, cost_table *c, const spec_plan *plan, int n_judged, int n_right);
/* What a chain would have got that was not verified, but can be compared with the text: n-grams cost nothing to judge. */
void policy_note_idle(policy *p, spec_method m, int n_judged, int n_right);

/* --- what requests of a kind have in common ------------------------------------------------------ */
/* A bounded number of classes by key; the one that was not used for longest makes room. Thread: one at a time. */
typedef struct policy_classes policy_classes;
policy_classes               *policy_classes_new(int max_classes);
void                          policy_classes_free(policy_classes *s); /* NULL is fine */
/* A request begins: false, and p as it was, when nothing is known of its class. */
bool policy_classes_seed(policy_classes *s, uint64_t key, policy *p);
/* A request ends. */
void policy_classes_learn(policy_classes *s, uint64_t key, const policy *p);
#endif
