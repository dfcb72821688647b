#include "grammar/rig.h"

#include "base/mem.h"
#include "chat/gemma4_inside.h"
#include "gguf/gguf.h"
#include "tok/small.h"

#include <locale.h>
#include <regex.h>
#include <stdlib.h>

/* --- vocabularies ------------------------------------------------------------------------------ */
static void finish(rig_vocab *v, int32_t end)
{
    err e;
    v->end = end;
    if (!grammar_vocab_new(&v->vocab, v->tok, &v->end, 1, &e)) abort();
}

rig_vocab *rig_nano(void)
{
    static rig_vocab v;
    gguf            *g;
    err              e;
    if (v.tok) return &v;
    if (!gguf_open(&g, test_path("models/nano/target.gguf"), &e) || !tok_from_gguf(&v.tok, g, &gemma4_tokens, &e))
        abort();
    gguf_close(g);
    finish(&v, tok_eos(v.tok));
    return &v;
}

static void build(rig_vocab *v, small *s)
{
    err e;
    if (!vocab_build(&v->tok, &s->src, &e)) abort();
    finish(v, 1);
}

rig_vocab *rig_bytes(void)
{
    static rig_vocab         v;
    static small             s;
    static const char *const pieces[] = {
        "{\"",  "\":",   "\",",       "\"}", "\":\"", "\",\"", "},",     "}}",   "]}",           "[{",
        "true", "false", "null",      "a",   "b",     "ab",    "\xC3",   "\xA9", "\xC3\xA9",     "\\\"",
        "\\u",  "00",    "10",        "1",   "12",    "-",     ".",      ".5",   "abcabcabcabc", SP "a",
        SP,     SP SP,   ":" SP "\"", ",",   "\n",    "\n\n",  "\"a\":", "a\"",  "aa\",\"",      "[",
        "]",    "[[",    "{",         "}",   "\"",    "1,"};
    if (v.tok) return &v;
    small_init(&s);
    small_token(&s, STR("<|tool_call>"), TOK_CONTROL);
    small_token(&s, STR("<tool_call|>"), TOK_CONTROL);
    small_token(&s, STR("<|\"|>"), TOK_USER);
    for (size_t i = 0; i < COUNT(pieces); i++) small_token(&s, str_of(pieces[i]), TOK_NORMAL);
    build(&v, &s);
    return &v;
}

/* Words of syllables, most with a space before them, some capitalised; numbers; runs of punctuation; other scripts. */
static size_t made_up_token(char *out, uint64_t *seed)
{
    static const char *const syllable[] = {"a",  "in", "er", "to", "re", "th", "on", "st", "ing", "men", "con", "al",
                                           "or", "li", "ve", "ca", "de", "ro", "ne", "un", "pre", "ter", "ous", "ble"};
    static const char        marks[]    = "\"\"\",:;.{}[]()<>/\\=-_+*'!?#$%&@|~ \n\t";
    size_t                   n = 0, k = 1 + test_rand(seed) % 4;
    unsigned                 kind = test_rand(seed) % 100;
    if (kind < 72) {
        if (test_rand(seed) % 3) memcpy(out, SP, 3), n = 3;
        size_t first = n;
        for (size_t i = 0; i < k; i++) {
            const char *x = syllable[test_rand(seed) % COUNT(syllable)];
            memcpy(out + n, x, strlen(x)), n += strlen(x);
        }
        if (test_rand(seed) % 4 == 0) out[first] = (char)(out[first] - 32);
        if (test_rand(seed) % 24 == 0) out[n++] = marks[test_rand(seed) % (sizeof marks - 1)];
    } else if (kind < 94) {
        for (size_t i = 0; i < k; i++) n += (size_t)utf8_encode(out + n, 0x400 + (uint32_t)(test_rand(seed) % 0x8000));
    } else {
        for (size_t i = 0; i < k; i++) out[n++] = marks[test_rand(seed) % (sizeof marks - 1)];
        if (test_rand(seed) % 2) out[n++] = (char)('a' + test_rand(seed) % 26);
    }
    return n;
}

rig_vocab *rig_large(void)
{
    static rig_vocab v;
    static small     s;
    uint64_t         seed = 7;
    if (v.tok) return &v;
    small_init(&s);
    for (size_t n = 2; n < 64; n++) {
        char run[64];
        for (size_t k = 0; k < 3; k++) {
            memset(run, "-=\t"[k], n);
            small_token(&s, (str){run, n}, TOK_NORMAL);
        }
    }
    while (s.src.n < 262144) {
        char   text[64];
        size_t n = made_up_token(text, &seed);
        small_token(&s, (str){text, n}, TOK_NORMAL);
    }
    build(&v, &s);
    return &v;
}

/* --- machines ---------------------------------------------------------------------------------- */
typedef struct {
    grammar_machine *m;
    grammar         *g;
} owned;
static owned live[64];

static grammar_machine *own(test_case *t, rig_vocab *v, grammar *g)
{
    grammar_machine *m;
    err              e;
    if (!CHECK_OK(grammar_machine_new(&m, g, v->vocab, &e), e)) return NULL;
    size_t i = 0;
    while (i < COUNT(live) && live[i].m) i++;
    if (i == COUNT(live)) abort();
    live[i] = (owned){m, g};
    return m;
}

grammar_machine *rig_gbnf(test_case *t, rig_vocab *v, const char *text)
{
    grammar *g;
    err      e;
    if (!test_check(t, grammar_from_gbnf(&g, str_of(text), NULL, &e), __FILE__, __LINE__, "%s: %s", text, e.text))
        return NULL;
    return own(t, v, g);
}

grammar_machine *rig_schema(test_case *t, rig_vocab *v, const char *schema)
{
    arena             mem;
    const json_value *tree;
    grammar          *g;
    err               e;
    arena_init(&mem, 1 << 24);
    bool ok = json_parse(&tree, &mem, str_of(schema), NULL, &e) && grammar_from_schema(&g, tree, NULL, NULL, &e);
    arena_deinit(&mem);
    return test_check(t, ok, __FILE__, __LINE__, "%s: %s", schema, e.text) ? own(t, v, g) : NULL;
}

void rig_free(grammar_machine *m)
{
    for (size_t i = 0; m && i < COUNT(live); i++) {
        if (live[i].m != m) continue;
        grammar_machine_free(m);
        grammar_free(live[i].g);
        live[i] = (owned){0};
        return;
    }
}

/* Byte by byte: each step gives up the state before it. */
bool rig_must_end(grammar_machine *m, const rig_vocab *v, grammar_state s)
{
    const uint64_t *mask = grammar_mask(m, s, NULL);
    bool            only = mask != NULL;
    for (int32_t id = 0; only && id < tok_size(v->tok); id++) only = (mask[id >> 6] >> (id & 63) & 1) == (id == v->end);
    return only;
}

int32_t rig_next(grammar_machine *m, grammar_state s)
{
    int32_t id;
    return grammar_forced_tokens(m, s, &id, 1) == 1 ? id : -1;
}

rig_verdict rig_follow(grammar_machine *m, str text)
{
    grammar_state s = grammar_start(m);
    for (size_t i = 0; i < text.n && s >= 0; i++) {
        grammar_state to = grammar_take_bytes(m, s, (str){text.s + i, 1});
        grammar_drop(m, s);
        s = to;
    }
    rig_verdict v = s < 0 ? RIG_NO : grammar_can_end(m, s) ? RIG_WHOLE : RIG_PART;
    grammar_drop(m, s);
    return v;
}

/* --- the judge --------------------------------------------------------------------------------- */
static const json_value *root_schema;

static bool judge(const json_value *v, const json_value *s);

static bool same(const json_value *a, const json_value *b)
{
    bool na = a->kind == JSON_INT || a->kind == JSON_REAL, nb = b->kind == JSON_INT || b->kind == JSON_REAL;
    if (na && nb) return a->d == b->d;
    if (a->kind != b->kind || a->n != b->n) return false;
    if (a->kind == JSON_BOOL) return a->b == b->b;
    if (a->kind == JSON_STRING) return str_eq(a->s, b->s);
    for (size_t i = 0; i < a->n; i++)
        if (a->kind == JSON_ARRAY) {
            if (!same(&a->item[i], &b->item[i])) return false;
        } else {
            char key[256];
            snprintf(key, sizeof key, "%.*s", STR_ARG(a->member[i].key));
            const json_value *other = json_get(b, key);
            if (!other || !same(&a->member[i].value, other)) return false;
        }
    return true;
}

static bool is_type(const json_value *v, str name)
{
    bool number = v->kind == JSON_INT || v->kind == JSON_REAL;
    if (str_is(name, "null")) return v->kind == JSON_NULL;
    if (str_is(name, "boolean")) return v->kind == JSON_BOOL;
    if (str_is(name, "integer")) return number && v->d == floor(v->d);
    if (str_is(name, "number")) return number;
    if (str_is(name, "string")) return v->kind == JSON_STRING;
    if (str_is(name, "array")) return v->kind == JSON_ARRAY;
    return str_is(name, "object") && v->kind == JSON_OBJECT;
}

static bool judge_type(const json_value *v, const json_value *type)
{
    if (type->kind == JSON_STRING) return is_type(v, type->s);
    for (size_t i = 0; i < type->n; i++)
        if (is_type(v, type->item[i].s)) return true;
    return false;
}

static bool matches(str text, const char *pattern)
{
    regex_t re;
    char    copy[4096];
    snprintf(copy, sizeof copy, "%.*s", (int)text.n, text.s ? text.s : "");
    static locale_t utf8;
    if (!utf8 && !(utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0))) abort();
    locale_t was = uselocale(utf8);
    if (regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB)) abort();
    bool ok = !regexec(&re, copy, 0, NULL, 0);
    regfree(&re);
    uselocale(was);
    return ok;
}

static bool judge_format(str text, str format)
{
    static const char *const known[][2] = {
        {"date", "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
        {"time", "^[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})$"},
        {"date-time", "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})$"},
        {"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
        {"email", "^[^@ ]+@[^@ .]+([.][^@ .]+)+$"},
        {"ipv4", "^[0-9]{1,3}([.][0-9]{1,3}){3}$"},
        {"uri", "^[a-z]+://[^ ]+$"},
        {"hostname", "^[A-Za-z0-9.-]{1,253}$"}};
    for (size_t i = 0; i < COUNT(known); i++)
        if (str_is(format, known[i][0])) return matches(text, known[i][1]);
    if (!str_starts(format, "x-")) abort(); /* an annotation */
    return true;
}

static size_t characters(str s)
{
    size_t   n = 0;
    uint32_t c;
    for (size_t i = 0; i < s.n; n++) i += (size_t)utf8_decode(s.s + i, s.n - i, &c);
    return n;
}

static bool has_twins(const json_value *v)
{
    for (size_t i = 0; i < v->n; i++)
        for (size_t k = 0; k < i; k++)
            if (same(&v->item[i], &v->item[k])) return true;
    return false;
}

static bool judge_contains(const json_value *v, const json_value *s, const json_value *arg)
{
    const json_value *min = json_get(s, "minContains"), *max = json_get(s, "maxContains");
    int64_t           n = 0;
    for (size_t i = 0; i < v->n; i++) n += judge(&v->item[i], arg);
    return n >= (min ? min->i : 1) && (!max || n <= max->i);
}

static bool has_key(const json_value *v, str key)
{
    for (size_t i = 0; v->kind == JSON_OBJECT && i < v->n; i++)
        if (str_eq(v->member[i].key, key)) return true;
    return false;
}

static bool judge_dependents(const json_value *v, const json_value *arg)
{
    for (size_t i = 0; i < arg->n; i++) {
        const json_value *on = &arg->member[i].value;
        if (!has_key(v, arg->member[i].key)) continue;
        if (on->kind != JSON_ARRAY && !judge(v, on)) return false;
        for (size_t k = 0; on->kind == JSON_ARRAY && k < on->n; k++)
            if (!has_key(v, on->item[k].s)) return false;
    }
    return true;
}

static bool judge_key(const json_value *v, const json_value *s, str key, const json_value *arg)
{
    bool number = v->kind == JSON_INT || v->kind == JSON_REAL;
    if (str_is(key, "type")) {
        const json_value *nullable = json_get(s, "nullable");
        return judge_type(v, arg) || (nullable && nullable->b && v->kind == JSON_NULL);
    }
    if (str_is(key, "const")) return same(v, arg);
    if (str_is(key, "minimum")) return !number || v->d >= arg->d;
    if (str_is(key, "maximum")) return !number || v->d <= arg->d;
    if (str_starts(key, "exclusive") && arg->kind == JSON_BOOL) { /* of draft 4, beside minimum or maximum */
        const json_value *bound = json_get(s, str_is(key, "exclusiveMinimum") ? "minimum" : "maximum");
        return !number || !arg->b || !bound || v->d != bound->d;
    }
    if (str_is(key, "exclusiveMinimum")) return !number || v->d > arg->d;
    if (str_is(key, "exclusiveMaximum")) return !number || v->d < arg->d;
    if (str_is(key, "multipleOf")) return !number || fabs(remainder(v->d, arg->d)) < 1e-9 * fmax(1, fabs(v->d));
    if (str_is(key, "minLength")) return v->kind != JSON_STRING || characters(v->s) >= (size_t)arg->i;
    if (str_is(key, "maxLength")) return v->kind != JSON_STRING || characters(v->s) <= (size_t)arg->i;
    if (str_is(key, "format")) return v->kind != JSON_STRING || json_get(s, "pattern") || judge_format(v->s, arg->s);
    if (str_is(key, "minItems")) return v->kind != JSON_ARRAY || v->n >= (size_t)arg->i;
    if (str_is(key, "maxItems")) return v->kind != JSON_ARRAY || v->n <= (size_t)arg->i;
    if (str_is(key, "minProperties")) return v->kind != JSON_OBJECT || v->n >= (size_t)arg->i;
    if (str_is(key, "maxProperties")) return v->kind != JSON_OBJECT || v->n <= (size_t)arg->i;
    if (str_is(key, "pattern")) {
        char pattern[256];
        snprintf(pattern, sizeof pattern, "%.*s", STR_ARG(arg->s));
        return v->kind != JSON_STRING || matches(v->s, pattern);
    }
    if (str_is(key, "enum") || str_is(key, "anyOf") || str_is(key, "oneOf") || str_is(key, "allOf")) {
        size_t n = 0;
        for (size_t i = 0; i < arg->n; i++) n += key.s[0] == 'e' ? same(v, &arg->item[i]) : judge(v, &arg->item[i]);
        return str_is(key, "allOf") ? n == arg->n : str_is(key, "oneOf") ? n == 1 : n > 0;
    }
    if (str_is(key, "not")) return !judge(v, arg);
    if (str_is(key, "if")) {
        const json_value *next = json_get(s, judge(v, arg) ? "then" : "else");
        return !next || judge(v, next);
    }
    if (str_is(key, "uniqueItems")) return v->kind != JSON_ARRAY || !arg->b || !has_twins(v);
    if (str_is(key, "contains")) return v->kind != JSON_ARRAY || judge_contains(v, s, arg);
    if (str_is(key, "propertyNames")) {
        bool ok = true;
        for (size_t i = 0; v->kind == JSON_OBJECT && i < v->n; i++)
            ok = ok && judge(&(json_value){.kind = JSON_STRING, .s = v->member[i].key}, arg);
        return ok;
    }
    if (str_is(key, "dependentRequired") || str_is(key, "dependentSchemas")) return judge_dependents(v, arg);
    if (str_is(key, "$ref")) {
        if (str_is(arg->s, "#")) return judge(v, root_schema);
        const char *name = arg->s.s + strlen("#/$defs/");
        char        copy[64];
        snprintf(copy, sizeof copy, "%.*s", (int)(arg->s.n - strlen("#/$defs/")), name);
        return judge(v, json_get(json_get(root_schema, "$defs"), copy));
    }
    if (str_is(key, "required")) {
        for (size_t i = 0; v->kind == JSON_OBJECT && i < arg->n; i++) {
            bool there = false;
            for (size_t k = 0; k < v->n; k++) there = there || str_eq(v->member[k].key, arg->item[i].s);
            if (!there) return false;
        }
        return true;
    }
    static const char *const elsewhere[] = {"properties",
                                            "additionalProperties",
                                            "items",
                                            "prefixItems",
                                            "$defs",
                                            "title",
                                            "description",
                                            "default",
                                            "examples",
                                            "nullable",
                                            "then",
                                            "else",
                                            "minContains",
                                            "maxContains",
                                            "patternProperties"};
    for (size_t i = 0; i < COUNT(elsewhere); i++)
        if (str_is(key, elsewhere[i])) return true;
    fprintf(stderr, "the judge does not know '%.*s'\n", STR_ARG(key));
    abort();
}

static bool judge_members(const json_value *v, const json_value *s)
{
    const json_value *named = json_get(s, "properties"), *rest = json_get(s, "additionalProperties");
    const json_value *by_pattern = json_get(s, "patternProperties");
    for (size_t i = 0; v->kind == JSON_OBJECT && i < v->n; i++) {
        bool found = false;
        for (size_t k = 0; named && k < named->n; k++) {
            if (!str_eq(named->member[k].key, v->member[i].key)) continue;
            found = true;
            if (!judge(&v->member[i].value, &named->member[k].value)) return false;
        }
        for (size_t k = 0; by_pattern && k < by_pattern->n; k++) {
            char pattern[256];
            snprintf(pattern, sizeof pattern, "%.*s", STR_ARG(by_pattern->member[k].key));
            if (!matches(v->member[i].key, pattern)) continue;
            found = true;
            if (!judge(&v->member[i].value, &by_pattern->member[k].value)) return false;
        }
        if (!found && rest && !judge(&v->member[i].value, rest)) return false;
    }
    const json_value *first = json_get(s, "prefixItems"), *items = json_get(s, "items");
    for (size_t i = 0; v->kind == JSON_ARRAY && i < v->n; i++) {
        const json_value *own = first && i < first->n ? &first->item[i] : items;
        if (own && !judge(&v->item[i], own)) return false;
    }
    return true;
}

static bool judge(const json_value *v, const json_value *s)
{
    if (s->kind == JSON_BOOL) return s->b;
    for (size_t i = 0; i < s->n; i++)
        if (!judge_key(v, s, s->member[i].key, &s->member[i].value)) return false;
    return judge_members(v, s);
}

bool rig_fits(str document, const char *schema, bool *twice)
{
    arena             mem;
    const json_value *v, *s;
    err               e = {0};
    arena_init(&mem, 1 << 24);
    if (!json_parse(&s, &mem, str_of(schema), NULL, &e)) abort();
    bool ok     = json_parse(&v, &mem, document, NULL, &e);
    *twice      = !ok && strstr(e.text, "appears twice");
    root_schema = s;
    ok          = ok && judge(v, s);
    arena_deinit(&mem);
    return ok;
}
