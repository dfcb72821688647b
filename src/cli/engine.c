#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"

#include <assert.h>

enum { DEFAULT_CTX = 8192 };

const char *const engine_devices[] = {"auto", "cpu", "ref", NULL};

bool engine_probe(const char *path, err *e)
{
    checkpoint *cp;
    bool        ok = checkpoint_open(&cp, path, e);
    checkpoint_close(cp);
    return ok;
}

/* Refused with numbers now, rather than ended by the system later. */
static bool check_memory(double bytes, const char *what, err *e)
{
    double there = (double)mem_available();
    return bytes <= there ||
           err_set(e, ERR_UNAVAILABLE, "%s %.1f GB of memory, and %.1f GB are free", what, bytes / 1e9, there / 1e9);
}

static bool open_model(engine *g, const engine_options *opt, err *e)
{
    checkpoint   *cp;
    progress_bar  bar;
    double        start = clock_s();
    model_options mo    = {.device       = engine_devices[opt->device],
                           .n_threads    = opt->n_threads,
                           .progress     = progress_show,
                           .progress_ctx = &bar};
    if (!checkpoint_open(&cp, opt->path, e)) return false;
    progress_start(&bar, "loading");
    bool ok = check_memory((double)cp->bytes, "its weights need", e) && model_open(&g->model, cp, &mo, e);
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
    g->max_changes = (size_t)m->n_vocab;
    return check_memory((double)spec.max_bytes, "the K/V cache of this context needs", e) &&
           kv_pool_new(&g->kv, m->o, &spec, e) && m->o->alloc(m->o, &g->pick_params, sizeof(sample_params), e) &&
           m->o->alloc(m->o, &g->picked, sizeof(int32_t), e) &&
           m->o->alloc(m->o, &g->logprobs, (1 + ENGINE_MAX_TOP) * sizeof(token_logprob), e) &&
           m->o->alloc(m->o, &g->changes, g->max_changes * sizeof(logit_change), e) &&
           ((g->host_changes = mem_try_n(g->max_changes, sizeof(logit_change))) ||
            err_set(e, ERR_UNAVAILABLE, "no memory to count tokens"));
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
    const dev bufs[] = {g->picked, g->pick_params, g->changes, g->logprobs};
    if (g->seq) kv_seq_free(g->seq);
    for (size_t i = 0; i < COUNT(bufs); i++)
        if (bufs[i].p) g->model->o->free(g->model->o, bufs[i]);
    mem_free(g->host_changes);
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

/* Bias and penalties on the logits, a token at most once; returns how many were changed. */
static int change_logits(engine *g, const engine_pick_options *o)
{
    target *m = g->model;
    if (!o->history) return 0;
    int n = history_changes(o->history, o->penalty, 0, g->host_changes);
    m->o->upload(m->q, g->changes, g->host_changes, (size_t)n * sizeof(logit_change));
    m->o->change_logits(m->q, m->logits, m->n_vocab, g->changes, n);
    return n;
}

bool engine_pick(engine *g, const engine_pick_options *o, int32_t *out, err *e)
{
    target       *m  = g->model;
    sample_params at = o->params;
    at.pos           = kv_seq_len(g->seq);
    m->head(m, 0, 1);
    int n = change_logits(g, o);
    m->o->upload(m->q, g->pick_params, &at, sizeof at);
    m->o->sample(m->q, g->picked, m->logits, g->pick_params, 1, m->n_vocab);
    m->o->download(m->q, out, g->picked, sizeof *out);
    if (o->n_top >= 0) {
        m->o->restore_logits(m->q, m->logits, m->n_vocab, g->changes, n);
        m->o->logprobs(m->q, g->logprobs, m->logits, g->picked, 1, m->n_vocab, o->n_top);
        m->o->download(m->q, o->logprobs, g->logprobs, (size_t)(1 + o->n_top) * sizeof *o->logprobs);
    }
    m->o->sync(m->q);
    return *out >= 0 || err_set(e, ERR_FORMAT, "no token can be picked: all are banned, or the weights are damaged");
}
