/* Makes one grammar for the engine from response_format, tool_choice and similar fields. */
#include "base/mem.h"
#include "server/request.h"

static bool is_word(const json_value *v, const char *word) { return v && v->kind == JSON_STRING && str_is(v->s, word); }

static bool bad_kind(const char *field, const char *what, server_error *why)
{
    return error_set(why, 400, field, NULL, "'%s' must be %s.", field, what);
}

/* Sets the grammar. Refuses a second one. */
static bool hold_to(server_request *r, const char *field, tandem_grammar_kind kind, str text, server_error *why)
{
    if (r->grammar_field)
        return error_set(why, 400, field, NULL,
                         "'%s' and '%s' exclude each other: a response can have only one of them.", field,
                         r->grammar_field);
    r->grammar_field = field;
    r->ask.grammar   = (tandem_grammar){.kind = kind, .text = text.s, .n_text = text.n};
    return true;
}

static bool hold_to_json(server_request *r, const char *field, tandem_grammar_kind kind, const buf *json,
                         server_error *why)
{
    if (json->failed && !json->over) return error_no_memory(why);
    if (json->failed)
        return error_set(why, 400, field, NULL, "'%s' has more than %zu MiB.", field, TOK_MAX_INPUT >> 20);
    char *copy = arena_str(&r->mem, buf_str(json));
    return copy ? hold_to(r, field, kind, (str){copy, json->n}, why) : error_no_memory(why);
}

/* --- JSON ---------------------------------------------------------------------------------------*/
static bool hold_to_schema(server_request *r, const char *field, const json_value *schema, server_error *why)
{
    buf         text;
    json_writer w;
    buf_init(&text, TOK_MAX_INPUT);
    json_writer_init(&w, &text);
    json_put_value(&w, schema);
    bool ok = hold_to_json(r, field, TANDEM_GRAMMAR_SCHEMA, &text, why);
    buf_deinit(&text);
    return ok;
}

static bool is_schema(const json_value *v) { return v->kind == JSON_OBJECT || v->kind == JSON_BOOL; }

static bool check_about_schema(const server_request *r, const json_value *about, server_error *why)
{
    const json_value *name = json_find(about, "name"), *strict = json_find(about, "strict");
    if (name && (name->kind != JSON_STRING || !name->s.n || name->s.n > 64))
        return bad_kind(field_name(r->endpoint, "response_format.json_schema.name"), "a string of 1 to 64 bytes", why);
    return !strict || strict->kind == JSON_BOOL ||
           bad_kind(field_name(r->endpoint, "response_format.json_schema.strict"), "true or false", why);
}

/* OpenAI's {json_schema: {name, strict, schema}}, or the schema as a member `schema` or `value`. */
static bool read_format(server_request *r, const json_value *v, server_error *why)
{
    const json_value *type = json_find(v, "type"), *about = json_find(v, "json_schema");
    const json_value *schema = json_find(about ? about : v, "schema");
    if (!schema) schema = json_find(v, "value");
    bool        named = is_word(type, "json_schema");
    const char *field = field_name(r->endpoint, "response_format");
    if (!v || is_word(type, "text")) return true;
    if (!named && !is_word(type, "json_object"))
        return bad_kind(field_name(r->endpoint, "response_format.type"), "text, json_object or json_schema", why);
    if (named && !schema)
        return error_set(why, 400, field_name(r->endpoint, "response_format.json_schema"), NULL,
                         "'%s' must be a JSON Schema.", field_name(r->endpoint, "response_format.json_schema.schema"));
    if (schema && !is_schema(schema))
        return error_set(why, 400, field, NULL, "The schema of '%s' must be an object.", field);
    if (about && !check_about_schema(r, about, why)) return false;
    return schema ? hold_to_schema(r, field, schema, why) : hold_to(r, field, TANDEM_GRAMMAR_OBJECT, (str){0}, why);
}

/* --- vLLM's -------------------------------------------------------------------------------------*/
typedef bool hold_fn(server_request *r, const char *field, const json_value *v, server_error *why);

/* Takes a schema, or its text. */
static bool hold_json(server_request *r, const char *field, const json_value *v, server_error *why)
{
    err e = {0};
    if (v->kind == JSON_STRING && !json_parse(&v, &r->mem, v->s, NULL, &e)) {
        if (e.code == ERR_UNAVAILABLE) return error_no_memory(why);
        return error_set(why, 400, field, NULL, "'%s' is not the text of a JSON Schema: %s.", field, e.text);
    }
    return is_schema(v) ? hold_to_schema(r, field, v, why) : bad_kind(field, "a JSON Schema", why);
}

static bool hold_regex(server_request *r, const char *field, const json_value *v, server_error *why)
{
    if (v->kind != JSON_STRING || !v->s.n) return bad_kind(field, "a regular expression", why);
    return hold_to(r, field, TANDEM_GRAMMAR_REGEX, v->s, why);
}

static bool hold_gbnf(server_request *r, const char *field, const json_value *v, server_error *why)
{
    if (v->kind != JSON_STRING || !v->s.n) return bad_kind(field, "a grammar (GBNF)", why);
    return hold_to(r, field, TANDEM_GRAMMAR_GBNF, v->s, why);
}

static bool hold_object(server_request *r, const char *field, const json_value *v, server_error *why)
{
    if (v->kind != JSON_BOOL) return bad_kind(field, "true or false", why);
    return !v->b || hold_to(r, field, TANDEM_GRAMMAR_OBJECT, (str){0}, why);
}

/* Writes a text as a literal of GBNF. */
static void put_literal(buf *out, str text)
{
    buf_putc(out, '"');
    for (size_t i = 0; i < text.n; i++) {
        unsigned char c = (unsigned char)text.s[i];
        if (c == '"' || c == '\\')
            buf_printf(out, "\\%c", c);
        else if (c < ' ' || c == 0x7F)
            buf_printf(out, "\\x%02X", c);
        else
            buf_putc(out, (char)c);
    }
    buf_putc(out, '"');
}

static bool hold_choice(server_request *r, const char *field, const json_value *v, server_error *why)
{
    buf text;
    if (v->kind != JSON_ARRAY || !v->n) return bad_kind(field, "a list of texts", why);
    for (size_t i = 0; i < v->n; i++)
        if (v->item[i].kind != JSON_STRING || !v->item[i].s.n) return bad_kind(field, "a list of texts", why);
    buf_init(&text, TOK_MAX_INPUT);
    buf_puts(&text, "root ::= ");
    for (size_t i = 0; i < v->n; i++) {
        if (i) buf_puts(&text, " | ");
        put_literal(&text, v->item[i].s);
    }
    bool ok = hold_to_json(r, field, TANDEM_GRAMMAR_GBNF, &text, why);
    buf_deinit(&text);
    return ok;
}

/* {"json" | "regex" | "choice" | "grammar" | "json_object": ...}. Its options are refused unless they are off. */
static bool read_structured(server_request *r, const json_value *v, server_error *why)
{
    static const struct {
        const char *name, *field;
        hold_fn    *hold; /* NULL: refused */
    } known[] = {{"json", "structured_outputs.json", hold_json},
                 {"regex", "structured_outputs.regex", hold_regex},
                 {"choice", "structured_outputs.choice", hold_choice},
                 {"grammar", "structured_outputs.grammar", hold_gbnf},
                 {"json_object", "structured_outputs.json_object", hold_object},
                 {"structural_tag", "structured_outputs.structural_tag", NULL},
                 {"whitespace_pattern", "structured_outputs.whitespace_pattern", NULL},
                 {"disable_any_whitespace", "structured_outputs.disable_any_whitespace", NULL},
                 {"disable_additional_properties", "structured_outputs.disable_additional_properties", NULL}};
    for (size_t i = 0; v && i < v->n; i++) {
        size_t k = 0;
        while (k < COUNT(known) && !str_is(v->member[i].key, known[k].name)) k++;
        if (k == COUNT(known))
            return error_set(why, 400, "structured_outputs", NULL, "'structured_outputs' has no member '%.*s'.",
                             (int)(v->member[i].key.n < 64 ? v->member[i].key.n : 64), v->member[i].key.s);
    }
    for (size_t i = 0; v && i < COUNT(known); i++) {
        const json_value *m = json_find(v, known[i].name);
        if (!m || (!known[i].hold && m->kind == JSON_BOOL && !m->b)) continue;
        if (!known[i].hold)
            return error_set(why, 400, known[i].field, "unsupported_parameter", "'%s' is not supported.",
                             known[i].field);
        if (!known[i].hold(r, known[i].field, m, why)) return false;
    }
    return true;
}

static bool read_guided(server_request *r, server_error *why)
{
    const server_fields *f = &r->f;
    if (!read_structured(r, f->structured_outputs, why)) return false;
    if (f->guided_json && !hold_json(r, "guided_json", f->guided_json, why)) return false;
    if (f->guided_choice && !hold_choice(r, "guided_choice", f->guided_choice, why)) return false;
    if (f->guided_regex.n && !hold_to(r, "guided_regex", TANDEM_GRAMMAR_REGEX, f->guided_regex, why)) return false;
    return !f->guided_grammar.n || hold_to(r, "guided_grammar", TANDEM_GRAMMAR_GBNF, f->guided_grammar, why);
}

/* --- tools --------------------------------------------------------------------------------------*/
static const chat_tool *find_tool(const chat *c, str name)
{
    for (size_t i = 0; i < c->n_tools; i++)
        if (str_eq(c->tool[i].name, name)) return &c->tool[i];
    return NULL;
}

static void put_tool(json_writer *w, const chat_tool *tool)
{
    json_begin_object(w);
    json_key(w, "function");
    json_begin_object(w);
    json_key(w, "name");
    json_put_str(w, tool->name);
    if (tool->parameters) {
        json_key(w, "parameters");
        json_put_value(w, tool->parameters);
    }
    if (tool->strict) json_member_bool(w, "strict", true);
    json_end(w);
    json_end(w);
}

static bool any_strict(const chat *c)
{
    for (size_t i = 0; i < c->n_tools; i++)
        if (c->tool[i].strict) return true;
    return false;
}

/* Constrains calls to the schemas of strict tools. A schema of response_format then applies to responses without
 * calls. */
static bool hold_strict_calls(server_request *r, server_error *why)
{
    tandem_grammar *g = &r->ask.grammar;
    buf             text;
    json_writer     w;
    const char     *field = r->grammar_field ? r->grammar_field : "tools";
    buf_init(&text, TOK_MAX_INPUT);
    buf_puts(&text, "{");
    if (g->kind == TANDEM_GRAMMAR_OBJECT) buf_puts(&text, "\"answer\":{\"type\":\"object\"},");
    if (g->kind == TANDEM_GRAMMAR_SCHEMA) {
        buf_puts(&text, "\"answer\":");
        buf_put(&text, g->text, g->n_text);
        buf_puts(&text, ",");
    }
    buf_puts(&text, "\"tools\":");
    json_writer_init(&w, &text);
    json_begin_array(&w);
    for (size_t i = 0; i < r->chat->n_tools; i++) put_tool(&w, &r->chat->tool[i]);
    json_end(&w);
    buf_puts(&text, "}");
    r->grammar_field = NULL; /* the new grammar includes the old one */
    bool ok          = hold_to_json(r, field, TANDEM_GRAMMAR_TOOLS, &text, why);
    buf_deinit(&text);
    return ok;
}

static bool hold_to_calls(server_request *r, const chat_tool *const *tool, size_t n, bool several, server_error *why)
{
    buf         text;
    json_writer w;
    buf_init(&text, TOK_MAX_INPUT);
    json_writer_init(&w, &text);
    json_begin_array(&w);
    for (size_t i = 0; i < n; i++) put_tool(&w, tool[i]);
    json_end(&w);
    bool ok =
        hold_to_json(r, "tool_choice", several ? TANDEM_GRAMMAR_TOOL_CALLS : TANDEM_GRAMMAR_TOOL_CALL, &text, why);
    buf_deinit(&text);
    return ok;
}

static bool bad_choice(server_error *why)
{
    return error_set(why, 400, "tool_choice", NULL,
                     "'tool_choice' must be auto, none, required, or name a function, or the allowed_tools.");
}

/* {"type": "function", "function": {"name": N}}, or {"type": "function", "name": N}. */
static bool name_of(const json_value *v, str *out)
{
    const json_value *f = json_find(v, "function"), *name = json_find(f ? f : v, "name");
    if (!is_word(json_find(v, "type"), "function") || !name || name->kind != JSON_STRING) return false;
    *out = name->s;
    return true;
}

static bool need_tool(const server_request *r, const json_value *v, const chat_tool **out, server_error *why)
{
    str name;
    if (!name_of(v, &name)) return bad_choice(why);
    *out = find_tool(r->chat, name);
    return *out || error_set(why, 400, "tool_choice", NULL,
                             "'tool_choice' names '%.*s', which is not one of the tools.", STR_ARG(name));
}

/* Reads allowed_tools. Other tools are removed from the prompt in mode auto; in mode required they cannot be called. */
static bool read_allowed(server_request *r, const json_value *v, server_error *why)
{
    const json_value *about = json_find(v, "allowed_tools"), *list;
    about                   = about ? about : v;
    list                    = json_find(about, "tools");
    bool forced             = is_word(json_find(about, "mode"), "required");
    if (!list || list->kind != JSON_ARRAY || !list->n || list->n > r->chat->n_tools ||
        (!forced && !is_word(json_find(about, "mode"), "auto")))
        return bad_choice(why);
    const chat_tool **tool = arena_try(&r->mem, list->n, sizeof(chat_tool *));
    chat_tool        *copy = arena_try(&r->mem, list->n, sizeof *copy);
    if (!tool || !copy) return error_no_memory(why);
    for (size_t i = 0; i < list->n; i++)
        if (!need_tool(r, &list->item[i], &tool[i], why)) return false;
    if (forced) return hold_to_calls(r, tool, list->n, !r->one_call, why);
    for (size_t i = 0; i < list->n; i++) copy[i] = *tool[i];
    r->chat->tool    = copy;
    r->chat->n_tools = list->n;
    return true;
}

static bool hold_to_any_call(server_request *r, server_error *why)
{
    size_t            n    = r->chat->n_tools;
    const chat_tool **tool = arena_try(&r->mem, n + 1, sizeof(chat_tool *));
    if (!tool) return error_no_memory(why);
    for (size_t i = 0; i < n; i++) tool[i] = &r->chat->tool[i];
    return hold_to_calls(r, tool, n, !r->one_call, why);
}

static bool read_choice(server_request *r, const json_value *v, server_error *why)
{
    const chat_tool *tool;
    if (!v || is_word(v, "auto")) return true;
    if (is_word(v, "none")) {
        r->no_calls      = r->chat->n_tools > 0;
        r->chat->n_tools = 0;
        return true;
    }
    if (!is_word(v, "required") && v->kind != JSON_OBJECT) return bad_choice(why);
    if (!r->chat->n_tools)
        return error_set(why, 400, "tool_choice", NULL, "'tool_choice' asks for a call, but there are no 'tools'.");
    if (is_word(v, "required")) return hold_to_any_call(r, why);
    if (is_word(json_find(v, "type"), "allowed_tools")) return read_allowed(r, v, why);
    return need_tool(r, v, &tool, why) && hold_to_calls(r, &tool, 1, false, why);
}

/* The former tool_choice: auto, none, or {"name": N}. */
static bool read_function_call(server_request *r, server_error *why)
{
    const json_value *v = r->f.chat.function_call, *name = json_find(v, "name");
    if (!v || is_word(v, "auto") || is_word(v, "none")) return read_choice(r, v, why);
    if (!name || name->kind != JSON_STRING)
        return error_set(why, 400, "function_call", NULL, "'function_call' must be auto, none, or name a function.");
    const chat_tool *tool = find_tool(r->chat, name->s);
    if (!tool)
        return error_set(why, 400, "function_call", NULL,
                         "'function_call' names '%.*s', which is not one of the functions.", STR_ARG(name->s));
    return hold_to_calls(r, &tool, 1, false, why);
}

/* --- all of it ----------------------------------------------------------------------------------*/
bool request_constrain(server_request *r, const json_value *response_format, const json_value *tool_choice,
                       server_error *why)
{
    tandem_grammar *g = &r->ask.grammar;
    if (r->chat && r->f.chat.function_call && !tool_choice) {
        if (!read_function_call(r, why)) return false;
    } else if (r->chat && !read_choice(r, tool_choice, why)) {
        return false;
    }
    /* a forced call is the whole response: there is no content that could have a format */
    if (!r->grammar_field && !read_format(r, response_format, why)) return false;
    if (r->f.json_schema && !is_schema(r->f.json_schema))
        return error_set(why, 400, "json_schema", NULL, "'json_schema' must be a JSON Schema.");
    if (r->f.json_schema && !hold_to_schema(r, "json_schema", r->f.json_schema, why)) return false;
    if (r->f.grammar.n && !hold_to(r, "grammar", TANDEM_GRAMMAR_GBNF, r->f.grammar, why)) return false;
    if (!read_guided(r, why)) return false;
    bool json   = g->kind == TANDEM_GRAMMAR_SCHEMA || g->kind == TANDEM_GRAMMAR_OBJECT;
    g->may_call = r->chat && r->chat->n_tools && json;
    if (r->chat && any_strict(r->chat) && (g->may_call || !g->kind)) {
        g->may_call = false; /* the grammar includes the calls */
        return hold_strict_calls(r, why);
    }
    return true;
}

static void warn_of_tools(server_request *r)
{
    const char *warning = r->compiled ? response_grammar_warning(r->compiled) : "";
    if (warning[0]) request_warn(r, "%s", warning);
}

void request_find_grammar(server_request *r, const tandem *t, bool thinking)
{
    tandem_grammar *g = &r->ask.grammar;
    if (!g->kind) return;
    g->in_thought = r->in_thought;
    g->may_think  = thinking;
    r->compiled   = engine_find_compiled(t, &r->ask);
    warn_of_tools(r);
}

bool request_needs_compiling(const server_request *r) { return r->ask.grammar.kind && !r->compiled; }

void request_drop_grammar(server_request *r)
{
    response_grammar_drop(r->compiled);
    r->compiled = NULL;
}

/* Returns the field that a grammar comes from that cannot be compiled: the tools, where it forces a call or `e` blames
 * them. */
static const char *field_of_grammar(const server_request *r, const err *e)
{
    tandem_grammar_kind kind = r->ask.grammar.kind;
    if (kind == TANDEM_GRAMMAR_TOOL_CALL || kind == TANDEM_GRAMMAR_TOOL_CALLS) return "tools";
    return e->field[0] ? e->field : r->grammar_field;
}

bool request_compile(server_request *r, const tandem *t, const atomic_bool *cancel, server_error *why)
{
    err e = {0};
    if (engine_compile(t, &r->ask, cancel, &r->compiled, &e)) return warn_of_tools(r), true;
    if (e.code == ERR_BUSY || e.code == ERR_UNAVAILABLE) return error_take(why, &e, NULL, false);
    const char *field = field_of_grammar(r, &e);
    return error_set(why, 400, field, NULL, "'%s' cannot be enforced: %s.", field, e.text);
}
