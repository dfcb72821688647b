#include "model/dflash_rig.h"
#include "model/open_target.h"

const drafter_options dflash_rig_exact = {.max_lanes = LANES, .kv_type = {CACHE_F32, CACHE_F32}, .keep_rows = true};

/* --- set-up -------------------------------------------------------------------------------------*/
bool dflash_rig_drafter(test_case *t, rig *g, const char *path, const drafter_options *opt)
{
    err         e  = {0};
    checkpoint *cp = NULL;
    if (!CHECK_OK(checkpoint_open(&cp, path, &e), e)) return false;
    bool ok = CHECK_OK(dflash_open(&g->d, g->m, cp, opt, &e), e);
    checkpoint_close(cp);
    if (!ok || !CHECK_OK(g->m->capture(g->m, g->d->capture_id, g->d->n_capture, &e), e)) return false;
    for (int i = 0; i < LANES && i < opt->max_lanes; i++) CHECK_OK(g->d->lane_new(g->d, &g->lane[i], &e), e);
    return true;
}

void dflash_rig_drop(rig *g)
{
    for (int i = 0; i < LANES; i++) {
        if (g->d) g->d->lane_free(g->d, g->lane[i]);
        g->lane[i] = NULL;
    }
    if (g->d) g->d->close(g->d);
    g->d = NULL;
}

bool dflash_rig_model(test_case *t, rig *g, const char *path, const char *device)
{
    model_options opt = {.device = device, .n_threads = 2};
    if (!test_open_target(t, &g->m, path, &opt)) return false;
    for (int i = 0; i < g->m->n_kv_classes; i++) g->m->kv_class[i].types = cache_types_both(CACHE_F32);
    if (!test_open_pool(t, &g->kv, g->m, &(test_pool){.max_lanes = LANES, .max_slots = MAX_TEXT})) return false;
    for (int i = 0; i < LANES; i++) g->seq[i] = kv_seq_new(g->kv, 0);
    step_init(&g->s, g->m->max_rows);
    return true;
}

bool dflash_rig_target_of(test_case *t, rig *g, const char *name, const char *kind, const char *device)
{
    err  e = {0};
    char dir[256], file[256];
    *g = (rig){0};
    snprintf(dir, sizeof dir, "tests/golden/%s", name);
    snprintf(file, sizeof file, "tests/golden/%s-%s/golden.safetensors", name, kind);
    return CHECK_OK(safetensors_open(&g->ref, test_path(file), &e), e) &&
           dflash_rig_model(t, g, test_path(dir), device);
}

bool dflash_rig_target(test_case *t, rig *g, const char *name, const char *device)
{
    return dflash_rig_target_of(t, g, name, "dflash", device);
}

void dflash_rig_close(rig *g)
{
    dflash_rig_drop(g);
    for (int i = 0; i < LANES; i++) kv_seq_free(g->seq[i]);
    kv_pool_free(g->kv);
    step_deinit(&g->s);
    model_close(g->m);
    safetensors_close(g->ref);
}

const char *dflash_rig_path(const char *name)
{
    char dir[256];
    snprintf(dir, sizeof dir, "tests/golden/%s-dflash", name);
    return test_path(dir);
}

bool dflash_rig_open(test_case *t, rig *g, const char *name, const char *device)
{
    return dflash_rig_target(t, g, name, device) && dflash_rig_drafter(t, g, dflash_rig_path(name), &dflash_rig_exact);
}

/* --- texts --------------------------------------------------------------------------------------*/
const tensor *dflash_rig_golden(test_case *t, const rig *g, int n, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "case%d.%s", n, what);
    const tensor *x = tensor_find(safetensors_tensors(g->ref), str_of(name));
    CHECK_MSG(x, "%s is missing", name);
    return x;
}

text dflash_rig_text(test_case *t, const rig *g, int n)
{
    text          x   = {0};
    const tensor *ids = dflash_rig_golden(t, g, n, "input_ids"), *block = dflash_rig_golden(t, g, n, "block_ids");
    if (!ids || !block) return x;
    memcpy(x.id, ids->data, ids->bytes);
    x.n = (int)(ids->bytes / sizeof(int32_t));
    memcpy(&x.id[x.n++], block->data, sizeof(int32_t));
    return x;
}

void dflash_rig_observe(test_case *t, rig *g, int lane, const text *x, int from, int end, int chunk)
{
    err     e = {0};
    int32_t row[MAX_TEXT];
    for (int i = 0; i < MAX_TEXT; i++) row[i] = i;
    kv_seq_cut(g->seq[lane], from);
    for (int n; from < end; from += n) {
        n = end - from < chunk ? end - from : chunk;
        CHECK_OK(kv_seq_grow(g->seq[lane], from + n, &e), e);
        step_clear(&g->s);
        for (int i = 0; i < n; i++) step_add(&g->s, kv_seq_lane(g->seq[lane]), from + i, x->id[from + i], false);
        CHECK_OK(g->m->step(g->m, g->kv, &g->s, &e), e);
        draft_rows rows = {.pos = from, .row = row, .n = n, .hidden = -1};
        CHECK_OK(g->d->observe(g->d, g->lane[lane], &rows, &e), e);
    }
}

draft_job dflash_rig_job(rig *g, int lane, const text *x)
{
    return (draft_job){.lane    = g->lane[lane],
                       .kv_lane = kv_seq_lane(g->seq[lane]),
                       .text    = x->id,
                       .n_text  = x->n,
                       .params  = {.top_p = 1},
                       .n_want  = g->d->max_draft};
}

void dflash_rig_free(drafted *r)
{
    mem_free(r->hidden);
    mem_free(r->logits);
}

static void download_rows(rig *g, drafted *r)
{
    const target *m = g->m;
    size_t        B = (size_t)r->block, H = (size_t)g->d->n_draft_hidden, V = (size_t)m->n_vocab;
    size_t        rows = g->d->n_hidden_rows ? (size_t)g->d->n_hidden_rows : B;
    r->hidden          = xnew_n(float, rows *H);
    r->logits          = xnew_n(float, B *V);
    m->o->download(m->q, r->hidden, g->d->draft_hidden, rows * H * sizeof(float));
    m->o->download(m->q, r->logits, g->d->draft_logits, B * V * sizeof(float));
    m->o->sync(m->q);
}

drafted dflash_rig_draft(test_case *t, rig *g, int lane, const text *x)
{
    err     e = {0};
    drafted r = {.job = dflash_rig_job(g, lane, x), .block = g->d->max_draft + g->d->n_lead};
    CHECK_OK(g->d->draft(g->d, g->kv, (draft_job *[]){&r.job}, 1, &e), e);
    CHECK_INT(r.job.n, r.job.n_want);
    download_rows(g, &r);
    return r;
}

void dflash_rig_same(test_case *t, const rig *g, const drafted *a, drafted *b, const char *what)
{
    size_t n = (size_t)a->block * (size_t)g->m->n_vocab;
    CHECK_INT(a->job.n, b->job.n);
    for (int i = 0; i < a->job.n; i++) CHECK_INT(a->job.token[i], b->job.token[i]);
    CHECK_MSG(!memcmp(a->logits, b->logits, n * sizeof(float)), "%s: other logits", what);
    dflash_rig_free(b);
}
