/* spec/inside.h - types and functions shared by the files of spec: the contents of spec and spec_lane. */
#ifndef TANDEM_SPEC_INSIDE_H
#define TANDEM_SPEC_INSIDE_H
#include "base/num.h"
#include "gguf/fingerprint.h"
#include "spec/confidence.h"
#include "spec/image.h"
#include "spec/spec.h"

typedef struct {
    spec_draft_source      src;
    bool                   given;    /* a drafter was added, open or not */
    bool                   parked;   /* closed until spec_unpark */
    bool                   was_open; /* open when it was parked */
    bool                   failed;   /* could not be opened */
    drafter               *d;        /* NULL: not open */
    quant_type             type;     /* this and the following: values when it was last open */
    size_t                 weight_bytes;
    int                    max_draft, trained_ctx;
    char                   fingerprint[FINGERPRINT_MAX], stamp[FINGERPRINT_STAMP_MAX];
    const checkpoint_list *files; /* one of spec.file_lists; NULL: never opened */
    char                   problem[512];
    size_t                 kv_bytes; /* size of its own K/V for all lanes */
} draft_slot;

/* One row of a step whose logits are computed. */
typedef struct {
    spec_lane *lane;
    int        node;   /* its row in the lane's tree */
    int32_t    scored; /* prompt row: the next prompt token, whose log-probability is computed; -1: a token is picked */
} judged_row;

/* Whether to wait for drafts before the step, on a device that runs ops later (give.c). */
typedef struct {
    double gain;    /* moving average: tokens of a step that giving rows by confidence gains */
    double seconds; /* moving average: how long the device is idle meanwhile */
    long   at;      /* step in which it was last measured */
} draft_wait;

/* The maximum of draft tokens in a step; the cost model and grammars have room for them. */
enum { SPEC_MAX_DRAFT_ROWS = 256 };

struct spec {
    target          *t;
    kv_pool         *kv;
    kv_prefix       *tree;  /* NULL: no prefix cache */
    size_t           extra; /* bytes of the pool that were added for the drafters' own K/V */
    spec_options     opt;
    draft_slot       slots[DRAFTER_KINDS];
    checkpoint_list *file_lists; /* lists of the drafters' files, linked by next */
    unsigned         slot_changes;
    bool             warm;  /* spec_warm was called */
    spec_lane      **lanes; /* [max_lanes], NULL where free */
    cost_table       cost;
    calibration      calibrated[SPEC_METHODS][2]; /* by method, and for greedy [0] and sampled [1] requests */
    draft_wait       wait;
    double           drafted_at; /* clock_s() when the drafts of the step were made or enqueued */

    /* the current step */
    step        step;
    judged_row *judged; /* [max_rows], as `pick`, `closing` and `lost`; step.n_want are used */
    int32_t    *pick;
    int32_t    *row;       /* [max_rows + DRAFT_MAX]: rows for the drafters */
    draft_soft *soft_rows; /* [max_rows]: those of them with soft tokens */
    struct {               /* [max_lanes] each */
        spec_lane **lane, **drafting;
        draft_job **job;
        int        *n_draft;
        spec_part  *part;
    } by_lane;
    dev      params, picked, changes, logprobs;
    dev      device_tokens; /* int32 [max_lanes][DRAFT_MAX]: draft tokens that stay on the device (draft_job.later) */
    int32_t *host_tokens;   /* copy on the host, valid after the step */
    int      n_later;       /* number of lanes with such draft tokens */
    logit_change  *host_changes; /* [max_changes] */
    int            max_changes;
    token_logprob *host_logprobs;  /* [max_rows][1 + n_shown] */
    int            n_shown;        /* maximum n_top of the step; -1: no log-probabilities */
    token_logit   *host_best;      /* [max_rows][n_best], n_best <= SAMPLE_TOP_MAX */
    dev            masks, masked;  /* [HEAD_ROWS] masks, and the indices of their rows */
    uint64_t      *host_mask;      /* one mask */
    int64_t        mask_work;      /* see spec_grant_mask_work: the steps that are left */
    bool          *closing, *lost; /* see spec_out.closing; the row has no mask */
};

enum { SHADOW_MAX = 16 };

struct spec_lane {
    spec        *s;
    int          index; /* index in s->lanes */
    int32_t     *text;  /* [n_ctx + 1] */
    int32_t      n_prompt, n_text, n_cached;
    int32_t      n_run_again; /* prompt rows that were run although the target's K/V of them was cached */
    int32_t      n_max;       /* reserved positions: at most n_ctx */
    bool         live;        /* a request is running */
    kv_lane     *kv;          /* pages and states of the request */
    int32_t      branch; /* length at which its text leaves the texts in the tree: a state is saved there; 0: none */
    kv_need      need;   /* reservation for the target */
    kv_need      draft[DRAFTER_KINDS]; /* and for each drafter's own K/V */
    draft_text   shared;               /* its complete pages in the prefix tree; none without a tree */
    bool         prompt_is_marked;
    int          limit; /* maximum tokens that will still be kept */
    lane_options opt;
    history     *history; /* created when first needed; used when `counting` */
    bool         counting;

    const media_prompt *media; /* as in lane_request */
    const float *const *soft;

    guide        *guide;                 /* NULL: no grammar */
    grammar_state at;                    /* grammar state after the text; the lane holds a reference */
    grammar_state row_at[1 + DRAFT_MAX]; /* state after each row of the tree, with references from 1 on; [0] is `at` */
    int           n_row_states;
    err           lost;              /* why the anchor has no mask */
    int32_t       forced[DRAFT_MAX]; /* tokens that the grammar forces after the anchor */
    int           n_forced;
    int64_t       mask_work; /* steps that the masks of the request took */

    draft_lane        *draft_lane[DRAFTER_KINDS]; /* NULL: none */
    bool               uses[DRAFTER_KINDS];       /* the request uses it, and it has not failed in the request */
    policy             policy;
    policy_classes    *classes; /* request classes; NULL: none */
    uint64_t           class_key;
    tandem_spec_counts stats;

    /* the current step */
    spec_plan  plan;
    int        room; /* maximum draft tokens in a row */
    draft_job  job;
    draft_tree tree;
    int        max_tail;           /* maximum tokens of the tail (tail.c) */
    int        n_made;             /* draft tokens in a row that were made, or left out for lack of confidence */
    int        n_grown;            /* rows of the tree without anchor, before some were removed */
    int        n_drafted;          /* rows of the tree without anchor and tail */
    int        n_tail;             /* rows of the tail; the last of the tree, unless a grammar removed some */
    survival   tail_record;        /* acceptance of tails, after drafts that were accepted completely */
    int32_t    shadow[SHADOW_MAX]; /* draft tokens of n-grams, used or not, to measure their acceptance */
    int        n_shadow;
    int32_t    shadow_at;          /* length of the text that they follow; 0: not drafted yet */
    bool       later;              /* the tree is a chain whose tokens are still on the device */
    int        first_row, n_chunk; /* rows of text up to the anchor; the tree's other rows follow */
    int        n_kept_text; /* number of the last rows of text that are kept rows (kv/lane.h); includes the anchor */
    int        first_want;  /* -1: the step only runs a chunk of the prompt */
    int        first_scored, n_scored; /* prompt rows with log-probabilities (judged_row.scored) */
    int        path[1 + DRAFT_MAX];
    int        n_path; /* length of the accepted path, including the anchor */
    spec_out   out;
};

/* Returns the maximum of kept rows of a step. */
static inline int max_kept_rows(const target *t) { return t->max_kept_rows > 0 ? t->max_kept_rows : t->max_rows; }

/* pages.c */
/* Replaces the pool and the prefix tree by new ones, with `extra` bytes for the drafters' own K/V. Requires that no
 * request is running. On failure there is no pool. */
bool open_pool(spec *s, size_t extra, err *e);
void close_pool(spec *s);
/* Opens the pool if it was lost: when a larger one for a drafter and the old one could not be allocated. */
bool need_pool(spec *s, err *e);
/* Reserves memory for the request, whose text and options are set, and takes over its cached prefix. Fails with
 * ERR_BUSY or ERR_CONTEXT, as spec_lane_begin. */
bool lane_take_pages(spec_lane *l, const lane_request *r, err *e);
/* After a commit: adds complete pages to the prefix tree, releases pages that left their window. */
void lane_share_pages(spec_lane *l);
void lane_give_pages(spec_lane *l); /* releases all pages, states and reservations */
/* Reserve and unreserve for a drafter that is opened or closed during a request. lane_reserve_draft returns false, and
 * reserves nothing, when there is no room. */
bool lane_reserve_draft(spec_lane *l, drafter_kind k);
void lane_unreserve_draft(spec_lane *l, drafter_kind k);

/* Starts the request's text anew, from its longest cached prefix: the lane's states were lost in a step that failed or
 * decided no token. Runs no step: other lanes may still read the rows of that step. */
void lane_restart(spec_lane *l);

/* image.c: adds images to the prefix cache, and returns the length of the hit that w then finds */
int32_t import_images(spec *s, const kv_wanted *w, const pack *const *images, int n_images, size_t max_bytes,
                      bool *done);

/* checkpoint.c: saves states of recurrent layers; does nothing for targets without any */
/* Sets n_kept_text, and ends the planned chunk where a state is to be saved. */
void lane_plan_states(spec_lane *l, int kept_rows);
/* If the state after the sure rows is to be saved: commits them and saves it. */
void lane_commit_sure(spec_lane *l);
/* Moves the lane's saved state into the prefix tree. */
void lane_give_state(spec_lane *l);

bool is_requested(int method, drafter_kind k); /* returns whether requests with this method use the drafter */
/* Opens the drafters that the request may use, and creates the draft lanes. A drafter that cannot be opened is logged
 * once. */
void lane_take_drafters(spec_lane *l);
/* Moves the K/V of the open drafters to the pool, or out of their pool if it is NULL. Their lanes are made again when
 * requests begin. */
bool move_drafters(spec *s, kv_pool *to, err *e);
void lane_drop_drafter(spec_lane *l, drafter_kind k); /* frees the lane's draft_lane, if there is one */
/* Excludes the drafter from this lane's request and logs why. */
void lane_drafter_failed(spec_lane *l, drafter_kind k, const err *why);
/* Excludes the drafters with K/V of their own from this lane's request, because there is no room for it. */
void lane_no_room_for_draft(spec_lane *l, drafter_kind k); /* ends the use of the drafter, with a warning */
void close_drafters(spec *s);

void warm_again(spec *s); /* warm.c: repeats spec_warm if it was called: keys of recordings have changed */

/* plan.c */
/* Returns the plan, shortened to what the lane can do with at most room_rows draft tokens. */
spec_plan lane_fit_plan(spec_lane *l, const spec_plan *wanted, int room_rows);
/* Drafts for all lanes whose plan asks for it, and sets the trees of all lanes; without draft tokens a tree is the
 * anchor alone. */
void draft_trees(spec *s, spec_lane *const *lanes, int n_lanes);
dev  lane_device_tokens(const spec_lane *l); /* where its draft tokens are on the device */
/* After the step: reads the draft tokens that stayed on the device, records the costs of drafts, calls on_round, and
 * returns the seconds that drafting took. */
double drafts_done(spec *s, spec_lane *const *lanes, int n_lanes);

/* tail.c */
/* Returns how many tokens of the text may follow the plan's draft, in a step with room for room_rows draft tokens. */
int lane_tail_room(const spec_lane *l, int room_rows);
/* Adds the tail to a tree that is a chain of the draft. */
void lane_add_tail(spec_lane *l);
/* The drafter's tokens in a row: how many were made, how many of them got rows, and how many were accepted. */
typedef struct {
    int made, given, right;
} draft_outcome;
draft_outcome lane_judged(spec_lane *l); /* also records the tail */

/* give.c */
/* Returns whether the draft tokens of the lane compete for rows. */
bool lane_shares_rows(const spec_lane *l);
/* Returns whether the lane's draft, whose plan is made, is read before the step in any case: its tokens decide about
 * other tokens of the draft. */
bool lane_draft_is_read(const spec_lane *l);
/* Returns whether the drafts of these lanes, whose plans are made, are read before the step. */
bool drafts_wait(const spec *s, spec_lane *const *lanes, int n_lanes);
/* Returns the cost in tokens of one more row of the step and one more pass of the MTP drafter for one lane; 0: not
 * known. */
double row_price(const spec *s, spec_lane *const *lanes, int n_lanes);
/* Removes the draft tokens that get no row from the trees of the lanes. */
void give_rows(spec *s, spec_lane *const *lanes, int n_lanes);
/* Records that the step was enqueued `seconds` after the drafts were read. */
void note_wait(spec *s, double seconds);
/* Records how right the confidences of the round were; n_right: accepted draft tokens. */
void lane_note_confidence(spec_lane *l, int n_right);

/* Returns whether the tree consists of tokens that the grammar forces. */
static inline bool lane_draft_is_forced(const spec_lane *l) { return l->plan.method == SPEC_GRAMMAR; }

/* guided.c: lanes with a grammar; does nothing for the others */
void lane_guide_begin(spec_lane *l, const lane_request *r);
void lane_guide_end(spec_lane *l);
int  lane_tokens_left(const spec_lane *l); /* maximum tokens that may still be added to the text */
/* Replaces l->plan by the tokens that the grammar forces, if they are at least as many as planned, or at least 4. */
void lane_guide_plan(spec_lane *l, int room_rows);
/* Removes draft tokens that the grammar does not allow or whose masks cost too much, and extends a chain by forced
 * tokens. */
void    lane_guide_tree(spec_lane *l);
int32_t lane_guide_settle(spec_lane *l, grammar_state at, int32_t pick, int32_t left); /* as guide_settle */
void    lane_guide_keep(spec_lane *l, int n); /* the first n decided tokens were added to the text */

/* cost.c: makes all curves again, after a test has written into the table */
void cost_refresh(cost_table *c);

/* judge.c */
/* Computes the logits of all rows that need them, and picks a token after each: sets s->pick, and s->closing and
 * s->lost if a lane has a grammar. Fails when the device does. */
bool judge_rows(spec *s, err *e);
#endif
