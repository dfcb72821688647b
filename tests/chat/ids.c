/* Prints the token ids of chat prompts: chat_ids MODEL < CASES
 *
 * MODEL is a GGUF file or a tokenizer.json. Each line of standard input is
 * {"template": {"revision": NAME, "large": BOOLEAN}, "request": R}: NAME is the name of a revision (docs/chat.md), R an
 * OpenAI request. Each line of the output has the ids, separated by spaces. */
#include "base/mem.h"
#include "chat/gemma4.h"

#include <stdio.h>
#include <stdlib.h>

static bool open_tokenizer(tok **out, const char *path, err *e)
{
    gguf *g;
    if (str_ends(str_of(path), ".json")) return tok_from_json(out, path, &gemma4_tokens, e);
    if (!gguf_open(&g, path, e)) return false;
    bool ok = tok_from_gguf(out, g, &gemma4_tokens, e);
    gguf_close(g);
    return ok;
}

static bool parse_case(chat **c, chat_options *o, arena *mem, str line, err *e)
{
    const json_value *root;
    if (!json_parse(&root, mem, line, NULL, e)) return false;
    const json_value *form = json_get(root, "template"), *request = json_get(root, "request");
    const json_value *name = json_get(form, "revision"), *large = json_get(form, "large");
    if (!name || !request || name->kind != JSON_STRING) return err_set(e, ERR_INPUT, "'template' or 'request' missing");
    if (!chat_parse(c, mem, request, e)) return false;
    *o = (chat_options){
        .format = &gemma4_format, .empty_thought = large && large->b, .add_generation_prompt = true, .exact = true};
    while (o->revision < GEMMA4_REVISIONS && !str_is(name->s, gemma4_revision_name(o->revision))) o->revision++;
    if (o->revision == GEMMA4_REVISIONS) return err_set(e, ERR_INPUT, "no revision '%.*s'", STR_ARG(name->s));
    chat_apply_wishes(*c, o);
    return true;
}

static bool print_ids(const tok *t, str line, err *e)
{
    arena        mem;
    chat        *c;
    chat_options o;
    chat_prompt  p;
    arena_init(&mem, 1 << 26);
    chat_prompt_init(&p, 1 << 24);
    bool ok = parse_case(&c, &o, &mem, line, e) && chat_render_ids(&p, t, c, &o, e);
    for (size_t i = 0; ok && i < p.ids.n; i++) printf("%s%d", i ? " " : "", p.ids.p[i]);
    if (ok) putchar('\n');
    chat_prompt_deinit(&p);
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
