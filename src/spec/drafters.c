/* Drafters of a target: opening at once or when first needed, parking, and leaving out drafters that fail. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "spec/inside.h"

#include <assert.h>
#include <stdio.h>

/* Logs a problem, unless it is the same as the last one. */
static void note_problem(spec *s, draft_slot *k, const err *why)
{
    s->slot_changes++;
    if (strcmp(k->problem, why->text) == 0) return;
    snprintf(k->problem, sizeof k->problem, "%s", why->text);
    log_event(LOG_WARN, "draft", "%s; continuing without it", why->text);
}

static const char *name_of(const spec_draft_source *src) { return src->name ? src->name : src->path; }

static bool open_file(checkpoint **cp, const spec_draft_source *src, err *e)
{
    return (src->image.n ? checkpoint_open_bytes(cp, name_of(src), src->image, e)
                         : checkpoint_open(cp, src->path, e)) ||
           err_wrap(e, "no drafter");
}

/* Notes the names and sizes of the drafter's files. A list that was given out lives as long as s. */
static void note_files(spec *s, draft_slot *k, const checkpoint *cp)
{
    checkpoint_list *l = checkpoint_list_new(cp);
    if (checkpoint_list_same(k->files, l)) {
        mem_free(l);
        return;
    }
    l->next       = s->file_lists;
    s->file_lists = l;
    k->files      = l;
}

/* Has the target capture what the open drafters read, and `fresh`, which may be NULL. */
static bool capture_features(spec *s, const drafter *fresh, err *e)
{
    int id[64 * DRAFTER_KINDS], n = 0;
    for (int i = 0; i <= DRAFTER_KINDS; i++) {
        const drafter *d = i < DRAFTER_KINDS ? s->slots[i].d : fresh;
        if (!d || (d == fresh && i < DRAFTER_KINDS)) continue;
        memcpy(id + n, d->capture_id, (size_t)d->n_capture * sizeof *id);
        n += d->n_capture;
    }
    return s->t->capture(s->t, id, n, e);
}

static bool open_slot_from(spec *s, draft_slot *k, const checkpoint *cp, err *e)
{
    drafter_options opt   = k->src.opt;
    double          start = clock_s();
    if (!need_pool(s, e)) return false;
    opt.max_lanes   = s->opt.max_lanes;
    opt.max_ctx     = s->opt.n_ctx;
    opt.pool        = s->kv;
    opt.fold_at_end = spec_has_images(s);
    if (drafter_bytes(cp) > mem_available())
        return err_set(e, ERR_UNAVAILABLE, "drafter %s: no memory for its weights", name_of(&k->src));
    bool ok = drafter_open(&k->d, s->t, cp, &opt, e);
    k->type = opt.quantise == QUANT_F32 ? checkpoint_type(cp) : opt.quantise;
    note_files(s, k, cp);
    if (ok && k->d->n_capture && !capture_features(s, k->d, e)) {
        drafter_close(k->d);
        k->d = NULL;
        ok   = false;
    }
    if (!ok) return err_wrap(e, "drafter %s", name_of(&k->src));
    k->weight_bytes = k->d->weight_bytes;
    k->max_draft    = k->d->max_draft;
    k->trained_ctx  = k->d->trained_ctx;
    if (k->src.wrap) k->d = k->src.wrap(k->src.wrap_ctx, k->d);
    s->slot_changes++;
    log_event(LOG_INFO, "draft", "%s: %s drafter, %.2f GB of weights in %.1f s", name_of(&k->src),
              drafter_kinds[k->d->kind].name, (double)k->d->weight_bytes / 1e9, clock_s() - start);
    return true;
}

static bool open_slot(spec *s, draft_slot *k, err *e)
{
    checkpoint *cp;
    if (!open_file(&cp, &k->src, e)) return false;
    bool ok = open_slot_from(s, k, cp, e);
    checkpoint_close(cp);
    return ok;
}

/* --- adding -------------------------------------------------------------------------------------*/
static bool method_of(const checkpoint *cp, const spec_draft_source *src, spec_method *out, err *e)
{
    int kind = drafter_kind_of(cp);
    if (kind < 0)
        return err_set(e, ERR_INPUT, "%s is not a drafter, but a model of kind '%.*s'", name_of(src),
                       STR_ARG(model_arch(cp)));
    *out = spec_chain_method((drafter_kind)kind);
    return src->method == SPEC_OFF || src->method == *out ||
           err_set(e, ERR_INPUT, "%s is a drafter of kind %s, expected %s", name_of(src), spec_method_names[*out],
                   spec_method_names[src->method]);
}

bool spec_drafter_method(const spec_draft_source *src, spec_method *out, err *e)
{
    return method_of(src->files, src, out, e);
}

bool move_drafters(spec *s, kv_pool *to, err *e)
{
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        drafter *d = s->slots[i].d;
        if (!d || !d->set_pool) continue;
        for (int n = 0; n < s->opt.max_lanes; n++)
            if (s->lanes[n]) lane_drop_drafter(s->lanes[n], (drafter_kind)i);
        if (!d->set_pool(d, to, e)) return false;
    }
    return true;
}

/* Sets *out to the drafter's method, and the size of its own K/V, the fingerprint and the files of the slot. */
static bool probe_slot(spec *s, draft_slot *k, const checkpoint *cp, spec_method *out, err *e)
{
    drafter_options opt = k->src.opt;
    opt.max_lanes       = s->opt.max_lanes;
    opt.max_ctx         = s->opt.n_ctx;
    if (!method_of(cp, &k->src, out, e)) return false;
    k->kv_bytes = drafter_kv_bytes(s->t, cp, &opt);
    if (k->src.fingerprint) {
        fingerprint_checkpoint(cp, k->fingerprint);
        fingerprint_stamp(cp, k->fingerprint, k->stamp);
    }
    note_files(s, k, cp);
    return true;
}

/* Enlarges the pool for one more drafter, if its size was not given and no request is running. */
static bool make_room(spec *s, size_t kv_bytes, err *e)
{
    size_t before = s->extra;
    for (int i = 0; i < DRAFTER_KINDS; i++)
        if (s->slots[i].given && !s->slots[i].failed) kv_bytes += s->slots[i].kv_bytes;
    if (s->opt.kv_bytes || kv_bytes <= before) return true;
    for (int i = 0; i < s->opt.max_lanes; i++)
        if (s->lanes[i] && s->lanes[i]->live) return true;
    if (open_pool(s, kv_bytes, e)) return true;
    close_pool(s);
    s->extra = before;
    need_pool(s, NULL); /* if this fails too, the next request tries again */
    return false;
}

/* Keeps a drafter that could not be opened as failed, unless there is another one of its kind. */
static void keep_failed(spec *s, draft_slot *fresh, spec_method m, const err *why)
{
    draft_slot *k = m == SPEC_OFF ? NULL : &s->slots[spec_method_drafter(m)];
    if (!fresh->src.keep || !k || k->given) return;
    *k        = *fresh;
    k->failed = true;
    snprintf(k->problem, sizeof k->problem, "%s", why->text);
    s->slot_changes++;
}

static bool add_slot(spec *s, draft_slot *fresh, const checkpoint *cp, spec_method *m, err *e)
{
    if (!probe_slot(s, fresh, cp, m, e)) return false;
    draft_slot *k = &s->slots[spec_method_drafter(*m)];
    if (k->given)
        return err_set(e, ERR_INPUT, "%s: there is already a drafter of this kind, %s", name_of(&fresh->src),
                       name_of(&k->src));
    if (!make_room(s, fresh->kv_bytes, e) || (!fresh->src.lazy && !open_slot_from(s, fresh, cp, e))) return false;
    *k = *fresh;
    return true;
}

bool spec_add_drafter(spec *s, const spec_draft_source *src, err *e)
{
    draft_slot  fresh = {.src = *src, .given = true};
    spec_method m     = src->method;
    err         why   = {0};
    checkpoint *own   = NULL;
    fresh.src.files   = NULL;
    bool ok           = src->files || open_file(&own, src, &why);
    ok                = ok && add_slot(s, &fresh, own ? own : src->files, &m, &why);
    checkpoint_close(own);
    if (ok) return true;
    keep_failed(s, &fresh, src->method ? src->method : m, &why);
    if (e) *e = why;
    return false;
}

/* Opens a drafter that could not be opened before: its file may have been replaced. */
static bool retry_slot(spec *s, draft_slot *k, drafter_kind i, err *e)
{
    spec_method m;
    checkpoint *cp;
    k->src.method = spec_chain_method(i);
    if (!open_file(&cp, &k->src, e)) return false;
    bool ok = probe_slot(s, k, cp, &m, e) && make_room(s, k->kv_bytes, e) && open_slot_from(s, k, cp, e);
    checkpoint_close(cp);
    return ok;
}

bool spec_has_drafter(const spec *s, spec_method m)
{
    const draft_slot *k = &s->slots[spec_method_drafter(m)];
    return k->given && !k->failed;
}

int spec_trained_ctx(const spec *s) { return s->slots[DRAFTER_DFLASH].trained_ctx; }

/* --- drafters of a lane -----------------------------------------------------------------------------*/
void lane_drop_drafter(spec_lane *l, drafter_kind k)
{
    if (l->draft_lane[k]) l->s->slots[k].d->lane_free(l->s->slots[k].d, l->draft_lane[k]);
    l->draft_lane[k] = NULL;
}

void lane_drafter_failed(spec_lane *l, drafter_kind k, const err *why)
{
    draft_slot *slot  = &l->s->slots[k];
    err         named = *why;
    l->uses[k]        = false;
    if (name_of(&slot->src)) err_wrap(&named, "drafter %s", name_of(&slot->src));
    note_problem(l->s, slot, &named);
}

void lane_no_room_for_draft(spec_lane *l, drafter_kind k)
{
    err why = {0};
    if (!l->uses[k] || !l->s->slots[k].d->need) return;
    err_set(&why, ERR_LIMIT, "there are too few K/V pages for its context");
    lane_drafter_failed(l, k, &why);
}

bool is_requested(int method, drafter_kind k)
{
    return method == SPEC_AUTO || (method != SPEC_OFF && spec_method_drafter((spec_method)method) == k);
}

/* Makes the drafter available to the lane, for a request that begins or that continues after parking. */
static void take_drafter(spec_lane *l, drafter_kind i)
{
    draft_slot *k   = &l->s->slots[i];
    err         why = {0};
    l->uses[i]      = false;
    bool tail       = i == DRAFTER_NGRAM && l->opt.spec.draft_tail > 0 && l->opt.spec.method != SPEC_OFF;
    if ((!is_requested(l->opt.spec.method, i) && !tail) || !k->given || k->failed || k->parked) return;
    bool opened = !k->d;
    if (opened && !open_slot(l->s, k, &why)) {
        k->failed = true;
        note_problem(l->s, k, &why);
        return;
    }
    if (opened) warm_again(l->s);
    if (!l->draft_lane[i] && !k->d->lane_new(k->d, &l->draft_lane[i], &why)) {
        note_problem(l->s, k, &why);
        return;
    }
    l->uses[i] = true;
}

void lane_take_drafters(spec_lane *l)
{
    for (int i = 0; i < DRAFTER_KINDS; i++) take_drafter(l, (drafter_kind)i);
}

/* Makes the drafter available to a lane in the middle of a request. */
static void retake_drafter(spec_lane *l, drafter_kind i)
{
    drafter *d = l->s->slots[i].d;
    assert(l->out.n == 0); /* the features of the last step were not captured for this drafter */
    take_drafter(l, i);
    if (!l->live || !l->uses[i] || !d->begin) return;
    if (lane_reserve_draft(l, i))
        d->begin(d, l->draft_lane[i], &l->shared);
    else
        lane_no_room_for_draft(l, i);
}

/* --- parking ------------------------------------------------------------------------------------*/
static void close_slot(spec *s, drafter_kind i)
{
    draft_slot *k = &s->slots[i];
    if (!k->d) return;
    for (int n = 0; n < s->opt.max_lanes; n++)
        if (s->lanes[n]) {
            if (k->d->need) lane_unreserve_draft(s->lanes[n], i);
            lane_drop_drafter(s->lanes[n], i);
            s->lanes[n]->uses[i] = false;
        }
    bool captured = k->d->n_capture > 0;
    drafter_close(k->d);
    k->d = NULL;
    if (captured) capture_features(s, NULL, NULL);
}

void close_drafters(spec *s)
{
    for (int i = 0; i < DRAFTER_KINDS; i++) close_slot(s, (drafter_kind)i);
}

static void park_slot(spec *s, drafter_kind i)
{
    draft_slot *k = &s->slots[i];
    if (!k->given || k->parked) return;
    k->was_open = k->d != NULL;
    k->parked   = true;
    s->slot_changes++;
    close_slot(s, i);
    if (k->was_open) warm_again(s);
}

static bool unpark_slot(spec *s, drafter_kind i, err *e)
{
    draft_slot *k   = &s->slots[i];
    err         why = {0};
    if (!k->parked) return true;
    k->parked = false;
    s->slot_changes++;
    if (!k->was_open) return true;
    bool ok   = k->failed ? retry_slot(s, k, i, &why) : open_slot(s, k, &why);
    k->failed = !ok;
    if (!ok) {
        note_problem(s, k, &why);
        if (e) *e = why;
        return false;
    }
    warm_again(s);
    for (int n = 0; n < s->opt.max_lanes; n++)
        if (s->lanes[n]) retake_drafter(s->lanes[n], i);
    return true;
}

static bool check_given(const spec *s, spec_method m, err *e)
{
    return (spec_needs_file(m) && s->slots[spec_method_drafter(m)].given) ||
           err_set(e, ERR_NOT_FOUND, "there is no drafter for %s", spec_method_names[m]);
}

bool spec_park(spec *s, spec_method m, err *e)
{
    if (!check_given(s, m, e)) return false;
    park_slot(s, spec_method_drafter(m));
    return true;
}

bool spec_unpark(spec *s, spec_method m, err *e)
{
    if (!check_given(s, m, e)) return false;
    draft_slot *k = &s->slots[spec_method_drafter(m)];
    if (k->failed) k->parked = k->was_open = true;
    k->problem[0] = 0;
    return unpark_slot(s, spec_method_drafter(m), e);
}

/* --- views ------------------------------------------------------------------------------*/
bool spec_drafter_view(const spec *s, spec_method m, drafter_view *out)
{
    const draft_slot *k = &s->slots[spec_method_drafter(m)];
    *out                = (drafter_view){.name         = name_of(&k->src),
                                         .path         = k->src.path,
                                         .shown        = k->src.shown ? k->src.shown : k->src.path,
                                         .fingerprint  = k->fingerprint,
                                         .files        = k->files,
                                         .state        = k->parked   ? DRAFTER_PARKED
                                                         : k->failed ? DRAFTER_FAILED
                                                         : k->d      ? DRAFTER_OPEN
                                                                     : DRAFTER_LAZY,
                                         .type         = k->type,
                                         .weight_bytes = k->weight_bytes,
                                         .max_draft    = k->max_draft,
                                         .trained_ctx  = k->trained_ctx,
                                         .problem      = k->problem};
    return k->given;
}

unsigned spec_drafter_changes(const spec *s) { return s->slot_changes; }
