/* Reads bodies of Anthropic's Messages API. Each must be refused by the name of a field, or become a conversation in
 * which every tool result has its call, and which can be rendered or is refused with a sentence. */
#include "chat/gemma4.h"
#include "server/messages.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_refusal(const server_error *why)
{
    static const char *const field[] = {"messages", "system", "tools",        "tool_choice",
                                        "thinking", "thread", "output_config"};
    bool                     named   = false;
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) named |= str_starts(str_of(why->param), field[i]);
    assert((why->status == 400 && named && why->message[0]) || why->status == 503);
}

static bool calls(const chat_message *m, str id)
{
    for (size_t i = 0; i < m->n_calls; i++)
        if (m->call[i].has_id && str_eq(m->call[i].id, id)) return true;
    return false;
}

static void check_chat(const chat *c)
{
    const chat_message *caller = NULL;
    assert(c->n && c->message[c->n - 1].role != CHAT_ASSISTANT);
    for (size_t i = 0; i < c->n; i++) {
        const chat_message *m = &c->message[i];
        assert(m->n_calls <= CHAT_MAX_CALLS && (!m->n_calls || m->role == CHAT_ASSISTANT));
        for (size_t k = 0; k < m->n_calls; k++) assert(!m->call[k].args || m->call[k].args->kind == JSON_OBJECT);
        for (size_t k = 0; k < m->content.n_parts; k++) {
            const chat_part *part = &m->content.part[k];
            assert(part->kind == CHAT_TEXT || (part->kind == CHAT_IMAGE && part->source));
        }
        if (m->role == CHAT_TOOL) assert(caller && m->has_call_id && calls(caller, m->call_id));
        if (m->role != CHAT_TOOL) caller = m;
    }
}

static void render(const chat *c)
{
    for (gemma4_revision rev = 0; rev < GEMMA4_REVISIONS; rev++) {
        chat_options o = {
            .format = &gemma4_format, .revision = rev, .empty_thought = true, .add_generation_prompt = true};
        err e = {0};
        buf out;
        buf_init(&out, CHAT_MAX_PROMPT);
        chat_apply_wishes(c, &o);
        assert(chat_render_text(&out, c, &o, &e) ? out.n > 0 : e.text[0] != 0);
        buf_deinit(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const json_value *body;
    server_fields     f;
    server_error      why = {0};
    chat             *c   = NULL;
    arena             mem;
    arena_init(&mem, 1 << 26);
    if (json_parse(&body, &mem, (str){(const char *)data, size}, NULL, NULL) && body->kind == JSON_OBJECT &&
        fields_read(&f, &fields_generate, body, FIELD_MESSAGES, &why)) {
        if (!messages_options(&f, &mem, &why) || !messages_chat(&c, &mem, &f, &why)) {
            assert(!c);
            check_refusal(&why);
        } else {
            check_chat(c);
            render(c);
        }
    }
    arena_deinit(&mem);
    return 0;
}
