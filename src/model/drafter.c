#include "model/drafter.h"

#include "model/convert_plan.h"
#include "model/dflash.h"
#include "model/mtp.h"
#include "model/qwen35_mtp.h"

#include <assert.h>

/* --- kinds --------------------------------------------------------------------------------------*/
static bool is_dflash(const checkpoint *c)
{
    if (c->gguf) return str_is(model_arch(c), "dflash") || str_ends(model_arch(c), "dflash-draft");
    return dflash_dir_matches(c->config);
}

static bool is_assistant(const checkpoint *c)
{
    return str_starts(model_arch(c), "gemma4") && str_ends(model_arch(c), "assistant");
}

static bool is_mtp(const checkpoint *c) { return is_assistant(c) || qwen35_has_mtp(c); }

static bool open_mtp(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e)
{
    return (is_assistant(c) ? mtp_open : qwen35_mtp_open)(out, t, c, opt, e);
}

static bool fits_mtp(const checkpoint *c, const target_shape *t, err *e)
{
    return (is_assistant(c) ? mtp_fits : qwen35_mtp_fits)(c, t, e);
}

static size_t mtp_kv_bytes(target *t, const checkpoint *c, const drafter_options *opt)
{
    return is_assistant(c) ? 0 : qwen35_mtp_kv_bytes(t, c, opt);
}

const drafter_kind_info drafter_kinds[DRAFTER_KINDS] = {
    [DRAFTER_DFLASH] = {"dflash", is_dflash, dflash_open, dflash_fits, dflash_kv_bytes, plan_dflash, dflash_describe},
    [DRAFTER_MTP]    = {"mtp", is_mtp, open_mtp, fits_mtp, mtp_kv_bytes, plan_assistant, NULL},
    [DRAFTER_NGRAM]  = {.name = "ngram"},
};

int drafter_kind_of(const checkpoint *c)
{
    for (int k = 0; k < DRAFTER_KINDS; k++)
        if (drafter_kinds[k].matches && drafter_kinds[k].matches(c)) return k;
    return -1;
}

/* --- features -----------------------------------------------------------------------------------*/
dev draft_features(const drafter *d)
{
    const target *t = d->t;
    for (int at = 0; at + d->n_capture <= t->n_features; at++)
        if (!memcmp(t->feature_id + at, d->capture_id, (size_t)d->n_capture * sizeof *d->capture_id))
            return dev_at_f32(t->features, (size_t)at * (size_t)t->n_embd);
    assert(!"the target does not capture the drafter's features");
    return (dev){0};
}

/* --- any kind -----------------------------------------------------------------------------------*/
bool drafter_open(drafter **out, target *t, const checkpoint *c, const drafter_options *opt, err *e)
{
    int k = drafter_kind_of(c);
    *out  = NULL;
    if (k < 0)
        return err_set(e, ERR_INPUT, "'%.*s' is neither a DFlash or DSpark drafter nor has an MTP head",
                       STR_ARG(model_arch(c)));
    return drafter_kinds[k].open(out, t, c, opt, e);
}

bool drafter_fits(const checkpoint *c, const target_shape *t, err *e)
{
    return drafter_kinds[drafter_kind_of(c)].fits(c, t, e);
}

size_t drafter_bytes(const checkpoint *c) { return qwen35_has_mtp(c) ? qwen35_mtp_bytes(c) : c->bytes; }

size_t drafter_kv_bytes(target *t, const checkpoint *c, const drafter_options *opt)
{
    int k = drafter_kind_of(c);
    return k < 0 ? 0 : drafter_kinds[k].kv_bytes(t, c, opt);
}

void drafter_close(drafter *d)
{
    if (d) d->close(d);
}
