/* spec/spec.h - draft, verify, accept, cut: the loop that all decoding goes through.
 *
 * A lane is one conversation: its text, and the K/V of all of it but the last token, the anchor. A round drafts guesses
 * that may follow the anchor, runs anchor and guesses through the target as one step, and walks from the anchor to the
 * guess that equals the token which the target picks there, as long as there is one:
 *
 *      text      ... w x A            K/V of ... w x
 *      step          A -> b -> c      guesses b, c (and perhaps siblings)
 *      picks         b    c'          the target picks b after A and c' after b: b was right, c was not
 *      text      ... w x A b c'       K/V of ... w x A b; c' is the new anchor
 *
 * Every token is the target's own pick at its place, made from numbers that do not depend on the guesses (promises 1 and
 * 2), so the text is that of plain decoding. A round without guesses is plain decoding.
 *
 * The caller looks at the new tokens one by one and says how many it keeps (a stop token, a length limit); the rest is
 * forgotten, and the next round starts from the last token kept.
 *
 * A drafter that cannot be opened or fails is said once; the lane goes on without it from its last committed token.
 * Thread: one at a time. */
#ifndef TANDEM_SPEC_SPEC_H
#define TANDEM_SPEC_SPEC_H
#include "grammar/guide.h"
#include "kv/lane.h"
#include "spec/counts.h"
#include "spec/policy.h"
#include "spec/tree.h"

enum {
    SPEC_AUTO    = SPEC_METHODS,
    SPEC_MAX_TOP = 20
}; /* a way to choose the method; log-probabilities shown per token */

/* How a lane speculates. Zero numbers: the default. */
typedef struct {
    int   method;    /* spec_method or SPEC_AUTO */
    int   draft_max; /* guesses in a row: all of the block for DFlash, 3 for MTP (auto: 7), 8 for n-grams (auto: 16) */
    int   tree_budget; /* rows of a tree beside the anchor: 22 */
    float tree_temp;   /* flattens (above 1) or sharpens the drafter's candidates: 1 */
    bool  no_chain_seed;
    float draft_noise; /* share of the target's temperature that guesses are picked at; 0: the likeliest */
} spec_settings;

/* What decides a lane's text, and how it is made. */
typedef struct {
    sample_params  params; /* pos is not looked at */
    penalty_params penalty;
    int            n_top;        /* log-probabilities of so many tokens beside the picked one; -1: none at all */
    bool           score_prompt; /* the log-probabilities of the prompt's tokens too: all of it is run, n_top >= 0 */
    int32_t        min_tokens;   /* of the answer, before one of the next can be picked */
    const int32_t *end_id;       /* [n_ends]; must live as long as the request */
    int            n_ends;
    spec_settings  spec;
} lane_options;

/* --- one per target ----------------------------------------------------------------------------- */
/* A round's guesses, as they went to the target; for tests. */
typedef struct {
    int            lane;   /* index */
    int32_t        n_text; /* tokens that they follow, */
    const int32_t *text;   /* and these */
    spec_method    method;
    int            n_want; /* of the plan: guesses, or a tree's rows */
    const int32_t *token;  /* [n] */
    const int     *parent; /* [n] row of the tree, the anchor is 0 */
    int            n;
} spec_round;

typedef struct {
    int         n_ctx; /* positions of a lane */
    int         max_lanes;
    cache_types kv_type;
    size_t      kv_bytes;                             /* of all pages; 0: what max_lanes lanes of n_ctx need */
    double      kv_cap;                               /* share of the pages that reservations may take; 0: all */
    bool        no_prefix;                            /* nothing is kept between requests */
    int32_t     save_every;                           /* of a prompt, positions between saved states; 0: 4096 */
    void (*on_round)(void *ctx, const spec_round *r); /* NULL: nobody looks */
    void *on_round_ctx;
} spec_options;

typedef struct spec      spec;
typedef struct spec_lane spec_lane;

/* Bytes of K/V that spec_new will take. */
bool              spec_kv_bytes(const target *t, const spec_options *o, size_t *out);
bool              spec_new(spec **out, target *t, const spec_options *o, err *e);
void              spec_free(spec *s); /* NULL is fine; lanes are gone */
const cost_table *spec_costs(const spec *s);
size_t            spec_kv_pinned(const spec *s);      /* bytes of pages that lanes hold: what cannot be evicted */
size_t            spec_kv_bytes_total(const spec *s); /* of all pages; 0: adding a drafter has cost them all */
size_t            spec_kv_reserved(const spec *s);    /* for what was admitted */
kv_prefix_stats   spec_prefix_stats(const spec *s);   /* all 0 where nothing is kept */
void              spec_forget(spec *s);               /* what ended requests have left is not found any more */

typedef struct {
    const char       *path;
    const char       *name;  /* in messages; NULL: the path */
    const char       *shown; /* in place of the path in reports; NULL: the path */
    str               image; /* a GGUF file in memory, in place of the path */
    const checkpoint *files; /* the drafter's files, borrowed during the call; NULL: opened there */
    drafter_options   opt;
    bool              lazy;        /* opened when a lane first wants it */
    bool              fingerprint; /* computed when the file is opened, for drafter_view */
    spec_method       method;      /* SPEC_DFLASH or SPEC_MTP: a file of another kind is refused; SPEC_OFF: either */
    bool              keep;        /* where it cannot be opened: as a failed one, that spec_unpark_one tries again */
    /* Not NULL: what lanes draft with in place of the drafter that was opened, which is the new one's to close. */
    drafter *(*wrap)(void *ctx, drafter *d);
    void *wrap_ctx;
} spec_draft_source;
/* Adds a DFlash drafter or an assistant, one of each; path, name and image must live as long as s. False when the file cannot be
 * used. */
bool spec_add_drafter(spec *s, const spec_draft_source *src, err *e);
/* Sets *out to SPEC_DFLASH or SPEC_MTP, the method of src->files, which must be open. */
bool spec_drafter_method(const spec_draft_source *src, spec_method *out, err *e);
bool spec_has_drafter(const spec *s, spec_method m);
int spec_trained_ctx(const spec *s); /* positions that the DFlash drafter was trained on; 0: not known, or never open */
const char *spec_drafter_problem(const spec *s, spec_method m); /* why it is not used; NULL: nothing is wrong */
/* Gives the drafters' memory back until spec_unpark, which opens again what was open; not between a step and its keep.
 * Lanes go on plainly meanwhile. */
void spec_park(spec *s);
bool spec_unpark(spec *s, err *e);
/* The same of the one that makes m's guesses, SPEC_DFLASH or SPEC_MTP. Unparking one that could not be opened tries again; what
 * there is nothing to do for is fine. ERR_NOT_FOUND: there is none. */
bool spec_park_one(spec *s, spec_method m, err *e);
bool spec_unpark_one(spec *s, spec_method m, err *e);

typedef enum { DRAFTER_OPEN, DRAFTER_LAZY, DRAFTER_PARKED, DRAFTER_FAILED } drafter_state;
typedef struct {
    const char            *name, *path, *shown;
    const char            *fingerprint; /* of the file as it was last opened; "": not known */
    const checkpoint_list *files;       /* as long as the spec; NULL: it was never opened */
    drafter_state          state;
    quant_type             type;         /* as drafter_options.quantise says, else as in the file */
    size_t                 weight_bytes; /* these three: 0 where it was never open */
    int                    max_draft, trained_ctx;
    const char            *problem; /* "": none */
} drafter_view;
bool spec_drafter_view(const spec *s, spec_method m, drafter_view *out); /* false: there is none */
/* Grows whenever a view may have changed. */
unsigned spec_drafter_changes(const spec *s);

/* --- lanes -------------------------------------------------------------------------------------- */
bool spec_lane_new(spec *s, spec_lane **out, err *e); /* ERR_BUSY when all lanes are taken */
void spec_lane_free(spec_lane *l);                    /* NULL is fine */

typedef struct {
    lane_options   opt; /* opt.penalty.bias must live as long as the request */
    const int32_t *prompt;
    size_t         n_prompt;
    int32_t        max_new; /* tokens at most; 0: as many as the context holds */
    uint64_t       salt;    /* of the tenant: prefixes are shared under the same salt only */
    /* Not NULL: what requests of its class have shown of drafts is known to it, and it adds to that when it ends. */
    policy_classes *classes;
    uint64_t        class_key;
    /* Not NULL: the answer is held to it. It must live until the request has ended. */
    guide       *guide;
    guide_begins begins;
} lane_request;
/* A new request (the last one is ended where it was not). All that it can need is reserved (promise 5); what is there of the
 * prompt's K/V is taken over, *n_reused says how much. The last prompt token is always run. ERR_CONTEXT: the
 * prompt is longer than the context, or the request needs more K/V memory than there is; ERR_BUSY: it does not fit now. */
bool spec_lane_begin(spec_lane *l, const lane_request *r, size_t *n_reused, err *e);
/* The request's pages and its reservation go back. Its text and its counts can still be asked for. */
void spec_lane_end(spec_lane *l);

/* Tokens that a step decided, in order; logprob[i][0] is of the token itself. */
typedef struct {
    int           n;       /* 0: a part of the prompt was run, nothing was decided */
    const char   *problem; /* why none can be: the lane is at its end; NULL: nothing is wrong */
    err_code      problem_code;
    int32_t       token[1 + DRAFT_MAX];
    bool          closing[1 + DRAFT_MAX]; /* not what was picked: the grammar's end was in sight of the length limit */
    token_logprob logprob[1 + DRAFT_MAX][1 + SPEC_MAX_TOP];
} spec_out;

/* Rows of text that were not run yet; 1: only the anchor. */
int spec_lane_pending(const spec_lane *l);
/* The next step can be a round with guesses: drafters guess behind the model's own words. */
bool spec_lane_can_draft(const spec_lane *l);
/* What a plan for the lane's next round is made from. */
typedef struct {
    const policy *p;      /* with the limits of this round */
    int           method; /* that the request asks for: spec_method or SPEC_AUTO */
    int           room;   /* guesses in a row that may still be kept */
    int32_t       n_ctx;  /* tokens of its text */
    int32_t       n_prompt;
} policy_facts;
void spec_lane_facts(spec_lane *l, policy_facts *out);
/* The plan of a lane that has the steps for itself. */
spec_plan spec_choose_alone(spec_lane *l);

/* A lane's share of a step. */
typedef struct {
    spec_lane *lane;
    int        max_rows; /* of the prompt; 0: as many as there is room for */
    spec_plan  plan;     /* where it can draft; cut to what the lane and the step have room for */
} spec_turn;
/* Works on the mask that the lane's next pick needs for about *work steps of its grammar's machine, and takes from *work what it
 * used. False: it is not done, and the lane is to sit out the step. A lane without a grammar needs none. */
bool    spec_lane_prepare(spec_lane *l, int64_t *work);
bool    spec_lane_is_guided(const spec_lane *l);     /* a grammar holds its answer */
int64_t spec_lane_mask_work(const spec_lane *l);     /* steps of the machine, of the request */
void    spec_grant_mask_work(spec *s, int64_t work); /* for masks of guesses in the next step; otherwise no limit */
/* One step of the target for all these lanes: of each a piece of the prompt, or a round. */
bool spec_step(spec *s, const spec_turn *turns, int n_turns, err *e);
/* The same with the plan that each would have alone. */
bool            spec_step_alone(spec *s, spec_lane *const *lanes, int n_lanes, err *e);
const spec_out *spec_lane_out(const spec_lane *l);
/* Log-probabilities of tokens of the prompt that the step has found (score_prompt), until the next step: of the tokens from
 * `first` on, item[i * stride] is of token first + i itself, 1 + n_top items of each are good. */
typedef struct {
    int                  n, stride;
    int32_t              first;
    const token_logprob *item;
} spec_scores;
spec_scores spec_lane_scores(const spec_lane *l);
/* How many of the tokens just decided become text; before the next step, when there are any. */
void spec_lane_keep(spec_lane *l, int n_keep);

bool           spec_lane_full(const spec_lane *l);   /* no position is left for the anchor */
void           spec_lane_limit(spec_lane *l, int n); /* tokens that will still be kept: no more are guessed */
const int32_t *spec_lane_text(const spec_lane *l, int32_t *n);
const tandem_spec_counts *spec_lane_stats(const spec_lane *l);
#endif
