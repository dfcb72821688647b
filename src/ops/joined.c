#include "ops/joined.h"

#include <assert.h>

void ops_matmuls(const ops *o, queue *q, const dev *y, const weight *const *w, int n_w, dev x, int n_rows)
{
    assert(n_w <= JOINED_MATMULS);
    if (o->matmuls)
        o->matmuls(q, y, w, n_w, x, n_rows);
    else
        for (int i = 0; i < n_w; i++) o->matmul(q, y[i], w[i], x, n_rows);
}

void ops_gate_up(const ops *o, queue *q, dev y, dev scratch, const weight *gate, const weight *up, dev x, int n_rows,
                 act_kind act)
{
    const weight *w[]  = {gate, up};
    dev           to[] = {y, scratch};
    int           n    = gate->n_out;
    assert(up->n_out == n && up->n_in == gate->n_in);
    if (o->gate_up && o->gate_up(q, y, gate, up, x, n_rows, act)) return;
    ops_matmuls(o, q, to, w, 2, x, n_rows);
    o->gated(q, y, y, n, scratch, n, n_rows, n, act);
}

void ops_heads(const ops *o, queue *q, const head_rows *h, const step_rows *rows)
{
    int n = rows->n_rows, nk = h->c->n_kv_heads, D = kv_row_dim(h->c);
    if (o->heads) {
        o->heads(q, h, rows);
        return;
    }
    if (h->q_in.p) o->copy_rows(q, h->q, D, h->q_in, h->q_stride, (dev){0}, n * h->n_heads, D);
    o->rms_norm(q, h->q, h->q, h->w_q, n * h->n_heads, D, h->eps);
    o->rope(q, h->q, rows, h->n_heads, D, &h->rope);
    if (!h->k.p) return;
    if (h->norm_v) o->rms_norm(q, h->v, h->k_as_v ? h->k : h->v, (dev){0}, n * nk, D, h->eps);
    o->rms_norm(q, h->k, h->k, h->w_k, n * nk, D, h->eps);
    o->rope(q, h->k, rows, nk, D, &h->rope);
    o->kv_store(q, h->c, h->layer, rows, h->k, h->v);
}

void ops_norms(const ops *o, queue *q, const norm_rows *c, int n_rows)
{
    assert(c->n_outs <= JOINED_NORMS);
    if (o->norms) {
        o->norms(q, c, n_rows);
        return;
    }
    if (c->parts) {
        o->experts_sum(q, c->sum, c->slots, c->slot_w, n_rows, c->n_slots, c->n);
        o->rms_norm(q, c->z, c->z, c->w_z, n_rows, c->n, c->eps);
        o->rms_norm_add(q, c->z, c->z, c->sum, c->w_slots, n_rows, c->n, c->eps, 1);
    }
    o->rms_norm_add(q, c->y, c->res, c->z, c->w, n_rows, c->n, c->eps, c->scale);
    for (int i = 0; i < c->n_outs; i++) o->rms_norm(q, c->out[i].y, c->y, c->out[i].w, n_rows, c->n, c->eps);
}

void ops_sums(const ops *o, queue *q, const sum_rows *c, int n_rows)
{
    if (o->sums) {
        o->sums(q, c, n_rows);
        return;
    }
    if (c->slots.p) {
        o->experts_sum(q, c->z, c->slots, c->slot_w, n_rows, c->n_slots, c->n);
        o->add_gated(q, c->z, c->z, c->shared, c->gate, n_rows, c->n);
    }
    o->add(q, c->y, c->res, c->z, (size_t)n_rows * (size_t)c->n, 1);
    if (c->out.p) o->rms_norm(q, c->out, c->y, c->w, n_rows, c->n, c->eps);
}

void ops_gated_norm(const ops *o, queue *q, dev y, dev x, dev w, dev gate, int n_rows, int n_heads, int n, float eps,
                    act_kind act)
{
    int all = n_heads * n;
    if (o->gated_norm) {
        o->gated_norm(q, y, x, w, gate, n_rows, n_heads, n, eps, act);
        return;
    }
    o->rms_norm(q, x, x, w, n_rows * n_heads, n, eps);
    o->gated(q, y, gate, all, x, all, n_rows, all, act);
}

void ops_gated_heads(const ops *o, queue *q, dev y, dev gate, int gate_stride, dev x, int n_rows, int n_heads, int n,
                     act_kind act)
{
    if (o->gated_heads)
        o->gated_heads(q, y, gate, gate_stride, x, n_rows, n_heads, n, act);
    else
        o->gated(q, y, gate, gate_stride, x, n, n_rows * n_heads, n, act);
}

void ops_experts(const ops *o, queue *q, const expert_rows *e, int n_rows)
{
    int K = e->n_slots, F = e->n_ff;
    if (o->experts) {
        o->experts(q, e, n_rows);
        return;
    }
    o->router(q, e->id, e->w, e->logits, e->expert_scale, n_rows, e->n_experts, K);
    if (e->gate_up) {
        o->matmul_experts(q, e->inner, e->gate_up, e->x, false, e->id, n_rows, K);
        o->gated(q, e->act, e->inner, 2 * F, dev_at_f32(e->inner, (size_t)F), 2 * F, n_rows * K, F, e->kind);
    } else {
        o->matmul_experts(q, e->act, e->gate, e->x, false, e->id, n_rows, K);
        o->matmul_experts(q, e->inner, e->up, e->x, false, e->id, n_rows, K);
        o->gated(q, e->act, e->act, F, e->inner, F, n_rows * K, F, e->kind);
    }
    o->matmul_experts(q, e->y, e->down, e->act, true, e->id, n_rows, K);
}

void ops_aside(const ops *o, queue *q, aside_part part)
{
    if (o->aside) o->aside(q, part);
}
