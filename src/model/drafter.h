/* model/drafter.h - what the speculative loop sees of a drafter: committed rows go in, guesses come out.
 *
 * A drafter guesses the tokens that follow a lane's text. Whatever it says, the target decides: a guess can cost time,
 * never change the text. So a drafter may round as it likes, and its failure is no more than the end of drafting.
 *
 * A drafter works on its target's backend and queue, and borrows its embeddings and output matrix. Per lane it has a
 * draft_lane: the context that it has seen (DFlash: keys and values made of the target's features; MTP: the last hidden
 * state; n-grams: an index of the text). Thread: the target's. */
#ifndef TANDEM_MODEL_DRAFTER_H
#define TANDEM_MODEL_DRAFTER_H
#include "kv/prefix.h"
#include "model/model.h"
#include "ops/history.h"

enum { DRAFT_MAX = 64, DRAFT_TOP_MAX = 16 }; /* tokens of a draft; candidates for one position */

typedef struct drafter    drafter;
typedef struct draft_lane draft_lane; /* each drafter's own */

/* One lane's wish for a draft, and the draft. */
typedef struct {
    draft_lane           *lane;
    int                   kv_lane; /* the lane in the target's pages */
    const int32_t        *text;    /* committed tokens; the last one, the anchor, has not been through the target yet */
    int32_t               n_text;
    sample_params         params;  /* how a guess is picked: temp 0 is the likeliest; pos is the drafter's to set */
    history              *history; /* of the text, as it was when the draft is done; NULL: no penalties */
    const penalty_params *penalty;
    int                   n_want; /* guesses, at most DRAFT_MAX */
    int                   n_top;  /* candidates wanted per position, at most DRAFT_TOP_MAX; 0: a chain is enough */
    float                 soft;   /* as ops' sample_top */

    /* Not NULL (.p), for a chain without penalties: device int32 [n_want] where the guesses may stay, so that nobody waits for
     * them. A drafter that leaves them there, -1 for what is not a number, says `later` and does not fill in `token`. */
    dev           guesses;
    bool          later;
    int           n; /* guesses made; fewer than wanted, or 0, when the drafter has none */
    int32_t       token[DRAFT_MAX];
    token_logprob top[DRAFT_MAX][DRAFT_TOP_MAX]; /* top[i][0] is token[i], when n_top > 0 */
} draft_job;

/* Rows of the target's last step that became text, in order. */
typedef struct {
    int32_t        pos; /* of the first; the others follow it */
    const int32_t *row; /* [n] rows of the step, each its position's */
    int            n;
    int            hidden; /* the last row's place in target->hidden; -1: it is not there */
} draft_rows;

/* A request's text, for drafters that share K/V of their own with other requests. */
typedef struct {
    int32_t        n_prompt; /* positions that are in the context before the first draft */
    const int32_t *token;    /* [n_nodes * KV_PAGE and more] */
    kv_prefix     *tree;     /* NULL: nothing is shared */
    uint64_t       salt;
    kv_node      **node; /* [n_nodes] of the text's first pages: those of the target that are in the tree */
    int            n_nodes;
} draft_text;

struct drafter {
    const char *kind; /* "dflash", "mtp", "ngram" */
    target     *t;
    int         max_draft;   /* guesses at most, from one draft */
    bool        one_pass;    /* a longer draft costs no more passes: guesses are independent, so they make a tree */
    int         trained_ctx; /* positions it was trained on; 0: not known */
    size_t      weight_bytes;
    int64_t     n_folded; /* rows of the target that became K/V of its own, so far */
    /* Features of the target that it wants captured: ids as target->capture takes them. */
    int capture_id[64], n_capture;

    bool (*lane_new)(drafter *d, draft_lane **out, err *e);
    void (*lane_free)(drafter *d, draft_lane *l); /* NULL is fine */
    /* Forgets the positions from n_pos on; 0 makes the lane new. */
    void (*cut)(drafter *d, draft_lane *l, int32_t n_pos);
    /* Directly after the target's step: what of it was kept. A position that is not the next one starts a new context
     * there. */
    bool (*observe)(drafter *d, draft_lane *l, const draft_rows *r, err *e);
    /* Drafts for several lanes at once; kv: the target's pages. */
    bool (*draft)(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e);
    void (*close)(drafter *d); /* all lanes are free */

    /* K/V of its own in the target's pool: all of these, or none (begin NULL). A request goes
     *     begin   the lane is new; t is read until `end`; what others left of it goes into the tree
     *     wish    what a prefix hit needs of it; take: such a hit, up to the end of page `at`
     *     end     what is complete is in the tree, or will be when a text goes on there; the lane holds no page any more */
    void (*begin)(drafter *d, draft_lane *l, const draft_text *t);
    void (*wish)(const drafter *d, const draft_lane *l, kv_wish *out);
    void (*take)(drafter *d, draft_lane *l, kv_node *at);
    void (*end)(drafter *d, draft_lane *l);
    void (*need)(const drafter *d, kv_need *n, int32_t n_pos); /* pages of a request of n_pos positions are added */

    /* For `tandem draft` and tests: the last draft's first job. Rows as in the file format's reference: DFlash all rows of
     * the block, the anchor first; MTP one row per guess. */
    dev draft_hidden, draft_logits; /* [rows][n_embd of the drafter or target], [rows][n_vocab] before any softcap */
    int n_draft_hidden;             /* floats in a row of draft_hidden */
};

typedef struct {
    kv_pool    *pool;      /* where its own K/V goes; NULL: it makes one */
    int         n_ctx;     /* positions of context per lane, made whole pages; 0: the trained length, else 4096 */
    int         max_lanes; /* 0: 1 */
    quant_type  quantise;  /* QUANT_F32: as the file has them; QUANT_Q8_0, QUANT_Q4_0 */
    cache_types kv_type;   /* of its own K/V */
    bool        keep_rows; /* draft_hidden and draft_logits are wanted */
} drafter_options;

typedef struct convert_plan convert_plan; /* model/convert_plan.h */

/* The table of drafter kinds. */
typedef enum { DRAFTER_DFLASH, DRAFTER_MTP, DRAFTER_NGRAM, DRAFTER_KINDS } drafter_kind;
typedef struct {
    const char *name;
    bool (*matches)(const checkpoint *c); /* the checkpoint is of this kind; NULL here and below: there is no file */
    bool (*open)(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e);
    size_t (*kv_bytes)(target *t, const checkpoint *c, const drafter_options *opt); /* as drafter_kv_bytes */
    bool (*plan)(convert_plan *p, err *e); /* keys and tensors of a GGUF file made of a Hugging Face directory */
} drafter_kind_info;
extern const drafter_kind_info drafter_kinds[DRAFTER_KINDS];
/* Returns the drafter_kind of a checkpoint, -1 when it is not a drafter. */
int drafter_kind_of(const checkpoint *c);

/* Opens the drafter in a checkpoint for this target. Fails with the reason when the two do not fit. */
bool drafter_open(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e);
/* Bytes of K/V of its own that the drafter would like for so many lanes, in any pool; 0: none, or it will be refused. */
size_t drafter_kv_bytes(target *t, const checkpoint *c, const drafter_options *opt);
/* Guesses from the lane's own text: no weights. */
drafter *drafter_open_ngram(target *t, int32_t max_text); /* tokens of a lane's text */
void     drafter_close(drafter *d);                       /* NULL is fine */

/* --- for drafters: from logits to guesses ------------------------------------------------------- */
/* Scratch of picking, one per drafter. */
typedef struct {
    const ops    *o;
    queue        *q;
    int           n_vocab;
    dev           params, picked, top, changes;
    logit_change *host_changes; /* n_vocab of them */
    token_logprob host_top[HEAD_ROWS * DRAFT_TOP_MAX];
} draft_picker;
bool draft_picker_init(draft_picker *p, target *t, err *e);
void draft_picker_deinit(draft_picker *p); /* zeroed storage is fine */
/* Guesses first .. first + n - 1 of the job from n rows of logits (softcapped where the target is): bias and penalties of
 * the text, then as job->params says. The job has them after this call, or job->guesses. */
bool draft_pick(draft_picker *p, draft_job *job, dev logits, int first, int n, err *e);
#endif
