/* model/gemma4_names.h - what the tensors of a Gemma 4 are called, in GGUF files and in Hugging Face directories. */
#ifndef TANDEM_MODEL_GEMMA4_NAMES_H
#define TANDEM_MODEL_GEMMA4_NAMES_H
#include "gguf/tensor.h"

enum { GEMMA4_NAME_MAX = 160 };

typedef enum {
    ROLE_EMBED,
    ROLE_OUT_NORM,
    ROLE_PLE_EMBED,
    ROLE_PLE_MODEL,
    ROLE_PLE_MODEL_NORM,
    ROLE_ATTN_NORM,
    ROLE_ATTN_Q,
    ROLE_ATTN_K,
    ROLE_ATTN_V,
    ROLE_ATTN_O,
    ROLE_Q_NORM,
    ROLE_K_NORM,
    ROLE_POST_ATTN_NORM,
    ROLE_FF_NORM,
    ROLE_POST_FF_NORM,
    ROLE_FF_GATE,
    ROLE_FF_UP,
    ROLE_FF_DOWN,
    ROLE_LAYER_SCALAR,
    ROLE_ROUTER,
    ROLE_ROUTER_SCALE,
    ROLE_EXPERT_SCALE,
    ROLE_EXP_GATE_UP,
    ROLE_EXP_GATE,
    ROLE_EXP_UP,
    ROLE_EXP_DOWN,
    ROLE_FF_NORM_2,
    ROLE_POST_FF_NORM_1,
    ROLE_POST_FF_NORM_2,
    ROLE_PLE_GATE,
    ROLE_PLE_PROJ,
    ROLE_PLE_NORM,
    GEMMA4_ROLES,
} gemma4_role;

/* hf_prefix NULL: GGUF's name. `layer` is not looked at where the role has no layers. */
void gemma4_tensor_name(gemma4_role r, const char *hf_prefix, int layer, char out[GEMMA4_NAME_MAX]);
bool gemma4_role_has_layers(gemma4_role r);
/* What stands before Hugging Face's names in this directory: "model." or "model.language_model.", ... */
const char *gemma4_hf_prefix(const tensor_table *t);
#endif
