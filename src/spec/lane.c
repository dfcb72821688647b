/* Lanes and their requests: creation, begin, end, and simple accessors. */
#include "base/mem.h"
#include "spec/inside.h"

#include <assert.h>

/* --- lanes --------------------------------------------------------------------------------------*/
bool spec_lane_new(spec *s, spec_lane **out, err *e)
{
    int i = 0;
    *out  = NULL;
    while (i < s->opt.max_lanes && s->lanes[i]) i++;
    if (i == s->opt.max_lanes) return err_set(e, ERR_BUSY, "all %d lanes are in use", s->opt.max_lanes);
    spec_lane *l = mem_try(sizeof *l);
    int32_t   *x = mem_try_n((size_t)s->opt.n_ctx + 1, sizeof *x);
    kv_node  **n = mem_try_n((size_t)s->opt.n_ctx / KV_PAGE + 1, sizeof(kv_node *));
    if (!l || !x || !n) {
        mem_free(l);
        mem_free(x);
        mem_free(n);
        return err_set(e, ERR_UNAVAILABLE, "no memory for the text of a lane");
    }
    l->s           = s;
    l->index       = i;
    l->text        = x;
    l->shared.node = n;
    policy_init(&l->policy, &(policy_limits){0}); /* limits are set before each round */
    s->lanes[i] = l;
    *out        = l;
    return true;
}

void spec_lane_free(spec_lane *l)
{
    if (!l) return;
    spec_lane_end(l);
    for (int i = 0; i < DRAFTER_KINDS; i++) lane_drop_drafter(l, (drafter_kind)i);
    l->s->lanes[l->index] = NULL;
    history_free(l->history);
    mem_free(l->shared.node);
    mem_free(l->text);
    mem_free(l);
}

static bool begin_counting(spec_lane *l, err *e)
{
    l->counting = !penalty_is_off(&l->opt.penalty) || l->opt.min_tokens > 0;
    if (!l->counting) return true;
    if (!l->history && !history_new(&l->history, l->s->t->n_vocab, e)) return false;
    history_clear(l->history);
    history_bias(l->history, l->opt.penalty.bias, l->opt.penalty.n_bias);
    history_ends(l->history, l->opt.end_id, l->opt.n_ends);
    if (!penalty_counts(&l->opt.penalty)) return true;
    int32_t n = l->n_prompt - l->opt.n_continued;
    for (int32_t i = 0; i < n; i++)
        if (l->text[i] >= 0) history_prompt(l->history, l->text + i, 1); /* rows of pictures are no tokens */
    for (; n < l->n_prompt; n++)
        if (l->text[n] >= 0) history_push(l->history, l->text[n]);
    return true;
}

static void set_options(spec_lane *l, const lane_request *r)
{
    assert(r->opt.n_top <= SPEC_MAX_TOP && (!r->opt.score_prompt || r->opt.n_top >= 0));
    l->opt         = r->opt;
    l->limit       = r->max_new > 0 ? r->max_new : INT32_MAX;
    l->out.n       = 0;
    l->out.problem = NULL;
    l->stats       = (tandem_spec_counts){0};
    l->shadow_at   = 0;
    l->n_shadow    = 0;
    l->n_scored    = 0;
    l->tail_record = (survival){0};
}

static void set_text(spec_lane *l, const lane_request *r)
{
    int32_t n_ctx = l->s->opt.n_ctx, n = (int32_t)r->n_prompt;
    memcpy(l->text, r->prompt, r->n_prompt * sizeof *r->prompt);
    l->n_text = l->n_prompt = n;
    l->n_cached             = 0;
    l->media                = r->media;
    l->soft                 = r->soft;
    l->n_max                = r->max_new > 0 && r->max_new < n_ctx - n ? n + r->max_new : n_ctx;
}

/* Chooses the acceptance record to start from: that of the request's class, an empty one for a new class, or without
 * classes that of the lane's last text. */
static void choose_policy(spec_lane *l)
{
    if (!l->classes)
        policy_next_text(&l->policy);
    else if (!policy_classes_seed(l->classes, l->class_key, &l->policy))
        policy_init(&l->policy, &(policy_limits){0});
}

bool spec_lane_begin(spec_lane *l, const lane_request *r, size_t *n_reused, err *e)
{
    if (r->n_prompt < 1 || r->n_prompt > (size_t)l->s->opt.n_ctx)
        return err_set(e, r->n_prompt ? ERR_CONTEXT : ERR_INPUT, "the prompt has %zu tokens and the context holds %d",
                       r->n_prompt, l->s->opt.n_ctx);
    spec_lane_end(l);
    set_options(l, r);
    set_text(l, r);
    if (!need_pool(l->s, e) || !begin_counting(l, e)) return false;
    lane_take_drafters(l);
    if (!lane_take_pages(l, r, e)) return false;
    l->classes   = r->classes;
    l->class_key = r->class_key;
    choose_policy(l);
    lane_guide_begin(l, r);
    l->live   = true;
    *n_reused = (size_t)max_int(l->n_cached - l->n_run_again, 0);
    return true;
}

void spec_lane_end(spec_lane *l)
{
    if (!l->live) return;
    l->live  = false;
    l->out.n = 0;
    if (l->classes) policy_classes_learn(l->classes, l->class_key, &l->policy);
    lane_guide_end(l);
    lane_give_pages(l);
}

int spec_lane_next_span(const spec_lane *l)
{
    for (int i = 0; i < media_prompt_spans(l->media); i++) {
        const media_span *s = media_prompt_span(l->media, i);
        if (s->first + s->n > l->n_cached && !l->soft[i]) return i;
    }
    return -1;
}

int spec_lane_min_rows(const spec_lane *l)
{
    for (int i = 0; i < media_prompt_spans(l->media); i++) {
        const media_span *s = media_prompt_span(l->media, i);
        if (s->first > l->n_cached) return 1;
        if (s->first + s->n <= l->n_cached) continue;
        if (!l->soft[i]) return 0;
        return l->s->t->sees_ahead ? s->first + s->n - l->n_cached : 1;
    }
    return 1;
}

bool spec_encode(spec *s, const media_span *span, float *out, err *e) { return target_encode(s->t, span, out, e); }
void spec_park_encoder(spec *s) { target_park_media(s->t); }

spec_lane_text spec_lane_committed(const spec_lane *l)
{
    return (spec_lane_text){l->text, l->n_prompt, l->n_cached, l->branch};
}

int  spec_lane_pending(const spec_lane *l) { return l->n_text - l->n_cached; }
bool spec_lane_can_draft(const spec_lane *l) { return spec_lane_pending(l) == 1 && l->n_text > l->n_prompt; }

bool                      spec_lane_full(const spec_lane *l) { return l->n_text > l->n_max; }
void                      spec_lane_limit(spec_lane *l, int n) { l->limit = n; }
const spec_out           *spec_lane_out(const spec_lane *l) { return &l->out; }
const tandem_spec_counts *spec_lane_stats(const spec_lane *l) { return &l->stats; }
