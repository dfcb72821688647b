#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"

enum { DEFAULT_CTX = 8192 };

const char *const engine_draft_quants[] = {"none", "q8_0", "q4_0", NULL};
const char *const engine_devices[]      = {"auto",   "cpu",    "ref",    "cpu:base", "cpu:avx2", "cpu:vnni",
                                           "cuda",   "cuda:0", "cuda:1", "cuda:2",   "cuda:3",   "cuda:4",
                                           "cuda:5", "cuda:6", "cuda:7", NULL};

static const char cache_needs[] = "the K/V cache of this context needs";

bool engine_probe(const char *path, err *e)
{
    checkpoint *cp;
    bool        ok = checkpoint_open(&cp, path, e);
    checkpoint_close(cp);
    return ok;
}

/* Refused with numbers now, rather than ended by the system later. */
static bool check_memory(const char *device, double bytes, const char *what, err *e)
{
    ops_device d;
    if (!ops_device_find(&d, device, e)) return false;
    double there = (double)d.free_bytes;
    return bytes <= there ||
           err_set(e, ERR_UNAVAILABLE, "%s %.1f GB of memory, and %.1f GB are free", what, bytes / 1e9, there / 1e9);
}

static bool open_model(engine *g, const engine_options *opt, err *e)
{
    checkpoint   *cp;
    progress_bar  bar;
    double        start = clock_s();
    model_options mo    = {.device       = g->device.name,
                           .n_threads    = cli_threads(opt->n_threads),
                           .wrap         = opt->wrap,
                           .progress     = progress_show,
                           .progress_ctx = &bar};
    if (!ops_device_find(&g->device, engine_devices[opt->device], e)) return false;
    if (!(opt->image.n ? checkpoint_open_bytes(&cp, opt->path, opt->image, e) : checkpoint_open(&cp, opt->path, e)))
        return false;
    progress_start(&bar, "loading");
    bool ok =
        check_memory(g->device.name, (double)cp->bytes, "its weights need", e) && model_open(&g->model, cp, &mo, e);
    progress_end(&bar);
    checkpoint_close(cp);
    if (ok)
        log_event(LOG_INFO, "load", "%s on %s: %d layers, %.2f GB of weights in %.1f s", cli_path_name(opt->path),
                  g->model->o->name, g->model->n_layers, (double)g->model->weight_bytes / 1e9, clock_s() - start);
    return ok;
}

static bool choose_ctx(engine *g, const engine_options *opt, err *e)
{
    const target *m = g->model;
    g->n_ctx        = opt->n_ctx ? opt->n_ctx : m->n_ctx < DEFAULT_CTX ? m->n_ctx : DEFAULT_CTX;
    return g->n_ctx <= m->n_ctx ||
           err_set(e, ERR_INPUT, "a context of %d is over the model's limit of %d", g->n_ctx, m->n_ctx);
}

static bool open_pages(engine *g, const engine_options *opt, err *e)
{
    target *m = g->model;
    for (int i = 0; i < m->n_kv_classes; i++) m->kv_class[i].type = opt->kv_type;
    kv_pool_spec pages = {.classes = m->kv_class, .n_classes = m->n_kv_classes, .max_lanes = 1, .max_slots = g->n_ctx};
    if (!kv_bytes_for(&pages, g->n_ctx, &pages.max_bytes))
        return err_set(e, ERR_LIMIT, "a context of %d is too large", g->n_ctx);
    return check_memory(g->device.name, (double)pages.max_bytes, cache_needs, e) &&
           kv_pool_new(&g->kv, m->o, &pages, e);
}

static bool open_loop(engine *g, const engine_options *opt, err *e)
{
    spec_options so = {.n_ctx = g->n_ctx, .max_lanes = 1, .kv_type = opt->kv_type};
    size_t       bytes;
    if (!spec_kv_bytes(g->model, &so, &bytes)) return err_set(e, ERR_LIMIT, "a context of %d is too large", g->n_ctx);
    return check_memory(g->device.name, (double)bytes, cache_needs, e) && spec_new(&g->spec, g->model, &so, e) &&
           spec_lane_new(g->spec, &g->lane, e);
}

static bool open_with(engine *g, const engine_options *opt, bool loop, err *e)
{
    *g = (engine){0};
    if (open_model(g, opt, e) && choose_ctx(g, opt, e) && (loop ? open_loop : open_pages)(g, opt, e)) {
        if (g->kv) g->seq = kv_seq_new(g->kv, 0);
        return true;
    }
    engine_close(g);
    return false;
}

bool engine_open(engine *g, const engine_options *opt, err *e) { return open_with(g, opt, false, e); }
bool engine_open_loop(engine *g, const engine_options *opt, err *e) { return open_with(g, opt, true, e); }

void engine_close(engine *g)
{
    if (g->seq) kv_seq_free(g->seq);
    kv_pool_free(g->kv);
    spec_lane_free(g->lane);
    spec_free(g->spec);
    model_close(g->model);
    *g = (engine){0};
}

static int add_drafter(engine *g, const draft_options *d, quant_type kv_type, const char *path, str image)
{
    static const quant_type quants[] = {QUANT_F32, QUANT_Q8_0, QUANT_Q4_0}; /* as engine_draft_quants */
    err                     e        = {0};
    spec_draft_source       src      = {.path     = path,
                                        .image    = image,
                                        .opt      = {.n_ctx = d->n_ctx, .quantise = quants[d->quantise], .kv_type = kv_type},
                                        .lazy     = d->lazy,
                                        .wrap     = d->wrap,
                                        .wrap_ctx = d->wrap_ctx};
    bool                    ok       = spec_add_drafter(g->spec, &src, &e);
    if (!ok) log_event(LOG_WARN, "draft", "%s; going on without it", e.text);
    return ok;
}

int engine_add_drafters(engine *g, const draft_options *d, quant_type kv_type)
{
    int n = d->image.n ? add_drafter(g, d, kv_type, d->image_name, d->image) : 0;
    for (int i = 0; i < d->paths.n; i++) n += add_drafter(g, d, kv_type, d->paths.item[i], (str){0});
    return n;
}
