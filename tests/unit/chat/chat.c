/* Conversations built message by message. */
#include "chat/chat.h"
#include "chat/gemma4.h"

#include "test.h"

TEST(chat_add_keeps_the_messages_and_has_a_limit)
{
    arena mem;
    arena_init(&mem, (size_t)256 << 20);
    chat *c = chat_new(&mem);
    CHECK(chat_add(c, CHAT_SYSTEM, (str){0})->content.kind == CHAT_NO_CONTENT);
    for (size_t i = 1; i < CHAT_MAX_MESSAGES; i++) {
        char name[32];
        snprintf(name, sizeof name, "%zu", i);
        chat_message *m = chat_add(c, i % 2 ? CHAT_USER : CHAT_ASSISTANT, str_of(arena_str(&mem, str_of(name))));
        if (!CHECK(m)) break;
    }
    CHECK_INT(c->n, CHAT_MAX_MESSAGES);
    CHECK(!chat_add(c, CHAT_USER, STR("one more")));
    CHECK_INT(c->n, CHAT_MAX_MESSAGES);
    for (size_t i = 1; i < c->n; i += i < 40 ? 1 : 1111) {
        char name[32];
        snprintf(name, sizeof name, "%zu", i);
        CHECK_STR(c->message[i].content.text, str_of(name));
        CHECK_INT(c->message[i].content.kind, CHAT_STRING);
        CHECK_INT(c->message[i].role, i % 2 ? CHAT_USER : CHAT_ASSISTANT);
    }
    arena_deinit(&mem);
}

TEST(chat_add_says_when_the_arena_is_full)
{
    arena mem;
    arena_init(&mem, 4096);
    chat *c = chat_new(&mem);
    int   n = 0;
    while (n < 1000 && chat_add(c, CHAT_USER, STR("x"))) n++;
    CHECK(n > 0 && n < 1000);
    CHECK_INT(c->n, n);
    arena_deinit(&mem);
}

TEST(chat_join_puts_the_texts_of_parts_together)
{
    static const struct {
        const char *part[4], *between, *want;
    } cases[] = {{{"a", "b", "c"}, ", ", "a, b, c"},
                 {{"", "b", "", "c"}, ", ", "b, c"},
                 {{"a", "", ""}, ", ", "a"},
                 {{"", ""}, ", ", ""},
                 {{NULL}, "\n", ""},
                 {{"a", "b"}, "", "ab"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        arena        mem;
        chat_part    part[4] = {0};
        chat_content c       = {.kind = CHAT_PARTS, .part = part};
        str          out;
        for (; c.n_parts < 4 && cases[i].part[c.n_parts]; c.n_parts++)
            part[c.n_parts].text = str_of(cases[i].part[c.n_parts]);
        arena_init(&mem, 1 << 16);
        CHECK(chat_join(&mem, &c, cases[i].between, &out));
        CHECK_STR(out, str_of(cases[i].want));
        arena_deinit(&mem);
    }
    arena        small;
    char         long_text[5000] = {0};
    chat_part    part            = {.text = {long_text, sizeof long_text}};
    chat_content c               = {.kind = CHAT_PARTS, .part = &part, .n_parts = 1};
    str          out;
    arena_init(&small, 4096);
    CHECK(!chat_join(&small, &c, "", &out));
    arena_deinit(&small);
}

TEST(chat_wishes_change_only_what_was_said)
{
    for (int bits = 0; bits < 27; bits++) {
        chat_wish    w[3] = {(chat_wish)(bits % 3), (chat_wish)(bits / 3 % 3), (chat_wish)(bits / 9)};
        chat         c    = {.thinking = w[0], .preserve_thinking = w[1], .add_generation_prompt = w[2]};
        chat_options yes  = {.format                = &gemma4_format,
                             .thinking              = true,
                             .preserve_thinking     = true,
                             .add_generation_prompt = true},
                     no   = {0};
        chat_apply_wishes(&c, &yes);
        chat_apply_wishes(&c, &no);
        CHECK(yes.thinking == (w[0] != CHAT_NO) && no.thinking == (w[0] == CHAT_YES));
        CHECK(yes.preserve_thinking == (w[1] != CHAT_NO) && no.preserve_thinking == (w[1] == CHAT_YES));
        CHECK(yes.add_generation_prompt == (w[2] != CHAT_NO) && no.add_generation_prompt == (w[2] == CHAT_YES));
    }
}
