#include "base/mem.h"
#include "server/ollama_reader.h"

#include <stdio.h>

enum { MAX_IMAGES = 4096 }; /* per message; the setting media_max_items is no larger */

/* --- messages -----------------------------------------------------------------------------------*/
static bool is_text(const json_value *v) { return v && v->kind == JSON_STRING; }

static bool bad_member(const ollama_reader *r, size_t i, const char *member, const char *what)
{
    char path[64];
    snprintf(path, sizeof path, "messages[%zu]%s%s", i, member ? "." : "", member ? member : "");
    return ollama_bad(r, path, what);
}

static bool add_role(const ollama_reader *r, const json_value *m, size_t i, json_value *out, str *role)
{
    const json_value *v = json_find(m, "role");
    char             *copy;
    if (!is_text(v)) return bad_member(r, i, "role", "must be system, user, assistant or tool");
    if (!(copy = arena_str(&r->q->mem, v->s))) return error_no_memory(r->why);
    for (size_t k = 0; k < v->s.n; k++)
        if (copy[k] >= 'A' && copy[k] <= 'Z') copy[k] = (char)(copy[k] | 0x20);
    *role = (str){copy, v->s.n};
    ollama_put(out, "role", json_of_text(*role));
    return true;
}

bool ollama_add_content(const ollama_reader *r, str text, const json_value *images, json_value *out)
{
    json_value all;
    size_t     n = images && images->kind == JSON_ARRAY ? images->n : 0;
    if (!n) {
        ollama_put(out, "content", json_of_text(text));
        return true;
    }
    if (n > MAX_IMAGES) return ollama_bad(r, "images", "has more than 4096 items");
    if (!ollama_new_list(r, n + 1, &all)) return false;
    for (size_t i = 0; i <= n; i++) {
        if (!ollama_new_object(r, &all.item[i])) return false;
        ollama_put(&all.item[i], "type", json_of_text(i < n ? STR("image") : STR("text")));
        ollama_put(&all.item[i], i < n ? "data" : "text", i < n ? images->item[i] : json_of_text(text));
    }
    if (!text.n) all.n = n;
    ollama_put(out, "content", all);
    return true;
}

static bool add_content(const ollama_reader *r, const json_value *m, size_t i, json_value *out)
{
    const json_value *v = json_find(m, "content"), *images = json_find(m, "images");
    if (v && !is_text(v)) return bad_member(r, i, "content", "must be a string");
    if (images && images->kind != JSON_ARRAY) return bad_member(r, i, "images", "must be a list of base64 strings");
    return ollama_add_content(r, is_text(v) ? v->s : STR(""), images, out);
}

/* --- calls and their answers --------------------------------------------------------------------*/
typedef struct {
    str  id, name;
    bool answered;
} call;

typedef struct {
    call   of[CHAT_MAX_CALLS]; /* calls of the last message with calls */
    size_t n, n_all;           /* n_all: of all messages */
} call_list;

/* Gives a call without an id one. */
static bool add_call(const ollama_reader *r, const json_value *v, size_t i, json_value *out, call_list *calls)
{
    const json_value *f = json_find(v, "function"), *id = ollama_find_given(v, "id"), *name = json_find(f, "name");
    char              made[32];
    if (v->kind != JSON_OBJECT || !f || f->kind != JSON_OBJECT || !is_text(name))
        return bad_member(r, i, "tool_calls", "must be objects with a function that has a name");
    if (id && !is_text(id)) return bad_member(r, i, "tool_calls", "must have ids that are strings");
    snprintf(made, sizeof made, "call_%zu", calls->n_all++);
    char *copy = arena_str(&r->q->mem, str_of(made));
    if (!copy || !ollama_new_object(r, out)) return error_no_memory(r->why);
    str given             = id ? id->s : str_of(copy);
    calls->of[calls->n++] = (call){.id = given, .name = name->s};
    ollama_put(out, "id", json_of_text(given));
    ollama_put(out, "function", *f);
    return true;
}

static bool add_calls(const ollama_reader *r, const json_value *m, size_t i, json_value *out, call_list *calls)
{
    const json_value *list = json_find(m, "tool_calls");
    json_value        all;
    if (!list) return true;
    if (list->kind != JSON_ARRAY) return bad_member(r, i, "tool_calls", "must be a list");
    if (list->n > CHAT_MAX_CALLS) return bad_member(r, i, "tool_calls", "has more than 256 calls");
    if (!list->n) return true;
    if (!ollama_new_list(r, list->n, &all)) return false;
    calls->n = 0;
    for (size_t k = 0; k < list->n; k++)
        if (!add_call(r, &list->item[k], i, &all.item[k], calls)) return false;
    ollama_put(out, "tool_calls", all);
    return true;
}

/* Finds the call that a tool's message answers: by its id, else by the tool's name, else the next one in order. Returns
 * NULL where there is none. */
static call *find_answered(call_list *calls, const json_value *id, const json_value *name)
{
    for (size_t i = 0; id && i < calls->n; i++)
        if (str_eq(calls->of[i].id, id->s)) return &calls->of[i];
    for (size_t i = 0; name && i < calls->n; i++)
        if (!calls->of[i].answered && str_eq(calls->of[i].name, name->s)) return &calls->of[i];
    for (size_t i = 0; !name && i < calls->n; i++)
        if (!calls->of[i].answered) return &calls->of[i];
    return NULL;
}

static bool add_answered(const ollama_reader *r, const json_value *m, size_t i, json_value *out, call_list *calls)
{
    const json_value *id = ollama_find_given(m, "tool_call_id"), *name = ollama_find_given(m, "tool_name");
    if (!name) name = ollama_find_given(m, "name");
    if ((id && !is_text(id)) || (name && !is_text(name)))
        return bad_member(r, i, id && !is_text(id) ? "tool_call_id" : "tool_name", "must be a string");
    call *found = find_answered(calls, id, name);
    if (found) found->answered = true;
    if (found) ollama_put(out, "tool_call_id", json_of_text(found->id));
    if (!found && id) ollama_put(out, "tool_call_id", *id);
    if (name) ollama_put(out, "name", *name);
    return true;
}

static bool add_message(const ollama_reader *r, const json_value *m, size_t i, json_value *out, call_list *calls)
{
    const json_value *thinking = ollama_find_given(m, "thinking");
    str               role     = {0};
    if (m->kind != JSON_OBJECT) return bad_member(r, i, NULL, "must be an object with role and content");
    if (!ollama_new_object(r, out) || !add_role(r, m, i, out, &role)) return false;
    bool is_tool = str_is(role, "tool");
    if (!add_content(r, m, i, out) || !add_calls(r, m, i, out, calls)) return false;
    if (thinking && !is_text(thinking)) return bad_member(r, i, "thinking", "must be a string");
    if (thinking) ollama_put(out, "reasoning_content", *thinking);
    return !is_tool || add_answered(r, m, i, out, calls);
}

/* Returns whether the last message is an answer that was begun, which the model goes on with. */
static bool is_begun(const json_value *all)
{
    const json_value *m = &all->item[all->n - 1];
    return all->n > 1 && str_is(json_get(m, "role")->s, "assistant") && json_get(m, "content")->kind == JSON_STRING &&
           json_get(m, "content")->s.n && !json_get(m, "tool_calls") && !json_get(m, "reasoning_content");
}

bool ollama_add_messages(ollama_reader *r, const json_value *list)
{
    json_value        all;
    call_list        *calls = arena_try(&r->q->mem, 1, sizeof *calls);
    const json_value *tools = json_find(r->from, "tools");
    if (!calls) return error_no_memory(r->why);
    if (list->n > CHAT_MAX_MESSAGES) return ollama_bad(r, "messages", "has more than 65536 items");
    if (!ollama_new_list(r, list->n, &all)) return false;
    for (size_t i = 0; i < list->n; i++)
        if (!add_message(r, &list->item[i], i, &all.item[i], calls)) return false;
    ollama_put(&r->body, "messages", all);
    if (tools) ollama_put(&r->body, "tools", *tools);
    if (is_begun(&all)) ollama_put(&r->body, "continue_final_message", json_of_bool(true));
    return true;
}

/* --- long conversations -------------------------------------------------------------------------*/
/* Returns the place of the first message after n turns. */
static size_t after_turns(const chat *c, size_t from, size_t n)
{
    size_t i = from;
    for (; n && i < c->n; n--) do
            i++;
        while (i < c->n && c->message[i].role != CHAT_USER);
    return i;
}

static size_t n_leading(const chat *c)
{
    size_t n = 0;
    while (n < c->n && chat_is_system(&c->message[n])) n++;
    return n;
}

size_t ollama_turns(const chat *c)
{
    size_t n = 0;
    for (size_t i = n_leading(c); i < c->n; n++) i = after_turns(c, i, 1);
    return n;
}

bool ollama_leave_out(chat *c, const chat *whole, size_t n, server_error *why)
{
    size_t lead = n_leading(whole), from = after_turns(whole, lead, n);
    c->n       = lead + whole->n - from;
    c->message = arena_try(whole->mem, c->n + 1, sizeof *c->message);
    if (!c->message) return error_no_memory(why);
    memcpy(c->message, whole->message, lead * sizeof *c->message);
    memcpy(c->message + lead, whole->message + from, (whole->n - from) * sizeof *c->message);
    c->cap = c->n;
    return true;
}
