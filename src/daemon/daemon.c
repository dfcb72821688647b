#include "daemon/daemon.h"

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/inside.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum {
    WORKERS         = 2,
    MAX_OPEN        = 2048,      /* open operations */
    MAX_HELD        = 256 << 20, /* bytes of their lines */
    MAX_PIXEL_BYTES = 1 << 30,   /* bytes of the images of open operations */
    MAX_UNSENT      = 64 << 20,  /* unsent output above which no input is read */
    OP_UNSENT       = 256 << 10, /* unsent events of one operation above which it pauses */
    MAX_EVENT       = 256 << 20,
};
static const double end_s = 4; /* how long the last lines may take after a signal */

/* --- events -------------------------------------------------------------------------------------*/
buf *event_begin(daemon_op *op, const char *type)
{
    buf *b = &op->d->line;
    buf_clear(b);
    buf_puts(b, "{\"id\":");
    buf_put(b, op->id.p, op->id.n);
    buf_printf(b, ",\"type\":\"%s\"", type);
    return b;
}

void event_end(daemon_op *op)
{
    daemon_state *d = op->d;
    buf          *b = &d->line;
    if (op->meta.n) {
        buf_puts(b, ",\"meta\":");
        buf_put(b, op->meta.p, op->meta.n);
    }
    buf_puts(b, "}\n");
    if (b->failed) { /* the line is lost: end the operation in a few bytes */
        event_begin(op, "error");
        buf_puts(b, ",\"code\":\"internal\",\"message\":\"there is no memory for an event\"}\n");
        atomic_store(&op->cancelled, true);
        op->ended = true;
    }
    if (op->put_end <= d->io->n_sent) op->unsent = 0;
    daemon_io_put(d->io, buf_str(b));
    op->unsent += b->n;
    op->put_end = d->io->n_put;
    if (b->cap > 1 << 20) buf_deinit(b);
}

bool op_must_pause(const daemon_op *op) { return op->unsent > OP_UNSENT && op->put_end > op->d->io->n_sent; }

void op_result(daemon_op *op)
{
    event_begin(op, "result");
    event_end(op);
    op->ended = true;
}

static void put_error(buf *b, const command_error *why)
{
    buf_printf(b, ",\"code\":\"%s\",\"message\":", why->code);
    buf_put_json_string(b, str_of(why->message));
    if (why->field[0]) {
        buf_puts(b, ",\"field\":");
        buf_put_json_string(b, str_of(why->field));
    }
    if (why->limit) buf_printf(b, ",\"limit\":%lld", (long long)why->limit);
    if (why->got) buf_printf(b, ",\"got\":%lld", (long long)why->got);
    if (!strcmp(why->code, "busy")) buf_puts(b, ",\"retry_after_ms\":1000");
}

void op_fail(daemon_op *op, const command_error *why)
{
    put_error(event_begin(op, "error"), why);
    event_end(op);
    op->ended = true;
}

void op_fail_server(daemon_op *op, const server_error *why)
{
    command_error x;
    bool          context = why->code && !strcmp(why->code, "context_length_exceeded");
    const char   *code    = context                                    ? "context"
                            : why->status == 429 || why->status == 503 ? "busy"
                            : why->status >= 500                       ? "internal"
                            : why->status == 413                       ? "too_large"
                                                                       : "bad_request";
    command_fail(&x, code, why->param, "%s", why->message);
    x.limit = why->n_ctx;
    x.got   = why->n_prompt_tokens;
    op_fail(op, &x);
}

void op_fail_engine(daemon_op *op, const err *e)
{
    static const char *const codes[] = {
        [ERR_INPUT] = "bad_request", [ERR_TOO_LARGE] = "bad_request", [ERR_BUSY] = "busy",
        [ERR_UNAVAILABLE] = "busy",  [ERR_CONTEXT] = "context",
    };
    command_error x;
    const char   *code = (size_t)e->code < COUNT(codes) && codes[e->code] ? codes[e->code] : "internal";
    if (e->code == ERR_UNAVAILABLE && op->d->state != ENGINE_OPEN) code = "parked";
    if (e->code == ERR_UNAVAILABLE && op->d->closing) code = "shutting_down";
    command_fail(&x, code, e->field, "%s", e->text);
    op_fail(op, &x);
}

/* Writes an error that belongs to no open operation. id: JSON, or NULL. about: the id that is open already, or NULL. */
static void put_stray_error(daemon_state *d, const json_value *id, const json_value *about, const command_error *why)
{
    json_writer w;
    buf        *b = &d->line;
    buf_clear(b);
    buf_puts(b, "{\"id\":");
    json_writer_init(&w, b);
    if (id)
        json_put_value(&w, id);
    else
        json_put_null(&w);
    buf_puts(b, ",\"type\":\"error\"");
    put_error(b, why);
    if (about) {
        buf_puts(b, ",\"about\":");
        json_writer_init(&w, b);
        json_put_value(&w, about);
    }
    buf_puts(b, "}\n");
    if (!b->failed) daemon_io_put(d->io, buf_str(b));
}

/* --- operations ---------------------------------------------------------------------------------*/
static void put_json(buf *out, const json_value *v)
{
    json_writer w;
    json_writer_init(&w, out);
    json_put_value(&w, v);
}

void *op_new(daemon_state *d, const command *c, size_t bytes, void (*pump)(daemon_op *op))
{
    daemon_op *op = xalloc(bytes);
    op->d         = d;
    op->kind      = c->op;
    op->pump      = pump;
    buf_init(&op->id, 8 * COMMAND_MAX_ID);
    buf_init(&op->meta, 2 * (size_t)DAEMON_MAX_LINE);
    put_json(&op->id, c->id);
    if (c->meta) put_json(&op->meta, c->meta);
    if (op->meta.failed) buf_clear(&op->meta);
    *d->end = op;
    d->end  = &op->next;
    d->n_open++;
    return op;
}

static void free_op(daemon_state *d, daemon_op *op)
{
    d->n_open--;
    d->held_bytes -= op->held_bytes;
    if (op->release) op->release(op);
    buf_deinit(&op->id);
    buf_deinit(&op->meta);
    mem_free(op);
}

/* Advances all operations, in the order of their lines, and frees those that have ended. Returns whether there were
 * any: others may wait for them. */
static bool pump_all(daemon_state *d)
{
    int before = d->n_open;
    for (daemon_op *op = d->first; op; op = op->next)
        if (!op->ended) op->pump(op);
    for (daemon_op **at = &d->first; *at;) {
        daemon_op *op = *at;
        if (op->ended && !op->with_worker) {
            *at = op->next;
            free_op(d, op);
        } else {
            at = &op->next;
        }
    }
    d->end = &d->first;
    while (*d->end) d->end = &(*d->end)->next;
    return d->n_open < before;
}

static bool is_open(const daemon_state *d, const json_value *id)
{
    buf  text;
    bool found = false;
    buf_init(&text, 8 * COMMAND_MAX_ID);
    put_json(&text, id);
    for (const daemon_op *op = d->first; op && !found; op = op->next)
        found = !op->ended && str_eq(buf_str(&op->id), buf_str(&text));
    buf_deinit(&text);
    return found;
}

static bool start_op(daemon_state *d, const command *c, size_t bytes, command_error *why)
{
    if (d->closing && c->op != OP_CANCEL && c->op != OP_PING)
        return command_fail(why, "shutting_down", NULL, "the daemon is shutting down");
    if (d->n_open >= MAX_OPEN || d->held_bytes > MAX_HELD)
        return command_fail(why, "busy", NULL, "%d operations are open; try again later", d->n_open);
    return c->op == OP_GENERATE ? answer_start(d, c, bytes, why) : task_start(d, c, bytes, why);
}

static void handle_line(daemon_state *d, str line)
{
    arena         mem;
    command       c;
    command_error why = {0};
    arena_init(&mem, (size_t)256 << 20);
    if (!command_read(&c, &mem, line, d->io->lines.n_lines, &why)) {
        put_stray_error(d, c.id, NULL, &why);
    } else if (is_open(d, c.id)) {
        command_fail(&why, "duplicate_id", "id", "an operation with this id is open");
        put_stray_error(d, NULL, c.id, &why);
    } else if (!start_op(d, &c, line.n, &why)) {
        put_stray_error(d, c.id, NULL, &why);
    }
    arena_deinit(&mem);
}

static bool is_blank(str line)
{
    for (size_t i = 0; i < line.n; i++)
        if (line.s[i] != ' ' && line.s[i] != '\t') return false;
    return true;
}

/* Handles the lines that have arrived, as long as the client reads its output. */
static void handle_input(daemon_state *d)
{
    str           line;
    command_error why;
    for (line_kind k; daemon_io_unsent(d->io) < MAX_UNSENT && (k = daemon_io_line(d->io, &line)) != LINE_NONE;) {
        if (k == LINE_TOO_LONG) {
            command_fail(&why, "too_large", NULL, "line %lld is longer than %d bytes", (long long)d->io->lines.n_lines,
                         DAEMON_MAX_LINE);
            put_stray_error(d, NULL, NULL, &why);
        } else if (!is_blank(line)) {
            handle_line(d, line);
        }
    }
    if (d->io->finished) d->closing = true;
}

/* --- the loop -----------------------------------------------------------------------------------*/
static void put_ready(daemon_state *d)
{
    static const char *const methods[] = {"dflash", "mtp", "ngram"};
    tandem_info              info;
    buf                     *b = &d->line;
    json_writer              w;
    tandem_get_info(d->engine, &info);
    const bool has[] = {info.has_dflash, info.has_mtp, true};
    buf_clear(b);
    json_writer_init(&w, b);
    json_begin_object(&w);
    json_member_str(&w, "type", "ready");
    json_member_int(&w, "protocol", 1);
    json_member_str(&w, "version", tandem_version());
    json_member_str(&w, "model", info.name);
    json_member_str(&w, "arch", info.family);
    json_member_int(&w, "vocab", info.n_vocab);
    json_member_int(&w, "ctx", info.n_ctx);
    json_member_int(&w, "max_lanes", info.max_lanes);
    json_key(&w, "drafters");
    json_begin_array(&w);
    for (size_t i = 0; i < COUNT(methods); i++)
        if (has[i]) json_put_str(&w, str_of(methods[i]));
    json_end(&w);
    json_key(&w, "ops");
    json_begin_array(&w);
    for (int i = 0; i < OP_COUNT; i++) json_put_str(&w, str_of(command_ops[i]));
    json_end(&w);
    json_end(&w);
    buf_putc(b, '\n');
    daemon_io_put(d->io, buf_str(b));
}

static bool open_engine(daemon_state *d)
{
    err           e = {0};
    command_error why;
    if (daemon_open_engine(&d->engine, d->opt, d->io, d->fingerprint, &e) &&
        work_new(&d->work, WORKERS, daemon_io_wake, d->io, &e))
        return true;
    command_fail(&why, "load", NULL, "%s", e.text);
    put_stray_error(d, NULL, NULL, &why);
    fprintf(stderr, "tandem: %s\n", e.text);
    return false;
}

/* Ends all that runs once: after a signal, and when the client has closed the output. */
static void check_end(daemon_state *d)
{
    bool closed = d->io->out < 0;
    if (!daemon_io_signals() && !closed) return;
    if (closed && !d->code) {
        fprintf(stderr, "tandem: cannot write to standard output: %s\n", strerror(d->io->error));
        d->code = 1;
    }
    d->closing = true;
    if (!d->stop_at) d->stop_at = clock_s() + end_s;
    daemon_cancel_all(d);
}

/* Exits when a worker, such as one that writes to a disk that does not respond, has not ended in time. */
static void check_stuck(const daemon_state *d)
{
    if (!d->stop_at || clock_s() < d->stop_at || !d->first) return;
    fprintf(stderr, "tandem: an operation has not ended; exiting without it\n");
    _exit(d->code);
}

static void serve(daemon_state *d)
{
    while (!d->closing || d->first) {
        bool stuck = daemon_io_signals() || d->io->out < 0;
        daemon_io_wait(d->io, !stuck && daemon_io_unsent(d->io) < MAX_UNSENT, stuck ? 100 : -1);
        check_end(d);
        if (!daemon_io_signals() && d->io->out >= 0) handle_input(d);
        work_collect(d->work);
        do task_load_wanted(d);
        while (pump_all(d));
        daemon_io_write(d->io);
        check_stuck(d);
    }
    daemon_io_flush(d->io, daemon_io_signals() ? fmax(d->stop_at - clock_s(), 0.5) : 1e9);
    check_end(d); /* the client may have left before the last lines */
}

int daemon_run(daemon_io *io, const daemon_options *o)
{
    daemon_state d = {.io = io, .opt = o};
    d.end          = &d.first;
    d.media        = (media_access){.decoder  = decode_worker_new(decode_default_limits()),
                                    .from     = source_default_options(),
                                    .held     = &d.pixel_bytes,
                                    .max_held = MAX_PIXEL_BYTES};
    buf_init(&d.line, MAX_EVENT);
    live_sessions_init(&d.sessions);
    if (open_engine(&d)) {
        daemon_io_catch_signals(io);
        put_ready(&d);
        serve(&d);
    } else {
        d.code = 1;
        daemon_io_flush(io, end_s);
    }
    work_free(d.work);
    decode_worker_free(d.media.decoder);
    live_sessions_deinit(&d.sessions);
    tandem_close(d.engine);
    buf_deinit(&d.line);
    return d.code;
}
