/* Values, tool calls' arguments and tool declarations in Gemma 4's notation.
 *
 *      V = <|"|>text<|"|> | true | false | 12 | 0.5 | null | [V,V] | {key:V,key:V}
 *
 * Nothing is escaped and no space is added; members come sorted by key. A declaration is a JSON schema cut down to what
 * the model was taught: descriptions, types in capitals, enum of strings, items, nullable, properties, required; the
 * rest of a schema is left out, and what is kept is written as the template would, odd schemas included. */
#include "chat/gemma4.h"

#include "base/mem.h"
#include "chat/python.h"

#include <stdlib.h>

enum { MAX_DEPTH = PYTHON_MAX_DEPTH };

static bool enter_value(gemma4_out *o)
{
    if (o->depth < MAX_DEPTH) return ++o->depth;
    chat_out_fail(&o->to, ERR_INPUT, "a value in the conversation is nested more than %d deep", MAX_DEPTH);
    return false;
}

static void leave_value(gemma4_out *o) { o->depth--; }

/* --- order of members ---------------------------------------------------------------------------*/
/* Lower case of the letters that keys are made of: ASCII, Latin, Greek and Cyrillic. */
static uint32_t lower(uint32_t c)
{
    if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    if ((c >= 0xC0 && c <= 0xDE && c != 0xD7) || (c >= 0x391 && c <= 0x3AB) || (c >= 0x410 && c <= 0x42F))
        return c + 32;
    if (c >= 0x400 && c <= 0x40F) return c + 80;
    if ((c >= 0x100 && c <= 0x137 && c != 0x130) || (c >= 0x14A && c <= 0x177) || (c >= 0x460 && c <= 0x481))
        return c | 1;
    if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E)) return c + (c & 1);
    return c == 0x178 ? 0xFF : c;
}

static uint32_t next_lower(str *s)
{
    uint32_t c = 0;
    int      n = utf8_decode(s->s, s->n, &c);
    if (!n) { /* not UTF-8: after all characters, by its byte */
        c = 0x110000 + (uint8_t)s->s[0];
        n = 1;
    }
    *s = (str){s->s + n, s->n - (size_t)n};
    return lower(c);
}

static int by_key(const void *pa, const void *pb)
{
    const json_member *a = *(const json_member *const *)pa, *b = *(const json_member *const *)pb;
    str                x = a->key, y = b->key;
    while (x.n && y.n) {
        uint32_t cx = next_lower(&x), cy = next_lower(&y);
        if (cx != cy) return cx < cy ? -1 : 1;
    }
    if (x.n || y.n) return x.n ? 1 : -1;
    return a < b ? -1 : a > b; /* as they came */
}

/* Returns the sorted members in o->scratch; NULL when there are none or after a failure. */
static const json_member **sorted(gemma4_out *o, const json_value *object)
{
    const json_member **m = object->n ? arena_try(&o->scratch, object->n, sizeof *m) : NULL;
    if (!m && object->n) chat_out_fail(&o->to, ERR_UNAVAILABLE, "no memory to sort %zu members", object->n);
    if (!m) return NULL;
    for (size_t i = 0; i < object->n; i++) m[i] = &object->member[i];
    qsort(m, object->n, sizeof *m, by_key);
    return m;
}

/* --- texts --------------------------------------------------------------------------------------*/
/* Writes the text of v to o->text; nothing for NULL. */
static str text_of(gemma4_out *o, const json_value *v)
{
    buf_clear(&o->text);
    if (v && !python_put_text(&o->text, v))
        chat_out_fail(&o->to, ERR_INPUT, "a value in the conversation is nested more than %d deep", PYTHON_MAX_DEPTH);
    if (o->text.over)
        chat_out_fail(&o->to, ERR_TOO_LARGE, "a value is longer than %zu MiB", CHAT_MAX_PROMPT >> 20);
    else if (o->text.failed)
        chat_out_fail(&o->to, ERR_UNAVAILABLE, "no memory for a value");
    return buf_str(&o->text);
}

static str upper_text_of(gemma4_out *o, const json_value *v)
{
    str s = text_of(o, v);
    for (size_t i = 0; i < s.n; i++)
        if (o->text.p[i] >= 'a' && o->text.p[i] <= 'z') o->text.p[i] -= 32;
    return s;
}

/* --- values -------------------------------------------------------------------------------------*/
static void put_string(gemma4_out *o, str s)
{
    gemma4_put_marker(o, GEMMA4_QUOTE);
    gemma4_put(o, s);
    gemma4_put_marker(o, GEMMA4_QUOTE);
}

void gemma4_put_members(gemma4_out *o, const json_value *object, bool quote_keys)
{
    arena_mark          mark = arena_save(&o->scratch);
    const json_member **m    = sorted(o, object);
    for (size_t i = 0; m && i < object->n && !o->to.failed; i++) {
        if (i) gemma4_puts(o, ",");
        if (quote_keys)
            put_string(o, m[i]->key);
        else
            gemma4_put(o, m[i]->key);
        gemma4_puts(o, ":");
        gemma4_put_value(o, &m[i]->value, quote_keys);
    }
    arena_restore(&o->scratch, mark);
}

static void put_items(gemma4_out *o, const json_value *array, bool quote_keys)
{
    gemma4_puts(o, "[");
    for (size_t i = 0; i < array->n && !o->to.failed; i++) {
        if (i) gemma4_puts(o, ",");
        gemma4_put_value(o, &array->item[i], quote_keys);
    }
    gemma4_puts(o, "]");
}

void gemma4_put_value(gemma4_out *o, const json_value *v, bool quote_keys)
{
    json_kind kind = v ? v->kind : JSON_NULL;
    if (!enter_value(o)) return;
    if (kind == JSON_NULL) {
        gemma4_puts(o, o->rules & GEMMA4_NULL ? "null" : "None");
    } else if (kind == JSON_STRING) {
        put_string(o, v->s);
    } else if (kind == JSON_BOOL) {
        gemma4_puts(o, v->b ? "true" : "false");
    } else if (kind == JSON_OBJECT) {
        gemma4_puts(o, "{");
        gemma4_put_members(o, v, quote_keys);
        gemma4_puts(o, "}");
    } else if (kind == JSON_ARRAY) {
        put_items(o, v, quote_keys);
    } else {
        gemma4_put(o, text_of(o, v));
    }
    leave_value(o);
}

/* --- declarations -------------------------------------------------------------------------------*/
static void put_properties(gemma4_out *o, const json_value *properties, bool skip_keywords);

static bool drops_keywords(const gemma4_out *o) { return !(o->rules & GEMMA4_KEEP_KEYWORDS); }

static bool truthy(const json_value *v)
{
    if (!v) return false;
    switch (v->kind) {
    case JSON_BOOL: return v->b;
    case JSON_INT: return v->i != 0;
    case JSON_REAL: return v->d != 0;
    case JSON_STRING: return v->s.n > 0;
    case JSON_ARRAY:
    case JSON_OBJECT: return v->n > 0;
    default: return false;
    }
}

static bool is_mapping(const json_value *v) { return v && v->kind == JSON_OBJECT; }

static bool type_is(const json_value *schema, const char *upper)
{
    const json_value *type = json_get(schema, "type");
    if (!type || type->kind != JSON_STRING || type->s.n != strlen(upper)) return false;
    for (size_t i = 0; i < type->s.n; i++)
        if ((type->s.s[i] & ~0x20) != upper[i]) return false;
    return true;
}

static void put_quoted_list(gemma4_out *o, const json_value *list)
{
    if (list->kind != JSON_ARRAY) {
        chat_out_fail(&o->to, ERR_INPUT, "a tool's schema has a \"required\" that is not a list of names");
        return;
    }
    for (size_t i = 0; i < list->n && !o->to.failed; i++) {
        if (i) gemma4_puts(o, ",");
        put_string(o, text_of(o, &list->item[i]));
    }
}

static void put_required(gemma4_out *o, const json_value *list)
{
    gemma4_puts(o, "required:[");
    put_quoted_list(o, list);
    gemma4_puts(o, "]");
}

static void put_type(gemma4_out *o, const json_value *type)
{
    gemma4_puts(o, "type:");
    put_string(o, upper_text_of(o, type));
}

static void put_item_type(gemma4_out *o, const json_value *type)
{
    if (type->kind != JSON_ARRAY) {
        if (type->kind != JSON_STRING)
            chat_out_fail(&o->to, ERR_INPUT,
                          "a tool's schema has \"items\" whose type is neither a name nor a list of names");
        put_type(o, type);
        return;
    }
    gemma4_puts(o, "type:[");
    for (size_t i = 0; i < type->n && !o->to.failed; i++) {
        if (i) gemma4_puts(o, ",");
        put_string(o, upper_text_of(o, &type->item[i]));
    }
    gemma4_puts(o, "]");
}

static void put_item_member(gemma4_out *o, const json_member *m)
{
    if (str_is(m->key, "properties")) {
        gemma4_puts(o, "properties:{");
        if (is_mapping(&m->value)) put_properties(o, &m->value, drops_keywords(o));
        gemma4_puts(o, "}");
    } else if (str_is(m->key, "required")) {
        put_required(o, &m->value);
    } else if (str_is(m->key, "type")) {
        put_item_type(o, &m->value);
    } else {
        gemma4_put(o, m->key);
        gemma4_puts(o, ":");
        gemma4_put_value(o, &m->value, true);
    }
}

static void put_array_items(gemma4_out *o, const json_value *items)
{
    arena_mark          mark = arena_save(&o->scratch);
    const json_member **m    = sorted(o, items);
    bool                any  = false;
    gemma4_puts(o, "items:{");
    for (size_t i = 0; m && i < items->n && !o->to.failed; i++) {
        if (m[i]->value.kind == JSON_NULL) continue;
        if (any) gemma4_puts(o, ",");
        any = true;
        put_item_member(o, m[i]);
    }
    gemma4_puts(o, "}");
    arena_restore(&o->scratch, mark);
}

static void comma(gemma4_out *o, bool *any)
{
    if (*any) gemma4_puts(o, ",");
    *any = true;
}

/* Uses an object without `properties` as the list of its properties, as the template does. */
static void put_object_fields(gemma4_out *o, const json_value *schema, bool *any)
{
    const json_value *properties = json_get(schema, "properties"), *required = json_get(schema, "required");
    comma(o, any);
    gemma4_puts(o, "properties:{");
    if (is_mapping(properties))
        put_properties(o, properties, drops_keywords(o));
    else
        put_properties(o, schema, true);
    gemma4_puts(o, "}");
    if (!truthy(required)) return;
    comma(o, any);
    put_required(o, required);
}

static void put_description(gemma4_out *o, const json_value *schema, bool *any)
{
    const json_value *description = json_get(schema, "description");
    if (!truthy(description)) return;
    comma(o, any);
    gemma4_puts(o, "description:");
    put_string(o, text_of(o, description));
}

static void put_enum(gemma4_out *o, const json_value *schema, bool *any)
{
    const json_value *list = json_get(schema, "enum");
    if (!type_is(schema, "STRING") || !truthy(list)) return;
    comma(o, any);
    gemma4_puts(o, "enum:");
    gemma4_put_value(o, list, true);
}

static void put_nullable(gemma4_out *o, const json_value *schema, bool *any)
{
    if (!truthy(json_get(schema, "nullable"))) return;
    comma(o, any);
    gemma4_puts(o, "nullable:true");
}

static void put_items_of(gemma4_out *o, const json_value *schema, bool *any)
{
    const json_value *items = json_get(schema, "items");
    if (!type_is(schema, "ARRAY") || !is_mapping(items) || !items->n) return;
    comma(o, any);
    put_array_items(o, items);
}

/* Writes a parameter like the first templates, which separate items and properties with a comma that they do not
 * count. */
static void put_early_property(gemma4_out *o, const json_value *schema)
{
    bool any = false, counted;
    put_description(o, schema, &any);
    put_nullable(o, schema, &any);
    put_enum(o, schema, &any);
    counted = any;
    any     = true;
    put_items_of(o, schema, &any);
    if (type_is(schema, "OBJECT")) put_object_fields(o, schema, &any);
    comma(o, &counted);
    put_type(o, json_get(schema, "type"));
}

static void put_property(gemma4_out *o, const json_value *schema)
{
    bool any = false;
    if (!(o->rules & GEMMA4_SCHEMA_COMMAS)) {
        put_early_property(o, schema);
        return;
    }
    put_description(o, schema, &any);
    put_enum(o, schema, &any);
    put_items_of(o, schema, &any);
    put_nullable(o, schema, &any);
    if (type_is(schema, "OBJECT")) put_object_fields(o, schema, &any);
    comma(o, &any);
    put_type(o, json_get(schema, "type"));
}

static bool is_keyword(str key)
{
    return str_is(key, "description") || str_is(key, "type") || str_is(key, "properties") || str_is(key, "required") ||
           str_is(key, "nullable");
}

static void put_properties(gemma4_out *o, const json_value *properties, bool skip_keywords)
{
    if (!enter_value(o)) return;
    arena_mark          mark = arena_save(&o->scratch);
    const json_member **m    = sorted(o, properties);
    bool                any  = false;
    for (size_t i = 0; m && i < properties->n && !o->to.failed; i++) {
        if (skip_keywords && is_keyword(m[i]->key)) continue;
        comma(o, &any);
        gemma4_put(o, m[i]->key);
        gemma4_puts(o, ":{");
        put_property(o, &m[i]->value);
        gemma4_puts(o, "}");
    }
    arena_restore(&o->scratch, mark);
    leave_value(o);
}

/* Writes the brace that closes the parameters only together with their type, as the template does. */
static void put_parameters(gemma4_out *o, const json_value *parameters)
{
    const json_value *properties = json_get(parameters, "properties"), *required = json_get(parameters, "required"),
                     *type = json_get(parameters, "type");
    gemma4_puts(o, ",parameters:{");
    if (truthy(properties)) {
        if (!is_mapping(properties)) {
            chat_out_fail(&o->to, ERR_INPUT, "a tool's schema has \"properties\" that are not an object");
            return;
        }
        gemma4_puts(o, "properties:{");
        put_properties(o, properties, drops_keywords(o));
        gemma4_puts(o, "},");
    }
    if (truthy(required)) {
        put_required(o, required);
        gemma4_puts(o, ",");
    }
    if (truthy(type)) {
        put_type(o, type);
        gemma4_puts(o, "}");
    }
}

static void put_response_schema(gemma4_out *o, const json_value *response)
{
    const json_value *description = json_get(response, "description");
    gemma4_puts(o, ",response:{");
    if (truthy(description)) {
        gemma4_puts(o, "description:");
        put_string(o, text_of(o, description));
        gemma4_puts(o, ",");
    }
    if (type_is(response, "OBJECT")) {
        put_type(o, json_get(response, "type"));
        gemma4_puts(o, "}");
    }
}

void gemma4_put_declaration(gemma4_out *o, const chat_tool *tool)
{
    gemma4_put_marker(o, GEMMA4_TOOL);
    gemma4_puts(o, "declaration:");
    gemma4_put(o, tool->name);
    gemma4_puts(o, "{description:");
    put_string(o, text_of(o, tool->description));
    if (truthy(tool->parameters)) put_parameters(o, tool->parameters);
    if (tool->response) put_response_schema(o, tool->response);
    gemma4_puts(o, "}");
    gemma4_put_marker(o, GEMMA4_TOOL_END);
}
