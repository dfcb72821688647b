/* spec/policy.h - chooses how many tokens each lane drafts in the next step, and with which method.
 *
 * The choice is a pure function of measured costs and of the lanes' acceptance records: no clock, no randomness, no
 * hidden state. It maximises tokens per second,
 *
 *     sum over lanes of (1 + sum over d of P(the first d draft tokens are accepted))
 *     ------------------------------------------------------------------------------
 *     cost of the drafts + cost of one step of all rows: 1 + n per lane
 *
 * over all methods and lengths, including plain decoding (n = 0). Costs are shared by all lanes (cost.h). Acceptance
 * is recorded per lane, method and depth. A method that does not pay is tried again in single rounds, at growing
 * intervals, so that every choice can be revised. docs/speculation.md has the reasons.
 *
 * spec records rounds (policy_note); the scheduler chooses plans (policy_choose_all). No function allocates, except
 * policy_classes_new. The engine thread is the only caller. */
#ifndef TANDEM_SPEC_POLICY_H
#define TANDEM_SPEC_POLICY_H
#include "spec/cost.h"
#include "spec/survival.h"

typedef struct {
    spec_method method;
    int         n;     /* draft tokens; for a tree, rows without the anchor */
    bool        trial; /* chosen to measure the method, not because it is expected to be best */
    double      rate; /* expected tokens per second of all lanes at pace 1 (spec/cost.h); 0: no step was measured yet */
    double      par;  /* for a trial: tokens of this round that would equal the best other plan */
    double      step_s; /* for a trial: expected seconds of drafts and step of all lanes, at pace 1 */
} spec_plan;

typedef struct {
    bool there[SPEC_METHODS];     /* methods that the lane may use; plain decoding is always allowed */
    int  max_draft[SPEC_METHODS]; /* draft tokens in a row; for a tree, its depth */
    int  tree_budget;             /* rows without the anchor */
} policy_limits;

typedef struct {
    policy_limits limits; /* may change between rounds: n-grams are limited to the tokens that they found */
    survival      record[SPEC_METHODS];
    double        tree_gain;          /* average gain of the budgets in the tree's record (policy.c) */
    double        tree_cut;           /* average share of a tree's rows that were not given (give.c) */
    int           wait[SPEC_METHODS]; /* rounds until the next trial of the method; plain: if its cost is old */
    int           gap[SPEC_METHODS];  /* interval between trials in rounds; costly trials wait longer */
    int           lost[SPEC_METHODS]; /* failed trials since the method was last chosen as the best */
} policy;

/* Starts with an empty record. */
void policy_init(policy *p, const policy_limits *l);
/* Starts a new text: reduces the weight of the record, and shortens the waits for trials. */
void policy_next_text(policy *p);
/* Starts a new text with the record of another lane, as policy_next_text leaves it. Keeps the limits of p. */
void policy_seed(policy *p, const policy *from);

/* A lane that decodes in this step. */
typedef struct {
    const policy    *p;
    int              room;    /* maximum draft tokens in a row (context, length limit), and rows of a tree */
    int32_t          ctx;     /* length of its text in tokens */
    unsigned         without; /* bit m: the lane may not use method m in this step */
    const spec_plan *fixed;   /* not NULL: the plan is given and only adds to the costs */
} policy_lane;

/* Expectations for the step and for the same step without draft tokens, in tokens of all lanes and in seconds. The cost
 * of prompt chunks is not included. With several lanes the step is that of the best plans, even if a trial is due. */
typedef struct {
    double tokens, draft_s, step_s;
    double plain_tokens, plain_s;
} policy_forecast;

enum { POLICY_MAX_LANES = COST_MAX_ROWS };
/* Sets out[i] to a plan for lanes[i]. fixed_rows is the number of prompt rows in the same step, max_rows the limit of
 * the step: n_lanes + fixed_rows <= max_rows <= COST_MAX_ROWS. forecast may be NULL. If a trial is due, some plans are
 * trials. Otherwise one lane gets its best plan. For several lanes it is a search: lanes change their plans in turn,
 * from several starts, until none can improve the result alone or a limit is reached. */
void policy_choose_all(const policy_lane *lanes, int n_lanes, const cost_table *c, int fixed_rows, int max_rows,
                       spec_plan *out, policy_forecast *forecast);
/* The best plan of a method, for a lane among others that have their plans: for people who ask why. */
enum { POLICY_SHOWN = 8 };
typedef struct {
    int    n;                      /* draft tokens of the method's best plan */
    double tokens;                 /* expected tokens of the lane's round */
    double rate;                   /* expected tokens per second of all lanes; 0: the method is not there */
    int    n_survival;             /* number of values; 0 for trees */
    double survival[POLICY_SHOWN]; /* [d]: probability that the first d + 1 draft tokens are accepted */
} policy_option;
typedef struct {
    int           rows;                 /* rows of the step without draft tokens of the lane */
    double        row_s;                /* seconds that one more row takes */
    policy_option option[SPEC_METHODS]; /* all 0: no step was measured yet */
} policy_options;
/* Compares the methods of lanes[at]. All lanes have a plan in `fixed`; `without` of lanes[at] is respected. Other
 * arguments as for policy_choose_all. */
void policy_compare(const policy_lane *lanes, int n_lanes, int at, const cost_table *c, int fixed_rows, int max_rows,
                    policy_options *out);
/* Returns the plan of a lane that is alone in the step: its best plan, or a trial that is due. */
spec_plan policy_choose(const policy *p, const cost_table *c, int room, int32_t ctx);

/* Records a round with this plan: n_made draft tokens in a row were made, the first n_given got rows and the first
 * n_right were accepted. If the drafter of the plan drafted nothing (n_made 0), that counts as one rejected token. The
 * cost of trials is added up in the table, for all lanes. */
void policy_note(policy *p, cost_table *c, const spec_plan *plan, int n_made, int n_given, int n_right);
/* Records how many rows of a tree were given, of `n` that it had. */
void policy_note_tree(policy *p, int n, int n_given);
/* Records a chain that was not verified but compared with the text: n-grams are free to judge. Ignores SPEC_TREE. */
void policy_note_idle(policy *p, spec_method m, int n_judged, int n_right);

/* --- records by request class ------------------------------------------------------ */
/* The records of up to max_classes classes by key; the least recently used one is replaced. */
typedef struct policy_classes policy_classes;
policy_classes               *policy_classes_new(int max_classes);    /* never NULL; max_classes: at least 1 */
void                          policy_classes_free(policy_classes *s); /* accepts NULL */
/* Starts p with the record of the class. Returns false, and leaves p unchanged, when the class is unknown. */
bool policy_classes_seed(policy_classes *s, uint64_t key, policy *p);
/* Combines p with the record of the class, when a request ends. Adds the class if it is unknown. */
void policy_classes_learn(policy_classes *s, uint64_t key, const policy *p);
#endif
