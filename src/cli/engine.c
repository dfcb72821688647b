#include "cli/cli.h"

const char *const engine_devices[] = {"auto",   "cpu",    "ref",    "cpu:base", "cpu:avx2", "cpu:vnni",
                                      "cuda",   "cuda:0", "cuda:1", "cuda:2",   "cuda:3",   "cuda:4",
                                      "cuda:5", "cuda:6", "cuda:7", NULL};

bool engine_probe(const char *path, err *e)
{
    checkpoint *cp;
    bool        ok = checkpoint_open(&cp, path, e);
    checkpoint_close(cp);
    return ok;
}

static bool open_model(engine *g, const engine_options *opt, err *e)
{
    progress_bar bar;
    open_options o = {.path         = opt->path,
                      .name         = cli_path_name(opt->path),
                      .image        = opt->image,
                      .device       = engine_devices[opt->device],
                      .n_threads    = cli_threads(opt->n_threads),
                      .wrap         = opt->wrap,
                      .progress     = progress_show,
                      .progress_ctx = &bar};
    progress_start(&bar, "loading");
    bool ok = open_target(&g->model, &g->device, &o, e);
    progress_end(&bar);
    g->n_ctx = opt->n_ctx;
    return ok && open_context(&g->n_ctx, g->model, e);
}

static bool open_pages(engine *g, const engine_options *opt, err *e)
{
    target *m = g->model;
    for (int i = 0; i < m->n_kv_classes; i++) m->kv_class[i].types = opt->kv_type;
    kv_pool_spec pages = {.classes   = m->kv_class,
                          .n_classes = m->n_kv_classes,
                          .max_lanes = 1,
                          .max_slots = g->n_ctx,
                          .states    = m->state,
                          .n_states  = m->n_states};
    if (!kv_bytes_for(&pages, g->n_ctx, &pages.max_bytes))
        return err_set(e, ERR_LIMIT, "a context of %d is too large", g->n_ctx);
    return open_check_cache(g->device.name, pages.max_bytes, e) && kv_pool_new(&g->kv, m->o, &pages, e);
}

static bool open_loop(engine *g, const engine_options *opt, err *e)
{
    spec_options so = {
        .n_ctx = g->n_ctx, .max_lanes = 1 + opt->more_lanes, .kv_type = opt->kv_type, .kv_bytes = opt->kv_bytes};
    return open_spec(&g->spec, g->model, g->device.name, &so, e) && spec_lane_new(g->spec, &g->lane, e);
}

static bool open_with(engine *g, const engine_options *opt, bool loop, err *e)
{
    *g = (engine){0};
    if (open_model(g, opt, e) && (loop ? open_loop : open_pages)(g, opt, e)) {
        if (g->kv) g->lane_kv = kv_lane_new(g->kv);
        return true;
    }
    engine_close(g);
    return false;
}

bool engine_open(engine *g, const engine_options *opt, err *e) { return open_with(g, opt, false, e); }
bool engine_open_loop(engine *g, const engine_options *opt, err *e) { return open_with(g, opt, true, e); }

void engine_close(engine *g)
{
    kv_lane_free(g->lane_kv);
    kv_pool_free(g->kv);
    spec_lane_free(g->lane);
    spec_free(g->spec);
    model_close(g->model);
    *g = (engine){0};
}

static int add_drafter(engine *g, const draft_options *d, cache_types kv_type, const char *path, str image)
{
    spec_draft_source src = {.path  = path,
                             .image = image,
                             .opt  = {.n_ctx = d->n_ctx, .quantise = open_draft_types[d->quantise], .kv_type = kv_type},
                             .lazy = d->lazy,
                             .wrap = d->wrap,
                             .wrap_ctx = d->wrap_ctx};
    return open_add_drafter(g->spec, &src);
}

int engine_add_drafters(engine *g, const draft_options *d, cache_types kv_type)
{
    int n = d->image.n ? add_drafter(g, d, kv_type, d->image_name, d->image) : 0;
    for (int i = 0; i < d->paths.n; i++) n += add_drafter(g, d, kv_type, d->paths.item[i], (str){0});
    return n;
}
