/* The operations other than generate. Slow ones (parking, loading, tokenising) run on a worker. */
#include "base/clock.h"
#include "base/mem.h"
#include "daemon/inside.h"
#include "sched/engine.h"

#include <stdio.h>

enum { PARK_DRAFT = 1, PARK_TARGET = 2, PARK_ALL = 3 };

typedef struct {
    daemon_op op;
    buf       input;  /* text or ids of tokenize and detokenize */
    buf       output; /* members of the result: ',"key":value' */
    bool      markers;
    bool      started;
    int       what;     /* park and unpark: bits */
    bool      internal; /* loads the model for other operations: writes no line */
    buf       target;   /* cancel: JSON of the id; "*" without quotes: all */
    int       n_cancelled;
    int32_t  *ids;
    size_t    n_ids;
    tandem   *engine; /* park: the one to close; unpark: the one that was loaded. Owned */
    double    began;  /* clock_s */
    err       e;      /* code 0: no error */
} task;

static task *task_new(daemon_state *d, const command *c, void (*pump)(daemon_op *op));

static void end_with_output(task *k)
{
    buf *out = event_begin(&k->op, "result");
    buf_put(out, k->output.p, k->output.n);
    out->failed |= k->output.failed;
    event_end(&k->op);
    k->op.ended = true;
}

static void release(daemon_op *op)
{
    task *k = (task *)op;
    buf_deinit(&k->input);
    buf_deinit(&k->output);
    buf_deinit(&k->target);
    mem_free(k->ids);
    tandem_close(k->engine);
}

static void on_done(work_item *item)
{
    task *k           = (task *)item;
    k->op.with_worker = false;
    if (item->skipped) err_set(&k->e, ERR_UNAVAILABLE, "the daemon is shutting down");
}

static void give_to_worker(task *k, work_kind kind, void (*run)(work_item *item))
{
    k->started        = true;
    k->began          = clock_s();
    k->op.with_worker = true;
    k->op.item.kind   = kind;
    k->op.item.run    = run;
    k->op.item.done   = on_done;
    work_put(k->op.d->work, &k->op.item);
}

/* --- cancel and quit ----------------------------------------------------------------------------*/
static bool is_target(const task *k, const daemon_op *op)
{
    return op->kind == OP_GENERATE && !op->ended &&
           (str_is(buf_str(&k->target), "*") || str_eq(buf_str(&k->target), buf_str(&op->id)));
}

/* Writes the result once the targets before it have ended. */
static void pump_cancel(daemon_op *op)
{
    task *k = (task *)op;
    for (const daemon_op *x = op->d->first; x != op; x = x->next)
        if (is_target(k, x)) return;
    buf *out = event_begin(op, "result");
    buf_printf(out, ",\"cancelled\":%s", k->n_cancelled ? "true" : "false");
    if (str_is(buf_str(&k->target), "*")) buf_printf(out, ",\"count\":%d", k->n_cancelled);
    event_end(op);
    op->ended = true;
}

void task_note_cancelled(daemon_state *d, const daemon_op *op)
{
    bool before = true;
    for (daemon_op *x = d->first; x; x = x->next) {
        if (x == op) before = false;
        if (!before && x->kind == OP_CANCEL && is_target((task *)x, op)) ((task *)x)->n_cancelled++;
    }
}

static void put_id(buf *out, const json_value *v)
{
    json_writer w;
    json_writer_init(&w, out);
    json_put_value(&w, v);
}

static bool start_cancel(daemon_state *d, const command *c, command_error *why)
{
    const json_value *target = json_find(c->root, "target");
    if (!target || (target->kind != JSON_STRING && target->kind != JSON_INT))
        return command_fail(why, "bad_request", "target", "'target' must be the id of an operation, or \"*\"");
    task *k = task_new(d, c, pump_cancel);
    buf_init(&k->target, 1 << 16);
    if (target->kind == JSON_STRING && str_is(target->s, "*"))
        buf_putc(&k->target, '*');
    else
        put_id(&k->target, target);
    for (daemon_op *x = d->first; x != &k->op; x = x->next)
        if (is_target(k, x)) {
            atomic_store(&x->cancelled, true);
            x->pump(x);
        }
    return true;
}

void daemon_cancel_all(daemon_state *d)
{
    for (daemon_op *x = d->first; x; x = x->next)
        if (x->kind == OP_GENERATE && !x->ended) {
            atomic_store(&x->cancelled, true);
            x->pump(x);
        }
}

/* Writes the result when no other operation is open. */
static void pump_quit(daemon_op *op)
{
    if (op->d->first == op) op_result(op);
}

static bool start_quit(daemon_state *d, const command *c, command_error *why)
{
    str mode = STR("drain");
    if (!command_str(c, "mode", &mode, why)) return false;
    if (!str_is(mode, "drain") && !str_is(mode, "now"))
        return command_fail(why, "bad_request", "mode", "'mode' must be drain or now");
    task_new(d, c, pump_quit);
    d->closing = true;
    if (str_is(mode, "now")) daemon_cancel_all(d);
    return true;
}

/* --- parking ------------------------------------------------------------------------------------*/
void daemon_put_parked(const daemon_state *d, buf *out)
{
    tandem_drafter_info x[TANDEM_MAX_DRAFTERS];
    int                 n = d->engine ? tandem_drafters(d->engine, x) : 0, n_parked = 0;
    for (int i = 0; i < n; i++) n_parked += x[i].state == TANDEM_DRAFTER_PARKED;
    if (d->state != ENGINE_OPEN)
        buf_puts(out, "[\"draft\",\"target\"]");
    else
        buf_puts(out, n && n_parked == n ? "[\"draft\"]" : "[]");
}

static void park_drafters(work_item *item)
{
    task    *k     = (task *)item;
    uint64_t bytes = 0;
    daemon_turn_drafters(k->op.d->engine, true, &bytes, &k->e);
    buf_printf(&k->output, ",\"freed_bytes\":%llu", (unsigned long long)bytes);
}

static void unpark_drafters(work_item *item)
{
    task    *k     = (task *)item;
    uint64_t bytes = 0;
    daemon_turn_drafters(k->op.d->engine, false, &bytes, &k->e);
}

static void park_model(work_item *item)
{
    task       *k = (task *)item;
    tandem_info info;
    tandem_get_info(k->engine, &info);
    uint64_t bytes = info.weight_bytes + info.kv_bytes;
    daemon_turn_drafters(k->engine, true, &bytes, NULL);
    tandem_close(k->engine);
    k->engine = NULL;
    mem_trim();
    buf_printf(&k->output, ",\"freed_bytes\":%llu", (unsigned long long)bytes);
}

static void load_model(work_item *item)
{
    task         *k = (task *)item;
    daemon_state *d = k->op.d;
    daemon_open_engine(&k->engine, d->opt, d->io, d->fingerprint, &k->e);
}

bool task_parks(const daemon_state *d, const daemon_op *before)
{
    for (const daemon_op *x = d->first; x != before; x = x->next)
        if (!x->ended && x->kind == OP_PARK && ((const task *)x)->what & PARK_TARGET) return true;
    return false;
}

/* Returns whether an earlier operation that parks or unparks is open. */
static bool is_turning(const daemon_state *d, const daemon_op *before)
{
    for (const daemon_op *x = d->first; x != before; x = x->next)
        if (!x->ended && (x->kind == OP_PARK || x->kind == OP_UNPARK)) return true;
    return false;
}

/* Takes over what the worker did. */
static void settle_engine(task *k)
{
    daemon_state *d = k->op.d;
    if (d->state == ENGINE_PARKING) {
        d->state = ENGINE_PARKED;
    } else if (d->state == ENGINE_LOADING) {
        d->engine = k->engine;
        d->state  = d->engine ? ENGINE_OPEN : ENGINE_PARKED;
        k->engine = NULL;
    }
}

/* Ends an operation that needs the model, which could not be loaded. */
static void fail_load(daemon_op *op, const err *e)
{
    command_error why;
    bool          passes = e->code == ERR_UNAVAILABLE || e->code == ERR_BUSY;
    command_fail(&why, e->code == ERR_FORMAT ? "model_changed" : "load", NULL, "%s", e->text);
    if (passes)
        op_fail_engine(op, e);
    else
        op_fail(op, &why);
}

static void refuse_waiting(daemon_state *d, const err *e)
{
    for (daemon_op *x = d->first; x; x = x->next)
        if (x->kind == OP_GENERATE && !x->ended && !x->with_worker) fail_load(x, e);
}

static void end_turn(task *k)
{
    daemon_state *d = k->op.d;
    if (k->internal) {
        if (k->e.code) refuse_waiting(d, &k->e);
        k->op.ended = true;
        return;
    }
    if (k->e.code && k->op.kind == OP_UNPARK) {
        fail_load(&k->op, &k->e);
    } else if (k->e.code) {
        op_fail_engine(&k->op, &k->e);
    } else {
        if (k->op.kind == OP_UNPARK) buf_printf(&k->output, ",\"ms\":%.3f", (clock_s() - k->began) * 1e3);
        buf_puts(&k->output, ",\"parked\":");
        daemon_put_parked(d, &k->output);
        end_with_output(k);
    }
}

static void start_park(task *k)
{
    daemon_state *d = k->op.d;
    if (d->state != ENGINE_OPEN) {
        k->started = true; /* it is parked already */
        k->began   = clock_s();
        buf_puts(&k->output, ",\"freed_bytes\":0");
    } else if (k->what & PARK_TARGET) {
        d->state  = ENGINE_PARKING;
        k->engine = d->engine;
        d->engine = NULL;
        give_to_worker(k, WORK_SLOW, park_model);
    } else {
        give_to_worker(k, WORK_SLOW, park_drafters);
    }
}

static void start_unpark(task *k)
{
    daemon_state *d = k->op.d;
    if (d->state == ENGINE_OPEN) {
        give_to_worker(k, WORK_SLOW, unpark_drafters);
    } else if (k->what & PARK_TARGET) {
        d->state = ENGINE_LOADING;
        give_to_worker(k, WORK_SLOW, load_model);
    } else {
        k->started = true;
        err_set(&k->e, ERR_UNAVAILABLE, "the model is parked: unpark it first");
    }
}

static void pump_turn(daemon_op *op)
{
    task *k = (task *)op;
    if (op->ended || op->with_worker) return;
    if (!k->started) {
        bool whole = op->kind == OP_PARK && k->what & PARK_TARGET;
        /* The engine is closed once all earlier operations have ended and are freed: jobs refer to it. */
        if (whole ? op->d->first != op : is_turning(op->d, op)) return;
        op->kind == OP_PARK ? start_park(k) : start_unpark(k);
        if (op->with_worker) return;
    } else {
        settle_engine(k);
    }
    end_turn(k);
}

static bool read_what(const command *c, int *what, command_error *why)
{
    str s = STR("all");
    if (!command_str(c, "what", &s, why)) return false;
    *what = str_is(s, "all") ? PARK_ALL : str_is(s, "target") ? PARK_TARGET : str_is(s, "draft") ? PARK_DRAFT : 0;
    return *what || command_fail(why, "bad_request", "what", "'what' must be all, target or draft");
}

static bool start_turn(daemon_state *d, const command *c, command_error *why)
{
    bool wait = true;
    int  what;
    if (!read_what(c, &what, why) || !command_bool(c, "wait", &wait, why)) return false;
    if (c->op == OP_PARK && what & PARK_TARGET && !wait && d->n_generating)
        return command_fail(why, "busy", NULL, "%d requests run or wait", d->n_generating);
    task *k = task_new(d, c, pump_turn);
    k->what = what;
    return true;
}

/* Moves the last operation to the front of the list, which has others. */
static void move_to_front(daemon_state *d, daemon_op *op)
{
    daemon_op **at = &d->first;
    while (*at != op) at = &(*at)->next;
    *at      = NULL;
    d->end   = at;
    op->next = d->first;
    d->first = op;
}

void task_load_wanted(daemon_state *d)
{
    const daemon_op *x = d->first;
    while (x && (x->ended || !x->unpark)) x = x->next;
    if (!x || d->state != ENGINE_PARKED || is_turning(d, x)) return;
    json_value nobody = {.kind = JSON_NULL};
    task      *k      = task_new(d, &(command){.op = OP_UNPARK, .id = &nobody}, pump_turn);
    k->what           = PARK_ALL;
    k->internal       = true;
    move_to_front(d, &k->op); /* later parks wait for the operations that wait for it */
}

/* --- text ---------------------------------------------------------------------------------------*/
static void tokenize(work_item *item)
{
    task        *k   = (task *)item;
    tandem_ids   ids = {0};
    tandem_error e   = {0};
    if (!tandem_tokenize(k->op.d->engine, k->input.p, k->input.n, k->markers, &ids, &e))
        err_set(&k->e, (err_code)e.code, "%s", e.text);
    buf_puts(&k->output, ",\"ids\":[");
    for (size_t i = 0; i < ids.n; i++) buf_printf(&k->output, "%s%d", i ? "," : "", ids.p[i]);
    buf_putc(&k->output, ']');
    tandem_ids_free(&ids);
}

static void detokenize(work_item *item)
{
    task   *k   = (task *)item;
    tandem *t   = k->op.d->engine;
    size_t  n   = tandem_detokenize(t, k->ids, k->n_ids, k->markers, NULL, 0);
    char   *out = mem_try(n + 1);
    if (!out) {
        err_set(&k->e, ERR_UNAVAILABLE, "there is no memory for the text");
        return;
    }
    tandem_detokenize(t, k->ids, k->n_ids, k->markers, out, n + 1);
    buf_puts(&k->output, ",\"text\":");
    buf_put_json_string(&k->output, (str){out, n});
    mem_free(out);
}

static void pump_text(daemon_op *op)
{
    task *k = (task *)op;
    if (op->ended || op->with_worker) return;
    if (!k->started) /* the first call, directly after start_text: the engine is open */
        give_to_worker(k, WORK_QUICK, op->kind == OP_TOKENIZE ? tokenize : detokenize);
    else if (k->e.code)
        op_fail_engine(op, &k->e);
    else
        end_with_output(k);
}

/* Checks that the ids are token ids and copies them. */
static bool read_ids(task *k, const json_value *v, int n_vocab, command_error *why)
{
    bool ok = v && v->kind == JSON_ARRAY;
    k->ids  = ok ? mem_try_n(v->n + 1, sizeof *k->ids) : NULL;
    for (size_t i = 0; ok && k->ids && i < v->n; i++) {
        ok        = v->item[i].kind == JSON_INT && v->item[i].i >= 0 && v->item[i].i < n_vocab;
        k->ids[i] = ok ? (int32_t)v->item[i].i : 0;
    }
    k->n_ids = ok ? v->n : 0;
    if (!ok) return command_fail(why, "bad_request", "ids", "'ids' must be a list of token ids below %d", n_vocab);
    return k->ids || command_fail(why, "too_large", "ids", "there is no memory for the ids");
}

static bool start_text(daemon_state *d, const command *c, command_error *why)
{
    str  text    = {0};
    bool markers = false;
    if (d->state != ENGINE_OPEN || task_parks(d, NULL)) return command_fail(why, "parked", NULL, "the model is parked");
    if (!engine_tok(d->engine)) return command_fail(why, "unsupported", NULL, "the model has no tokenizer");
    if (!command_bool(c, "markers", &markers, why) || (c->op == OP_TOKENIZE && !command_str(c, "text", &text, why)))
        return false;
    if (c->op == OP_TOKENIZE && !text.s) return command_fail(why, "bad_request", "text", "'text' is missing");
    task room = {0};
    if (c->op == OP_DETOKENIZE && !read_ids(&room, json_find(c->root, "ids"), engine_info(d->engine)->n_vocab, why)) {
        mem_free(room.ids);
        return false;
    }
    task *k    = task_new(d, c, pump_text);
    k->ids     = room.ids;
    k->n_ids   = room.n_ids;
    k->markers = markers;
    buf_init(&k->input, DAEMON_MAX_LINE);
    buf_put(&k->input, text.s, text.n);
    return true;
}

/* --- stats and ping -----------------------------------------------------------------------------*/
static void pump_ping(daemon_op *op) { op_result(op); }

static void pump_stats(daemon_op *op)
{
    daemon_state *d   = op->d;
    buf          *out = event_begin(op, "result");
    tandem_stats  s   = {0};
    if (d->engine) tandem_get_stats(d->engine, &s);
    buf_printf(out, ",\"running\":%d,\"waiting\":%d", s.running, s.queued);
    buf_printf(out, ",\"kv_bytes\":%llu,\"kv_cached_bytes\":%llu", (unsigned long long)s.kv_bytes,
               (unsigned long long)s.kv_cached_bytes);
    buf_printf(out, ",\"prompt_tokens\":%lld,\"cached_tokens\":%lld,\"completion_tokens\":%lld",
               (long long)s.prompt_tokens, (long long)s.cached_tokens, (long long)s.completion_tokens);
    buf_puts(out, ",\"parked\":");
    daemon_put_parked(d, out);
    event_end(op);
    op->ended = true;
}

/* --- start --------------------------------------------------------------------------------------*/
static task *task_new(daemon_state *d, const command *c, void (*pump)(daemon_op *op))
{
    task *k       = op_new(d, c, sizeof *k, pump);
    k->op.release = release;
    buf_init(&k->output, (size_t)8 * DAEMON_MAX_LINE);
    return k;
}

bool task_start(daemon_state *d, const command *c, size_t line_bytes, command_error *why)
{
    daemon_op **last = d->end;
    bool        ok   = true;
    switch (c->op) {
    case OP_CANCEL: ok = start_cancel(d, c, why); break;
    case OP_QUIT: ok = start_quit(d, c, why); break;
    case OP_PARK:
    case OP_UNPARK: ok = start_turn(d, c, why); break;
    case OP_TOKENIZE:
    case OP_DETOKENIZE: ok = start_text(d, c, why); break;
    case OP_SNAPSHOT_SAVE:
    case OP_SNAPSHOT_LOAD:
    case OP_SNAPSHOT_LIST:
    case OP_SNAPSHOT_DROP: ok = snapshot_start(d, c, why); break;
    case OP_STATS: task_new(d, c, pump_stats); break;
    default: task_new(d, c, pump_ping); break;
    }
    if (ok) {
        (*last)->held_bytes = line_bytes;
        d->held_bytes += line_bytes;
        (*last)->pump(*last); /* before the next line: later operations wait for earlier ones */
    }
    return ok;
}
