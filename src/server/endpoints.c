#include "server/endpoints.h"

#include "base/log.h"
#include "server/page.h"
#include "server/query.h"
#include "server/route.h"
#include "server/status.h"
#include "server/ui.h"

#include <stdio.h>

enum {
    MAX_BODY     = 1 << 20,
    MAX_METRICS  = 16 << 20,
    MAX_SETTINGS = 1 << 14,
    STUCK_S      = 5 /* time of a worker for one request */
};

/* --- one reply ------------------------------------------------------------------------------------*/
static void fill_view(const server *s, status_view *v)
{
    *v = (status_view){.state         = s->life.state,
                       .loaded_before = s->life.loaded_before,
                       .draining      = s->draining,
                       .drained       = s->drained,
                       .hangs         = s->watchdog.hangs,
                       .stuck         = work_longest_s(s->work) > STUCK_S,
                       .created       = s->created,
                       .aliases       = s->opt->aliases,
                       .n_aliases     = s->opt->n_aliases,
                       .files         = s->files,
                       .request_bytes = s->opt->max_held_bytes,
                       .body_bytes    = s->opt->http.max_bodies};
    parts_list(&v->parts, s);
    if (!s->engine) return;
    settings now;
    engine_get_settings(s->engine, &now);
    tandem_get_info(s->engine, &v->info);
    life_stats(s, &v->stats);
    tandem_request_init(s->engine, &v->defaults);
    v->info.name = s->opt->model;
    v->queue_max = (int)now.queue_max;
}

static void reply_as(server *s, server_call *c, bool ok, const char *type, buf *body, const server_error *why)
{
    server_error full;
    if (ok && body->failed) {
        ok  = error_no_memory(&full);
        why = &full;
    }
    if (ok)
        call_reply(s, c, 200, type, buf_str(body));
    else
        call_refuse(s, c, why);
    buf_deinit(body);
}

typedef bool write_fn(server *s, server_call *c, const status_view *v, buf *out, server_error *why);

static void reply_json(server *s, server_call *c, write_fn *fn)
{
    status_view  v;
    server_error why = {0};
    buf          body;
    fill_view(s, &v);
    buf_init(&body, MAX_BODY);
    bool ok = fn(s, c, &v, &body, &why);
    reply_as(s, c, ok, "application/json", &body, &why);
}

/* --- alive ----------------------------------------------------------------------------------------*/
static bool write_health(server *s, server_call *c, const status_view *v, buf *out, server_error *why)
{
    (void)s, (void)c;
    return status_health(v, out, why);
}

static bool write_ready(server *s, server_call *c, const status_view *v, buf *out, server_error *why)
{
    (void)s, (void)c;
    return status_ready(v, out, why);
}

static bool write_version(server *s, server_call *c, const status_view *v, buf *out, server_error *why)
{
    (void)s, (void)c, (void)v, (void)why;
    status_version(out);
    return true;
}

void endpoint_health(server *s, server_call *c) { reply_json(s, c, write_health); }
void endpoint_ready(server *s, server_call *c) { reply_json(s, c, write_ready); }
void endpoint_version(server *s, server_call *c) { reply_json(s, c, write_version); }

/* --- what runs ------------------------------------------------------------------------------------*/
static bool write_models(server *s, server_call *c, const status_view *v, buf *out, server_error *why)
{
    (void)c;
    if (!server_is_loaded(s, why)) return false;
    status_models(v, out);
    return true;
}

static bool write_model(server *s, server_call *c, const status_view *v, buf *out, server_error *why)
{
    return server_is_loaded(s, why) && status_model(v, route_name(c), out, why);
}

static bool write_tokenizer(server *s, server_call *c, const status_view *v, buf *out, server_error *why)
{
    (void)c;
    if (!server_is_loaded(s, why)) return false;
    if (!engine_tok(s->engine)) return error_set(why, 404, NULL, "not_found", "The model has no tokenizer.");
    status_tokenizer(v, engine_tok(s->engine), out);
    return true;
}

static bool write_props(server *s, server_call *c, const status_view *v, buf *out, server_error *why)
{
    char        text[MAX_SETTINGS];
    status_view with = *v;
    (void)c;
    if (!server_is_loaded(s, why)) return false;
    if (tandem_settings(s->engine, text, sizeof text) < sizeof text) with.settings = text;
    status_props(&with, out);
    return true;
}

static bool write_slots(server *s, server_call *c, const status_view *v, buf *out, server_error *why)
{
    slot_view slot[TANDEM_MAX_LANES];
    if (!server_is_loaded(s, why)) return false;
    size_t n = completions_slots(s, slot, TANDEM_MAX_LANES);
    return status_slots(v, slot, n, str_is(http_call_request(c->http)->query, "fail_on_no_slot=1"), out, why);
}

void endpoint_models(server *s, server_call *c) { reply_json(s, c, write_models); }
void endpoint_model(server *s, server_call *c) { reply_json(s, c, write_model); }
void endpoint_tokenizer(server *s, server_call *c) { reply_json(s, c, write_tokenizer); }
void endpoint_props(server *s, server_call *c) { reply_json(s, c, write_props); }
void endpoint_slots(server *s, server_call *c) { reply_json(s, c, write_slots); }

/* --- draining -------------------------------------------------------------------------------------*/
static bool write_drain(server *s, server_call *c, const status_view *v, buf *out, server_error *why)
{
    json_writer w;
    (void)c, (void)v, (void)why;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_bool(&w, "draining", s->drained || s->draining);
    json_member_int(&w, "running", s->n_completions);
    json_end(&w);
    return true;
}

void endpoint_drain(server *s, server_call *c)
{
    bool wanted = strcmp(c->route->method, "GET") ? !strcmp(c->route->method, "POST") : s->drained;
    if (wanted != s->drained)
        log_event(LOG_INFO, "drain", wanted ? "refusing new requests; %d are running" : "accepting new requests again",
                  s->n_completions);
    s->drained = wanted;
    http_keep_alive(s->http, !wanted);
    reply_json(s, c, write_drain);
}

/* --- numbers --------------------------------------------------------------------------------------*/
/* GET /metrics?names=llamacpp */
static bool read_names(const server_call *c, bool *llamacpp, server_error *why)
{
    char names[32];
    if (!query_text(http_call_request(c->http)->query, "names", names, sizeof names, why)) return false;
    *llamacpp = !strcmp(names, "llamacpp");
    return !names[0] || *llamacpp || error_set(why, 400, "names", NULL, "'names' must be llamacpp.");
}

void endpoint_metrics(server *s, server_call *c)
{
    buf          body;
    server_error why;
    metrics_view v = {.model = s->opt->model, .draining = s->draining || s->drained};
    if (!read_names(c, &v.llamacpp, &why)) {
        call_refuse(s, c, &why);
        return;
    }
    http_get_stats(s->http, &v.http);
    life_stats(s, &v.engine);
    v.loaded  = s->life.state == MODEL_LOADED;
    v.streams = s->live.n_streams;
    parts_list(&v.parts, s);
    completions_note_live(s);
    if (!c->sees_all) v.tenant = str_of(c->tenant);
    buf_init(&body, MAX_METRICS);
    metrics_write(s->metrics, &v, &body);
    reply_as(s, c, true, "text/plain; version=0.0.4; charset=utf-8", &body, NULL);
}

/* --- the page -------------------------------------------------------------------------------------*/
static void reply_page(server *s, server_call *c, int status, page_part part, http_field more)
{
    http_field          f[SERVER_MAX_FIELDS + 6];
    const http_request *q    = http_call_request(c->http);
    str                 host = http_call_field(c->http, "Host");
    char                base[300];
    buf                 body;
    int                 n = call_headers(s, c, f);
    snprintf(base, sizeof base, "%s://%.*s", q->is_tls ? "https" : "http", host.n ? (int)host.n : 9,
             host.n ? host.s : "localhost");
    buf_init(&body, MAX_BODY);
    if (part.is_template) page_fill(&body, part.body, s->opt->model, base);
    f[n++] = (http_field){STR("Content-Type"), str_of(part.type)};
    f[n++] = (http_field){STR("Content-Security-Policy"), STR(PAGE_POLICY)};
    f[n++] = (http_field){STR("X-Content-Type-Options"), STR("nosniff")};
    f[n++] = (http_field){STR("Referrer-Policy"), STR("no-referrer")};
    f[n++] = (http_field){STR("Cache-Control"), STR("no-cache")};
    if (more.name.n) f[n++] = more;
    http_reply(c->http, status, f, (size_t)n, part.is_template ? buf_str(&body) : part.body);
    buf_deinit(&body);
}

void endpoint_page(server *s, server_call *c)
{
    if (!strcmp(c->route->path, "/") && ui_redirect(s, c)) return;
    reply_page(s, c, 200, page_find(str_of(c->route->path)), (http_field){0});
}

void endpoint_locked_page(server *s, server_call *c)
{
    if (ui_redirect(s, c)) return; /* the dashboard asks for a key */
    reply_page(s, c, 401, page_for_strangers(), (http_field){STR("WWW-Authenticate"), STR("Bearer")});
}

/* --- what this server does not do ---------------------------------------------------------------*/
void endpoint_no_audio(server *s, server_call *c)
{
    server_error why;
    error_set(&why, 400, NULL, "not_supported",
              "Audio is not supported: this server reads text and images, and generates text.");
    call_refuse(s, c, &why);
}

void endpoint_no_embeddings(server *s, server_call *c)
{
    server_error why;
    error_set(&why, c->format == &reply_ollama ? 501 : 400, NULL, "not_supported",
              "This server makes no embeddings: its model generates text.");
    call_refuse(s, c, &why);
}
