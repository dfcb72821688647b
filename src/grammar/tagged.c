/* Compiles tool calls of families without quote markers, which write a call in one of two ways:
 *
 *     call_open \n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n ... </function>\n call_close
 *     call_open \n{"name": "NAME", "arguments": {...}}\n call_close
 *
 * The second can express every schema. The first is allowed too if the arguments are plain properties, each of one
 * type: then a string is written as it is and ends at the closing tag, and another value is JSON. Parameters come in
 * the order of the schema. */
#include "base/mem.h"
#include "grammar/schema.h"

static const char value_end[] = "\n</parameter>";
enum { MAX_PLAIN = 256 }; /* properties of plain arguments */

/* Returns whether the text can be part of a tag. */
static bool fits_tag(str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.s[i] == '>' || s.s[i] == '"' || s.s[i] == '\\' || (uint8_t)s.s[i] < 32) return false;
    return s.n > 0;
}

/* --- texts ------------------------------------------------------------------------------------------*/
/* Returns any text without value_end, as rules: part i has matched i bytes of it. Only its first byte is a line feed,
 * so another byte leads back to part 0 or 1. */
static node *free_text(maker *m)
{
    enum { N = sizeof value_end - 1 };
    builder *b = &m->b;
    int32_t  part[N];
    for (int i = 0; i < N; i++) part[i] = builder_rule(b, (str){0});
    for (int i = 0; i < N; i++) {
        char_range next = {(uint8_t)value_end[i], (uint8_t)value_end[i]}, line = {'\n', '\n'}, both[] = {line, next};
        node      *other = node_seq(b, node_not(b, both, i ? 2 : 1), node_rule(b, part[0]));
        node      *again = i ? node_seq(b, node_class(b, &line, 1), node_rule(b, part[1])) : NULL;
        node      *on    = i + 1 < N ? node_seq(b, node_class(b, &next, 1), node_rule(b, part[i + 1])) : NULL;
        node_vec   v     = {0};
        node_vec_put(b, &v, node_empty(b));
        node_vec_put(b, &v, other);
        if (again) node_vec_put(b, &v, again);
        if (on) node_vec_put(b, &v, on);
        builder_define(b, part[i], node_list(b, NODE_ALT, v.p, v.n));
    }
    return node_rule(b, part[0]);
}

static node *write_parameter(maker *m, str key, node *value)
{
    builder *b = &m->b;
    return node_seq(b, node_puts(b, "<parameter="), node_text(b, key), node_puts(b, ">\n"), value,
                    node_puts(b, value_end), node_puts(b, "\n"));
}

/* --- plain arguments --------------------------------------------------------------------------------*/
/* Returns the list of a schema's strings to choose from: those of enum; NULL: there is none. */
static const json_value *choices_of(const json_value *schema)
{
    const json_value *list = json_get(schema, "enum");
    for (size_t i = 0; list && list->kind == JSON_ARRAY && i < list->n; i++) {
        const json_value *x = &list->item[i];
        if (x->kind != JSON_STRING || (x->s.n && memmem(x->s.s, x->s.n, value_end, sizeof value_end - 1))) return NULL;
    }
    return list && list->kind == JSON_ARRAY && list->n ? list : NULL;
}

/* Returns whether a value is always or never a string; a string only if any text will do, or one of a list. */
static bool is_plain(const json_value *schema)
{
    const json_value *type = schema->kind == JSON_OBJECT ? json_get(schema, "type") : NULL;
    if (!type || type->kind != JSON_STRING || !type_named(type->s)) return false;
    if (!str_is(type->s, "string")) return true;
    for (size_t i = 0; i < schema->n; i++) {
        str key = schema->member[i].key;
        if (!is_annotation(key) && !str_is(key, "type") && !(str_is(key, "enum") && choices_of(schema))) return false;
    }
    return true;
}

/* Returns whether the arguments are an object of plain properties and nothing else constrains them. */
static bool are_plain(const json_value *p)
{
    const json_value *named = p->kind == JSON_OBJECT ? json_get(p, "properties") : NULL;
    if (!named || named->kind != JSON_OBJECT || named->n > MAX_PLAIN) return false;
    for (size_t i = 0; i < p->n; i++) {
        str key = p->member[i].key;
        if (!is_annotation(key) && !str_is(key, "type") && !str_is(key, "properties") && !str_is(key, "required") &&
            !str_is(key, "additionalProperties") && !str_is(key, "$defs") && !str_is(key, "definitions"))
            return false;
    }
    for (size_t i = 0; i < named->n; i++)
        if (!fits_tag(named->member[i].key) || !is_plain(&named->member[i].value)) return false;
    const json_value *required = json_get(p, "required");
    if (required && (required->kind != JSON_ARRAY || required->n > MAX_PLAIN)) return false;
    for (size_t i = 0; required && i < required->n; i++) {
        const json_value *x     = &required->item[i];
        bool              known = false;
        for (size_t k = 0; k < named->n; k++) known |= x->kind == JSON_STRING && str_eq(x->s, named->member[k].key);
        if (!known) return false;
    }
    return true;
}

static bool is_required(const json_value *p, str key)
{
    const json_value *required = json_get(p, "required");
    for (size_t i = 0; required && required->kind == JSON_ARRAY && i < required->n; i++)
        if (required->item[i].kind == JSON_STRING && str_eq(required->item[i].s, key)) return true;
    return false;
}

/* Returns the value of a plain property; NULL: no value matches. */
static node *write_value(maker *m, const json_value *schema, const path *at, node *text)
{
    builder          *b    = &m->b;
    const json_value *list = choices_of(schema);
    node_vec          v    = {0};
    if (!str_is(json_get(schema, "type")->s, "string")) return write_spots(m, &(spot){schema, at}, 1, at);
    if (!list) return text;
    for (size_t i = 0; i < list->n && builder_spend(b, 1); i++) node_vec_put(b, &v, node_text(b, list->item[i].s));
    return node_list(b, NODE_ALT, v.p, v.n);
}

/* Returns the parameters of plain arguments, after write_root has written them as JSON; NULL: the maker failed. */
static node *write_parameters(maker *m, const json_value *p, node *text)
{
    builder          *b     = &m->b;
    const json_value *named = json_get(p, "properties");
    const path       *at    = path_down(m, m->root_at, STR("properties"));
    node_vec          v     = {0};
    for (size_t i = 0; i < named->n && builder_spend(b, 1 + (size_t)named->n / 8); i++) {
        str   key   = named->member[i].key;
        bool  must  = is_required(p, key);
        node *value = write_value(m, &named->member[i].value, path_down(m, at, key), text);
        if (!value && must) return NULL;
        if (value) node_vec_put(b, &v, node_repeat(b, write_parameter(m, key, value), must ? 1 : 0, 1));
    }
    return v.n ? node_list(b, NODE_SEQ, v.p, v.n) : node_empty(b);
}

/* --- calls ------------------------------------------------------------------------------------------*/
/* Returns the call between the markers as tags. */
static node *as_tags(maker *m, str name, node *parameters)
{
    builder *b = &m->b;
    return node_seq(b, node_puts(b, "\n<function="), node_text(b, name), node_puts(b, ">\n"), parameters,
                    node_puts(b, "</function>\n"));
}

/* A parameter of any name, with any text. */
static node *any_parameter(maker *m, node *text)
{
    static const char_range outside[] = {{0, 31}, {'"', '"'}, {'>', '>'}, {'\\', '\\'}};
    builder                *b         = &m->b;
    return node_seq(b, node_puts(b, "<parameter="), node_repeat(b, node_not(b, outside, COUNT(outside)), 1, -1),
                    node_puts(b, ">\n"), text, node_puts(b, value_end), node_puts(b, "\n"));
}

node *write_tagged_call(maker *m, const grammar_tool *tool, const tok_markup *markup)
{
    json_member       type   = {STR("type"), {.kind = JSON_STRING, .s = STR("object")}};
    json_value        object = {.kind = JSON_OBJECT, .n = 1, .member = &type};
    builder          *b      = &m->b;
    const json_value *p      = tool->parameters;
    bool              none   = !p || p->kind == JSON_NULL;
    node             *text = free_text(m), *json, *tags = NULL;
    if (!fits_tag(tool->name)) builder_fail(b, ERR_INPUT, "its name cannot be used in a call");
    if (tool->free) {
        json = any_members(m, any_value(m));
        tags = node_repeat(b, any_parameter(m, text), 0, -1);
    } else {
        json = none ? node_puts(b, "{}") : write_root(m, p, &object);
        if (none || (json && are_plain(p))) tags = none ? node_empty(b) : write_parameters(m, p, text);
    }
    if (!json || b->failed) return node_empty(b);
    json = node_seq(b, node_puts(b, "\n{\"name\": \""), node_text(b, tool->name), node_puts(b, "\", \"arguments\": "),
                    json, node_puts(b, "}\n"));
    node *call = tags ? node_alt(b, as_tags(m, tool->name, tags), json) : json;
    return node_seq(b, node_marker(b, str_of(markup->call_open)), call, node_marker(b, str_of(markup->call_close)));
}
