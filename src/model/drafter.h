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

struct drafter {
    const char *kind; /* "dflash", "mtp", "ngram" */
    target     *t;
    int         max_draft;   /* guesses at most, from one draft */
    bool        one_pass;    /* a longer draft costs no more passes: guesses are independent, so they make a tree */
    int         trained_ctx; /* positions it was trained on; 0: not known */
    int32_t     enough_ctx;  /* positions of context that it guesses well behind; 0: it has none of its own */
    size_t      weight_bytes;
    /* Features of the target that it wants captured: ids as target->capture takes them. */
    int capture_id[64], n_capture;

    bool (*lane_new)(drafter *d, draft_lane **out, err *e);
    void (*lane_free)(drafter *d, draft_lane *l); /* NULL is fine */
    /* Forgets the positions from n_pos on; 0 makes the lane new. */
    void (*cut)(drafter *d, draft_lane *l, int32_t n_pos);
    /* Of the first n_pos positions of the text, how many may be taken as seen when the lane is cut there and goes on: all,
     * or fewer, so that the rest is shown again and fills a context that would have holes. NULL: it needs none. */
    int32_t (*held)(const drafter *d, const draft_lane *l, int32_t n_pos);
    /* Directly after the target's step: what of it was kept. A position that is not the next one starts a new context
     * there. */
    bool (*observe)(drafter *d, draft_lane *l, const draft_rows *r, err *e);
    /* Drafts for several lanes at once; kv: the target's pages. */
    bool (*draft)(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e);
    void (*close)(drafter *d); /* all lanes are free */

    /* For `tandem draft` and tests: the last draft's first job. Rows as in the file format's reference: DFlash all rows of
     * the block, the anchor first; MTP one row per guess. */
    dev draft_hidden, draft_logits; /* [rows][n_embd of the drafter or target], [rows][n_vocab] before any softcap */
    int n_draft_hidden;             /* floats in a row of draft_hidden */
};

typedef struct {
    int        n_ctx;     /* positions of context per lane; 0: the drafter's trained length, else 4096 */
    int        max_lanes; /* 0: 1 */
    quant_type quantise;  /* QUANT_F32: as the file has them; QUANT_Q8_0, QUANT_Q4_0 */
    quant_type kv_type;   /* of its own K/V: QUANT_F16 or QUANT_F32 */
    bool       keep_rows; /* draft_hidden and draft_logits are wanted */
} drafter_options;

/* Opens what the checkpoint describes, for this target. Refused with the reason when the two do not fit. */
bool drafter_open(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e);
/* Guesses from the lane's own text: no weights. */
drafter *drafter_open_ngram(target *t, int32_t max_text); /* tokens of a lane's text */
void     drafter_close(drafter *d);                       /* NULL is fine */
/* Whether the checkpoint is a drafter at all, and of which kind; NULL when it is not. */
const char *drafter_kind(const checkpoint *c);

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
