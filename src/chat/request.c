/* Reads a conversation from an OpenAI request. Every error has the path of the invalid value:
 * messages[3].tool_calls[0].function.name. */
#include "base/mem.h"
#include "chat/chat.h"

#include <stdio.h>

/* A step of the path, stored on the stack of the caller. */
typedef struct place place;
struct place {
    const place *up;
    const char  *key; /* NULL: [index] */
    size_t       index;
};

typedef struct {
    arena *mem;
    err   *e;
} reader;

static int print_path(char *out, size_t cap, const place *at)
{
    if (!at) return 0;
    int n = print_path(out, cap, at->up);
    if ((size_t)n >= cap) return n;
    if (!at->key) return n + snprintf(out + n, cap - (size_t)n, "[%zu]", at->index);
    return n + snprintf(out + n, cap - (size_t)n, "%s%s", at->up ? "." : "", at->key);
}

static bool bad_value(const reader *r, const place *at, const char *what)
{
    char path[128] = "";
    print_path(path, sizeof path, at);
    err_set(r->e, ERR_INPUT, "%s %s", at ? path : "the request", what);
    return err_blame(r->e, path, 0);
}

static bool no_memory(const reader *r) { return err_set(r->e, ERR_UNAVAILABLE, "out of memory to read the request"); }

static void *alloc_items(const reader *r, size_t n, size_t each)
{
    void *p = arena_try(r->mem, n, each);
    if (!p) no_memory(r);
    return p;
}

/* Reads a string member. Changes nothing when it is absent. given: may be NULL. */
static bool read_str(const reader *r, const place *up, const json_value *v, const char *key, str *out, bool *given)
{
    const json_value *s  = json_find(v, key);
    place             at = {up, key, 0};
    if (!s) return true;
    if (s->kind != JSON_STRING) return bad_value(r, &at, "must be a string");
    *out = s->s;
    if (given) *given = true;
    return true;
}

/* --- contents -----------------------------------------------------------------------------------*/
static bool part_kind(str type, chat_part_kind *out)
{
    static const struct {
        const char    *name;
        chat_part_kind kind;
    } known[] = {{"text", CHAT_TEXT},   {"input_text", CHAT_TEXT},   {"output_text", CHAT_TEXT},
                 {"image", CHAT_IMAGE}, {"image_url", CHAT_IMAGE},   {"input_image", CHAT_IMAGE},
                 {"audio", CHAT_AUDIO}, {"input_audio", CHAT_AUDIO}, {"audio_url", CHAT_AUDIO},
                 {"video", CHAT_VIDEO}, {"video_url", CHAT_VIDEO},   {"input_video", CHAT_VIDEO}};
    for (size_t i = 0; i < COUNT(known); i++)
        if (str_is(type, known[i].name)) {
            *out = known[i].kind;
            return true;
        }
    return false;
}

static bool read_part(const reader *r, const place *at, const json_value *v, chat_role role, chat_part *out)
{
    const json_value *type = json_find(v, "type");
    bool        refusal    = role == CHAT_ASSISTANT && type && type->kind == JSON_STRING && str_is(type->s, "refusal");
    const char *key        = refusal ? "refusal" : "text";
    const json_value *text = json_find(v, key);
    if (v->kind != JSON_OBJECT) return bad_value(r, at, "must be an object with a type");
    if (!refusal && (!type || type->kind != JSON_STRING || !part_kind(type->s, &out->kind)))
        return bad_value(r, &(place){at, "type", 0},
                         role == CHAT_ASSISTANT ? "must be text, refusal, image_url, input_audio or video_url"
                                                : "must be text, image_url, input_audio or video_url");
    if (out->kind != CHAT_TEXT) {
        out->source = v;
        return (role != CHAT_SYSTEM && role != CHAT_DEVELOPER) ||
               bad_value(r, at, "must be a text part: a system message has no media");
    }
    if (!text || text->kind != JSON_STRING) return bad_value(r, &(place){at, key, 0}, "must be a string");
    out->text = text->s;
    return true;
}

static bool read_parts(const reader *r, const place *at, const json_value *v, chat_role role, chat_content *out)
{
    *out = (chat_content){.kind = CHAT_PARTS, .n_parts = v->n};
    if (v->n && !(out->part = alloc_items(r, v->n, sizeof *out->part))) return false;
    for (size_t i = 0; i < v->n; i++)
        if (!read_part(r, &(place){at, NULL, i}, &v->item[i], role, &out->part[i])) return false;
    return true;
}

static bool read_content(const reader *r, const place *up, const json_value *v, chat_role role, chat_content *out)
{
    const json_value *c  = json_find(v, "content");
    place             at = {up, "content", 0};
    if (!c) return role == CHAT_ASSISTANT || role == CHAT_TOOL || bad_value(r, &at, "is missing");
    if (c->kind == JSON_ARRAY) return read_parts(r, &at, c, role, out);
    if (c->kind == JSON_STRING)
        *out = (chat_content){.kind = CHAT_STRING, .text = c->s};
    else if (role == CHAT_TOOL)
        *out = (chat_content){.kind = CHAT_VALUE, .value = c};
    else
        return bad_value(r, &at, "must be a string or a list of parts");
    return true;
}

/* --- tool calls ---------------------------------------------------------------------------------*/
/* Reads the arguments of a call, which clients send as JSON in a string. A string that is not JSON stays a string:
 * the renderer decides. */
static bool read_arguments(const reader *r, const json_value *v, const json_value **out)
{
    err e = {0};
    *out  = v;
    if (!v || v->kind != JSON_STRING) return true;
    if (!chat_trim(v->s).n) {
        *out = NULL;
        return true;
    }
    if (!json_parse(out, r->mem, v->s, NULL, &e)) *out = v;
    return e.code != ERR_UNAVAILABLE || no_memory(r);
}

static bool read_call(const reader *r, const place *at, const json_value *v, chat_call *out)
{
    const json_value *f  = json_find(v, "function");
    place             fn = {at, "function", 0};
    if (v->kind != JSON_OBJECT) return bad_value(r, at, "must be an object");
    if (!f || f->kind != JSON_OBJECT) return bad_value(r, &fn, "must be an object with a name and arguments");
    bool named = false;
    if (!read_str(r, at, v, "id", &out->id, &out->has_id) || !read_str(r, &fn, f, "name", &out->name, &named))
        return false;
    if (!read_arguments(r, json_find(f, "arguments"), &out->args)) return false;
    return named || bad_value(r, &(place){&fn, "name", 0}, "is missing");
}

/* Reads the former shape of a call: {"function_call": {"name": ..., "arguments": ...}}, without an id. */
static bool read_function_call(const reader *r, const place *up, const json_value *v, chat_message *m)
{
    const json_value *f     = json_find(v, "function_call");
    place             at    = {up, "function_call", 0};
    bool              named = false;
    if (!f) return true;
    if (f->kind != JSON_OBJECT) return bad_value(r, &at, "must be an object with a name and arguments");
    if (m->role != CHAT_ASSISTANT) return bad_value(r, &at, "is only allowed in an assistant message");
    if (!(m->call = alloc_items(r, 1, sizeof *m->call))) return false;
    m->n_calls = 1;
    if (!read_str(r, &at, f, "name", &m->call->name, &named)) return false;
    if (!read_arguments(r, json_find(f, "arguments"), &m->call->args)) return false;
    return named || bad_value(r, &(place){&at, "name", 0}, "is missing");
}

static bool read_calls(const reader *r, const place *up, const json_value *v, chat_message *m)
{
    const json_value *list = json_find(v, "tool_calls");
    place             at   = {up, "tool_calls", 0};
    if (list && list->kind != JSON_ARRAY) return bad_value(r, &at, "must be a list");
    if (!list || !list->n) return read_function_call(r, up, v, m);
    if (m->role != CHAT_ASSISTANT) return bad_value(r, &at, "is only allowed in an assistant message");
    if (list->n > CHAT_MAX_CALLS) return bad_value(r, &at, "has more than 256 calls");
    if (!(m->call = alloc_items(r, list->n, sizeof *m->call))) return false;
    m->n_calls = list->n;
    for (size_t i = 0; i < list->n; i++)
        if (!read_call(r, &(place){&at, NULL, i}, &list->item[i], &m->call[i])) return false;
    return true;
}

static bool read_responses(const reader *r, const place *up, const json_value *v, chat_message *m)
{
    const json_value *list = json_find(v, "tool_responses");
    place             at   = {up, "tool_responses", 0};
    if (!list) return true;
    if (list->kind != JSON_ARRAY) return bad_value(r, &at, "must be a list");
    if (list->n && m->role != CHAT_ASSISTANT) return bad_value(r, &at, "is only allowed in an assistant message");
    if (list->n && !(m->response = alloc_items(r, list->n, sizeof *m->response))) return false;
    m->n_responses = list->n;
    for (size_t i = 0; i < list->n; i++) {
        place item              = {&at, NULL, i};
        m->response[i].response = json_get(&list->item[i], "response");
        if (!m->response[i].response) return bad_value(r, &(place){&item, "response", 0}, "is missing");
        if (!read_str(r, &item, &list->item[i], "name", &m->response[i].name, NULL)) return false;
    }
    return true;
}

/* --- messages -----------------------------------------------------------------------------------*/
static bool read_role(const reader *r, const place *up, const json_value *v, chat_role *out)
{
    static const char *const name[] = {"system", "developer", "user", "assistant", "tool", "function"};
    const json_value        *role   = json_find(v, "role");
    for (size_t i = 0; role && role->kind == JSON_STRING && i < COUNT(name); i++)
        if (str_is(role->s, name[i])) {
            *out = i <= CHAT_TOOL ? (chat_role)i : CHAT_TOOL; /* "function" is the former "tool" */
            return true;
        }
    return bad_value(r, &(place){up, "role", 0}, "must be system, developer, user, assistant or tool");
}

static bool read_reasoning(const reader *r, const place *at, const json_value *v, str *out)
{
    if (!read_str(r, at, v, "reasoning", out, NULL)) return false;
    return out->n || read_str(r, at, v, "reasoning_content", out, NULL);
}

static bool read_message(const reader *r, const place *at, const json_value *v, chat_message *m)
{
    if (v->kind != JSON_OBJECT) return bad_value(r, at, "must be an object with role and content");
    if (!read_role(r, at, v, &m->role) || !read_content(r, at, v, m->role, &m->content) || !read_calls(r, at, v, m) ||
        !read_responses(r, at, v, m))
        return false;
    if (m->role == CHAT_ASSISTANT) return read_reasoning(r, at, v, &m->reasoning);
    return m->role != CHAT_TOOL || (read_str(r, at, v, "tool_call_id", &m->call_id, &m->has_call_id) &&
                                    read_str(r, at, v, "name", &m->name, NULL));
}

static bool read_messages(const reader *r, const json_value *request, chat *c)
{
    const json_value *list = json_find(request, "messages");
    place             at   = {NULL, "messages", 0};
    if (!list || list->kind != JSON_ARRAY || !list->n)
        return bad_value(r, &at, "must be a list with at least one message");
    if (list->n > CHAT_MAX_MESSAGES) return bad_value(r, &at, "has more than 65536 messages");
    if (!(c->message = alloc_items(r, list->n, sizeof *c->message))) return false;
    c->n = c->cap = list->n;
    for (size_t i = 0; i < list->n; i++)
        if (!read_message(r, &(place){&at, NULL, i}, &list->item[i], &c->message[i])) return false;
    return true;
}

/* --- tools and options --------------------------------------------------------------------------*/
static bool read_function(const reader *r, const place *fn, const json_value *f, chat_tool *out)
{
    const json_value *strict = json_find(f, "strict");
    bool              named  = false;
    if (!f || f->kind != JSON_OBJECT) return bad_value(r, fn, "must be an object with a name and parameters");
    if (!read_str(r, fn, f, "name", &out->name, &named)) return false;
    out->description = json_find(f, "description");
    out->parameters  = json_find(f, "parameters");
    out->response    = json_get(f, "response");
    out->strict      = strict && strict->kind == JSON_BOOL && strict->b;
    if (strict && strict->kind != JSON_BOOL) return bad_value(r, &(place){fn, "strict", 0}, "must be true or false");
    if (out->parameters && out->parameters->kind != JSON_OBJECT)
        return bad_value(r, &(place){fn, "parameters", 0}, "must be an object: a JSON schema");
    return named || bad_value(r, &(place){fn, "name", 0}, "is missing");
}

static bool read_tool(const reader *r, const place *at, const json_value *v, chat_tool *out)
{
    out->source = v;
    return read_function(r, &(place){at, "function", 0}, json_find(v, "function"), out);
}

/* Ignores tools of other types, which are for servers that run them. */
static bool is_function(const json_value *v)
{
    const json_value *type = json_find(v, "type");
    return !type || type->kind != JSON_STRING || str_is(type->s, "function");
}

static bool read_functions(const reader *r, const json_value *request, chat *c)
{
    const json_value *list = json_find(request, "functions");
    place             at   = {NULL, "functions", 0};
    if (!list) return true;
    if (list->kind != JSON_ARRAY) return bad_value(r, &at, "must be a list");
    if (list->n && !(c->tool = alloc_items(r, list->n, sizeof *c->tool))) return false;
    c->by_functions = true;
    for (; c->n_tools < list->n; c->n_tools++)
        if (!read_function(r, &(place){&at, NULL, c->n_tools}, &list->item[c->n_tools], &c->tool[c->n_tools]))
            return false;
    return true;
}

static bool read_tools(const reader *r, const json_value *request, chat *c)
{
    const json_value *list = json_find(request, "tools");
    place             at   = {NULL, "tools", 0};
    if (list && json_find(request, "functions")) return bad_value(r, &at, "and functions exclude each other");
    if (!list) return read_functions(r, request, c);
    if (list->kind != JSON_ARRAY) return bad_value(r, &at, "must be a list");
    if (list->n && !(c->tool = alloc_items(r, list->n, sizeof *c->tool))) return false;
    for (size_t i = 0; i < list->n; i++) {
        if (!is_function(&list->item[i])) continue;
        if (!read_tool(r, &(place){&at, NULL, i}, &list->item[i], &c->tool[c->n_tools++])) return false;
    }
    return true;
}

static bool read_wish(const reader *r, const place *up, const json_value *v, const char *key, chat_wish *out)
{
    const json_value *b = json_find(v, key);
    if (b && b->kind != JSON_BOOL) return bad_value(r, &(place){up, key, 0}, "must be true or false");
    if (b) *out = b->b ? CHAT_YES : CHAT_NO;
    return true;
}

static bool read_wishes(const reader *r, const place *up, const json_value *v, chat *c)
{
    return read_wish(r, up, v, "enable_thinking", &c->thinking) &&
           read_wish(r, up, v, "preserve_thinking", &c->preserve_thinking) &&
           read_wish(r, up, v, "add_vision_id", &c->add_vision_id) &&
           read_wish(r, up, v, "add_generation_prompt", &c->add_generation_prompt) &&
           read_str(r, up, v, "reasoning_effort", &c->effort, NULL);
}

/* Removes the last message from the conversation and makes it the beginning of the response. */
static bool read_prefill(const reader *r, const json_value *request, chat *c)
{
    chat_wish wanted = CHAT_UNSAID;
    if (!read_wish(r, NULL, request, "continue_final_message", &wanted)) return false;
    if (wanted != CHAT_YES) return true;
    if (c->add_generation_prompt == CHAT_YES)
        return bad_value(r, &(place){NULL, "continue_final_message", 0},
                         "and add_generation_prompt exclude each other");
    place         list = {NULL, "messages", 0}, at = {&list, NULL, c->n ? c->n - 1 : 0};
    chat_message *m = c->n ? &c->message[c->n - 1] : NULL;
    if (c->n < 2 || m->role != CHAT_ASSISTANT || m->n_calls || m->n_responses || m->reasoning.n)
        return bad_value(r, &at, "cannot be continued: it must be an assistant's text, without calls or reasoning");
    if (m->content.kind == CHAT_STRING)
        c->prefill = m->content.text;
    else if (m->content.kind == CHAT_PARTS && !chat_join(c->mem, &m->content, "", &c->prefill))
        return no_memory(r);
    c->n--;
    c->add_generation_prompt = CHAT_YES;
    return true;
}

bool chat_parse(chat **out, arena *mem, const json_value *request, err *e)
{
    reader            r      = {mem, e};
    const json_value *kwargs = json_find(request, "chat_template_kwargs");
    place             at     = {NULL, "chat_template_kwargs", 0};
    *out                     = NULL;
    if (!request || request->kind != JSON_OBJECT) return err_set(e, ERR_INPUT, "the request must be an object");
    if (kwargs && kwargs->kind != JSON_OBJECT) return bad_value(&r, &at, "must be an object");
    chat *c = alloc_items(&r, 1, sizeof *c);
    if (!c) return false;
    c->mem = mem;
    if (!read_messages(&r, request, c) || !read_tools(&r, request, c) || !read_wishes(&r, NULL, request, c) ||
        !read_wishes(&r, &at, kwargs, c) || !read_prefill(&r, request, c))
        return false;
    *out = c;
    return true;
}
