/* model/dflash_config.h - the configuration of a drafter that fills in blocks: DFlash, DSpark or DFlash-2, from a
 * Hugging Face directory or one of three GGUF layouts.
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
    DFLASH_MAX_TAPS     = 16,
};

typedef enum { DFLASH_1, DFLASH_SPARK, DFLASH_2 } dflash_kind; /* DFlash, DSpark, DFlash-2 */

typedef enum {
    DFLASH_DIR,       /* Hugging Face */
    DFLASH_GEMMA_DIR, /* the same with layers like Gemma 4's */
    DFLASH_LLAMA,     /* "dflash" of llama.cpp */
    DFLASH_IK,        /* "dflash-draft" of ik_llama.cpp */
    DFLASH_LUCE,      /* "qwen35-dflash-draft", "gemma4-dflash-draft" of lucebox */
} dflash_layout;

/* The tensors of a drafter; dflash.c has the formulas. */
typedef enum {
    DFLASH_FC,          /* features to the width of the drafter */
    DFLASH_HIDDEN_NORM, /* norm after it */
    DFLASH_NORM,        /* norm after the last layer */
    DFLASH_EMBED,       /* this one and the next two: only drafters that do not borrow the target's */
    DFLASH_HEAD,        /* output matrix */
    DFLASH_D2T,         /* token ids of the head's rows, if it has a reduced vocabulary */
    DFLASH_W1,          /* DSpark: a row for the token before, */
    DFLASH_W2,          /* and the bias of the logits made of it */
    DFLASH_CONF,        /* DSpark: confidence, */
    DFLASH_CONF_BIAS,
    DFLASH_BEFORE,    /* DFlash-2: a row for the token before, */
    DFLASH_AFTER,     /* a row for a candidate, */
    DFLASH_MIDDLE,    /* and the state's part in the score of a pair */
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
    DFLASH_POST_ATTN, /* layers like Gemma 4's: norms after the sublayers, */
    DFLASH_POST_FF,
    DFLASH_SCALE,     /* and a factor of the layer's output */
    DFLASH_ATTN_BASE, /* DFlash-2: convolutions around the sublayers */
    DFLASH_ATTN_CONV,
    DFLASH_FF_BASE,
    DFLASH_FF_CONV,
    DFLASH_ROLES,
} dflash_role;

/* Rope scaled by YaRN. */
typedef struct {
    double factor, fast, slow;
    double attention; /* factor of q and of k */
    int    original;  /* positions before scaling */
} dflash_yarn;

typedef struct {
    dflash_kind   kind;
    dflash_layout layout;
    const char   *prefix; /* prefix of a directory's tensor names: "" or "model." */
    int           n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim;
    int           n_features;                   /* floats of a context row: all captured outputs concatenated */
    int           n_vocab;                      /* 0: not in the file */
    int           n_ctx;                        /* max_position_embeddings; 0: not in the file */
    int           n_target_layers;              /* 0: not in the file */
    int           block;                        /* rows of a draft: the anchor and the masks */
    bool          anchored;                     /* the anchor's row predicts a token, too */
    int           mask_id;                      /* token id of a mask */
    int           n_captures;                   /* 0: the file has no list */
    int           capture[DFLASH_MAX_CAPTURES]; /* layers of the target whose output is captured; -1: embeddings */
    int           window;                       /* positions that a row of a sliding layer sees; 0: no sliding layer */
    bool          sliding[DFLASH_MAX_LAYERS];
    bool          causal_full, causal_sliding; /* inside the block; if false its rows attend to each other */
    bool          own_embed;                   /* the file's embeddings are used, if it has any; else the target's */
    bool          tied;                        /* a file with embeddings and no output matrix uses the embeddings */
    bool          gemma;                       /* layers like Gemma 4's */
    bool          k_is_v;                      /* V is K before its norm */
    int           rank;             /* floats of a row of DFLASH_W1 or DFLASH_BEFORE; 0: tokens are independent */
    int           n_top;            /* DFlash-2: candidates per row */
    bool          conf, conf_pairs; /* has a confidence; it reads the row of the token before, too */
    int           n_taps, group;    /* DFlash-2: of the convolutions */
    double        eps, theta;
    double        rope_part;   /* share of the pairs that are rotated */
    dflash_yarn   yarn;        /* factor 0: rope is not scaled */
    double        embed_scale; /* factor of embeddings; 0: as the target scales them */
    double        logit_scale; /* factor of logits, before the softcap */
    double        softcap;     /* -1: the target's; 0: none */
} dflash_config;

/* Writes the name of a tensor in a layout. l: the layer; ignored by roles without layers. prefix: ignored by GGUF
 * layouts. */
void dflash_tensor_name(dflash_layout layout, const char *prefix, dflash_role r, int l, char out[DFLASH_NAME_MAX]);
/* Returns a tensor of the checkpoint, NULL when it is absent. */
const tensor *dflash_tensor(const dflash_config *c, const checkpoint *cp, dflash_role r, int l);
/* Reads the configuration. Refuses similar drafters that are not implemented, biases, ropes scaled in other ways, and
 * files with unknown tensors. */
bool dflash_config_read(dflash_config *out, const checkpoint *cp, err *e);
/* Returns whether the config.json of a directory is that of such a drafter. */
bool               dflash_dir_matches(const json_value *config);
const char        *dflash_kind_name(dflash_kind k);
static inline bool dflash_is_dir(const dflash_config *c)
{
    return c->layout == DFLASH_DIR || c->layout == DFLASH_GEMMA_DIR;
}
/* Returns the draft tokens of a block. */
static inline int dflash_max_tokens(const dflash_config *c) { return c->block - !c->anchored; }
/* Returns the positions that the drafter was trained on, as far as the file says; 0: it does not. */
int dflash_trained_ctx(const dflash_config *c);
/* Returns the positions of context that it gets unless a number is given. */
int dflash_default_ctx(const dflash_config *c);
/* Sets out[n] to the layers whose outputs a drafter without a list was trained on: n of a target with n_layers. */
void dflash_default_captures(int *out, int n, int n_layers);
#endif
