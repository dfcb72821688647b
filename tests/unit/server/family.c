/* A second chat format needs no change of the server, the engine, the grammars or the tokenizer. */
#include "server_rig.h"

#include "base/mem.h"
#include "chat/format.h"
#include "grammar/inside.h"
#include "sched/inside.h"

/* --- a toy format: "role: text" lines, and answers in capitals ------------------------------------*/
static bool toy_render(const chat *c, const chat_options *o, const chat_sink *sink, err *e)
{
    static const char *const role[] = {"system: ", "developer: ", "user: ", "assistant: ", "tool: "};
    (void)o;
    if (!sink->put(sink->ctx, &(chat_segment){.kind = CHAT_SEG_MARKER, .text = STR("<bos>")}, e)) return false;
    for (size_t i = 0; i < c->n; i++) {
        const str part[] = {str_of(role[c->message[i].role]), c->message[i].content.text, STR("\n")};
        for (size_t k = 0; k < COUNT(part); k++)
            if (part[k].n && !sink->put(sink->ctx, &(chat_segment){.kind = CHAT_SEG_TEXT, .text = part[k]}, e))
                return false;
    }
    return true;
}

typedef struct {
    chat_parser        base;
    chat_parse_options opt;
    tok_stream         stream;
} toy_parser;

static const chat_parser_ops toy_ops;

static chat_parser *toy_create(const chat_parse_options *opt)
{
    toy_parser *p = xnew(toy_parser);
    p->base.ops   = &toy_ops;
    p->opt        = *opt;
    tok_stream_init(&p->stream, opt->tok, false);
    return &p->base;
}

static void toy_destroy(chat_parser *p) { mem_free(p); }

static void put_capitals(const toy_parser *p, str text)
{
    buf b;
    buf_init(&b, 1 << 16);
    for (size_t i = 0; i < text.n; i++)
        buf_putc(&b, text.s[i] >= 'a' && text.s[i] <= 'z' ? (char)(text.s[i] - 32) : text.s[i]);
    if (b.n) p->opt.on_event(p->opt.ctx, &(chat_event){.kind = CHAT_EVENT_CONTENT, .text = buf_str(&b)});
    buf_deinit(&b);
}

static void toy_put_id(chat_parser *base, int32_t id)
{
    toy_parser *p = (toy_parser *)base;
    buf         b;
    buf_init(&b, 1 << 16);
    tok_stream_put(&p->stream, id, &b);
    put_capitals(p, buf_str(&b));
    buf_deinit(&b);
}

static bool toy_never(const chat_parser *p) { return (void)p, false; }
static bool toy_finish(chat_parser *p, err *e) { return (void)p, (void)e, true; }

static const char *const toy_markers[] = {"<|turn>", "<turn|>", "<|tool>", "<tool|>", NULL};
static const char *const toy_stops[]   = {"<turn|>", NULL};
static const tok_markup  toy_markup    = {
        .turn_close = "<turn|>", .call_open = "<|tool>", .call_prefix = "do ", .call_close = "<tool|>", .quote = "<|turn>"};
static const tok_family      toy_tokens = {.gguf_model = "gemma4",
                                           .bos        = "<bos>",
                                           .eos        = "<eos>",
                                           .markers    = toy_markers,
                                           .stops      = toy_stops,
                                           .markup     = &toy_markup};
static const chat_parser_ops toy_ops    = {.create     = toy_create,
                                           .destroy    = toy_destroy,
                                           .put_id     = toy_put_id,
                                           .in_thought = toy_never,
                                           .undecided  = toy_never,
                                           .finish     = toy_finish};
static const chat_format     toy_format = {
        .title = "Toy", .tokens = &toy_tokens, .outline = "{{ .Tools }}", .render = toy_render, .parser = &toy_ops};

/* --- tests --------------------------------------------------------------------------------------*/
/* The server renders and reads with the format of the engine's model, whatever it is. */
TEST(family_of_a_toy_is_served_over_http)
{
    static const char ask[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":24,\"temperature\":0}";
    server_rig r;
    rig_reply  chat_reply, text_reply;
    rig_init(&r, t);
    rig_start(&r);
    r.engine->m.format.format = &toy_format;
    rig_expect(&r, "POST", "/apply-template", ask, 200, "prompt", "<bos>user: Hi\n");
    const json_value *v = rig_ask_json(&r, "POST", "/v1/chat/completions", ask, &chat_reply, 200);
    const json_value *w =
        rig_ask_json(&r, "POST", "/v1/completions", "{\"prompt\":\"user: Hi\\n\",\"max_tokens\":24,\"temperature\":0}",
                     &text_reply, 200);
    str got = rig_str(v, "choices.0.message.content"), plain = rig_str(w, "choices.0.text");
    CHECK(got.n > 0);
    CHECK_INT(got.n, plain.n);
    for (size_t i = 0; i < got.n && i < plain.n; i++) {
        char c = plain.s[i];
        CHECK_INT(got.s[i], c >= 'a' && c <= 'z' ? c - 32 : c);
    }
    rig_expect(&r, "POST", "/api/show", "{\"model\":\"nano\"}", 200, "capabilities.0", "completion");
    rig_reply_deinit(&chat_reply);
    rig_reply_deinit(&text_reply);
    rig_stop(&r);
}

/* A tokenizer with another markup makes the grammars of tool calls and the guide use its tokens. */
TEST(family_markup_decides_how_calls_are_written)
{
    gguf            *g;
    tok             *k;
    grammar         *calls;
    grammar_machine *m;
    grammar_vocab   *vocab;
    guide_markers    markers;
    buf              warnings;
    err              e      = {0};
    grammar_tool     tool[] = {{.name = STR("stop")}};
    buf_init(&warnings, 256);
    if (!CHECK_OK(gguf_open(&g, test_path("models/nano/target.gguf"), &e), e)) return;
    if (!CHECK_OK(tok_from_gguf(&k, g, &toy_tokens, &e), e)) return;
    int32_t end = tok_eos(k), open = tok_find(k, STR("<|tool>")), close = tok_find(k, STR("<tool|>"));
    CHECK(tok_markup_of(k) == &toy_markup && open >= 0 && close >= 0);
    CHECK_OK(guide_markers_init(&markers, k, &end, 1, &e), e);
    CHECK(markers.call == open && markers.open == -1 && markers.close == -1);
    guide_markers_deinit(&markers);
    grammar_calls how = {.markup = tok_markup_of(k), .warnings = &warnings};
    if (CHECK_OK(grammar_tool_calls(&calls, tool, 1, &how, &e), e) &&
        CHECK_OK(grammar_vocab_new(&vocab, k, &end, 1, &e), e) &&
        CHECK_OK(grammar_machine_new(&m, calls, vocab, &e), e)) {
        grammar_state start = grammar_start(m), s = grammar_take(m, start, open);
        grammar_state named = grammar_take_bytes(m, s, STR("do stop{}")), done = grammar_take(m, named, close);
        CHECK(s >= 0 && named >= 0 && grammar_can_end(m, done));
        CHECK_INT(grammar_take_bytes(m, s, STR("call:stop{}")), GRAMMAR_NO);
        grammar_machine_free(m);
        grammar_vocab_free(vocab);
        grammar_free(calls);
    }
    buf_deinit(&warnings);
    tok_free(k);
    gguf_close(g);
}
