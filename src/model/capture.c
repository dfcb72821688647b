#include "model/capture.h"

#include <assert.h>

void captures_free(target *t)
{
    if (t->features.p) t->o->free(t->o, t->features);
    t->features   = (dev){0};
    t->n_features = 0;
    t->feature_id = NULL;
}

bool captures_select(captures *c, target *t, const int *ids, int n_ids, err *e)
{
    dev room = {0};
    assert(n_ids >= 0 && n_ids <= t->n_layers + 1 && n_ids <= CAPTURE_MAX);
    if (n_ids && !t->o->alloc(t->o, &room, (size_t)t->max_rows * (size_t)n_ids * (size_t)t->n_embd * sizeof(float), e))
        return err_wrap(e, "cannot keep the hidden states of %d layers", n_ids);
    captures_free(t);
    c->key = 0;
    if (!n_ids) return true;
    t->features = room;
    for (int i = 0; i < n_ids; i++) {
        assert(ids[i] >= 0 && ids[i] <= t->n_layers);
        c->id[i] = ids[i];
        c->key   = graph_key(c->key, (uint64_t)ids[i]);
    }
    c->key        = graph_key_at(c->key, t->features.p);
    t->n_features = n_ids;
    t->feature_id = c->id;
    return true;
}

void captures_copy(const captures *c, const target *t, dev x, int h, int n)
{
    int H = t->n_embd;
    for (int i = 0; i < t->n_features; i++)
        if (c->id[i] == h)
            t->o->copy_rows(t->q, dev_at_f32(t->features, (size_t)i * (size_t)H), t->n_features * H, x, H, (dev){0}, n,
                            H);
}
