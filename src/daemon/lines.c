/* The older line protocol: one command at a time. Status lines go to the output; token ids go to the stream descriptor
 * as int32, and each command that has a stream ends it with exactly one -1. */
#include "base/file.h"
#include "base/mem.h"
#include "daemon/inside.h"
#include "daemon/lines_command.h"
#include "sched/engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

enum { MAX_STATUS = 1 << 14 };
static const int32_t end_mark = -1;

typedef struct {
    daemon_io                  *io;
    const daemon_lines_options *opt;
    tandem                     *engine; /* NULL: parked */
    char                        fingerprint[DAEMON_FINGERPRINT];
    bool                        quit;
    tok_ids                     text; /* the last prompt and its response, for SNAPSHOT */
    int32_t                     n_prompt;
} line_server;

/* One generation. */
typedef struct {
    tok_ids     prompt;
    tandem_job *job;
    FILE       *out;           /* the file of generate; NULL: the stream */
    uint32_t    n;             /* tokens so far */
    bool        stream_closed; /* the reader of the stream left */
    bool        failed;        /* the output file cannot be written */
    int32_t     n_restored;    /* RESTORE: tokens of the snapshot */
    size_t      n_continued;   /* RESTORE: as in tandem_request */
} generation;

__attribute__((format(printf, 2, 3))) static void put_status(line_server *s, const char *fmt, ...)
{
    char    text[MAX_STATUS];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text - 1, fmt, ap);
    va_end(ap);
    if (n > (int)sizeof text - 2) n = (int)sizeof text - 2;
    text[n] = '\n';
    daemon_io_put(s->io, (str){text, (size_t)n + 1});
    daemon_io_write(s->io);
}

static bool is_over(const line_server *s) { return s->quit || daemon_io_signals() || s->io->out < 0; }

/* Writes to the stream; waits while the pipe is full. Returns false when its reader left, or at a signal. */
static bool write_stream(const line_server *s, const void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t k = write(s->opt->stream_fd, (const char *)p + at, n - at);
        if (k < 0 && errno == EINTR && !daemon_io_signals()) continue;
        if (k <= 0) return false;
        at += (size_t)k;
    }
    return true;
}

static void end_stream(const line_server *s)
{
    if (s->opt->stream_fd >= 0) write_stream(s, &end_mark, sizeof end_mark);
}

/* Reports an error; closes the stream of commands that have one. */
static void refuse(line_server *s, const char *word, bool streams)
{
    if (streams) end_stream(s);
    put_status(s, "err %s", word);
}

/* --- files of ids -------------------------------------------------------------------------------*/
/* Reads the ids of a prompt; counted: a u32 count comes first. Returns false when there are none, or wrong ones. */
static bool read_prompt(line_server *s, const lines_command *c, tok_ids *out)
{
    file_map m       = {0};
    bool     counted = c->kind == LINES_GENERATE;
    if (!file_map_open(&m, c->path, NULL)) return false;
    size_t   skip = counted ? sizeof(uint32_t) : 0, n = m.n < skip ? 0 : (m.n - skip) / sizeof(int32_t);
    uint32_t count = (uint32_t)n;
    if (counted && m.n >= skip) memcpy(&count, m.p, sizeof count);
    bool ok = n && count && count <= n && count <= TANDEM_MAX_PROMPT;
    for (size_t i = 0; ok && i < count; i++) {
        int32_t id;
        memcpy(&id, m.p + skip + i * sizeof id, sizeof id);
        ok = id >= 0 && id < engine_info(s->engine)->n_vocab && tok_ids_put(out, id);
    }
    file_map_close(&m);
    return ok;
}

/* --- snapshots ----------------------------------------------------------------------------------*/
static void slot_name(int slot, char out[16]) { snprintf(out, 16, "slot-%d", slot); }

/* Saves the first n tokens of the last text. Reports the positions, or -1. inline: after a generation. */
static void save_slot(line_server *s, int slot, int32_t n, bool is_inline)
{
    char                name[16];
    tandem_session_info info;
    int32_t             n_prompt = s->n_prompt < n ? s->n_prompt : n;
    slot_name(slot, name);
    tandem_session x  = {.name = name, .ids = s->text.p, .n_ids = (size_t)n, .n_prompt = n_prompt};
    bool           ok = s->engine && n > 0 && (size_t)n <= s->text.n && tandem_session_save(s->engine, &x, &info, NULL);
    if (!is_inline) put_status(s, "[snap] slot=%d cur_pos=%d", slot, ok ? n : -1);
    put_status(s, "[snap] inline slot=%d cur_pos=%d", slot, ok ? n : -1);
}

static void free_slot(line_server *s, int slot)
{
    char name[16];
    slot_name(slot, name);
    if (s->engine && tandem_session_delete(s->engine, NULL, name, NULL))
        put_status(s, "[snap] freed slot=%d", slot);
    else
        put_status(s, "err %s", s->engine ? "empty_slot" : "target_parked");
}

static void list_slots(line_server *s)
{
    tandem_session_info *x = xnew_n(tandem_session_info, LINES_SLOTS * 4);
    size_t               n = s->engine ? tandem_sessions(s->engine, NULL, x, LINES_SLOTS * 4) : 0;
    buf                  out;
    buf_init(&out, 1 << 12);
    for (int slot = 0; slot < LINES_SLOTS; slot++) {
        char name[16];
        slot_name(slot, name);
        for (size_t i = 0; i < n && i < LINES_SLOTS * 4; i++)
            if (!strcmp(x[i].name, name)) buf_printf(&out, "%s%d", out.n ? "," : "", slot);
    }
    put_status(s, "[snap] slots=%.*s", (int)out.n, out.n ? out.p : "");
    buf_deinit(&out);
    mem_free(x);
}

/* Restores the slot of a RESTORE. Returns the word of the error; NULL: none. */
static const char *restore_slot(line_server *s, int slot, generation *g)
{
    const tok_ids         *prompt = &g->prompt;
    char                   name[16];
    tandem_session_info    info;
    tandem_session_content c;
    tandem_error           e;
    slot_name(slot, name);
    if (!tandem_session_restore(s->engine, &(tandem_session){.name = name}, &c, &info, &e))
        return e.code == TANDEM_NOT_FOUND ? "empty_slot" : "snapshot_corrupt";
    bool same      = c.ids.n <= prompt->n && !memcmp(c.ids.p, prompt->p, c.ids.n * sizeof *prompt->p);
    g->n_restored  = (int32_t)c.ids.n;
    g->n_continued = engine_continued(&c.ids, c.n_prompt, prompt->p, prompt->n);
    tandem_session_content_free(&c);
    return same ? NULL : "snapshot_mismatch";
}

/* --- generating ---------------------------------------------------------------------------------*/
static void set_sampling(tandem_request *r, const lines_command *c)
{
    r->temp              = c->sampled ? (float)c->temp : 0;
    r->top_p             = (float)c->top_p;
    r->min_p             = 0;
    r->top_k             = c->top_k;
    r->has_seed          = c->seed != 0;
    r->seed              = c->seed;
    r->repeat_penalty    = (float)c->repeat;
    r->frequency_penalty = (float)c->frequency;
    r->presence_penalty  = (float)c->presence;
}

static void keep_token(line_server *s, generation *g, int32_t id)
{
    g->n++;
    if (g->out) g->failed |= fwrite(&id, sizeof id, 1, g->out) != 1;
    if (!g->out && !g->stream_closed) g->stream_closed = !write_stream(s, &id, sizeof id);
    if (g->failed || g->stream_closed) tandem_cancel(g->job);
}

/* Runs the job. The end of the input cancels it. */
static void run_job(line_server *s, generation *g)
{
    tandem_token x[64];
    for (;;) {
        bool   ended = tandem_job_result(g->job) != NULL;
        size_t n     = tandem_poll(g->job, x, COUNT(x));
        for (size_t i = 0; i < n; i++) keep_token(s, g, x[i].id);
        if (n) continue;
        if (ended) return;
        daemon_io_wait(s->io, !s->io->rest.n && s->io->in >= 0, -1);
        if (daemon_io_signals() || s->io->in < 0 || s->io->out < 0) tandem_cancel(g->job);
    }
}

static const char *error_word(const line_server *s, tandem_code code)
{
    if (s->io->in < 0 || daemon_io_signals()) return "incomplete";
    if (code == TANDEM_CONTEXT) return "context_overflow";
    if (code == TANDEM_INPUT) return "bad_args";
    return "decode_failed";
}

static bool finish_file(generation *g)
{
    bool ok = !g->failed && fseek(g->out, 0, SEEK_SET) == 0 && fwrite(&g->n, sizeof g->n, 1, g->out) == 1;
    ok      = fclose(g->out) == 0 && ok;
    g->out  = NULL;
    return ok;
}

/* Writes the end of a generation: the mark of the stream, then the status. */
static void report(line_server *s, const lines_command *c, generation *g)
{
    const tandem_result *r       = tandem_job_result(g->job);
    const tandem_usage  *u       = &r->usage;
    bool                 to_file = g->out != NULL, written = !to_file || finish_file(g);
    bool                 finished =
        r->finish != TANDEM_FINISH_ERROR && r->finish != TANDEM_FINISH_CANCELLED && r->finish != TANDEM_FINISH_TIMEOUT;
    if (!to_file && !g->stream_closed) end_stream(s);
    tok_ids_clear(&s->text);
    engine_job_text(g->job, &s->text, &s->n_prompt);
    if (finished && c->snap_slot >= 0) save_slot(s, c->snap_slot, c->snap_len, true);
    if (g->stream_closed) {
        put_status(s, "err stream_closed");
    } else if (!written) {
        put_status(s, "err write_out");
    } else if (!finished) {
        put_status(s, "err %s", error_word(s, r->error.code));
    } else {
        double rate = g->n > 1 && u->decode_s > 0 ? (g->n - 1) / u->decode_s : 0;
        char   where[LINES_MAX_PATH + 16];
        if (to_file)
            snprintf(where, sizeof where, "out=%s", c->out);
        else
            snprintf(where, sizeof where, "stream_fd=%d", s->opt->stream_fd);
        if (c->kind == LINES_RESTORE)
            put_status(
                s, "ok N=%d gen=%u prefill_s=%.3f decode_s=%.3f decode_tok_s=%.1f prefix_len=%d (RESTORE slot=%d) %s",
                u->prompt_tokens, g->n, u->prefill_s, u->decode_s, rate, g->n_restored, c->slot, where);
        else
            put_status(s, "ok N=%d gen=%u prefill_s=%.3f decode_s=%.3f decode_tok_s=%.1f %s", u->prompt_tokens, g->n,
                       u->prefill_s, u->decode_s, rate, where);
    }
}

static bool open_file(generation *g, const char *path)
{
    uint32_t none = 0;
    g->out        = fopen(path, "wb");
    return g->out && fwrite(&none, sizeof none, 1, g->out) == 1;
}

static void generate_tokens(line_server *s, const lines_command *c, generation *g)
{
    bool           streams = c->kind != LINES_GENERATE;
    const char    *word;
    tandem_request r;
    tandem_error   e;
    if (!read_prompt(s, c, &g->prompt)) {
        refuse(s, "empty_prompt", streams);
        return;
    }
    if (c->kind == LINES_RESTORE && (word = restore_slot(s, c->slot, g))) {
        refuse(s, word, true);
        return;
    }
    tandem_request_init(s->engine, &r);
    set_sampling(&r, c);
    r.ids         = g->prompt.p;
    r.n_ids       = g->prompt.n;
    r.n_continued = g->n_continued;
    r.max_tokens  = c->n;
    r.spec        = s->opt->spec;
    if (!streams && !open_file(g, c->out)) {
        refuse(s, "write_out", false);
        return;
    }
    if (!tandem_submit(s->engine, &r, &g->job, &e)) {
        refuse(s, error_word(s, e.code), streams);
        return;
    }
    run_job(s, g);
    report(s, c, g);
}

static void handle_generate(line_server *s, const lines_command *c)
{
    bool       streams = c->kind != LINES_GENERATE;
    generation g       = {0};
    if (streams && s->opt->stream_fd < 0) {
        refuse(s, "no_stream_fd", false);
    } else if (!s->engine) {
        refuse(s, "target_parked", streams);
    } else if (c->n < 1 && c->snap_slot < 0) {
        refuse(s, "bad_args", streams);
    } else {
        tok_ids_init(&g.prompt, TANDEM_MAX_PROMPT);
        generate_tokens(s, c, &g);
        tok_ids_deinit(&g.prompt);
    }
    if (g.out) fclose(g.out);
    tandem_release(g.job);
}

/* --- parking ------------------------------------------------------------------------------------*/
static bool open_engine(line_server *s, err *e)
{
    return daemon_open_engine(&s->engine, &s->opt->engine, s->io, s->fingerprint, e);
}

/* Parks or unparks the drafters. Returns whether one changed. */
static bool turn_drafters(line_server *s, bool park)
{
    uint64_t bytes = 0;
    return s->engine && daemon_turn_drafters(s->engine, park, &bytes, NULL);
}

static void handle_park(line_server *s, const lines_command *c)
{
    if (c->what & LINES_DRAFT && turn_drafters(s, true)) put_status(s, "[park] draft released");
    if (c->what & LINES_TARGET && s->engine) {
        tandem_close(s->engine);
        s->engine = NULL;
        mem_trim();
        put_status(s, "[park] target released");
    }
    end_stream(s);
}

static void handle_unpark(line_server *s, const lines_command *c)
{
    err e = {0};
    if (c->what & LINES_TARGET && !s->engine) {
        if (open_engine(s, &e))
            put_status(s, "[unpark] target restored");
        else
            fprintf(stderr, "tandem: %s\n", e.text);
    }
    if (c->what & LINES_DRAFT && turn_drafters(s, false)) put_status(s, "[unpark] draft restored");
    end_stream(s);
}

/* --- the loop -----------------------------------------------------------------------------------*/
static void handle(line_server *s, str line)
{
    lines_command c;
    lines_command_read(&c, line);
    switch (c.kind) {
    case LINES_EMPTY: break;
    case LINES_PROMPT:
    case LINES_RESTORE:
    case LINES_GENERATE: handle_generate(s, &c); break;
    case LINES_SNAPSHOT: save_slot(s, c.slot, (int32_t)s->text.n, false); break;
    case LINES_FREE_SNAPSHOT: free_slot(s, c.slot); break;
    case LINES_LIST_SLOTS: list_slots(s); break;
    case LINES_BAD_SLOT: refuse(s, "invalid_snapshot_slot", str_starts(line, "RESTORE")); break;
    case LINES_PARK: handle_park(s, &c); break;
    case LINES_UNPARK: handle_unpark(s, &c); break;
    case LINES_FREE_DRAFTER:
        put_status(s, "[drafter] freed");
        end_stream(s);
        break;
    case LINES_COMPRESS: refuse(s, "unsupported", true); break;
    case LINES_QUIT: s->quit = true; break;
    case LINES_BAD: refuse(s, "bad_args", !str_starts(line, "generate")); break;
    case LINES_UNKNOWN: refuse(s, "unknown_command", true); break;
    }
}

/* Writes the first line. Clients wait for the family's name without its minor version. */
static void put_banner(line_server *s)
{
    const tandem_info *i = engine_info(s->engine);
    size_t             n = strlen(i->family);
    if (n > 2 && strspn(i->family + n - 2, "0123456789") == 2) n--;
    if (s->opt->banner)
        put_status(s, "[%s-daemon] ready (layers=%d hidden=%d vocab=%d max_ctx=%d)", s->opt->banner, i->n_layers,
                   i->n_embd, i->n_vocab, i->n_ctx);
    else
        put_status(s, "[%.*s-daemon] ready (layers=%d hidden=%d vocab=%d max_ctx=%d)", (int)n, i->family, i->n_layers,
                   i->n_embd, i->n_vocab, i->n_ctx);
}

static void serve(line_server *s)
{
    str line;
    while (!is_over(s) && !s->io->finished) {
        daemon_io_wait(s->io, true, -1);
        for (line_kind k; !is_over(s) && (k = daemon_io_line(s->io, &line)) != LINE_NONE;)
            if (k == LINE_WHOLE)
                handle(s, line);
            else
                refuse(s, "bad_args", true);
    }
}

int daemon_run_lines(daemon_io *io, const daemon_lines_options *o)
{
    line_server s    = {.io = io, .opt = o};
    err         e    = {0};
    int         code = 0;
    tok_ids_init(&s.text, 2 * (size_t)TANDEM_MAX_PROMPT);
    if (open_engine(&s, &e)) {
        daemon_io_catch_signals(io);
        put_banner(&s);
        serve(&s);
    } else {
        fprintf(stderr, "tandem: %s\n", e.text);
        code = 1;
    }
    daemon_io_flush(io, 4);
    if (io->out < 0) {
        fprintf(stderr, "tandem: cannot write to standard output: %s\n", strerror(io->error));
        code = 1;
    }
    tandem_close(s.engine);
    tok_ids_deinit(&s.text);
    return code;
}
