/* Loading weights: the file's bytes go through one of two pinned stages to the device, which repacks them. */
#include "base/fault.h"
#include "base/mem.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/layout.h"

#include <math.h>
#include <string.h>

enum { CHUNK_BYTES = 256 << 10 }; /* bytes that a thread copies at a time */

static size_t row_bytes(const weight_src *s)
{
    return (size_t)s->n_in / (size_t)quant_block(s->type) * quant_block_bytes(s->type);
}

static bool check_source(const weight_src *s, err *e)
{
    if (!ops_check_weight(s, quant_can_dequantise(s->type), e)) return false;
    return row_bytes(s) <= STAGE_BYTES / PANEL_OUTS ||
           err_set(e, ERR_FORMAT, "a weight has rows of %d numbers, which is too long", s->n_in);
}

static bool take_stages(backend *b, err *e)
{
    if (!b->largest && !cuda_take(b, &b->largest, sizeof *b->largest, "loading weights", e)) return false;
    for (int i = 0; i < STAGES; i++) {
        void *p = NULL;
        if (!b->raw[i] && !cuda_take_raw(b, &b->raw[i], STAGE_BYTES, "loading weights", e)) return false;
        if (b->stage[i]) continue;
        if (fault_now()) return err_set(e, ERR_UNAVAILABLE, "no memory to copy weights through");
        if (!cuda_ok(cudaHostAlloc(&p, STAGE_BYTES, cudaHostAllocDefault), ERR_UNAVAILABLE,
                     "allocating memory to copy weights through", e))
            return false;
        b->stage[i] = p;
    }
    return true;
}

/* --- chunks of panels -----------------------------------------------------------------------------*/
typedef struct {
    const char *from;
    char       *to;
    size_t      bytes;
} copy_job;

static void copy_chunk(void *ctx, int chunk, int thread)
{
    const copy_job *j    = ctx;
    size_t          from = (size_t)chunk * CHUNK_BYTES, left = j->bytes - from;
    (void)thread;
    memcpy(j->to + from, j->from + from, left < CHUNK_BYTES ? left : CHUNK_BYTES);
}

/* Returns the first row of a panel, counted over all matrices; of the panel after the last: the number of rows. */
static size_t first_row(const cuda_weight *w, size_t panel)
{
    size_t n = (size_t)w->n_panels;
    return panel / n * (size_t)w->pub.n_out + panel % n * PANEL_OUTS;
}

static bool send_panels(backend *b, int stage, const cuda_weight *w, const weight_src *s, cuda_repack_args *a, err *e)
{
    static const char doing[] = "sending weights";
    size_t            from = a->first_row * row_bytes(s), to = first_row(w, a->first_panel + a->count) * row_bytes(s);
    copy_job          j = {(const char *)s->data + from, b->stage[stage], to - from};
    if (!cuda_ok(cudaEventSynchronize(b->sent[stage]), ERR_UNAVAILABLE, doing, e)) return false;
    pool_run(b->pool, (int)((j.bytes + CHUNK_BYTES - 1) / CHUNK_BYTES), copy_chunk, &j);
    a->file            = b->raw[stage];
    cudaError_t status = cudaMemcpyAsync(b->raw[stage], j.to, j.bytes, cudaMemcpyHostToDevice, b->load);
    if (status == cudaSuccess) status = cuda_repack(b->load, s->type, a);
    if (status == cudaSuccess) status = cudaEventRecord(b->sent[stage], b->load);
    if (!cuda_ok(status, ERR_UNAVAILABLE, doing, e)) return false;
    if (s->took) s->took(s->ctx, to);
    return true;
}

/* Panels go stage by stage; a stage is filled again when the device has repacked it. */
static bool send_weight(backend *b, const cuda_weight *w, const weight_src *s, err *e)
{
    size_t n = (size_t)w->n_panels * (size_t)s->n_mats, max = STAGE_BYTES / (PANEL_OUTS * row_bytes(s)), count;
    int    stage = 0;
    for (size_t panel = 0; panel < n; panel += count, stage = (stage + 1) % STAGES) {
        count              = n - panel < max ? n - panel : max;
        cuda_repack_args a = {.to          = w->data,
                              .first_panel = panel,
                              .first_row   = first_row(w, panel),
                              .count       = count,
                              .n_panels    = (size_t)w->n_panels,
                              .n_in        = s->n_in,
                              .n_out       = s->n_out,
                              .largest     = b->largest};
        if (!send_panels(b, stage, w, s, &a, e)) return false;
    }
    return true;
}

/* --- the power of two -----------------------------------------------------------------------------
 * Floats: the largest weight goes into [2^14, 2^15), so that f16 holds what is 2^-31 of it; others into [1, 2), and the
 * power is an f16 too. F16 needs none. Q4_0: the largest scale goes into [2^15, 2^16), because its numbers are taken as
 * q 2^-24; the power is a product of two f16. */
static void choose_scale(cuda_weight *w, float largest)
{
    int e = 0, up;
    if (w->pub.type == QUANT_F16 || !(largest > 0)) return;
    frexpf(largest, &e); /* largest is in [2^(e - 1), 2^e) */
    if (w->pub.type == QUANT_Q4_0) {
        /* largest is 8 times the largest scale. */
        up      = 19 - e;
        up      = up < -28 ? -28 : up > 30 ? 30 : up;
        w->up   = ldexpf(1, up);
        w->down = ldexpf(1, 24 - up);
        return;
    }
    up = (quant_is_float(w->pub.type) ? 15 : 1) - e;
    if (w->pub.type != QUANT_MXFP4 && !quant_is_float(w->pub.type)) up = up < -14 ? -14 : up > 15 ? 15 : up;
    up      = up < -126 ? -126 : up > 126 ? 126 : up;
    w->up   = ldexpf(1, up);
    w->down = ldexpf(1, -up);
}

static bool load_weight(backend *b, cuda_weight *w, const weight_src *s, err *e)
{
    static const char doing[] = "sending weights";
    float             largest = 0;
    if (!take_stages(b, e)) return false;
    if (!cuda_ok(cudaMemset(b->largest, 0, sizeof *b->largest), ERR_UNAVAILABLE, doing, e)) return false;
    if (!cuda_ok(cudaDeviceSynchronize(), ERR_UNAVAILABLE, doing, e) || !send_weight(b, w, s, e)) return false;
    cudaError_t status = cudaMemcpyAsync(&largest, b->largest, sizeof largest, cudaMemcpyDeviceToHost, b->load);
    if (status == cudaSuccess) status = cudaStreamSynchronize(b->load);
    if (!cuda_ok(status, ERR_UNAVAILABLE, doing, e)) return false;
    choose_scale(w, largest);
    return true;
}

void cuda_weight_free(const ops *o, weight *w)
{
    if (!w) return;
    cuda_drop(o->state, ((cuda_weight *)w)->data);
    mem_free(w);
}

bool cuda_weight_load(const ops *o, weight **out, const weight_src *s, err *e)
{
    backend *b = o->state;
    size_t   panels, bytes;
    *out = NULL;
    if (!check_source(s, e)) return false;
    size_t per_mat = layout_panels((size_t)s->n_out), panel_bytes = layout_panel_bytes(s->type, (size_t)s->n_in);
    if (!size_mul(&panels, per_mat, (size_t)s->n_mats) || !size_mul(&bytes, panels, panel_bytes))
        return err_set(e, ERR_FORMAT, "a weight of %d x %d x %d is too large", s->n_mats, s->n_out, s->n_in);
    cuda_weight *w = mem_try(sizeof *w);
    if (!w) return err_set(e, ERR_UNAVAILABLE, "no memory for a weight");
    *w = (cuda_weight){.pub         = {s->type, s->n_in, s->n_out, s->n_mats, bytes},
                       .panel_bytes = panel_bytes,
                       .n_tiles     = (int)layout_tiles((size_t)s->n_in),
                       .n_panels    = (int)per_mat,
                       .up          = 1,
                       .down        = 1};
    if (!cuda_take(b, &w->data, bytes, "a weight", e) || !load_weight(b, w, s, e)) {
        cuda_weight_free(o, &w->pub);
        return false;
    }
    *out = &w->pub;
    return true;
}
