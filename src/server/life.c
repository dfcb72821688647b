#include "server/life.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/admin.h"
#include "server/inside.h"
#include "server/notify.h"
#include "server/parts.h"

const char *const model_state_names[] = {[MODEL_LOADED]  = "loaded",
                                         [MODEL_LOADING] = "loading",
                                         [MODEL_PARKING] = "parking",
                                         [MODEL_PARKED]  = "parked",
                                         [MODEL_FAILED]  = "failed"};

bool life_check(model_state state, server_error *why)
{
    switch (state) {
    case MODEL_LOADED: return true;
    case MODEL_LOADING:
        return error_set(why, 503, NULL, "loading", "The model is being loaded. Please try again later.");
    case MODEL_FAILED: return error_set(why, 503, NULL, "load_failed", "The model could not be loaded again.");
    default: return error_set(why, 503, NULL, "parked", "The model is parked. Please try again later.");
    }
}

/* --- who waits ----------------------------------------------------------------------------------*/
struct life_waiter {
    server      *s;
    server_call *call;
    bool         park;
    life_waiter *next;
};

static void free_waiter(void *owner)
{
    life_waiter *x = owner, **at = &x->s->life.waiting;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    mem_free(x);
}

static bool is_settled(const model_life *l)
{
    return l->state == MODEL_FAILED || l->state == (l->park ? MODEL_PARKED : MODEL_LOADED);
}

static void reply_state(server *s, server_call *c, bool park)
{
    const model_life *l = &s->life;
    server_error      why;
    if (l->park != park)
        error_set(&why, 409, NULL, "conflict", "Another request is changing the state of the model to %s.",
                  l->park ? "parked" : "loaded");
    else if (l->state == MODEL_FAILED)
        error_set(&why, 503, NULL, "load_failed", "The model could not be loaded again: %s", l->why.text);
    else {
        admin_reply_model(s, c);
        return;
    }
    call_refuse(s, c, &why);
}

/* Replies to calls that requested the other state, and to the others when the state is reached. */
static void reply_to_waiters(server *s)
{
    bool settled = is_settled(&s->life);
    for (life_waiter *x = s->life.waiting, *next; x; x = next) {
        server_call *c    = x->call;
        bool         park = x->park;
        next              = x->next;
        if (!settled && park == s->life.park) continue;
        c->on_end = NULL;
        free_waiter(x);
        reply_state(s, c, park);
    }
}

/* --- states -------------------------------------------------------------------------------------*/
static void enter_state(server *s, model_state state)
{
    model_life *l = &s->life;
    l->state      = state;
    l->since      = clock_s();
    if (l->loaded_before) log_event(LOG_INFO, "model", "%s is %s", s->opt->model, model_state_names[state]);
}

static void wake_server(void *ctx) { http_wake(ctx); }

static server *loading_of(work_item *item) { return (server *)((char *)item - offsetof(server, life.loading)); }
static server *closing_of(work_item *item) { return (server *)((char *)item - offsetof(server, life.closing)); }

model_files *life_list_files(const tandem *t)
{
    engine_part part[ENGINE_MAX_PARTS];
    return files_open(part, engine_parts(t, part));
}

static void load_engine(work_item *item)
{
    server     *s = loading_of(item);
    model_life *l = &s->life;
    l->opened     = NULL;
    l->failed     = !s->opt->open(s->opt->open_ctx, &l->handed, &l->opened, wake_server, s->http, &l->why);
    if (!l->failed) l->found = life_list_files(l->opened);
}

/* Replaces the list of files by the files of the engine that was opened. */
static void take_files(server *s)
{
    if (!s->life.found) return;
    files_close(s->files);
    s->files      = s->life.found;
    s->life.found = NULL;
}

static void on_loaded(work_item *item)
{
    server     *s = loading_of(item);
    model_life *l = &s->life;
    if (item->skipped) {
        l->state = MODEL_PARKED;
        return;
    }
    take_files(s);
    if (l->failed && l->loaded_before)
        log_event(LOG_ERROR, "model", "%s cannot be loaded: %s", s->opt->model, l->why.text);
    if (l->failed && !l->loaded_before) http_stop(s->http);
    bool first = !l->loaded_before;
    l->loaded_before |= !l->failed;
    s->engine = l->failed ? NULL : l->opened;
    l->opened = NULL;
    if (s->engine)
        engine_take_settings(s->engine, &l->set, settings_differ(&l->set, &l->handed)); /* changed meanwhile */
    enter_state(s, l->failed ? MODEL_FAILED : MODEL_LOADED);
    if (!l->failed) parts_log(s);
    if (!l->failed && first && !s->draining) {
        notify_manager("READY=1");
        if (s->opt->ready) s->opt->ready(s->opt->ready_ctx, s->http);
    }
    life_look(s);
}

static void start_loading(server *s)
{
    s->life.why    = (err){0};
    s->life.handed = s->life.set;
    enter_state(s, MODEL_LOADING);
    work_put(s->work, &s->life.loading);
}

static void keep_text(model_life *l, const char **text) { *text = arena_str(&l->mem, str_of(*text)); }

/* Copies what the engine owns. */
static void keep_info(model_life *l, const tandem *t)
{
    arena_deinit(&l->mem);
    arena_init(&l->mem, 1 << 20);
    tandem_get_info(t, &l->info);
    keep_text(l, &l->info.name);
    keep_text(l, &l->info.path);
    keep_text(l, &l->info.shown);
    keep_text(l, &l->info.family);
    keep_text(l, &l->info.fingerprint);
    keep_text(l, &l->info.device);
    keep_text(l, &l->info.kv_type);
    keep_text(l, &l->info.kv_sliding);
    keep_text(l, &l->info.kv_draft);
    keep_text(l, &l->info.quantisation);
    l->n_drafters = tandem_drafters(t, l->drafter);
    for (int i = 0; i < l->n_drafters; i++) {
        keep_text(l, &l->drafter[i].name);
        keep_text(l, &l->drafter[i].path);
        keep_text(l, &l->drafter[i].shown);
    }
    engine_get_settings(t, &l->set);
}

static void close_engine(work_item *item)
{
    server *s = closing_of(item);
    tandem_close(s->life.closed);
    s->life.closed = NULL;
    mem_trim(); /* every thread that has loaded a model keeps free memory of its own */
}

static void on_closed(work_item *item)
{
    server *s = closing_of(item);
    if (item->skipped) return;
    enter_state(s, MODEL_PARKED);
    life_look(s);
}

/* Shuts the engine down, adds its counters to the sums, and gives it to a worker to close. */
static void let_engine_go(server *s)
{
    model_life  *l = &s->life;
    tandem_stats all;
    keep_info(l, s->engine);
    tandem_shutdown(s->engine, 0);
    life_stats(s, &all);
    l->before = all;
    l->closed = s->engine;
    s->engine = NULL;
    work_put(s->work, &l->closing);
}

static void look_at_users(server *s)
{
    bool cut = s->cut || clock_s() >= s->life.cut_at;
    bench_cut(s);
    if (!completions_use_engine(s, cut) && !s->n_users) let_engine_go(s);
}

void life_look(server *s)
{
    model_life *l = &s->life;
    if (l->park && l->state == MODEL_LOADED) enter_state(s, MODEL_PARKING);
    if (l->park && l->state == MODEL_FAILED) enter_state(s, MODEL_PARKED);
    if (!l->park && l->state == MODEL_PARKING && s->engine) enter_state(s, MODEL_LOADED);
    if (!l->park && l->state == MODEL_PARKED) start_loading(s);
    if (l->state == MODEL_PARKING && s->engine) look_at_users(s);
    reply_to_waiters(s);
}

void life_want(server *s, server_call *c, bool park, double grace_s, bool wait)
{
    enum { MAX_WAITING = 16 };
    model_life *l = &s->life;
    int         n = 0;
    for (life_waiter *x = l->waiting; x; x = x->next) n++;
    if (n >= MAX_WAITING) {
        server_error why;
        error_take(&why, &(err){.code = ERR_BUSY}, NULL, false);
        call_refuse(s, c, &why);
        return;
    }
    life_waiter *x = wait ? call_alloc(s, c, sizeof *x) : NULL;
    if (wait && !x) return;
    if (!park && l->state == MODEL_FAILED) enter_state(s, MODEL_PARKED); /* to be tried again */
    double cut_at = clock_s() + grace_s;
    l->cut_at     = park && l->park ? (cut_at < l->cut_at ? cut_at : l->cut_at) : cut_at;
    l->park       = park;
    if (!wait) {
        life_look(s);
        reply_state(s, c, park);
        return;
    }
    *x         = (life_waiter){.s = s, .call = c, .park = park, .next = l->waiting};
    l->waiting = x;
    c->on_end  = free_waiter;
    c->owner   = x;
    life_look(s);
}

/* --- from one to the next -----------------------------------------------------------------------*/
void life_begin(server *s)
{
    s->life = (model_life){.loading = {.run = load_engine, .done = on_loaded},
                           .closing = {.run = close_engine, .done = on_closed},
                           .state   = MODEL_LOADING,
                           .since   = clock_s()};
    arena_init(&s->life.mem, 1 << 20);
    work_put(s->work, &s->life.loading);
}

void life_end(server *s)
{
    tandem_close(s->engine);
    tandem_close(s->life.closed);
    arena_deinit(&s->life.mem);
    files_close(s->life.found);
    files_close(s->files);
}

bool life_info(const server *s, tandem_info *out, tandem_drafter_info all[TANDEM_MAX_DRAFTERS], int *n)
{
    const model_life *l = &s->life;
    *out                = l->info;
    if (s->engine) tandem_get_info(s->engine, out);
    if (!n) return out->name;
    *n = s->engine ? tandem_drafters(s->engine, all) : l->n_drafters;
    for (int i = 0; !s->engine && i < l->n_drafters; i++) all[i] = l->drafter[i];
    return out->name;
}

bool life_settings(const server *s, settings *out)
{
    *out = s->life.set;
    if (s->engine) engine_get_settings(s->engine, out);
    return s->engine || s->life.info.name;
}

void life_keep_settings(server *s, const settings *changed, uint64_t names)
{
    settings_take(&s->life.set, changed, names);
    if (s->engine) engine_take_settings(s->engine, changed, names);
}

/* --- counts -------------------------------------------------------------------------------------*/
static void add_counts(int64_t *to, const int64_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] += from[i];
}

/* Gauges are of the current engine; counters are summed over all engines. */
void life_stats(const server *s, tandem_stats *out)
{
    const tandem_stats *b = &s->life.before;
    *out                  = (tandem_stats){0};
    if (s->engine) tandem_get_stats(s->engine, out);
    add_counts(&out->submitted, &b->submitted, 1);
    add_counts(&out->refused, &b->refused, 1);
    add_counts(&out->admitted, &b->admitted, 1);
    add_counts(out->finished, b->finished, COUNT(b->finished));
    add_counts(&out->prompt_tokens, &b->prompt_tokens, 1);
    add_counts(&out->cached_tokens, &b->cached_tokens, 1);
    add_counts(&out->completion_tokens, &b->completion_tokens, 1);
    add_counts(&out->steps, &b->steps, 1);
    add_counts(&out->failed_steps, &b->failed_steps, 1);
    add_counts(&out->rows, &b->rows, 1);
    add_counts(&out->prompt_rows, &b->prompt_rows, 1);
    add_counts(&out->prompt_steps, &b->prompt_steps, 1);
    out->step_s += b->step_s;
    add_counts(out->step_bucket, b->step_bucket, COUNT(b->step_bucket));
    out->mask_s += b->mask_s;
    add_counts(out->mask_bucket, b->mask_bucket, COUNT(b->mask_bucket));
    add_counts(&out->prefix_hits, &b->prefix_hits, 1);
    add_counts(&out->prefix_misses, &b->prefix_misses, 1);
    add_counts(&out->prefix_evicted, &b->prefix_evicted, 1);
    add_counts(&out->kv_wiped, &b->kv_wiped, 1);
    add_counts(&out->disk.hits, &b->disk.hits, 1);
    add_counts(&out->disk.misses, &b->disk.misses, 1);
    add_counts(&out->disk.skipped, &b->disk.skipped, 1);
    add_counts(&out->disk.read_bytes, &b->disk.read_bytes, 1);
    add_counts(&out->disk.written_bytes, &b->disk.written_bytes, 1);
    add_counts(&out->disk.written, &b->disk.written, 1);
    add_counts(&out->disk.evicted, &b->disk.evicted, 1);
    add_counts(&out->disk.removed, &b->disk.removed, 1);
    add_counts(&out->disk.failures, &b->disk.failures, 1);
    spec_counts_add(&out->spec, &b->spec);
    add_counts(out->routes, b->routes, COUNT(b->routes));
}
