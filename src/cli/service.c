#include "cli/service.h"

#include "base/log.h"

/* Parses "queue_max=8". The texts live as long as the process. */
static bool parse_setting(const char *text, tandem_setting *out)
{
    const char *at   = strchr(text, '=');
    size_t      n    = at ? (size_t)(at - text) : 0;
    char       *name = n ? xalloc(n + 1) : NULL;
    if (!name) return false;
    memcpy(name, text, n);
    *out = (tandem_setting){name, at + 1};
    return true;
}

bool service_check(service_flags *f, const opt_spec *usage)
{
    for (int i = 0; i < f->set.n; i++)
        if (!parse_setting(f->set.item[i], &f->given[i]))
            return opt_usage(usage, "--set: '%s' is not NAME=VALUE", f->set.item[i]), false;
    if (f->engine.kv_bytes && f->engine.memory_share > 0)
        return opt_usage(usage, "--memory-share and --kv-bytes both set the size of the K/V cache: give one"), false;
    if (f->cache_bytes && !f->cache_dir)
        log_event(LOG_WARN, "cache", "--cache-bytes has no effect without --cache-dir");
    return true;
}

static void set_options(tandem_options *o, service_flags *f, const service_extra *x)
{
    tandem_options_init(o);
    o->path      = f->engine.path;
    o->mmproj    = cli_encoder(f->engine.path, f->engine.mmproj);
    o->name      = x->name;
    o->shown     = cli_shown_path(f->engine.path);
    o->device    = engine_devices[f->engine.device];
    o->n_threads = cli_threads(f->engine.n_threads);
    o->n_ctx     = f->engine.n_ctx;
    generate_set_kv(o, &f->engine.kv.types, f->kv_text);
    o->spec         = generate_speculation(&f->spec);
    o->kv_bytes     = f->engine.kv_bytes;
    o->memory_share = f->engine.memory_share;
    o->cache_dir    = f->cache_dir;
    o->park_bytes   = f->park_bytes;
    o->wipe_pages   = f->wipe_pages;
    if (f->cache_bytes) o->cache_bytes = f->cache_bytes;
    if (f->max_lanes) o->max_lanes = f->max_lanes;
    if (f->step_tokens) o->step_tokens = f->step_tokens;
    o->settings_path = f->settings;
    o->routing_log   = f->routing_log;
    o->session_dir   = f->session_dir;
    o->fingerprints  = true;
    o->settings      = f->given;
    o->n_settings    = f->set.n;
    o->no_prefix     = x->no_prefix;
    o->wake_ms       = x->wake_ms;
    o->wake          = x->wake;
    o->wake_ctx      = x->wake_ctx;
}

bool service_find_drafters(service_flags *f, const checkpoint *files, err *e)
{
    return !generate_uses_drafters(&f->spec) || cli_resolve_drafters(&f->draft, f->engine.path, files, e);
}

bool service_open(tandem **out, service_flags *f, const service_extra *x, err *e)
{
    tandem_drafter drafters[OPT_LIST_MAX];
    tandem_options o;
    progress_bar   bar;
    set_options(&o, f, x);
    if (!service_find_drafters(f, x->engine.files, e)) return false;
    if (generate_uses_drafters(&f->spec)) generate_set_drafters(&o, &f->draft, drafters);
    for (int i = 0; i < o.n_drafters; i++) {
        drafters[i].required = !f->draft.found;
        drafters[i].name     = cli_id(drafters[i].path);
        drafters[i].shown    = cli_shown_path(drafters[i].path);
    }
    o.by_setting   = (tandem_drafter){.quantise = f->draft.quantise_given ? open_draft_quants[f->draft.quantise] : NULL,
                                      .n_ctx    = f->draft.n_ctx,
                                      .window   = f->draft.window,
                                      .lazy     = f->draft.lazy};
    o.progress     = progress_show;
    o.progress_ctx = &bar;
    progress_start(&bar, "loading");
    bool ok = engine_open(out, &o, &x->engine, e);
    progress_end(&bar);
    if (ok) generate_check_method(*out, &f->spec);
    return ok;
}
