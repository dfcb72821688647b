#include "ops/ref/ref.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "ops/ref/table.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };

static bool ref_alloc(const ops *o, dev *out, size_t bytes, err *e)
{
    (void)o;
    size_t padded = 0;
    out->p        = NULL;
    fault_check_alloc();
    if (size_add(&padded, bytes ? bytes : 1, ALIGN - 1) && !fault_now()) {
        padded = padded / ALIGN * ALIGN;
        out->p = aligned_alloc(ALIGN, padded);
    }
    if (!out->p) return err_set(e, ERR_UNAVAILABLE, "no memory for a buffer of %zu bytes", bytes);
    memset(out->p, 0, padded);
    return true;
}

static void ref_free(const ops *o, dev d)
{
    (void)o;
    free(d.p);
}

static void ref_queue_free(queue *q)
{
    if (!q) return;
    mem_free(q->candidates);
    mem_free(q);
}

static bool ref_queue_reserve(queue *q, const queue_limits *lim, err *e)
{
    queue_limits        all        = queue_limits_max(&q->lim, lim);
    sampling_candidate *candidates = mem_try_n((size_t)all.max_vocab, sizeof *candidates);
    if (!candidates) return err_set(e, ERR_UNAVAILABLE, "no memory to sample from %d tokens", all.max_vocab);
    mem_free(q->candidates);
    *q = (queue){.lim = all, .candidates = candidates};
    return true;
}

static bool ref_queue_new(const ops *o, queue **out, const queue_limits *lim, err *e)
{
    (void)o;
    queue *q = mem_try(sizeof *q);
    *out     = NULL;
    if (!q) return err_set(e, ERR_UNAVAILABLE, "no memory for a queue");
    if (!ref_queue_reserve(q, lim, e)) {
        ref_queue_free(q);
        return false;
    }
    *out = q;
    return true;
}

static void ref_upload(queue *q, dev dst, const void *src, size_t bytes)
{
    (void)q;
    if (bytes) memcpy(dst.p, src, bytes);
}

static void ref_download(queue *q, void *dst, dev src, size_t bytes)
{
    (void)q;
    if (bytes) memcpy(dst, src.p, bytes);
}

static void ref_sync(queue *q) { (void)q; }

static bool ref_check(queue *q, err *e)
{
    (void)q, (void)e;
    return true;
}

static void   ref_mark(queue *q, int which) { q->mark[which] = clock_s(); }
static double ref_between_s(queue *q, int from, int to) { return q->mark[to] - q->mark[from]; }

static void ref_close(ops *o) { mem_free(o); }

bool ref_ops_open(ops **out, err *e)
{
    ops *o = mem_try(sizeof *o);
    *out   = o;
    if (!o) return err_set(e, ERR_UNAVAILABLE, "no memory to open the ref backend");
    *o = (ops){
        .name           = "ref",
        .kv_scales      = true,
        .kv_sparse      = true,
        .alloc          = ref_alloc,
        .free           = ref_free,
        .weight_load    = ref_weight_load,
        .weight_free    = ref_weight_free,
        .queue_new      = ref_queue_new,
        .queue_reserve  = ref_queue_reserve,
        .queue_free     = ref_queue_free,
        .close          = ref_close,
        .upload         = ref_upload,
        .download       = ref_download,
        .sync           = ref_sync,
        .check          = ref_check,
        .mark           = ref_mark,
        .between_s      = ref_between_s,
        .replay         = ops_no_replay,
        .record_end     = ops_no_record,
        .embed          = ref_embed,
        .matmul         = ref_matmul,
        .matmul_top     = ref_matmul_top,
        .matmul_experts = ref_matmul_experts,
        .rms_norm       = ref_rms_norm,
        .rms_norm_add   = ref_rms_norm_add,
        .rope           = ref_rope,
        .kv_store       = ref_kv_store,
        .attention      = ref_attention,
        .kv_move        = ref_kv_move,
        .gated          = ref_gated,
        .router         = ref_router,
        .experts_sum    = ref_experts_sum,
        .add            = ref_add,
        .add_gated      = ref_add_gated,
        .layer_norm     = ref_layer_norm,
        .bias           = ref_bias,
        .clamp          = ref_clamp,
        .lookup         = ref_lookup,
        .pool           = ref_pool,
        .delta          = ref_delta,
        .delta_replay   = ref_delta_replay,
        .softcap        = ref_softcap,
        .copy_rows      = ref_copy_rows,
        .argmax         = ref_argmax,
        .change_logits  = ref_change_logits,
        .restore_logits = ref_restore_logits,
        .mask_logits    = ref_mask_logits,
        .logprobs       = ref_logprobs,
        .confidence     = ref_confidence,
        .sample         = ref_sample,
        .sample_top     = ref_sample_top,
        .scatter_logits = ref_scatter_logits,
        .block_conv     = ref_block_conv,
        .pair_logits    = ref_pair_logits,
    };
    return true;
}
