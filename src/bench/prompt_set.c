#include "bench/prompt_set.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "load/prompts.h"

#include <stdio.h>

enum { MAX_TOKENS = 1 << 24 };

/* Returns the class of this name, -1 if there are too many. */
static int find_class(prompt_set *s, str name, err *e)
{
    char wanted[PROMPT_CLASS_NAME];
    snprintf(wanted, sizeof wanted, "%.*s", name.n ? (int)min_int((int)name.n, PROMPT_CLASS_NAME) : 4,
             name.n ? name.s : "none");
    for (char *c = wanted; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    for (int i = 0; i < s->n_classes; i++)
        if (!strcmp(s->class_name[i], wanted)) return i;
    if (s->n_classes == PROMPT_CLASSES_MAX)
        return err_set(e, ERR_INPUT, "the prompts have more than %d classes", PROMPT_CLASSES_MAX), -1;
    memcpy(s->class_name[s->n_classes], wanted, sizeof wanted);
    return s->n_classes++;
}

static chat_prompt *add_prompt(prompt_set *s, str kind, err *e)
{
    if (s->n == PROMPT_SET_MAX) return err_set(e, ERR_INPUT, "there are more than %d prompts", PROMPT_SET_MAX), NULL;
    int c = find_class(s, kind, e);
    if (c < 0) return NULL;
    chat_prompt *p    = &s->prompt[s->n];
    s->class_of[s->n] = c;
    s->n++;
    chat_prompt_init(p, MAX_TOKENS);
    return p;
}

static bool add_random(prompt_set *s, const prompt_source *from, err *e)
{
    prompt_maker maker;
    bool         ok = prompts_init(&maker, NULL, NULL, from->n_vocab, e);
    while (ok && s->n < from->n_random) {
        chat_prompt *p = add_prompt(s, (str){0}, e);
        ok             = p && prompts_next(&maker, &p->ids, from->n_tokens, e);
    }
    prompts_deinit(&maker);
    return ok;
}

/* Adds the messages of a chat: texts of the system, the user and the assistant. */
static bool add_messages(chat *c, const json_value *all, err *e)
{
    static const struct {
        const char *name;
        chat_role   role;
    } roles[] = {{"system", CHAT_SYSTEM}, {"user", CHAT_USER}, {"assistant", CHAT_ASSISTANT}};
    for (size_t i = 0; i < all->n; i++) {
        const json_value *role = json_get(&all->item[i], "role"), *text = json_get(&all->item[i], "content");
        size_t            k = 0;
        while (k < COUNT(roles) && !str_is(role->s, roles[k].name)) k++;
        if (k == COUNT(roles) || !text || text->kind != JSON_STRING)
            return err_set(e, ERR_INPUT, "message %zu is not a text of the system, the user or the assistant", i + 1);
        chat_add(c, roles[k].role, text->s);
    }
    return true;
}

static bool add_text(prompt_set *s, const prompt_source *from, const load_prompt *x, err *e)
{
    arena        mem;
    chat_prompt *p = add_prompt(s, x->kind, e);
    if (!p) return false;
    arena_init(&mem, 1 << 24);
    chat *c  = chat_new(&mem);
    bool  ok = true;
    if (x->messages)
        ok = add_messages(c, x->messages, e);
    else
        chat_add(c, CHAT_USER, x->text);
    ok = ok && chat_render_ids(p, from->tok, c, &from->format, e);
    arena_deinit(&mem);
    return ok || err_wrap(e, "prompt %d", s->n);
}

static bool add_lines(prompt_set *s, const prompt_source *from, str text, err *e)
{
    for (size_t at = 0, n; at < text.n; at += n + 1) {
        const char *end = memchr(text.s + at, '\n', text.n - at);
        n               = end ? (size_t)(end - text.s) - at : text.n - at;
        if (n && !add_text(s, from, &(load_prompt){.text = {text.s + at, n}}, e)) return false;
    }
    return s->n > 0 || err_set(e, ERR_INPUT, "it has no prompts");
}

static bool add_items(prompt_set *s, const prompt_source *from, err *e)
{
    load_prompts all;
    bool         ok = load_prompts_read(&all, from->file, e);
    for (size_t i = 0; ok && i < all.n; i++) ok = add_text(s, from, &all.item[i], e);
    load_prompts_deinit(&all);
    return ok;
}

static bool read_file(prompt_set *s, const prompt_source *from, err *e)
{
    file_map m     = {0};
    size_t   first = 0;
    if (!file_map_open(&m, from->file, e)) return false;
    while (first < m.n && strchr(" \t\r\n", m.p[first]) && m.p[first]) first++;
    bool is_json = first < m.n && (m.p[first] == '{' || m.p[first] == '[');
    bool ok = is_json ? add_items(s, from, e) : add_lines(s, from, (str){m.p, m.n}, e) || err_wrap(e, "%s", from->file);
    file_map_close(&m);
    return ok;
}

bool prompt_set_fill(prompt_set *s, const prompt_source *from, err *e)
{
    if (from->n_random) return add_random(s, from, e);
    if (from->file) return read_file(s, from, e);
    for (const load_own_prompt *p = load_own_prompts; p->text; p++)
        if (!add_text(s, from, &(load_prompt){.text = str_of(p->text), .kind = str_of(p->kind)}, e)) return false;
    return true;
}

void prompt_set_deinit(prompt_set *s)
{
    for (int i = 0; i < s->n; i++) chat_prompt_deinit(&s->prompt[i]);
    s->n = s->n_classes = 0;
}
