/* model/qwen35_roles.h - the tensors of Qwen 3.5 models. */
#ifndef TANDEM_MODEL_QWEN35_ROLES_H
#define TANDEM_MODEL_QWEN35_ROLES_H
#include "model/qwen35_config.h"
#include "model/roles.h"

typedef enum {
    QWEN35_EMBED,
    QWEN35_OUT_NORM,
    QWEN35_IN_NORM,
    QWEN35_POST_NORM,
    QWEN35_ATTN_Q, /* queries and output gates, head by head */
    QWEN35_ATTN_K,
    QWEN35_ATTN_V,
    QWEN35_ATTN_O,
    QWEN35_Q_NORM,
    QWEN35_K_NORM,
    QWEN35_DELTA_QKV,
    QWEN35_DELTA_Z,
    QWEN35_DELTA_B,
    QWEN35_DELTA_A,
    QWEN35_DELTA_CONV,
    QWEN35_DELTA_RATE,
    QWEN35_DELTA_BIAS,
    QWEN35_DELTA_NORM,
    QWEN35_DELTA_OUT,
    QWEN35_FF_GATE,
    QWEN35_FF_UP,
    QWEN35_FF_DOWN,
    QWEN35_ROUTER,
    QWEN35_EXP_GATE_UP,
    QWEN35_EXP_GATE,
    QWEN35_EXP_UP,
    QWEN35_EXP_DOWN,
    QWEN35_SHARED_SCALE,
    QWEN35_SHARED_GATE,
    QWEN35_SHARED_UP,
    QWEN35_SHARED_DOWN,
    QWEN35_MTP_FC, /* this and the next three: the MTP head, whose names in directories begin with "mtp." */
    QWEN35_MTP_EMBED_NORM,
    QWEN35_MTP_HIDDEN_NORM,
    QWEN35_MTP_OUT_NORM,
    QWEN35_ROLES,
} qwen35_role;

extern const role_table qwen35_roles; /* its sizes are those of a qwen35_config */
#endif
