/* Resolves the drafters that the user gave, or finds those next to the model. */
#include "base/log.h"
#include "cli/cli.h"
#include "model/find_drafters.h"

static bool add_path(draft_options *d, const char *path, err *e)
{
    if (d->paths.n == OPT_LIST_MAX) return err_set(e, ERR_INPUT, "there are too many drafters");
    d->paths.item[d->paths.n++] = path;
    return true;
}

static bool add_built_in(draft_options *d, const char *model, err *e)
{
    const char *part[2];
    return cli_unpack_drafters(model, part, e) && add_path(d, part[0], e) && add_path(d, part[1], e);
}

/* Adds a copy of the path, which lives as long as the process. */
static bool add_found(draft_options *d, const found_drafter *f, err *e)
{
    size_t n    = strlen(f->path) + 1;
    char  *path = memcpy(xalloc(n), f->path, n);
    if (add_path(d, path, e)) return true;
    mem_free(path);
    return false;
}

static bool add_next_to(draft_options *d, const checkpoint *model, err *e)
{
    int            n;
    bool           ok  = true;
    found_drafter *all = find_drafters(model, &n);
    for (int i = 0; i < n; i++) {
        log_event(LOG_INFO, "draft", "%s: %s", all[i].path, all[i].why);
        ok = ok && (!all[i].taken || add_found(d, &all[i], e));
    }
    mem_free(all);
    if (!d->paths.n) log_event(LOG_INFO, "draft", "no drafter was found next to %s", model->path);
    return ok;
}

static bool find_next_to(draft_options *d, const char *model, const checkpoint *files, err *e)
{
    checkpoint *own = NULL;
    d->found        = true;
    if (cli_is_built_in(model)) return add_built_in(d, model, e);
    if (!files && !checkpoint_open(&own, model, e)) return false;
    bool ok = add_next_to(d, files ? files : own, e);
    checkpoint_close(own);
    return ok;
}

static bool add_given(draft_options *d, const char *given, const char *model, err *e)
{
    if (!strcmp(given, "auto") || !strcmp(given, "none"))
        return err_set(e, ERR_INPUT, "--draft %s excludes other drafters", given);
    if (cli_is_built_in(given)) return add_built_in(d, given, e);
    return add_path(d, strcmp(given, "mtp") == 0 ? model : given, e);
}

bool cli_resolve_drafters(draft_options *d, const char *model, const checkpoint *files, err *e)
{
    opt_list given = d->paths;
    if (d->resolved) return true;
    d->resolved = true;
    d->paths.n  = 0;
    if (given.n == 0 && d->search) return find_next_to(d, model, files, e);
    if (given.n == 0) return !cli_is_built_in(model) || add_built_in(d, model, e);
    if (given.n == 1 && !strcmp(given.item[0], "auto")) return find_next_to(d, model, files, e);
    if (given.n == 1 && !strcmp(given.item[0], "none")) return true;
    for (int i = 0; i < given.n; i++)
        if (!add_given(d, given.item[i], model, e)) return false;
    return true;
}
