/* model/vision_inside.h - shared by vision.c, which prepares pictures, and vision_tower.c, which binds the weights and
 * runs the layers. */
#ifndef TANDEM_MODEL_VISION_INSIDE_H
#define TANDEM_MODEL_VISION_INSIDE_H
#include "gguf/fingerprint.h"
#include "model/bind.h"
#include "model/vision.h"

#include <stdatomic.h>

enum { VISION_ROWS = 256 }; /* patches of a pass through a matrix; a multiple of the patches of a cell */

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

/* Positions of patches, on the host in the file's type: [rows][width]. */
typedef struct {
    quant_type type;
    char      *data;
    size_t     row_bytes;
    bool       pairs; /* row 2 i + axis; false: axis * n_pos + i */
} vision_table;

struct vision {
    vision_config c;
    const ops    *o;
    queue        *q;
    char          path[4096]; /* the checkpoint with the weights */
    bool          gguf;
    char          stamp[FINGERPRINT_STAMP_MAX]; /* vision_stamp */
    size_t        bytes;                        /* weights in the file */
    atomic_bool   loaded;                       /* the following are set */

    vision_linear patch[2]; /* the second one: of the second frame, if the file has two */
    vision_linear proj, fc; /* proj: to soft tokens; fc: the merger's first map */
    dev           n_patch, b_patch, n_dense, b_dense, n_pos, b_pos; /* layer norms: patches, map, with positions; the
                                                                        merger's is n_patch, b_patch */
    vision_table  table;
    float        *std_bias, *std_scale; /* host; NULL: none */
    vision_layer *layers;
    rope_params   rope;
    owned         own;

    /* Scratch: [VISION_ROWS][n] floats unless noted. */
    dev n, t, heads, q_rows, k, v, gate, up, in; /* in: patches, or joined cells */

    /* Memory for pictures of up to max_patches. */
    int      max_patches;
    dev      z;    /* [patches][width] */
    dev      rows; /* int32: pos, lane, parent, root, last [patches] each, section_pos [patches][3] */
    kv_class kv;   /* K and V of one layer */
    float   *host; /* [patches][max(values, width)] */
};

/* Loads the weights and takes the scratch of passes. */
bool vision_load(vision *v, err *e);
/* Frees what vision_load took, also a part of it. */
void vision_unload(vision *v);
/* Runs patches through the layers: z has their embeddings. Writes the soft tokens to `out`, n_cells rows. */
void vision_run_pooled(vision *v, int width, int height, float *out);
void vision_run_merged(vision *v, int n_patches, float *out);
/* Writes the soft tokens of patches in v->host. pos: their embeddings of positions. */
void vision_run_direct(vision *v, int n_patches, const float *pos, float *out);
/* Writes the patch embeddings of patches in v->host to z, with those of positions in `pos`. */
void vision_embed(vision *v, int n_patches, const float *pos);
#endif
