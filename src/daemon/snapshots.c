/* The operations on snapshots: sessions of the engine (docs/sessions.md), saved and restored on a worker. */
#include "base/clock.h"
#include "base/mem.h"
#include "daemon/inside.h"

#include <stdio.h>
#include <time.h>

enum { MAX_LISTED = 4096 };

typedef struct {
    daemon_op              op;
    bool                   started;
    live_session          *text; /* for snapshot_save */
    tandem_session_info    info;
    tandem_session_content content;
    tandem_session_info   *list;
    size_t                 n_listed;
    double                 began; /* clock_s */
    tandem_error           e;     /* code 0: no error */
} snapshot;

bool op_waits_for_name(const daemon_op *op)
{
    for (const daemon_op *x = op->d->first; x != op; x = x->next)
        for (int i = 0; i < 2 && !x->ended; i++)
            for (int k = 0; k < 2; k++)
                if (op->name[i][0] && !strcmp(op->name[i], x->name[k])) return true;
    return false;
}

bool op_read_name(const command *c, const char *field, char out[TANDEM_SESSION_NAME + 1], command_error *why)
{
    str s = {0};
    err e = {0};
    if (!command_str(c, field, &s, why)) return false;
    if (!s.s) return true;
    bool fits = s.n <= TANDEM_SESSION_NAME && !memchr(s.s, 0, s.n);
    snprintf(out, TANDEM_SESSION_NAME + 1, "%.*s", fits ? (int)s.n : 0, s.s);
    return engine_session_name(out, &e) || command_fail(why, "bad_request", field, "'%s': %s", field, e.text);
}

void op_fail_snapshot(daemon_op *op, const tandem_error *e)
{
    static const char *const codes[] = {[TANDEM_INPUT] = "bad_request",         [TANDEM_NOT_FOUND] = "not_found",
                                        [TANDEM_TOO_LARGE] = "snapshot_limit",  [TANDEM_FORMAT] = "snapshot_corrupt",
                                        [TANDEM_UNAVAILABLE] = "shutting_down", [TANDEM_IO] = "io"};
    command_error            why;
    const char              *code = (size_t)e->code < COUNT(codes) && codes[e->code] ? codes[e->code] : "internal";
    if (e->code == TANDEM_UNAVAILABLE && !op->d->closing) code = "busy"; /* no memory now */
    command_fail(&why, code, NULL, "%s", e->text);
    op_fail(op, &why);
}

/* --- on a worker --------------------------------------------------------------------------------*/
static void run_save(work_item *item)
{
    snapshot      *x = (snapshot *)item;
    tandem_session s;
    live_session_describe(x->text, &s);
    s.name = x->op.name[1];
    tandem_session_save(x->op.d->engine, &s, &x->info, &x->e);
}

static void run_load(work_item *item)
{
    snapshot *x = (snapshot *)item;
    tandem_session_restore(x->op.d->engine, &(tandem_session){.name = x->op.name[0]}, &x->content, &x->info, &x->e);
}

static void run_drop(work_item *item)
{
    snapshot *x = (snapshot *)item;
    tandem_session_delete(x->op.d->engine, NULL, x->op.name[0], &x->e);
}

static void run_list(work_item *item)
{
    snapshot *x = (snapshot *)item;
    x->list     = mem_try_n(MAX_LISTED, sizeof *x->list);
    if (x->list) x->n_listed = tandem_sessions(x->op.d->engine, NULL, x->list, MAX_LISTED);
    if (x->n_listed > MAX_LISTED) x->n_listed = MAX_LISTED;
}

/* --- results ------------------------------------------------------------------------------------*/
static void put_info(buf *out, const tandem_session_info *i)
{
    buf_printf(out, "\"name\":\"%s\",\"positions\":%d,\"bytes\":%llu", i->name, i->tokens,
               (unsigned long long)i->bytes);
}

static void put_listed(buf *out, const snapshot *x)
{
    buf_puts(out, ",\"snapshots\":[");
    for (size_t i = 0; i < x->n_listed; i++) {
        buf_puts(out, i ? ",{" : "{");
        put_info(out, &x->list[i]);
        buf_puts(out, ",\"where\":\"disk\",\"used\":\"");
        clock_put_utc(out, &(struct timespec){.tv_sec = (time_t)x->list[i].used}, 0);
        buf_puts(out, "\"}");
    }
    buf_putc(out, ']');
}

static void write_result(snapshot *x)
{
    buf   *out = event_begin(&x->op, "result");
    double ms  = (clock_s() - x->began) * 1e3;
    if (x->op.kind == OP_SNAPSHOT_LIST) {
        put_listed(out, x);
    } else if (x->op.kind == OP_SNAPSHOT_DROP) {
        buf_puts(out, ",\"dropped\":true");
    } else {
        buf_putc(out, ',');
        put_info(out, &x->info);
        buf_printf(out, ",\"reusable\":%d,\"draft\":\"%s\",\"ms\":%.3f", x->info.reusable, x->info.draft, ms);
    }
    event_end(&x->op);
    x->op.ended = true;
}

static void on_done(work_item *item)
{
    snapshot *x       = (snapshot *)item;
    x->op.with_worker = false;
    if (!item->skipped) return;
    x->e.code = TANDEM_UNAVAILABLE;
    snprintf(x->e.text, sizeof x->e.text, "the daemon is shutting down");
}

/* Copies the text that is to be saved. */
static bool take_text(snapshot *x)
{
    const live_session *found = live_sessions_find(&x->op.d->sessions, "", x->op.name[0]);
    x->text                   = found ? live_session_copy(found) : NULL;
    if (x->text) return true;
    x->e.code = found ? TANDEM_UNAVAILABLE : TANDEM_NOT_FOUND;
    snprintf(x->e.text, sizeof x->e.text, found ? "there is no memory for a snapshot" : "there is no session '%s'",
             x->op.name[0]);
    return false;
}

static void start(snapshot *x)
{
    x->started      = true;
    x->began        = clock_s();
    x->op.item.kind = WORK_SLOW;
    x->op.item.done = on_done;
    switch (x->op.kind) {
    case OP_SNAPSHOT_SAVE: x->op.item.run = run_save; break;
    case OP_SNAPSHOT_LOAD: x->op.item.run = run_load; break;
    case OP_SNAPSHOT_DROP: x->op.item.run = run_drop; break;
    default: x->op.item.run = run_list; break;
    }
    if (x->op.kind == OP_SNAPSHOT_SAVE && !take_text(x)) return;
    x->op.with_worker = true;
    work_put(x->op.d->work, &x->op.item);
}

static void pump(daemon_op *op)
{
    snapshot *x = (snapshot *)op;
    if (op->ended || op->with_worker) return;
    if (!x->started) {
        if (op_waits_for_name(op)) return;
        if (op->d->state != ENGINE_OPEN || task_parks(op->d, op)) {
            command_error why;
            command_fail(&why, "parked", NULL, "the model is parked");
            op_fail(op, &why);
            return;
        }
        start(x);
        if (op->with_worker) return;
    }
    if (x->e.code) {
        op_fail_snapshot(op, &x->e);
        return;
    }
    if (op->kind == OP_SNAPSHOT_LOAD) live_sessions_put(&op->d->sessions, "", op->name[0], NULL, &x->content);
    if (op->kind == OP_SNAPSHOT_DROP) live_sessions_drop(&op->d->sessions, "", op->name[0]);
    write_result(x);
}

static void release(daemon_op *op)
{
    snapshot *x = (snapshot *)op;
    live_session_free(x->text);
    tandem_session_content_free(&x->content);
    mem_free(x->list);
}

bool snapshot_start(daemon_state *d, const command *c, command_error *why)
{
    char        name[2][TANDEM_SESSION_NAME + 1] = {"", ""};
    str         to                               = STR("disk");
    bool        saves                            = c->op == OP_SNAPSHOT_SAVE;
    const char *field                            = saves ? "session" : "name";
    if (!op_read_name(c, field, name[0], why) || !op_read_name(c, "name", name[1], why) ||
        (saves && !command_str(c, "to", &to, why)))
        return false;
    if (c->op != OP_SNAPSHOT_LIST && !name[0][0])
        return command_fail(why, "bad_request", field, "'%s' is missing", field);
    if (!str_is(to, "disk")) return command_fail(why, "bad_request", "to", "'to' must be disk");
    snapshot *x   = op_new(d, c, sizeof *x, pump);
    x->op.release = release;
    memcpy(x->op.name[0], name[0], sizeof name[0]);
    memcpy(x->op.name[1], name[1][0] ? name[1] : name[0], sizeof name[1]);
    return true;
}
