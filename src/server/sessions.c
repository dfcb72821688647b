#include "server/sessions.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/inside.h"
#include "server/query.h"
#include "server/route.h"

#include <stdio.h>

enum { MAX_LISTED = 4096, MAX_SLOT = 1023, MAX_REPLY = 4 << 20 };

typedef struct {
    work_item              item;
    server                *s;
    server_call           *call; /* NULL: it ended */
    metrics_session        kind;
    char                   owner[KEY_NAME_MAX + 1];
    char                   name[TANDEM_SESSION_NAME + 1]; /* name of the file */
    char                   live[TANDEM_SESSION_NAME + 1]; /* name of the conversation */
    int                    slot;                          /* -1: the request is of our own API */
    char                  *tenant;                        /* for a restore */
    live_session          *text;                          /* for a save */
    tandem_session_info    info;
    tandem_session_content content;
    tandem_session_info   *list;
    size_t                 n_listed;
    double                 began; /* clock_s */
    tandem_error           e;     /* code 0: no error */
} session_job;

static const char *owner_of(const session_job *x) { return x->owner[0] ? x->owner : NULL; }

/* --- on a worker --------------------------------------------------------------------------------*/
static void run_save(session_job *x)
{
    tandem_session s;
    live_session_describe(x->text, &s);
    s.owner = owner_of(x);
    s.name  = x->name;
    tandem_session_save(x->s->engine, &s, &x->info, &x->e);
}

static void run_restore(session_job *x)
{
    tandem_session s = {.owner = owner_of(x), .name = x->name, .tenant = x->tenant};
    tandem_session_restore(x->s->engine, &s, &x->content, &x->info, &x->e);
}

static void run_list(session_job *x)
{
    x->list = mem_try_n(MAX_LISTED, sizeof *x->list);
    if (x->list) x->n_listed = tandem_sessions(x->s->engine, owner_of(x), x->list, MAX_LISTED);
    if (x->n_listed > MAX_LISTED) x->n_listed = MAX_LISTED;
}

static void run_session_job(work_item *item)
{
    session_job *x = (session_job *)item;
    x->began       = clock_s();
    switch (x->kind) {
    case METRICS_SESSION_SAVED: run_save(x); break;
    case METRICS_SESSION_RESTORED: run_restore(x); break;
    case METRICS_SESSION_DELETED: tandem_session_delete(x->s->engine, owner_of(x), x->name, &x->e); break;
    default: run_list(x); break;
    }
}

/* --- replies ------------------------------------------------------------------------------------*/
static void put_utc(json_writer *w, const char *key, int64_t at)
{
    buf text;
    buf_init(&text, 64);
    clock_put_utc(&text, &(struct timespec){.tv_sec = (time_t)at}, 0);
    json_key(w, key);
    json_put_str(w, buf_str(&text));
    buf_deinit(&text);
}

static void put_info(json_writer *w, const tandem_session_info *i)
{
    json_member_str(w, "name", i->name);
    json_member_int(w, "tokens", i->tokens);
    json_member_int(w, "bytes", (int64_t)i->bytes);
    json_member_str(w, "draft", i->draft);
    put_utc(w, "used", i->used);
}

static void put_list(const session_job *x, json_writer *w)
{
    json_key(w, "sessions");
    json_begin_array(w);
    for (size_t i = 0; i < x->n_listed; i++) {
        json_begin_object(w);
        put_info(w, &x->list[i]);
        json_end(w);
    }
    json_end(w);
}

/* Writes llama.cpp's reply. */
static void put_slot(const session_job *x, json_writer *w)
{
    bool saved = x->kind == METRICS_SESSION_SAVED;
    json_member_int(w, "id_slot", x->slot);
    json_member_str(w, "filename", x->name);
    json_member_int(w, saved ? "n_saved" : "n_restored", x->info.tokens);
    json_member_int(w, saved ? "n_written" : "n_read", (int64_t)x->info.bytes);
    json_member_int(w, "reusable", x->info.reusable);
    json_member_str(w, "draft", x->info.draft);
    json_key(w, "timings");
    json_begin_object(w);
    json_member_real(w, saved ? "save_ms" : "restore_ms", (clock_s() - x->began) * 1e3);
    json_end(w);
}

static void reply_session(session_job *x)
{
    buf         out;
    json_writer w;
    buf_init(&out, MAX_REPLY);
    json_writer_init(&w, &out);
    json_begin_object(&w);
    if (x->kind == METRICS_SESSION_KINDS) {
        put_list(x, &w);
    } else if (x->kind == METRICS_SESSION_DELETED) {
        json_member_str(&w, "name", x->name);
        json_member_bool(&w, "deleted", true);
    } else if (x->slot >= 0) {
        put_slot(x, &w);
    } else {
        put_info(&w, &x->info);
        json_member_int(&w, "reusable", x->info.reusable);
        json_member_real(&w, "ms", (clock_s() - x->began) * 1e3);
    }
    json_end(&w);
    if (out.failed)
        call_refuse_no_memory(x->s, x->call);
    else
        call_reply(x->s, x->call, 200, "application/json", buf_str(&out));
    buf_deinit(&out);
}

static void refuse_session(session_job *x)
{
    server_error why;
    err          e = {.code = (err_code)x->e.code};
    memcpy(e.text, x->e.text, sizeof e.text);
    if (e.code == ERR_IO) log_event(LOG_WARN, "session", "%s", e.text);
    error_take(&why, &e, NULL, false);
    call_refuse(x->s, x->call, &why);
}

static void free_session_job(session_job *x)
{
    x->s->n_users--;
    live_session_free(x->text);
    tandem_session_content_free(&x->content);
    mem_free(x->list);
    mem_free(x->tenant);
    mem_free(x);
}

/* Makes a restored text the current one of its conversation. */
static bool take_restored(session_job *x)
{
    if (x->slot >= 0 && !x->info.reusable) {
        x->e.code = TANDEM_INPUT;
        snprintf(x->e.text, sizeof x->e.text,
                 "nothing of the session can be reused: its state was not saved, or the "
                 "K/V cache has no room for it");
        return false;
    }
    live_sessions_put(&x->s->sessions, x->owner, x->live, x->tenant, &x->content);
    return true;
}

static void session_job_done(work_item *item)
{
    session_job *x  = (session_job *)item;
    bool         ok = !item->skipped && !x->e.code && (x->kind != METRICS_SESSION_RESTORED || take_restored(x));
    if (ok && x->kind < METRICS_SESSION_KINDS) metrics_count_session(x->s->metrics, x->kind);
    if (ok && x->kind == METRICS_SESSION_DELETED) live_sessions_drop(&x->s->sessions, x->owner, x->live);
    if (x->call) {
        server_error why;
        x->call->on_end = NULL;
        if (item->skipped && !error_shutting_down(&why))
            call_refuse(x->s, x->call, &why);
        else if (ok)
            reply_session(x);
        else
            refuse_session(x);
    }
    free_session_job(x);
}

static void on_call_end(void *owner)
{
    session_job *x = owner;
    x->call        = NULL;
    if (work_withdraw(x->s->work, &x->item)) free_session_job(x);
}

/* --- requests -----------------------------------------------------------------------------------*/
static bool read_name(str name, char out[TANDEM_SESSION_NAME + 1], const char *field, server_error *why)
{
    err  e;
    bool fits = name.n <= TANDEM_SESSION_NAME && !(name.n && memchr(name.s, 0, name.n));
    snprintf(out, TANDEM_SESSION_NAME + 1, "%.*s", fits ? (int)name.n : 0, name.n ? name.s : "");
    return engine_session_name(out, &e) || error_take(why, &e, field, false);
}

static bool check_enabled(server *s, server_error *why)
{
    if (!s->opt->sessions)
        return error_set(why, 501, NULL, "not_supported_error",
                         "Sessions are disabled: the server was started without --session-dir.");
    return server_takes(s, WORK_SLOW, why);
}

/* Copies the text that is to be saved. A missing one is refused as a missing file is. */
static bool take_text(session_job *x, server_error *why)
{
    const live_session *found = live_sessions_find(&x->s->sessions, x->owner, x->live);
    if (!found) return error_set(why, 404, NULL, "not_found", "there is no session '%s'", x->live);
    x->text = live_session_copy(found);
    return x->text || error_no_memory(why);
}

/* Copies the name of the tenant of the key's requests. */
static bool take_tenant(session_job *x, server_error *why)
{
    x->tenant = request_tenant(str_of(x->owner), (str){0});
    return x->tenant || !x->owner[0] || error_no_memory(why);
}

/* Starts a job that was filled in; refuses the call otherwise. */
static void start(server *s, server_call *c, const session_job *from)
{
    server_error why;
    session_job *x = call_alloc(s, c, sizeof *x);
    if (!x) return;
    *x      = *from;
    x->item = (work_item){.run = run_session_job, .done = session_job_done, .kind = WORK_SLOW};
    x->s    = s;
    x->call = c;
    memcpy(x->owner, c->tenant, sizeof x->owner);
    s->n_users++;
    if ((x->kind == METRICS_SESSION_SAVED && !take_text(x, &why)) ||
        (x->kind == METRICS_SESSION_RESTORED && !take_tenant(x, &why))) {
        call_refuse(s, c, &why);
        free_session_job(x);
        return;
    }
    c->on_end = on_call_end;
    c->owner  = x;
    work_put(s->work, &x->item);
}

static void start_own(server *s, server_call *c, metrics_session kind)
{
    server_error why;
    session_job  x = {.kind = kind, .slot = -1};
    if (kind == METRICS_SESSION_KINDS && !s->opt->sessions) {
        call_reply(s, c, 200, "application/json", STR("{\"sessions\":[]}"));
        return;
    }
    if (!check_enabled(s, &why) || (kind != METRICS_SESSION_KINDS && !read_name(route_name(c), x.name, NULL, &why))) {
        call_refuse(s, c, &why);
        return;
    }
    memcpy(x.live, x.name, sizeof x.live);
    start(s, c, &x);
}

void sessions_save(server *s, server_call *c) { start_own(s, c, METRICS_SESSION_SAVED); }
void sessions_restore(server *s, server_call *c) { start_own(s, c, METRICS_SESSION_RESTORED); }
void sessions_delete(server *s, server_call *c) { start_own(s, c, METRICS_SESSION_DELETED); }
void sessions_list(server *s, server_call *c) { start_own(s, c, METRICS_SESSION_KINDS); }

/* --- llama.cpp's slots --------------------------------------------------------------------------*/
static bool read_slot(const server_call *c, session_job *x, char action[16], server_error *why)
{
    int64_t n;
    if (!str_to_i64(route_name(c), &n) || n < 0 || n > MAX_SLOT)
        return error_set(why, 400, "id_slot", NULL, "The slot must be a number from 0 to %d.", MAX_SLOT);
    if (!query_text(http_call_request(c->http)->query, "action", action, 16, why)) return false;
    x->slot = (int)n;
    snprintf(x->live, sizeof x->live, "slot-%d", x->slot);
    return true;
}

static bool read_filename(const server_call *c, session_job *x, server_error *why)
{
    arena             mem;
    const json_value *root, *name;
    err               e = {0};
    arena_init(&mem, 1 << 20);
    bool ok = json_parse(&root, &mem, http_call_request(c->http)->body, NULL, &e) || error_body(why, &e);
    name    = ok ? json_find(root, "filename") : NULL;
    if (ok && (!name || name->kind != JSON_STRING))
        ok = error_set(why, 400, "filename", NULL, "'filename' must be a string.");
    ok = ok && read_name(name->s, x->name, "filename", why);
    arena_deinit(&mem);
    return ok;
}

static void erase_slot(server *s, server_call *c, const session_job *x)
{
    const live_session *found = live_sessions_find(&s->sessions, c->tenant, x->live);
    char                text[96];
    snprintf(text, sizeof text, "{\"id_slot\":%d,\"n_erased\":%zu}", x->slot, found ? found->ids.n : 0);
    live_sessions_drop(&s->sessions, c->tenant, x->live);
    call_reply(s, c, 200, "application/json", str_of(text));
}

void sessions_slot(server *s, server_call *c)
{
    server_error why;
    char         action[16];
    session_job  x  = {0};
    bool         ok = check_enabled(s, &why) && read_slot(c, &x, action, &why);
    if (ok && !strcmp(action, "erase")) {
        erase_slot(s, c, &x);
        return;
    }
    bool save = ok && !strcmp(action, "save");
    x.kind    = save ? METRICS_SESSION_SAVED : METRICS_SESSION_RESTORED;
    if (ok && !save && strcmp(action, "restore"))
        ok = error_set(&why, 400, "action", NULL, "'action' must be save, restore or erase.");
    if (ok && read_filename(c, &x, &why))
        start(s, c, &x);
    else
        call_refuse(s, c, &why);
}
