#include "cli/cli.h"

const char *const engine_devices[] = {"auto",   "cpu",    "ref",    "cpu:base", "cpu:avx2", "cpu:vnni",
                                      "cuda",   "cuda:0", "cuda:1", "cuda:2",   "cuda:3",   "cuda:4",
                                      "cuda:5", "cuda:6", "cuda:7", NULL};

bool cli_parse_kv(void *dest, const char *value, err *e)
{
    kv_flags   *f = dest;
    cache_types full;
    if (!cache_types_parse(&full, str_of(value), e)) return false;
    kv_types all = kv_types_default(full);
    if (f->sliding_given) all.sliding = f->types.sliding;
    if (f->draft_given) all.draft = f->types.draft;
    all.sparse = f->types.sparse;
    f->types   = all;
    return true;
}

bool cli_parse_kv_sliding(void *dest, const char *value, err *e)
{
    kv_flags *f = dest;
    return cache_types_parse(&f->types.sliding, str_of(value), e) && (f->sliding_given = true);
}

bool cli_parse_kv_draft(void *dest, const char *value, err *e)
{
    kv_flags *f = dest;
    return cache_types_parse(&f->types.draft, str_of(value), e) && (f->draft_given = true);
}

bool cli_parse_sparse(void *dest, const char *value, err *e)
{
    return sparse_parse(&((kv_flags *)dest)->types.sparse, str_of(value), e);
}

static bool open_files(opened_model *m, const engine_options *opt, err *e)
{
    progress_bar bar;
    open_options o = {.path         = opt->path,
                      .name         = cli_path_name(opt->path),
                      .image        = opt->image,
                      .device       = engine_devices[opt->device],
                      .n_threads    = cli_threads(opt->n_threads),
                      .n_ctx        = opt->n_ctx,
                      .text         = opt->text,
                      .mmproj       = cli_encoder(opt->path, opt->mmproj),
                      .wrap         = opt->wrap,
                      .progress     = progress_show,
                      .progress_ctx = &bar};
    progress_start(&bar, "loading");
    bool ok = open_model(m, &o, e);
    progress_end(&bar);
    return ok;
}

bool cli_open_pages(opened_model *m, const engine_options *opt, err *e)
{
    if (!open_files(m, opt, e)) return false;
    if (open_pages(m, &opt->kv.types, e)) return true;
    open_close(m);
    return false;
}

bool cli_open_loop(opened_model *m, const engine_options *opt, err *e)
{
    spec_options so = {.max_lanes = 1 + opt->more_lanes, .kv_type = opt->kv.types, .kv_bytes = opt->kv_bytes};
    if (!open_files(m, opt, e)) return false;
    if (open_loop(m, &so, e) && spec_lane_new(m->spec, &m->lane, e)) return true;
    open_close(m);
    return false;
}

static int add_drafter(opened_model *m, const draft_options *d, cache_types kv_type, const char *path, str image)
{
    spec_draft_source src = {
        .path  = path,
        .image = image,
        .opt  = {.n_ctx = d->n_ctx, .window = d->window, .quantise = open_draft_types[d->quantise], .kv_type = kv_type},
        .lazy = d->lazy,
        .wrap = d->wrap,
        .wrap_ctx = d->wrap_ctx};
    return open_add_drafter(m->spec, &src);
}

int cli_add_drafters(opened_model *m, const draft_options *d, cache_types kv_type)
{
    int n = d->image.n ? add_drafter(m, d, kv_type, d->image_name, d->image) : 0;
    for (int i = 0; i < d->paths.n; i++) n += add_drafter(m, d, kv_type, d->paths.item[i], (str){0});
    return n;
}
