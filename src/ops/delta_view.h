/* ops/delta_view.h - for backends on the processor: gated delta nets (ops.h) with addresses instead of `dev`. */
#ifndef TANDEM_OPS_DELTA_VIEW_H
#define TANDEM_OPS_DELTA_VIEW_H
#include "ops/ops.h"

/* The rows of a step, as recurrent layers see them. */
typedef struct {
    const int32_t *lane, *pos, *before, *kept;
    int            n_rows;
} delta_rows;
static inline delta_rows delta_rows_of(const step_rows *r)
{
    return (delta_rows){r->lane.p, r->pos.p, r->before.p, r->kept.p, r->n_rows};
}

/* Return the address of a layer's part of a lane's live state, and of a kept row. */
static inline float *delta_live(const delta_class *c, int layer, int32_t lane)
{
    int32_t id = ((const int32_t *)c->table.p)[(size_t)lane * (size_t)c->table_stride];
    return (float *)((char *)c->pool.p + (size_t)id * KV_UNIT) + (size_t)layer * delta_state_floats(c);
}
static inline float *delta_kept(const delta_class *c, int layer, int32_t place)
{
    return (float *)((char *)c->kept.p + (size_t)place * c->row_bytes) + (size_t)layer * delta_kept_floats(c);
}

/* A lane's rows in a step: first .. end - 1, of which those from first_kept on are kept. */
typedef struct {
    int     first, end, first_kept;
    int32_t lane;
    bool    from_zero; /* the state before them is all zeros */
} delta_lane;

/* Sets *l to the rows of the next lane; a zeroed one comes before the first. Returns false after the last. */
static inline bool delta_next_lane(const delta_rows *r, delta_lane *l)
{
    if (l->end == r->n_rows) return false;
    l->first     = l->end;
    l->lane      = r->lane[l->first];
    l->from_zero = r->pos[l->first] == 0;
    while (l->end < r->n_rows && r->lane[l->end] == l->lane) l->end++;
    for (l->first_kept = l->first; l->first_kept < l->end && r->kept[l->first_kept] < 0;) l->first_kept++;
    return true;
}
#endif
