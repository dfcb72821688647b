/* spec/inside.h - what the files of spec/ share: the insides of spec and spec_lane. */
#ifndef TANDEM_SPEC_INSIDE_H
#define TANDEM_SPEC_INSIDE_H
#include "base/num.h"
#include "gguf/fingerprint.h"
#include "spec/spec.h"

typedef enum { WITH_DFLASH, WITH_MTP, WITH_NGRAM, DRAFTERS } drafter_index;

typedef struct {
    spec_draft_source      src;
    bool                   given;    /* there is such a drafter, open or not */
    bool                   parked;   /* closed until spec_unpark */
    bool                   was_open; /* before it was parked */
    bool                   failed;   /* could not be opened */
    drafter               *d;        /* NULL: not open */
    quant_type             type;     /* these: as it was when last open */
    size_t                 weight_bytes;
    int                    max_draft, trained_ctx;
    char                   fingerprint[FINGERPRINT_MAX];
    const checkpoint_list *files; /* one of spec.file_lists; NULL: never opened */
    char                   problem[512];
} draft_slot;

/* Picking: one row of a step that wants logits. */
typedef struct {
    spec_lane *lane;
    int        node;   /* row of the lane's tree */
    int32_t    scored; /* of a row of the prompt: the token behind it, whose log-probability is wanted; -1: a pick is */
} judged_row;

struct spec {
    target          *t;
    kv_pool         *kv;
    kv_prefix       *tree;  /* NULL: nothing is shared */
    size_t           extra; /* bytes of the pool that are for the drafter's own K/V */
    spec_options     opt;
    draft_slot       slots[DRAFTERS];
    checkpoint_list *file_lists; /* of drafters, linked by next */
    unsigned         slot_changes;
    spec_lane      **lanes; /* [max_lanes], NULL where free */
    cost_table       cost;

    /* of the step at hand */
    step           step;
    judged_row     judged[STEP_MAX_ROWS];
    int32_t        pick[STEP_MAX_ROWS]; /* [n_want] */
    dev            params, picked, changes, logprobs;
    dev            guesses;      /* int32 [max_lanes][DRAFT_MAX]: those that nobody waited for */
    int32_t       *host_guesses; /* the same, after the step */
    int            n_later;      /* lanes that have such */
    logit_change  *host_changes; /* max_changes of them */
    int            max_changes;
    token_logprob *host_logprobs; /* [STEP_MAX_ROWS][1 + n_shown] */
    int            n_shown;       /* -1: none; at most SPEC_MAX_TOP */
    token_logit   *host_best;     /* [STEP_MAX_ROWS][n_best], n_best <= SAMPLE_TOP_MAX */
    dev            masks, masked; /* of a piece: [HEAD_ROWS] masks, and the rows that they are for */
    uint64_t      *host_mask;     /* one */
    int64_t        mask_work;     /* steps left for masks of guesses */
    bool           closing[STEP_MAX_ROWS], lost[STEP_MAX_ROWS]; /* [n_want]: as spec_out.closing; cannot be followed */
};

enum { SHADOW_MAX = 16 };

struct spec_lane {
    spec        *s;
    int          index; /* in s->lanes */
    int32_t     *text;  /* room for n_ctx + 1 */
    int32_t      n_prompt, n_text, n_cached;
    int32_t      n_run_again; /* rows of the prompt that were run although the target's K/V of them was there */
    int32_t      n_max;       /* positions that are reserved for: n_ctx or fewer */
    bool         live;        /* a request is under way */
    kv_lane     *kv;          /* of the request */
    int32_t      branch;      /* where its text leaves the texts in the tree: a state is saved there; 0: nowhere */
    kv_need      need, draft; /* reserved for it: of the target's pages, of drafters' */
    draft_text   shared;      /* its pages in the tree: all that are complete; none without a tree */
    bool         prompt_is_marked;
    int          limit; /* tokens that will still be kept */
    lane_options opt;
    history     *history; /* made when first wanted; in use when `counting` */
    bool         counting;

    guide        *guide;                 /* NULL: the answer is free */
    grammar_state at;                    /* where it stands, held */
    grammar_state row_at[1 + DRAFT_MAX]; /* the same behind each guess of the tree, held from 1 on; [0] is `at` */
    int           n_held;
    err           lost;             /* why the anchor has no mask */
    int32_t       ahead[DRAFT_MAX]; /* what the grammar says will follow */
    int           n_ahead;
    bool          by_guide;  /* the tree is made of these alone */
    int64_t       mask_work; /* steps that its masks took, of the request */

    draft_lane        *draft_lane[DRAFTERS]; /* NULL: has none */
    bool               uses[DRAFTERS];       /* in this request, unless it failed in it */
    policy             policy;
    policy_classes    *classes; /* of the request; NULL: none */
    uint64_t           class_key;
    tandem_spec_counts stats;

    /* of the step at hand */
    spec_plan  plan;
    int        room; /* positions that guesses may take */
    draft_job  job;
    draft_tree tree;
    int32_t    shadow[SHADOW_MAX]; /* what n-grams say, taken or not, to know their worth */
    int        n_shadow;
    int32_t    shadow_at;          /* tokens of the text that they follow; 0: not asked yet */
    bool       later;              /* the tree is a chain whose guesses are still on the device */
    int        first_row, n_chunk; /* rows up to the anchor; the tree's other rows follow */
    int        n_kept_text; /* the last of these that the commit may reject: the anchor at least, if it is there */
    int        first_want;  /* -1: the step only runs a piece of the prompt */
    int        first_scored, n_scored; /* wanted rows of the prompt (judged_row.scored) */
    int        path[1 + DRAFT_MAX];
    int        n_path; /* rows of the tree that were walked, the anchor included */
    spec_out   out;
};

/* pages.c */
/* A pool with `extra` bytes for a drafter's own K/V; no lane is live. */
bool open_pool(spec *s, size_t extra, err *e);
void close_pool(spec *s);
/* Reserves for the request whose text and options are set, and takes over what is there of it. */
bool lane_take_pages(spec_lane *l, uint64_t salt, err *e);
/* After rows became text: complete pages into the tree, what is behind the windows back to the pool. */
void lane_share_pages(spec_lane *l);
void lane_give_pages(spec_lane *l); /* all of them, and the reservation */
/* The drafters' part of the reservation, for those that come or go in the middle of a request. */
bool lane_reserve_drafts(spec_lane *l);
void lane_unreserve_drafts(spec_lane *l);

/* Starts the request's text anew, from the longest prefix that is there: the lane's states were lost in a failed step. */
void lane_restart(spec_lane *l);

/* checkpoint.c: states of recurrent layers; lanes of targets without any pass through */
/* Sets n_kept_text, and ends the planned rows of text where a state is to be saved. */
void lane_plan_states(spec_lane *l, int kept_rows);
/* Commits the rows that the step was sure of, and saves the state after them where one is wanted. */
void lane_commit_sure(spec_lane *l);
/* Gives the lane's saved state to the prefix tree. */
void lane_give_state(spec_lane *l);

/* drafters.c */
drafter_index drafter_of(spec_method m);
/* Opens what the lane's request may use, and gives it a draft lane there; what cannot be opened is said once. */
void lane_take_drafters(spec_lane *l);
void lane_drop_drafter(spec_lane *l, drafter_index k);
/* The lane goes on without this drafter. */
void lane_drafter_failed(spec_lane *l, drafter_index k, const err *why);
/* It goes on without those that have K/V of their own: that would not fit. */
void lane_no_room_for_drafts(spec_lane *l);
void close_drafters(spec *s);

/* plan.c */
/* What is planned for the lane, as far as it can be done with at most so many rows. */
spec_plan lane_fit_plan(spec_lane *l, const spec_plan *wanted, int room_rows);
/* Guesses for all lanes whose plan wants some, into their trees. */
void draft_trees(spec *s, spec_lane *const *lanes, int n_lanes);
dev  lane_guesses(const spec_lane *l);
/* After the step: the guesses that were on the device, and what drafting took, in seconds. */
double drafts_done(spec *s, spec_lane *const *lanes, int n_lanes);

/* guided.c: lanes whose answer is held to a grammar; the others pass through */
void lane_guide_begin(spec_lane *l, const lane_request *r);
void lane_guide_end(spec_lane *l);
int  lane_tokens_left(const spec_lane *l); /* that may still become text, the next one counted */
/* What must follow the anchor is a better plan than `l->plan`, where it is about as long. */
void lane_guide_plan(spec_lane *l, int room_rows);
/* Guesses that the grammar does not allow leave the tree; what must follow a chain is added. */
void    lane_guide_tree(spec_lane *l);
int32_t lane_guide_settle(spec_lane *l, grammar_state at, int32_t pick, int32_t left); /* as guide_settle */
void    lane_guide_keep(spec_lane *l, int n); /* so many of the tokens just decided became text */

/* judge.c */
/* Logits of all rows that want them, and the token picked after each. */
bool judge_rows(spec *s, err *e);
#endif
