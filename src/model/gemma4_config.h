/* model/gemma4_config.h - the configuration of a Gemma 4 model, from GGUF keys or from config.json.
 *
 * Every number is checked for range here, so that the forward pass can multiply and divide freely. Per-layer arrays are
 * always filled, whether the file has one number or a list. */
#ifndef TANDEM_MODEL_GEMMA4_CONFIG_H
#define TANDEM_MODEL_GEMMA4_CONFIG_H
#include "gguf/checkpoint.h"

enum { GEMMA4_MAX_LAYERS = 256, GEMMA4_MAX_EXPERTS = 1024, GEMMA4_MAX_USED = 64 };

typedef struct {
    int    n_layers, n_embd, n_vocab, n_heads, n_ctx;
    int    window;                         /* positions that a row of a sliding layer attends to, its own included */
    int    n_ple;                          /* width of the per-layer embeddings; 0: none */
    int    n_kv_shared;                    /* trailing layers without K/V of their own */
    bool   assistant;                      /* a drafter: it reads the K/V of its target, and all layers are shared */
    int    n_experts, n_used, n_ff_expert; /* experts; those that a row uses; width of one. All 0: dense */
    float  eps;                            /* epsilon of the norms */
    float  softcap;                        /* 0: none */
    double theta_full, theta_sliding;      /* base of the rope frequencies */
    double rotary_part;                    /* rotated share of a full layer's pairs */
    double rope_factor_full, rope_factor_sliding; /* divide the frequencies */
    bool   sliding[GEMMA4_MAX_LAYERS];            /* the layer sees a window; false: all positions */
    bool   k_is_v[GEMMA4_MAX_LAYERS];             /* the layer has no V matrix: V is made by that of K */
    int    n_kv_heads[GEMMA4_MAX_LAYERS], head_dim[GEMMA4_MAX_LAYERS], n_ff[GEMMA4_MAX_LAYERS];
} gemma4_config;

/* Reads the configuration of a model or an assistant. ERR_FORMAT names the value that is missing or out of range. */
bool gemma4_config_read(gemma4_config *out, const checkpoint *c, err *e);
/* Returns the layer whose K/V layer l reads: itself, or the last one of its kind (full or sliding) that has its own.
 * -1, in assistants only: it is a layer of the target. */
int gemma4_kv_donor(const gemma4_config *c, int l);
#endif
