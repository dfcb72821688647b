/* Parses a model's output in one piece and in pieces cut where the input says. Both must give the same events,
 * arguments that are JSON, and every byte of text exactly once. The first byte chooses the options, the second the
 * cuts; after that, bytes 1 to 17 stand for markers. */
#include "base/mem.h"
#include "marked_text.h"
#include "require.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { IN_THOUGHT = 1, TYPED = 2, THINKING = 4 };

typedef struct {
    buf             text; /* all events, pieces of one kind joined */
    buf             args; /* arguments of the open call */
    chat_event_kind last;
    bool            any;
    int             call;
} events;

static void check_args(events *x)
{
    arena             mem;
    const json_value *v;
    err               e = {0};
    arena_init(&mem, 1 << 26);
    if (!json_parse(&v, &mem, buf_str(&x->args), NULL, &e)) {
        fprintf(stderr, "%s: %.*s\n", e.text, (int)x->args.n, x->args.p);
        abort();
    }
    REQUIRE(v->kind == JSON_OBJECT);
    arena_deinit(&mem);
    buf_clear(&x->args);
}

static void note(void *ctx, const chat_event *ev)
{
    events *x = ctx;
    bool more = x->any && ev->kind == x->last && (ev->kind != CHAT_EVENT_CALL_NAME && ev->kind != CHAT_EVENT_CALL_DONE);
    REQUIRE(ev->text.n || ev->kind == CHAT_EVENT_CALL_DONE);
    if (!more) buf_printf(&x->text, "\n[%d %d]", ev->kind, ev->kind >= CHAT_EVENT_CALL_NAME ? ev->call : 0);
    buf_put(&x->text, ev->text.s, ev->text.n);
    if (ev->kind == CHAT_EVENT_CALL_NAME) REQUIRE(ev->call == x->call);
    if (ev->kind == CHAT_EVENT_CALL_ARGS) buf_put(&x->args, ev->text.s, ev->text.n);
    if (ev->kind == CHAT_EVENT_CALL_DONE) {
        check_args(x);
        x->call++;
    }
    x->last = ev->kind;
    x->any  = true;
}

static const chat *typed(void)
{
    static const char request[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{"
        "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"},\"c\":{\"type\":\"number\"},\"d\":{"
        "\"type\":"
        "\"boolean\"},\"l\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}},\"o\":{\"type\":\"object\","
        "\"properties\":{\"a\":"
        "{\"type\":[\"integer\",\"null\"]}}}}}}}]}";
    static arena mem;
    static chat *c;
    err          e;
    if (!c) {
        const json_value *v;
        arena_init(&mem, 1 << 20);
        REQUIRE(json_parse(&v, &mem, str_of(request), NULL, &e) && chat_parse(&c, &mem, v, &e));
    }
    return c;
}

/* In pieces of one to seven bytes, or with cuts 0 in one. */
static void run(events *x, str in, int options, uint32_t cuts)
{
    err                e;
    chat_parse_options opt = {.format     = &gemma4_format,
                              .on_event   = note,
                              .ctx        = x,
                              .in_thought = options & IN_THOUGHT,
                              .thinking   = options & THINKING,
                              .chat       = options & TYPED ? typed() : NULL};
    chat_parser       *p   = gemma4_parser_ops.create(&opt);
    marked_text        m;
    marked_text_init(&m, p);
    *x = (events){0};
    buf_init(&x->text, (size_t)1 << 28);
    buf_init(&x->args, (size_t)1 << 28);
    for (size_t i = 0, n; i < in.n; i += n) {
        n    = cuts ? 1 + (cuts >> 16) % 7 : in.n;
        cuts = cuts ? cuts * 1664525u + 1013904223u : 0;
        if (n > in.n - i) n = in.n - i;
        marked_text_put(&m, (str){in.s + i, n});
    }
    marked_text_end(&m);
    REQUIRE(p->ops->finish(p, &e) && !x->text.failed);
    REQUIRE(!x->args.n);
    p->ops->destroy(p);
}

/* Checks that letters which occur in no marker and no constant come out as often as they went in. Escapes may add
 * some. */
static void check_letters(str in, str out)
{
    int count[256] = {0};
    if (in.n && memchr(in.s, '\\', in.n)) return;
    for (size_t i = 0; i < in.n; i++) count[(uint8_t)in.s[i]]++;
    for (size_t i = 0; i < out.n; i++) count[(uint8_t)out.s[i]]--;
    for (const char *c = "GHIJKLMOPQRSUVWXYZ"; *c; c++) REQUIRE(!count[(uint8_t)*c]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    buf    in;
    events whole, cut;
    if (size < 2 || size > 1 << 16) return 0;
    buf_init(&in, (size_t)1 << 24);
    for (size_t i = 2; i < size; i++) {
        str name = data[i] && data[i] <= GEMMA4_MARKERS ? gemma4_marker_name((gemma4_marker)(data[i] - 1)) : (str){0};
        if (name.n && data[i] != '\t' && data[i] != '\n')
            buf_put(&in, name.s, name.n);
        else
            buf_putc(&in, (char)data[i]);
    }
    run(&whole, buf_str(&in), data[0], 0);
    run(&cut, buf_str(&in), data[0], (data[1] + 1u) << 16);
    REQUIRE(str_eq(buf_str(&whole.text), buf_str(&cut.text)));
    check_letters(buf_str(&in), buf_str(&whole.text));
    buf_deinit(&whole.text);
    buf_deinit(&whole.args);
    buf_deinit(&cut.text);
    buf_deinit(&cut.args);
    buf_deinit(&in);
    return 0;
}
