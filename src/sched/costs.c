/* The measured costs of steps and drafts as JSON, for people who ask why a plan was chosen. */
#include "base/mem.h"
#include "sched/inside.h"

/* Called on the engine thread. */
static void copy_costs(void *ctx, spec *sp) { *(cost_table *)ctx = *spec_costs(sp); }

/* Writes the points that were measured and the curve that the policy uses, from one row on and a little further than
 * the last point. */
static void put_series(json_writer *w, const cost_series *s)
{
    enum { BEYOND = 16 };
    int last = s->high + BEYOND < COST_MAX_ROWS ? s->high + BEYOND : COST_MAX_ROWS;
    json_key(w, "points");
    json_begin_array(w);
    for (int i = 1; i <= COST_MAX_ROWS; i++) {
        if (!s->at[i].n) continue;
        json_begin_array(w);
        json_put_int(w, i);
        json_put_real(w, s->at[i].seconds);
        json_put_int(w, s->at[i].n);
        json_end(w);
    }
    json_end(w);
    json_key(w, "curve");
    json_begin_array(w);
    for (int i = 1; s->drawn && i <= last; i++) json_put_real(w, s->curve[i]);
    json_end(w);
}

static void put_steps(json_writer *w, const cost_table *c)
{
    json_key(w, "steps");
    json_begin_array(w);
    for (int i = 0, max_ctx = 1024; i < COST_CONTEXTS; i++, max_ctx *= 4) {
        json_begin_object(w);
        json_key(w, "max_context");
        if (i < COST_CONTEXTS - 1)
            json_put_int(w, max_ctx);
        else
            json_put_null(w);
        put_series(w, &c->step[i]);
        json_end(w);
    }
    json_end(w);
}

static void put_drafts(json_writer *w, const cost_table *c)
{
    const struct {
        const char        *name;
        const cost_series *series;
    } drafts[] = {{"dflash", &c->block[SPEC_DFLASH]}, {"tree", &c->block[SPEC_TREE]}, {"mtp", &c->pass}};
    json_key(w, "drafts");
    json_begin_object(w);
    for (size_t i = 0; i < COUNT(drafts); i++) {
        json_key(w, drafts[i].name);
        json_begin_object(w);
        put_series(w, drafts[i].series);
        json_end(w);
    }
    json_end(w);
}

bool engine_put_costs(tandem *t, json_writer *w, err *e)
{
    cost_table *c  = mem_try(sizeof *c);
    bool        ok = c ? sched_do(t->sched, copy_costs, c, e) : err_set(e, ERR_UNAVAILABLE, "no memory for the costs");
    if (ok) {
        json_begin_object(w);
        json_member_str(w, "object", "costs");
        json_member_real(w, "pace", cost_pace(c));
        json_member_real(w, "noise", c->noise);
        put_steps(w, c);
        put_drafts(w, c);
        json_end(w);
    }
    mem_free(c);
    return ok;
}
