#include "server/admin.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/query.h"

enum { MAX_REPLY = 2 << 20 };

/* --- which one ----------------------------------------------------------------------------------*/
/* *found: NULL where it is the model. A drafter has its name, and its family's. */
static bool find(const server *s, const server_call *c, tandem_drafter_info all[TANDEM_MAX_DRAFTERS],
                 const tandem_drafter_info **found, server_error *why)
{
    tandem_info info;
    str         id = server_name_of(c);
    int         n;
    *found = NULL;
    if (str_is(id, s->opt->model)) return true;
    life_info(s, &info, all, &n);
    for (int i = 0; i < n; i++)
        if (str_is(id, file_name(all[i].name)) || str_is(id, tandem_method_name((int)all[i].method))) *found = &all[i];
    return *found ||
           error_set(why, 404, "model", "model_not_found", "There is no model or drafter '%.*s'.", STR_ARG(id));
}

static void reply_with(server *s, server_call *c, buf *body, bool ok, const server_error *why)
{
    server_error full;
    if (ok && body->failed) ok = error_no_memory(&full), why = &full;
    if (ok)
        server_reply(s, c, 200, "application/json", buf_str(body));
    else
        server_refuse(s, c, why);
    buf_deinit(body);
}

/* --- models -------------------------------------------------------------------------------------*/
static const char *state_of(const server *s, const tandem_drafter_info *d)
{
    static const char *const names[] = {[TANDEM_DRAFTER_OPEN]   = "loaded",
                                        [TANDEM_DRAFTER_LAZY]   = "lazy",
                                        [TANDEM_DRAFTER_PARKED] = "parked",
                                        [TANDEM_DRAFTER_FAILED] = "failed"};
    return s->engine ? names[d->state] : model_state_names[s->life.state];
}

static void put_error(json_writer *w, const char *text) { json_member_str(w, "error", text && text[0] ? text : NULL); }

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

static void put_model(json_writer *w, const server *s)
{
    const model_life *l = &s->life;
    tandem_info       i;
    bool              known = life_info(s, &i, NULL, NULL);
    json_begin_object(w);
    json_member_str(w, "id", s->opt->model);
    json_member_str(w, "object", "model");
    json_member_str(w, "role", "model");
    json_member_str(w, "state", model_state_names[l->state]);
    json_member_real(w, "state_s", clock_s() - l->since);
    put_error(w, l->state == MODEL_FAILED ? l->why.text : NULL);
    json_member_str(w, "family", known ? i.family : NULL);
    json_member_str(w, "quantisation", known ? i.quantisation : NULL);
    json_member_int(w, "weight_bytes", (int64_t)i.weight_bytes);
    json_member_int(w, "kv_bytes", (int64_t)i.kv_bytes);
    json_member_str(w, "kv_type", known ? i.kv_type : NULL);
    json_member_int(w, "context", i.n_ctx);
    json_member_int(w, "layers", i.n_layers);
    json_member_int(w, "vocabulary", i.n_vocab);
    json_member_int(w, "max_lanes", i.max_lanes);
    json_member_int(w, "step_tokens", i.step_tokens);
    json_member_str(w, "device", known ? i.device : NULL);
    json_member_int(w, "threads", i.n_threads);
    put_settings_of(w, s);
    json_end(w);
}

static void put_drafter(json_writer *w, const server *s, const tandem_drafter_info *d)
{
    json_begin_object(w);
    json_member_str(w, "id", file_name(d->name));
    json_member_str(w, "object", "model");
    json_member_str(w, "role", "drafter");
    json_member_str(w, "of", s->opt->model);
    json_member_str(w, "state", state_of(s, d));
    put_error(w, d->problem);
    json_member_str(w, "family", tandem_method_name((int)d->method));
    json_member_str(w, "quantisation", d->quantisation[0] ? d->quantisation : NULL);
    json_member_int(w, "weight_bytes", (int64_t)d->weight_bytes);
    json_member_int(w, "context", d->trained_ctx);
    json_member_int(w, "max_draft", d->max_draft);
    json_end(w);
}

void admin_reply_model(server *s, server_call *c)
{
    json_writer w;
    buf         body;
    buf_init(&body, MAX_REPLY);
    json_writer_init(&w, &body);
    put_model(&w, s);
    reply_with(s, c, &body, true, NULL);
}

void admin_models(server *s, server_call *c)
{
    tandem_drafter_info all[TANDEM_MAX_DRAFTERS];
    tandem_info         info;
    json_writer         w;
    buf                 body;
    int                 n;
    life_info(s, &info, all, &n);
    buf_init(&body, MAX_REPLY);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_member_str(&w, "object", "list");
    json_key(&w, "data");
    json_begin_array(&w);
    put_model(&w, s);
    for (int i = 0; i < n; i++) put_drafter(&w, s, &all[i]);
    json_end(&w);
    json_end(&w);
    reply_with(s, c, &body, true, NULL);
}

/* --- settings -----------------------------------------------------------------------------------*/
static const char *source_of(const settings *s, const setting_info *info)
{
    uint64_t bit = settings_bit(info);
    if (settings_holds(s, info)) return "environment";
    if (s->given & bit) return "options";
    if (s->in_file & bit) return "file";
    return s->changed & bit ? "api" : "default";
}

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
    if (info->word) json_member_str(w, "word", info->word);
}

static void put_setting(json_writer *w, const settings *s, const settings *otherwise, const setting_info *info)
{
    json_key(w, info->name);
    json_begin_object(w);
    json_key(w, "value");
    settings_put_value(s, info, w);
    json_key(w, "default");
    settings_put_value(otherwise, info, w);
    put_range(w, info);
    json_member_str(w, "source", source_of(s, info));
    json_member_bool(w, "live", info->live);
    json_member_bool(w, "pending", !info->live && s->changed & settings_bit(info));
    json_member_str(w, "help", info->help);
    json_end(w);
}

static void put_settings(buf *out, const server *s, const settings *set)
{
    settings    otherwise;
    json_writer w;
    settings_init(&otherwise);
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_str(&w, "object", "settings");
    json_member_str(&w, "model", s->opt->model);
    json_key(&w, "settings");
    json_begin_object(&w);
    for (int i = 0; i < n_settings; i++) put_setting(&w, set, &otherwise, &setting_table[i]);
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
    tandem_drafter_info        all[TANDEM_MAX_DRAFTERS];
    const tandem_drafter_info *d;
    json_writer                w;
    if (!find(s, c, all, &d, why)) return false;
    json_writer_init(&w, out);
    if (d)
        put_drafter(&w, s, d);
    else
        put_model(&w, s);
    return true;
}

static bool find_model(const server *s, const server_call *c, server_error *why)
{
    tandem_drafter_info        all[TANDEM_MAX_DRAFTERS];
    const tandem_drafter_info *d;
    if (!find(s, c, all, &d, why)) return false;
    return !d || error_set(why, 404, "model", "not_found", "A drafter has no settings of its own: its model has them.");
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

/* Also of a server that takes no requests from others. */
bool admin_takes(const server *s, server_error *why)
{
    if (s->draining) return error_shutting_down(why);
    if (!life_check(s->life.state, why)) return false;
    return !work_is_full(s->work, WORK_SLOW, 0) || error_take(why, &(err){.code = ERR_BUSY}, NULL, false);
}

/* --- on a worker --------------------------------------------------------------------------------*/
typedef struct admin_job admin_job;
struct admin_job {
    work_item    item;
    server      *s;
    server_call *call; /* NULL: it ended */
    bool (*fn)(admin_job *x);
    buf           body, out;
    size_t        of_body;
    tandem_method method; /* of the drafter */
    bool          park, ok;
    server_error  why;
};

bool admin_read_body(str body, arena *mem, const json_value **out, server_error *why)
{
    static const json_value empty = {.kind = JSON_OBJECT};
    err                     e     = {0};
    *out                          = &empty;
    if (body.n && !json_parse(out, mem, body, NULL, &e))
        return error_set(why, 400, NULL, NULL, "The body is not JSON: %s", e.text);
    return (*out)->kind == JSON_OBJECT || error_set(why, 400, NULL, NULL, "The body must be a JSON object.");
}

/* The setting that a sentence is about. */
static const char *name_in(const char *text)
{
    for (int i = 0; i < n_settings; i++)
        if (str_starts(str_of(text), setting_table[i].name) && text[strlen(setting_table[i].name)] == ' ')
            return setting_table[i].name;
    return NULL;
}

/* What the disk says is for the operator to hear. */
static bool refuse_change(server_error *why, const err *e)
{
    if (e->code == ERR_INPUT) return error_set(why, 400, name_in(e->text), NULL, "%s", e->text);
    return error_set(why, e->code == ERR_BUSY ? 503 : 500, NULL, "not_kept", "Nothing was changed: %s", e->text);
}

static bool change_settings(admin_job *x)
{
    const json_value *v;
    arena             mem;
    err               e = {0};
    settings          now;
    arena_init(&mem, 4 << 20);
    bool ok = admin_read_body(buf_str(&x->body), &mem, &v, &x->why) &&
              (engine_change_settings(x->s->engine, v, &e) || refuse_change(&x->why, &e));
    arena_deinit(&mem);
    if (!ok) return false;
    sched_get_settings(x->s->engine->sched, &now);
    put_settings(&x->out, x->s, &now);
    return true;
}

static bool park_drafter(admin_job *x)
{
    tandem_error e = {0};
    bool         ok =
        x->park ? tandem_park_drafter(x->s->engine, x->method, &e) : tandem_unpark_drafter(x->s->engine, x->method, &e);
    return ok || error_set(&x->why, 503, NULL, "load_failed", "%s", e.text);
}

static void run(work_item *item)
{
    admin_job *x = (admin_job *)item;
    x->ok        = x->fn(x);
}

static void drop(admin_job *x)
{
    server_body_is_freed(x->s, x->of_body);
    buf_deinit(&x->body);
    buf_deinit(&x->out);
    x->s->n_users--;
    mem_free(x);
}

static void reply_drafter(admin_job *x)
{
    tandem_drafter_info all[TANDEM_MAX_DRAFTERS];
    json_writer         w;
    int                 n = tandem_drafters(x->s->engine, all);
    json_writer_init(&w, &x->out);
    for (int i = 0; i < n; i++)
        if (all[i].method == x->method) put_drafter(&w, x->s, &all[i]);
}

static void done(work_item *item)
{
    admin_job   *x = (admin_job *)item;
    server_call *c = x->call;
    if (item->skipped) x->ok = error_shutting_down(&x->why);
    if (c) {
        c->left = NULL;
        if (x->ok && x->fn == park_drafter) reply_drafter(x);
        reply_with(x->s, c, &x->out, x->ok, &x->why);
        buf_init(&x->out, 0);
    }
    drop(x);
}

/* What was begun goes on: somebody asked for it. */
static void left(void *owner)
{
    admin_job *x = owner;
    x->call      = NULL;
}

static void start(server *s, server_call *c, const admin_job *what)
{
    admin_job *x = xnew(admin_job);
    *x           = *what;
    x->item      = (work_item){.run = run, .done = done, .kind = WORK_SLOW};
    x->s         = s;
    x->call      = c;
    x->of_body   = http_take_body(c->http, &x->body);
    buf_init(&x->out, MAX_REPLY);
    c->left  = left;
    c->owner = x;
    s->n_users++;
    work_put(s->work, &x->item);
}

/* --- changes ------------------------------------------------------------------------------------*/
void admin_change_settings(server *s, server_call *c)
{
    server_error why;
    if (find_model(s, c, &why) && admin_takes(s, &why))
        start(s, c, &(admin_job){.fn = change_settings});
    else
        server_refuse(s, c, &why);
}

static bool read_wish(server_call *c, server_fields *f, server_error *why)
{
    const json_value *v;
    arena             mem;
    arena_init(&mem, 1 << 20);
    bool ok = admin_read_body(http_call_request(c->http)->body, &mem, &v, why) && fields_read(f, v, FIELD_PARK, why);
    arena_deinit(&mem);
    return ok;
}

static bool park(server *s, server_call *c, bool away, server_error *why)
{
    tandem_drafter_info        all[TANDEM_MAX_DRAFTERS];
    const tandem_drafter_info *d;
    server_fields              f;
    if (!find(s, c, all, &d, why) || !read_wish(c, &f, why)) return false;
    if (s->draining) return error_shutting_down(why);
    if (!d) {
        life_want(s, c, away, f.grace_s >= 0 ? f.grace_s : s->opt->grace_s, f.wait);
        return true;
    }
    if (!admin_takes(s, why)) return false;
    start(s, c, &(admin_job){.fn = park_drafter, .method = d->method, .park = away});
    return true;
}

void admin_park(server *s, server_call *c)
{
    server_error why;
    if (!park(s, c, true, &why)) server_refuse(s, c, &why);
}

void admin_unpark(server *s, server_call *c)
{
    server_error why;
    if (!park(s, c, false, &why)) server_refuse(s, c, &why);
}

/* --- decisions ----------------------------------------------------------------------------------*/
static bool write_routing(server *s, server_call *c, buf *out, server_error *why)
{
    str         query = http_call_request(c->http)->query;
    char        id[REQUEST_ID_MAX + 1];
    int64_t     n = 100;
    json_writer w;
    if (!query_int(query, "n", 1, ROUTING_RECENT, &n, why) || !query_text(query, "request_id", id, sizeof id, why) ||
        !server_is_loaded(s, why))
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
