/* model/qwen35_config.h - the configuration of a Qwen 3.5 model (also 3.6 and 3.8), from GGUF keys or config.json.
 *
 * Every number is checked for range here, so that the forward pass can multiply and divide freely. */
#ifndef TANDEM_MODEL_QWEN35_CONFIG_H
#define TANDEM_MODEL_QWEN35_CONFIG_H
#include "gguf/checkpoint.h"
#include "ops/ops.h"

enum { QWEN35_MAX_LAYERS = 256, QWEN35_MAX_EXPERTS = 1024, QWEN35_MAX_USED = 64 };

typedef struct {
    int      n_layers, n_embd, n_vocab, n_ctx;            /* n_layers without the MTP layer */
    int      n_mtp;                                       /* MTP layers after them: 0 or 1 */
    int      n_heads, n_kv_heads, head_dim;               /* heads of full attention */
    int      n_rot;                                       /* rotated elements of a head */
    int      section[ROPE_SECTIONS];                      /* pairs that rotate by time, height and width */
    int      n_k_heads, n_v_heads, delta_dim, n_taps;     /* heads and taps of gated delta nets */
    int      n_ff;                                        /* dense models */
    int      n_experts, n_used, n_ff_expert, n_ff_shared; /* n_experts 0: dense */
    float    eps;
    double   theta;
    act_kind delta_gate;              /* activation of a delta net's output gate */
    bool     full[QWEN35_MAX_LAYERS]; /* full attention; the other layers are gated delta nets */
    bool     tied;                    /* the output matrix is the embedding */
    bool     tiled;                   /* order of value heads, as delta_class: GGUF files are tiled */
} qwen35_config;

bool qwen35_config_read(qwen35_config *out, const checkpoint *c, err *e);
#endif
