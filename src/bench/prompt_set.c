#include "bench/prompt_set.h"

#include "base/file.h"
#include "base/mem.h"
#include "load/prompts.h"

enum { MAX_TOKENS = 1 << 24 };

static chat_prompt *add_prompt(prompt_set *s, err *e)
{
    if (s->n == PROMPT_SET_MAX) return err_set(e, ERR_INPUT, "there are more than %d prompts", PROMPT_SET_MAX), NULL;
    chat_prompt *p = &s->prompt[s->n++];
    chat_prompt_init(p, MAX_TOKENS);
    return p;
}

static bool add_random(prompt_set *s, const prompt_source *from, err *e)
{
    prompt_maker maker;
    bool         ok = prompts_init(&maker, NULL, NULL, from->n_vocab, e);
    while (ok && s->n < from->n_random) {
        chat_prompt *p = add_prompt(s, e);
        ok             = p && prompts_next(&maker, &p->ids, from->n_tokens, e);
    }
    prompts_deinit(&maker);
    return ok;
}

static bool add_text(prompt_set *s, const prompt_source *from, str text, err *e)
{
    arena        mem;
    chat_prompt *p = add_prompt(s, e);
    if (!p) return false;
    arena_init(&mem, 1 << 24);
    chat *c = chat_new(&mem);
    chat_add(c, CHAT_USER, text);
    bool ok = chat_render_ids(p, from->tok, c, &from->format, e);
    arena_deinit(&mem);
    return ok;
}

static bool read_file(prompt_set *s, const prompt_source *from, err *e)
{
    file_map m = {0};
    if (!file_map_open(&m, from->file, e)) return false;
    bool ok = true;
    for (size_t at = 0, n; ok && at < m.n; at += n + 1) {
        const char *line = (const char *)m.p + at;
        for (n = 0; at + n < m.n && line[n] != '\n';) n++;
        if (n) ok = add_text(s, from, (str){line, n}, e);
    }
    file_map_close(&m);
    return ok && (s->n > 0 || err_set(e, ERR_INPUT, "%s has no prompts", from->file));
}

bool prompt_set_fill(prompt_set *s, const prompt_source *from, err *e)
{
    if (from->n_random) return add_random(s, from, e);
    if (from->file) return read_file(s, from, e);
    for (const char *const *p = load_own_prompts; *p; p++)
        if (!add_text(s, from, str_of(*p), e)) return false;
    return true;
}

void prompt_set_deinit(prompt_set *s)
{
    for (int i = 0; i < s->n; i++) chat_prompt_deinit(&s->prompt[i]);
    s->n = 0;
}
