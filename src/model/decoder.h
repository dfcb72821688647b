/* model/decoder.h - for targets: the parts that the decoders of all families share. These are the embeddings, captured
 * features, the final norm and the output matrix, and a step as a recorded sequence of ops. A family adds its layers.
 *
 * A family's struct begins with a decoder. It sets the callbacks and the tensors named here; decoder_init sets the
 * functions of the target. Thread: as the target. */
#ifndef TANDEM_MODEL_DECODER_H
#define TANDEM_MODEL_DECODER_H
#include "model/roles.h"

enum { DECODER_MAX_LAYERS = 256 };

typedef struct decoder decoder;
/* The rows of a step as the layers get them. Rows whose results nobody reads end in layer `narrow`, when its K/V are
 * stored: the rows that are read then move to the front. */
typedef struct {
    step_rows all, read; /* read.n_rows may be 0: no op runs after that point */
    dev       read_at;   /* int32 [read.n_rows]: their places among all */
    int       narrow;    /* n_layers: no row ends */
} layer_rows;

struct decoder {
    target   t;            /* first: a target * is a decoder * */
    ops     *o;            /* owned; t.o is the same */
    weight  *embed, *head; /* set by load; head == embed when tied */
    dev      n_out;        /* final norm, set by load */
    float    embed_scale;  /* factor of embeddings */
    float    eps;          /* epsilon of the final norm */
    dev      x, n;         /* [max_rows][n_embd]: the residual stream, and scratch of the same size */
    dev      rows;         /* the step's int32 arrays */
    dev      ahead;        /* during a step, the array step.ahead: step_rows.last of sliding layers */
    int      capture_id[DECODER_MAX_LAYERS + 1];
    uint64_t capture_key; /* hash of the captures and their address */
    int      last_store;  /* the last layer that stores K/V or a state; set by the family before the first step */
    owned    own;

    /* Binds all tensors. Called twice: dry first (bind.h). */
    bool (*load)(decoder *d, role_binder *g, err *e);
    /* Allocates the family's scratch, after the tensors are loaded. */
    bool (*init_scratch)(decoder *d, const checkpoint *c, err *e);
    /* Enqueues all layers: x holds the embeddings, and at the end the output of the last layer. Calls decoder_capture
     * before each layer, and decoder_narrow in layer `narrow`. */
    void (*run_layers)(decoder *d, kv_pool *kv, const layer_rows *r);
    void (*free_layers)(decoder *d); /* frees what the family allocated on the host */
};

/* Takes over o. sizes: n_layers, n_embd, n_vocab and n_ctx of the target, and its properties; the rest is set here. */
void decoder_init(decoder *d, const target *sizes, ops *o, const model_options *opt);
/* Checks the shapes of all tensors, which bound every size; then makes the queue and loads the tensors. */
bool decoder_load(decoder *d, role_binder *g, const queue_limits *lim, err *e);
/* Frees everything, also after a failure. It is the target's `close`. */
void decoder_close(target *t);

/* Allocates [max_rows][n] floats, owned by d. */
bool decoder_take_floats(decoder *d, dev *out, size_t n, err *e);
/* Copies n_rows rows of the residual stream before layer h to the features, if it is captured. */
void decoder_capture(const decoder *d, int h, int n_rows);

/* Return the rows of layer l: those that it begins with, and those that go on when its K/V are stored. */
static inline const step_rows *layer_rows_in(const layer_rows *r, int l) { return l <= r->narrow ? &r->all : &r->read; }
static inline const step_rows *layer_rows_out(const layer_rows *r, int l) { return l < r->narrow ? &r->all : &r->read; }
/* Moves the rows of x that are read to the front. d->n is scratch. */
void decoder_narrow(const decoder *d, const layer_rows *r);
/* The same for any rows of n floats. scratch: read.n_rows such rows. */
void decoder_gather(const decoder *d, const layer_rows *r, dev rows, int n, dev scratch);
#endif
