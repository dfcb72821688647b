/* model/model.h - the interface of a target model: a step of rows goes in, hidden states and logits come out.
 *
 * A *step* is a batch of rows of several lanes: prompt chunks, single tokens and trees of drafts together. A lane's
 * rows are contiguous and come after their parents. The caller makes room in the lanes first (kv/lane.h).
 *
 * A target holds weights, one queue and scratch for a step, and no state of any lane: a lane's pages and states are
 * in the pool. A lane whose first row has position 0 starts from states that are all zeros, whatever the pool holds.
 * One thread at a time uses a target. */
#ifndef TANDEM_MODEL_MODEL_H
#define TANDEM_MODEL_MODEL_H
#include "gguf/checkpoint.h"
#include "kv/pages.h"
#include "media/prompt.h"
#include "ops/ops.h"

enum {
    STEP_MAX_ROWS     = 4096, /* the largest max_rows of a target */
    STEP_DEFAULT_ROWS = 256,
    HEAD_ROWS         = 32, /* maximum of rows per call of head */
    MODEL_MAX_STOPS   = 64, /* maximum of stop tokens, and of suppressed tokens */
};

typedef struct target target;

/* The rows of one step, as the host fills them in. step_rows describes the fields. Each array has max_rows elements. */
typedef struct {
    int32_t *token; /* vocabulary ids; ignored for `given` rows */
    int32_t *pos, *lane, *slot, *parent, *root, *last;
    int32_t *ahead;   /* the last position that it sees in sliding layers; `last`, unless step_see_ahead changed it */
    int32_t *section; /* [max_rows][ROPE_SECTIONS]: positions that rope rotates by, for targets with sections; `pos` in
                         every section, unless the caller changes them after adding the row */
    int32_t *want;    /* rows whose final hidden state and logits are wanted, ascending */
    int32_t  n_rows, n_want, max_rows;
    struct {
        int first, n; /* rows */
        dev ids;      /* int32 [n] */
    } * given;        /* rows whose tokens are on the device; an id of -1: no token */
    int n_given;
    /* Rows that the commit may reject, for targets with states (kv/lane.h): rows first .. first + n - 1, the last of
     * their lane. Row first + i stores its inputs, or its state, in place `at` + i of the kept rows. All other rows
     * change the live state. */
    struct {
        int first, n, at;
    } * kept;
    int n_kept;
    struct {
        int          first, n; /* rows */
        const float *x;        /* host memory, [n][n_embd]; must not change until the step was enqueued */
    } * soft;                  /* rows whose embeddings are given instead of those of their tokens */
    int      n_soft;
    int32_t *packed; /* buffer of step_upload */
} step;

void step_init(step *s, int max_rows); /* max_rows: from 1 to STEP_MAX_ROWS */
void step_deinit(step *s);             /* accepts a zeroed step */
/* The rows of a step on the device. `read` are the rows whose results someone may read after the last K/V is stored:
 * the wanted ones and trees. Their parents are places among themselves. */
typedef struct {
    step_rows all, read;
    dev       read_at; /* int32 [read.n_rows]: their places among all rows */
    bool      narrow;  /* `read` is set, and has at most half of the rows; false: all rows may be read */
    dev       want;    /* int32: the places of the wanted rows, with `narrow` those in `read` */
    dev       ahead;   /* int32: step.ahead of all rows */
} step_upload_rows;
/* step_rows.before and kept, for targets with states; `read`, if it pays; step_rows.section_pos */
enum { STEP_PATHS = 1, STEP_NARROW = 2, STEP_SECTIONS = 4 };
/* Enqueues the upload of the rows in one piece to `to`, which has step_bytes(max_rows) bytes. s must not change until
 * the upload is done. n_rows: at least those of s, at most max_rows; the rows after those of s are padding
 * (ops.padding), and `want` is padded to n_rows with row 0. parts: STEP_PATHS and so on, or 0. */
step_upload_rows step_upload(const step *s, int n_rows, const ops *o, queue *q, dev to, unsigned parts);
size_t           step_bytes(int max_rows);
bool             step_has_few_lanes(const step *s); /* step_rows.few_lanes, which step_upload leaves to the caller */

void step_clear(step *s); /* removes all rows */
/* The following assert that there is room for the rows. want: the row is added to `want`. */
/* Adds a row that follows position pos - 1 of its lane, in the cache or in this step. */
void step_add(step *s, int lane, int32_t pos, int32_t token, bool want);
/* Adds n rows from pos on, all wanted, for draft tokens on the device. Rows after a token of -1 are undefined. */
void step_add_given(step *s, int lane, int32_t pos, dev ids, int n);
/* Adds a row of a tree whose committed part ends at `root`. parent: a row of this step, or -1 for the first row of
 * the tree. index: counts the lane's rows in this step from 0. */
void step_add_tree(step *s, int lane, int32_t root, int index, int parent, int32_t token, bool want);

/* Makes the row see the positions up to `last` in sliding layers. They are in slots of the same numbers. */
void step_see_ahead(step *s, int row, int32_t last);
/* Gives n rows from `first` on the embeddings x, as in `soft`. */
void step_embed(step *s, int first, int n, const float *x);
/* Marks the last n rows added, all of one lane, as kept rows, from place `at` on. */
void step_keep(step *s, int n, int at);

/* A layer whose K/V a drafter may read: the last layer of its kind with its own K/V. */
typedef struct {
    bool there;                                            /* false: the model has no layer of this kind */
    int  kv_class, kv_layer, n_kv_heads, head_dim, window; /* kv_layer: index in the class; window 0: all positions */
} kv_donor;

/* Types of K and V by the kind of layer. */
typedef struct {
    cache_types   full, sliding; /* layers of the target: full attention, sliding */
    cache_types   draft;         /* a drafter's own K/V */
    sparse_params sparse;        /* layers of the target with full attention; zeros: dense */
} kv_types;
#define KV_TYPES_ALL(t)                                                                                                \
    {                                                                                                                  \
        .full = {t, t}, .sliding = {t, t}, .draft = { t, t }                                                           \
    } /* an initialiser */
/* Returns the defaults for these types of full layers: the others are the same, but not below f16. */
kv_types kv_types_default(cache_types full);
/* Writes the types of full layers, and the others, and sparse attention, where they are not the defaults. Returns
 * out. */
enum { KV_TYPES_TEXT = 128 };
const char *kv_types_text(const kv_types *t, char out[KV_TYPES_TEXT]);

typedef struct model_family model_family; /* model/family.h */
typedef struct vision       vision;       /* model/vision.h */
struct target {
    const model_family *family;
    const ops          *o; /* owned by the target, as q */
    queue              *q;
    int                 n_layers, n_embd, n_vocab, n_ctx; /* n_ctx: the model's limit, in tokens */
    int                 max_rows;                         /* maximum rows of a step */
    kv_class_spec       kv_class[KV_MAX_CLASSES];         /* set by target_set_kv; f16 after opening */
    int                 n_kv_classes;
    kv_state_spec       state[KV_MAX_STATES]; /* states of recurrent layers */
    int                 n_states;             /* 0: none */
    int                 max_kept_rows;        /* maximum per step; 0: max_rows */
    size_t              weight_bytes;
    uint64_t            n_params;                 /* numbers in its matrices */
    quant_type          weight_type;              /* type of most weights in the file */
    int32_t             stop_id[MODEL_MAX_STOPS]; /* from the model's files; the tokenizer may add more */
    int                 n_stop_ids;
    int32_t             suppress_id[MODEL_MAX_STOPS]; /* never picked */
    int                 n_suppress_ids;
    bool                empty_thought; /* chat: a response without thinking starts with an empty thought */
    bool                causal_media;  /* rows of pictures see no later rows, where the files do not state it */
    const media_rules  *media;         /* pictures that the model accepts; NULL: text only; as the next five */
    vision             *vision;        /* their encoder */
    const char         *media_stamp; /* identifies a file of the encoder in addition to the model's files; NULL: none */
    size_t              media_bytes; /* about the memory that it takes from the first picture on */
    bool                sees_ahead;  /* in sliding layers a row of a span sees all rows of the span */
    bool                sections;    /* rows have section positions (step.section) */
    sample_params       defaults;    /* sampling defaults of the model's files; else those of the family */

    /* Divides the layers into page classes with these types. Returns their number. Changes nothing. */
    int (*kv_classes)(const target *t, const kv_types *types, kv_class_spec out[KV_MAX_CLASSES]);
    /* Makes the next steps use pages of these classes. NULL, both: the classes do not depend on the types. */
    void (*set_kv)(target *t, const kv_types *types);

    /* Selects features, instead of those selected before: the residual stream before layer h (h = n_layers: after the
     * last) for each h in ids, of every row of the next steps, concatenated in `features` [max_rows][n_features *
     * n_embd]. n_ids 0 ends it. Rows that are not wanted have no other results. Allocates: not inside a step. On
     * failure the former selection stays. */
    bool (*capture)(target *t, const int *ids, int n_ids, err *e);
    dev        features;
    int        n_features; /* number of ids */
    const int *feature_id; /* [n_features] */

    /* Enqueues the rows on q. Writes the wanted rows' states after the final norm to `hidden` [n_want][n_embd], which
     * is valid until the next step. Errors of the device may be reported by o->check after a sync only; the K/V of the
     * rows is undefined then. */
    bool (*step)(target *t, kv_pool *kv, const step *s, err *e);
    dev hidden;
    /* Enqueues steps of padding rows alone, so that the backend records the steps of all sizes that it records, and no
     * later step has to. Changes no K/V. NULL: nothing is recorded. Allocates: not inside a step. */
    void (*warm)(target *t, kv_pool *kv);
    /* Enqueues the softcapped logits [n][n_vocab] of wanted rows first .. first + n - 1 into `logits`, which the next
     * call overwrites. n <= HEAD_ROWS. */
    void (*head)(target *t, int first, int n);
    dev logits;
    /* Writes the n_top best of the same logits, as ops->matmul_top, to `best` [n][n_top], n_top <= SAMPLE_TOP_MAX,
     * and does not write `logits`. NULL for backends that gain nothing by it. */
    void (*head_top)(target *t, int first, int n, int n_top);
    dev best;

    /* For drafters: embed writes embeddings as the first layer gets them, y [n][n_embd]; project applies the output
     * matrix to any states, without the softcap, logits [n][n_vocab], n <= HEAD_ROWS. */
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
    int         max_rows;     /* maximum per step, up to STEP_MAX_ROWS; 0: ops.default_rows */
    const char *mmproj;       /* file of the encoder of pictures; NULL: found (model/vision.h); "none": none */
    ops *(*wrap)(ops *inner); /* wraps the table of ops, such as ops_profile; NULL: no */
    /* Called from time to time, and after each tensor, with the bytes loaded. May be NULL. */
    void (*progress)(void *ctx, size_t done, size_t total);
    void *progress_ctx;
} model_options;

/* Writes the soft tokens of a span, [s->n][n_embd] floats of host memory, and blocks until they are computed. t->media
 * is not NULL. Not inside a step. ERR_INPUT: the picture is too large for the encoder. */
bool target_encode(target *t, const media_span *s, float *out, err *e);
/* Frees the memory of the encoder, which the next target_encode loads again. Not inside a step. */
void target_park_media(target *t);
/* Opens the model of a checkpoint. The checkpoint may be closed afterwards. opt is not NULL. *out is NULL on
 * failure. */
bool model_open(target **out, const checkpoint *c, const model_options *opt, err *e);
void model_close(target *t); /* accepts NULL; requires that its pools and drafters are closed */
/* Sets the types of K and V, and kv_class for the pools that are made afterwards. Not inside a step. */
void target_set_kv(target *t, const kv_types *types);
/* Writes the page classes that target_set_kv would set. Returns their number. */
int target_kv_classes(const target *t, const kv_types *types, kv_class_spec out[KV_MAX_CLASSES]);
/* Returns the architecture that the file names, such as "gemma4" or "gemma4_text", or "". Borrows from c. */
str model_arch(const checkpoint *c);
#endif
