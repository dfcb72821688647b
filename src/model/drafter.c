#include "model/drafter.h"

#include "model/dflash.h"
#include "model/mtp.h"

static bool is_dflash(const checkpoint *c)
{
    if (c->gguf) return str_is(model_arch(c), "dflash") || str_ends(model_arch(c), "dflash-draft");
    return json_get(c->config, "dflash_config") != NULL;
}

const char *drafter_kind(const checkpoint *c)
{
    if (is_dflash(c)) return "dflash";
    return str_starts(model_arch(c), "gemma4") && str_ends(model_arch(c), "assistant") ? "mtp" : NULL;
}

bool drafter_open(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e)
{
    const char *kind = drafter_kind(c);
    *out             = NULL;
    if (!kind)
        return err_set(e, ERR_INPUT, "'%.*s' is neither a DFlash drafter nor a Gemma 4 assistant",
                       STR_ARG(model_arch(c)));
    return kind[0] == 'd' ? dflash_open(out, t, c, opt, e) : mtp_open(out, t, c, opt, e);
}

size_t drafter_kv_bytes(target *t, const checkpoint *c, const drafter_options *opt)
{
    return is_dflash(c) ? dflash_kv_bytes(t, c, opt) : 0;
}

void drafter_close(drafter *d)
{
    if (d) d->close(d);
}
