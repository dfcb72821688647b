/* Prompts as ids: markers by id, text that can never become one, media in their order; and which template is which. */
#include "chat/gemma4_inside.h"
#include "gguf/build_gguf.h"
#include "test.h"
#include "tok/inside.h"

#include <unistd.h>

static tok *demo(test_case *t)
{
    tok *tk = NULL;
    err  e;
    CHECK_OK(tok_from_json(&tk, test_path("tests/golden/demo/tokenizer.json"), &gemma4_tokens, &e), e);
    return tk;
}

/* The ids are those of the text with its markers parsed. */
TEST(chat_ids_are_those_of_the_text)
{
    tok         *tk = demo(t);
    arena        mem;
    chat_prompt  p;
    tok_ids      want;
    buf          text;
    err          e;
    chat_options o = {.format = &gemma4_format, .empty_thought = true, .add_generation_prompt = true};
    if (!tk) return;
    arena_init(&mem, 1 << 20);
    chat *c = chat_new(&mem);
    chat_add(c, CHAT_SYSTEM, STR("Be brief."));
    chat_add(c, CHAT_USER, STR(" What is 2+2? \n"));
    chat_add(c, CHAT_ASSISTANT, STR("4"))->reasoning = STR("easy");
    chat_add(c, CHAT_USER, STR("Grüße 🦙"));
    chat_prompt_init(&p, 4096);
    tok_ids_init(&want, 4096);
    buf_init(&text, 4096);
    CHECK_OK(chat_render_ids(&p, tk, c, &o, &e), e);
    CHECK_OK(chat_render_text(&text, c, &o, &e), e);
    CHECK_OK(tok_encode(tk, &want, buf_str(&text), true, &e), e);
    CHECK_INT(p.ids.n, want.n);
    CHECK(p.ids.n == want.n && !memcmp(p.ids.p, want.p, want.n * sizeof *want.p));
    CHECK(!p.in_thought && !p.n_media);
    buf_deinit(&text);
    tok_ids_deinit(&want);
    chat_prompt_deinit(&p);
    arena_deinit(&mem);
    tok_free(tk);
}

TEST(chat_ids_say_where_media_go)
{
    static chat_part parts[] = {{.kind = CHAT_TEXT, .text = {"<|image|>", 9}},
                                {.kind = CHAT_IMAGE},
                                {.kind = CHAT_VIDEO},
                                {.kind = CHAT_TEXT, .text = {"?", 1}},
                                {.kind = CHAT_AUDIO}};
    tok             *tk      = demo(t);
    arena            mem;
    chat_prompt      p;
    err              e;
    chat_options     o = {.format = &gemma4_format};
    if (!tk) return;
    arena_init(&mem, 1 << 20);
    chat *c = chat_new(&mem);
    chat_add(c, CHAT_USER, (str){0})->content =
        (chat_content){.kind = CHAT_PARTS, .part = parts, .n_parts = COUNT(parts)};
    chat_prompt_init(&p, 4096);
    CHECK_OK(chat_render_ids(&p, tk, c, &o, &e), e);
    if (CHECK(p.n_media == 3)) {
        static const char *const name[] = {"<|image|>", "<|video|>", "<|audio|>"};
        static const int         from[] = {1, 2, 4};
        for (size_t i = 0; i < 3; i++) {
            CHECK(p.media[i].part == &parts[from[i]]);
            CHECK_STR(tok_text(tk, p.ids.p[p.media[i].at]), str_of(name[i]));
        }
    }
    chat_prompt_deinit(&p);
    arena_deinit(&mem);
    tok_free(tk);
}

/* More media than the list first has room for; a second prompt in the same place starts anew. */
TEST(chat_ids_say_where_many_media_go)
{
    chat_part   parts[40];
    tok        *tk = demo(t);
    arena       mem;
    chat_prompt p;
    err         e;
    if (!tk) return;
    for (size_t i = 0; i < COUNT(parts); i++)
        parts[i] = i % 2 ? (chat_part){.kind = CHAT_IMAGE} : (chat_part){.kind = CHAT_TEXT, .text = {"and", 3}};
    arena_init(&mem, 1 << 20);
    chat *c = chat_new(&mem);
    chat_add(c, CHAT_USER, (str){0})->content =
        (chat_content){.kind = CHAT_PARTS, .part = parts, .n_parts = COUNT(parts)};
    chat_prompt_init(&p, 4096);
    for (int round = 0; round < 2; round++) {
        size_t n = 0;
        CHECK_OK(chat_render_ids(&p, tk, c, &(chat_options){.format = &gemma4_format}, &e), e);
        CHECK_INT(p.n_media, COUNT(parts) / 2);
        for (size_t i = 0; i < p.ids.n; i++) {
            if (!str_is(tok_text(tk, p.ids.p[i]), "<|image|>")) continue;
            CHECK(n < p.n_media && p.media[n].at == i && p.media[n].part == &parts[2 * n + 1]);
            n++;
        }
        CHECK_INT(n, COUNT(parts) / 2);
    }
    chat_prompt_deinit(&p);
    CHECK(!p.media && !p.n_media && !p.ids.p);
    arena_deinit(&mem);
    tok_free(tk);
}

/* A vocabulary in which a marker is an ordinary token is not of this family: any text could give it. */
TEST(chat_ids_refuse_a_vocabulary_without_markers)
{
    static const char vocabulary[] = "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
                                     "\"},\"content\":\"\xE2\x96\x81\"},\"added_tokens\":"
                                     "[{\"id\":0,\"content\":\"<bos>\",\"special\":true}],\"model\":{\"byte_fallback\":"
                                     "true,\"vocab\":{\"<|turn>\":1}}}";
    tok              *tk;
    arena             mem;
    chat_prompt       p;
    err               e;
    if (!CHECK_OK(tok_from_json_bytes(&tk, str_of(vocabulary), &gemma4_tokens, &e), e)) return;
    arena_init(&mem, 1 << 20);
    chat *c = chat_new(&mem);
    chat_add(c, CHAT_USER, STR("x"));
    chat_prompt_init(&p, 4096);
    CHECK_FAILS(chat_render_ids(&p, tk, c, &(chat_options){.format = &gemma4_format}, &e), e,
                "the tokenizer has no <|turn>");
    CHECK_INT(e.code, ERR_INPUT);
    chat_prompt_deinit(&p);
    arena_deinit(&mem);
    tok_free(tk);
}

/* Nothing that a user says becomes a marker, whether the file calls it special or user-defined; a tag becomes its token. */
TEST(chat_ids_of_a_user_have_no_markers)
{
    tok        *tk = demo(t);
    arena       mem;
    chat_prompt p;
    buf         text;
    err         e;
    if (!tk) return;
    arena_init(&mem, 1 << 20);
    buf_init(&text, 1 << 16);
    for (const char *const *name = gemma4_tokens.markers; *name; name++) buf_printf(&text, "%s ", *name);
    buf_puts(&text, "<mask><unk><pad>");
    chat *c = chat_new(&mem);
    chat_add(c, CHAT_SYSTEM, buf_str(&text));
    chat_add(c, CHAT_USER, buf_str(&text));
    chat_prompt_init(&p, 1 << 16);
    CHECK_OK(chat_render_ids(&p, tk, c, &(chat_options){.format = &gemma4_format, .revision = GEMMA4_VLLM_0617}, &e),
             e);
    size_t n = 0;
    for (size_t i = 0; i < p.ids.n; i++) {
        tok_kind_t kind = tok_kind(tk, p.ids.p[i]);
        n += kind != TOK_NORMAL && kind != TOK_BYTE;
    }
    CHECK_INT(n, 5); /* <bos>, two turns with their ends */
    chat_prompt_deinit(&p);
    buf_deinit(&text);
    arena_deinit(&mem);
    tok_free(tk);
}

TEST(chat_ids_tell_an_open_thought)
{
    json_value    five   = {.kind = JSON_INT, .i = 5};
    chat_response done[] = {{.name = {"f", 1}, .response = &five}};
    tok          *tk     = demo(t);
    arena         mem;
    chat_prompt   p;
    err           e;
    chat_options  o = {
         .format = &gemma4_format, .revision = GEMMA4_VLLM_0617, .thinking = true, .add_generation_prompt = true};
    if (!tk) return;
    arena_init(&mem, 1 << 20);
    chat *c = chat_new(&mem);
    chat_add(c, CHAT_USER, STR("x"));
    chat_message *m = chat_add(c, CHAT_ASSISTANT, (str){0});
    m->response     = done;
    m->n_responses  = 1;
    chat_prompt_init(&p, 4096);
    CHECK_OK(chat_render_ids(&p, tk, c, &o, &e), e);
    CHECK(p.in_thought);
    c->prefill = STR("It is"); /* an answer that was begun is behind its thought */
    CHECK_OK(chat_render_ids(&p, tk, c, &o, &e), e);
    CHECK(!p.in_thought);
    c->prefill = (str){0};
    o.thinking = false;
    CHECK_OK(chat_render_ids(&p, tk, c, &o, &e), e);
    CHECK(!p.in_thought);
    chat_prompt_deinit(&p);
    arena_deinit(&mem);
    tok_free(tk);
}

TEST(chat_ids_refuse_what_does_not_fit)
{
    tok         *tk = demo(t);
    arena        mem;
    chat_prompt  p;
    err          e;
    chat_options o = {.format = &gemma4_format};
    if (!tk) return;
    arena_init(&mem, 1 << 20);
    chat *c = chat_new(&mem);
    chat_prompt_init(&p, 4);
    CHECK_FAILS(chat_render_ids(&p, tk, c, &o, &e), e, "needs a message");
    chat_add(c, CHAT_USER, STR("x"));
    CHECK_FAILS(chat_render_ids(&p, tk, c, &o, &e), e, "4");
    chat_prompt_deinit(&p);
    chat_prompt_init(&p, 4096); /* each length up to the one that fits is refused */
    CHECK_OK(chat_render_ids(&p, tk, c, &o, &e), e);
    size_t n = p.ids.n;
    chat_prompt_deinit(&p);
    for (size_t max = 1; max <= n; max++) {
        chat_prompt_init(&p, max);
        CHECK(chat_render_ids(&p, tk, c, &o, &e) == (max == n));
        if (max < n) CHECK_INT(e.code, ERR_TOO_LARGE);
        chat_prompt_deinit(&p);
    }
    chat_prompt_init(&p, 1);
    arena_deinit(&mem);
    tok_free(tk);
}

/* --- templates ----------------------------------------------------------------------------------*/
#define TURNS "{{- '<|turn>model\\n' -}}{{- '<turn|>\\n' -}}"
#define TOOLS "{{- '<|tool>' -}}"

TEST(chat_detect_tells_sizes_and_other_formats)
{
    chat_template x = gemma4_detect(STR(TURNS));
    CHECK(x.known && !x.published && x.revision == GEMMA4_GOOGLE_0410 && !x.empty_thought);
    x = gemma4_detect(STR(TURNS "{{- '<|channel>thought\\n<channel|>' -}}"));
    CHECK(x.known && x.empty_thought);
    x = gemma4_detect(STR(TURNS "'<|channel>thought\n<channel|>'")); /* printed and read again */
    CHECK(x.known && x.empty_thought);
    x = gemma4_detect(STR("{# no <|channel>thought\\n<channel|> here #}" TURNS));
    CHECK(x.known && !x.empty_thought);
    CHECK(!gemma4_detect(STR("{# <|turn> <turn|> #}")).known && !gemma4_detect(STR("{# " TURNS)).known);
    CHECK(!gemma4_detect(STR("<|im_start|>user")).known);
    CHECK(!gemma4_detect(STR("'<|turn>'")).known && !gemma4_detect(STR("'<turn|>'")).known); /* both or none */
    x = gemma4_detect((str){0});
    CHECK(!x.known && !x.published && x.revision == GEMMA4_GOOGLE_0410);
}

/* The signs of each revision, in any layout; the more of them, the more it resembles the revision. */
TEST(chat_detect_tells_what_a_template_resembles)
{
    static const char june[] = TURNS TOOLS "{%- if argument is none -%} filter_keys = true\n has_content "
                                           "loop_messages[k]['role'] != 'tool' continue_same_model_turn "
                                           "{% endif -%}\n    items:{ '<|think|>\\n' item['text'] | trim + ' ' "
                                           "message.get('reasoning') default('unknown', true) preserve_thinking "
                                           "part.get('type') in ['image', 'x'] continues_into_next or ns_tr_out.flag) "
                                           "if thinking_text and thinking_gate -%} tool_calls[].function.arguments "
                                           "prev_message_type == 'tool_call' and not ns_tr_out.flag ";
    char                             text[2048];
    chat_template x = gemma4_detect(STR(TURNS TOOLS "prev_message_type = 'image' \\n\\n<|image|>\\n\\n"));
    CHECK(!x.published && x.revision == GEMMA4_GOOGLE_0402 && x.n_same == x.n_signs && x.n_signs > 20);
    snprintf(text, sizeof text, "%s and not next_nt.found) prev_message_type == 'tool_response' and enable_thinking",
             june);
    x = gemma4_detect(str_of(text));
    CHECK(!x.published && x.revision == GEMMA4_GOOGLE_0709 && x.n_same == x.n_signs);
    snprintf(text, sizeof text, "%s or preserve_thinking -%%} continues_into_next -%%}{{- '\\n' -}}", june);
    x = gemma4_detect(str_of(text));
    CHECK(!x.published && x.revision == GEMMA4_VLLM_0617 && x.n_same == x.n_signs - 1);
}

/* Published templates are known by the hash of their code alone, which must stay what it is. */
TEST(chat_detect_compares_code_alone)
{
    uint64_t plain = gemma4_detect(STR(TURNS TOOLS)).hash;
    CHECK_MSG(plain == 0xccc32d3210e709a2, "the hash is %016llx", (unsigned long long)plain);
    CHECK(gemma4_detect(STR("{# what #}{#- why\n-#}\n" TURNS "\r\n\t " TOOLS "\n{#")).hash == plain);
    CHECK(gemma4_detect(
              STR("{%- generation -%}" TURNS "{% endgeneration %}{% generation %}" TOOLS "{%- endgeneration -%}"))
              .hash == plain);
    CHECK(gemma4_detect(STR(TURNS TOOLS "-")).hash != plain);
}

TEST(chat_revisions_have_names)
{
    for (gemma4_revision a = 0; a < GEMMA4_REVISIONS; a++)
        for (gemma4_revision b = 0; b < a; b++) {
            CHECK(strcmp(gemma4_revision_name(a), gemma4_revision_name(b)));
            CHECK(gemma4_rules_of(a) != gemma4_rules_of(b));
        }
}

static bool load_template(buf *out, const char *path, err *e)
{
    gguf *g = NULL;
    if (!file_is_dir(path) && !gguf_open(&g, path, e)) return false;
    bool ok = chat_template_load(out, path, g, e);
    gguf_close(g);
    return ok;
}

static void check_load(test_case *t, const char *path, const char *want)
{
    buf text;
    err e;
    buf_init(&text, 1 << 16);
    CHECK_OK(load_template(&text, path, &e), e);
    CHECK_STR(buf_str(&text), str_of(want));
    buf_deinit(&text);
}

TEST(chat_template_is_found_in_a_directory)
{
    static const char one[]  = "{\"a\":1,\"chat_template\":\"one \\u003c|turn>\"}";
    static const char list[] = "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},{\"name\":\"default\","
                               "\"template\":\"listed\"}]}";
    char              dir[512];
    snprintf(dir, sizeof dir, "%s", test_tmp_dir());
    check_load(t, dir, "");
    test_tmp_file("tokenizer_config.json", "{}", 2);
    check_load(t, dir, "");
    test_tmp_file("tokenizer_config.json", one, sizeof one - 1);
    check_load(t, dir, "one <|turn>");
    test_tmp_file("tokenizer_config.json", list, sizeof list - 1);
    check_load(t, dir, "listed");
    test_tmp_file("chat_template.jinja", "file", 4);
    check_load(t, dir, "file");
    test_tmp_file("chat_template.jinja", "", 0);
    test_tmp_file("tokenizer_config.json", "{", 1);
    err e;
    buf text;
    buf_init(&text, 1 << 16);
    CHECK_FAILS(load_template(&text, dir, &e), e, "tokenizer_config.json");
    buf_deinit(&text);
    test_tmp_file("tokenizer_config.json", "{}", 2);
}

TEST(chat_template_is_found_in_a_gguf)
{
    gguf_builder b;
    gguf_builder_init(&b);
    gguf_builder_str(&b, "general.architecture", "gemma4");
    check_load(t, gguf_builder_write(&b, "plain.gguf"), "");
    gguf_builder_str(&b, "tokenizer.chat_template", "in a <|turn> file");
    check_load(t, gguf_builder_write(&b, "chat.gguf"), "in a <|turn> file");
    gguf_builder_deinit(&b);
}

/* A GGUF file's own template comes first, then the files in its directory. */
TEST(chat_template_is_found_beside_a_gguf)
{
    gguf_builder b;
    char         path[512], dir[512], here[4096];
    gguf_builder_init(&b);
    gguf_builder_str(&b, "general.architecture", "gemma4");
    snprintf(path, sizeof path, "%s", gguf_builder_write(&b, "bare.gguf"));
    check_load(t, path, "");
    test_tmp_file("tokenizer_config.json", "{\"chat_template\":\"config\"}", 26);
    check_load(t, path, "config");
    test_tmp_file("chat_template.jinja", "beside", 6);
    check_load(t, path, "beside");
    snprintf(dir, sizeof dir, "%s", test_tmp_dir()); /* a path without a directory is in this one */
    CHECK(getcwd(here, sizeof here) && !chdir(dir));
    check_load(t, "bare.gguf", "beside");
    CHECK(!chdir(here));
    gguf_builder_str(&b, "tokenizer.chat_template", "own");
    check_load(t, gguf_builder_write(&b, "own.gguf"), "own");
    gguf_builder_deinit(&b);
    test_tmp_file("chat_template.jinja", "", 0);
    test_tmp_file("tokenizer_config.json", "{}", 2);
}

/* Text that does not fit is refused with a sentence, whichever file it is from. */
TEST(chat_text_that_does_not_fit_is_refused)
{
    gguf_builder b;
    arena        mem;
    buf          text;
    err          e = {0};
    char         dir[512], path[512];
    snprintf(dir, sizeof dir, "%s", test_tmp_dir());
    gguf_builder_init(&b);
    gguf_builder_str(&b, "general.architecture", "gemma4");
    gguf_builder_str(&b, "tokenizer.chat_template", "a template");
    snprintf(path, sizeof path, "%s", gguf_builder_write(&b, "chat.gguf"));
    gguf_builder_deinit(&b);
    test_tmp_file("tokenizer_config.json", "{\"chat_template\":\"a template\"}", 30);
    test_tmp_file("chat_template.jinja", "", 0);
    buf_init(&text, 5);
    CHECK_FAILS(load_template(&text, path, &e), e, "too large");
    buf_clear(&text);
    CHECK_FAILS(load_template(&text, dir, &e), e, "too large");
    buf_clear(&text);
    test_tmp_file("chat_template.jinja", "a template", 10);
    CHECK_FAILS(load_template(&text, dir, &e), e, "too large");
    buf_clear(&text);
    test_tmp_file("chat_template.jinja", "", 0);
    test_tmp_file("tokenizer_config.json", "{}", 2);
    arena_init(&mem, 1 << 20);
    chat *c = chat_new(&mem);
    chat_add(c, CHAT_USER, STR("a long question"));
    CHECK_FAILS(chat_render_text(&text, c, &(chat_options){.format = &gemma4_format}, &e), e, "the prompt is longer");
    CHECK_INT(e.code, ERR_TOO_LARGE);
    arena_deinit(&mem);
    buf_deinit(&text);
}

/* --- white space --------------------------------------------------------------------------------*/
TEST(chat_trim_knows_unicode_spaces)
{
    CHECK_STR(chat_trim(STR(" \t\n\v\f\r\x1c\x1f x y \xC2\x85\xC2\xA0\xE2\x80\xA8")), STR("x y"));
    CHECK_STR(chat_trim(STR("\xE3\x80\x80")), STR(""));
    CHECK_STR(chat_trim(STR("")), STR(""));
    CHECK_STR(chat_trim(STR("\xEF\xBB\xBFx\xE2\x80\x8B")), STR("\xEF\xBB\xBFx\xE2\x80\x8B")); /* neither is a space */
    CHECK_STR(chat_trim(STR("\x80 x \xE3\x80")), STR("\x80 x \xE3\x80")); /* nor what is not UTF-8 */
}

/* Each white space character at either end and between others, and the neighbours of each range. */
TEST(chat_trim_knows_each_space)
{
    static const uint16_t space[] = {9,      0xA,    0xB,    0xC,    0xD,    0x1C,   0x1D,   0x1E,
                                     0x1F,   0x20,   0x85,   0xA0,   0x1680, 0x2000, 0x2001, 0x2005,
                                     0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
    for (uint32_t c = 1; c < 0x3100; c++) {
        char   text[16];
        size_t n    = 0;
        bool   want = false;
        for (size_t i = 0; i < COUNT(space); i++) want |= space[i] == c || (c > 0x2000 && c < 0x200A);
        for (int k = 0; k < 2; k++) {
            if (c < 0x80) text[n++] = (char)c;
            if (c >= 0x80 && c < 0x800) text[n++] = (char)(0xC0 | c >> 6);
            if (c >= 0x800) {
                text[n++] = (char)(0xE0 | c >> 12);
                text[n++] = (char)(0x80 | (c >> 6 & 63));
            }
            if (c >= 0x80) text[n++] = (char)(0x80 | (c & 63));
            if (!k) text[n++] = 'x';
        }
        CHECK_MSG((chat_trim((str){text, n}).n == 1) == want, "U+%04X", c);
        CHECK(chat_trim((str){text, n / 2}).n == (want ? 0 : n / 2));
    }
}
