#include "model/roles.h"

#include <math.h>
#include <stdio.h>

/* --- names --------------------------------------------------------------------------------------*/
void role_name(const role_table *t, int role, const char *hf_prefix, int layer, char out[ROLE_NAME_MAX])
{
    const char *name = hf_prefix ? t->role[role].hf : t->role[role].gguf, *at = strstr(name, "%d");
    const char *prefix = hf_prefix ? hf_prefix : "";
    if (at)
        snprintf(out, ROLE_NAME_MAX, "%s%.*s%d%s", prefix, (int)(at - name), name, layer, at + 2);
    else
        snprintf(out, ROLE_NAME_MAX, "%s%s", prefix, name);
}

bool role_has_layers(const role_table *t, int role) { return strstr(t->role[role].gguf, "%d") != NULL; }

const char *role_hf_prefix(const role_table *t, const tensor_table *tensors)
{
    char name[ROLE_NAME_MAX];
    for (int i = 0; t->prefixes[i]; i++) {
        role_name(t, t->prefix_role, t->prefixes[i], 0, name);
        if (tensor_find(tensors, str_of(name))) return t->prefixes[i];
    }
    return t->prefixes[1];
}

/* --- binding ------------------------------------------------------------------------------------*/
role_binder role_binder_of(binder b, const role_table *t, const void *config)
{
    return (role_binder){b, t, config, b.cp->gguf ? NULL : role_hf_prefix(t, b.cp->tensors)};
}

const tensor *role_find(const role_binder *g, int role, int layer)
{
    char name[ROLE_NAME_MAX];
    role_name(g->t, role, g->hf_prefix, layer, name);
    return tensor_find(g->b.cp->tensors, str_of(name));
}

bool role_require(const role_binder *g, int role, int layer, const tensor **out, err *e)
{
    char name[ROLE_NAME_MAX];
    role_name(g->t, role, g->hf_prefix, layer, name);
    return bind_require(&g->b, name, out, e);
}

int role_size(const role_table *t, const void *config, int role, int i, int layer)
{
    int dim = t->role[role].dim[i];
    return dim ? t->size(config, dim, layer) : 1;
}

bool role_matrix(role_binder *g, weight **out, int role, int layer, err *e)
{
    const tensor *t;
    int           size[ROLE_MAX_DIMS];
    for (int i = 0; i < ROLE_MAX_DIMS; i++) size[i] = role_size(g->t, g->config, role, i, layer);
    return role_require(g, role, layer, &t, e) && bind_matrix(&g->b, out, t, size[0], size[1], size[2], e);
}

float role_changed(role_change change, float x)
{
    return change == ROLE_PLUS_ONE ? 1 + x : change == ROLE_NEG_EXP ? -expf(x) : x;
}

typedef struct {
    role_change change;
    float       scale;
} vector_change;

static void change_vector(float *v, size_t n, void *how_)
{
    const vector_change *how = how_;
    for (size_t i = 0; i < n; i++) v[i] = role_changed(how->change, v[i]) * how->scale;
}

bool role_vector(role_binder *g, dev *out, int role, int layer, float scale, err *e)
{
    const tensor *t;
    int           n   = role_size(g->t, g->config, role, 0, layer);
    vector_change how = {g->hf_prefix ? (role_change)g->t->role[role].change : ROLE_SAME, scale};
    return role_require(g, role, layer, &t, e) && bind_check_shape(t, n, 1, 1, e) &&
           bind_floats(&g->b, out, t, (size_t)n, change_vector, &how, e);
}

bool role_scalar(const role_binder *g, float *out, int role, int layer, err *e)
{
    const tensor *t;
    *out = 1;
    if (!g->hf_prefix && !role_find(g, role, layer)) return true;
    return role_require(g, role, layer, &t, e) && bind_scalar(out, t, e);
}
