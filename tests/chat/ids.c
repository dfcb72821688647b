/* Prints the token ids of chat prompts and texts: chat_ids MODEL < CASES
 *
 * MODEL is a GGUF file or a tokenizer.json. Each line of standard input is one of
 *   {"template": {"revision": NAME, "large": BOOLEAN}, "request": R}    NAME is the name of a revision (docs/chat.md),
 *                                                                       R an OpenAI request
 *   {"text": TEXT, "special": BOOLEAN}                                  special: find markers
 * Each line of the output has the ids, separated by spaces. */
#include "base/mem.h"
#include "chat/gemma4_inside.h"
#include "chat/qwen35_inside.h"

#include <stdio.h>
#include <stdlib.h>

static bool open_tokenizer(tok **out, const char *path, err *e)
{
    static const tok_family *const families[] = {&gemma4_tokens, &qwen35_tokens, NULL};
    gguf                          *g;
    bool                           ok = false;
    if (str_ends(str_of(path), ".json")) return tok_from_json_any(out, path, families, e);
    if (!gguf_open(&g, path, e)) return false;
    for (const tok_family *const *f = families; *f && !ok; f++) ok = tok_from_gguf(out, g, *f, e);
    gguf_close(g);
    return ok;
}

static bool parse_chat(chat **c, chat_options *o, arena *mem, const json_value *root, err *e)
{
    const json_value *form = json_get(root, "template"), *request = json_get(root, "request");
    const json_value *name = json_get(form, "revision"), *large = json_get(form, "large");
    if (!name || !request || name->kind != JSON_STRING) return err_set(e, ERR_INPUT, "'template' or 'request' missing");
    if (!chat_parse(c, mem, request, e)) return false;
    *o = (chat_options){.empty_thought = large && large->b, .add_generation_prompt = true, .exact = true};
    for (int i = 0; i < GEMMA4_REVISIONS && !o->format; i++)
        if (str_is(name->s, gemma4_revision_name(i))) o->format = &gemma4_format, o->revision = i;
    for (int i = 0; i < QWEN35_REVISIONS && !o->format; i++)
        if (str_is(name->s, qwen35_revision_name(i))) o->format = &qwen35_format, o->revision = i;
    if (!o->format) return err_set(e, ERR_INPUT, "no revision '%.*s'", STR_ARG(name->s));
    chat_apply_wishes(*c, o);
    return true;
}

static bool chat_to_ids(tok_ids *out, const tok *t, arena *mem, const json_value *root, err *e)
{
    chat        *c;
    chat_options o;
    chat_prompt  p;
    chat_prompt_init(&p, 1 << 24);
    bool ok = parse_chat(&c, &o, mem, root, e) && chat_render_ids(&p, t, c, &o, e);
    if (ok) tok_ids_put_n(out, p.ids.p, p.ids.n);
    chat_prompt_deinit(&p);
    return ok;
}

static bool print_ids(const tok *t, str line, err *e)
{
    arena             mem;
    tok_ids           ids;
    const json_value *root;
    arena_init(&mem, 1 << 26);
    tok_ids_init(&ids, 1 << 24);
    bool ok = json_parse(&root, &mem, line, NULL, e);
    if (ok) {
        const json_value *text = json_get(root, "text"), *special = json_get(root, "special");
        if (text && text->kind == JSON_STRING)
            ok = tok_encode(t, &ids, text->s, special && special->b, e);
        else
            ok = chat_to_ids(&ids, t, &mem, root, e);
    }
    for (size_t i = 0; ok && i < ids.n; i++) printf("%s%d", i ? " " : "", ids.p[i]);
    if (ok) putchar('\n');
    tok_ids_deinit(&ids);
    arena_deinit(&mem);
    return ok;
}

int main(int argc, char **args)
{
    tok    *t;
    err     e    = {0};
    char   *line = NULL;
    size_t  cap = 0, number = 0;
    ssize_t n;
    if (argc != 2) {
        fprintf(stderr, "usage: chat_ids MODEL < CASES\n");
        return 2;
    }
    bool ok = open_tokenizer(&t, args[1], &e);
    while (ok && (n = getline(&line, &cap, stdin)) > 0) {
        number++;
        ok = print_ids(t, (str){line, (size_t)n}, &e);
    }
    if (!ok) fprintf(stderr, "chat_ids: line %zu: %s\n", number, e.text);
    free(line);
    tok_free(t);
    return ok ? 0 : 1;
}
