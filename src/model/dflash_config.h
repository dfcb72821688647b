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

typedef enum {
    DFLASH_FC,
    DFLASH_HIDDEN_NORM,
    DFLASH_NORM,
    DFLASH_EMBED, /* this one and the next two: only drafters that do not borrow */
    DFLASH_HEAD,
    DFLASH_D2T,
    DFLASH_ATTN_NORM, /* from here on one per layer */
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
    int           n_features; /* floats of a context row: all captures concatenated */
    int           n_vocab;    /* 0: not in the file */
    int           n_ctx;      /* max_position_embeddings; 0: not in the file */
    int           block;      /* rows of a draft: the anchor and the masks */
    int           mask_id;
    int           n_captures;                   /* 0: the file has no list */
    int           capture[DFLASH_MAX_CAPTURES]; /* layers of the target whose output is captured */
    int           window;                       /* positions of sliding layers; 0: none */
    bool          sliding[DFLASH_MAX_LAYERS];
    bool          causal_full, causal_sliding; /* inside the block; if false its rows attend to each other */
    bool          own_embed;                   /* the file's table is to be used where it has one */
    bool          tied;                        /* a file with a table and no output matrix uses the table */
    double        eps, theta;
    double        softcap; /* -1: the target's */
} dflash_config;

/* The tensor's name in a layout; l counts where the role is per layer. */
void dflash_tensor_name(dflash_layout layout, const char *prefix, dflash_role r, int l, char out[DFLASH_NAME_MAX]);
/* NULL when it is absent. */
const tensor *dflash_tensor(const dflash_config *c, const checkpoint *cp, dflash_role r, int l);
/* Refuses what this is not: DFlash-2, DSpark, scaled ropes, biases, tensors of no known name. */
bool dflash_config_read(dflash_config *out, const checkpoint *cp, err *e);
/* Sets the default captures, n outputs of a target with n_layers, for files without a list. */
void dflash_default_captures(int *out, int n, int n_layers);
#endif
