#include "server/responses.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>

enum { MAX_TOOLS = 1024 };

typedef struct {
    server_request *r;
    chat           *chat;
    server_error   *why;
    size_t          item;     /* index of the current item of the input */
    size_t          n_tools;  /* tools read so far */
    bool            in_turn;  /* the last message is the model's and may continue */
    chat_content    thoughts; /* for the next message of the model */
} reader;

/* --- complaints ---------------------------------------------------------------------------------*/
/* Refuses an item of the input. The message is the path of the item followed by fmt. */
static bool bad_item(const reader *in, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool bad_item(const reader *in, const char *fmt, ...)
{
    char    text[256], param[96];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(param, sizeof param, "input[%zu]%.*s", in->item, (int)strcspn(text, " "), text);
    return error_set(in->why, 400, param, NULL, "input[%zu]%s.", in->item, text);
}

/* --- values -------------------------------------------------------------------------------------*/
static str string(const json_value *v, const char *key)
{
    const json_value *m = json_find(v, key);
    return m && m->kind == JSON_STRING ? m->s : (str){0};
}

static bool is(const json_value *v, const char *key, const char *word) { return str_is(string(v, key), word); }

/* Returns an object of one or two members. */
static json_value *object(arena *mem, const char *key1, json_value v1, const char *key2, json_value v2)
{
    json_value *v = arena_try(mem, 1, sizeof *v);
    if (!v || !(v->member = arena_try(mem, 2, sizeof *v->member))) return NULL;
    v->kind      = JSON_OBJECT;
    v->n         = key2 ? 2 : 1;
    v->member[0] = (json_member){str_of(key1), v1};
    if (key2) v->member[1] = (json_member){str_of(key2), v2};
    return v;
}

/* Returns an array with room for item n; copies a full array to one twice as large. NULL: no memory. */
static void *grow_array(arena *mem, void *items, size_t n, size_t each)
{
    if (n & (n - 1)) return items; /* no power of two: it is not full */
    void *grown = arena_try(mem, n ? 2 * n : 1, each);
    if (grown && n) memcpy(grown, items, n * each);
    return grown;
}

/* --- fields -------------------------------------------------------------------------------------*/
bool responses_includes(const server_request *r, const char *what)
{
    const json_value *list = r->f.responses.include;
    for (size_t i = 0; list && i < list->n; i++)
        if (list->item[i].kind == JSON_STRING && str_is(list->item[i].s, what)) return true;
    return false;
}

static bool refuse_stored(const server_request *r, server_error *why)
{
    const server_fields *f = &r->f;
    if (f->responses.background)
        return error_set(why, 400, "background", "unsupported_value",
                         "'background' can only be false: a response lives as long as its request.");
    const char *name = f->responses.previous_response_id ? "previous_response_id"
                       : f->responses.conversation       ? "conversation"
                       : f->responses.stored_prompt      ? "prompt"
                                                         : NULL;
    return !name || error_set(why, 400, name, "unsupported_value",
                              "'%s' is not supported: nothing is stored here. Please send the whole conversation as "
                              "'input'.",
                              name);
}

/* {"type":"json_schema","name":N,"schema":S} as {"type":"json_schema","json_schema":{"name":N,"schema":S}} */
static bool translate_format(server_request *r, server_error *why)
{
    if (!r->f.response_format || !str_is(r->f.response_type, "json_schema")) return true;
    r->f.response_format =
        object(&r->mem, "type", json_of_text(r->f.response_type), "json_schema", *r->f.response_format);
    return r->f.response_format || error_no_memory(why);
}

/* {"type":"function","name":N} as {"type":"function","function":{"name":N}}; of allowed tools their mode. */
static bool translate_choice(server_request *r, server_error *why)
{
    const json_value *v = r->f.tool_choice;
    if (!v || v->kind != JSON_OBJECT) return true;
    if (is(v, "type", "allowed_tools")) {
        const json_value *mode = json_find(v, "mode"), *list = json_find(v, "tools");
        if (!list || list->kind != JSON_ARRAY || list->n > MAX_TOOLS)
            return error_set(why, 400, "tool_choice", NULL, "'tool_choice.tools' must be a list of up to %d tools.",
                             MAX_TOOLS);
        json_value *copy = arena_try(&r->mem, 1, sizeof *copy);
        if (!copy) return error_no_memory(why);
        *copy                        = mode ? *mode : json_of_text(STR("auto"));
        r->f.tool_choice             = copy;
        r->f.responses.allowed_tools = list;
        return true;
    }
    str name = string(v, "name");
    if (!name.s || !(is(v, "type", "function") || is(v, "type", "custom")))
        return error_set(why, 400, "tool_choice", "unsupported_value",
                         "'tool_choice' must be auto, none, required, a function by its name, or allowed_tools.");
    json_value *named = object(&r->mem, "name", json_of_text(name), NULL, (json_value){0});
    if (!named) return error_no_memory(why);
    r->named_choice  = &named->member[0].value;
    r->f.tool_choice = object(&r->mem, "type", json_of_text(STR("function")), "function", *named);
    return r->f.tool_choice || error_no_memory(why);
}

bool responses_translate(server_request *r, server_error *why)
{
    if (r->f.top_logprobs > 0 || responses_includes(r, "message.output_text.logprobs")) r->f.want_logprobs = true;
    return refuse_stored(r, why) && translate_format(r, why) && translate_choice(r, why);
}

/* --- tools --------------------------------------------------------------------------------------*/
static bool is_allowed(const server_request *r, str name)
{
    const json_value *list = r->f.responses.allowed_tools;
    for (size_t i = 0; list && i < list->n; i++)
        if (str_eq(string(&list->item[i], "name"), name)) return true;
    return !list;
}

static bool name_tool(reader *in, response_tool *t)
{
    chat_part    part[] = {{.text = t->space}, {.text = t->name}};
    chat_content both   = {.part = part, .n_parts = COUNT(part)};
    t->shown            = t->name;
    return !t->space.n || chat_join(&in->r->mem, &both, ".", &t->shown) || error_no_memory(in->why);
}

static const json_value *custom_parameters(arena *mem)
{
    const json_value *v;
    const str         schema = STR("{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\","
                                           "\"description\":\"All of the input, as it is\"}},"
                                           "\"required\":[\"input\"]}");
    return json_parse(&v, mem, schema, NULL, NULL) ? v : NULL;
}

static bool add_tool(reader *in, const json_value *v, str space)
{
    server_request   *r          = in->r;
    response_tool     t          = {.name = string(v, "name"), .space = space, .custom = is(v, "type", "custom")};
    const json_value *parameters = json_find(v, "parameters"), *strict = json_find(v, "strict");
    if (!t.custom && !is(v, "type", "function")) return true;
    if (!t.name.n) return error_set(in->why, 400, "tools", NULL, "A tool of 'tools' has no name.");
    if (strict && strict->kind != JSON_BOOL)
        return error_set(in->why, 400, "tools", NULL, "'strict' of the tool %.*s must be true or false.",
                         (int)(t.name.n < 64 ? t.name.n : 64), t.name.s);
    if (parameters && parameters->kind != JSON_OBJECT)
        return error_set(in->why, 400, "tools", NULL, "'parameters' of the tool %.*s must be an object: a JSON schema.",
                         (int)(t.name.n < 64 ? t.name.n : 64), t.name.s);
    if (in->n_tools++ == MAX_TOOLS)
        return error_set(in->why, 400, "tools", NULL, "'tools' has more than %d tools.", MAX_TOOLS);
    if (!is_allowed(r, t.name)) return true;
    if (!name_tool(in, &t)) return false;
    if (t.custom && !(parameters = custom_parameters(&r->mem))) return error_no_memory(in->why);
    in->chat->tool[in->chat->n_tools] = (chat_tool){.name        = t.shown,
                                                    .description = json_find(v, "description"),
                                                    .parameters  = parameters,
                                                    .strict      = strict && strict->b};
    r->tool[in->chat->n_tools++]      = t;
    return true;
}

static bool add_space(reader *in, const json_value *v)
{
    const json_value *list = json_find(v, "tools");
    for (size_t i = 0; list && list->kind == JSON_ARRAY && i < list->n; i++)
        if (!add_tool(in, &list->item[i], string(v, "name"))) return false;
    return true;
}

/* Replaces the name in tool_choice by the name that the model is shown. */
static void name_choice(server_request *r)
{
    if (!r->named_choice) return;
    for (size_t i = 0; i < r->n_tools; i++)
        if (str_eq(r->tool[i].name, r->named_choice->s)) r->named_choice->s = r->tool[i].shown;
}

static bool read_tools(reader *in)
{
    const json_value *list = in->r->f.tools;
    if (!list || !list->n) return true;
    in->chat->tool = arena_try(&in->r->mem, MAX_TOOLS, sizeof *in->chat->tool);
    in->r->tool    = arena_try(&in->r->mem, MAX_TOOLS, sizeof *in->r->tool);
    if (!in->chat->tool || !in->r->tool) return error_no_memory(in->why);
    for (size_t i = 0; i < list->n; i++) {
        const json_value *v = &list->item[i];
        if (!(is(v, "type", "namespace") ? add_space(in, v) : add_tool(in, v, (str){0}))) return false;
    }
    in->r->n_tools = in->chat->n_tools;
    name_choice(in->r);
    return true;
}

const response_tool *responses_tool(const server_request *r, str shown)
{
    for (size_t i = 0; i < r->n_tools; i++)
        if (str_eq(r->tool[i].shown, shown)) return &r->tool[i];
    return NULL;
}

/* --- contents -----------------------------------------------------------------------------------*/
static chat_part_kind part_kind(const json_value *v)
{
    if (is(v, "type", "input_image")) return CHAT_IMAGE;
    if (is(v, "type", "input_video")) return CHAT_VIDEO;
    return is(v, "type", "input_audio") ? CHAT_AUDIO : CHAT_TEXT;
}

static bool read_part(const reader *in, const char *key, size_t i, const json_value *v, bool of_tool, chat_part *out)
{
    bool              refusal = is(v, "type", "refusal");
    const json_value *text    = json_find(v, refusal ? "refusal" : "text");
    *out                      = (chat_part){.kind = part_kind(v), .source = v};
    if (out->kind != CHAT_TEXT) return true;
    if (is(v, "type", "input_file")) {
        out->text = STR(ERROR_NOT_SHOWN);
        return of_tool || (bad_item(in, ".%s[%zu] must be text or an image: files are not supported", key, i),
                           in->why->code = "unsupported_value", false);
    }
    if (!refusal && !is(v, "type", "input_text") && !is(v, "type", "output_text") && !is(v, "type", "text"))
        return bad_item(in, ".%s[%zu].type must be input_text, input_image, input_video, output_text or refusal", key,
                        i);
    if (!text || text->kind != JSON_STRING) return bad_item(in, ".%s[%zu].text must be a string", key, i);
    out->text = text->s;
    return true;
}

static bool read_content(const reader *in, const json_value *v, const char *key, bool of_tool, chat_content *out)
{
    const json_value *c = json_find(v, key);
    if (!c || (c->kind != JSON_STRING && c->kind != JSON_ARRAY))
        return bad_item(in, ".%s must be a string or a list of parts", key);
    *out = (chat_content){.kind = CHAT_STRING, .text = c->s};
    if (c->kind == JSON_STRING) return true;
    *out = (chat_content){.kind = CHAT_PARTS, .n_parts = c->n};
    if (c->n && !(out->part = arena_try(&in->r->mem, c->n, sizeof *out->part))) return error_no_memory(in->why);
    for (size_t i = 0; i < c->n; i++)
        if (!read_part(in, key, i, &c->item[i], of_tool, &out->part[i])) return false;
    return true;
}

/* --- items --------------------------------------------------------------------------------------*/
static chat_message *add_message_of(reader *in, chat_role role)
{
    chat_message *m = chat_add(in->chat, role, (str){0});
    in->in_turn     = role == CHAT_ASSISTANT;
    if (!m || (in->in_turn && !chat_join(&in->r->mem, &in->thoughts, "\n", &m->reasoning))) {
        error_no_memory(in->why);
        return NULL;
    }
    in->thoughts = (chat_content){0};
    return m;
}

/* Returns the current message of the model. Reasoning begins a new message, and so does a text after a text. */
static chat_message *message_of_turn(reader *in, bool for_text)
{
    chat_message *last    = in->in_turn ? &in->chat->message[in->chat->n - 1] : NULL;
    bool          goes_on = last && !in->thoughts.n_parts && (!for_text || last->content.kind == CHAT_NO_CONTENT);
    return goes_on ? last : add_message_of(in, CHAT_ASSISTANT);
}

static bool read_message(reader *in, const json_value *v)
{
    static const struct {
        const char *name;
        chat_role   role;
    } known[] = {
        {"user", CHAT_USER}, {"assistant", CHAT_ASSISTANT}, {"system", CHAT_SYSTEM}, {"developer", CHAT_DEVELOPER}};
    chat_message *m = NULL;
    for (size_t i = 0; i < COUNT(known); i++) {
        if (!is(v, "role", known[i].name)) continue;
        m = known[i].role == CHAT_ASSISTANT ? message_of_turn(in, true) : add_message_of(in, known[i].role);
        if (!m) return false;
    }
    if (!m) return bad_item(in, ".role must be user, assistant, system or developer");
    return read_content(in, v, "content", false, &m->content);
}

static bool add_call(reader *in, const json_value *v, str name, const json_value *args)
{
    chat_message *m = message_of_turn(in, false);
    if (!m) return false;
    if (m->n_calls == CHAT_MAX_CALLS) return bad_item(in, " is one of more than %d calls in a turn", CHAT_MAX_CALLS);
    if (!(m->call = grow_array(&in->r->mem, m->call, m->n_calls, sizeof *m->call))) return error_no_memory(in->why);
    m->call[m->n_calls++] = (chat_call){.has_id = true, .id = string(v, "call_id"), .name = name, .args = args};
    return true;
}

static bool read_function_call(reader *in, const json_value *v)
{
    response_tool     t    = {.name = string(v, "name"), .space = string(v, "namespace")};
    const json_value *text = json_find(v, "arguments"), *args = NULL;
    if (!t.name.n) return bad_item(in, ".name must be the name of a function");
    if (!text || text->kind != JSON_STRING) return bad_item(in, ".arguments must be a string");
    if (chat_trim(text->s).n && !json_parse(&args, &in->r->mem, text->s, NULL, NULL)) args = text;
    return name_tool(in, &t) && add_call(in, v, t.shown, args);
}

static bool read_custom_call(reader *in, const json_value *v)
{
    const json_value *input = json_find(v, "input");
    response_tool     t     = {.name = string(v, "name"), .space = string(v, "namespace")};
    if (!t.name.n) return bad_item(in, ".name must be the name of a tool");
    if (!input || input->kind != JSON_STRING) return bad_item(in, ".input must be a string");
    const json_value *args = object(&in->r->mem, "input", *input, NULL, (json_value){0});
    return args ? name_tool(in, &t) && add_call(in, v, t.shown, args) : error_no_memory(in->why);
}

static bool read_shell_call(reader *in, const json_value *v)
{
    const json_value *action = json_find(v, "action");
    if (!action || action->kind != JSON_OBJECT) return bad_item(in, ".action must be an object");
    return add_call(in, v, STR("local_shell"), action);
}

static bool read_output(reader *in, const json_value *v)
{
    str           id = string(v, "call_id");
    chat_message *m  = add_message_of(in, CHAT_TOOL);
    if (!m) return false;
    if (!id.s) id = string(v, "id"); /* in a local_shell_call_output */
    if (!id.s) return bad_item(in, ".call_id must be that of a call");
    m->has_call_id = true;
    m->call_id     = id;
    return read_content(in, v, "output", true, &m->content);
}

static bool add_thought(reader *in, str text)
{
    chat_content *t = &in->thoughts;
    if (!text.n) return true;
    if (!(t->part = grow_array(&in->r->mem, t->part, t->n_parts, sizeof *t->part))) return error_no_memory(in->why);
    t->part[t->n_parts++] = (chat_part){.kind = CHAT_TEXT, .text = text};
    return true;
}

static bool add_thoughts(reader *in, const json_value *list)
{
    for (size_t i = 0; list && list->kind == JSON_ARRAY && i < list->n; i++)
        if (!add_thought(in, string(&list->item[i], "text"))) return false;
    return true;
}

/* Reads reasoning as clear text, as our encrypted_content, or as its summary. Content encrypted by others is
 * ignored. */
static bool read_reasoning(reader *in, const json_value *v)
{
    const size_t n = strlen(RESPONSES_SEAL), before = in->thoughts.n_parts;
    str          seal = string(v, "encrypted_content");
    if (!add_thoughts(in, json_find(v, "content"))) return false;
    if (in->thoughts.n_parts > before) return true;
    if (str_starts(seal, RESPONSES_SEAL) && seal.n > n) return add_thought(in, (str){seal.s + n, seal.n - n});
    return add_thoughts(in, json_find(v, "summary"));
}

static bool refuse_reference(reader *in, const json_value *v)
{
    (void)v;
    bad_item(in,
             ".type cannot be item_reference: nothing is stored here, please send the item itself (clients do so where "
             "'store' is false)");
    in->why->code = "unsupported_value";
    return false;
}

static bool read_item(reader *in, const json_value *v)
{
    static const struct {
        const char *type;
        bool (*read)(reader *in, const json_value *v);
    } known[] = {
        {"message", read_message},
        {"reasoning", read_reasoning},
        {"function_call", read_function_call},
        {"custom_tool_call", read_custom_call},
        {"local_shell_call", read_shell_call},
        {"function_call_output", read_output},
        {"custom_tool_call_output", read_output},
        {"local_shell_call_output", read_output},
        {"item_reference", refuse_reference},
    };
    str type = string(v, "type");
    if (!type.s && json_find(v, "role")) return read_message(in, v);
    if (!type.s) return bad_item(in, " must be an object with a type, or with a role");
    for (size_t i = 0; i < COUNT(known); i++)
        if (str_is(type, known[i].type)) return known[i].read(in, v);
    return true;
}

static bool bad_input(server_error *why)
{
    return error_set(why, 400, "input", NULL, "'input' must be a text, or a list of items.");
}

static bool read_input(reader *in)
{
    const json_value *v = in->r->f.responses.input;
    if (!v || (v->kind != JSON_STRING && v->kind != JSON_ARRAY)) return bad_input(in->why);
    if (v->kind == JSON_STRING) return chat_add(in->chat, CHAT_USER, v->s) || error_no_memory(in->why);
    if (v->n > CHAT_MAX_MESSAGES)
        return error_set(in->why, 400, "input", NULL, "'input' has more than %d items.", CHAT_MAX_MESSAGES);
    for (in->item = 0; in->item < v->n; in->item++)
        if (!read_item(in, &v->item[in->item])) return false;
    return in->chat->n || bad_input(in->why);
}

/* --- system texts -------------------------------------------------------------------------------*/
static size_t copy_text(char *to, const chat_content *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_parts; i++) {
        if (to && c->part[i].text.n) memcpy(to + n, c->part[i].text.s, c->part[i].text.n);
        n += c->part[i].text.n;
    }
    if (c->kind != CHAT_STRING) return n;
    if (to && c->text.n) memcpy(to, c->text.s, c->text.n);
    return c->text.n;
}

/* Joins the system texts at the start, since the model has one system turn, the first. */
static bool join_system(chat *c, server_error *why)
{
    size_t run = 0, n = 0, at = 0;
    for (; run < c->n && chat_is_system(&c->message[run]); run++) n += copy_text(NULL, &c->message[run].content) + 2;
    if (run < 2) return true;
    char *all = arena_try(c->mem, n, 1);
    if (!all) return error_no_memory(why);
    for (size_t i = 0; i < run; i++) {
        if (i) memcpy(all + at, "\n\n", 2);
        at += i ? 2 : 0;
        at += copy_text(all + at, &c->message[i].content);
    }
    c->message += run - 1;
    c->n -= run - 1;
    c->cap -= run - 1;
    c->message[0].content = (chat_content){.kind = CHAT_STRING, .text = {all, at}};
    return true;
}

bool responses_read(server_request *r, server_error *why)
{
    reader in = {.r = r, .chat = chat_new(&r->mem), .why = why};
    if (!in.chat) return error_no_memory(why);
    if (r->f.responses.instructions.n && !chat_add(in.chat, CHAT_SYSTEM, r->f.responses.instructions))
        return error_no_memory(why);
    if (!read_tools(&in) || !read_input(&in) || !join_system(in.chat, why)) return false;
    r->chat = in.chat;
    return true;
}
