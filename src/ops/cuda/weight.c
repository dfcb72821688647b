/* Weights: packed on the processor's threads into one of two pinned stages while the other one is on its way. */
#include "base/fault.h"
#include "base/mem.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/layout.h"
#include "ops/cuda/pack.h"

enum { CHUNK_BYTES = 64 << 10 }; /* what a thread packs at a time */

static bool check_source(const weight_src *s, err *e)
{
    if (!ops_check_weight(s, quant_can_dequantise(s->type), e)) return false;
    return layout_row_bytes(cuda_pack_form(s->type), (size_t)s->n_in) <= STAGE_BYTES ||
           err_set(e, ERR_FORMAT, "a weight has rows of %d numbers, which is too long", s->n_in);
}

static bool take_stages(backend *b, err *e)
{
    for (int i = 0; i < STAGES; i++) {
        if (b->stage[i]) continue;
        void *p = NULL;
        if (fault_now()) return err_set(e, ERR_UNAVAILABLE, "no memory to send weights through");
        if (!cuda_ok(cudaHostAlloc(&p, STAGE_BYTES, cudaHostAllocDefault), ERR_UNAVAILABLE,
                     "taking memory to send weights through", e))
            return false;
        b->stage[i] = p;
    }
    return true;
}

/* --- rows of a stage ------------------------------------------------------------------------------*/
typedef struct {
    const weight_src *src;
    const char       *from; /* in the file */
    char             *to;
    size_t            src_bytes, dst_bytes, n_rows, per_chunk;
} pack_job;

static void pack_chunk(void *ctx, int chunk, int thread)
{
    const pack_job *j    = ctx;
    size_t          from = (size_t)chunk * j->per_chunk, left = j->n_rows - from;
    (void)thread;
    for (size_t r = from; r < from + (left < j->per_chunk ? left : j->per_chunk); r++)
        cuda_pack_row(j->src->type, j->src->n_in, j->from + r * j->src_bytes, j->to + r * j->dst_bytes);
}

/* Rows go stage by stage; a stage is filled again when it was carried over. */
static bool send_rows(backend *b, const cuda_weight *w, const weight_src *s, size_t n_rows, err *e)
{
    size_t per_stage = STAGE_BYTES / w->row_bytes;
    size_t src_bytes = (size_t)s->n_in / (size_t)quant_block(s->type) * quant_block_bytes(s->type);
    int    turn      = 0;
    for (size_t row = 0; row < n_rows; row += per_stage, turn = (turn + 1) % STAGES) {
        pack_job j = {.src       = s,
                      .from      = (const char *)s->data + row * src_bytes,
                      .to        = b->stage[turn],
                      .src_bytes = src_bytes,
                      .dst_bytes = w->row_bytes,
                      .n_rows    = n_rows - row < per_stage ? n_rows - row : per_stage,
                      .per_chunk = CHUNK_BYTES / w->row_bytes + 1};
        if (!cuda_ok(cudaEventSynchronize(b->sent[turn]), ERR_UNAVAILABLE, "sending weights", e)) return false;
        pool_run(b->pool, (int)((j.n_rows + j.per_chunk - 1) / j.per_chunk), pack_chunk, &j);
        cudaError_t status = cudaMemcpyAsync(w->data + row * w->row_bytes, j.to, j.n_rows * w->row_bytes,
                                             cudaMemcpyHostToDevice, b->load);
        if (!cuda_ok(status, ERR_UNAVAILABLE, "sending weights", e)) return false;
        if (!cuda_ok(cudaEventRecord(b->sent[turn], b->load), ERR_UNAVAILABLE, "sending weights", e)) return false;
        if (s->took) s->took(s->ctx, (row + j.n_rows) * src_bytes);
    }
    return cuda_ok(cudaStreamSynchronize(b->load), ERR_UNAVAILABLE, "sending weights", e);
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
    size_t   n_rows, bytes;
    *out = NULL;
    if (!check_source(s, e)) return false;
    quant_type form      = cuda_pack_form(s->type);
    size_t     row_bytes = layout_row_bytes(form, (size_t)s->n_in);
    if (!size_mul(&n_rows, (size_t)s->n_out, (size_t)s->n_mats) || !size_mul(&bytes, n_rows, row_bytes))
        return err_set(e, ERR_FORMAT, "a weight of %d x %d x %d is too large", s->n_mats, s->n_out, s->n_in);
    cuda_weight *w = mem_try(sizeof *w);
    if (!w) return err_set(e, ERR_UNAVAILABLE, "there is no memory for a weight");
    *w = (cuda_weight){{s->type, s->n_in, s->n_out, s->n_mats, bytes}, form, NULL, row_bytes};
    if (!cuda_take(b, &w->data, bytes, "a weight", e) || !take_stages(b, e) || !send_rows(b, w, s, n_rows, e)) {
        cuda_weight_free(o, &w->pub);
        return false;
    }
    *out = &w->pub;
    return true;
}
