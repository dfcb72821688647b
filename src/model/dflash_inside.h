/* model/dflash_inside.h - types and functions that the files of the DFlash drafter share. The model is described in dflash.c. */
#ifndef TANDEM_MODEL_DFLASH_INSIDE_H
#define TANDEM_MODEL_DFLASH_INSIDE_H
#include "base/num.h"
#include "model/bind.h"
#include "model/dflash.h"
#include "model/dflash_config.h"

enum {
    MAX_ROWS      = 256,     /* of a pass; more rows take several */
    WAITING_BYTES = 1 << 20, /* for features of a lane that wait to be folded in, */
    MIN_WAITING   = 64,      /* unless so many rows are more */
    MAX_WAITING   = MAX_ROWS,
    MIN_LEFT      = 8, /* requests whose rows are kept: as many as there are lanes, or so many */
    MIN_CTX       = 2 * KV_PAGE,
    DEFAULT_CTX   = 4096,  /* what drafters are trained on, where their files do not say */
    MAX_TRAINED   = 32768, /* a larger max_position_embeddings is the target's, not what the drafter was trained on */
    PER_LAYER     = 11,    /* tensors */
};

typedef struct {
    weight *q, *k, *v, *o, *gate, *up, *down;
    dev     n_in, n_q, n_k, n_ff;
} layer;

/* The rows of one pass, uploaded in one piece. */
typedef struct {
    int32_t token[MAX_ROWS];
    int32_t pos[MAX_ROWS]; /* in the text: what rope turns by */
    int32_t lane[MAX_ROWS];
    int32_t slot[MAX_ROWS];         /* where K/V goes; to attention, the position */
    int32_t root[MAX_ROWS];         /* above all slots that the row sees */
    int32_t last_full[MAX_ROWS];    /* last slot that it sees in full layers, */
    int32_t last_sliding[MAX_ROWS]; /* and in sliding ones */
    int     n;
} block_rows;

/* Scratch of a pass; [MAX_ROWS][n] floats unless said. */
typedef struct {
    dev features; /* [MAX_ROWS][n_features]: gathered */
    dev x, y, f;  /* [n_embd] */
    dev q, heads; /* [n_heads * head_dim] */
    dev k, v;     /* [n_kv_heads * head_dim] */
    dev gate, up; /* [n_ff] */
    dev hidden;   /* [HEAD_ROWS][n_embd]: gathered */
    dev logits;   /* [HEAD_ROWS][n_vocab of the target] */
    dev few;      /* [HEAD_ROWS][n_few]: logits of a reduced vocabulary */
    dev rows;     /* block_rows */
    dev index;    /* int32 [MAX_ROWS]: rows to gather */
    dev moves;    /* kv_move_item [MAX_ROWS] */
} scratch;

/* Positions are counted from the context's first, which is 0 unless the drafter came in the middle of a text. */
struct draft_lane {
    kv_seq           *seq;           /* the rows folded in; between calls nothing else */
    kv_seq           *first;         /* its first page as it was made, once that of seq is turned; NULL: seq's is */
    int32_t           base;          /* the text's position that is the context's first */
    int32_t           n_seen;        /* positions of the context */
    int32_t           shift, turned; /* turned: the shift that seq's first page is turned for */
    int32_t           wished;        /* the first position behind the first page that this request's drafts can see */
    int               n_wait;        /* rows in `waiting`: the last of those seen */
    dev               waiting;       /* [n_waiting][n_features] */
    const draft_text *text;          /* NULL: it shares nothing */
    int               n_given;       /* pages of the text that are in the tree, or never will be */
};

/* Rows of a text that are not folded in: whole pages. */
typedef struct {
    int32_t        first; /* position, the first of a page */
    int            n;     /* rows */
    const int32_t *token; /* [n] */
    dev            features;
} unfolded;

/* Those that a request left: features that no draft had to see are kept as they are, for a text that goes on there. */
typedef struct {
    unfolded rows;   /* n 0: nothing is left here */
    uint64_t salt;   /* of the text, */
    uint64_t before; /* and a hash of what comes before the rows */
    int32_t  token[MAX_WAITING];
    uint64_t stamp; /* when they were left */
} left_rows;

typedef struct {
    drafter       d; /* first: a drafter * is a dflash * */
    dflash_config c;
    const ops    *o;
    queue        *q;
    weight       *fc, *embed, *head; /* embed, head NULL: the target's */
    float         embed_scale;       /* of its own table */
    float         softcap;
    int           n_few; /* rows of a head of its own for fewer tokens; 0: all */
    dev           d2t;   /* [n_few]: their ids */
    dev           n_hidden, n_out;
    rope_params   rope;
    layer        *layers;
    scratch       s;
    block_rows    rows;
    kv_pool      *kv, *own_kv; /* own_kv NULL: somebody else's */
    int           cls;
    bool          has_cls;
    int           n_lanes, max_lanes;
    draft_lane  **lanes;    /* [max_lanes], NULL where free */
    draft_job   **live;     /* [max_lanes]: jobs of the call that can draft */
    draft_lane  **drafting; /* [max_lanes]: their lanes */
    left_rows    *left;     /* [n_left] */
    int           n_left;
    uint64_t      now;           /* the last stamp */
    int           n_waiting;     /* rows that may wait in a lane */
    int           n_ctx, n_drop; /* slots of context; dropped when they are full */
    draft_picker  pick;
    owned         own;
} dflash;

/* --- dflash.c: memory ---------------------------------------------------------------------------*/
bool    dflash_take_waiting(const dflash *m, dev *out, err *e); /* room for the features of n_waiting rows */
int32_t dflash_max_slots(const dflash *m);                      /* of a lane's sequence */

/* --- dflash_bind.c ------------------------------------------------------------------------------*/
/* Checks that the drafter can work with its target, and fills in the captures. */
bool dflash_fit_target(dflash *m, err *e);
/* Binds all tensors by name; b->dry only checks shapes. */
bool dflash_load_all(dflash *m, binder *b, err *e);

/* --- dflash_context.c: lanes, and the K/V made of the target's features --------------------------*/
bool dflash_lane_new(drafter *d, draft_lane **out, err *e);
void dflash_lane_free(drafter *d, draft_lane *l);
void dflash_cut(drafter *d, draft_lane *l, int32_t n_pos);
bool dflash_observe(drafter *d, draft_lane *l, const draft_rows *r, err *e);
void dflash_wish(const drafter *d, const draft_lane *l, kv_wish *out);
void dflash_take(drafter *d, draft_lane *l, kv_node *at);
void dflash_need(const drafter *d, kv_need *n, int32_t n_pos);

/* Returns how many positions a context of n_pos positions leaves out after its first page. */
int32_t dflash_shift(const dflash *m, int32_t n_pos);
/* Returns the position of the text that the lane expects next. */
int32_t dflash_next_pos(const draft_lane *l);
/* Returns the slot of a position of the context that is not left out. */
int32_t dflash_slot(const draft_lane *l, int32_t pos);
/* Returns the first position that has no K/V yet, of those that a draft can see. */
int32_t dflash_folded_end(const draft_lane *l);
/* Starts an empty context whose first row is the text's row at `pos`, and which leaves out `skip` rows after its first page. */
void dflash_start_at(const dflash *m, draft_lane *l, int32_t pos, int32_t skip);
/* Drops the context after a failure. The next rows start a new one. */
void dflash_lose(const dflash *m, draft_lane *l);
/* Adds the lane's next n rows of context to the pass. */
bool dflash_add_context(dflash *m, draft_lane *l, int n, err *e);
/* Makes K/V of the features of the pass's rows. */
void dflash_fold(dflash *m, dev features);
/* Makes K/V of n_rows contiguous rows of features. */
bool dflash_fold_rows(dflash *m, draft_lane *l, dev features, int n_rows, err *e);
/* Makes K/V of the rows that wait in these lanes. Rows of several lanes share a pass. */
bool dflash_fold_together(dflash *m, draft_lane *const *lanes, int n_lanes, err *e);
/* Rotates the keys of the first page to the positions just before the recent ones. */
bool dflash_turn_first(dflash *m, draft_lane *l, err *e);

/* --- dflash_block.c: a draft, and the rows of a pass ----------------------------------------------*/
bool      dflash_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e);
step_rows dflash_upload_rows(dflash *m);
/* Adds a row at `slot` to the pass. It sees slots up to `end`. */
void dflash_add_row(dflash *m, const draft_lane *l, int32_t token, int32_t slot, int32_t end);
/* Stores k = rope(N_k(Wk x)) and v = Wv x of layer l in the pages. */
void dflash_store_kv(dflash *m, int l, dev x, const step_rows *r);
/* Runs the recorded graph of a pass over the rows, which starts from x. Returns false when the caller must enqueue it op by op. */
bool dflash_replay(dflash *m, dev x);

/* --- dflash_left.c: features that ended requests leave --------------------------------------------*/
void dflash_begin(drafter *d, draft_lane *l, const draft_text *t);
void dflash_end(drafter *d, draft_lane *l);
#endif
