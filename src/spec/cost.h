/* spec/cost.h - the cost of steps and drafts in seconds, as measured while serving. The policy (spec/policy.h) compares
 * plans with it. The engine thread is the only caller.
 *
 * The cost of a step depends on its rows, of all lanes together, and on the length of the lanes' texts. A DFlash
 * draft costs by the rows of its pass, an MTP draft by its passes and the lanes in each. Values are moving averages
 * shared by all lanes. Each measurement updates its curve, so that a choice only looks values up.
 *
 * A machine that is busy with other work slows down all steps for a while. If these measurements were stored as they
 * are, older ones would look cheap in comparison. Therefore costs are stored as they would be at pace 1. The pace is
 * the median of the last few steps relative to their expected cost, when that is unusual. Choices compare costs at
 * pace 1; reported costs are multiplied by the pace. */
#ifndef TANDEM_SPEC_COST_H
#define TANDEM_SPEC_COST_H
#include "model/model.h"
#include "spec/method.h"

enum {
    COST_MAX_ROWS = 256, /* rows of decoding steps; larger steps are not measured */
    COST_RECENT   = 5,   /* the pace is the median of this many steps */
    COST_CONTEXTS = 5,   /* average length of the texts: up to 1K, 4K, 16K, 64K tokens, and longer */
};

typedef struct {
    double seconds; /* moving average at pace 1; 0: not measured */
    double last;    /* the last measurement, at pace 1 */
    int    n;       /* number of measurements; of the first three the smallest counts */
    long   at;      /* cost_table.n_steps when it was last measured */
} cost;

typedef struct {
    cost   at[COST_MAX_ROWS + 1];    /* by rows, for MTP by lanes; from 16 on, neighbouring numbers share an entry */
    double curve[COST_MAX_ROWS + 1]; /* [1 ..]: seconds, interpolated and extrapolated; never decreases */
    int    low, high;                /* range of rows that were measured; 0: none */
    int    n_known;                  /* number of points that the curve was made from; 0: none, or all are old */
    bool   drawn;                    /* the curve exists; it is halved whenever it is made again without points */
    long   good_until;               /* n_steps after which the curve must be made again */
} cost_series;

typedef struct {
    cost_series step[COST_CONTEXTS];  /* step of the target, including the picks */
    cost_series block[SPEC_TREE + 1]; /* DFlash, tree: one pass, by rows of all lanes, anchors included */
    cost_series pass;                 /* MTP: one draft token per lane, by lanes */
    cost        ngram;                /* one draft token */
    double      noise;                /* recent deviation of steps from the curve, as a share of it */
    double      slower;               /* the pace is 1 + slower */
    double      recent[COST_RECENT];  /* the last steps, relative to the expected cost; a ring */
    unsigned    n_recent;             /* number of values written into the ring so far */
    int         odd_for;              /* number of steps since the median was last as expected */
    long        n_steps;              /* number of measured steps */
    double      tokens, lost;         /* recent tokens of all lanes; tokens lost by trials (policy_note) */
    bool        whole_drafts;         /* MTP's drafts do not end early: the device runs ops later (plan.c) */
} cost_table;                         /* all zeros: nothing was measured */

/* Records a step without prompt chunks. rows: rows of all lanes; ctx: average length of the lanes' texts in tokens.
 * Ignores steps of more than COST_MAX_ROWS rows. */
void cost_note_step(cost_table *c, int rows, int32_t ctx, double seconds);
/* Records a draft. n: rows of the pass with anchors (DFlash, tree), number of passes (MTP), draft tokens per lane
 * (n-grams). n_lanes: lanes that took part; for MTP, the average per pass. Ignores numbers over COST_MAX_ROWS. */
void cost_note_draft(cost_table *c, spec_method m, int n_lanes, int n, double seconds);

/* All curves for one context length, in seconds at pace 1. Costs that were not measured are assumed. */
typedef struct {
    const double *step;                 /* by rows, from 1 to COST_MAX_ROWS */
    const double *block[SPEC_TREE + 1]; /* DFlash, tree: by rows of the pass, from 1 */
    const double *pass;                 /* MTP: by lanes, from 1 */
    double        ngram;                /* one draft token */
    bool          measured;             /* `step` comes from measurements */
    double        assumed_step[COST_MAX_ROWS + 1], assumed_block[COST_MAX_ROWS + 1], assumed_pass[COST_MAX_ROWS + 1];
} cost_view; /* points into itself and the table: must not be copied, is valid until the table changes */
void cost_view_init(cost_view *v, const cost_table *c, int32_t ctx);

double cost_pace(const cost_table *c); /* how many times slower than usual the machine is now */
/* Returns whether a step of `low` to `high` rows was measured in the last max_age steps, or in the last 16 if it was
 * measured fewer than three times. */
bool cost_step_is_known(const cost_table *c, int low, int high, int32_t ctx, int max_age);
#endif
