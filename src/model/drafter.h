/* model/drafter.h - the interface of drafters: committed rows go in, draft tokens come out.
 *
 * A drafter proposes the tokens that follow a lane's text. The target verifies them: a wrong draft token costs time
 * and never changes the text. So a drafter may round as it likes, and a failing drafter only ends drafting.
 *
 * A drafter works on its target's backend and queue, and may borrow its embeddings and output matrix, so the target
 * must outlive it. Per lane it has a draft_lane: the context so far (DFlash: keys and values made of the target's
 * features; MTP: the last hidden state, or K/V of its own; n-grams: an index of the text). spec uses drafters, on the
 * target's thread. */
#ifndef TANDEM_MODEL_DRAFTER_H
#define TANDEM_MODEL_DRAFTER_H
#include "kv/prefix.h"
#include "model/model.h"
#include "ops/history.h"

enum { DRAFT_MAX = 64, DRAFT_TOP_MAX = 16 }; /* maximum tokens of a draft; maximum candidates for one position */

typedef enum { DRAFTER_DFLASH, DRAFTER_MTP, DRAFTER_NGRAM, DRAFTER_KINDS } drafter_kind;
typedef struct drafter    drafter;
typedef struct draft_lane draft_lane; /* defined by each drafter */

/* One lane's request for a draft, and the draft. */
typedef struct {
    draft_lane           *lane;
    int                   kv_lane; /* the lane in the target's pages */
    const int32_t        *text;    /* committed tokens; the last one, the anchor, has not been through the target yet */
    int32_t               n_text;
    sample_params         params;  /* how draft tokens are picked: temp 0 is the likeliest; the drafter sets pos */
    history              *history; /* tokens of the text, unchanged when the draft is done; NULL: no penalties */
    const penalty_params *penalty;
    int                   n_want; /* draft tokens wanted, at most DRAFT_MAX */
    int                   n_top;  /* candidates wanted per position, at most DRAFT_TOP_MAX; 0: a chain is enough */
    float                 soft;   /* as in ops.sample_top */
    bool                  want_confidence; /* fill in `confidence`, if the host waits for the tokens */
    /* A drafter that makes one token per pass may end the draft after the token with which the product of the
     * confidences falls below this; 0: it makes all that are wanted. Needs want_confidence. */
    float stop;

    /* Not NULL (.p), for a chain without penalties: device int32 [n_want] where the draft tokens may stay, so that
     * the host does not wait for them. A drafter that leaves them there (-1 for NaN) sets `later` and does not fill
     * in `token`. */
    dev           device_tokens;
    bool          later;
    int           n; /* draft tokens made; fewer than wanted, or 0 */
    int32_t       token[DRAFT_MAX];
    token_logprob top[DRAFT_MAX][DRAFT_TOP_MAX]; /* top[i][0] is token[i], when n_top > 0 */
    /* confidence[i] estimates the probability that token[i] is accepted, given that those before it are. Drafters with
     * `confident` have learned it; otherwise it is the token's share in the softmax of the drafter's logits. N-grams
     * do not set it. */
    float confidence[DRAFT_MAX];
} draft_job;

/* Rows whose embeddings were given to the target instead of those of their tokens. */
typedef struct {
    int          first, n; /* indices in draft_rows.row */
    const float *x;        /* host memory, [n][n_embd of the target] */
} draft_soft;

/* The rows of the target's last step that were committed, in order. */
typedef struct {
    int32_t        pos;   /* position of the first row; the others follow it */
    const int32_t *row;   /* [n] rows of the step, one per position */
    const int32_t *token; /* [n] their tokens; negative: a row of `soft` */
    int            n;
    int            hidden; /* index of the last row in target->hidden; -1: none */

    const draft_soft *soft; /* [n_soft], in order */
    int               n_soft;
} draft_rows;

/* A request's text, for drafters that share their own K/V between requests. */
typedef struct {
    int32_t             n_prompt; /* length of the prompt in tokens */
    const int32_t      *token;    /* [n_prompt], and the response as it grows */
    const media_prompt *media;    /* pictures of the prompt; NULL: none */
    kv_prefix          *tree;     /* NULL: nothing is shared */
    uint64_t            salt;     /* as for kv_prefix_find */
    kv_node           **node;     /* [n_nodes]: tree nodes of the text's first pages */
    int                 n_nodes;
} draft_text;

struct drafter {
    drafter_kind kind;
    target      *t;
    int          max_draft;   /* maximum of draft tokens per draft */
    bool         one_pass;    /* one pass makes all draft tokens independently, so they can form a tree */
    bool         confident;   /* has learned draft_job.confidence, and always sets it if the host waits */
    int          trained_ctx; /* positions of its training; 0: not known */
    size_t       weight_bytes;
    int64_t      n_folded; /* rows of the target converted to its own K/V so far */
    /* Features of the target that it reads, as ids for target->capture. The target may capture more, but these
     * directly one after another: draft_features. */
    int capture_id[64], n_capture;

    bool (*lane_new)(drafter *d, draft_lane **out, err *e); /* *out is NULL on failure */
    void (*lane_free)(drafter *d, draft_lane *l);           /* accepts NULL */
    /* Drops the positions from n_pos on. 0 resets the lane. */
    void (*cut)(drafter *d, draft_lane *l, int32_t n_pos);
    /* Adds the committed rows of a step to the context, before the next step. A position that is not the next one
     * starts a new context there. On failure the lane has no context. */
    bool (*observe)(drafter *d, draft_lane *l, const draft_rows *r, err *e);
    /* Makes the drafts of several lanes at once, of different lanes. kv: the target's pages. Sets n of every job; a job
     * whose lane lacks the context of its text gets 0. On failure the drafts of all jobs are invalid. */
    bool (*draft)(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e);
    /* As target.warm, for its passes. NULL: nothing is recorded. */
    void (*warm)(drafter *d, kv_pool *kv);
    void (*close)(drafter *d); /* requires that all lanes are freed */

    /* For drafters with their own K/V in the target's pool: all of these, or none (begin NULL). The calls of a request:
     *     begin   empties the lane, and reads t until `end`. Adds rows of this text that other requests left to the
     *             tree
     *     wish    returns the pages that a prefix hit needs; valid while l is
     *     take    takes over the K/V of a hit that ends with the node `at`
     *     end     adds complete pages to the tree, or keeps their features for a later text; frees all pages
     * set_pool moves its K/V to another pool, NULL: to none. It requires that all lanes are freed. */
    void (*begin)(drafter *d, draft_lane *l, const draft_text *t);
    void (*wish)(const drafter *d, const draft_lane *l, kv_wish *out);
    void (*take)(drafter *d, draft_lane *l, kv_node *at);
    void (*end)(drafter *d, draft_lane *l);
    bool (*set_pool)(drafter *d, kv_pool *p, err *e);
    void (*need)(const drafter *d, kv_need *n, int32_t n_pos); /* adds the pages of a request of n_pos positions */

    /* For `tandem draft` and tests: states of the first job of the last draft. DFlash: all rows of the block, the
     * anchor first, and logits before any softcap. DSpark and DFlash-2: the same states, but logits of the rows with a
     * draft token, after the softcap; DSpark's with the bias of the token before. MTP: one row per draft token. */
    dev draft_hidden, draft_logits; /* [rows][n_embd of the drafter or target], [rows][n_vocab] */
    int n_draft_hidden;             /* floats in a row of draft_hidden */
    int n_lead;                     /* rows of draft_logits before that of the first draft token */
    int n_hidden_rows;              /* rows of draft_hidden; 0: as many as of draft_logits */
};

typedef struct {
    kv_pool    *pool;      /* pool for its own K/V, borrowed; NULL: it makes one */
    int         n_ctx;     /* positions of context per lane, rounded to pages; 0: the trained length, else a default */
    int         window;    /* positions that DFlash's layers with full attention see; 0: the whole context */
    int         max_ctx;   /* positions that a lane's text can have; 0: the target's limit */
    int         max_lanes; /* 0: 1 */
    quant_type  quantise;  /* QUANT_Q8_0, QUANT_Q4_0; QUANT_F32: as stored in the file */
    cache_types kv_type;   /* types of its own K/V */
    bool        keep_rows; /* fills draft_hidden and draft_logits */
    bool        fold_at_end; /* `end` adds all complete pages to the tree, and keeps no features */
} drafter_options;

/* A drafter that fills in blocks, as its file describes it. */
typedef struct {
    const char *kind;    /* "DFlash", "DSpark", "DFlash-2" */
    const char *variant; /* the end of a description, or "" */
    bool        confident;
    int         n_layers, n_embd, n_heads;
    int         block, n_draft; /* rows of a block; draft tokens of it */
    int         mask_id;
    int         n_captures;  /* 0: not in the file */
    int         capture[64]; /* layers of the target whose outputs it reads; -1: the embeddings */
    int         window;      /* 0: no sliding layer */
    int         n_sliding;
    int         n_ctx;       /* positions that the file states; 0: none */
    int         trained_ctx; /* as drafter.trained_ctx */
    int         default_ctx; /* its context, unless a number is given */
    /* The targets that it fits: */
    int target_embd;   /* width; 0: not in the file */
    int target_vocab;  /* tokens; 0: not in the file */
    int target_layers; /* the number in the file, else the minimum */
} drafter_summary;

typedef struct convert_plan convert_plan; /* model/convert_plan.h */

/* The sizes of a target that a drafter must fit. */
typedef struct {
    int             n_embd, n_vocab, n_layers;
    const kv_donor *donor; /* [2], borrowed */
} target_shape;
static inline target_shape target_shape_of(const target *t)
{
    return (target_shape){t->n_embd, t->n_vocab, t->n_layers, t->donor};
}

/* The table of drafter kinds. */
typedef struct {
    const char *name;
    /* Returns whether c is of this kind. NULL, here and below: the kind has no file. */
    bool (*matches)(const checkpoint *c);
    bool (*open)(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e);
    bool (*fits)(const checkpoint *c, const target_shape *t, err *e);               /* as drafter_fits */
    size_t (*kv_bytes)(target *t, const checkpoint *c, const drafter_options *opt); /* as drafter_kv_bytes */
    bool (*plan)(convert_plan *p, err *e); /* keys and tensors of a GGUF file made of a Hugging Face directory */
    bool (*describe)(drafter_summary *out, const checkpoint *c, err *e);
} drafter_kind_info;
extern const drafter_kind_info drafter_kinds[DRAFTER_KINDS];
/* Returns the drafter_kind of a checkpoint, -1 when it is not a drafter. */
int drafter_kind_of(const checkpoint *c);

/* Opens the drafter in a checkpoint for this target. Fails with the reason when the two do not fit; *out is NULL then.
 * The checkpoint may be closed afterwards. The caller has the target capture d->capture_id before it observes rows. */
bool drafter_open(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e);
/* Checks by the configuration alone that the checkpoint, which is a drafter, fits a target: its width, its vocabulary,
 * and the layers and K/V heads that it reads. drafter_open also checks the tensors. */
bool drafter_fits(const checkpoint *c, const target_shape *t, err *e);
/* Returns the bytes of the checkpoint that opening its drafter loads. */
size_t drafter_bytes(const checkpoint *c);
/* Returns the bytes of its own K/V for opt->max_lanes lanes; 0: none, or the drafter cannot be opened. */
size_t drafter_kv_bytes(target *t, const checkpoint *c, const drafter_options *opt);
/* Opens the n-gram drafter, which drafts from the lane's own text. It has no weights. Never returns NULL. max_text: a
 * longer text gets no drafts. */
drafter *drafter_open_ngram(target *t, int32_t max_text);
void     drafter_close(drafter *d); /* accepts NULL */

/* --- for drafters: features ------------------------------------------------------------------------------------- */
/* Returns the address of its features of row 0 of the target's step. The features of the next row are n_features *
 * n_embd floats later. */
dev draft_features(const drafter *d);

/* --- for drafters: picking draft tokens ------------------------------------------------------- */
enum { PICK_ROWS = 256 }; /* rows that are picked before the host reads them */

/* A part of a job's draft: tokens first .. first + n - 1. */
typedef struct {
    draft_job *job;
    int        first, n;
    int        at; /* its first row of the logits */
} draft_run;

/* Scratch for picking, one per drafter, and the runs whose tokens are on the device only. */
typedef struct {
    const ops    *o;
    queue        *q;
    int           n_vocab;
    dev           params, changes;
    dev           picked, confidence, top; /* [PICK_ROWS], of top [DRAFT_TOP_MAX] each */
    logit_change *host_changes;            /* [n_vocab] */
    int32_t       host_picked[PICK_ROWS];
    float         host_confidence[PICK_ROWS];
    token_logprob host_top[PICK_ROWS * DRAFT_TOP_MAX];
    struct {
        draft_run run;
        int       row; /* its first row of picked */
        int       top; /* its first candidate */
    } open[PICK_ROWS];
    int n_open, n_rows;
} draft_picker;
bool draft_picker_init(draft_picker *p, target *t, err *e); /* after a failure, too, call draft_picker_deinit */
void draft_picker_deinit(draft_picker *p);                  /* accepts all zeros */
void draft_pick_begin(draft_picker *p);                     /* begins a draft: forgets what was not read */
/* Picks the tokens of runs of different jobs, whose rows of logits (softcapped like the target's) follow each other, at
 * most HEAD_ROWS in all. Applies the bias and penalties of the text to the logits, in place, then job->params. Sets
 * job->n, and writes the tokens to the device array of the job, if it has one, and to `to`, device int32 by row of the
 * logits, unless that is NULL (.p). Runs alike are picked together, and stay on the device until draft_pick_read.
 * Fails when a row has no token to pick, as far as the host reads it. */
bool draft_pick(draft_picker *p, const draft_run *run, int n_runs, dev logits, dev to, err *e);
/* Waits for the tokens, and fills in token, top and confidence of the jobs that have no device array. Fails when a row
 * had no token to pick. */
bool draft_pick_read(draft_picker *p, err *e);
#endif
