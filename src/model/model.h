/* model/model.h - what the layers above see of a model: a step of rows goes in, hidden states and logits come out.
 *
 * A *step* is a batch of rows of several lanes: prompt chunks, single tokens and trees of drafts together. A lane's
 * rows are contiguous and come after their parents. The caller makes room in the lanes first (kv/lane.h).
 *
 * A target holds weights, one queue and scratch for a step, and no state of any lane: a lane's pages and states are in the
 * pool. A lane whose first row has position 0 starts from states that are all zeros, whatever the pool holds.
 * Thread: one at a time. */
#ifndef TANDEM_MODEL_MODEL_H
#define TANDEM_MODEL_MODEL_H
#include "gguf/checkpoint.h"
#include "kv/pages.h"
#include "ops/ops.h"

enum {
    STEP_MAX_ROWS     = 4096, /* the largest max_rows of a target */
    STEP_DEFAULT_ROWS = 256,
    HEAD_ROWS         = 32, /* logits are made for so many rows at a time */
    MODEL_MAX_STOPS   = 64,
};

/* The rows of one step, as the host fills them in. step_rows describes the fields. Each array has max_rows elements. */
typedef struct {
    int32_t *token; /* at least 0: no family takes uploaded embeddings yet */
    int32_t *pos, *lane, *slot, *parent, *root, *last;
    int32_t *want; /* rows whose final hidden state and logits are wanted, ascending */
    int32_t  n_rows, n_want, max_rows;
    struct {
        int first, n; /* rows */
        dev ids;      /* int32 [n] */
    } * given;        /* rows whose tokens only the device knows, -1 where there is none */
    int n_given;
    /* Rows that the commit may reject, for targets with states (kv/lane.h): rows first .. first + n - 1, the last of their lane.
     * Row first + i stores its inputs, or its state, in place `at` + i of the kept rows. All other rows change the live state. */
    struct {
        int first, n, at;
    } * kept;
    int      n_kept;
    int32_t *packed; /* of step_upload */
} step;

void step_init(step *s, int max_rows);
void step_deinit(step *s); /* a zeroed one is fine */
/* Uploads the rows in one piece to `to`, which has step_bytes(max_rows) bytes. *want is the address of `want` there. */
step_rows step_upload(const step *s, const ops *o, queue *q, dev to, dev *want);
size_t    step_bytes(int max_rows);

void step_clear(step *s);
/* A row that follows position pos - 1 of its lane in the cache (or the row before it in this step). */
void step_add(step *s, int lane, int32_t pos, int32_t token, bool want);
/* n rows, all wanted, from pos on: guesses that lie on the device. What follows a guess that is -1 means nothing. */
void step_add_given(step *s, int lane, int32_t pos, dev ids, int n);
/* A row of a tree whose committed part ends at `root`: parent is a row of this step, or -1 for the tree's first row;
 * index counts the lane's rows in this step from 0. */
void step_add_tree(step *s, int lane, int32_t root, int index, int parent, int32_t token, bool want);

/* Declares the last n rows that were added kept rows, from place `at` on. */
void step_keep(step *s, int n, int at);

/* A layer whose K/V a drafter may read: the last of its kind that has its own. */
typedef struct {
    bool there;
    int  kv_class, kv_layer, n_kv_heads, head_dim, window;
} kv_donor;

typedef struct model_family model_family; /* model/family.h */
typedef struct target       target;
struct target {
    const model_family *family;
    const ops          *o;
    queue              *q;
    int                 n_layers, n_embd, n_vocab, n_ctx;
    int                 max_rows;
    kv_class_spec       kv_class[KV_MAX_CLASSES]; /* type is the caller's to set */
    int                 n_kv_classes;
    kv_state_spec       state[KV_MAX_STATES]; /* of recurrent layers */
    int                 n_states;             /* 0: there are none */
    int                 max_kept_rows;        /* of a step; 0: max_rows */
    size_t              weight_bytes;
    uint64_t            n_params;                 /* numbers in its matrices */
    quant_type          weight_type;              /* of most of them, in the file */
    int32_t             stop_id[MODEL_MAX_STOPS]; /* of the model's files; the tokenizer may know more */
    int                 n_stop_ids;
    int32_t             suppress_id[MODEL_MAX_STOPS]; /* never to be picked */
    int                 n_suppress_ids;
    bool                empty_thought; /* chat: an answer without thinking starts with an empty thought */
    sample_params       defaults;      /* of generation_config; greedy where the files say nothing */

    /* Features: the residual stream before layer h (h = n_layers: after the last), of every row of the next steps,
     * side by side in `features` [max_rows][n_features * n_embd]. n_ids 0 ends it. Takes memory: not inside a step. */
    bool (*capture)(target *t, const int *ids, int n_ids, err *e);
    dev features;
    int n_features;

    /* Runs the rows; `hidden` [n_want][n_embd] then holds the states after the final norm. */
    bool (*step)(target *t, kv_pool *kv, const step *s, err *e);
    dev hidden;
    /* Logits [n][n_vocab] of wanted rows first .. first + n - 1, n <= HEAD_ROWS, softcapped, into `logits`. */
    void (*head)(target *t, int first, int n);
    dev logits;
    /* The n_top best of the same logits, as ops->matmul_top gives them, into `best` [n][n_top], n_top <= SAMPLE_TOP_MAX;
     * `logits` is left alone. NULL where the backend gains nothing by it. */
    void (*head_top)(target *t, int first, int n, int n_top);
    dev best;

    /* What drafters borrow: embeddings as the first layer gets them, y [n][n_embd]; and the output matrix on any states,
     * without the softcap, logits [n][n_vocab], n <= HEAD_ROWS. */
    void (*embed)(target *t, dev y, dev ids, int n);
    void (*project)(target *t, dev logits, dev hidden, int n);
    float    softcap;      /* 0: none */
    bool     scaled_embed; /* embeddings are multiplied by the square root of their width */
    kv_donor donor[2];     /* full, sliding */

    void (*close)(target *t);
};

typedef struct {
    const char *device;       /* as ops_open; NULL: "auto" */
    int         n_threads;    /* 0: as many as this process may use */
    int         max_rows;     /* of a step, up to STEP_MAX_ROWS; 0: STEP_DEFAULT_ROWS */
    ops *(*wrap)(ops *inner); /* a table that looks on, such as ops_profile; NULL: none */
    /* Told now and then, and after each tensor: bytes done of all. May be NULL. */
    void (*progress)(void *ctx, size_t done, size_t total);
    void *progress_ctx;
} model_options;

/* Opens what the checkpoint describes. The checkpoint may be closed afterwards. */
bool model_open(target **out, const checkpoint *c, const model_options *opt, err *e);
void model_close(target *t); /* NULL is fine */
/* What the file calls its architecture, for messages: "gemma4", "gemma4_text", ... or "" */
str model_arch(const checkpoint *c);
#endif
