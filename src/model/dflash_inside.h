/* model/dflash_inside.h - types and functions shared by the files of the DFlash drafter. dflash.c describes the
 * model. */
#ifndef TANDEM_MODEL_DFLASH_INSIDE_H
#define TANDEM_MODEL_DFLASH_INSIDE_H
#include "base/num.h"
#include "model/bind.h"
#include "model/dflash.h"
#include "model/dflash_config.h"

enum {
    MAX_ROWS      = 256,         /* rows of a pass; more rows take several */
    WAITING_BYTES = 1 << 20,     /* size of a lane's buffer of features that are not converted yet, */
    MIN_WAITING   = 64,          /* but at least this number of rows */
    MAX_WAITING   = MAX_ROWS,    /* and at most this one */
    MIN_LEFT      = 8,           /* rows of max_lanes ended requests are kept, at least of this many */
    MIN_CTX       = 2 * KV_PAGE, /* minimum of dflash.n_ctx */
    PER_LAYER     = 17,          /* tensors of a layer, at most */
};

/* A convolution around a sublayer (DFlash-2). */
typedef struct {
    weight *kernel; /* makes each row's part of both kernels */
    dev     base;   /* [2][n_taps][n_embd]: of the input, of the output */
} layer_conv;

typedef struct {
    weight    *q, *k, *v, *o, *gate, *up, *down; /* v NULL: it is k */
    dev        n_in, n_q, n_k, n_ff;             /* weights of the norms N_in, N_q, N_k, N_ff of dflash.c */
    dev        n_after_attn, n_after_ff;         /* layers like Gemma 4's */
    float      scale;
    layer_conv attn_conv, ff_conv;
} layer;

/* The rows of one pass, uploaded in one piece. */
typedef struct {
    int32_t token[MAX_ROWS];
    int32_t pos[MAX_ROWS]; /* position in the text, for rope */
    int32_t lane[MAX_ROWS];
    int32_t slot[MAX_ROWS];         /* slot of its K/V; the position for attention */
    int32_t root[MAX_ROWS];         /* above all slots that the row attends to */
    int32_t last_full[MAX_ROWS];    /* last slot attended to in full layers, */
    int32_t last_sliding[MAX_ROWS]; /* and in sliding ones */
    int32_t place[MAX_ROWS];        /* index in its block */
    int     n;
} block_rows;

/* Scratch for picking tokens from left to right: [HEAD_ROWS][n] floats unless noted. */
typedef struct {
    dev prev;        /* int32 [MAX_ROWS]: the last token of each job of the pass */
    dev id;          /* int32 [HEAD_ROWS]: those of the jobs of a round */
    dev row;         /* [rank]: their rows of W1 or of the codebook */
    dev middle;      /* [rank]: DFlash-2: the part of the state, of all rows */
    dev few, logits; /* [n_few], [n_vocab]: logits of a round */
    dev params;      /* sample_params [HEAD_ROWS]: for the likeliest candidates */
    dev top;         /* token_logprob [HEAD_ROWS][n_top] */
    dev top_id;      /* int32 [HEAD_ROWS * n_top] */
    dev after;       /* [n_top][rank]: rows of the candidates */
    dev conf_in;     /* [n_embd + rank] */
    dev conf;        /* [1] */
} pair_scratch;

/* Scratch of a pass: [MAX_ROWS][n] floats unless noted. */
typedef struct {
    dev          features; /* [MAX_ROWS][n_features]: gathered */
    dev          x, y, f;  /* [n_embd] */
    dev          q, heads; /* [n_heads * head_dim] */
    dev          k, v;     /* [n_kv_heads * head_dim] */
    dev          gate, up; /* [n_ff] */
    dev          hidden;   /* [HEAD_ROWS][n_embd]: gathered */
    dev          logits;   /* [HEAD_ROWS][n_vocab of the target] */
    dev          few;      /* [HEAD_ROWS][n_few]: logits of a reduced vocabulary */
    dev          delta;    /* [2 n_taps n_embd / group]: kernels of a convolution */
    dev          z;        /* [n_embd]: a convolution's result */
    pair_scratch pairs;
    dev          rows;  /* block_rows */
    dev          index; /* int32 [MAX_ROWS]: rows to gather */
    dev          moves; /* kv_move_item [KV_PAGE] */
} scratch;

/* Folding is converting features of the target to K/V of the drafter. Positions count from the first of the context,
 * which is position `base` of the text: 0, unless the drafter joined in the middle of it. */
struct draft_lane {
    kv_seq           *seq;           /* K/V of the converted rows; the slots of a block only during a draft */
    kv_seq           *first;         /* its first page as made, after that of seq was rotated; NULL: not rotated */
    int32_t           base;          /* position in the text of the context's first row */
    int32_t           n_seen;        /* positions of the context, converted or not */
    int32_t           shift, turned; /* positions left out after the first page; shift for which that is rotated */
    int32_t           wished;        /* first position after the first page that drafts of this request attend to */
    int               n_wait;        /* rows in `waiting`: the latest ones */
    dev               waiting;       /* [n_waiting][n_features] */
    const draft_text *text;          /* NULL: nothing is shared */
    int               n_given;       /* the first pages of the text, which are in the tree or will not be added */
};

/* Rows of a text that were not converted to K/V: whole pages. */
typedef struct {
    int32_t        first; /* first position; starts a page */
    int            n;     /* rows */
    const int32_t *token; /* [n] */
    dev            features;
} unfolded;

/* Rows left by an ended request: features that no draft needed, kept for a text that continues there. */
typedef struct {
    unfolded rows;   /* n 0: empty */
    uint64_t salt;   /* tenant salt of the text, */
    uint64_t before; /* and a hash of the text before the rows */
    int32_t  token[MAX_WAITING];
    uint64_t stamp; /* order of storing */
} kept_rows;

typedef struct {
    drafter       d; /* first member, so that a drafter * can be cast to a dflash * */
    dflash_config c;
    const ops    *o;
    queue        *q;
    weight       *fc, *embed, *head;     /* embed, head NULL: the target's */
    bool          same_embed, same_head; /* the file's are copies of the target's */
    float         embed_scale;           /* factor of its own table, or of the target's embeddings */
    float         softcap;               /* 0: none */
    weight       *w1, *w2, *conf;        /* DSpark */
    float         conf_bias;
    weight       *before, *after, *middle; /* DFlash-2 */
    int           n_top;                   /* candidates per row that are scored; 0: all tokens */
    bool          whole_block;             /* a pass has all rows of a block, even if fewer tokens are wanted */
    float         attention_scale;
    int           n_few;           /* rows of its own head with a reduced vocabulary; 0: all tokens */
    dev           d2t;             /* [n_few]: their ids */
    dev           n_hidden, n_out; /* weights of the norms after fc and after the last layer */
    rope_params   rope;
    layer        *layers;
    scratch       s;
    block_rows    rows;        /* rows of the pass that is being prepared */
    kv_pool      *kv, *own_kv; /* own_kv NULL: kv is borrowed */
    cache_types   kv_type;
    int           cls;     /* its class in kv */
    bool          has_cls; /* cls was added */
    int           n_lanes, max_lanes;
    draft_lane  **lanes;    /* [max_lanes]; NULL: free */
    draft_job   **live;     /* [max_lanes]: jobs of the call that can draft */
    draft_lane  **drafting; /* [max_lanes]: their lanes */
    kept_rows    *kept;     /* [n_left] */
    int           n_kept_rows;
    uint64_t      now;           /* the last stamp */
    bool          fold_at_end;   /* as in drafter_options */
    int           n_waiting;     /* rows of a lane's buffer */
    int           n_ctx, n_drop; /* slots of context; slots dropped when it is full */
    int           full_window;   /* positions that layers with full attention see; 0: all */
    draft_picker  pick;
    owned         own;
} dflash;

/* --- dflash.c: memory ---------------------------------------------------------------------------*/
bool    dflash_take_waiting(const dflash *m, dev *out, err *e); /* allocates a buffer of n_waiting rows of features */
int32_t dflash_max_slots(const dflash *m);                      /* maximum of slots of a lane's sequence */

/* --- dflash_bind.c ------------------------------------------------------------------------------*/
/* Checks that the drafter can work with its target, and fills in the captures. */
bool dflash_fit_target(dflash *m, err *e);
/* Finds out whether the file's tables are copies of the target's, which are then used instead. */
bool dflash_compare_tables(dflash *m, const checkpoint *cp, err *e);
/* Binds all tensors by name; b->dry only checks shapes. */
bool dflash_load_all(dflash *m, binder *b, err *e);

/* --- dflash_context.c: lanes, and the K/V made of the target's features --------------------------*/
/* The functions of struct drafter. */
bool dflash_lane_new(drafter *d, draft_lane **out, err *e);
void dflash_lane_free(drafter *d, draft_lane *l);
void dflash_cut(drafter *d, draft_lane *l, int32_t n_pos);
bool dflash_observe(drafter *d, draft_lane *l, const draft_rows *r, err *e);
void dflash_wish(const drafter *d, const draft_lane *l, kv_wish *out);
void dflash_take(drafter *d, draft_lane *l, kv_node *at);
void dflash_need(const drafter *d, kv_need *n, int32_t n_pos);

/* Functions with an err fail with ERR_LIMIT when the pool has no page; the caller then calls dflash_lose. */
/* Returns how many positions a context of n_pos positions leaves out after its first page. */
int32_t dflash_shift(const dflash *m, int32_t n_pos);
/* Returns the position of the text that the lane expects next. */
int32_t dflash_next_pos(const draft_lane *l);
/* Returns the slot of a position of the context that is not left out. */
int32_t dflash_slot(const draft_lane *l, int32_t pos);
/* Returns the first position of the context that has no K/V yet, of those that a draft can see. */
int32_t dflash_folded_end(const draft_lane *l);
/* Starts an empty context whose first row is the text's row at `pos`, and which leaves out `skip` rows after its
 * first page. */
void dflash_start_at(const dflash *m, draft_lane *l, int32_t pos, int32_t skip);
/* Drops the context, after a failure or at the end of a request. The next rows start a new one, which is not shared. */
void dflash_lose(const dflash *m, draft_lane *l);
/* Takes slots for the lane's next n rows of context and adds the rows to the pass, at most MAX_ROWS in all. */
bool dflash_add_context(dflash *m, draft_lane *l, int n, err *e);
/* Enqueues the K/V of the pass's rows, whose features are [n][n_features], and ends the pass. */
void dflash_fold(dflash *m, dev features);
/* Enqueues the K/V of the pass's rows, and of padding up to n_rows, from what dflash_fold makes of features. */
void dflash_store_context(dflash *m, dev g, int n_rows);
/* Makes K/V of the lane's next n_rows rows, whose features are contiguous. */
bool dflash_fold_rows(dflash *m, draft_lane *l, dev features, int n_rows, err *e);
/* Makes K/V of the rows that wait in these lanes. Rows of several lanes share a pass. */
bool dflash_fold_together(dflash *m, draft_lane *const *lanes, int n_lanes, err *e);
/* Rotates the keys of the first page to the positions just before the recent ones. */
bool dflash_rotate_first(dflash *m, draft_lane *l, err *e);

/* --- dflash_block.c: a draft, and the rows of a pass ----------------------------------------------*/
bool dflash_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e);
void dflash_warm(drafter *d, kv_pool *kv);
/* Uploads the rows of the pass, and padding up to n_rows; full layers use the result as it is. */
step_rows dflash_upload_rows(dflash *m, int n_rows);
/* Adds a row at `slot` to the pass, in a block that starts at slot `first`. It sees slots up to `end`, or to its own
 * where the layer is causal. */
void dflash_add_row(dflash *m, const draft_lane *l, int32_t token, int32_t slot, int32_t first, int32_t end);
/* Enqueues k = rope(N_k(Wk x)) and v = Wv x of layer l, stored in the pages. */
void dflash_store_kv(dflash *m, int l, dev x, const step_rows *r);
/* Enqueues the recorded graph of a pass over n_rows rows, which starts from x. Returns false when the caller must
 * enqueue it op by op. */
bool dflash_replay(dflash *m, dev x, int n_rows);

/* Return the draft tokens of the job, the rows of its block, and the rows of a block before the first that drafts. */
int dflash_wanted(const dflash *m, const draft_job *job);
int dflash_block_rows(const dflash *m, const draft_job *job);
int dflash_lead(const dflash *m);
/* Computes the logits [n][n_vocab, or n_few] of n <= HEAD_ROWS states, with the softcap if `cap` is not 0. */
void dflash_project(dflash *m, dev logits, dev hidden, int n, float cap);
/* Copies the rows of the pass's states to s.hidden, n <= HEAD_ROWS. */
void dflash_gather(dflash *m, const int32_t *row, int n);
/* Expands logits of a reduced vocabulary. */
void dflash_expand(dflash *m, dev logits, dev few, int n);

/* --- dflash_pairs.c: drafts of tokens that depend on the token before ------------------------------*/
/* Picks the draft tokens of the jobs of a pass from left to right, and fills in the kept rows if `keep` is set. */
bool dflash_pick_pairs(dflash *m, draft_job *const *jobs, int n_jobs, bool keep, err *e);
/* Allocates the scratch. keep_rows: the logits of all tokens are wanted. */
bool dflash_pairs_init(dflash *m, bool keep_rows, err *e);

/* --- dflash_kept.c: features that ended requests leave; drafter.begin and drafter.end -------------*/
void dflash_begin(drafter *d, draft_lane *l, const draft_text *t);
void dflash_end(drafter *d, draft_lane *l);
#endif
