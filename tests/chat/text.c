/* Prints chat prompts as a model with a given template gets them: chat_text TEMPLATE < REQUESTS
 *
 * TEMPLATE is a file with a chat template. The first line of the output is a JSON object that says what the template is
 * taken for. Each line of standard input is an OpenAI request; each further line of the output is {"text": PROMPT}, or
 * {"error": SENTENCE} when the request is refused. */
#include "base/file.h"
#include "base/mem.h"
#include "chat/chat.h"
#include "chat/gemma4.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void print_member(const char *name, str text)
{
    buf line;
    buf_init(&line, (size_t)1 << 30);
    buf_printf(&line, "{\"%s\": ", name);
    buf_put_json_string(&line, text);
    printf("%.*s}\n", (int)line.n, line.p);
    buf_deinit(&line);
}

static void print_prompt(str line, chat_options o)
{
    arena             mem;
    chat             *c;
    const json_value *request;
    buf               text;
    err               e = {0};
    arena_init(&mem, 1 << 26);
    buf_init(&text, CHAT_MAX_PROMPT);
    bool ok = json_parse(&request, &mem, line, NULL, &e) && chat_parse(&c, &mem, request, &e);
    if (ok) {
        chat_apply_wishes(c, &o);
        ok = chat_render_text(&text, c, &o, &e);
    }
    print_member(ok ? "text" : "error", ok ? buf_str(&text) : str_of(e.text));
    buf_deinit(&text);
    arena_deinit(&mem);
}

int main(int argc, char **args)
{
    file_map template = {0};
    err     e         = {0};
    char   *line      = NULL;
    size_t  cap       = 0;
    ssize_t n;
    if (argc != 2) {
        fprintf(stderr, "usage: chat_text TEMPLATE < REQUESTS\n");
        return 2;
    }
    if (!file_map_open(&template, args[1], &e)) {
        fprintf(stderr, "chat_text: %s\n", e.text);
        return 1;
    }
    chat_template t = gemma4_detect((str){template.p, template.n});
    printf("{\"gemma4\": %s, \"published\": %s, \"revision\": \"%s\", \"large\": %s, \"same\": %d, \"signs\": %d, "
           "\"hash\": \"%016" PRIx64 "\"}\n",
           t.known ? "true" : "false", t.published ? "true" : "false", gemma4_revision_name(t.revision),
           t.empty_thought ? "true" : "false", t.n_same, t.n_signs, t.hash);
    chat_options o = {.format                = &gemma4_format,
                      .revision              = t.revision,
                      .empty_thought         = t.empty_thought,
                      .add_generation_prompt = true,
                      .exact                 = true};
    while ((n = getline(&line, &cap, stdin)) > 0) print_prompt((str){line, (size_t)n}, o);
    free(line);
    file_map_close(&template);
    return 0;
}
