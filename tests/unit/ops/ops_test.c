#include "ops_test.h"

#include "backends.h"

#include <stdlib.h>

bool rig_open(rig *g, test_case *t, const char *backend, int n_threads)
{
    static const queue_limits lim = {RIG_ROWS, RIG_IN, RIG_SLOTS, RIG_EXPERTS, RIG_VOCAB, 0, 0, 1};

    err e = {0};
    *g    = (rig){.t = t, .rand = 42};
    arena_init(&g->host, (size_t)4 << 30);
    bool ok = ops_open(&g->o, backend, n_threads, &e) && g->o->queue_new(g->o, &g->q, &lim, &e);
    return CHECK_MSG(ok, "cannot open %s: %s", backend, e.text);
}

void rig_close_weights(rig *g)
{
    for (int i = 0; i < g->n_weights; i++) g->o->weight_free(g->o, g->weights[i]);
    g->n_weights = 0;
}

void rig_close(rig *g)
{
    for (int i = 0; i < g->n_bufs; i++) g->o->free(g->o, g->bufs[i]);
    rig_close_weights(g);
    if (g->q) g->o->queue_free(g->q);
    ops_close(g->o);
    arena_deinit(&g->host);
}

void rig_each(test_case *t, void (*scene)(rig *g))
{
    test_backend b[TEST_BACKENDS_MAX];
    for (int i = 0, n = test_backends(b); i < n; i++) {
        rig g;
        if (rig_open(&g, t, b[i].name, b[i].n_threads)) scene(&g);
        rig_close(&g);
    }
}

/* --- comparison ------------------------------------------------------------------------------------- */
static void compare(rig *g, const rig_result *got, const rig_result *want)
{
    test_case *t = g->t;
    if (got->skipped) return;
    CHECK_INT(got->n, want->n);
    float times = want->gpu_allows > 0 && !strcmp(g->o->name, "cuda") ? (float)want->gpu_allows : 1;
    for (size_t i = 0; i < want->n; i++)
        if (!CHECK_MSG(fabsf(got->y[i] - want->y[i]) <= times * want->allow[i],
                       "%s: number %zu is %.9g, ref says %.9g +- %.2g", g->o->name, i, got->y[i], want->y[i],
                       times * want->allow[i]))
            return;
}

void rig_compare(test_case *t, rig_result (*scene)(rig *g, const void *arg), const void *arg)
{
    test_backend b[TEST_BACKENDS_MAX];
    rig          g[TEST_BACKENDS_MAX];
    rig_result   r[TEST_BACKENDS_MAX] = {0};
    int          n                    = test_backends(b);
    for (int i = 0; i < n; i++)
        if (rig_open(&g[i], t, b[i].name, b[i].n_threads)) r[i] = scene(&g[i], arg);
    for (int i = 1; i < n; i++) {
        compare(&g[i], &r[i], &r[0]);
        if (i > 1 && !strcmp(b[i].name, b[i - 1].name) && r[i].n == r[i - 1].n)
            SAME_F32(&g[i], r[i].y, r[i - 1].y, r[i].n);
    }
    for (int i = 0; i < n; i++) rig_close(&g[i]);
}

rig_result rig_give(rig *g, dev y, size_t n, double rel, double abs)
{
    rig_result r = {.n = n, .y = rig_get_f32(g, y, n), .allow = arena_new_n(&g->host, float, n)};
    for (size_t i = 0; i < n; i++) r.allow[i] = (float)(abs + rel * fabsf(r.y[i]));
    return r;
}

void rig_same_f32(rig *g, const float *a, const float *b, size_t n, const char *file, int line)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i])) {
            test_check(g->t, false, file, line, "%s: number %zu of %zu is %.9g, expected %.9g to the bit", g->o->name,
                       i, n, a[i], b[i]);
            return;
        }
}

/* --- numbers ---------------------------------------------------------------------------------------- */
/* The arguments of OP are worked out inside its scope, so what makes them steps out of it. */
static void *host_alloc(rig *g, size_t bytes)
{
    const char *scope = fault_scope();
    fault_scope_set(NULL);
    void *p = arena_alloc(&g->host, bytes);
    fault_scope_set(scope);
    return p;
}

float *rig_randn(rig *g, size_t n)
{
    float *x = host_alloc(g, n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = test_randn(&g->rand);
    return x;
}

int32_t *rig_randint(rig *g, size_t n, int32_t below)
{
    int32_t *x = host_alloc(g, n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (int32_t)(test_rand(&g->rand) % (uint64_t)below);
    return x;
}

dev rig_new(rig *g, size_t bytes)
{
    err         e     = {0};
    dev         d     = {0};
    const char *scope = fault_scope();
    fault_scope_set(NULL);
    if (g->n_bufs == COUNT(g->bufs) || !g->o->alloc(g->o, &d, bytes, &e)) {
        fprintf(stderr, "%s: no buffer of %zu bytes: %s\n", g->t->name, bytes, e.text);
        abort();
    }
    fault_scope_set(scope);
    return g->bufs[g->n_bufs++] = d;
}

dev rig_put(rig *g, const void *p, size_t bytes)
{
    dev d = rig_new(g, bytes);
    g->o->upload(g->q, d, p, bytes);
    return d;
}

dev rig_put_f32(rig *g, const float *x, size_t n) { return rig_put(g, x, n * sizeof *x); }
dev rig_put_i32(rig *g, const int32_t *x, size_t n) { return rig_put(g, x, n * sizeof *x); }
dev rig_put_randn(rig *g, size_t n) { return rig_put_f32(g, rig_randn(g, n), n); }

static void *get(rig *g, dev d, size_t bytes)
{
    void *p = arena_alloc(&g->host, bytes);
    err   e = {0};
    g->o->download(g->q, p, d, bytes);
    g->o->sync(g->q);
    test_check(g->t, g->o->check(g->q, &e), __FILE__, __LINE__, "%s: %s", g->o->name, e.text);
    return p;
}

float   *rig_get_f32(rig *g, dev d, size_t n) { return get(g, d, n * sizeof(float)); }
int32_t *rig_get_i32(rig *g, dev d, size_t n) { return get(g, d, n * sizeof(int32_t)); }

/* --- weights ---------------------------------------------------------------------------------------- */
static void fill_floats(rig *g, quant_type type, void *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float    x = test_randn(&g->rand);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (type == QUANT_F32) ((float *)p)[i] = x;
        if (type == QUANT_F16) ((uint16_t *)p)[i] = f32_to_f16(x);
        if (type == QUANT_BF16) ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
    }
}

/* Writes the f16 fields of one block; q_max is the largest quant times its sub-block scale. */
static void fill_scales(rig *g, quant_type type, void *p)
{
    uint16_t s = f32_to_f16(0.5f + 0.5f * fabsf(test_randn(&g->rand))), m = f32_to_f16(test_randn(&g->rand));
#define SCALED(h, by) f32_to_f16(f16_to_f32(h) / (by))
    switch (type) {
    case QUANT_Q4_0: ((block_q4_0 *)p)->d = SCALED(s, 8); break;
    case QUANT_Q4_1: ((block_q4_1 *)p)->d = SCALED(s, 8), ((block_q4_1 *)p)->m = m; break;
    case QUANT_Q5_0: ((block_q5_0 *)p)->d = SCALED(s, 16); break;
    case QUANT_Q5_1: ((block_q5_1 *)p)->d = SCALED(s, 16), ((block_q5_1 *)p)->m = m; break;
    case QUANT_Q8_0: ((block_q8_0 *)p)->d = SCALED(s, 128); break;
    case QUANT_Q4_K: ((block_q4_K *)p)->d = SCALED(s, 512), ((block_q4_K *)p)->dmin = SCALED(m, 64); break;
    case QUANT_Q5_K: ((block_q5_K *)p)->d = SCALED(s, 1024), ((block_q5_K *)p)->dmin = SCALED(m, 64); break;
    case QUANT_Q6_K: ((block_q6_K *)p)->d = SCALED(s, 4096); break;
    case QUANT_Q2_K: ((block_q2_K *)p)->d = SCALED(s, 32), ((block_q2_K *)p)->dmin = SCALED(m, 16); break;
    case QUANT_Q3_K: ((block_q3_K *)p)->d = SCALED(s, 128); break;
    case QUANT_IQ4_NL: ((block_iq4_nl *)p)->d = SCALED(s, 128); break;
    case QUANT_IQ4_XS: ((block_iq4_xs *)p)->d = SCALED(s, 4096); break;
    case QUANT_MXFP4: ((block_mxfp4 *)p)->e = (uint8_t)(124 + test_rand(&g->rand) % 3); break;
    default: break;
    }
#undef SCALED
}

void *rig_rand_blocks(rig *g, quant_type type, size_t n)
{
    size_t         bytes = n / (size_t)quant_block(type) * quant_block_bytes(type);
    unsigned char *p     = host_alloc(g, bytes);
    if (quant_is_float(type)) {
        fill_floats(g, type, p, n);
        return p;
    }
    for (size_t i = 0; i < bytes; i++) p[i] = (unsigned char)test_rand(&g->rand);
    for (size_t at = 0; at < bytes; at += quant_block_bytes(type)) fill_scales(g, type, p + at);
    return p;
}

void *rig_flat_blocks(rig *g, quant_type type, size_t n, int byte)
{
    size_t         bytes = n / (size_t)quant_block(type) * quant_block_bytes(type);
    unsigned char *p     = host_alloc(g, bytes);
    memset(p, byte, bytes);
    for (size_t at = 0; at < bytes; at += quant_block_bytes(type)) fill_scales(g, type, p + at);
    return p;
}

const weight *rig_weight(rig *g, quant_type type, int n_in, int n_out, int n_mats, const void *data)
{
    err         e     = {0};
    weight     *w     = NULL;
    weight_src  src   = {type, n_in, n_out, n_mats, .data = data};
    const char *scope = fault_scope();
    fault_scope_set(NULL);
    if (g->n_weights == COUNT(g->weights) || !g->o->weight_load(g->o, &w, &src, &e)) {
        fprintf(stderr, "%s: %s loads no %s weight: %s\n", g->t->name, g->o->name, quant_name(type), e.text);
        abort();
    }
    fault_scope_set(scope);
    return g->weights[g->n_weights++] = w;
}

/* --- cache and rows --------------------------------------------------------------------------------- */
kv_class rig_kv(rig *g, cache_types types, int n_layers, int n_kv_heads, int head_dim, int n_lanes, int n_slots)
{
    return rig_kv_sparse(g, types, n_layers, n_kv_heads, head_dim, n_lanes, n_slots, (sparse_params){0});
}

kv_class rig_kv_sparse(rig *g, cache_types types, int n_layers, int n_kv_heads, int head_dim, int n_lanes, int n_slots,
                       sparse_params sparse)
{
    kv_class c = {
        .n_layers = n_layers, .n_kv_heads = n_kv_heads, .head_dim = head_dim, .types = types, .sparse = sparse};
    c.table_stride   = (n_slots + KV_PAGE - 1) / KV_PAGE;
    size_t n_pages   = (size_t)n_lanes * (size_t)c.table_stride;
    size_t units     = ((size_t)n_layers * kv_layer_bytes(&c) + KV_UNIT - 1) / KV_UNIT + 1; /* one unit of gap */
    size_t pool_size = (n_pages + 1) * units * KV_UNIT;

    int32_t *table = arena_new_n(&g->host, int32_t, n_pages);
    for (size_t i = 0; i < n_pages; i++) table[i] = (int32_t)((i + 1) * units);
    for (size_t i = n_pages; i-- > 1;) {
        size_t  j    = test_rand(&g->rand) % (i + 1);
        int32_t page = table[i];
        table[i]     = table[j];
        table[j]     = page;
    }
    void *bytes = arena_alloc(&g->host, pool_size);
    memset(bytes, 0xFF, pool_size);
    c.table = rig_put_i32(g, table, n_pages);
    c.pool  = rig_put(g, bytes, pool_size);
    return c;
}

static step_rows put_rows(rig *g, int n, int lane, const int32_t *pos, const int32_t *slot, const int32_t *parent,
                          const int32_t *root)
{
    int32_t *lanes = arena_new_n(&g->host, int32_t, n), *token = arena_new_n(&g->host, int32_t, n);
    for (int i = 0; i < n; i++) lanes[i] = lane;
    size_t count = (size_t)n;
    return (step_rows){.n_rows = n,
                       .token  = rig_put_i32(g, token, count),
                       .pos    = rig_put_i32(g, pos, count),
                       .lane   = rig_put_i32(g, lanes, count),
                       .slot   = rig_put_i32(g, slot, count),
                       .parent = rig_put_i32(g, parent, count),
                       .root   = rig_put_i32(g, root, count),
                       .last   = rig_put_i32(g, pos, count)};
}

step_rows rig_chain(rig *g, int lane, int32_t first_pos, int n_rows)
{
    int32_t *pos = arena_new_n(&g->host, int32_t, n_rows), *root = arena_new_n(&g->host, int32_t, n_rows);
    int32_t *parent = arena_new_n(&g->host, int32_t, n_rows);
    for (int i = 0; i < n_rows; i++) {
        pos[i]    = first_pos + i;
        root[i]   = pos[i] + 1;
        parent[i] = i - 1;
    }
    return put_rows(g, n_rows, lane, pos, pos, parent, root);
}

step_rows rig_tree(rig *g, int lane, int32_t root, const int32_t *parent, int n_rows)
{
    int32_t *pos = arena_new_n(&g->host, int32_t, n_rows), *roots = arena_new_n(&g->host, int32_t, n_rows);
    int32_t *slot = arena_new_n(&g->host, int32_t, n_rows);
    for (int i = 0; i < n_rows; i++) {
        pos[i]   = parent[i] < 0 ? root : pos[parent[i]] + 1;
        roots[i] = root;
        slot[i]  = root + i;
    }
    return put_rows(g, n_rows, lane, pos, slot, parent, roots);
}
