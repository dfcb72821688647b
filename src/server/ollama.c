#include "base/mem.h"
#include "server/ollama_reader.h"

#include <assert.h>
#include <math.h>

/* --- trees --------------------------------------------------------------------------------------*/
bool ollama_new_object(const ollama_reader *r, json_value *out)
{
    *out = (json_value){.kind = JSON_OBJECT, .member = arena_try(&r->q->mem, OLLAMA_MAX_MEMBERS, sizeof *out->member)};
    return out->member || error_no_memory(r->why);
}

bool ollama_new_list(const ollama_reader *r, size_t n, json_value *out)
{
    *out = (json_value){.kind = JSON_ARRAY, .n = n, .item = arena_try(&r->q->mem, n + 1, sizeof *out->item)};
    return out->item || error_no_memory(r->why);
}

void ollama_put(json_value *object, const char *key, json_value v)
{
    assert(object->n < OLLAMA_MAX_MEMBERS);
    object->member[object->n++] = (json_member){str_of(key), v};
}

const json_value *ollama_find_given(const json_value *v, const char *key)
{
    const json_value *m = json_find(v, key);
    return m && m->kind == JSON_STRING && !m->s.n ? NULL : m;
}

bool ollama_bad(const ollama_reader *r, const char *field, const char *what)
{
    return error_set(r->why, 400, field, NULL, "'%s' %s.", field, what);
}

bool ollama_read_bool(const ollama_reader *r, const char *key, bool *out)
{
    const json_value *v = json_find(r->from, key);
    if (!v) return true;
    if (v->kind != JSON_BOOL) return ollama_bad(r, key, "must be true or false");
    *out = v->b;
    return true;
}

static bool read_text(const ollama_reader *r, const char *key, str *out)
{
    const json_value *v = json_find(r->from, key);
    *out                = STR("");
    if (!v) return true;
    if (v->kind != JSON_STRING) return ollama_bad(r, key, "must be a string");
    *out = v->s;
    return true;
}

/* --- names --------------------------------------------------------------------------------------*/
static bool has_tag(str name)
{
    const char *slash = name.n ? memrchr(name.s, '/', name.n) : NULL;
    size_t      from  = slash ? (size_t)(slash - name.s) : 0;
    return name.n && memchr(name.s + from, ':', name.n - from);
}

void ollama_put_name(buf *out, str name)
{
    buf_put(out, name.s, name.n);
    if (!has_tag(name)) buf_puts(out, ":latest");
}

static bool same_name(str a, str b)
{
    str  latest = STR(":latest");
    bool tagged = has_tag(a);
    if (tagged == has_tag(b)) return str_is_nocase(a, b);
    str longer = tagged ? a : b, bare = tagged ? b : a;
    if (longer.n != bare.n + latest.n) return false;
    return str_is_nocase((str){longer.s, bare.n}, bare) && str_is_nocase((str){longer.s + bare.n, latest.n}, latest);
}

static bool is_served(const server_request *r, str name)
{
    bool found = same_name(name, str_of(r->served));
    for (size_t i = 0; i < r->n_aliases; i++) found |= same_name(name, str_of(r->aliases[i]));
    return found;
}

bool ollama_check_model(const server_request *r, const json_value *body, str *out, server_error *why)
{
    const json_value *v = ollama_find_given(body, "model");
    if (!v) v = ollama_find_given(body, "name");
    if (!v) return error_set(why, 400, "model", NULL, "model is required");
    if (v->kind != JSON_STRING) return error_set(why, 400, "model", NULL, "'model' must be a string.");
    *out = v->s;
    return is_served(r, v->s) ||
           error_set(why, 404, "model", "model_not_found", "model '%.*s' not found", STR_ARG(v->s));
}

/* --- the two endpoints --------------------------------------------------------------------------*/
static bool read_chat(ollama_reader *r, bool unload)
{
    const json_value *list = json_find(r->from, "messages");
    r->q->ollama.is_chat   = true;
    r->q->endpoint         = FIELD_CHAT | FIELD_OLLAMA_CHAT;
    if (list && list->kind != JSON_ARRAY) return ollama_bad(r, "messages", "must be a list");
    if (!list || !list->n) {
        r->q->ollama.loaded = unload ? "unload" : "load";
        return true;
    }
    return ollama_add_messages(r, list) && ollama_add_think(r) && ollama_add_logprobs(r, false);
}

static bool is_empty(const json_value *v) { return !v || (v->kind == JSON_ARRAY && !v->n); }

static bool check_unsupported(const ollama_reader *r, bool raw, str system)
{
    const json_value *context = json_find(r->from, "context"), *images = json_find(r->from, "images");
    str template, suffix;
    if (!read_text(r, "template", &template) || !read_text(r, "suffix", &suffix)) return false;
    if (raw && (template.n || system.n || !is_empty(context)))
        return error_set(r->why, 400, "raw", NULL, "raw mode does not support template, system, or context");
    if (suffix.n)
        return error_set(r->why, 400, "suffix", NULL, "\"%.*s\" does not support insert", STR_ARG(r->q->ollama.model));
    if (template.n)
        return error_set(r->why, 400, "template", NULL,
                         "'template' is not supported: prompts are written in the model's own format, or as they are "
                         "with 'raw'.");
    if (!is_empty(context))
        return error_set(r->why, 400, "context", NULL,
                         "'context' is not supported: send the conversation as the messages of /api/chat.");
    if (images && images->kind != JSON_ARRAY) return ollama_bad(r, "images", "must be a list of base64 strings");
    return !raw || is_empty(images) || ollama_bad(r, "images", "cannot be used in raw mode");
}

/* Adds a prompt in the client's own template: its markers are tokens. */
static bool add_raw(ollama_reader *r, str text)
{
    r->q->markers = true;
    ollama_put(&r->body, "prompt", json_of_text(text));
    return true;
}

static bool add_text(ollama_reader *r, str system, str prompt, const json_value *images)
{
    const str  role[] = {STR("system"), STR("user")}, text[] = {system, prompt};
    json_value all;
    if (!ollama_new_list(r, COUNT(role), &all)) return false;
    all.n = 0;
    for (size_t i = 0; i < COUNT(role); i++) {
        json_value *m          = &all.item[all.n];
        bool        has_images = i && !is_empty(images);
        if (!text[i].n && !has_images) continue;
        if (!ollama_new_object(r, m)) return false;
        ollama_put(m, "role", json_of_text(role[i]));
        if (!ollama_add_content(r, text[i], has_images ? images : NULL, m)) return false;
        all.n++;
    }
    ollama_put(&r->body, "messages", all);
    return true;
}

static bool read_generate(ollama_reader *r, bool unload)
{
    str  prompt, system;
    bool raw = false;
    if (!ollama_read_bool(r, "raw", &raw) || !read_text(r, "prompt", &prompt) || !read_text(r, "system", &system) ||
        !check_unsupported(r, raw, system))
        return false;
    r->q->endpoint           = FIELD_OLLAMA_GENERATE | (raw ? FIELD_TEXT : FIELD_CHAT);
    const json_value *images = json_find(r->from, "images");
    if (!prompt.n && is_empty(images)) {
        r->q->ollama.loaded = unload ? "unload" : "load";
        return true;
    }
    return (raw ? add_raw(r, prompt) : add_text(r, system, prompt, images) && ollama_add_think(r)) &&
           ollama_add_logprobs(r, raw);
}

/* --- all of it ----------------------------------------------------------------------------------*/
bool ollama_translate(server_request *q, const json_value **body, server_error *why)
{
    ollama_reader r      = {.q = q, .from = *body, .why = why};
    bool          stream = true, unload = false, is_chat = q->endpoint == FIELD_OLLAMA_CHAT;
    json_value   *made = arena_try(&q->mem, 1, sizeof *made);
    if (!made) return error_no_memory(why);
    if (!ollama_new_object(&r, &r.body) || !ollama_check_model(q, *body, &q->ollama.model, why) ||
        !ollama_read_bool(&r, "stream", &stream) || !ollama_read_bool(&r, "truncate", &q->ollama.truncate) ||
        !ollama_read_keep_alive(&r, &unload))
        return false;
    ollama_put(&r.body, "stream", json_of_bool(stream));
    if (!ollama_add_options(&r) || !ollama_add_format(&r) ||
        !(is_chat ? read_chat(&r, unload) : read_generate(&r, unload)))
        return false;
    *made = r.body;
    *body = made;
    return true;
}

void ollama_limit(server_request *q, const tandem *t)
{
    settings now;
    int32_t  room;
    if (!q->ollama.n_ctx || q->ollama.n_ctx >= engine_info(t)->n_ctx || !q->n_prompts) return;
    room = q->ollama.n_ctx + 1 - (int32_t)q->prompt[0].n;
    engine_get_settings(t, &now);
    if (q->ask.max_tokens < 0) q->ask.max_tokens = (int32_t)fmin((double)now.default_max_tokens, INT32_MAX);
    if (q->ask.max_tokens > room) q->ask.max_tokens = room;
}
