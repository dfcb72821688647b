#include "model/open_target.h"

bool test_open_target(test_case *t, target **out, const char *path, const model_options *opt)
{
    err         e  = {0};
    checkpoint *cp = NULL;
    if (!CHECK_OK(checkpoint_open(&cp, path, &e), e)) return false;
    bool ok = CHECK_OK(model_open(out, cp, opt, &e), e);
    checkpoint_close(cp);
    return ok;
}

bool test_open_pool(test_case *t, kv_pool **out, target *m, const test_pool *size)
{
    err          e    = {0};
    kv_pool_spec spec = {.classes   = m->kv_class,
                         .n_classes = m->n_kv_classes,
                         .max_lanes = size->max_lanes,
                         .max_slots = size->max_slots,
                         .q         = m->q};
    if (size->max_kept_rows) {
        spec.states        = m->state;
        spec.n_states      = m->n_states;
        spec.max_kept_rows = size->max_kept_rows;
    }
    if (!CHECK(kv_bytes_for(&spec, size->max_slots, &spec.max_bytes))) return false;
    spec.max_bytes *= (size_t)(size->full_lanes ? size->full_lanes : size->max_lanes);
    return CHECK_OK(kv_pool_new(out, m->o, &spec, &e), e);
}
