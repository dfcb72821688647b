#include "spec/method.h"

#include "base/mem.h"

#include <assert.h>

const char *const spec_method_names[] = {[SPEC_OFF]    = "off",
                                         [SPEC_DFLASH] = "dflash",
                                         [SPEC_TREE]   = "tree",
                                         [SPEC_MTP]    = "mtp",
                                         [SPEC_NGRAM]  = "ngram",
                                         [SPEC_AUTO]   = "auto",
                                         NULL};

/* The methods that use a drafter. A kind's first method drafts its chains. */
static const struct {
    spec_method  method;
    drafter_kind drafter;
} uses[] = {
    {SPEC_DFLASH, DRAFTER_DFLASH},
    {SPEC_TREE, DRAFTER_DFLASH},
    {SPEC_MTP, DRAFTER_MTP},
    {SPEC_NGRAM, DRAFTER_NGRAM},
};

const char *spec_method_name(int m)
{
    if (m == SPEC_GRAMMAR) return "grammar";
    return m >= 0 && m <= SPEC_AUTO ? spec_method_names[m] : NULL;
}

drafter_kind spec_method_drafter(spec_method m)
{
    size_t i = 0;
    while (i < COUNT(uses) && uses[i].method != m) i++;
    assert(i < COUNT(uses));
    return uses[i].drafter;
}

spec_method spec_chain_method(drafter_kind k)
{
    size_t i = 0;
    while (i < COUNT(uses) && uses[i].drafter != k) i++;
    assert(i < COUNT(uses));
    return uses[i].method;
}

bool spec_needs_file(spec_method m)
{
    return m > SPEC_OFF && m < SPEC_METHODS && drafter_kinds[spec_method_drafter(m)].matches;
}
