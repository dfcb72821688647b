#include "spec/spec.h"

#include "base/mem.h"
#include "spec/inside.h"

#include <assert.h>

enum {
    ROOM_FOR_CHANGES = 32768
}; /* logit changes of several rows are uploaded together: room in addition to one per token */

/* --- one per target -----------------------------------------------------------------------------*/
static bool take_scratch(spec *s, err *e)
{
    const ops *o    = s->t->o;
    size_t     rows = (size_t)s->t->max_rows, lanes = (size_t)s->opt.max_lanes;
    step_init(&s->step, s->t->max_rows);
    s->judged           = xnew_n(judged_row, rows);
    s->pick             = xnew_n(int32_t, rows);
    s->row              = xnew_n(int32_t, rows + DRAFT_MAX);
    s->soft_rows        = xnew_n(draft_soft, rows);
    s->closing          = xnew_n(bool, rows);
    s->lost             = xnew_n(bool, rows);
    s->by_lane.lane     = xnew_n(spec_lane *, lanes);
    s->by_lane.drafting = xnew_n(spec_lane *, lanes);
    s->by_lane.job      = xnew_n(draft_job *, lanes);
    s->by_lane.n_draft  = xnew_n(int, lanes);
    s->by_lane.part     = xnew_n(spec_part, lanes);
    s->max_changes      = s->t->n_vocab + ROOM_FOR_CHANGES;
    s->host_changes     = mem_try_n((size_t)s->max_changes, sizeof *s->host_changes);
    s->host_logprobs    = xnew_n(token_logprob, rows * (1 + SPEC_MAX_TOP));
    s->host_best        = xnew_n(token_logit, rows * SAMPLE_TOP_MAX);
    s->host_mask        = xnew_n(uint64_t, sampling_mask_words(s->t->n_vocab));
    s->host_tokens      = xnew_n(int32_t, (size_t)s->opt.max_lanes * DRAFT_MAX);
    if (!s->host_changes) return err_set(e, ERR_UNAVAILABLE, "no memory to count tokens");
    return o->alloc(o, &s->params, HEAD_ROWS * sizeof(sample_params), e) &&
           o->alloc(o, &s->picked, HEAD_ROWS * sizeof(int32_t), e) &&
           o->alloc(o, &s->changes, (size_t)s->max_changes * sizeof(logit_change), e) &&
           o->alloc(o, &s->logprobs, (size_t)HEAD_ROWS * (1 + SPEC_MAX_TOP) * sizeof(token_logprob), e) &&
           o->alloc(o, &s->device_tokens, (size_t)s->opt.max_lanes * DRAFT_MAX * sizeof(int32_t), e) &&
           o->alloc(o, &s->masks, HEAD_ROWS * sampling_mask_words(s->t->n_vocab) * sizeof(uint64_t), e) &&
           o->alloc(o, &s->masked, HEAD_ROWS * sizeof(int32_t), e);
}

bool spec_new(spec **out, target *t, const spec_options *o, err *e)
{
    *out = NULL;
    if (t->n_states && o->max_lanes > max_kept_rows(t))
        return err_set(e, ERR_INPUT, "max_lanes must be at most %d for this model, got %d", max_kept_rows(t),
                       o->max_lanes);
    spec *s              = xnew(spec);
    s->t                 = t;
    s->opt               = *o;
    s->mask_work         = INT64_MAX;
    s->lanes             = xnew_n(spec_lane *, (size_t)o->max_lanes);
    s->cost.whole_drafts = t->o->runs_later;
    target_set_kv(t, &o->kv_type);
    if (open_pool(s, 0, e) && take_scratch(s, e)) {
        s->slots[DRAFTER_NGRAM] = (draft_slot){.given = true, .d = drafter_open_ngram(t, o->n_ctx + 1)};
        *out                    = s;
        return true;
    }
    spec_free(s);
    return false;
}

void spec_free(spec *s)
{
    if (!s) return;
    const dev bufs[] = {s->params, s->picked, s->changes, s->logprobs, s->device_tokens, s->masks, s->masked};
    for (int i = 0; i < s->opt.max_lanes; i++) assert(!s->lanes[i]);
    close_drafters(s);
    for (checkpoint_list *l = s->file_lists, *next; l; l = next) {
        next = l->next;
        mem_free(l);
    }
    for (size_t i = 0; i < COUNT(bufs); i++)
        if (bufs[i].p) s->t->o->free(s->t->o, bufs[i]);
    close_pool(s);
    mem_free(s->host_changes);
    mem_free(s->host_logprobs);
    mem_free(s->host_best);
    mem_free(s->host_tokens);
    mem_free(s->host_mask);
    mem_free(s->judged);
    mem_free(s->pick);
    mem_free(s->row);
    mem_free(s->soft_rows);
    mem_free(s->closing);
    mem_free(s->lost);
    mem_free(s->by_lane.lane);
    mem_free(s->by_lane.drafting);
    mem_free(s->by_lane.job);
    mem_free(s->by_lane.n_draft);
    mem_free(s->by_lane.part);
    step_deinit(&s->step);
    mem_free(s->lanes);
    mem_free(s);
}

const cost_table *spec_costs(const spec *s) { return &s->cost; }
