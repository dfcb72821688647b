#include "ops/ops.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include "base/thread.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/kv_view.h"
#include "ops/ref/ref.h"

#include <assert.h>
#include <stdio.h>
#include <unistd.h>

queue_limits queue_limits_max(const queue_limits *a, const queue_limits *b)
{
    return (queue_limits){max_int(a->max_rows, b->max_rows),
                          max_int(a->max_in, b->max_in),
                          max_int(a->max_expert_slots, b->max_expert_slots),
                          max_int(a->n_experts, b->n_experts),
                          max_int(a->max_vocab, b->max_vocab),
                          max_int(a->max_expert_in, b->max_expert_in),
                          max_int(a->max_expert_x, b->max_expert_x),
                          a->sparse > b->sparse ? a->sparse : b->sparse};
}

rope_view rope_view_of(const rope_params *p)
{
    return p ? (rope_view){p->n_dims, p->freq.p, p->section.p} : (rope_view){0};
}

kv_view kv_view_of(const kv_class *c)
{
    const cache_layout *k = cache_layout_of(c->types.k), *v = cache_layout_of(c->types.v);
    assert(c->head_dim % 8 == 0 && c->row_dim % 8 == 0 && c->row_dim <= c->head_dim);
    assert(kv_row_dim(c) == c->head_dim ||
           (!cache_has_scales(c->types.k) && !cache_has_scales(c->types.v) && !c->sparse.drop));
    return (kv_view){.pool          = c->pool.p,
                     .table         = c->table.p,
                     .table_stride  = (size_t)c->table_stride,
                     .n_layers      = c->n_layers,
                     .n_kv_heads    = c->n_kv_heads,
                     .head_dim      = c->head_dim,
                     .row_dim       = kv_row_dim(c),
                     .types         = c->types,
                     .sparse        = c->sparse,
                     .layer_bytes   = kv_layer_bytes(c),
                     .summary_at    = kv_layer_bytes(c) - kv_summary_bytes(c),
                     .plane_bytes   = kv_plane_bytes(c, c->types.k),
                     .head_bytes    = cache_head_bytes(k, c->head_dim),
                     .vec_bytes     = cache_code_bytes(k, c->head_dim),
                     .v_head_bytes  = cache_head_bytes(v, c->head_dim),
                     .v_vec_bytes   = cache_code_bytes(v, c->head_dim),
                     .scale_bytes   = cache_scale_bytes(k, c->head_dim),
                     .v_scale_bytes = cache_scale_bytes(v, c->head_dim)};
}

bool ops_check_weight(const weight_src *s, bool known, err *e)
{
    const char *name = (unsigned)s->type < QUANT_TYPES ? quant_name(s->type) : NULL;
    if (!known)
        return err_set(e, ERR_FORMAT, "weights of type %s (%d) cannot be multiplied", name ? name : "unknown", s->type);
    if (s->n_in < 1 || s->n_out < 1 || s->n_mats < 1)
        return err_set(e, ERR_FORMAT, "a weight has the shape %d x %d x %d", s->n_mats, s->n_out, s->n_in);
    if (s->n_in % quant_block(s->type))
        return err_set(e, ERR_FORMAT, "a weight of type %s has rows of %d, which is not a multiple of %d", name,
                       s->n_in, quant_block(s->type));
    return true;
}

bool ops_check_kv(const ops *o, cache_types t, int head_dim, err *e)
{
    char text[CACHE_TYPES_TEXT];
    if (!o->kv_scales && (cache_has_scales(t.k) || cache_has_scales(t.v)))
        return err_set(e, ERR_INPUT, "K/V of type %s is not supported on %s: use f16 or f32", cache_types_text(t, text),
                       o->name);
    return cache_types_check(t, head_dim, e);
}

/* Numbers of rows of recorded steps, so that few recordings serve all steps. */
static const int graph_buckets[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, GRAPH_MAX_ROWS};

int graph_rows(const ops *o, int n, int max)
{
    int i = 0;
    if (!o->padding || n > GRAPH_MAX_ROWS) return n;
    while (graph_buckets[i] < n) i++;
    return graph_buckets[i] < max ? graph_buckets[i] : max;
}

int graph_rows_after(const ops *o, int rows, int max)
{
    return o->padding && rows < max && rows < GRAPH_MAX_ROWS ? graph_rows(o, rows + 1, max) : 0;
}

bool ops_no_replay(queue *q, uint64_t key)
{
    (void)q, (void)key;
    return false;
}

bool ops_no_record(queue *q)
{
    (void)q;
    return true;
}

/* --- devices --------------------------------------------------------------------------------------*/

/* "cuda" or "cuda:N" */
static bool parse_cuda(const char *name, int *device)
{
    int64_t n = 0;
    str     s = str_of(name);
    if (!str_is(s, "cuda") && (!str_starts(s, "cuda:") || !str_to_i64((str){s.s + 5, s.n - 5}, &n))) return false;
    *device = n >= 0 && n <= INT32_MAX ? (int)n : -1;
    return true;
}

/* "cpu", for which isa is NULL, or "cpu:ISA" */
static bool parse_cpu(const char *name, const char **isa)
{
    *isa = str_starts(str_of(name), "cpu:") ? name + 4 : NULL;
    return *isa || !strcmp(name, "cpu");
}

static bool unknown(const char *name, err *e)
{
    return err_set(e, ERR_INPUT, "unknown device '%.40s': use auto, cpu, cpu:avx2, cuda, cuda:1 or ref", name);
}

/* Resolves "auto". A build with CUDA that finds no GPU logs the reason. */
static const char *best_device(void)
{
    err why = {0};
    if (cuda_devices(&why) > 0) return "cuda";
    if (why.code != ERR_NOT_FOUND) log_event(LOG_WARN, "device", "running on the processor: %s", why.text);
    return "cpu";
}

bool ops_open(ops **out, const char *name, int n_threads, err *e)
{
    int         device;
    const char *isa;
    *out = NULL;
    if (!strcmp(name, "auto")) name = best_device();
    if (parse_cpu(name, &isa)) return cpu_ops_open_isa(out, isa, n_threads, e);
    if (!strcmp(name, "ref")) return ref_ops_open(out, e);
    if (parse_cuda(name, &device)) return cuda_ops_open(out, device, n_threads, e);
    return unknown(name, e);
}

bool ops_device_find(ops_device *out, const char *name, err *e)
{
    int         device;
    const char *isa;
    if (!strcmp(name, "auto")) name = best_device();
    if (parse_cuda(name, &device)) return cuda_device_info(out, device, e);
    bool is_cpu = parse_cpu(name, &isa);
    if (!is_cpu && strcmp(name, "ref")) return unknown(name, e);
    if (is_cpu && !(isa = cpu_ops_isa(isa, e))) return false;
    *out = (ops_device){.total_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE),
                        .free_bytes  = mem_available()};
    snprintf(out->name, sizeof out->name, "%s", name);
    if (is_cpu)
        snprintf(out->what, sizeof out->what, "processor with %s, %d threads", isa, cpu_allowed());
    else
        snprintf(out->what, sizeof out->what, "reference arithmetic, 1 thread");
    return true;
}

int ops_devices(ops_device *out, int max)
{
    int n = 0;
    for (int i = 0, gpus = cuda_devices(NULL); i < gpus && n < max; i++)
        if (cuda_device_info(&out[n], i, NULL)) n++;
    if (n < max && ops_device_find(&out[n], "cpu", NULL)) n++;
    return n;
}

void ops_close(ops *o)
{
    if (o) o->close(o);
}
