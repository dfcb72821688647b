#include "spec_rig.h"

const int32_t rig_prompt[RIG_PROMPT] = {2,   15, 591, 281, 285, 349, 630, 280, 290, 283,
                                        283, 16, 281, 15,  590, 281, 13,  599, 281, 14};

bool spec_rig_open_of(test_case *t, spec_rig *g, const spec_options *o, const char *model,
                      const char *const drafters[2])
{
    static char path[2][4096];
    err         e  = {0};
    checkpoint *cp = NULL;
    *g             = (spec_rig){0};
    if (!CHECK_OK(checkpoint_open(&cp, test_path(model), &e), e)) return false;
    bool ok = CHECK_OK(model_open(&g->m, cp, &(model_options){.device = "cpu", .n_threads = 1}, &e), e);
    checkpoint_close(cp);
    if (!ok || !CHECK_OK(spec_new(&g->s, g->m, o, &e), e)) return false;
    for (int i = 0; i < o->max_lanes && i < RIG_LANES; i++) ok = ok && CHECK_OK(spec_lane_new(g->s, &g->l[i], &e), e);
    for (int i = 0; i < 2 && drafters[i]; i++) {
        snprintf(path[i], sizeof path[i], "%s", test_path(drafters[i]));
        spec_draft_source src = {.path = path[i], .fingerprint = o->fingerprint};
        ok                    = ok && CHECK_OK(spec_add_drafter(g->s, &src, &e), e);
    }
    return ok;
}

bool spec_rig_open(test_case *t, spec_rig *g, const spec_options *o, bool with_drafters)
{
    static const char *const both[] = {"models/nano/dflash.gguf", "models/nano/mtp.gguf"}, *const none[] = {NULL, NULL};
    return spec_rig_open_of(t, g, o, "models/nano/target.gguf", with_drafters ? both : none);
}

void spec_rig_close(spec_rig *g)
{
    for (int i = 0; i < RIG_LANES; i++) spec_lane_free(g->l[i]);
    spec_free(g->s);
    model_close(g->m);
}

lane_options spec_rig_options(int method)
{
    return (lane_options){.params = {.top_p = 1}, .penalty.repeat = 1, .n_top = -1, .spec.method = method};
}
