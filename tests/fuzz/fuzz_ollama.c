/* Reads the body of Ollama's /api/chat or /api/generate, a NUL, then the model's output. The body must become that of a
 * chat completion or an error; the lines of a stream, joined, must be the whole reply. The first byte chooses the
 * endpoint. */
#include "marked_text.h"
#include "require.h"
#include "server/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* False: it was refused, has no prompt, or is raw, which needs a tokenizer. */
static bool open_request(server_request *q, int endpoint, str text)
{
    server_error      why    = {0};
    json_limits       limits = {.max_memory = 16 << 20};
    const json_value *body, *raw;
    buf               b;
    err               e = {0};
    buf_init(&b, 1 << 24);
    buf_put(&b, text.s, text.n);
    request_init(q, endpoint, &b);
    request_name(q, "nano", NULL, 0);
    if (!json_parse(&body, &q->mem, buf_str(&q->body), &limits, NULL) || body->kind != JSON_OBJECT) return false;
    raw = json_get(body, "raw");
    if (raw && raw->kind == JSON_BOOL && raw->b) return false;
    bool ok = ollama_translate(q, &body, &why);
    REQUIRE(ok ? body->kind == JSON_OBJECT && q->ollama.model.n : why.status >= 400 && why.message[0]);
    if (!ok || q->ollama.loaded) return false;
    if (fields_read(&q->f, &fields_generate, body, q->endpoint, &why) && chat_parse(&q->chat, &q->mem, body, &e))
        return true;
    REQUIRE(why.message[0] || e.text[0]);
    return false;
}

/* Leaves out any number of turns: the system's messages and the last turn stay. */
static void check_turns(const chat *c, size_t pick)
{
    size_t       n    = ollama_turns(c);
    chat         part = *c;
    server_error why  = {0};
    if (n < 2) return;
    REQUIRE(ollama_leave_out(&part, c, 1 + pick % (n - 1), &why) && part.n < c->n && part.n > 0);
    REQUIRE(part.message[part.n - 1].role == c->message[c->n - 1].role);
    REQUIRE(ollama_turns(&part) == n - 1 - pick % (n - 1));
}

static void tell(server_request *q, str text, bool stream, size_t piece, buf *out)
{
    reply         r;
    server_choice c;
    marked_text   m;
    tandem_result result = {.finish = text.n % 2 ? TANDEM_FINISH_STOP : TANDEM_FINISH_LENGTH};
    q->ask.logprobs      = -1;
    q->n_stop            = 0;
    q->format            = &gemma4_format;
    reply_init(&r, &reply_ollama, q, NULL, "m");
    r.since  = r.opened;
    r.stream = stream;
    choice_init(&c, &r, 0);
    marked_text_init(&m, c.events.parser);
    for (size_t at = 0; at < text.n; at += piece) {
        marked_text_put(&m, (str){text.s + at, text.n - at < piece ? text.n - at : piece});
        if (stream) r.format->flush(&c);
    }
    marked_text_end(&m);
    REQUIRE(chat_stream_finish(&c.events, NULL));
    c.result = &result;
    if (stream)
        reply_end(&c, &c, 1, true);
    else
        r.format->put_whole(&r, &c, 1);
    REQUIRE(!reply_lost(&r, &c, 1));
    buf_put(out, r.out.p, r.out.n);
    choice_deinit(&c);
    reply_deinit(&r);
}

/* The texts of an answer, and its calls without their ids. */
typedef struct {
    buf content, thinking, calls;
} parts;

static void add_text(buf *to, const json_value *v)
{
    if (v && v->kind == JSON_STRING) buf_put(to, v->s.s, v->s.n);
}

static void add_line(parts *p, const json_value *v)
{
    const json_value *m = json_get(v, "message"), *calls;
    if (!m) m = v;
    REQUIRE(json_get(v, "model") && json_get(v, "created_at") && json_get(v, "done"));
    REQUIRE(json_get(m, m == v ? "response" : "content"));
    add_text(&p->content, json_get(m, m == v ? "response" : "content"));
    add_text(&p->thinking, json_get(m, "thinking"));
    calls = json_get(m, "tool_calls");
    for (size_t i = 0; calls && i < calls->n; i++) {
        json_writer w;
        REQUIRE(json_get(json_get(&calls->item[i], "function"), "arguments")->kind == JSON_OBJECT);
        json_writer_init(&w, &p->calls);
        json_put_value(&w, json_get(&calls->item[i], "function"));
    }
}

static void take(parts *p, arena *mem, const buf *text)
{
    const char       *at = text->p, *end = text->p + text->n;
    const json_value *v = NULL;
    *p                  = (parts){0};
    buf_init(&p->content, 1 << 26);
    buf_init(&p->thinking, 1 << 26);
    buf_init(&p->calls, 1 << 26);
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        REQUIRE(stop > at && json_parse(&v, mem, (str){at, (size_t)(stop - at)}, NULL, NULL));
        add_line(p, v);
        at = stop + 1;
    }
    REQUIRE(v && json_get(v, "done")->b && json_get(v, "eval_duration")->i > 0);
}

static void forget(parts *p)
{
    buf_deinit(&p->content);
    buf_deinit(&p->thinking);
    buf_deinit(&p->calls);
}

static void check_answer(server_request *q, str text, size_t piece)
{
    buf   made[2];
    parts p[2];
    arena mem;
    arena_init(&mem, 1 << 28);
    for (int stream = 0; stream < 2; stream++) {
        buf_init(&made[stream], 1 << 28);
        tell(q, text, stream, stream ? piece : 1 << 20, &made[stream]);
        take(&p[stream], &mem, &made[stream]);
    }
    REQUIRE(str_eq(buf_str(&p[0].content), buf_str(&p[1].content)));
    REQUIRE(str_eq(buf_str(&p[0].thinking), buf_str(&p[1].thinking)));
    REQUIRE(str_eq(buf_str(&p[0].calls), buf_str(&p[1].calls)));
    for (int i = 0; i < 2; i++) {
        forget(&p[i]);
        buf_deinit(&made[i]);
    }
    arena_deinit(&mem);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    int            endpoint = data[0] == 'g' ? FIELD_OLLAMA_GENERATE : FIELD_OLLAMA_CHAT;
    const uint8_t *nul      = memchr(data, 0, size);
    str            body     = {(const char *)data + 1, nul > data ? (size_t)(nul - data) - 1 : size - 1};
    str            text     = nul > data ? (str){(const char *)nul + 1, (size_t)(data + size - nul) - 1} : (str){0};
    server_request q;
    if (open_request(&q, endpoint, body)) {
        check_turns(q.chat, size);
        check_answer(&q, text, 1 + size % 7);
    }
    request_forget(&q);
    return 0;
}
