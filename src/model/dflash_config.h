/* model/dflash_config.h - the configuration of a DFlash drafter, from a Hugging Face directory or one of three GGUF
 * layouts.
 *
 * The layouts name the same tensors differently; general.architecture identifies them (docs/speculation.md has the
 * table). Sizes come from the tensors, since some files have wrong keys. Keys give the rest: ids, block size, rope,
 * epsilon, windows. Every value is checked for range here. */
#ifndef TANDEM_MODEL_DFLASH_CONFIG_H
#define TANDEM_MODEL_DFLASH_CONFIG_H
#include "gguf/checkpoint.h"

enum {
    DFLASH_MAX_LAYERS   = 256,
    DFLASH_MAX_CAPTURES = 64,
    DFLASH_MAX_BLOCK    = 256,
    DFLASH_NAME_MAX     = 96,
};

typedef enum {
    DFLASH_DIR,   /* Hugging Face, as z-lab publishes them */
    DFLASH_LLAMA, /* "dflash" of llama.cpp */
    DFLASH_IK,    /* "dflash-draft" of ik_llama.cpp */
    DFLASH_LUCE,  /* "qwen35-dflash-draft", "gemma4-dflash-draft" of lucebox */
} dflash_layout;

/* The tensors of a drafter; dflash.c has the formulas. */
typedef enum {
    DFLASH_FC,          /* features to the width of the drafter */
    DFLASH_HIDDEN_NORM, /* norm after it */
    DFLASH_NORM,        /* norm after the last layer */
    DFLASH_EMBED,       /* this one and the next two: only drafters that do not borrow the target's */
    DFLASH_HEAD,        /* output matrix */
    DFLASH_D2T,         /* token ids of the head's rows, if it has a reduced vocabulary */
    DFLASH_ATTN_NORM,   /* from here on one per layer */
    DFLASH_Q,
    DFLASH_K,
    DFLASH_V,
    DFLASH_O,
    DFLASH_Q_NORM,
    DFLASH_K_NORM,
    DFLASH_FF_NORM,
    DFLASH_GATE,
    DFLASH_UP,
    DFLASH_DOWN,
    DFLASH_ROLES,
} dflash_role;

typedef struct {
    dflash_layout layout;
    const char   *prefix; /* prefix of a directory's tensor names: "" or "model." */
    int           n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim;
    int           n_features;                   /* floats of a context row: all captured outputs concatenated */
    int           n_vocab;                      /* 0: not in the file */
    int           n_ctx;                        /* max_position_embeddings; 0: not in the file */
    int           block;                        /* rows of a draft: the anchor and the masks */
    int           mask_id;                      /* token id of a mask */
    int           n_captures;                   /* 0: the file has no list */
    int           capture[DFLASH_MAX_CAPTURES]; /* layers of the target whose output is captured */
    int           window;                       /* positions that a row of a sliding layer sees; 0: no sliding layer */
    bool          sliding[DFLASH_MAX_LAYERS];
    bool          causal_full, causal_sliding; /* inside the block; if false its rows attend to each other */
    bool          own_embed;                   /* the file's embeddings are used, if it has any; else the target's */
    bool          tied;                        /* a file with embeddings and no output matrix uses the embeddings */
    double        eps, theta;
    double        softcap; /* -1: the target's */
} dflash_config;

/* Writes the name of a tensor in a layout. l: the layer; ignored by roles without layers. prefix: ignored by GGUF
 * layouts. */
void dflash_tensor_name(dflash_layout layout, const char *prefix, dflash_role r, int l, char out[DFLASH_NAME_MAX]);
/* Returns a tensor of the checkpoint, NULL when it is absent. */
const tensor *dflash_tensor(const dflash_config *c, const checkpoint *cp, dflash_role r, int l);
/* Reads the configuration. Refuses similar drafters that are not implemented (DFlash-2, DSpark), scaled ropes, biases,
 * and files with unknown tensors. */
bool dflash_config_read(dflash_config *out, const checkpoint *cp, err *e);
/* Sets out[n] to the layers whose outputs a drafter without a list was trained on: n of a target with n_layers. */
void dflash_default_captures(int *out, int n, int n_layers);
#endif
