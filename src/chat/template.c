/* Finds the text of the chat template that a model carries. */
#include "base/file.h"
#include "base/mem.h"
#include "chat/format.h"

static bool no_room(err *e) { return err_set(e, ERR_TOO_LARGE, "the chat template is too large"); }

static bool load_gguf(buf *out, const gguf *g, err *e)
{
    str text;
    return !gguf_str(gguf_find(g, "tokenizer.chat_template"), &text) || buf_put(out, text.s, text.n) || no_room(e);
}

/* "chat_template" is the text, or a list of {"name", "template"} of which "default" is the one for chats. */
static str find_in_json(const json_value *root)
{
    const json_value *t = json_get(root, "chat_template");
    str               s = {0};
    if (t && t->kind == JSON_STRING) return t->s;
    for (size_t i = 0; t && t->kind == JSON_ARRAY && i < t->n; i++) {
        const json_value *name = json_get(&t->item[i], "name"), *text = json_get(&t->item[i], "template");
        if (name && text && name->kind == JSON_STRING && text->kind == JSON_STRING && str_is(name->s, "default"))
            s = text->s;
    }
    return s;
}

static bool load_json(buf *out, const char *path, err *e)
{
    file_map          m = {0};
    arena             mem;
    const json_value *root;
    json_limits       limits = {.max_bytes = (size_t)64 << 20, .max_memory = (size_t)256 << 20};
    if (!file_map_open(&m, path, e)) return false;
    arena_init(&mem, limits.max_memory);
    bool ok = json_parse(&root, &mem, (str){m.p, m.n}, &limits, e) || err_wrap(e, "%s", path);
    if (ok) {
        str text = find_in_json(root);
        ok       = buf_put(out, text.s, text.n) || no_room(e);
    }
    arena_deinit(&mem);
    file_map_close(&m);
    return ok;
}

static bool load_jinja(buf *out, const char *path, err *e)
{
    file_map m = {0};
    if (!file_map_open(&m, path, e)) return false;
    bool ok = buf_put(out, m.p, m.n) || no_room(e);
    file_map_close(&m);
    return ok;
}

/* Leaves out empty when no file of the directory has a template. */
static bool load_directory(buf *out, const char *path, err *e)
{
    static const char *const names[] = {"chat_template.jinja", "chat_template.json", "tokenizer_config.json"};
    for (size_t i = 0; i < COUNT(names) && !out->n; i++) {
        char file[4096];
        if (!file_join(file, sizeof file, path, names[i])) return err_set(e, ERR_INPUT, "the path is too long");
        if (!file_exists(file)) continue;
        if (!(i ? load_json(out, file, e) : load_jinja(out, file, e))) return false;
    }
    return true;
}

static bool load_beside(buf *out, const char *path, err *e)
{
    char        dir[4096] = ".";
    const char *slash     = strrchr(path, '/');
    size_t      n         = slash ? (size_t)(slash - path) + 1 : 0;
    if (n >= sizeof dir) return err_set(e, ERR_INPUT, "the path is too long");
    if (n) {
        memcpy(dir, path, n);
        dir[n] = 0;
    }
    return load_directory(out, dir, e);
}

bool chat_template_load(buf *out, const char *path, const gguf *g, err *e)
{
    if (!g) return load_directory(out, path, e);
    return load_gguf(out, g, e) && (out->n || load_beside(out, path, e));
}

/* --- comparing ----------------------------------------------------------------------------------*/
static bool drop_tail(buf *b, const char *tail)
{
    if (!str_ends(buf_str(b), tail)) return false;
    b->n -= strlen(tail);
    return true;
}

bool chat_template_compact(buf *out, str text)
{
    for (size_t i = 0; i < text.n; i++) {
        const char *end;
        char        c = text.s[i];
        if (c == '{' && i + 1 < text.n && text.s[i + 1] == '#') {
            end = memmem(text.s + i, text.n - i, "#}", 2);
            i   = end ? (size_t)(end - text.s) + 1 : text.n;
        } else if (c != ' ' && (c < '\t' || c > '\r')) {
            if (!buf_putc(out, c)) return false;
            if (c == '}')
                (void)(drop_tail(out, "{%-generation-%}") || drop_tail(out, "{%-endgeneration-%}") ||
                       drop_tail(out, "{%generation%}") || drop_tail(out, "{%endgeneration%}"));
        }
    }
    return true;
}
