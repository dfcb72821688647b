/* spec/spec.h - draft, verify, accept, commit: the loop of all decoding.
 *
 * A lane holds the text of one request, and the K/V and states (kv/lane.h) of all of it except the last token, the
 * anchor. A round drafts tokens that may follow the anchor, runs the anchor and the draft tokens through the target as
 * one step, and accepts draft tokens from the anchor on as long as each equals the target's pick at its place:
 *
 *      text      ... w x A            K/V of ... w x
 *      step          A -> b -> c      draft tokens b, c (and siblings, in a tree)
 *      picks         b    c'          the target picks b after A and c' after b: b is accepted, c is rejected
 *      text      ... w x A b c'       K/V of ... w x A b; c' is the new anchor
 *
 * Every token is the target's own pick at its place, computed from numbers that do not depend on the draft (promises
 * 1 and 2). So the text is that of plain decoding. A round without draft tokens is plain decoding.
 *
 * The caller checks the new tokens one by one and commits as many as it keeps (a stop token or a length limit may end
 * the response). The others are dropped, and the next round starts from the last token kept.
 *
 * A drafter that cannot be opened or fails is logged once; the lane continues without it from its last committed token.
 *
 * A spec serves one target and has up to max_lanes lanes. A request is: spec_lane_begin; spec_step and spec_lane_keep
 * until the response ends; spec_lane_end. The engine thread is the only caller; without an engine, any one thread. */
#ifndef TANDEM_SPEC_SPEC_H
#define TANDEM_SPEC_SPEC_H
#include "grammar/guide.h"
#include "kv/lane.h"
#include "spec/counts.h"
#include "spec/policy.h"
#include "spec/tree.h"
#include "store/pack.h"

enum {
    SPEC_MAX_TOP = 20, /* maximum of lane_options.n_top */
};

/* Speculation settings of a lane. All zeros: no speculation. A zero limit means the default. */
typedef struct {
    int method; /* spec_method or SPEC_AUTO; 0: off */
    /* Maximum draft tokens in a row. Default: the whole block (DFlash), 3 (MTP; auto: 7), 8 (n-grams; auto: 16). */
    int   draft_max;
    int   tree_budget;   /* rows of a tree without the anchor; default 22 */
    float tree_temp;     /* flattens (above 1) or sharpens (below 1) the drafter's candidates; default 1 */
    bool  no_chain_seed; /* trees need not contain the drafter's likeliest chain (tree_add_best) */
    float draft_noise;   /* draft temperature as a share of the target's; 0: the likeliest tokens */
    int   draft_tail;    /* maximum tokens from the text itself that follow a chain of DFlash or MTP; default 0 */
} spec_settings;

/* Options that decide a lane's text, and how it is drafted. */
typedef struct {
    sample_params  params; /* pos is ignored */
    penalty_params penalty;
    int            n_top;  /* log-probabilities of the picked token and the n_top likeliest ones; -1: none at all */
    bool    score_prompt;  /* also log-probabilities of the prompt's tokens: runs all of it, requires n_top >= 0 */
    int32_t n_continued;   /* tokens at the end of the prompt that count as the beginning of the response */
    int32_t min_tokens;    /* minimum length of the response: no end_id is picked before */
    const int32_t *end_id; /* [n_ends] tokens that end the response; must live as long as the request */
    int            n_ends;
    spec_settings  spec;
} lane_options;

/* --- the loop, one per target ----------------------------------------------------------------------------- */
/* The draft tokens of a round as they were verified, for tests. */
typedef struct {
    int            lane; /* index of the lane */
    int32_t        n_text;
    const int32_t *text; /* [n_text]: the text before the draft tokens */
    spec_method    method;
    int            n_want; /* planned number of draft tokens, or of rows of a tree; n may be less, even 0 */
    const int32_t *token;  /* [n] */
    const int     *parent; /* [n] row of the parent; row 0 is the anchor */
    int            n;
    bool           shared; /* the draft tokens competed for rows with other lanes: any number of them may be missing */
} spec_round;

typedef struct {
    int      n_ctx; /* maximum positions per lane */
    int      max_lanes;
    kv_types kv_type;    /* its draft part is not used: spec_draft_source has the drafter's */
    size_t   kv_bytes;   /* limit for all K/V; 0: as much as max_lanes lanes of n_ctx need */
    double   kv_cap;     /* share of the pool that reservations may take; 0: all */
    bool     no_prefix;  /* no prefix cache */
    bool     wipe;       /* pages are overwritten with zeros when they are freed */
    int32_t  save_every; /* positions of a prompt between saved recurrent states; 0: 4096 */
    /* Identifies the model's files (fingerprint_stamp), for spec/image.h. NULL or "": no images. It must live as long
     * as the spec. */
    const char *fingerprint;
    void (*on_round)(void *ctx, const spec_round *r); /* called for each round that planned a draft; may be NULL */
    void *on_round_ctx;
} spec_options;

typedef struct spec      spec;
typedef struct spec_lane spec_lane;

/* Sets *out to o->kv_bytes or, if that is 0, to the bytes of K/V memory that max_lanes lanes of the target need. Then
 * spec_new allocates more if kv_cap is below 1, and spec_add_drafter for the drafter's own K/V. Returns false on
 * overflow. */
bool spec_kv_bytes(const target *t, const spec_options *o, size_t *out);
/* Creates a spec with the n-gram drafter. Sets *out to NULL on failure. t must outlive it and have no other spec; *o is
 * copied. Sets the K/V types of t. */
bool              spec_new(spec **out, target *t, const spec_options *o, err *e);
void              spec_free(spec *s);            /* accepts NULL; requires that all lanes are freed */
const cost_table *spec_costs(const spec *s);     /* changes with each step; valid as long as s */
int64_t           spec_kv_wiped(const spec *s);  /* pages that spec_options.wipe overwrote */
size_t            spec_kv_pinned(const spec *s); /* bytes that lanes use and that cannot be evicted, states included */
size_t            spec_kv_bytes_total(const spec *s); /* bytes of the pool; 0: it was lost when a drafter was opened */
size_t            spec_kv_reserved(const spec *s);    /* bytes reserved for admitted requests */
int               spec_kv_classes(const spec *s, kv_class_use out[KV_MAX_CLASSES]); /* returns their number */
size_t            spec_kv_need(const spec *s, int32_t n_pos); /* bytes of the target's K/V that n_pos positions need */
kv_prefix_stats   spec_prefix_stats(const spec *s);           /* all 0 without a prefix cache */
/* Records steps and drafts of all sizes in advance, where the backend records, and again whenever a drafter is opened
 * or closed, so that no request waits for it. Call it when the drafters were added, before the first request. Fails
 * when the device does. */
bool         spec_warm(spec *s, err *e);
graph_counts spec_recordings(const spec *s); /* all 0 where nothing is recorded */
void         spec_forget(spec *s);           /* removes from the prefix cache all that lanes do not use */

typedef struct {
    const char       *path;  /* a file or directory that checkpoint_open accepts */
    const char       *name;  /* shown in messages; NULL: the path */
    const char       *shown; /* shown in reports instead of the path; NULL: the path */
    str               image; /* not empty: a GGUF file in memory, used instead of the path */
    const checkpoint *files; /* the drafter's files, borrowed during the call; NULL: spec_add_drafter opens them */
    drafter_options   opt;
    bool              lazy;        /* open it when a lane first needs it */
    bool              fingerprint; /* compute the fingerprint when the file is opened */
    spec_method       method;      /* required kind: SPEC_DFLASH or SPEC_MTP; SPEC_OFF: either */
    bool              keep;        /* if opening fails, keep it as failed, so that spec_unpark can retry */
    /* Not NULL: returns the drafter that lanes use instead of d. The returned drafter owns d and closes it. */
    drafter *(*wrap)(void *ctx, drafter *d);
    void *wrap_ctx;
} spec_draft_source;
/* Adds a drafter, at most one of each kind. *src is copied; the strings, the image and the contexts must live as long
 * as s. Without kv_bytes, and while no request is running, it may allocate a larger K/V pool, which empties the prefix
 * cache. On failure the drafter is not added, unless src->keep is set. */
bool spec_add_drafter(spec *s, const spec_draft_source *src, err *e);
/* Sets *out to SPEC_DFLASH or SPEC_MTP, the method of src->files, which is not NULL. Fails if it is no drafter, or not
 * of src->method. */
bool spec_drafter_method(const spec_draft_source *src, spec_method *out, err *e);
/* In the following, m is a method with a drafter: not SPEC_OFF or SPEC_AUTO. */
bool spec_has_drafter(const spec *s, spec_method m); /* it was added and has not failed; it may be parked or not open */
int spec_trained_ctx(const spec *s); /* positions that the DFlash drafter was trained on; 0: unknown, or never opened */
/* Parks the drafter of method m, SPEC_DFLASH or SPEC_MTP: closes it until it is unparked. Meanwhile requests go on
 * without it. Unparking opens it if it was open when it was parked, or if it has failed, and clears its problem; when
 * that fails, the drafter has failed. Does nothing when the drafter is in that state already. Not between spec_step and
 * spec_lane_keep. ERR_NOT_FOUND: no such drafter was added. */
bool spec_park(spec *s, spec_method m, err *e);
bool spec_unpark(spec *s, spec_method m, err *e);

typedef enum {
    DRAFTER_OPEN,
    DRAFTER_LAZY,   /* not opened yet: the first lane that needs it opens it */
    DRAFTER_PARKED, /* closed until spec_unpark */
    DRAFTER_FAILED, /* could not be opened; spec_unpark tries again */
} drafter_state;
/* Strings and pointers are valid as long as the spec; what fingerprint and problem point to may change. */
typedef struct {
    const char            *name, *path, *shown; /* as in spec_draft_source, with the defaults filled in */
    const char            *fingerprint;         /* fingerprint of the file when it was last opened; "": unknown */
    const checkpoint_list *files;               /* NULL: never opened */
    drafter_state          state;
    quant_type             type;         /* drafter_options.quantise, or the type in the file */
    size_t                 weight_bytes; /* this and the next two: 0 if it was never open */
    int                    max_draft, trained_ctx;
    const char *problem; /* the last problem; "": none. Only spec_unpark clears it: the drafter may work again */
} drafter_view;
bool spec_drafter_view(const spec *s, spec_method m, drafter_view *out); /* false: no such drafter was added */
/* Returns a number that grows whenever a drafter_view may have changed. */
unsigned spec_drafter_changes(const spec *s);

/* --- lanes -------------------------------------------------------------------------------------- */
bool spec_lane_new(spec *s, spec_lane **out, err *e); /* ERR_BUSY when all lanes are taken; *out is NULL on failure */
void spec_lane_free(spec_lane *l);                    /* ends its request; accepts NULL */

typedef struct {
    lane_options   opt;    /* opt.penalty.bias must live as long as the request */
    const int32_t *prompt; /* [n_prompt]; copied */
    size_t         n_prompt;
    int32_t        max_new; /* maximum length of the response; 0: up to the end of the context */
    uint64_t       salt;    /* tenant: requests share prefixes only under the same salt */
    /* Not NULL: pictures of the prompt, whose ids media_prompt_mark changed, and the soft tokens of each span, NULL
     * while they are not computed; the prompt does not end with a span. Both must live until the request has ended. */
    const media_prompt *media;
    const float *const *soft;
    /* Not NULL: acceptance statistics by request class. The request starts from them and updates them when it ends, so
     * they must live until then. */
    policy_classes *classes;
    uint64_t        class_key;
    /* Not NULL: the grammar that the response must follow. It must live until the request has ended. */
    guide       *guide;
    guide_begins begins; /* used with a guide only */
    /* Images of the prompt's beginning (spec/image.h), read during the call: what the prefix cache lacks is added to
     * it. */
    const pack *const *images;
    int                n_images;
} lane_request;
/* Begins a request, and ends the previous one if that was not done. Reserves all memory that the request can need
 * (promise 5). Takes over the longest cached prefix of the prompt and sets *n_reused to the prompt tokens that are not
 * run again; at least the last one is run. Errors: ERR_INPUT, the prompt is empty; ERR_CONTEXT, the prompt exceeds the
 * context or the request needs more K/V memory than there is; ERR_BUSY, it does not fit now; ERR_UNAVAILABLE, there is
 * no memory for penalties, or none for a K/V pool that was lost. On failure no request is running, unless the prompt
 * was refused: then nothing changed. */
bool spec_lane_begin(spec_lane *l, const lane_request *r, size_t *n_reused, err *e);
/* Ends the request, if one is running: releases its pages, states and reservation. Its counters remain readable until
 * the next spec_lane_begin. */
void spec_lane_end(spec_lane *l);

/* The text of a lane, and how much of it has K/V; valid until the next spec_lane_begin. */
typedef struct {
    const int32_t *token;
    int32_t        n_prompt, n_cached; /* tokens: of the prompt, with K/V */
    int32_t        branch;             /* length at which the prompt left the texts in the prefix cache; 0: not known */
} spec_lane_text;
spec_lane_text spec_lane_committed(const spec_lane *l);

/* Tokens that a step decided, in order. With n_top >= 0, logprob[i][0] belongs to token[i] itself, and the next n_top
 * to the likeliest tokens. */
typedef struct {
    int           n;       /* 0: the step ran a part of the prompt and decided nothing, or there is a problem */
    spec_method   method;  /* method of the draft tokens, of which the first n - 1 of `token` were accepted */
    int           n_draft; /* draft tokens that the step verified; 0: none, and method is SPEC_OFF */
    const char   *problem; /* why no token can be decided: the caller must end the request; NULL: no problem */
    err_code      problem_code;
    int32_t       token[1 + DRAFT_MAX];
    bool          closing[1 + DRAFT_MAX]; /* differs from the pick, to complete the grammar within the length limit */
    token_logprob logprob[1 + DRAFT_MAX][1 + SPEC_MAX_TOP];
} spec_out;

/* Returns the span of the prompt whose soft tokens are needed next, because they are missing and the lane can run
 * nothing before it has them, or little; -1: none is missing. */
int spec_lane_next_span(const spec_lane *l);
/* Returns the minimum of rows that the lane must have in its next step: those of a span that is not divided, else 1;
 * 0: it cannot run before spec_lane_next_span is computed. */
int spec_lane_min_rows(const spec_lane *l);
/* Computes soft tokens, as target_encode. Not inside a step. */
bool spec_encode(spec *s, const media_span *span, float *out, err *e);
void spec_park_encoder(spec *s); /* as target_park_media */
/* Returns the number of tokens of the text that were not run yet; 1: only the anchor. */
int spec_lane_pending(const spec_lane *l);
/* Returns whether the next step can verify draft tokens: the response has begun and only the anchor is pending. */
bool spec_lane_can_draft(const spec_lane *l);
/* Input of the policy for the lane's next round. */
typedef struct {
    const policy *p;      /* with the limits of this round; owned by the lane */
    int           method; /* requested method: spec_method or SPEC_AUTO */
    int           room;   /* maximum draft tokens in a row: more could not be kept */
    int32_t       n_ctx;  /* length of its text in tokens */
    int32_t       n_prompt;
} policy_facts;
void spec_lane_facts(spec_lane *l, policy_facts *out);
/* Returns the plan for a lane that is alone in its steps: with SPEC_AUTO that of policy_choose, otherwise as long a
 * draft of the requested method as its settings allow. */
spec_plan spec_choose_alone(spec_lane *l);

/* The part of a lane in a step. */
typedef struct {
    spec_lane *lane;
    int        max_rows; /* maximum rows of prompt; 0: as many as fit */
    spec_plan  plan;     /* used if the lane can draft; shortened to what fits into the lane and the step */
} spec_part;
/* Computes the grammar mask of the lane's next pick, for about *work steps of the grammar's machine, and subtracts the
 * steps used from *work. Returns false when the mask is not complete: the lane must not take part in the step. Returns
 * true when the mask cannot be computed: the step reports the problem. Returns true at once for a lane without a
 * grammar. */
bool    spec_lane_prepare(spec_lane *l, int64_t *work);
bool    spec_lane_is_guided(const spec_lane *l); /* whether it has a grammar */
int64_t spec_lane_mask_work(const spec_lane *l); /* steps of the machine that the masks of its request took */
/* Sets the steps of the machine that masks of draft tokens of all lanes may take until the next call. At first there is
 * no limit. */
void spec_grant_mask_work(spec *s, int64_t work);
/* Runs one step of the target: for each lane a chunk of its prompt, or one round. The lanes are different, have a
 * request and are not full; n_parts is from 1 to max_lanes. On failure the lanes keep their text; a lane with recurrent
 * states may have to run it again. */
bool spec_step(spec *s, const spec_part *parts, int n_parts, err *e);
/* Runs spec_step with the plan of spec_choose_alone for each lane. */
bool            spec_step_alone(spec *s, spec_lane *const *lanes, int n_lanes, err *e);
const spec_out *spec_lane_out(const spec_lane *l); /* the last step's; empty after spec_lane_keep */
/* Log-probabilities of prompt tokens (score_prompt) that the last step computed, valid until the next step. For token
 * first + i, item[i * stride] belongs to the token itself, and 1 + n_top items are valid. */
typedef struct {
    int                  n, stride;
    int32_t              first;
    const token_logprob *item;
} spec_scores;
spec_scores spec_lane_scores(const spec_lane *l);
/* Appends the first n_keep of the tokens that the last step decided to the text, and drops the others; n_keep may be 0.
 * Call it before the next step if spec_lane_out has tokens. */
void spec_lane_keep(spec_lane *l, int n_keep);

bool spec_lane_full(const spec_lane *l);   /* whether the anchor has no position left: no step can run it */
void spec_lane_limit(spec_lane *l, int n); /* maximum tokens that will still be kept: limits drafts and grammars */
const tandem_spec_counts *spec_lane_stats(const spec_lane *l); /* counts the current request, or the last one */
#endif
