#include "chat/prompt_check.h"

#include "chat/format.h"

static void print_difference(str got, str want)
{
    size_t i = 0;
    while (i < got.n && i < want.n && got.s[i] == want.s[i]) i++;
    size_t from = i > 60 ? i - 60 : 0;
    printf("    got      ...%.*s\n    expected ...%.*s\n", (int)(got.n - from < 160 ? got.n - from : 160), got.s + from,
           (int)(want.n - from < 160 ? want.n - from : 160), want.s + from);
}

void check_prompt(test_case *t, str name, chat_options o, const json_value *request, const str *want)
{
    chat       *c;
    arena       mem;
    buf         text;
    err         e    = {0};
    const char *from = o.format->revision_name(o.revision);
    arena_init(&mem, 1 << 24);
    buf_init(&text, 1 << 24);
    bool ok = chat_parse(&c, &mem, request, &e);
    if (ok) {
        chat_apply_wishes(c, &o);
        ok = chat_render_text(&text, c, &o, &e);
    }
    if (!want)
        CHECK_MSG(!ok && e.code == ERR_INPUT && e.text[0], "%s %.*s: not refused", from, STR_ARG(name));
    else if (!CHECK_MSG(ok, "%s %.*s: %s", from, STR_ARG(name), e.text) ||
             !CHECK_MSG(str_eq(buf_str(&text), *want), "%s %.*s differs", from, STR_ARG(name)))
        print_difference(buf_str(&text), *want);
    buf_deinit(&text);
    arena_deinit(&mem);
}

void check_prompt_text(test_case *t, const char *request, chat_options o, const char *want)
{
    arena             mem;
    err               e;
    const json_value *v;
    str               text = str_of(want);
    arena_init(&mem, 1 << 20);
    if (CHECK_OK(json_parse(&v, &mem, str_of(request), NULL, &e), e)) check_prompt(t, str_of(request), o, v, &text);
    arena_deinit(&mem);
}
