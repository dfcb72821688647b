/* Renders a request, or a conversation made of the input's bytes. It must be refused or rendered, and the prompt must
 * have exactly the markers of its structure, whatever the texts contain. The first byte chooses options and format.
 * The input is also read as a template. */
#include "base/inside.h"
#include "base/mem.h"
#include "chat/gemma4_inside.h"
#include "require.h"
#include "tok/inside.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BUILT = 1, SMALL = 4, THINKING = 8, PRESERVE = 16, PROMPT = 32, EXACT = 64 };

static const tok *demo(void)
{
    static tok *t;
    err         e;
    REQUIRE(t || tok_from_json(&t, TANDEM_ROOT "/tests/golden/demo/tokenizer.json", &gemma4_tokens, &e));
    return t;
}

/* --- a conversation from bytes ------------------------------------------------------------------*/
typedef struct {
    const uint8_t *p, *end;
    arena         *mem;
} source;

static uint8_t take(source *s) { return s->p < s->end ? *s->p++ : 0; }

/* Up to 63 bytes; bytes 1 to 17 stand for markers written out. */
static str take_str(source *s)
{
    buf b;
    buf_init(&b, 4096);
    for (int n = take(s) & 63; n > 0; n--) {
        uint8_t c = take(s);
        if (c && c <= GEMMA4_MARKERS) {
            str name = gemma4_marker_name((gemma4_marker)(c - 1));
            buf_put(&b, name.s, name.n);
        } else {
            buf_putc(&b, (char)c);
        }
    }
    str copy = {arena_str(s->mem, buf_str(&b)), b.n};
    buf_deinit(&b);
    return copy;
}

static const json_value *take_value(source *s, int depth)
{
    json_value *v = arena_new(s->mem, json_value);
    v->kind       = (json_kind)(take(s) % 7);
    if (depth > 4 && v->kind >= JSON_ARRAY) v->kind = JSON_STRING;
    if (v->kind == JSON_BOOL) v->b = take(s) & 1;
    if (v->kind == JSON_INT) v->i = (int8_t)take(s);
    if (v->kind == JSON_REAL) v->d = (int8_t)take(s) / 8.0;
    if (v->kind == JSON_STRING) v->s = take_str(s);
    if (v->kind >= JSON_ARRAY) v->n = take(s) & 3;
    if (v->kind == JSON_ARRAY) v->item = arena_new_n(s->mem, json_value, v->n + 1);
    if (v->kind == JSON_OBJECT) v->member = arena_new_n(s->mem, json_member, v->n + 1);
    for (size_t i = 0; i < v->n; i++) {
        static const char *const key[] = {"type", "properties", "required", "items", "enum", "description", "nullable"};
        const json_value        *x     = take_value(s, depth + 1);
        uint8_t                  c     = take(s);
        if (v->kind == JSON_ARRAY) v->item[i] = *x;
        if (v->kind == JSON_OBJECT) v->member[i] = (json_member){c < 7 ? str_of(key[c]) : take_str(s), *x};
    }
    return v;
}

static chat_content take_content(source *s)
{
    chat_content c = {.kind = (chat_content_kind)(take(s) % 4)};
    if (c.kind == CHAT_STRING) c.text = take_str(s);
    if (c.kind == CHAT_VALUE) c.value = take_value(s, 0);
    if (c.kind == CHAT_PARTS) {
        c.n_parts = take(s) & 3;
        c.part    = arena_new_n(s->mem, chat_part, c.n_parts + 1);
    }
    for (size_t i = 0; i < c.n_parts; i++) {
        c.part[i].kind = (chat_part_kind)(take(s) & 3);
        if (c.part[i].kind == CHAT_TEXT) c.part[i].text = take_str(s);
    }
    return c;
}

static void take_message(source *s, chat *c)
{
    chat_message *m = chat_add(c, (chat_role)(take(s) % 5), (str){0});
    uint8_t       n = take(s);
    m->content      = take_content(s);
    if (m->role == CHAT_TOOL) {
        m->has_call_id = n & 1;
        m->call_id     = take_str(s);
        m->name        = take_str(s);
    } else if (m->content.kind == CHAT_VALUE || (m->role < CHAT_USER && m->content.kind == CHAT_PARTS)) {
        m->content = (chat_content){0}; /* as chat_parse has it */
    }
    if (m->role != CHAT_ASSISTANT) return;
    m->n_calls     = n & 3;
    m->n_responses = n >> 2 & 1;
    m->call        = arena_new_n(s->mem, chat_call, m->n_calls + 1);
    m->response    = arena_new_n(s->mem, chat_response, m->n_responses + 1);
    if (n & 8) m->reasoning = take_str(s);
    for (size_t i = 0; i < m->n_calls; i++)
        m->call[i] = (chat_call){n & 16, n & 16 ? take_str(s) : (str){0}, take_str(s), take_value(s, 0)};
    for (size_t i = 0; i < m->n_responses; i++) m->response[i] = (chat_response){take_str(s), take_value(s, 0)};
}

static chat *build(source *s)
{
    chat *c    = chat_new(s->mem);
    c->n_tools = take(s) & 3;
    c->tool    = arena_new_n(s->mem, chat_tool, c->n_tools + 1);
    for (size_t i = 0; i < c->n_tools; i++)
        c->tool[i] = (chat_tool){.name        = take_str(s),
                                 .description = take_value(s, 0),
                                 .parameters  = take_value(s, 0),
                                 .response    = take(s) & 1 ? take_value(s, 0) : NULL};
    while (s->p < s->end && c->n < 64) take_message(s, c);
    return c;
}

/* --- the check ----------------------------------------------------------------------------------*/
static bool count_marker(void *ctx, const chat_segment *seg, err *e)
{
    (void)e;
    *(size_t *)ctx += seg->kind != CHAT_SEG_TEXT;
    return true;
}

static void check(const chat *c, const chat_options *o)
{
    chat_prompt p;
    buf         text;
    size_t      markers = 0, found = 0;
    err         e = {0};
    chat_prompt_init(&p, 1 << 22);
    buf_init(&text, 1 << 24);
    bool ok = gemma4_render(c, o, &(chat_sink){count_marker, &markers}, &e);
    REQUIRE(ok || e.text[0]);
    REQUIRE(chat_render_text(&text, c, o, &e) == ok);
    REQUIRE(chat_render_ids(&p, demo(), c, o, &e) == ok);
    for (size_t i = 0; i < p.ids.n; i++) {
        tok_kind_t kind = tok_kind(demo(), p.ids.p[i]);
        found += kind == TOK_CONTROL || kind == TOK_USER;
    }
    REQUIRE(!ok || found == markers);
    buf_deinit(&text);
    chat_prompt_deinit(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    arena             mem;
    chat             *c = NULL;
    const json_value *v;
    err               e;
    if (size < 2 || size > 1 << 16) return 0;
    uint8_t f = data[0];
    /* any of the revisions, the same for the same input */
    gemma4_revision rev  = (gemma4_revision)(str_hash((str){(const char *)data, size}) % GEMMA4_REVISIONS);
    chat_options    o    = {.format                = &gemma4_format,
                            .revision              = rev,
                            .empty_thought         = !(f & SMALL),
                            .thinking              = f & THINKING,
                            .preserve_thinking     = f & PRESERVE,
                            .add_generation_prompt = f & PROMPT,
                            .exact                 = f & EXACT};
    str             text = {(const char *)data + 1, size - 1};
    REQUIRE(gemma4_detect(text).revision < GEMMA4_REVISIONS);
    arena_init(&mem, 1 << 26);
    if (f & BUILT) {
        c = build(&(source){data + 1, data + size, &mem});
    } else if (json_parse(&v, &mem, text, NULL, &e) && chat_parse(&c, &mem, v, &e)) {
        chat_apply_wishes(c, &o);
    }
    if (c) check(c, &o);
    arena_deinit(&mem);
    return 0;
}
