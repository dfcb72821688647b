/* The operation generate. A worker reads the request with the reader of the HTTP API, another one compiles its grammar
 * if it is new. From then on the daemon's thread polls the job and writes its tokens as events. */
#include "base/mem.h"
#include "daemon/inside.h"
#include "server/reply.h"

#include <stdio.h>
#include <sys/random.h>

enum { POLL = 64 };                             /* tokens polled between two checks of the output */
enum { IDS, TEXT, REASONING, CALLS, LOGPROBS }; /* indices of server_choice.part */
_Static_assert((int)LOGPROBS < (int)CHOICE_PARTS, "a part for each list");

typedef struct {
    daemon_op      op;
    server_request request;
    server_error   why; /* status 0: no error */
    reply          reply;
    server_choice  choice;
    bool           opened;   /* reply and choice are set up */
    bool           read;     /* a worker has read the request */
    bool           accepted; /* the event "accepted" was written */
    bool           stream, text;
    tandem_error   failed;       /* error of a restore; code 0: none */
    command_error  mismatch;     /* the snapshot is of another text; code NULL: it is not */
    int            least_shared; /* tokens that the prompt must share with a snapshot that is not its beginning */
} answer;

/* --- the request --------------------------------------------------------------------------------*/
static void put_member(buf *out, const char *key, const json_value *v)
{
    json_writer w;
    buf_printf(out, "%s\"%s\":", out->n > 1 ? "," : "", key);
    json_writer_init(&w, out);
    json_put_value(&w, v);
}

/* Writes the prompt of a command as the HTTP API has it, and returns the endpoint that takes it; 0: wrong. */
static int put_prompt(buf *out, const command *c, bool raw, command_error *why)
{
    const json_value *prompt = json_find(c->root, "prompt"), *ids = json_find(c->root, "ids");
    const json_value *messages = json_find(c->root, "messages");
    if (!!prompt + !!ids + !!messages != 1) {
        command_fail(why, "bad_request", NULL, "generate needs one of 'prompt', 'ids' and 'messages'");
        return 0;
    }
    if (prompt && prompt->kind != JSON_STRING) {
        command_fail(why, "bad_request", "prompt", "'prompt' must be a string");
        return 0;
    }
    bool good = !ids || (ids->kind == JSON_ARRAY && ids->n);
    for (size_t i = 0; ids && good && i < ids->n; i++) good = ids->item[i].kind == JSON_INT;
    if (!good) {
        command_fail(why, "bad_request", "ids", "'ids' must be a list of token ids");
        return 0;
    }
    if (messages) put_member(out, "messages", messages);
    if (prompt && !raw) {
        buf_puts(out, "\"messages\":[{\"role\":\"user\",\"content\":");
        buf_put_json_string(out, prompt->s);
        buf_puts(out, "}]");
    }
    if (ids || (prompt && raw)) put_member(out, "prompt", ids ? ids : prompt);
    return messages || (prompt && !raw) ? FIELD_CHAT : FIELD_TEXT;
}

/* Returns whether the daemon reads the field itself. */
static bool is_own_field(str key)
{
    static const char *const own[] = {"id",   "op",     "meta",   "prompt",    "ids",  "messages", "raw",
                                      "text", "stream", "unpark", "reasoning", "from", "save"};
    for (size_t i = 0; i < COUNT(own); i++)
        if (str_is(key, own[i])) return true;
    return false;
}

static bool endpoint_has(int endpoint, str key)
{
    for (int i = 0; i < fields_generate.n; i++)
        if (fields_generate.row[i].endpoint & endpoint && str_is(key, fields_generate.row[i].name)) return true;
    return false;
}

/* Writes the body of the HTTP request that the command stands for. */
static bool put_body(buf *out, const command *c, bool raw, int *endpoint, command_error *why)
{
    const json_value *reasoning = json_find(c->root, "reasoning"), *effort = json_find(reasoning, "effort");
    buf_putc(out, '{');
    if (!(*endpoint = put_prompt(out, c, raw, why))) return false;
    if (reasoning && (*endpoint != FIELD_CHAT || !effort || reasoning->n != 1))
        return command_fail(why, "bad_request", "reasoning",
                            "'reasoning' must be {\"effort\": ...}, and needs 'messages' or 'prompt'");
    for (size_t i = 0; i < c->root->n; i++) {
        const json_member *m = &c->root->member[i];
        char               key[64];
        if (is_own_field(m->key)) continue;
        snprintf(key, sizeof key, "%.*s", (int)(m->key.n < 63 ? m->key.n : 63), m->key.s);
        if (!endpoint_has(*endpoint, m->key))
            return command_fail(why, "bad_request", key, "'%s' needs %s", key,
                                *endpoint == FIELD_CHAT ? "'raw' or 'ids'" : "'messages' or 'prompt'");
        put_member(out, key, &m->value);
    }
    if (effort) put_member(out, "reasoning_effort", effort);
    buf_putc(out, '}');
    return !out->failed || command_fail(why, "too_large", NULL, "there is no memory for the request");
}

/* Draws a seed, so that "accepted" can report it. */
static void settle_seed(tandem_request *ask)
{
    if (ask->has_seed || ask->temp == 0) return;
    if (getrandom(&ask->seed, sizeof ask->seed, 0) != sizeof ask->seed) return; /* the engine draws one */
    ask->seed >>= 12; /* 52 bits: every JSON reader keeps them */
    ask->has_seed = true;
}

static void open_and_submit(answer *a)
{
    tandem *t = a->op.d->engine;
    err     e = {0};
    settle_seed(&a->request.ask);
    reply_init(&a->reply, a->reply.format, &a->request, engine_tok(t), engine_info(t)->name);
    a->opened = true;
    if (!choice_init(&a->choice, &a->reply, 0)) {
        error_no_memory(&a->why);
        return;
    }
    if (!atomic_load(&a->op.cancelled) && !choice_submit(&a->choice, t, &e))
        error_take(&a->why, &e, request_param(&a->request), false);
    request_drop_grammar(&a->request);
}

/* Restores the snapshot that the prompt begins with. A prompt of another text is refused. */
static bool restore(answer *a)
{
    tandem_session_info    info;
    tandem_session_content c;
    size_t                 same = 0;
    if (!a->op.name[0][0]) return true;
    if (!tandem_session_restore(a->op.d->engine, &(tandem_session){.name = a->op.name[0]}, &c, &info, &a->failed))
        return false;
    const server_prompt *p = &a->request.prompt[0];
    while (same < p->n && same < c.ids.n && p->ids[same] == c.ids.p[same]) same++;
    bool ok = same == c.ids.n || same == p->n || same >= (size_t)a->least_shared;
    if (!ok)
        command_fail(&a->mismatch, "snapshot_mismatch", "from",
                     "the prompt differs from the snapshot '%s' of %zu tokens at token %zu", a->op.name[0], c.ids.n,
                     same);
    a->request.ask.n_continued = engine_continued(&c.ids, c.n_prompt, p->ids, p->n);
    tandem_session_content_free(&c);
    return ok;
}

/* Refuses images and videos together with snapshots, which contain ids and not what was seen. */
static bool check_media(answer *a)
{
    const char *field = a->op.name[0][0] ? "from" : a->op.name[1][0] ? "save" : NULL;
    return !field || error_set(&a->why, 400, field, "unsupported_value",
                               "'%s' cannot be used with images or videos: a snapshot does not contain them.", field);
}

static void submit_read(answer *a)
{
    if (restore(a) && !request_needs_compiling(&a->request)) open_and_submit(a);
}

static void read_and_submit(work_item *item)
{
    answer *a = (answer *)item;
    if (atomic_load(&a->op.cancelled) || !request_read(&a->request, a->op.d->engine, (str){0}, &a->why)) return;
    if (!request_needs_media(&a->request))
        submit_read(a);
    else
        check_media(a);
}

static void load_and_submit(work_item *item)
{
    answer       *a = (answer *)item;
    daemon_state *d = a->op.d;
    if (!atomic_load(&a->op.cancelled) && media_load(&a->request, d->engine, &d->media, &a->op.cancelled, &a->why) &&
        request_read(&a->request, d->engine, (str){0}, &a->why))
        submit_read(a);
}

static void compile_and_submit(work_item *item)
{
    answer *a = (answer *)item;
    if (!atomic_load(&a->op.cancelled) && request_compile(&a->request, a->op.d->engine, &a->op.cancelled, &a->why))
        open_and_submit(a);
}

static void give_to_worker(answer *a, work_kind kind, void (*run)(work_item *item))
{
    a->op.with_worker = true;
    a->op.item.kind   = kind;
    a->op.item.run    = run;
    work_put(a->op.d->work, &a->op.item);
}

static void on_read(work_item *item)
{
    answer *a       = (answer *)item;
    bool    goes_on = !item->skipped && !a->why.status && !a->failed.code && !a->mismatch.code && !a->opened &&
                   !atomic_load(&a->op.cancelled);
    a->op.with_worker = false;
    if (goes_on && request_needs_media(&a->request))
        give_to_worker(a, WORK_MEDIA, load_and_submit);
    else if (goes_on && request_needs_compiling(&a->request))
        give_to_worker(a, WORK_GRAMMAR, compile_and_submit);
    else
        a->op.pump(&a->op);
}

/* --- events -------------------------------------------------------------------------------------*/
static void begin_call(buf *out, str name)
{
    char id[REPLY_ID_MAX];
    reply_make_id(id, sizeof id, "call_", 24);
    buf_printf(out, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", out->n ? "," : "", id);
    buf_put_json_string(out, name);
    buf_puts(out, ",\"arguments\":\"");
}

static void on_event(void *choice, const chat_event *ev)
{
    server_choice *c = choice;
    switch (ev->kind) {
    case CHAT_EVENT_REASONING: buf_put_json_text(&c->part[REASONING], ev->text); break;
    case CHAT_EVENT_CONTENT: buf_put_json_text(&c->part[TEXT], ev->text); break;
    case CHAT_EVENT_CALL_NAME: begin_call(&c->part[CALLS], ev->text); break;
    case CHAT_EVENT_CALL_ARGS: buf_put_json_text(&c->part[CALLS], ev->text); break;
    case CHAT_EVENT_CALL_DONE: buf_puts(&c->part[CALLS], "\"}}"); break;
    default: break;
    }
}

static void on_token(server_choice *c, const tandem_token *x)
{
    buf *ids = &c->part[IDS];
    buf_printf(ids, "%s%d", ids->n ? "," : "", x->id);
    if (x->logprobs) reply_put_logprobs(&c->part[LOGPROBS], c->reply->tok, x, c->request->ask.logprobs, true);
}

static void nothing(reply *r, const char *model) { (void)r, (void)model; }

static const reply_format format = {.open = nothing, .on_event = on_event, .on_token = on_token, .every_token = true};

static void put_part(buf *out, const char *before, buf *part, const char *after)
{
    buf_puts(out, before);
    if (part->n) buf_put(out, part->p, part->n);
    buf_puts(out, after);
    out->failed |= part->failed;
}

/* Puts ids, text, reasoning and log-probabilities. */
static void put_parts(const answer *a, buf *out, bool whole)
{
    buf *part = (buf *)a->choice.part;
    put_part(out, ",\"ids\":[", &part[IDS], "]");
    if (a->text) put_part(out, ",\"text\":\"", &part[TEXT], "\"");
    if (a->text && part[REASONING].n) put_part(out, ",\"reasoning\":\"", &part[REASONING], "\"");
    if (a->request.ask.logprobs >= 0) put_part(out, ",\"logprobs\":[", &part[LOGPROBS], "]");
    if (!whole || !a->request.chat || !a->text) return;
    put_part(out, ",\"message\":{\"role\":\"assistant\",\"content\":\"", &part[TEXT], "\"");
    if (part[REASONING].n) put_part(out, ",\"reasoning_content\":\"", &part[REASONING], "\"");
    if (part[CALLS].n) put_part(out, ",\"tool_calls\":[", &part[CALLS], "]");
    buf_putc(out, '}');
}

static void write_tokens(answer *a)
{
    buf *part = a->choice.part;
    if (!a->stream || (!part[IDS].n && !part[TEXT].n && !part[REASONING].n)) return;
    put_parts(a, event_begin(&a->op, "token"), false);
    event_end(&a->op);
    buf_clear(&part[IDS]);
    buf_clear(&part[TEXT]);
    buf_clear(&part[REASONING]);
    buf_clear(&part[LOGPROBS]);
}

static void write_accepted(answer *a)
{
    tandem_progress p;
    if (a->accepted || !a->choice.job || !tandem_job_admitted(a->choice.job)) return;
    a->accepted = true;
    tandem_job_progress(a->choice.job, &p);
    buf_printf(event_begin(&a->op, "accepted"), ",\"prompt_tokens\":%d,\"cached_tokens\":%d,\"seed\":%llu",
               p.prompt_tokens, p.cached_tokens, (unsigned long long)a->request.ask.seed);
    event_end(&a->op);
}

/* Writes the final line of a response that ended, or was cancelled before it ran (u NULL). */
static void write_done(answer *a, const char *reason, const tandem_usage *u)
{
    static const tandem_usage none = {.route_reason = ""};
    buf                      *out  = event_begin(&a->op, "done");
    if (!u) u = &none;
    buf_printf(out, ",\"reason\":\"%s\"", reason);
    if (!a->stream && a->opened) put_parts(a, out, true);
    if (a->stream && a->choice.part[CALLS].n) put_part(out, ",\"tool_calls\":[", &a->choice.part[CALLS], "]");
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"cached_tokens\":%d}", u->prompt_tokens,
               u->completion_tokens, u->cached_tokens);
    buf_printf(out, ",\"timings\":{\"queue_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f}", u->queue_s * 1e3,
               u->prefill_s * 1e3, u->decode_s * 1e3);
    buf_printf(out, ",\"spec\":{\"mode\":\"%s\",\"drafted\":%lld,\"accepted\":%lld}", tandem_method_name(u->route),
               (long long)u->spec.drafted, (long long)u->spec.accepted);
    event_end(&a->op);
    a->op.ended = true;
}

static void write_end(answer *a, const tandem_result *r)
{
    if (a->op.name[1][0] && tandem_job_admitted(a->choice.job))
        live_sessions_note(&a->op.d->sessions, "", a->op.name[1], a->choice.job, &a->request.ask);
    const char *reason = choice_finish_reason(&a->choice);
    err         e      = {.code = (err_code)r->error.code};
    if (r->finish == TANDEM_FINISH_CANCELLED) {
        task_note_cancelled(a->op.d, &a->op);
        write_done(a, "cancelled", &r->usage);
    } else if (r->finish == TANDEM_FINISH_TIMEOUT) {
        command_error why;
        command_fail(&why, "timeout", NULL, "the request timed out after %d tokens", r->usage.completion_tokens);
        op_fail(&a->op, &why);
    } else if (reason) {
        write_done(a, reason, &r->usage);
    } else {
        snprintf(e.text, sizeof e.text, "%s", r->error.text);
        op_fail_engine(&a->op, &e);
    }
}

/* --- the operation ------------------------------------------------------------------------------*/
static void poll_job(answer *a)
{
    write_accepted(a);
    while (!a->choice.result && !op_must_pause(&a->op)) {
        int n = choice_poll(&a->choice, POLL);
        write_accepted(a);
        write_tokens(a);
        if (n < POLL) break;
    }
    if (a->choice.result) write_end(a, a->choice.result);
}

static void pump(daemon_op *op)
{
    answer       *a = (answer *)op;
    daemon_state *d = op->d;
    if (op->ended || op->with_worker) return;
    if (a->choice.job) {
        if (atomic_load(&op->cancelled)) tandem_cancel(a->choice.job);
        poll_job(a);
    } else if (a->why.status) {
        op_fail_server(op, &a->why);
    } else if (a->failed.code) {
        op_fail_snapshot(op, &a->failed);
    } else if (a->mismatch.code) {
        op_fail(op, &a->mismatch);
    } else if (atomic_load(&op->cancelled)) {
        task_note_cancelled(d, op);
        write_done(a, "cancelled", NULL);
    } else if (!a->read && op_waits_for_name(op)) {
        return;
    } else if (!a->read && d->state == ENGINE_OPEN && !task_parks(d, op)) {
        a->read = true;
        give_to_worker(a, WORK_QUICK, read_and_submit);
    } else if (a->read) { /* the work was skipped, at the end of the daemon_state */
        command_error why;
        command_fail(&why, "shutting_down", NULL, "the daemon is shutting down");
        op_fail(op, &why);
    }
}

static void release(daemon_op *op)
{
    answer *a = (answer *)op;
    if (a->opened) {
        choice_deinit(&a->choice);
        reply_deinit(&a->reply);
    }
    request_forget(&a->request);
    op->d->n_generating--;
}

static bool has_room(const daemon_state *d, command_error *why)
{
    tandem_info info = {.max_lanes = 1};
    if (d->engine) tandem_get_info(d->engine, &info);
    return d->n_generating < info.max_lanes + d->opt->max_waiting ||
           command_fail(why, "busy", NULL, "%d requests run and wait; try again later", d->n_generating);
}

bool answer_start(daemon_state *d, const command *c, size_t line_bytes, command_error *why)
{
    bool raw = false, text = true, stream = true, unpark = false;
    char name[2][TANDEM_SESSION_NAME + 1] = {"", ""};
    buf  body;
    int  endpoint;
    if (!command_bool(c, "raw", &raw, why) || !command_bool(c, "text", &text, why) ||
        !command_bool(c, "stream", &stream, why) || !command_bool(c, "unpark", &unpark, why))
        return false;
    if (!op_read_name(c, "from", name[0], why) || !op_read_name(c, "save", name[1], why)) return false;
    if (!unpark && (d->state != ENGINE_OPEN || task_parks(d, NULL)))
        return command_fail(why, "parked", NULL, "the model is parked");
    if (!has_room(d, why)) return false;
    buf_init(&body, 2 * (size_t)DAEMON_MAX_LINE);
    if (!put_body(&body, c, raw, &endpoint, why)) {
        buf_deinit(&body);
        return false;
    }
    answer *a       = op_new(d, c, sizeof *a, pump);
    a->op.item.done = on_read;
    a->op.release   = release;
    a->reply.format = &format;
    a->stream       = stream;
    a->text         = text;
    a->op.unpark    = unpark;
    a->least_shared = endpoint == FIELD_CHAT ? 16 : INT32_MAX; /* a chat may write its history anew */
    memcpy(a->op.name, name, sizeof name);
    request_init(&a->request, endpoint, &body);
    a->op.held_bytes = line_bytes;
    d->held_bytes += line_bytes;
    d->n_generating++;
    pump(&a->op);
    return true;
}
