#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"

#include <assert.h>

enum { DEFAULT_CTX = 8192 };

static bool open_model(engine *g, const engine_options *opt, err *e)
{
    checkpoint   *cp;
    progress_bar  bar;
    double        start = clock_s();
    model_options mo    = {
           .device = opt->device, .n_threads = opt->n_threads, .progress = progress_show, .progress_ctx = &bar};
    if (!checkpoint_open(&cp, opt->path, e)) return false;
    progress_start(&bar, "loading");
    bool ok = model_open(&g->model, cp, &mo, e);
    progress_end(&bar);
    checkpoint_close(cp);
    if (ok)
        log_event(LOG_INFO, "load", "%s on %s: %d layers, %.2f GB of weights in %.1f s", opt->path, g->model->o->name,
                  g->model->n_layers, (double)g->model->weight_bytes / 1e9, clock_s() - start);
    return ok;
}

static bool open_cache(engine *g, const engine_options *opt, err *e)
{
    target *m = g->model;
    g->n_ctx  = opt->n_ctx ? opt->n_ctx : m->n_ctx < DEFAULT_CTX ? m->n_ctx : DEFAULT_CTX;
    if (g->n_ctx > m->n_ctx)
        return err_set(e, ERR_INPUT, "a context of %d is over the model's limit of %d", g->n_ctx, m->n_ctx);
    for (int i = 0; i < m->n_kv_classes; i++) m->kv_class[i].type = opt->kv_type;
    kv_pool_spec spec = {.classes = m->kv_class, .n_classes = m->n_kv_classes, .max_lanes = 1, .max_slots = g->n_ctx};
    if (!kv_bytes_for(&spec, g->n_ctx, &spec.max_bytes))
        return err_set(e, ERR_LIMIT, "a context of %d is too large", g->n_ctx);
    return kv_pool_new(&g->kv, m->o, &spec, e) && m->o->alloc(m->o, &g->pick_params, sizeof(sample_params), e) &&
           m->o->alloc(m->o, &g->picked, sizeof(int32_t), e);
}

bool engine_open(engine *g, const engine_options *opt, err *e)
{
    *g = (engine){0};
    if (!open_model(g, opt, e) || !open_cache(g, opt, e)) {
        engine_close(g);
        return false;
    }
    g->seq = kv_seq_new(g->kv);
    assert(g->seq);
    return true;
}

void engine_close(engine *g)
{
    if (g->seq) kv_seq_free(g->seq);
    if (g->picked.p) g->model->o->free(g->model->o, g->picked);
    if (g->pick_params.p) g->model->o->free(g->model->o, g->pick_params);
    kv_pool_free(g->kv);
    model_close(g->model);
    *g = (engine){0};
}

bool engine_feed(engine *g, const int32_t *id, int n, err *e)
{
    int32_t pos = kv_seq_len(g->seq);
    if (!kv_seq_grow(g->seq, pos + n, e)) return false;
    for (int done = 0; done < n;) {
        int rows = n - done < g->model->max_rows ? n - done : g->model->max_rows;
        step_clear(&g->step);
        for (int i = 0; i < rows; i++, done++)
            step_add(&g->step, kv_seq_lane(g->seq), pos + done, id[done], done == n - 1);
        if (!g->model->step(g->model, g->kv, &g->step, e)) return false;
    }
    return true;
}

bool engine_pick(engine *g, const sample_params *p, int32_t *out, err *e)
{
    target       *m  = g->model;
    sample_params at = *p;
    at.pos           = kv_seq_len(g->seq);
    m->head(m, 0, 1);
    m->o->upload(m->q, g->pick_params, &at, sizeof at);
    m->o->sample(m->q, g->picked, m->logits, g->pick_params, 1, m->n_vocab);
    m->o->download(m->q, out, g->picked, sizeof *out);
    m->o->sync(m->q);
    return *out >= 0 || err_set(e, ERR_FORMAT, "the model's output is not a number: its weights may be damaged");
}
