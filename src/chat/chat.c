#include "chat/chat.h"

#include "base/mem.h"

chat *chat_new(arena *mem)
{
    chat *c = arena_try(mem, 1, sizeof *c);
    if (c) c->mem = mem;
    return c;
}

chat_message *chat_add(chat *c, chat_role role, str text)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 16;
        if (c->n == CHAT_MAX_MESSAGES) return NULL;
        chat_message *grown = arena_try(c->mem, cap, sizeof *grown);
        if (!grown) return NULL;
        if (c->n) memcpy(grown, c->message, c->n * sizeof *grown);
        c->message = grown;
        c->cap     = cap;
    }
    chat_message *m = &c->message[c->n++];
    *m              = (chat_message){.role = role};
    if (text.s) m->content = (chat_content){.kind = CHAT_STRING, .text = text};
    return m;
}

bool chat_join(arena *mem, const chat_content *c, const char *between, str *out)
{
    size_t gap = strlen(between), n = 0;
    for (size_t i = 0; i < c->n_parts; i++) n += c->part[i].text.n + gap;
    char *all = arena_try(mem, n ? n : 1, 1);
    if (!all) return false;
    *out = (str){all, 0};
    for (size_t i = 0; i < c->n_parts; i++) {
        str s = c->part[i].text;
        if (!s.n) continue;
        if (out->n) memcpy(all + out->n, between, gap);
        out->n += out->n ? gap : 0;
        memcpy(all + out->n, s.s, s.n);
        out->n += s.n;
    }
    return true;
}

void chat_apply_wishes(const chat *c, chat_options *o)
{
    if (c->thinking) o->thinking = c->thinking == CHAT_YES;
    if (c->preserve_thinking) o->preserve_thinking = c->preserve_thinking == CHAT_YES;
    if (c->add_vision_id) o->add_vision_id = c->add_vision_id == CHAT_YES;
    if (c->add_generation_prompt) o->add_generation_prompt = c->add_generation_prompt == CHAT_YES;
}

/* --- white space --------------------------------------------------------------------------------*/
static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Returns the bytes of the white space character at the start of s, or 0. */
static size_t space_at_start(str s)
{
    uint32_t c;
    int      n = s.n ? utf8_decode(s.s, s.n, &c) : 0;
    return n && is_space(c) ? (size_t)n : 0;
}

static size_t space_at_end(str s)
{
    for (size_t n = 1; n <= 3 && n <= s.n; n++) {
        uint32_t c;
        if (utf8_decode(s.s + s.n - n, n, &c) == (int)n) return is_space(c) ? n : 0;
    }
    return 0;
}

str chat_trim(str s)
{
    for (size_t n; (n = space_at_start(s)) > 0;) s = (str){s.s + n, s.n - n};
    for (size_t n; (n = space_at_end(s)) > 0;) s.n -= n;
    return s;
}
