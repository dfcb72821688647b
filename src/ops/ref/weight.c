#include "base/mem.h"
#include "ops/ref/table.h"

void ref_weight_free(const ops *o, weight *w)
{
    (void)o;
    if (!w) return;
    mem_free(((ref_weight *)w)->data);
    mem_free(w);
}

static bool check_shape(const weight_src *s, err *e)
{
    if (!quant_can_dequantise(s->type))
        return err_set(e, ERR_FORMAT, "weights of type %d cannot be multiplied", (int)s->type);
    if (s->n_in < 1 || s->n_out < 1 || s->n_mats < 1 || s->n_in % quant_block(s->type))
        return err_set(e, ERR_FORMAT, "a weight of shape %d x %d x %d cannot have type %s", s->n_mats, s->n_out,
                       s->n_in, quant_name(s->type));
    return true;
}

bool ref_weight_load(const ops *o, weight **out, const weight_src *src, err *e)
{
    *out = NULL;
    if (!check_shape(src, e)) return false;

    size_t      n = 0;
    ref_weight *w = mem_try(sizeof *w);
    if (w && size_mul(&n, (size_t)src->n_out * (size_t)src->n_in, (size_t)src->n_mats))
        w->data = mem_try_n(n, sizeof(float));
    if (!w || !w->data) {
        ref_weight_free(o, (weight *)w);
        return err_set(e, ERR_UNAVAILABLE, "no memory for a weight of %d x %d x %d numbers", src->n_mats, src->n_out,
                       src->n_in);
    }
    quant_dequantise(src->type, src->data, w->data, n);
    w->w = (weight){src->type, src->n_in, src->n_out, src->n_mats, n * sizeof(float)};
    *out = &w->w;
    return true;
}
