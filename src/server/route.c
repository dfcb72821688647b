#include "server/tables_inside.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/admin.h"
#include "server/endpoints.h"
#include "server/ollama.h"
#include "server/origin.h"
#include "server/request_log.h"
#include "server/sessions.h"
#include "server/text.h"
#include "server/ui.h"

#include <stdio.h>

const route_info route_table[] = {
    {"POST", "/chat/completions", ROUTE_KEY, completion_chat, SIZE_MAX, &reply_chat},
    {"POST", "/chat/completions/input_tokens", ROUTE_KEY, endpoint_count_chat, SIZE_MAX, &reply_chat},
    {"POST", "/completion", ROUTE_KEY, completion_native, SIZE_MAX, &reply_native},
    {"POST", "/completions", ROUTE_KEY, completion_text, SIZE_MAX, &reply_text},
    {"POST", "/responses", ROUTE_KEY, completion_responses, SIZE_MAX, &reply_responses},
    {"POST", "/responses/input_tokens", ROUTE_KEY, endpoint_count_responses, SIZE_MAX, &reply_responses},
    {"POST", "/messages", ROUTE_KEY, completion_messages, SIZE_MAX, &reply_messages},
    {"POST", "/messages/count_tokens", ROUTE_KEY, endpoint_count, SIZE_MAX, &reply_messages},
    {"POST", "/embeddings", ROUTE_KEY, endpoint_no_embeddings, 0, NULL},
    {"POST", "/audio/*", ROUTE_KEY, endpoint_no_audio, 0, NULL},
    {"POST", "/tokenize", ROUTE_KEY, endpoint_tokenize, TEXT_MAX_BODY, NULL},
    {"POST", "/detokenize", ROUTE_KEY, endpoint_detokenize, TEXT_MAX_BODY, NULL},
    {"POST", "/apply-template", ROUTE_KEY, endpoint_template, TEXT_MAX_BODY, NULL},
    {"GET", "/health", ROUTE_OPEN, endpoint_health, 0, NULL},
    {"GET", "/ready", ROUTE_KEY, endpoint_ready, 0, NULL},
    {"GET", "/version", ROUTE_KEY, endpoint_version, 0, NULL},
    {"GET", "/models", ROUTE_KEY, endpoint_models, 0, NULL},
    {"GET", "/models/*", ROUTE_KEY, endpoint_model, 0, NULL},
    {"GET", "/tokenizer_info", ROUTE_KEY, endpoint_tokenizer, 0, NULL},
    {"GET", "/props", ROUTE_KEY, endpoint_props, 0, NULL},
    {"GET", "/slots", ROUTE_OPERATE, endpoint_slots, 0, NULL},
    {"POST", "/slots/*", ROUTE_KEY, sessions_slot, SESSIONS_MAX_BODY, NULL},
    {"GET", "/metrics", ROUTE_KEY, endpoint_metrics, 0, NULL},
    {"GET", "/api/drain", ROUTE_OPERATE, endpoint_drain, 0, NULL},
    {"POST", "/api/drain", ROUTE_OPERATE, endpoint_drain, 0, NULL},
    {"DELETE", "/api/drain", ROUTE_OPERATE, endpoint_drain, 0, NULL},
    {"GET", "/api/models", ROUTE_ADMIN, admin_models, 0, NULL},
    {"GET", "/api/models/*/settings", ROUTE_ADMIN, admin_settings, 0, NULL},
    {"PUT", "/api/models/*/settings", ROUTE_OPERATE, admin_change_settings, ADMIN_MAX_BODY, NULL},
    {"POST", "/api/models/*/park", ROUTE_OPERATE, admin_park, ADMIN_MAX_BODY, NULL},
    {"POST", "/api/models/*/unpark", ROUTE_OPERATE, admin_unpark, ADMIN_MAX_BODY, NULL},
    {"GET", "/api/models/*", ROUTE_ADMIN, admin_model, 0, NULL},
    {"GET", "/api/routing", ROUTE_OPERATE, admin_routing, 0, NULL},
    {"GET", "/api/stats", ROUTE_OPERATE, live_endpoint, ADMIN_MAX_BODY, NULL},
    {"GET", "/api/bench", ROUTE_OPERATE, bench_list, 0, NULL},
    {"GET", "/api/costs", ROUTE_OPERATE, admin_costs, 0, NULL},
    {"POST", "/api/bench", ROUTE_OPERATE, bench_endpoint, ADMIN_MAX_BODY, NULL},
    {"GET", "/api/sessions", ROUTE_KEY, sessions_list, 0, NULL},
    {"POST", "/api/sessions/*/save", ROUTE_KEY, sessions_save, SESSIONS_MAX_BODY, NULL},
    {"POST", "/api/sessions/*/restore", ROUTE_KEY, sessions_restore, SESSIONS_MAX_BODY, NULL},
    {"POST", "/api/sessions/*/delete", ROUTE_KEY, sessions_delete, SESSIONS_MAX_BODY, NULL},
    {"DELETE", "/api/sessions/*", ROUTE_KEY, sessions_delete, 0, NULL},
    {"POST", "/api/chat", ROUTE_KEY, completion_ollama_chat, SIZE_MAX, &reply_ollama},
    {"POST", "/api/generate", ROUTE_KEY, completion_ollama_generate, SIZE_MAX, &reply_ollama},
    {"GET", "/api/tags", ROUTE_KEY, ollama_tags, 0, &reply_ollama},
    {"GET", "/api/ps", ROUTE_KEY, ollama_ps, 0, &reply_ollama},
    {"GET", "/api/version", ROUTE_KEY, ollama_version, 0, &reply_ollama},
    {"POST", "/api/show", ROUTE_KEY, endpoint_ollama_show, ADMIN_MAX_BODY, &reply_ollama},
    {"POST", "/api/pull", ROUTE_KEY, endpoint_ollama_pull, ADMIN_MAX_BODY, &reply_ollama},
    {"POST", "/api/embed", ROUTE_KEY, endpoint_no_embeddings, 0, &reply_ollama},
    {"POST", "/api/embeddings", ROUTE_KEY, endpoint_no_embeddings, 0, &reply_ollama},
    {"POST", "/api/create", ROUTE_KEY, ollama_no_files, 0, &reply_ollama},
    {"POST", "/api/copy", ROUTE_KEY, ollama_no_files, 0, &reply_ollama},
    {"POST", "/api/push", ROUTE_KEY, ollama_no_files, 0, &reply_ollama},
    {"DELETE", "/api/delete", ROUTE_KEY, ollama_no_files, 0, &reply_ollama},
    {"POST", "/api/blobs/*", ROUTE_KEY, ollama_no_files, 0, &reply_ollama},
    {"GET", "/", ROUTE_KEY, endpoint_page, 0, NULL},
    {"GET", "/page.css", ROUTE_KEY, endpoint_page, 0, NULL},
    {"GET", "/favicon.svg", ROUTE_OPEN, endpoint_page, 0, NULL},
    {"GET", "/favicon.ico", ROUTE_OPEN, endpoint_page, 0, NULL},
    {"GET", "/ui/", ROUTE_OPEN, endpoint_ui, 0, NULL},
    {"GET", "/ui/*", ROUTE_OPEN, endpoint_ui, 0, NULL},
};
const int n_routes = (int)COUNT(route_table);

/* --- routes -------------------------------------------------------------------------------------*/
static str without_version(str path) { return str_starts(path, "/v1/") ? (str){path.s + 3, path.n - 3} : path; }

/* Returns whether a path matches the route. *name: the part that matches the asterisk. */
static bool is_at(const route_info *r, str path, str *name)
{
    const char *star = strchr(r->path, '*');
    if (!star) return str_is(path, r->path);
    size_t head = (size_t)(star - r->path), tail = strlen(star + 1);
    if (path.n <= head + tail || memcmp(path.s, r->path, head) != 0 || !str_ends(path, star + 1)) return false;
    *name = (str){path.s + head, path.n - head - tail};
    return true;
}

str route_name(const server_call *c)
{
    str name = {0};
    is_at(c->route, without_version(http_call_request(c->http)->path), &name);
    return name;
}

static void add_method(buf *others, const char *method)
{
    if (others->n && memmem(others->p, others->n, method, strlen(method))) return;
    buf_printf(others, "%s%s", others->n ? ", " : "", strcmp(method, "GET") ? method : "GET, HEAD");
}

/* Sets the call's route, and its reply format, which a path without a route has too. HEAD uses the route of GET. Writes
 * to others the methods of the path, when it does not have this one. */
static void find_route(const server *s, server_call *c, str method, str path, buf *others)
{
    str name, bare = without_version(path);
    if (str_is(method, "HEAD")) method = STR("GET");
    if (!s->opt->no_ollama && str_starts(bare, "/api/") && !str_starts(bare, "/api/models/") &&
        !str_starts(bare, "/api/sessions/"))
        c->format = &reply_ollama;
    for (int i = 0; i < n_routes && !c->route; i++) {
        const route_info *r = &route_table[i];
        if (!is_at(r, bare, &name) || (s->opt->no_ollama && r->format == &reply_ollama)) continue;
        c->format = r->format;
        if (str_is(method, r->method))
            c->route = r;
        else
            add_method(others, r->method);
    }
}

/* Sets the id of the request: the client's id if it is valid, else a random one. */
static void choose_id(server_call *c)
{
    str given = http_call_field(c->http, "X-Request-Id");
    if (call_id_is_valid(given))
        snprintf(c->id, sizeof c->id, "%.*s", (int)given.n, given.s);
    else
        reply_make_id(c->id, sizeof c->id, "req_", 20);
}

static bool is_name_list(str s)
{
    for (size_t i = 0; i < s.n; i++) {
        char c = (char)(s.s[i] | 0x20);
        if (!(c >= 'a' && c <= 'z') && !(s.s[i] >= '0' && s.s[i] <= '9') && !strchr("!#$%&'*+-.^_`|~, ", s.s[i]))
            return false;
    }
    return s.n && !memchr(s.s, 0, s.n);
}

/* Answers a preflight request, by which a browser asks whether a page of another origin may send its request. */
static bool answer_preflight(server *s, server_call *c)
{
    http_field f[SERVER_MAX_FIELDS];
    int        n     = call_headers(s, c, f);
    str        asked = http_call_field(c->http, "Access-Control-Request-Headers");
    if (!origin_allowed(http_call_field(c->http, "Origin"), s->opt->cors, s->opt->n_cors).s) return false;
    if (!is_name_list(asked)) asked = STR("Authorization, Content-Type, X-Api-Key, X-Request-Id");
    f[n++] = (http_field){STR("Access-Control-Allow-Methods"), STR("GET, POST, OPTIONS")};
    f[n++] = (http_field){STR("Access-Control-Allow-Headers"), asked};
    f[n++] = (http_field){STR("Access-Control-Max-Age"), STR("600")};
    http_reply(c->http, 204, f, (size_t)n, (str){0});
    return true;
}

static void refuse_path(server *s, server_call *c, str others)
{
    const http_request *q = http_call_request(c->http);
    server_error        why;
    if (others.n) {
        error_set(&why, 405, NULL, "method_not_allowed", "The method %.*s is not allowed here.", STR_ARG(q->method));
        call_refuse_with(s, c, &why, (http_field){STR("Allow"), others});
    } else {
        error_set(&why, 404, NULL, "not_found", "There is no endpoint at this path.");
        call_refuse(s, c, &why);
    }
}

/* Checks the access of a call. A path without a route needs a key as well. */
static bool check_access(server *s, server_call *c)
{
    access_grant  grant;
    server_error  why;
    access_fields f = {.authorization  = http_call_field(c->http, "Authorization"),
                       .x_api_key      = http_call_field(c->http, "X-Api-Key"),
                       .host           = http_call_field(c->http, "Host"),
                       .origin         = http_call_field(c->http, "Origin"),
                       .by_unix_socket = !http_call_request(c->http)->peer.n};
    if (access_check(&s->access, c->route ? c->route->access : ROUTE_KEY, &f, &grant, &why)) {
        if (grant.tenant) snprintf(c->tenant, sizeof c->tenant, "%s", grant.tenant);
        c->sees_all = grant.sees_all;
        return true;
    }
    http_field ask = {STR("WWW-Authenticate"), STR("Bearer")};
    if (why.status == 401 && c->route && !strcmp(c->route->path, "/"))
        endpoint_locked_page(s, c);
    else
        call_refuse_with(s, c, &why, why.status == 401 ? ask : (http_field){0});
    return false;
}

/* Refuses a request without memory for its call; uses server.nobody as the call while the reply is written. */
static bool refuse_without_call(server *s, http_call *h)
{
    server_call *c = &s->nobody;
    reply_make_id(c->id, sizeof c->id, "req_", 20);
    c->http = h;
    call_refuse_no_memory(s, c);
    c->http = NULL;
    return false;
}

/* Returns the largest body of a route. Only a model that accepts images gets a base64 text of a whole file. */
static size_t max_body_of(const server *s, const route_info *r)
{
    enum { TEXT = 64 << 20 };
    bool media = s->engine && engine_media(s->engine);
    return r->max_body < TEXT || media ? r->max_body : TEXT;
}

/* Runs handlers that need no body at once, even if the request has one. */
bool route_on_head(void *ctx, http_call *h)
{
    server             *s = ctx;
    server_call        *c = mem_try(sizeof *c);
    const http_request *q = http_call_request(h);
    buf                 others;
    if (!c) return refuse_without_call(s, h);
    c->http  = h;
    c->since = clock_s();
    http_call_set_user(h, c);
    choose_id(c);
    if (str_is(q->method, "OPTIONS") && answer_preflight(s, c)) return false;
    buf_init(&others, 256);
    find_route(s, c, q->method, q->path, &others);
    bool allowed = check_access(s, c);
    if (allowed && !c->route) refuse_path(s, c, buf_str(&others));
    buf_deinit(&others);
    if (!allowed || !c->route) return false;
    if (c->route->max_body)
        http_limit_body(h, max_body_of(s, c->route));
    else
        c->route->handle(s, c);
    return c->route->max_body > 0;
}

void route_on_request(void *ctx, http_call *h)
{
    server_call *c = http_call_user(h);
    c->route->handle(ctx, c);
}

/* Writes errors of the HTTP layer in the format of the API. */
size_t route_on_refuse(void *ctx, http_call *h, int status, const char *text, http_field *fields, buf *body)
{
    server      *s = ctx;
    server_call *c = h ? http_call_user(h) : NULL;
    server_error why;
    bool         is_known = c != NULL;
    if (!c) c = &s->nobody;
    if (!is_known) reply_make_id(c->id, sizeof c->id, "req_", 20);
    error_set(&why, status, NULL, status == 413 ? "request_too_large" : NULL, "%s", text);
    return (size_t)call_write_error(s, c, &why, fields, body);
}

/* Logs a call that is no completion; successful GET requests at debug level. */
static void note_other(const server_call *c, bool delivered)
{
    int           status = http_call_status(c->http);
    bool          quiet  = c->route && !strcmp(c->route->method, "GET") && status < 400;
    server_record r      = {.id        = c->id,
                            .endpoint  = c->route ? c->route->path : "none",
                            .tenant    = c->tenant[0] ? c->tenant : NULL,
                            .status    = status,
                            .delivered = delivered,
                            .total_s   = clock_s() - c->since};
    request_log(quiet ? LOG_DEBUG : LOG_INFO, &r);
}

void route_on_done(void *ctx, http_call *h, bool delivered)
{
    server      *s = ctx;
    server_call *c = http_call_user(h);
    if (!c) return;
    metrics_reply(s->metrics, str_of(c->tenant), http_call_status(h));
    if (c->text) text_on_end(c->text);
    if (c->on_end) c->on_end(c->owner);
    server_let_go(s, c->reply_bytes);
    if (!c->completion) note_other(c, delivered);
    if (c->completion) completion_on_end(c->completion, delivered);
    mem_free(c);
}
