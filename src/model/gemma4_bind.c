#include "model/gemma4_bind.h"

gemma4_binder gemma4_binder_of(binder b)
{
    return (gemma4_binder){b, b.cp->gguf ? NULL : gemma4_hf_prefix(b.cp->tensors)};
}

const tensor *gemma4_find(const gemma4_binder *g, gemma4_role r, int layer)
{
    char name[GEMMA4_NAME_MAX];
    gemma4_tensor_name(r, g->hf_prefix, layer, name);
    return tensor_find(g->b.cp->tensors, str_of(name));
}

bool gemma4_require(const gemma4_binder *g, gemma4_role r, int layer, const tensor **out, err *e)
{
    char name[GEMMA4_NAME_MAX];
    gemma4_tensor_name(r, g->hf_prefix, layer, name);
    return bind_require(&g->b, name, out, e);
}

bool gemma4_matrix(gemma4_binder *g, weight **out, gemma4_role r, int layer, int n_in, int n_out, int n_mats, err *e)
{
    const tensor *t;
    return gemma4_require(g, r, layer, &t, e) && bind_matrix(&g->b, out, t, n_in, n_out, n_mats, e);
}

bool gemma4_vector(gemma4_binder *g, dev *out, gemma4_role r, int layer, int n, err *e)
{
    const tensor *t;
    return gemma4_require(g, r, layer, &t, e) && bind_vector(&g->b, out, t, n, 1, e);
}

bool gemma4_scalar(const gemma4_binder *g, float *out, gemma4_role r, int layer, err *e)
{
    const tensor *t;
    *out = 1;
    if (!g->hf_prefix && !gemma4_find(g, r, layer)) return true;
    return gemma4_require(g, r, layer, &t, e) && bind_scalar(out, t, e);
}
