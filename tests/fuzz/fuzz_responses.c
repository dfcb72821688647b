/* Reads the body of a response, a NUL, then the model's output. The body must become a conversation or an error; the
 * stream must end with the same reply as the whole one, and its pieces must add up to its texts. */
#include "marked_text.h"
#include "require.h"
#include "server/reply.h"
#include "server/responses.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool open_request(server_request *q, str body)
{
    server_error why    = {0};
    json_limits  limits = {.max_memory = 16 << 20};
    buf          b;
    buf_init(&b, 1 << 24);
    buf_put(&b, body.s, body.n);
    request_init(q, FIELD_RESPONSES, &b);
    if (!json_parse(&q->root, &q->mem, buf_str(&q->body), &limits, NULL) || q->root->kind != JSON_OBJECT) return false;
    if (fields_read(&q->f, &fields_generate, q->root, FIELD_RESPONSES, &why) && responses_translate(q, &why) &&
        responses_read(q, &why))
        return true;
    REQUIRE(why.status >= 400 && why.message[0]);
    return false;
}

static void render(const chat *c)
{
    chat_options o = {.format = &gemma4_format, .revision = GEMMA4_VLLM_0617, .add_generation_prompt = true};
    buf          text;
    err          e = {0};
    buf_init(&text, 1 << 26);
    REQUIRE(chat_render_text(&text, c, &o, &e) || e.text[0]);
    buf_deinit(&text);
}

/* The output for one response, with its ids made equal. */
static void tell(const server_request *q, str text, bool stream, size_t piece, buf *out)
{
    reply         r;
    server_choice c;
    marked_text   m;
    tandem_result result = {.finish = text.n % 2 ? TANDEM_FINISH_STOP : TANDEM_FINISH_LENGTH};
    reply_init(&r, &reply_responses, q, NULL, "m");
    r.stream = stream;
    choice_init(&c, &r, 0);
    marked_text_init(&m, c.events.parser);
    if (stream) reply_begin(&c);
    for (size_t at = 0; at < text.n; at += piece) {
        marked_text_put(&m, (str){text.s + at, text.n - at < piece ? text.n - at : piece});
        if (stream) r.format->flush(&c);
    }
    marked_text_end(&m);
    REQUIRE(chat_stream_finish(&c.events, NULL));
    c.result = &result;
    if (stream) {
        reply_end(&c, &c, 1, true);
        r.format->done(&r, &c, 1);
    } else {
        r.format->put_whole(&r, &c, 1);
    }
    REQUIRE(!reply_lost(&r, &c, 1));
    for (char *at = r.out.p; (at = memmem(at, (size_t)(r.out.p + r.out.n - at), r.tail.p, r.tail.n));)
        memset(at, 'X', r.tail.n);
    buf_put(out, r.out.p, r.out.n);
    choice_deinit(&c);
    reply_deinit(&r);
}

static void put(buf *out, const json_value *v)
{
    json_writer w;
    json_writer_init(&w, out);
    if (v) json_put_value(&w, v);
}

static str string(const json_value *v, const char *key)
{
    const json_value *s = json_get(v, key);
    return s && s->kind == JSON_STRING ? s->s : (str){0};
}

/* Deltas are added up; what closes their item repeats them. */
static void take_event(const json_value *v, int64_t number, buf *joined)
{
    str               type = string(v, "type"), delta = string(v, "delta");
    const json_value *n = json_get(v, "sequence_number");
    REQUIRE(n && n->i == number);
    buf_put(joined, delta.s, delta.n);
    if (!memmem(type.s, type.n, "_text.done", 10) && !memmem(type.s, type.n, "arguments.done", 14) &&
        !memmem(type.s, type.n, "_input.done", 11))
        return;
    str all = string(v, "text");
    if (!all.s) all = string(v, "arguments");
    if (!all.s) all = string(v, "input");
    REQUIRE(str_eq(all, buf_str(joined)));
    buf_clear(joined);
}

/* Appends the output of the last event. */
static void take_stream(const buf *stream, arena *mem, buf *out)
{
    const char       *at = stream->p, *end = stream->p + stream->n, *stop;
    const json_value *v = NULL;
    buf               joined;
    buf_init(&joined, 1 << 24);
    for (int64_t n = 0; at < end; n++) {
        at   = memmem(at, (size_t)(end - at), "\ndata: ", 7);
        stop = at ? memmem(at, (size_t)(end - at), "\n\n", 2) : NULL;
        REQUIRE(at && stop && json_parse(&v, mem, (str){at + 7, (size_t)(stop - at - 7)}, NULL, NULL));
        take_event(v, n, &joined);
        at = stop + 2;
    }
    REQUIRE(!joined.n && !joined.failed);
    buf_deinit(&joined);
    put(out, json_get(json_get(v, "response"), "status"));
    put(out, json_get(json_get(v, "response"), "output"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul  = size ? memchr(data, 0, size) : NULL;
    str            body = {(const char *)data, nul ? (size_t)(nul - data) : size};
    str            text = nul ? (str){(const char *)nul + 1, size - body.n - 1} : (str){0};
    server_request q;
    if (open_request(&q, body)) {
        const json_value *v;
        buf               made[2], want, got;
        arena             mem;
        arena_init(&mem, 1 << 28);
        buf_init(&made[0], 1 << 28);
        buf_init(&made[1], 1 << 28);
        buf_init(&want, 1 << 28);
        buf_init(&got, 1 << 28);
        render(q.chat);
        q.format = &gemma4_format;
        tell(&q, text, false, 1 << 20, &made[0]);
        REQUIRE(json_parse(&v, &mem, buf_str(&made[0]), NULL, NULL));
        put(&want, json_get(v, "status"));
        put(&want, json_get(v, "output"));
        tell(&q, text, true, 1 + size % 7, &made[1]);
        take_stream(&made[1], &mem, &got);
        REQUIRE(str_eq(buf_str(&got), buf_str(&want)));
        buf_deinit(&made[0]);
        buf_deinit(&made[1]);
        buf_deinit(&want);
        buf_deinit(&got);
        arena_deinit(&mem);
    }
    request_forget(&q);
    return 0;
}
