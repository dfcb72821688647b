/* spec/cost.h - what steps and drafts cost, as measured while serving.
 *
 * A step costs by its rows, of all lanes together, and by how long the lanes' texts are; a draft of DFlash by the rows of
 * its pass, one of MTP by its passes, each for so many lanes. Numbers are moving averages, shared by all lanes. Every
 * note makes the curve that it changes anew, so that a choice only looks numbers up.
 *
 * A machine that is busy with something else makes all of it slower, and for a while. Were that taken for the cost of the
 * steps of that while, whatever was measured before would look cheap beside them. So there is a pace, the median of the last
 * few steps where that is unusual, and costs are kept as they would be at pace 1: a choice compares these, and what is
 * reported is multiplied by the pace. */
#ifndef TANDEM_SPEC_COST_H
#define TANDEM_SPEC_COST_H
#include "model/model.h"
#include "spec/method.h"

enum {
    COST_MAX_ROWS = STEP_MAX_ROWS,
    COST_RECENT   = 5,
    COST_CONTEXTS = 5, /* texts of up to 1K, 4K, 16K, 64K tokens on average, and longer ones */
};

typedef struct {
    double seconds; /* 0: not measured */
    double last;    /* measurement */
    int    n;       /* measurements, for the first ones to count more */
    long   at;      /* cost_table.n_steps when it was last measured */
} cost;

typedef struct {
    cost   at[COST_MAX_ROWS + 1];    /* by rows (of MTP: lanes) */
    double curve[COST_MAX_ROWS + 1]; /* between and beyond what was measured; never falls */
    int    low, high;                /* rows that were ever measured lie between; 0: none was */
    int    n_known;                  /* 0: nothing is, or all of it is old */
    bool   drawn;                    /* the curve is there: what is old counts half, and half of that later */
    long   good_until;               /* n_steps at which this will change */
} cost_series;

typedef struct {
    cost_series step[COST_CONTEXTS];  /* of a target step, judging included */
    cost_series block[SPEC_TREE + 1]; /* DFlash, tree: a pass of so many rows, anchors and guesses of all lanes */
    cost_series pass;                 /* MTP: one guess for each of so many lanes */
    cost        ngram;                /* one guess */
    double      noise;                /* by how much steps differ from the curve, as a share of it, of late */
    double      slower;               /* the pace is 1 + slower */
    double      recent[COST_RECENT];  /* the last steps, in times of what was expected of them */
    unsigned    n_recent;
    int         odd_for;      /* steps, that they have not been as expected */
    long        n_steps;      /* measured, of any number of rows */
    double      tokens, lost; /* made of late; of these, what trials cost (policy_note) */
} cost_table;                 /* a zeroed one knows nothing */

/* rows: of all lanes; steps with pieces of prompts are not to be noted. ctx: tokens of a lane's text, on average. */
void cost_note_step(cost_table *c, int rows, int32_t ctx, double seconds);
/* n: rows of the pass (DFlash, tree; anchors included), passes (MTP: the longest draft), guesses of each lane (n-grams).
 * n_lanes that took part: of MTP, in a pass on average. */
void cost_note_draft(cost_table *c, spec_method m, int n_lanes, int n, double seconds);
/* After numbers were written into the table by hand. */
void cost_refresh(cost_table *c);

/* All curves at one context, in seconds at pace 1. What was not measured is assumed. */
typedef struct {
    const double *step;                 /* by rows */
    const double *block[SPEC_TREE + 1]; /* by rows of the pass */
    const double *pass;                 /* by lanes */
    double        ngram;                /* a guess */
    bool          measured;             /* a step was */
    double        assumed_step[COST_MAX_ROWS + 1], assumed_block[COST_MAX_ROWS + 1], assumed_pass[COST_MAX_ROWS + 1];
} cost_view; /* points into itself and the table: not to be copied */
void cost_view_init(cost_view *v, const cost_table *c, int32_t ctx);

double cost_pace(const cost_table *c);
/* In seconds, as they pass now. */
double cost_step(const cost_table *c, int rows, int32_t ctx);
double cost_draft(const cost_table *c, spec_method m, int n_guesses); /* one lane's; in a row: the depth of a tree */
/* Whether a step of `low` to `high` rows was measured in the last max_age steps. */
bool cost_step_is_known(const cost_table *c, int low, int high, int32_t ctx, int max_age);
#endif
