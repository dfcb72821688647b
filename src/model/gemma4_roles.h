/* model/gemma4_roles.h - the tensors of Gemma 4 models and their assistants, as indices of the table gemma4_roles.
 *
 * A model has only those that its configuration calls for. These are not in the table: an output matrix of its own and
 * rope_freqs (gemma4.c, bind.c), and the projections and centroids of assistants (mtp.c). PLE: per-layer embeddings;
 * EXP: the matrices of all experts in one tensor; a file has EXP_GATE_UP, or (GGUF only) EXP_GATE and EXP_UP. gemma4.c
 * has the formulas. */
#ifndef TANDEM_MODEL_GEMMA4_ROLES_H
#define TANDEM_MODEL_GEMMA4_ROLES_H
#include "model/gemma4_config.h"
#include "model/roles.h"

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

extern const role_table gemma4_roles; /* its config is a gemma4_config */
#endif
