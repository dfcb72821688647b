#include "server/messages.h"

#include "base/mem.h"

#include <stdio.h>

/* --- where something is wrong -------------------------------------------------------------------*/
enum { DEEPEST = 3 }; /* messages[1].content[2].content[3] */

typedef struct {
    str    id;
    size_t message; /* index in the chat */
} open_call;

typedef struct {
    chat         *chat;
    arena        *mem;
    server_error *why;
    const char   *list; /* the field that is read */
    size_t        index[DEEPEST];
    int           depth;
    bool          answered;             /* an assistant's message was read */
    open_call     call[CHAT_MAX_CALLS]; /* the last ones, around and around: those that may be answered */
    size_t        n_calls;              /* in all */
    size_t       *place; /* for each message the index that it belongs after: its own or that of its call */
} reader;

static void print_path(const reader *r, const char *member, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "%s", r->list);
    for (int i = 0; i < r->depth && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s[%zu]", i ? ".content" : "", r->index[i]);
    if (member && n < cap) snprintf(out + n, cap - n, ".%s", member);
}

static bool bad_member(const reader *r, const char *member, const char *what)
{
    char path[96];
    print_path(r, member, path, sizeof path);
    return error_set(r->why, 400, path, NULL, "'%s' %s.", path, what);
}

static void *alloc(const reader *r, size_t n, size_t each)
{
    void *p = arena_try(r->mem, n ? n : 1, each);
    if (!p) error_no_memory(r->why);
    return p;
}

static bool read_str(const reader *r, const json_value *v, const char *key, str *out)
{
    const json_value *s = json_find(v, key);
    if (!s || s->kind != JSON_STRING) return bad_member(r, key, "must be a string");
    *out = s->s;
    return true;
}

static bool read_object(const reader *r, const json_value *v, const char *key, const json_value **out)
{
    *out = json_find(v, key);
    return !*out || (*out)->kind == JSON_OBJECT || bad_member(r, key, "must be an object");
}

/* --- blocks -------------------------------------------------------------------------------------*/
typedef enum { TEXT, TOOL_NAME, DOCUMENT, IMAGE, THINKING, CALL, RESULT, LEFT_OUT } block_kind;
enum { SYSTEM = 1 << CHAT_SYSTEM, USER = 1 << CHAT_USER, ASSISTANT = 1 << CHAT_ASSISTANT, TOOL = 1 << CHAT_TOOL };

static const struct {
    const char *type;
    block_kind  kind;
    int         roles;
} blocks[] = {
    {"text", TEXT, SYSTEM | USER | ASSISTANT | TOOL},
    {"image", IMAGE, USER | TOOL},
    {"document", DOCUMENT, USER | TOOL},
    {"tool_reference", TOOL_NAME, TOOL},
    {"tool_result", RESULT, USER},
    {"tool_use", CALL, ASSISTANT},
    {"thinking", THINKING, ASSISTANT},
};

static bool refuse_type(const reader *r, int role)
{
    char   what[128];
    size_t n = (size_t)snprintf(what, sizeof what, "must be ");
    int    k = 0;
    for (size_t i = 0; i < COUNT(blocks) && n < sizeof what; i++)
        if (blocks[i].roles & role)
            n += (size_t)snprintf(what + n, sizeof what - n, "%s%s", k++ ? ", " : "", blocks[i].type);
    return bad_member(r, "type", what);
}

/* Finds the kind of a block. Unknown blocks of assistant messages come from other servers and are ignored. */
static bool read_kind(const reader *r, const json_value *v, int role, block_kind *out)
{
    const json_value *type = json_find(v, "type");
    if (v->kind != JSON_OBJECT) return bad_member(r, NULL, "must be an object with a type");
    if (!type || type->kind != JSON_STRING) return refuse_type(r, role);
    for (size_t i = 0; i < COUNT(blocks); i++)
        if ((blocks[i].roles & role) && str_is(type->s, blocks[i].type)) {
            *out = blocks[i].kind;
            return true;
        }
    *out = LEFT_OUT;
    return role == ASSISTANT || refuse_type(r, role);
}

/* Reads a document. One that is no text is refused, or in the result of a tool replaced. */
static bool read_document(const reader *r, const json_value *v, int role, str *out)
{
    const json_value *source = json_find(v, "source"), *type = json_find(source, "type"),
                     *data = json_find(source, "data");
    *out                   = STR(ERROR_NOT_SHOWN);
    if (!type || type->kind != JSON_STRING || !str_is(type->s, "text"))
        return role == TOOL || (bad_member(r, NULL, "must be a text: other documents are not supported"),
                                r->why->code = "unsupported_value", false);
    if (!data || data->kind != JSON_STRING) return bad_member(r, "source.data", "must be a string");
    *out = data->s;
    return true;
}

/* Reads the text of a block. */
static bool read_text(const reader *r, const json_value *v, int role, block_kind kind, str *out)
{
    switch (kind) {
    case DOCUMENT: return read_document(r, v, role, out);
    case TOOL_NAME: return read_str(r, v, "tool_name", out);
    case THINKING: return read_str(r, v, "thinking", out);
    default: return read_str(r, v, "text", out);
    }
}

static bool is_text(block_kind kind) { return kind <= DOCUMENT; }

/* Reads the texts and images of a list of blocks. */
static bool read_parts(reader *r, const json_value *list, int role, chat_content *out)
{
    chat_part *part = alloc(r, list->n, sizeof *part);
    size_t     n    = 0;
    block_kind kind;
    if (!part) return false;
    r->depth++;
    for (size_t i = 0; i < list->n; i++) {
        r->index[r->depth - 1] = i;
        if (!read_kind(r, &list->item[i], role, &kind)) return false;
        if (kind == IMAGE)
            part[n++] = (chat_part){.kind = CHAT_IMAGE, .source = &list->item[i]};
        else if (is_text(kind) && !read_text(r, &list->item[i], role, kind, &part[n++].text))
            return false;
    }
    r->depth--;
    *out = (chat_content){.kind = n ? CHAT_PARTS : CHAT_NO_CONTENT, .part = part, .n_parts = n};
    return true;
}

static bool join_texts(const reader *r, const chat_content *c, const char *between, str *out)
{
    return chat_join(r->mem, c, between, out) || error_no_memory(r->why);
}

static chat_message *add_message_of(reader *r, chat_role role, str text)
{
    chat_message *m = chat_add(r->chat, role, text);
    if (!m)
        error_set(r->why, 400, "messages", NULL, "'messages' has more than %d messages, or is too large.",
                  CHAT_MAX_MESSAGES);
    if (m) r->place[r->chat->n - 1] = r->chat->n - 1;
    return m;
}

/* --- the system's -------------------------------------------------------------------------------*/
static str without_billing(str s)
{
    if (!str_starts(s, "x-anthropic-billing-header")) return s;
    const char *end = memchr(s.s, '\n', s.n);
    size_t      n   = end ? (size_t)(end + 1 - s.s) : s.n;
    return (str){s.s + n, s.n - n};
}

/* Joins its blocks to one text, since the models' templates write nothing or only a space between parts. */
static bool read_system(reader *r, const json_value *v, const char *field, str *out)
{
    chat_content c = {0};
    if (v->kind == JSON_STRING) {
        *out = without_billing(v->s);
        return true;
    }
    if (v->kind != JSON_ARRAY) return bad_member(r, field, "must be a string or a list of text blocks");
    if (!read_parts(r, v, SYSTEM, &c)) return false;
    for (size_t i = 0; i < c.n_parts; i++) c.part[i].text = without_billing(c.part[i].text);
    return join_texts(r, &c, "\n\n", out);
}

static bool has_role(const json_value *message, const char *role)
{
    const json_value *v = json_find(message, "role");
    return v && v->kind == JSON_STRING && str_is(v->s, role);
}

/* Adds system texts before the first assistant message as one system message at the start. */
static bool add_lead(reader *r, const server_fields *f)
{
    const json_value *list = f->messages;
    chat_content      all  = {.part = alloc(r, 1 + (list ? list->n : 0), sizeof *all.part)};
    str               text;
    if (!all.part ||
        (f->messages_api.system && !read_system(r, f->messages_api.system, NULL, &all.part[all.n_parts++].text)))
        return false;
    r->list  = "messages";
    r->depth = 1;
    for (size_t i = 0; list && i < list->n && !has_role(&list->item[i], "assistant"); i++) {
        const json_value *content = json_find(&list->item[i], "content");
        r->index[0]               = i;
        if (content && has_role(&list->item[i], "system") &&
            !read_system(r, content, "content", &all.part[all.n_parts++].text))
            return false;
    }
    r->depth = 0;
    return join_texts(r, &all, "\n\n", &text) && (!text.n || add_message_of(r, CHAT_SYSTEM, text));
}

static bool add_system(reader *r, const json_value *content)
{
    str text;
    if (!r->answered) return true;
    return read_system(r, content, "content", &text) && (!text.n || add_message_of(r, CHAT_SYSTEM, text));
}

/* --- the assistant's ----------------------------------------------------------------------------*/
static bool read_call(const reader *r, const json_value *v, chat_call *out)
{
    out->has_id = true;
    return read_str(r, v, "id", &out->id) && read_str(r, v, "name", &out->name) &&
           read_object(r, v, "input", &out->args);
}

static bool count_calls(const reader *r, const json_value *list, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < list->n; i++) {
        const json_value *type = json_find(&list->item[i], "type");
        *n += type && type->kind == JSON_STRING && str_is(type->s, "tool_use");
    }
    return *n <= CHAT_MAX_CALLS || bad_member(r, "content", "has more than 256 calls");
}

static bool read_calls_and_thoughts(reader *r, const json_value *list, chat_message *m)
{
    chat_content thoughts = {.part = alloc(r, list->n, sizeof *thoughts.part)};
    block_kind   kind;
    if (!thoughts.part || !count_calls(r, list, &m->n_calls)) return false;
    if (!(m->call = alloc(r, m->n_calls, sizeof *m->call))) return false;
    m->n_calls = 0;
    r->depth++;
    for (size_t i = 0; i < list->n; i++) {
        const json_value *v    = &list->item[i];
        r->index[r->depth - 1] = i;
        if (!read_kind(r, v, ASSISTANT, &kind)) return false;
        if (kind == CALL && !read_call(r, v, &m->call[m->n_calls++])) return false;
        if (kind == THINKING && !read_text(r, v, ASSISTANT, kind, &thoughts.part[thoughts.n_parts++].text))
            return false;
    }
    r->depth--;
    return join_texts(r, &thoughts, "\n", &m->reasoning);
}

static bool add_assistant(reader *r, const json_value *content)
{
    chat_message m = {.role = CHAT_ASSISTANT};
    if (content->kind == JSON_STRING)
        m.content = (chat_content){.kind = CHAT_STRING, .text = content->s};
    else if (!read_parts(r, content, ASSISTANT, &m.content) || !read_calls_and_thoughts(r, content, &m))
        return false;
    chat_message *to = add_message_of(r, CHAT_ASSISTANT, (str){0});
    if (!to) return false;
    *to         = m;
    r->answered = true;
    for (size_t i = 0; i < m.n_calls; i++)
        r->call[r->n_calls++ % CHAT_MAX_CALLS] = (open_call){m.call[i].id, r->chat->n - 1};
    return true;
}

/* --- the user's, and what tools answered --------------------------------------------------------*/
static const open_call *find_call(const reader *r, str id)
{
    for (size_t i = 0; i < r->n_calls && i < CHAT_MAX_CALLS; i++) {
        const open_call *c = &r->call[(r->n_calls - 1 - i) % CHAT_MAX_CALLS];
        if (str_eq(c->id, id)) return c;
    }
    return NULL;
}

static bool read_result(reader *r, const json_value *v, chat_content *out)
{
    const json_value *c = json_find(v, "content");
    *out                = (chat_content){.kind = CHAT_STRING, .text = STR("")};
    if (!c) return true;
    if (c->kind == JSON_ARRAY) return read_parts(r, c, TOOL, out);
    if (c->kind != JSON_STRING) return bad_member(r, "content", "must be a string or a list of blocks");
    out->text = c->s;
    return true;
}

/* Makes the result of a call that failed an object, in which an image is only named. */
static bool wrap_error(const reader *r, chat_content *c)
{
    json_value  *v = alloc(r, 1, sizeof *v);
    json_member *m = alloc(r, 1, sizeof *m);
    str          text;
    if (!v || !m) return false;
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind != CHAT_TEXT) c->part[i] = (chat_part){.text = STR(ERROR_NOT_SHOWN)};
    if (c->kind == CHAT_STRING)
        text = c->text;
    else if (!join_texts(r, c, "\n", &text))
        return false;
    *m = (json_member){STR("error"), {.kind = JSON_STRING, .s = text}};
    *v = (json_value){.kind = JSON_OBJECT, .n = 1, .member = m};
    *c = (chat_content){.kind = CHAT_VALUE, .value = v};
    return true;
}

static bool add_result(reader *r, const json_value *v)
{
    const json_value *is_error = json_find(v, "is_error");
    chat_message      m        = {.role = CHAT_TOOL, .has_call_id = true};
    if (!read_str(r, v, "tool_use_id", &m.call_id) || !read_result(r, v, &m.content)) return false;
    if (is_error && is_error->kind != JSON_BOOL) return bad_member(r, "is_error", "must be true or false");
    const open_call *call = find_call(r, m.call_id);
    if (!call) return bad_member(r, "tool_use_id", "is not the id of one of the last 256 tool_use blocks before it");
    if (is_error && is_error->b && !wrap_error(r, &m.content)) return false;
    chat_message *to = add_message_of(r, CHAT_TOOL, (str){0});
    if (!to) return false;
    *to                      = m;
    r->place[r->chat->n - 1] = call->message;
    return true;
}

static bool add_results(reader *r, const json_value *list, size_t *n)
{
    block_kind kind;
    *n = 0;
    r->depth++;
    for (size_t i = 0; i < list->n; i++) {
        r->index[r->depth - 1] = i;
        if (!read_kind(r, &list->item[i], USER, &kind)) return false;
        if (kind != RESULT) continue;
        if (!add_result(r, &list->item[i])) return false;
        ++*n;
    }
    r->depth--;
    return true;
}

static bool add_user(reader *r, const json_value *content)
{
    chat_content c         = {0};
    size_t       n_results = 0;
    if (content->kind == JSON_STRING)
        c = (chat_content){.kind = CHAT_STRING, .text = content->s};
    else if (!add_results(r, content, &n_results) || !read_parts(r, content, USER, &c))
        return false;
    if (n_results && !c.n_parts) return true;
    chat_message *m = add_message_of(r, CHAT_USER, (str){0});
    if (m) m->content = c;
    return m;
}

/* --- messages -----------------------------------------------------------------------------------*/
static bool take_places(reader *r, const json_value *list)
{
    size_t n = 1; /* the system's */
    for (size_t i = 0; list && i < list->n; i++) {
        const json_value *content = json_find(&list->item[i], "content");
        n += 1 + (content && content->kind == JSON_ARRAY ? content->n : 0);
    }
    r->place = alloc(r, n, sizeof *r->place);
    return r->place;
}

/* Moves results directly after their calls, since templates show only these. */
static bool move_results(reader *r)
{
    chat         *c  = r->chat;
    chat_message *to = alloc(r, c->n, sizeof *to);
    size_t       *at = alloc(r, c->n + 1, sizeof *at);
    if (!to || !at) return false;
    for (size_t i = 0; i < c->n; i++) at[r->place[i] + 1]++;
    for (size_t i = 0; i < c->n; i++) at[i + 1] += at[i];
    for (size_t i = 0; i < c->n; i++) to[at[r->place[i]]++] = c->message[i];
    c->message = to;
    c->cap     = c->n;
    return true;
}

static bool add_message(reader *r, const json_value *v)
{
    const json_value *content = json_find(v, "content");
    if (v->kind != JSON_OBJECT) return bad_member(r, NULL, "must be an object with role and content");
    if (!content || (content->kind != JSON_STRING && content->kind != JSON_ARRAY))
        return bad_member(r, "content", "must be a string or a list of blocks");
    if (has_role(v, "user")) return add_user(r, content);
    if (has_role(v, "assistant")) return add_assistant(r, content);
    return has_role(v, "system") ? add_system(r, content) : bad_member(r, "role", "must be user or assistant");
}

static bool add_messages(reader *r, const json_value *list)
{
    if (!list) return bad_member(r, NULL, "must be a list with at least one message");
    for (size_t i = 0; i < list->n; i++) {
        r->depth    = 1;
        r->index[0] = i;
        if (!add_message(r, &list->item[i])) return false;
    }
    if (!r->chat->n) return error_set(r->why, 400, "messages", NULL, "'messages' must have a message with text.");
    if (r->chat->message[r->chat->n - 1].role != CHAT_ASSISTANT) return move_results(r);
    return error_set(r->why, 400, "messages", NULL,
                     "This model does not support assistant message prefill. The conversation must end with a user "
                     "message.");
}

/* --- tools and options --------------------------------------------------------------------------*/
static bool read_tool(const reader *r, const json_value *v, chat_tool *out)
{
    out->description = json_find(v, "description");
    if (out->description && out->description->kind != JSON_STRING)
        return bad_member(r, "description", "must be a string");
    const json_value *strict = json_find(v, "strict");
    if (strict && strict->kind != JSON_BOOL) return bad_member(r, "strict", "must be true or false");
    out->strict = strict && strict->b;
    return read_str(r, v, "name", &out->name) && read_object(r, v, "input_schema", &out->parameters);
}

/* Returns whether the client runs the tool. Tools of other types are run by Anthropic's server. */
static bool is_custom(const json_value *v)
{
    const json_value *type = json_find(v, "type");
    return !type || type->kind != JSON_STRING || str_is(type->s, "custom");
}

static bool add_tools(reader *r, const json_value *list)
{
    r->list  = "tools";
    r->depth = 1;
    if (!list) return true;
    if (!(r->chat->tool = alloc(r, list->n, sizeof *r->chat->tool))) return false;
    for (size_t i = 0; i < list->n; i++) {
        r->index[0] = i;
        if (list->item[i].kind != JSON_OBJECT)
            return bad_member(r, NULL, "must be an object with name and input_schema");
        if (!is_custom(&list->item[i])) continue;
        if (!read_tool(r, &list->item[i], &r->chat->tool[r->chat->n_tools++])) return false;
    }
    return true;
}

static bool read_thinking(const server_fields *f, chat_wish *out, server_error *why)
{
    static const char *const on[] = {"enabled", "adaptive", "between_tools"};
    if (!f->messages_api.thinking) return true;
    if (str_is(f->messages_api.thinking_type, "disabled")) *out = CHAT_NO;
    for (size_t i = 0; i < COUNT(on); i++)
        if (str_is(f->messages_api.thinking_type, on[i])) *out = CHAT_YES;
    return *out || error_set(why, 400, "thinking.type", NULL, "'thinking.type' must be enabled, adaptive or disabled.");
}

bool messages_chat(chat **out, arena *mem, const server_fields *f, server_error *why)
{
    reader r = {.mem = mem, .why = why, .list = "system"};
    *out     = NULL;
    if (!(r.chat = alloc(&r, 1, sizeof *r.chat))) return false;
    r.chat->mem = mem;
    if (!take_places(&r, f->messages) || !add_lead(&r, f) || !add_messages(&r, f->messages) ||
        !add_tools(&r, f->tools) || !read_thinking(f, &r.chat->thinking, why))
        return false;
    *out = r.chat;
    return true;
}

/* Either a word, or {"type": "function", "function": {"name": name}}. */
typedef struct {
    json_value  value;
    json_member member[3];
} choice;

static void choose_tool(choice *c, str name)
{
    json_value fn = {.kind = JSON_OBJECT, .n = 1, .member = &c->member[2]};
    c->member[0]  = (json_member){STR("type"), json_of_text(STR("function"))};
    c->member[1]  = (json_member){STR("function"), fn};
    c->member[2]  = (json_member){STR("name"), json_of_text(name)};
    c->value      = (json_value){.kind = JSON_OBJECT, .n = 2, .member = c->member};
}

/* {"type": "json_schema", "schema": ...} is also a valid response_format of a chat. */
static bool check_format(const json_value *v, server_error *why)
{
    const json_value *type = json_find(v, "type"), *schema = json_find(v, "schema");
    if (!v ||
        (type && type->kind == JSON_STRING && str_is(type->s, "json_schema") && schema && schema->kind == JSON_OBJECT))
        return true;
    return error_set(why, 400, "output_config.format", NULL,
                     "'output_config.format' must be of the type json_schema, with a schema.");
}

bool messages_options(server_fields *f, arena *mem, server_error *why)
{
    static const char *const theirs[] = {"auto", "none", "any"}, *const ours[] = {"auto", "none", "required"};
    bool    known = false;
    choice *c     = arena_try(mem, 1, sizeof *c);
    if (!c) return error_no_memory(why);
    if (f->messages_api.thread)
        return error_set(why, 400, "thread", "thread_unsupported_request",
                         "'thread' is not known here: conversations are not kept. Send all messages without it.");
    if (!check_format(f->response_format, why)) return false;
    f->parallel_tool_calls = !f->messages_api.one_tool_call;
    if (!f->tool_choice) return true;
    f->tool_choice = &c->value;
    for (size_t i = 0; i < COUNT(theirs) && !known; i++)
        if ((known = str_is(f->messages_api.choice_type, theirs[i]))) c->value = json_of_text(str_of(ours[i]));
    if (str_is(f->messages_api.choice_type, "tool") && f->messages_api.choice_name.n) {
        choose_tool(c, f->messages_api.choice_name);
        known = true;
    }
    return known || error_set(why, 400, "tool_choice", NULL,
                              "'tool_choice' must be an object of type auto, any, none, or tool with a name.");
}
