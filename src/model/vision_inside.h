/* model/vision_inside.h - shared by vision.c, which prepares pictures, and vision_tower.c, which binds the weights and
 * runs the layers. */
#ifndef TANDEM_MODEL_VISION_INSIDE_H
#define TANDEM_MODEL_VISION_INSIDE_H
#include "gguf/fingerprint.h"
#include "model/bind.h"
#include "model/vision.h"

#include <stdatomic.h>

/* Patches of a pass through the matrices at most: whole cells of 4 and of 9 patches. A device whose ops run later takes
 * a picture of the default size, of 2,520 patches, at once. */
enum { VISION_UNIT = 36, VISION_ROWS = 7 * VISION_UNIT, VISION_ROWS_LATER = 72 * VISION_UNIT, VISION_MIXED = 4 };

enum { VISION_LATER_BYTES = 1 << 30 }; /* about what passes of VISION_ROWS_LATER patches take, with their queue */

/* y = clamp(W clamp(x, input), output) + bias; a linear map without bounds or bias leaves these out. */
typedef struct {
    weight *w;
    dev     bias;  /* NULL (.p): none */
    float   in[2]; /* bounds of the input, and of the output */
    float   out[2];
    bool    clipped;
} vision_linear;

typedef struct {
    vision_linear q, k, v, o, gate, up, down; /* VISION_MERGED: q is that of q, k and v; up and down */
    dev           n_in, n_post_attn, n_pre_ff, n_post_ff, n_q, n_k; /* VISION_MERGED: n_in, n_pre_ff */
    dev           b_in, b_pre_ff;                                   /* biases of layer norms */
} vision_layer;

/* Embeddings of positions. The embedding of a patch is a sum of up to VISION_MIXED rows, each times a factor. */
typedef struct {
    weight *w;
    bool    pairs; /* row 2 i + axis; false: axis * n_pos + i */
} vision_table;

struct vision {
    vision_config c;
    const ops    *o;
    queue        *q;
    char          path[4096]; /* the checkpoint with the weights */
    bool          gguf;
    bool          exact;                        /* vision_set_exact */
    char          stamp[FINGERPRINT_STAMP_MAX]; /* vision_stamp */
    size_t        file_bytes;                   /* weights in the file */
    atomic_bool   loaded;                       /* the following are set */

    vision_linear patch[2]; /* the second one: of the second frame, if the file has two */
    vision_linear proj, fc; /* proj: to soft tokens; fc: the merger's first map */
    dev           n_patch, b_patch, n_dense, b_dense, n_pos, b_pos; /* layer norms: patches, map, with positions; the
                                                                        merger's is n_patch, b_patch */
    vision_table  table;
    dev           std_bias, std_scale; /* std_bias: minus the file's; NULL (.p): none */
    dev           values;              /* [256]: the number for a byte of a patch */
    vision_layer *layers;
    rope_params   rope;
    owned         own;

    /* Scratch: [max_rows][n] floats. */
    int max_rows;
    dev n, t, heads, q_rows, k, v, gate, up, in; /* in: patches, inputs of clipped maps, joined q, k and v; up: also
                                                    embeddings of positions before they are mixed */

    /* Memory for pictures of up to max_patches. */
    int      max_patches;
    dev      z;     /* [patches][width] */
    dev      rows;  /* int32 [ROW_ARRAYS][patches] */
    dev      bytes; /* [parts of a patch][patches][values of the part] */
    kv_class kv;    /* K and V of one layer */
    uint8_t *host;  /* as bytes */
};

/* The arrays of a picture of P patches, P numbers each unless noted. */
enum {
    ROW_POS,
    ROW_LANE,
    ROW_PARENT,
    ROW_ROOT,
    ROW_LAST,
    ROW_SECTION,                         /* [P][ROPE_SECTIONS] */
    ROW_MIX    = ROW_SECTION + 3,        /* [P][mixed]: rows of the table */
    ROW_FACTOR = ROW_MIX + VISION_MIXED, /* f32 [P][mixed] */
    ROW_ARRAYS = ROW_FACTOR + VISION_MIXED,
};
/* Returns how many rows of the table the embedding of a position mixes. */
static inline int vision_mixed(const vision *v) { return v->c.kind == VISION_MERGED ? VISION_MIXED : 2; }
/* Returns the parts of a patch that have a matrix each. */
static inline int vision_parts(const vision *v) { return v->patch[1].w ? 2 : 1; }

/* Loads the weights and takes the scratch of passes. */
bool vision_load(vision *v, err *e);
/* Frees what vision_load took, also a part of it. */
void vision_unload(vision *v);
/* Runs the patches in v->bytes and v->rows, cell by cell, through the encoder. Enqueues the soft tokens' way to `out`,
 * a row for each cell; they are there after sync. */
void vision_run(vision *v, int n_patches, float *out);
#endif
