/* Qwen's foreign bytes: a config.json, a request rendered by every revision, and an answer. Numbers that are accepted
 * are in range; a prompt has as many markers as its structure; an answer gives the same events however it is cut, its
 * arguments are JSON, and its letters come out as often as they went in. */
#include "base/mem.h"
#include "chat/qwen35_inside.h"
#include "model/qwen35_config.h"
#include "require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* --- config -------------------------------------------------------------------------------------*/
static void check_config(str text)
{
    checkpoint    cp   = {0};
    err           e    = {0};
    json_limits   lim  = {.max_memory = 64 << 20};
    tensor_table *none = tensor_table_new(0);
    qwen35_config c;
    arena_init(&cp.json, 64 << 20);
    cp.tensors = none;
    if (none && json_parse(&cp.config, &cp.json, text, &lim, &e)) {
        if (!qwen35_config_read(&c, &cp, &e)) {
            REQUIRE(e.text[0]);
        } else {
            REQUIRE(c.n_layers >= 1 && c.n_layers <= QWEN35_MAX_LAYERS && c.n_embd >= 8 && c.n_vocab >= 2);
            REQUIRE(c.n_heads % c.n_kv_heads == 0 && c.n_v_heads % c.n_k_heads == 0 && c.head_dim % 8 == 0);
            REQUIRE(c.delta_dim % 8 == 0 && c.delta_dim <= DELTA_MAX_HEAD && c.n_taps >= 2 &&
                    c.n_taps <= DELTA_MAX_TAPS);
            REQUIRE(c.n_rot >= 2 && c.n_rot % 2 == 0 && c.n_rot <= c.head_dim && c.n_used <= QWEN35_MAX_USED);
        }
    }
    arena_deinit(&cp.json);
    tensor_table_free(none);
}

/* --- prompts ------------------------------------------------------------------------------------*/
static bool count_segment(void *ctx, const chat_segment *s, err *e)
{
    (void)e;
    *(size_t *)ctx += s->kind != CHAT_SEG_TEXT;
    return true;
}

static void check_prompt(str text, uint8_t f)
{
    arena             mem;
    chat             *c;
    const json_value *v;
    err               e = {0};
    arena_init(&mem, 1 << 26);
    REQUIRE(qwen35_detect(text).revision < QWEN35_REVISIONS);
    if (json_parse(&v, &mem, text, NULL, &e) && chat_parse(&c, &mem, v, &e))
        for (int r = 0; r < QWEN35_REVISIONS; r++) {
            size_t       markers[2] = {0};
            chat_options o          = {.format                = &qwen35_format,
                                       .revision              = r,
                                       .thinking              = f & 1,
                                       .preserve_thinking     = f & 2,
                                       .add_generation_prompt = f & 4,
                                       .exact                 = f & 8};
            chat_apply_wishes(c, &o);
            bool ok[2];
            for (int i = 0; i < 2; i++) ok[i] = qwen35_render(c, &o, &(chat_sink){count_segment, &markers[i]}, &e);
            REQUIRE(ok[0] == ok[1] && markers[0] == markers[1] && (ok[0] || e.text[0]));
        }
    arena_deinit(&mem);
}

/* --- answers ------------------------------------------------------------------------------------*/
typedef struct {
    buf  text, args;
    bool in_call;
    int  last;
} events;

static void note(void *ctx, const chat_event *ev)
{
    events *x = ctx;
    if ((int)ev->kind != x->last) buf_printf(&x->text, "\n%d:", (int)ev->kind);
    x->last = (int)ev->kind;
    if (ev->kind == CHAT_EVENT_CALL_NAME) {
        REQUIRE(!x->in_call && ev->text.n);
        x->in_call = true;
    }
    if (ev->kind == CHAT_EVENT_CALL_ARGS) {
        REQUIRE(x->in_call);
        buf_put(&x->args, ev->text.s, ev->text.n);
    }
    buf_put(&x->text, ev->text.s, ev->text.n);
    if (ev->kind != CHAT_EVENT_CALL_DONE) return;
    arena             mem;
    const json_value *v;
    err               e = {0};
    arena_init(&mem, (size_t)1 << 28);
    REQUIRE(x->in_call && json_parse(&v, &mem, buf_str(&x->args), NULL, &e) && v->kind == JSON_OBJECT);
    arena_deinit(&mem);
    buf_clear(&x->args);
    x->in_call = false;
}

static chat *typed(void)
{
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"?\"}],\"tools\":[{\"type\":"
                                  "\"function\",\"function\":{\"name\":"
                                  "\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":"
                                  "\"integer\"},\"o\":{\"type\":"
                                  "\"object\"}}}}}]}";
    static arena      mem;
    static chat      *c;
    err               e;
    if (!c) {
        const json_value *v;
        arena_init(&mem, 1 << 20);
        REQUIRE(json_parse(&v, &mem, str_of(request), NULL, &e) && chat_parse(&c, &mem, v, &e));
    }
    return c;
}

/* Bytes 1 to Q_MARKERS are markers, byte 8 the start of a tag; the rest is text. Texts are cut before every byte if
 * `cut`, but not within a character. */
static void run_answer(events *x, str in, uint8_t f, bool cut)
{
    err                e   = {0};
    chat_parse_options opt = {
        .format = &qwen35_format, .on_event = note, .ctx = x, .in_thought = f & 16, .chat = f & 32 ? typed() : NULL};
    chat_parser *p = qwen35_parser_ops.create(&opt);
    buf          piece;
    *x = (events){.last = -1};
    buf_init(&x->text, (size_t)1 << 28);
    buf_init(&x->args, (size_t)1 << 28);
    buf_init(&piece, (size_t)1 << 24);
    for (size_t i = 0; i <= in.n; i++) {
        uint8_t c      = i < in.n ? (uint8_t)in.s[i] : 1;
        bool    marker = i == in.n || (c && c <= Q_MARKERS);
        if (!marker) buf_put(&piece, c == 8 ? "<parameter=" : &in.s[i], c == 8 ? 11 : 1);
        if (!marker && (!cut || utf8_open_tail(piece.p, piece.n))) continue;
        qwen35_parser_put_text(p, buf_str(&piece));
        buf_clear(&piece);
        if (marker && i < in.n) qwen35_parser_put_marker(p, (qwen35_marker)(c - 1));
    }
    REQUIRE(p->ops->finish(p, &e) && !x->text.failed && !x->args.n && !x->in_call);
    p->ops->destroy(p);
    buf_deinit(&piece);
}

static void check_answer(str in, uint8_t f)
{
    events a, b;
    int    count[256] = {0};
    run_answer(&a, in, f, false);
    run_answer(&b, in, f, true);
    REQUIRE(str_eq(buf_str(&a.text), buf_str(&b.text)));
    for (size_t i = 0; i < in.n; i++) count[(uint8_t)in.s[i]]++;
    for (size_t i = 0; i < a.text.n; i++) count[(uint8_t)a.text.p[i]]--;
    bool json = in.n && (memchr(in.s, '{', in.n) || memchr(in.s, '\\', in.n)); /* a call in JSON may drop members */
    for (const char *c = "GHIJKLMOPQRSUVWXYZ"; *c && !json; c++) REQUIRE(count[(uint8_t)*c] <= 0);
    buf_deinit(&a.text);
    buf_deinit(&a.args);
    buf_deinit(&b.text);
    buf_deinit(&b.args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 1 << 16) return 0;
    str text = {(const char *)data + 1, size - 1};
    if (data[0] & 64)
        check_config(text);
    else if (data[0] & 128)
        check_prompt(text, data[0]);
    else
        check_answer(text, data[0]);
    return 0;
}
