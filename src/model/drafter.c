#include "model/drafter.h"

#include "model/convert_plan.h"
#include "model/dflash.h"
#include "model/mtp.h"

/* --- kinds --------------------------------------------------------------------------------------*/
static bool is_dflash(const checkpoint *c)
{
    if (c->gguf) return str_is(model_arch(c), "dflash") || str_ends(model_arch(c), "dflash-draft");
    return json_get(c->config, "dflash_config") != NULL;
}

static bool is_assistant(const checkpoint *c)
{
    return str_starts(model_arch(c), "gemma4") && str_ends(model_arch(c), "assistant");
}

static size_t no_kv(target *t, const checkpoint *c, const drafter_options *opt)
{
    (void)t, (void)c, (void)opt;
    return 0;
}

const drafter_kind_info drafter_kinds[DRAFTER_KINDS] = {
    [DRAFTER_DFLASH] = {"dflash", is_dflash, dflash_open, dflash_kv_bytes, plan_dflash},
    [DRAFTER_MTP]    = {"mtp", is_assistant, mtp_open, no_kv, plan_assistant},
    [DRAFTER_NGRAM]  = {.name = "ngram"},
};

int drafter_kind_of(const checkpoint *c)
{
    for (int k = 0; k < DRAFTER_KINDS; k++)
        if (drafter_kinds[k].matches && drafter_kinds[k].matches(c)) return k;
    return -1;
}

/* --- any kind -----------------------------------------------------------------------------------*/
bool drafter_open(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e)
{
    int k = drafter_kind_of(c);
    *out  = NULL;
    if (k < 0)
        return err_set(e, ERR_INPUT, "'%.*s' is neither a DFlash drafter nor a Gemma 4 assistant",
                       STR_ARG(model_arch(c)));
    return drafter_kinds[k].open(out, t, c, opt, e);
}

size_t drafter_kv_bytes(target *t, const checkpoint *c, const drafter_options *opt)
{
    int k = drafter_kind_of(c);
    return k < 0 ? 0 : drafter_kinds[k].kv_bytes(t, c, opt);
}

void drafter_close(drafter *d)
{
    if (d) d->close(d);
}
