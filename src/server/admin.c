#include "server/admin.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/parts.h"
#include "server/query.h"
#include "server/route.h"

#include <stdio.h>

enum { MAX_REPLY = 2 << 20 };

/* --- which one ----------------------------------------------------------------------------------*/
/* Finds what the path names: the model, at 0, or a drafter, by its id or its family. */
static bool find_part(const server *s, const server_call *c, model_parts *all, int *found, server_error *why)
{
    str id = route_name(c);
    parts_list(all, s);
    for (int i = 0; i <= all->n_drafters; i++) {
        const model_part *p = &all->part[i];
        *found              = i;
        if (str_is(id, p->id) || (i && str_is(id, p->family))) return true;
    }
    return error_set(why, 404, "model", "model_not_found", "There is no model or drafter '%.*s'.", STR_ARG(id));
}

static void reply_with(server *s, server_call *c, buf *body, bool ok, const server_error *why)
{
    server_error full;
    if (ok && body->failed) ok = error_no_memory(&full), why = &full;
    if (ok)
        call_reply(s, c, 200, "application/json", buf_str(body));
    else
        call_refuse(s, c, why);
    buf_deinit(body);
}

/* --- models -------------------------------------------------------------------------------------*/
static void put_settings_of(json_writer *w, const server *s)
{
    settings set;
    json_key(w, "settings");
    if (!life_settings(s, &set)) {
        json_put_null(w);
        return;
    }
    json_begin_object(w);
    settings_put_json(&set, w);
    json_end(w);
}

static void put_model(json_writer *w, const server *s, const model_parts *all)
{
    const tandem_info *i = &all->info;
    json_begin_object(w);
    parts_put_members(w, &all->part[0]);
    json_member_str(w, "object", "model");
    json_member_real(w, "state_s", clock_s() - s->life.since);
    json_member_str(w, "quantisation", i->quantisation);
    json_member_int(w, "weight_bytes", (int64_t)i->weight_bytes);
    json_member_int(w, "kv_bytes", (int64_t)i->kv_bytes);
    json_member_str(w, "kv_type", i->kv_type);
    json_member_str(w, "kv_sliding", i->kv_sliding);
    json_member_str(w, "kv_draft", i->kv_draft);
    json_member_real(w, "sparse_fa", i->sparse_fa);
    json_member_int(w, "kv_bytes_per_token", (int64_t)i->kv_bytes_per_token);
    json_member_int(w, "kv_bytes_per_token_full", (int64_t)i->kv_bytes_per_token_full);
    json_member_int(w, "context", i->n_ctx);
    parts_put_modalities(w, i);
    json_member_int(w, "layers", i->n_layers);
    json_member_int(w, "vocabulary", i->n_vocab);
    json_member_int(w, "max_lanes", i->max_lanes);
    json_member_int(w, "step_tokens", i->step_tokens);
    json_member_str(w, "device", i->device);
    json_member_int(w, "threads", i->n_threads);
    put_settings_of(w, s);
    json_end(w);
}

static void put_drafter(json_writer *w, const server *s, const model_parts *all, int at)
{
    const tandem_drafter_info *d = &all->drafter[at - 1];
    json_begin_object(w);
    parts_put_members(w, &all->part[at]);
    json_member_str(w, "object", "model");
    json_member_str(w, "of", s->opt->model);
    json_member_str(w, "quantisation", d->quantisation[0] ? d->quantisation : NULL);
    json_member_int(w, "weight_bytes", (int64_t)d->weight_bytes);
    json_member_int(w, "context", d->trained_ctx);
    json_member_int(w, "max_draft", d->max_draft);
    json_end(w);
}

static void put_part(json_writer *w, const server *s, const model_parts *all, int at)
{
    if (at)
        put_drafter(w, s, all, at);
    else
        put_model(w, s, all);
}

void admin_reply_model(server *s, server_call *c)
{
    json_writer w;
    buf         body;
    model_parts all;
    parts_list(&all, s);
    buf_init(&body, MAX_REPLY);
    json_writer_init(&w, &body);
    put_model(&w, s, &all);
    reply_with(s, c, &body, true, NULL);
}

void admin_models(server *s, server_call *c)
{
    model_parts all;
    json_writer w;
    buf         body;
    parts_list(&all, s);
    buf_init(&body, MAX_REPLY);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_member_str(&w, "object", "list");
    json_key(&w, "data");
    json_begin_array(&w);
    for (int i = 0; i <= all.n_drafters; i++) put_part(&w, s, &all, i);
    json_end(&w);
    json_end(&w);
    reply_with(s, c, &body, true, NULL);
}

/* --- settings -----------------------------------------------------------------------------------*/
static const char *const source_names[] = {[SETTING_FROM_DEFAULT]     = "default",
                                           [SETTING_FROM_FILE]        = "file",
                                           [SETTING_FROM_OPTIONS]     = "options",
                                           [SETTING_FROM_API]         = "api",
                                           [SETTING_FROM_ENVIRONMENT] = "environment"};

static void put_range(json_writer *w, const setting_info *info)
{
    static const char *const kinds[] = {
        [SETTING_BOOL] = "boolean", [SETTING_INT] = "integer", [SETTING_REAL] = "number", [SETTING_TEXT] = "string"};
    json_member_str(w, "kind", kinds[info->kind]);
    if (info->kind == SETTING_INT) {
        json_member_int(w, "min", (int64_t)info->min);
        json_member_int(w, "max", (int64_t)info->max);
    }
    if (info->kind == SETTING_REAL) {
        json_member_real(w, "min", info->min);
        json_member_real(w, "max", info->max);
    }
    if (info->kind == SETTING_TEXT) json_member_int(w, "max_length", SETTING_TEXT_MAX - 1);
    if (info->word) json_member_str(w, "word", info->word);
}

/* Returns the length that the DFlash drafter was trained on; 0: not known. */
static int trained_length(const server *s)
{
    model_parts all;
    parts_list(&all, s);
    return engine_trained_ctx(all.drafter, all.n_drafters);
}

static void put_setting(json_writer *w, const settings *s, const settings *defaults, const setting_info *info,
                        int trained)
{
    json_key(w, info->name);
    json_begin_object(w);
    json_key(w, "value");
    settings_put_value(s, info, w);
    json_key(w, "default");
    settings_put_value(defaults, info, w);
    put_range(w, info);
    if (info->at == offsetof(settings, dflash_max_ctx) && trained) json_member_int(w, "trained_length", trained);
    json_member_str(w, "source", source_names[settings_source(s, info)]);
    json_member_bool(w, "live", info->live);
    json_member_bool(w, "pending", s->pending & settings_bit(info));
    if (info->variable) json_member_str(w, "variable", info->variable);
    json_member_str(w, "help", info->help);
    json_end(w);
}

static void put_settings(buf *out, const server *s, const settings *set)
{
    settings    defaults;
    json_writer w;
    char        warning[256];
    int         trained = trained_length(s);
    settings_init(&defaults);
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_str(&w, "object", "settings");
    json_member_str(&w, "model", s->opt->model);
    json_key(&w, "settings");
    json_begin_object(&w);
    for (int i = 0; i < n_settings; i++) put_setting(&w, set, &defaults, &setting_table[i], trained);
    json_end(&w);
    json_key(&w, "warnings");
    json_begin_array(&w);
    if (settings_warning(set, trained, warning, sizeof warning)) json_put_str(&w, str_of(warning));
    json_end(&w);
    json_end(&w);
}

typedef bool write_fn(server *s, server_call *c, buf *out, server_error *why);

static void reply_json(server *s, server_call *c, write_fn *fn)
{
    buf          body;
    server_error why;
    buf_init(&body, MAX_REPLY);
    bool ok = fn(s, c, &body, &why);
    reply_with(s, c, &body, ok, &why);
}

static bool write_model(server *s, server_call *c, buf *out, server_error *why)
{
    model_parts all;
    json_writer w;
    int         at;
    if (!find_part(s, c, &all, &at, why)) return false;
    json_writer_init(&w, out);
    put_part(&w, s, &all, at);
    return true;
}

static bool find_model(const server *s, const server_call *c, server_error *why)
{
    model_parts all;
    int         at;
    if (!find_part(s, c, &all, &at, why)) return false;
    return !at ||
           error_set(why, 404, "model", "not_found", "A drafter has no settings of its own: its model has them.");
}

static bool write_settings(server *s, server_call *c, buf *out, server_error *why)
{
    settings set;
    if (!find_model(s, c, why)) return false;
    if (!life_settings(s, &set)) return life_check(s->life.state, why);
    put_settings(out, s, &set);
    return true;
}

void admin_model(server *s, server_call *c) { reply_json(s, c, write_model); }
void admin_settings(server *s, server_call *c) { reply_json(s, c, write_settings); }

static bool has_worker(const server *s, server_error *why)
{
    return !work_is_full(s->work, WORK_SLOW, 0) || error_take(why, &(err){.code = ERR_BUSY}, NULL, false);
}

/* Works also on a server that refuses requests of clients. */
bool admin_takes(const server *s, server_error *why)
{
    if (s->draining) return error_shutting_down(why);
    return life_check(s->life.state, why) && has_worker(s, why);
}

/* Settings can be changed while the model is parked or could not be loaded, but not while a worker loads it. */
static bool takes_settings(const server *s, server_error *why)
{
    if (s->draining) return error_shutting_down(why);
    if (!s->engine && !s->life.info.name) return life_check(s->life.state, why);
    if (s->life.state == MODEL_LOADING) return life_check(s->life.state, why);
    return has_worker(s, why);
}

/* --- on a worker --------------------------------------------------------------------------------*/
typedef struct admin_job admin_job;
struct admin_job {
    work_item    item;
    server      *s;
    server_call *call;            /* NULL: it ended */
    bool (*change)(admin_job *x); /* on a worker */
    void (*finish)(admin_job *x); /* on the I/O thread, after a successful change: writes the reply; NULL: none */
    buf           body, out;
    size_t        of_body;
    tandem_method method; /* selects the drafter */
    model_files  *files;  /* new list after a drafter was loaded; NULL: unchanged */
    settings      set;    /* without an engine: the settings before and after the change */
    uint64_t      names;  /* bits of the settings that were changed in `set` */
    char          device[64];
    tandem       *engine; /* NULL: there was none when the job started */
    bool          park, ok;
    server_error  why;
};

bool admin_read_body(str body, arena *mem, const json_value **out, server_error *why)
{
    static const json_value empty = {.kind = JSON_OBJECT};
    err                     e     = {0};
    *out                          = &empty;
    if (body.n && !json_parse(out, mem, body, NULL, &e)) return error_body(why, &e);
    return (*out)->kind == JSON_OBJECT || error_set(why, 400, NULL, NULL, "The body must be a JSON object.");
}

/* Reports an error of the settings file with its details, since the operator reads it. */
static bool refuse_change(server_error *why, const err *e)
{
    if (e->code == ERR_INPUT) return error_take(why, e, NULL, false);
    return error_set(why, e->code == ERR_BUSY || e->code == ERR_UNAVAILABLE ? 503 : 500, NULL, "not_kept",
                     "Nothing was changed: %s", e->text);
}

static bool change_parked(admin_job *x, const json_value *members, err *e)
{
    settings_owner of   = {.model = x->s->opt->model, .device = x->device, .carried = true};
    const char    *path = x->s->opt->settings_path;
    bool ok = (!path || settings_file_open(&of.file, path, e)) && settings_change(&x->set, &of, members, &x->names, e);
    settings_file_close(of.file);
    return ok;
}

static bool change_settings(admin_job *x)
{
    const json_value *v;
    arena             mem;
    err               e = {0};
    arena_init(&mem, 4 << 20);
    bool ok = admin_read_body(buf_str(&x->body), &mem, &v, &x->why) &&
              ((x->engine ? engine_change_settings(x->engine, v, &e) : change_parked(x, v, &e)) ||
               refuse_change(&x->why, &e));
    arena_deinit(&mem);
    return ok;
}

static bool park_drafter(admin_job *x)
{
    tandem_error e = {0};
    bool ok = x->park ? tandem_park_drafter(x->engine, x->method, &e) : tandem_unpark_drafter(x->engine, x->method, &e);
    if (ok && !x->park) x->files = life_list_files(x->engine);
    return ok || error_set(&x->why, 503, NULL, "load_failed", "%s", e.text);
}

static void run_admin_job(work_item *item)
{
    admin_job *x = (admin_job *)item;
    x->ok        = x->change(x);
}

static void free_admin_job(admin_job *x)
{
    server_body_is_freed(x->s, x->of_body);
    buf_deinit(&x->body);
    buf_deinit(&x->out);
    x->s->n_users--;
    mem_free(x);
}

static void finish_drafter(admin_job *x)
{
    model_parts all;
    json_writer w;
    parts_list(&all, x->s);
    json_writer_init(&w, &x->out);
    for (int i = 0; i < all.n_drafters; i++)
        if (all.drafter[i].method == x->method) put_drafter(&w, x->s, &all, i + 1);
}

static void finish_settings(admin_job *x)
{
    settings now;
    if (!x->engine) life_keep_settings(x->s, &x->set, x->names);
    life_settings(x->s, &now);
    put_settings(&x->out, x->s, &now);
}

/* Takes over the results of the worker. */
static void take_result(admin_job *x)
{
    if (x->files) {
        files_close(x->s->files);
        x->s->files = x->files;
        x->files    = NULL;
    }
    if (x->ok && x->finish) x->finish(x);
}

static void admin_job_done(work_item *item)
{
    admin_job   *x = (admin_job *)item;
    server_call *c = x->call;
    if (item->skipped) x->ok = error_shutting_down(&x->why);
    take_result(x);
    if (c) {
        c->on_end = NULL;
        reply_with(x->s, c, &x->out, x->ok, &x->why);
        buf_init(&x->out, 0);
    }
    free_admin_job(x);
}

/* The job continues without its client. */
static void admin_call_ended(void *owner)
{
    admin_job *x = owner;
    x->call      = NULL;
}

static void start_admin_job(server *s, server_call *c, const admin_job *what)
{
    admin_job *x = call_alloc(s, c, sizeof *x);
    if (!x) return;
    *x         = *what;
    x->item    = (work_item){.run = run_admin_job, .done = admin_job_done, .kind = WORK_SLOW};
    x->s       = s;
    x->call    = c;
    x->engine  = s->engine;
    x->of_body = http_take_body(c->http, &x->body);
    buf_init(&x->out, MAX_REPLY);
    c->on_end = admin_call_ended;
    c->owner  = x;
    s->n_users++;
    work_put(s->work, &x->item);
}

/* --- changes ------------------------------------------------------------------------------------*/
void admin_change_settings(server *s, server_call *c)
{
    server_error why;
    admin_job    x = {.change = change_settings, .finish = finish_settings, .set = s->life.set};
    snprintf(x.device, sizeof x.device, "%s", s->life.info.device ? s->life.info.device : "");
    if (find_model(s, c, &why) && takes_settings(s, &why))
        start_admin_job(s, c, &x);
    else
        call_refuse(s, c, &why);
}

static bool read_wish(server_call *c, park_fields *f, server_error *why)
{
    const json_value *v;
    arena             mem;
    arena_init(&mem, 1 << 20);
    bool ok = admin_read_body(http_call_request(c->http)->body, &mem, &v, why) &&
              fields_read(f, &fields_park, v, FIELD_PARK, why);
    arena_deinit(&mem);
    return ok;
}

static bool park(server *s, server_call *c, bool away, server_error *why)
{
    model_parts all;
    park_fields f;
    int         at;
    if (!find_part(s, c, &all, &at, why) || !read_wish(c, &f, why)) return false;
    if (s->draining) return error_shutting_down(why);
    if (!at) {
        life_want(s, c, away, f.grace_s >= 0 ? f.grace_s : s->opt->grace_s, f.wait);
        return true;
    }
    if (!admin_takes(s, why)) return false;
    start_admin_job(
        s, c,
        &(admin_job){
            .change = park_drafter, .finish = finish_drafter, .method = all.drafter[at - 1].method, .park = away});
    return true;
}

void admin_park(server *s, server_call *c)
{
    server_error why;
    if (!park(s, c, true, &why)) call_refuse(s, c, &why);
}

void admin_unpark(server *s, server_call *c)
{
    server_error why;
    if (!park(s, c, false, &why)) call_refuse(s, c, &why);
}

/* --- decisions ----------------------------------------------------------------------------------*/
static bool write_routing(server *s, server_call *c, buf *out, server_error *why)
{
    str         query = http_call_request(c->http)->query;
    char        id[REQUEST_ID_MAX + 1];
    int64_t     n = 100;
    json_writer w;
    if (!query_int(query, "n", 1, ENGINE_ROUTING_MAX, &n, why) ||
        !query_text(query, "request_id", id, sizeof id, why) || !server_is_loaded(s, why))
        return false;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_str(&w, "object", "list");
    json_key(&w, "data");
    engine_put_routing(s->engine, id[0] ? id : NULL, (int)n, &w);
    json_end(&w);
    return true;
}

void admin_routing(server *s, server_call *c) { reply_json(s, c, write_routing); }

/* --- costs --------------------------------------------------------------------------------------*/
static bool read_costs(admin_job *x)
{
    json_writer w;
    err         e = {0};
    json_writer_init(&w, &x->out);
    return engine_put_costs(x->engine, &w, &e) || error_take(&x->why, &e, NULL, false);
}

void admin_costs(server *s, server_call *c)
{
    server_error why;
    if (admin_takes(s, &why))
        start_admin_job(s, c, &(admin_job){.change = read_costs});
    else
        call_refuse(s, c, &why);
}
