#include "load/answer.h"

#include "base/mem.h"
#include "http/parse.h"
#include "json/json.h"

enum { MAX_TREE = 16 << 20, MAX_REFUSAL = 64 << 10, MAX_SAID = 160 };

static void on_stream_event(void *ctx, str data);

void load_answer_init(load_answer *a)
{
    *a = (load_answer){0};
    sse_init(&a->events, on_stream_event, a);
    arena_init(&a->mem, MAX_TREE);
    buf_init(&a->refusal, MAX_REFUSAL);
}

void load_answer_deinit(load_answer *a)
{
    sse_deinit(&a->events);
    arena_deinit(&a->mem);
    buf_deinit(&a->refusal);
}

void load_answer_begin(load_answer *a, double due, load_gaps *gaps)
{
    a->s         = (load_sample){.due = due};
    a->gaps      = gaps;
    a->said      = NULL;
    a->status    = 0;
    a->is_stream = a->is_finished = false;
    a->wrong.code                 = ERR_NONE;
    sse_reset(&a->events);
    buf_clear(&a->refusal);
}

static bool is_wrong(const load_answer *a) { return a->wrong.code != ERR_NONE; }

/* --- errors -------------------------------------------------------------------------------------*/
static const json_value *error_message(const json_value *v)
{
    static const char *const names[] = {"error", "message", "detail"};
    for (size_t i = 0; i < COUNT(names); i++) {
        const json_value *x = json_get(v, names[i]);
        if (x && x->kind == JSON_OBJECT) x = json_get(x, "message");
        if (x && x->kind == JSON_STRING) return x;
    }
    return NULL;
}

/* Returns true for visible characters. False for control characters, spaces, line breaks, and zero-width or
 * bidirectional marks, which move or hide others. */
static bool is_plain(uint32_t cp)
{
    if (cp <= ' ' || (cp >= 0x7f && cp < 0xa0) || cp == 0xfeff) return false;
    return !((cp >= 0x200b && cp <= 0x200f) || (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2060 && cp <= 0x2069));
}

/* Writes s as one line of plain text for a terminal. */
static void put_plain(buf *out, str s)
{
    size_t from = out->n;
    for (size_t i = 0, n; i < s.n && out->n - from < MAX_SAID; i += n) {
        uint32_t cp   = 0;
        int      read = utf8_decode(s.s + i, s.n - i, &cp);
        n             = read ? (size_t)read : 1;
        if (read && is_plain(cp))
            buf_put(out, s.s + i, n);
        else if (out->n > from && out->p[out->n - 1] != ' ')
            buf_putc(out, ' ');
    }
    while (out->n > from && out->p[out->n - 1] == ' ') out->n--;
}

void load_error_text(buf *out, str body)
{
    const json_value *v;
    arena             mem;
    arena_init(&mem, MAX_TREE);
    const json_value *said = json_parse(&v, &mem, body, NULL, NULL) ? error_message(v) : NULL;
    put_plain(out, said ? said->s : body);
    arena_deinit(&mem);
}

static void read_refusal(load_answer *a, str body)
{
    buf said;
    buf_init(&said, 1024);
    load_error_text(&said, body);
    if (a->status == 200)
        err_set(&a->wrong, ERR_INPUT, "the server broke off: %.*s", (int)said.n, said.n ? said.p : "");
    else
        err_set(&a->wrong, ERR_INPUT, "HTTP %d%s%.*s", a->status, said.n ? ": " : "", (int)said.n,
                said.n ? said.p : "");
    buf_deinit(&said);
}

/* --- an event -----------------------------------------------------------------------------------*/
static bool has_text(const json_value *v)
{
    return v && ((v->kind == JSON_STRING && v->s.n) || (v->kind == JSON_ARRAY && v->n));
}

static bool is_piece(const json_value *choice)
{
    static const char *const names[] = {"content", "reasoning_content", "reasoning", "tool_calls", "refusal"};
    const json_value        *delta   = json_get(choice, "delta");
    for (size_t i = 0; i < COUNT(names); i++)
        if (has_text(json_get(delta, names[i]))) return true;
    return has_text(json_get(choice, "text"));
}

static void note_gap(load_gaps *g, double s)
{
    if (g->n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 1024;
        void  *got = g->n < LOAD_MAX_GAPS ? mem_try_resize(g->s, cap * sizeof *g->s) : NULL;
        if (!got) return;
        g->s   = got;
        g->cap = cap;
    }
    g->s[g->n++] = s;
}

static void note_piece(load_answer *a)
{
    if (a->s.pieces++)
        note_gap(a->gaps, a->now - a->s.last);
    else
        a->s.first = a->now;
    a->s.last = a->now;
}

static int64_t count_of(const json_value *o, const char *key)
{
    const json_value *v = json_get(o, key);
    return v && v->kind == JSON_INT && v->i > 0 ? v->i : 0;
}

static void read_usage(load_sample *s, const json_value *u)
{
    const json_value *n = json_get(u, "completion_tokens");
    if (!n || n->kind != JSON_INT || n->i < 0) return;
    s->has_usage         = true;
    s->completion_tokens = n->i;
    s->prompt_tokens     = count_of(u, "prompt_tokens");
    s->cached_tokens     = count_of(json_get(u, "prompt_tokens_details"), "cached_tokens");
}

static void read_timings(load_sample *s, const json_value *t)
{
    const json_value *length = json_get(t, "acceptance_length");
    s->drafted               = count_of(t, "draft_n");
    s->accepted              = count_of(t, "draft_n_accepted");
    if (!s->cached_tokens) s->cached_tokens = count_of(t, "cache_n");
    if (length && (length->kind == JSON_REAL || length->kind == JSON_INT) && length->d > 0)
        s->acceptance_length = length->d;
}

static void read_choices(load_answer *a, const json_value *choices)
{
    bool piece = false;
    if (!choices || choices->kind != JSON_ARRAY) return;
    for (size_t i = 0; i < choices->n; i++) {
        const json_value *why  = json_get(&choices->item[i], "finish_reason");
        const json_value *text = json_get(json_get(&choices->item[i], "delta"), "content");
        piece                  = piece || is_piece(&choices->item[i]);
        if (a->said && i == 0 && text && text->kind == JSON_STRING) buf_put(a->said, text->s.s, text->s.n);
        if (why && why->kind == JSON_STRING) a->is_finished = true;
    }
    if (piece) note_piece(a);
}

static void on_stream_event(void *ctx, str data)
{
    load_answer      *a    = ctx;
    arena_mark        mark = arena_save(&a->mem);
    const json_value *v;
    err               e;
    if (is_wrong(a)) return;
    if (str_is(data, "[DONE]")) {
        a->is_finished = true;
        return;
    }
    if (!json_parse(&v, &a->mem, data, NULL, &e)) {
        err_set(&a->wrong, ERR_FORMAT, "an event is not JSON: %.200s", e.text);
        return;
    }
    const json_value *error = json_get(v, "error"), *usage = json_get(v, "usage"), *timings = json_get(v, "timings");
    if (error && error->kind != JSON_NULL) {
        read_refusal(a, data);
    } else {
        read_choices(a, json_get(v, "choices"));
        if (usage && usage->kind == JSON_OBJECT) read_usage(&a->s, usage);
        if (timings && timings->kind == JSON_OBJECT) read_timings(&a->s, timings);
    }
    arena_restore(&a->mem, mark);
}

/* --- the reply ----------------------------------------------------------------------------------*/
static bool begins_nocase(str s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.n >= n && str_is_nocase((str){s.s, n}, str_of(prefix));
}

/* Sets the error of a response that is not an uncompressed event stream. */
static void name_type(load_answer *a, const http_response *r)
{
    str type     = http_response_field(r, "content-type");
    str encoding = http_response_field(r, "content-encoding");
    buf said;
    buf_init(&said, 1024);
    a->is_stream = begins_nocase(type, "text/event-stream");
    put_plain(&said, a->is_stream ? encoding : type);
    if (!a->is_stream)
        err_set(&a->wrong, ERR_FORMAT, "the response has %s%.*s, not an event stream", said.n ? "type " : "no type",
                (int)said.n, said.n ? said.p : "");
    else if (encoding.n && !str_is_nocase(encoding, STR("identity")))
        err_set(&a->wrong, ERR_FORMAT, "the response is compressed (%.*s), which was not requested", (int)said.n,
                said.n ? said.p : "");
    buf_deinit(&said);
}

void load_answer_head(load_answer *a, const http_response *r)
{
    str where = http_response_field(r, "location");
    buf said;
    buf_init(&said, 1024);
    a->status = r->status;
    put_plain(&said, where);
    if (r->status >= 300 && r->status < 400 && said.n)
        err_set(&a->wrong, ERR_INPUT, "HTTP %d: the server redirects to %.*s", r->status, (int)said.n, said.p);
    else if (r->status == 200)
        name_type(a, r);
    buf_deinit(&said);
}

void load_answer_body(load_answer *a, str bytes, double now)
{
    err e  = {0};
    a->now = now;
    if (is_wrong(a)) return;
    if (!a->is_stream)
        buf_put(&a->refusal, bytes.s, bytes.n < MAX_REFUSAL - a->refusal.n ? bytes.n : MAX_REFUSAL - a->refusal.n);
    else if (!sse_feed(&a->events, bytes, &e))
        a->wrong = e;
}

bool load_answer_end(load_answer *a, double now, const err *why, err *e)
{
    a->s.end = now;
    if (!is_wrong(a) && a->status && a->status != 200) read_refusal(a, buf_str(&a->refusal));
    if (!is_wrong(a) && why) a->wrong = *why;
    if (!is_wrong(a) && !a->is_finished)
        err_set(&a->wrong, ERR_FORMAT, "the stream ended without a finish reason and without [DONE]");
    if (!a->s.has_usage) a->s.completion_tokens = a->s.pieces;
    if (!is_wrong(a) && !a->s.completion_tokens) err_set(&a->wrong, ERR_FORMAT, "the response is empty");
    if (!is_wrong(a)) return true;
    if (e) *e = a->wrong;
    return false;
}
