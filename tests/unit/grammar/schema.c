/* Schemas: a table of documents byte by byte, walks that follow the masks, and what is refused. */
#include "base/clock.h"
#include "base/fault.h"
#include "chat/gemma4_inside.h"
#include "grammar/rig.h"
#include "grammar/schemas.h"
#include "tok/small.h"

#include <stdlib.h>

enum { WALKS = 12, LONG_WALK = 60, MAX_WALK = 4000 };

static const char *quoted(char out[2048], const char *s)
{
    size_t n = strlen(s);
    if (n >= 2048) abort();
    for (size_t i = 0; i <= n; i++) out[i] = s[i] == '\'' ? '"' : s[i];
    return out;
}

static bool compiles(const char *schema, err *e)
{
    arena             mem;
    const json_value *tree;
    grammar          *g = NULL;
    arena_init(&mem, 1 << 24);
    bool ok = json_parse(&tree, &mem, str_of(schema), NULL, e) && grammar_from_schema(&g, tree, NULL, NULL, e);
    arena_deinit(&mem);
    grammar_free(g);
    return ok;
}

/* Whether the judge of rig.c knows all that the schema says. */
static bool is_judged(const char *schema)
{
    static const char *const unknown[] = {"additionalItems", "definitions", "Properties\":true",
                                          "items\":true",    "?",           "$id",
                                          "unevaluated",     "\\\\u{"}; /* POSIX regular expressions have no \\u */
    for (size_t i = 0; i < COUNT(unknown); i++)
        if (strstr(schema, unknown[i])) return false;
    return true;
}

TEST(grammar_schema_table)
{
    char schema[2048], text[2048];
    CHECK(n_schema_rows >= 120);
    for (size_t i = 0; i < n_schema_rows; i++) {
        const schema_row *r = &schema_rows[i];
        if (!r->yes[0]) continue;
        grammar_machine *m = rig_schema(t, rig_bytes(), quoted(schema, r->schema));
        for (size_t k = 0; m && k < COUNT(r->yes) && r->yes[k]; k++) {
            bool        twice;
            const char *d = quoted(text, r->yes[k]);
            CHECK_MSG(rig_follow(m, str_of(d)) == RIG_WHOLE, "%s should allow %s", schema, d);
            if (is_judged(schema))
                CHECK_MSG(rig_fits(str_of(d), schema, &twice), "the table is wrong: %s does not fit %s", d, schema);
        }
        for (size_t k = 0; m && k < COUNT(r->no) && r->no[k]; k++) {
            const char *d = quoted(text, r->no[k]);
            CHECK_MSG(rig_follow(m, str_of(d)) != RIG_WHOLE, "%s should not allow %s", schema, d);
        }
        rig_free(m);
    }
}

/* Beyond 2^53, where a reader with doubles would round the schema. */
TEST(grammar_integer_bounds_are_exact)
{
    static const struct {
        const char *schema, *yes[3], *no[3];
    } rows[] = {
        {"{'type':'integer','minimum':9007199254740993,'maximum':9007199254740995}",
         {"9007199254740993", "9007199254740994", "9007199254740995"},
         {"9007199254740992", "9007199254740996", "1"}},
        {"{'type':'integer','exclusiveMinimum':-9007199254740995,'exclusiveMaximum':-9007199254740993}",
         {"-9007199254740994"},
         {"-9007199254740995", "-9007199254740993", "-1"}},
        {"{'type':'integer','minimum':9223372036854775806}",
         {"9223372036854775806", "9223372036854775807"},
         {"9223372036854775805", "9223372036854775808", "1"}},
        {"{'type':'integer','minimum':0,'multipleOf':9}", {"0", "9007199254740987"}, {"9007199254740992", "8"}},
        {"{'enum':[9007199254740993,9007199254740992],'maximum':9007199254740992}",
         {"9007199254740992"},
         {"9007199254740993"}},
    };
    char schema[2048];
    for (size_t i = 0; i < COUNT(rows); i++) {
        grammar_machine *m = rig_schema(t, rig_bytes(), quoted(schema, rows[i].schema));
        for (size_t k = 0; m && k < COUNT(rows[i].yes) && rows[i].yes[k]; k++)
            CHECK_MSG(rig_follow(m, str_of(rows[i].yes[k])) == RIG_WHOLE, "%s: %s", schema, rows[i].yes[k]);
        for (size_t k = 0; m && k < COUNT(rows[i].no) && rows[i].no[k]; k++)
            CHECK_MSG(rig_follow(m, str_of(rows[i].no[k])) != RIG_WHOLE, "%s: %s", schema, rows[i].no[k]);
        rig_free(m);
    }
}

/* A format is an annotation where the author says more: validators that assert formats would disagree with the table. */
TEST(grammar_format_is_an_annotation_beside_others)
{
    static const char *const rows[][3] = {
        {"{'type':'string','pattern':'^[a-z]+$','format':'email'}", "'abc'", "'a@b.cc'"},
        {"{'type':'string','format':'email','pattern':'^[a-z]+$'}", "'abc'", "'a@b.cc'"},
        {"{'enum':['a','b'],'format':'email'}", "'a'", "'c@d.ee'"},
        {"{'const':'a','format':'uuid'}", "'a'", "'b'"},
        {"{'type':'integer','format':'email'}", "1", "'c@d.ee'"},
        {"{'type':'string','format':'email'}", "'c@d.ee'", "'abc'"},
    };
    char schema[2048], text[2048];
    for (size_t i = 0; i < COUNT(rows); i++) {
        grammar_machine *m = rig_schema(t, rig_bytes(), quoted(schema, rows[i][0]));
        if (!m) continue;
        CHECK_MSG(rig_follow(m, str_of(quoted(text, rows[i][1]))) == RIG_WHOLE, "%s: %s", schema, text);
        CHECK_MSG(rig_follow(m, str_of(quoted(text, rows[i][2]))) != RIG_WHOLE, "%s: %s", schema, text);
        rig_free(m);
    }
}

/* --- walks ------------------------------------------------------------------------------------- */
static bool allowed(const uint64_t *mask, int32_t id) { return id >= 0 && mask[id >> 6] >> (id & 63) & 1; }

/* A random token; in a long text rather one that brings it to an end. */
static int32_t pick(rig_vocab *v, const uint64_t *mask, int n, uint64_t *seed)
{
    static const char *const closing[] = {"\"", "}", "]", "0", "l", "e"};
    int32_t                  size      = tok_size(v->tok);
    if (allowed(mask, v->end) && (n > LONG_WALK || test_rand(seed) % 3 == 0)) return v->end;
    for (size_t i = 0; n > LONG_WALK && i < COUNT(closing); i++) {
        int32_t id = tok_find(v->tok, str_of(closing[i]));
        if (allowed(mask, id)) return id;
    }
    int32_t from = (int32_t)(test_rand(seed) % (uint64_t)size);
    for (int32_t i = 0; i < size; i++)
        if (allowed(mask, (from + i) % size)) return (from + i) % size;
    return -1;
}

/* False when the walk was not finished. */
static bool walk(test_case *t, rig_vocab *v, grammar_machine *m, buf *text, uint64_t *seed)
{
    grammar_state s = grammar_start(m);
    err           e = {0};
    buf_clear(text);
    for (int n = 0; s >= 0 && n < MAX_WALK; n++) {
        const uint64_t *mask = grammar_mask(m, s, &e);
        if (!CHECK_MSG(mask != NULL, "%s", e.text)) break;
        int32_t       id = pick(v, mask, n, seed);
        grammar_state to = grammar_take(m, s, id);
        CHECK_MSG(to != GRAMMAR_NO && to != GRAMMAR_FULL, "token %d is in the mask and was refused", id);
        grammar_drop(m, s);
        s = to;
        if (id != v->end) buf_put(text, tok_bytes(v->tok, id).s, tok_bytes(v->tok, id).n);
    }
    grammar_drop(m, s);
    return s == GRAMMAR_ENDED;
}

static void walk_rows(test_case *t, rig_vocab *v, int walks)
{
    char     schema[2048];
    uint64_t seed     = 3;
    int      finished = 0, all = 0;
    buf      text;
    buf_init(&text, 1 << 20);
    for (size_t i = 0; i < n_schema_rows; i++) {
        if (!schema_rows[i].yes[0]) continue;
        quoted(schema, schema_rows[i].schema);
        if (!is_judged(schema)) continue;
        grammar_machine *m = rig_schema(t, v, schema);
        for (int k = 0; m && k < walks; k++) {
            bool twice, done = walk(t, v, m, &text, &seed);
            all++;
            finished += done;
            if (!done) continue;
            bool fits = rig_fits(buf_str(&text), schema, &twice);
            CHECK_MSG(fits || twice, "%s allowed %.*s", schema, (int)text.n, text.p);
        }
        rig_free(m);
    }
    CHECK_MSG(finished * 20 >= all * 19, "only %d of %d walks came to an end", finished, all);
    buf_deinit(&text);
}

TEST(grammar_walks_along_the_mask_validate) { walk_rows(t, rig_nano(), WALKS); }
TEST(grammar_walks_of_small_tokens_validate) { walk_rows(t, rig_bytes(), WALKS); }

/* --- refusals ---------------------------------------------------------------------------------- */
TEST(grammar_schema_refuses_with_a_path)
{
    static const char *const bad[][2] = {
        {"{'type':'array','uniqueItems':true}", "#/uniqueItems"},
        {"{'unevaluatedProperties':3}", "#/unevaluatedProperties: is not a schema"},
        {"{'$recursiveRef':'#'}", "#/$recursiveRef: this keyword cannot be enforced"},
        {"{'minlength':3}", "#/minlength"},
        {"{'type':'strin'}", "'strin' is not a type"},
        {"{'type':3}", "#/type"},
        {"{'type':'string','pattern':'a\\\\1'}", "a reference to a group"},
        {"{'type':'string','pattern':'[b-a]'}", "ends before it begins"},
        {"{'type':'string','pattern':'a('}", ") is missing"},
        {"{'type':'string','pattern':'a)'}", "misplaced )"},
        {"{'type':'integer','multipleOf':0}", "#/multipleOf"},
        {"{'type':'integer','multipleOf':101}", "#/multipleOf"},
        {"{'type':'number','minimum':1e300}", "#/minimum"},
        {"{'minimum':'a'}", "#/minimum"},
        {"{'type':'integer','exclusiveMinimum':true}", "there is no bound next to it"},
        {"{'const':{},'not':{'additionalProperties':false}}", "#"},
        {"{'minItems':-1}", "#/minItems"},
        {"{'maxLength':1.5}", "#/maxLength"},
        {"{'enum':3}", "#/enum"},
        {"{'required':'a'}", "#/required"},
        {"{'properties':[]}", "#/properties"},
        {"{'items':3}", "#/items"},
        {"{'anyOf':[]}", "#/anyOf"},
        {"{'allOf':{}}", "#/allOf"},
        {"{'$ref':'#/$defs/none'}", "there is no '#/$defs/none'"},
        {"{'$ref':'http://a/b'}", "not in this document"},
        {"{'$ref':'#name'}", "there is no '#name'"},
        {"{'$ref':'other.json#/a'}", "not in this document"},
        {"{'$ref':'b','$defs':{'b':{'$id':'b','$ref':'#/c'}}}", "b/$ref: next to $id"},
        {"{'$dynamicRef':'#a','$defs':{'b':{'$dynamicAnchor':'a'},'c':{'$id':'c','$dynamicAnchor':'a'}}}",
         "#/$dynamicRef"},
        {"{'$ref':'#'}", "refers to itself"},
        {"{'allOf':[{'$ref':'#'}]}", "refers to itself"},
        {"{'anyOf':[{'$ref':'#'},{'type':'null'}]}", "#: the schema refers to itself without an object"},
        {"{'$defs':{'a':{'anyOf':[{'$ref':'#/$defs/b'},{'type':'null'}]},'b':{'anyOf':[{'type':'integer'},{'$ref':'#/"
         "$defs/"
         "a'}]}},'items':{'$ref':'#/$defs/a'}}",
         "#/$defs/a: the schema refers to itself without an object"},
        {"{'$defs':{'a':{'minimum':1,'anyOf':[{'maximum':9,'allOf':[{'$ref':'#/$defs/a'}]},{'type':'null'}]}},'items':{"
         "'$ref':'#/$defs/a'}}",
         "#/$defs/a/anyOf: the schema refers to itself without an object"},
        {"{'type':'array','items':{'type':'string'},'uniqueItems':true}", "#/uniqueItems: can be enforced only where"},
        {"{'type':'array','prefixItems':[{'type':'integer'}],'items':false,'uniqueItems':true}", "#/uniqueItems"},
        {"{'type':'array','items':{'enum':[1,2]},'contains':{'const':1},'uniqueItems':true}", "#/uniqueItems"},
        {"{'uniqueItems':1}", "#/uniqueItems: is not true or false"},
        {"{'type':'string','pattern':'^(a(?=b))*$'}", "a lookahead inside a repetition"},
        {"{'type':'string','pattern':'(?i)a'}", "a flag"},
        {"{'type':'string','pattern':'(?<=a)b'}", "a lookbehind"},
        {"{'type':'string','pattern':'\\\\p{Letter}'}", "#/pattern: \\p"},
        {"{'type':'string','pattern':'^[a-z]{999}[0-9]{999}[a-z]{999}[0-9]{999}$','minLength':3997}", "states"},
        {"{'type':'number','multipleOf':1e-12}", "#/multipleOf: has too many digits"},
        {"{'type':'number','multipleOf':0.37,'minimum':0}", "#/multipleOf"},
        {"{'type':'number','multipleOf':1.01}", "#/multipleOf"},
        {"{'patternProperties':3}", "#/patternProperties: is not an object"},
        {"{'patternProperties':{'a(':{}}}", "#/patternProperties"},
        {"{'patternProperties':{'a':{},'b':{},'c':{},'d':{},'e':{},'f':{},'g':{}}}",
         "#/patternProperties: more than 6"},
        {"{'propertyNames':3}", "#/propertyNames: is not a schema"},
        {"{'type':'object','propertyNames':{'pattern':'(?i)a'}}", "#/propertyNames/pattern"},
        {"{'dependentRequired':{'a':{}}}", "#/dependentRequired/a"},
        {"{'dependentSchemas':{'a':[]}}", "#/dependentSchemas/a"},
        {"{'not':3}", "#/not: is not a schema"},
        {"{'not':{'type':'number','multipleOf':2}}", "#/not/multipleOf: cannot be enforced inside not or if"},
        {"{'not':{'uniqueItems':true}}", "#/not/uniqueItems"},
        {"{'not':{'const':[1]},'type':'array'}", "#/not"},
        {"{'if':{'unevaluatedItems':false},'then':{'minItems':1}}",
         "unevaluatedItems: cannot be enforced inside not or if"},
        {"{'oneOf':[{'type':'integer','multipleOf':2},{'type':'integer','multipleOf':3}]}",
         "#/oneOf/not/multipleOf: cannot be enforced inside not or if"},
        {"{'oneOf':[{'type':'object','additionalProperties':{'const':1}},{'type':'object','properties':{'a':{}}}]}",
         "do not differ by a type, a constant or a required key"},
        {"{'contains':3}", "#/contains: is not a schema"},
        {"{'contains':{},'minContains':-1}", "#/minContains"},
        {"{'type':'array','contains':{'const':1},'minContains':9000}", "too many items to count"},
        {"{'type':'object','properties':{'a':{'$ref':'#'}},'required':['a']}", "matches nothing"},
        {"{'type':'object','minProperties':2}", "#/minProperties"},
        {"{'enum':[[1]],'items':{}}", "constants combined with constraints"},
        {"false", "no value matches"},
        {"{'enum':[]}", "no value matches"},
        {"{'type':'integer','minimum':3,'maximum':2}", "no value matches"},
        {"{'type':'string','minLength':3,'maxLength':2}", "no value matches"},
        {"{'type':'string','minLength':3,'maxLength':2,'not':{'const':'a'}}", "no value matches"},
        {"{'type':'array','minItems':3,'maxItems':2}", "no value matches"},
        {"{'type':'object','required':['a'],'additionalProperties':false}", "no value matches"},
        {"{'allOf':[{'type':'string'},{'type':'null'}]}", "no value matches"},
        {"3", "is not a schema"},
        {"{'properties':{'a':3}}", "#/properties/a: is not a schema"},
        {"{'properties':{'a':{'items':{'anyOf':[{'$ref':'#/x'}]}}}}", "#/properties/a/items/anyOf/$ref"},
    };
    char schema[2048];
    err  e = {0};
    for (size_t i = 0; i < COUNT(bad); i++) {
        bool ok = compiles(quoted(schema, bad[i][0]), &e);
        CHECK_MSG(!ok && strstr(e.text, bad[i][1]), "%s: %s; expected '%s'", schema, ok ? "was accepted" : e.text,
                  bad[i][1]);
    }
}

/* The shapes that compilers choke on: each is done, or refused, in a second. */
static void put_large_schema(buf *b, int kind)
{
    static const char *const open[]  = {"{\"type\":\"object\",\"properties\":{", "{\"enum\":[", "{\"anyOf\":[",
                                        "{\"allOf\":[", "{\"type\":\"array\",\"prefixItems\":["};
    static const char *const close[] = {"},\"minProperties\":3,\"additionalProperties\":false}", "]}", "]}", "]}",
                                        "]}"};
    static const int         n[]     = {2000, 20000, 1000, 60, 2000};
    buf_puts(b, open[kind]);
    for (int i = 0; i < n[kind]; i++) {
        if (i) buf_putc(b, ',');
        if (kind == 0) buf_printf(b, "\"name%d\":{\"type\":\"string\",\"maxLength\":%d}", i, i);
        if (kind == 1) buf_printf(b, "\"word %d of many\"", i * 7919);
        if (kind == 2)
            buf_printf(b, "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":%d}},\"required\":[\"k\"]}", i);
        if (kind == 3) buf_printf(b, "{\"anyOf\":[{\"minimum\":%d},{\"maximum\":%d}]}", i, -i);
        if (kind == 4) buf_printf(b, "{\"type\":\"integer\",\"minimum\":%d}", i);
    }
    buf_puts(b, close[kind]);
    buf_putc(b, 0);
}

TEST(grammar_large_schemas_are_done_in_a_second)
{
    buf b;
    buf_init(&b, 4 << 20);
    for (int kind = 0; kind < 5; kind++) {
        err e = {0};
        buf_clear(&b);
        put_large_schema(&b, kind);
        double before = clock_thread_s();
        bool   ok     = compiles(b.p, &e);
        double took   = clock_thread_s() - before;
        CHECK_MSG(took < TEST_SLOWER, "large schema %d took %.2f s", kind, took);
        CHECK_MSG(ok == (kind != 3), "large schema %d: %s", kind, ok ? "was accepted" : e.text);
    }
    buf_deinit(&b);
}

TEST(grammar_any_object_is_an_object)
{
    grammar         *g;
    grammar_machine *m;
    err              e;
    CHECK_OK(grammar_any_object(&g, &e), e);
    CHECK_OK(grammar_machine_new(&m, g, rig_bytes()->vocab, &e), e);
    CHECK(rig_follow(m, STR("{\"a\": [1, {\"b\": null}], \"c\": \"d\"}")) == RIG_WHOLE);
    CHECK(rig_follow(m, STR("[]")) == RIG_NO);
    CHECK(rig_follow(m, STR("{\"a\":")) == RIG_PART);
    grammar_machine_free(m);
    grammar_free(g);
}

/* --- depth ------------------------------------------------------------------------------------- */
TEST(grammar_what_is_begun_can_be_ended)
{
    rig_vocab       *v = rig_bytes();
    grammar_machine *m = rig_schema(t, v, "{}");
    grammar_state    s = grammar_start(m);
    err              e;
    int              open = 0;
    for (; open < 2 * GRAMMAR_JSON_DEPTH; open++) {
        grammar_state to = grammar_take_bytes(m, s, STR("["));
        if (to < 0) break;
        const uint64_t *mask = grammar_mask(m, to, &e);
        CHECK_MSG(mask != NULL, "%s", e.text);
        grammar_drop(m, s);
        s = to;
    }
    CHECK_MSG(open >= GRAMMAR_JSON_DEPTH - 3 && open <= 64, "%d brackets were opened", open); /* our reader's limit */
    for (; open; open--) {
        grammar_state to = grammar_take_bytes(m, s, STR("]"));
        grammar_drop(m, s);
        s = to;
    }
    CHECK(rig_must_end(m, v, s) && grammar_can_end(m, s));
    grammar_drop(m, s);
    rig_free(m);
}

/* --- Gemma's calls ----------------------------------------------------------------------------- */
static grammar_state take_name(grammar_machine *m, rig_vocab *v, grammar_state s, const char *marker)
{
    grammar_state to = grammar_take(m, s, tok_find(v->tok, str_of(marker)));
    grammar_drop(m, s);
    return to;
}

static grammar_state take_text(grammar_machine *m, grammar_state s, const char *text)
{
    grammar_state to = s < 0 ? s : grammar_take_bytes(m, s, str_of(text));
    grammar_drop(m, s);
    return to;
}

/* Compiles calls of tools that are all kept. */
static bool calls_of(grammar **g, grammar_tool *tool, size_t n, bool several, err *e)
{
    buf warnings;
    buf_init(&warnings, 256);
    bool ok = grammar_tool_calls(
        g, tool, n, &(grammar_calls){.markup = gemma4_tokens.markup, .several = several, .warnings = &warnings}, e);
    ok = ok && !warnings.n;
    buf_deinit(&warnings);
    return ok;
}

/* A tool whose schema cannot be enforced takes any arguments, unless it is strict; the others are kept as they are. */
TEST(grammar_frees_a_tool_that_cannot_be_kept)
{
    static const char schema[] = "{\"bad\":{\"properties\":{\"a\":{\"minlength\":3}}},"
                                 "\"good\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},"
                                 "\"required\":[\"n\"],\"additionalProperties\":false}}";
    rig_vocab        *v        = rig_bytes();
    arena             mem;
    const json_value *tree;
    grammar          *g;
    grammar_machine  *m;
    buf               warnings;
    err               e;
    arena_init(&mem, 1 << 20);
    buf_init(&warnings, 1024);
    CHECK_OK(json_parse(&tree, &mem, str_of(schema), NULL, &e), e);
    grammar_calls how    = {.markup = gemma4_tokens.markup, .warnings = &warnings};
    grammar_tool  tool[] = {{.name = STR("good"), .parameters = json_get(tree, "good")},
                            {.name = STR("odd"), .parameters = json_get(tree, "bad")},
                            {.name = STR("good2"), .parameters = json_get(tree, "good"), .strict = true}};
    CHECK_OK(grammar_tool_calls(&g, tool, 3, &how, &e), e);
    buf_putc(&warnings, 0);
    CHECK_MSG(str_starts(str_of(warnings.p), "tool 'odd' takes any arguments: #/properties/a/minlength: "), "%s",
              warnings.p);
    CHECK(!strstr(warnings.p, "; ") && tool[1].free && !tool[0].free);
    CHECK_OK(grammar_machine_new(&m, g, v->vocab, &e), e);
    static const char *const text[] = {"call:odd{a:[1,{}],b:}", "call:good{n:1}", "call:good2{n:2}"};
    static const char *const not [] = {"call:other{", "call:good{n:x", "call:good2{}", "call:odd<"};
    for (size_t i = 0; i < COUNT(text); i++) {
        grammar_state s = take_text(m, take_name(m, v, grammar_start(m), "<|tool_call>"), text[i]);
        s               = take_name(m, v, s, "<tool_call|>");
        CHECK_MSG(s >= 0 && grammar_can_end(m, s), "%s", text[i]);
        grammar_drop(m, s);
    }
    for (size_t i = 0; i < COUNT(not ); i++)
        CHECK_INT(take_text(m, take_name(m, v, grammar_start(m), "<|tool_call>"), not [i]), GRAMMAR_NO);
    grammar_machine_free(m);
    grammar_free(g);
    tool[1].strict = true, tool[1].free = false;
    CHECK_FAILS(grammar_tool_calls(&g, tool, 3, &how, &e), e, "the parameters of tool 'odd' cannot be used");
    buf_deinit(&warnings);
    arena_deinit(&mem);
}

TEST(grammar_tool_calls_are_written_as_gemma_does)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"where\":{\"type\":\"string\"},\"days\":{\"type\":"
        "\"integer\",\"minimum\":1}},\"required\":[\"where\"],\"additionalProperties\":false}";
    rig_vocab        *v = rig_bytes();
    arena             mem;
    const json_value *tree;
    grammar          *g;
    grammar_machine  *m;
    err               e;
    arena_init(&mem, 1 << 20);
    CHECK_OK(json_parse(&tree, &mem, str_of(schema), NULL, &e), e);
    grammar_tool tool[] = {{.name = STR("weather"), .parameters = tree}, {.name = STR("now")}};
    CHECK_OK(calls_of(&g, tool, 2, true, &e), e);
    CHECK_OK(grammar_machine_new(&m, g, v->vocab, &e), e);
    grammar_state s = grammar_start(m);
    CHECK_INT(rig_next(m, s), tok_find(v->tok, STR("<|tool_call>")));
    s = take_name(m, v, s, "<|tool_call>");
    s = take_text(m, s, "call:weather{days:2,where:");
    CHECK_INT(rig_next(m, s), tok_find(v->tok, STR("<|\"|>")));
    s = take_name(m, v, s, "<|\"|>");
    s = take_text(m, s, "any \"text\" {here}\n");
    CHECK(s >= 0 && !grammar_can_end(m, s));
    s = take_name(m, v, s, "<|\"|>");
    s = take_text(m, s, "}");
    s = take_name(m, v, s, "<tool_call|>");
    CHECK(grammar_can_end(m, s) && !rig_must_end(m, v, s));
    s = take_name(m, v, s, "<|tool_call>");
    s = take_text(m, s, "call:now{}");
    s = take_name(m, v, s, "<tool_call|>");
    CHECK(grammar_can_end(m, s));
    s = take_name(m, v, s, "<|tool_call>");
    s = take_text(m, s, "call:weather{}");
    CHECK_INT(s, GRAMMAR_NO);
    grammar_machine_free(m);
    grammar_free(g);
    grammar_tool bad = {.name = STR("bad"), .parameters = &(json_value){.kind = JSON_INT}, .strict = true};
    CHECK_FAILS(calls_of(&g, &bad, 1, false, &e), e, "tool 'bad'");
    arena_deinit(&mem);
}

/* A call of Qwen's kind between the markers: its text, and whether it is complete, a beginning, or refused. */
static void check_tagged(test_case *t, grammar_machine *m, rig_vocab *v, const char *text, rig_verdict expected)
{
    grammar_state s  = take_text(m, take_name(m, v, grammar_start(m), "<|tool_call>"), text);
    rig_verdict   is = s < 0 ? RIG_NO : RIG_PART;
    if (s >= 0) {
        s = take_name(m, v, s, "<tool_call|>");
        if (s >= 0) is = grammar_can_end(m, s) ? RIG_WHOLE : RIG_PART;
        grammar_drop(m, s);
    }
    CHECK_MSG(is == expected, "verdict %d, expected %d: %s", (int)is, (int)expected, text);
}

TEST(grammar_tool_calls_are_written_as_qwen_does)
{
    static const char schema[] =
        "{\"a\":{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\",\"description\":\"d\"},"
        "\"n\":{\"type\":\"integer\"},\"unit\":{\"type\":\"string\",\"enum\":[\"C\",\"F\"]},\"list\":"
        "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":[\"text\",\"n\"],"
        "\"additionalProperties\":false},"
        "\"b\":{\"type\":\"object\",\"properties\":{\"p\":{\"type\":\"string\",\"pattern\":\"^x+$\"}},"
        "\"required\":[\"p\"],\"additionalProperties\":false}}";
    static const struct {
        const char *text;
        rig_verdict is;
    } c[] = {
        {"\n<function=a>\n<parameter=text>\nhi <b>\n "
         "there\n</parameter>\n<parameter=n>\n12\n</parameter>\n</function>\n",
         RIG_WHOLE},
        {"\n<function=a>\n<parameter=text>\n\n\n\n</p</parameter>\n</parameter>\n<parameter=n>\n-1\n</parameter>\n"
         "<parameter=unit>\nF\n</parameter>\n<parameter=list>\n[\"x\"]\n</parameter>\n</function>\n",
         RIG_WHOLE},
        {"\n{\"name\": \"a\", \"arguments\": {\"text\":\"x\",\"n\":1}}\n", RIG_WHOLE},
        {"\n{\"name\": \"b\", \"arguments\": {\"p\":\"xx\"}}\n", RIG_WHOLE},
        {"\n<function=none>\n</function>\n", RIG_WHOLE},
        {"\n<function=any>\n<parameter=k>\nv\n</parameter>\n</function>\n", RIG_WHOLE},
        {"\n{\"name\": \"none\", \"arguments\": {}}\n", RIG_WHOLE},
        {"\n<function=a>\n</function>\n", RIG_NO},                                       /* text is missing */
        {"\n<function=a>\n<parameter=text>\nx\n</parameter>\n</function>\n", RIG_NO},    /* n is missing */
        {"\n<function=a>\n<parameter=text>\nx\n</parameter>\n<parameter=n>\nx", RIG_NO}, /* no number */
        {"\n<function=a>\n<parameter=text>\nx\n</parameter>y", RIG_NO},
        {"\n<function=b>", RIG_NO}, /* a pattern: JSON only */
        {"\n{\"name\": \"b\", \"arguments\": {\"p\":\"y", RIG_NO},
        {"\n<function=c", RIG_NO},
        {"\n<function=a>\n<parameter=text>\nx", RIG_PART},
    };
    static const tok_markup markup = {.call_open = "<|tool_call>", .call_close = "<tool_call|>"};
    rig_vocab              *v      = rig_bytes();
    arena                   mem;
    const json_value       *tree;
    grammar                *g;
    grammar_machine        *m;
    err                     e;
    arena_init(&mem, 1 << 20);
    CHECK_OK(json_parse(&tree, &mem, str_of(schema), NULL, &e), e);
    grammar_tool  tool[] = {{.name = STR("a"), .parameters = json_get(tree, "a"), .strict = true},
                            {.name = STR("b"), .parameters = json_get(tree, "b"), .strict = true},
                            {.name = STR("none"), .strict = true},
                            {.name = STR("any"), .free = true}};
    grammar_calls how    = {.markup = &markup, .several = true};
    if (CHECK_OK(grammar_tool_calls(&g, tool, COUNT(tool), &how, &e), e) &&
        CHECK_OK(grammar_machine_new(&m, g, v->vocab, &e), e)) {
        for (size_t i = 0; i < COUNT(c); i++) check_tagged(t, m, v, c[i].text, c[i].is);
        grammar_state s = take_text(m, grammar_start(m), "\n\n"); /* after a thought */
        s               = take_text(m, take_name(m, v, s, "<|tool_call>"), "\n<function=none>\n</function>\n");
        s               = take_text(m, take_name(m, v, s, "<tool_call|>"), "\n"); /* a second call */
        CHECK(s >= 0 && !grammar_can_end(m, s));
        s = take_name(m, v, s, "<|tool_call>");
        CHECK(s >= 0);
        grammar_drop(m, s);
        grammar_machine_free(m);
    }
    grammar_free(g);
    grammar_tool bad = {.name = STR("a>b"), .strict = true};
    CHECK_FAILS(grammar_tool_calls(&g, &bad, 1, &how, &e), e, "its name cannot be used");
    arena_deinit(&mem);
}

TEST(grammar_tool_calls_have_arguments_that_can_be_read)
{
    static const struct {
        const char *name, *schema, *why; /* why NULL: it is fine, and only an object follows the name */
    } c[] = {
        {"a", "{}", NULL},
        {"a", "true", NULL},
        {"a", "{\"type\":[\"object\",\"null\"]}", NULL},
        {"a", "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"object\"}]}", NULL},
        {"a", "{\"type\":\"string\"}", "must be an object"},
        {"a", "{\"enum\":[1,2]}", "must be an object"},
        {"a", "{\"properties\":{\"a:b\":{}}}", "the key 'a:b'"},
        {"a", "{\"properties\":{\"x\":{\"type\":\"object\",\"required\":[\"}\"]}}}", "the key '}'"},
        {"a", "{\"properties\":{\"\":{}}}", "the key ''"},
        {"a{b", "{}", "its name"},
    };
    rig_vocab *v = rig_bytes();
    for (size_t i = 0; i < COUNT(c); i++) {
        arena             mem;
        const json_value *tree;
        grammar          *g;
        grammar_machine  *m;
        err               e;
        arena_init(&mem, 1 << 20);
        CHECK_OK(json_parse(&tree, &mem, str_of(c[i].schema), NULL, &e), e);
        grammar_tool tool = {.name = str_of(c[i].name), .parameters = tree, .strict = true};
        if (c[i].why) {
            CHECK_FAILS(calls_of(&g, &tool, 1, false, &e), e, c[i].why);
        } else {
            CHECK_OK(calls_of(&g, &tool, 1, false, &e), e);
            CHECK_OK(grammar_machine_new(&m, g, v->vocab, &e), e);
            grammar_state s = take_text(m, take_name(m, v, grammar_start(m), "<|tool_call>"), "call:a");
            grammar_state n = grammar_take_bytes(m, s, STR("null"));
            CHECK_INT(n, GRAMMAR_NO);
            s = take_name(m, v, take_text(m, s, "{}"), "<tool_call|>");
            CHECK(grammar_can_end(m, s));
            grammar_machine_free(m);
            grammar_free(g);
        }
        arena_deinit(&mem);
    }
}

/* --- memory ------------------------------------------------------------------------------------ */
static bool whole_life(err *e)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^a+b$\"},\"b\":{\"$ref\":\"#\"},"
        "\"c\":{\"enum\":[\"x\",\"xy\",{\"z\":1}]},\"d\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"array\"}]}}}";
    arena             mem;
    const json_value *tree;
    grammar          *g   = NULL;
    grammar_vocab    *v   = NULL;
    grammar_machine  *m   = NULL;
    int32_t           end = 1;
    arena_init(&mem, 1 << 20);
    bool ok = json_parse(&tree, &mem, str_of(schema), NULL, e) && grammar_from_schema(&g, tree, NULL, NULL, e) &&
              grammar_vocab_new(&v, rig_bytes()->tok, &end, 1, e) && grammar_machine_new(&m, g, v, e);
    grammar_machine_free(m);
    grammar_vocab_free(v);
    grammar_free(g);
    arena_deinit(&mem);
    return ok;
}

TEST(grammar_schema_survives_every_failed_allocation)
{
    err e = {0};
    rig_bytes();
    CHECK_OK(whole_life(&e), e);
    fault_fail_nth(1 << 20);
    whole_life(&e);
    long tries = fault_tries();
    for (long n = 1; n <= tries; n++) {
        e = (err){0};
        fault_fail_nth(n);
        bool ok = whole_life(&e);
        fault_fail_nth(0);
        CHECK_MSG(!ok && e.text[0], "allocation %ld of %ld failed and nobody noticed", n, tries);
    }
    fault_fail_nth(0);
}

/* Many schemas apply to one property: all of them hold, or the schema is refused. */
TEST(grammar_schema_refuses_what_too_many_speak_of)
{
    static const char named[] =
        "{\"properties\":{\"a\":{\"title\":\"i\"}},\"patternProperties\":{\"a\":{},\"^a\":{},\"a$\":{}}}";
    static const char patterns[] = "{\"patternProperties\":{\"a\":{},\"^a\":{},\"a$\":{},\"^a$\":{}}}";
    static const struct {
        const char *each, *last;
        int         n;
    } k[] = {{named, "{}", 62},
             {named, "{\"properties\":{\"a\":true}}", 34},
             {patterns, "{\"additionalProperties\":{\"type\":\"integer\"}}", 34}};
    for (size_t i = 0; i < COUNT(k); i++) {
        buf b;
        err e = {0};
        buf_init(&b, 1 << 20);
        buf_puts(&b, "{\"type\":\"object\",\"required\":[\"a\"],\"allOf\":[");
        for (int n = 0; n < k[i].n; n++) buf_printf(&b, "%s,", k[i].each);
        buf_printf(&b, "%s]}", k[i].last);
        buf_putc(&b, 0);
        bool ok = compiles(b.p, &e);
        CHECK_MSG(!ok && strstr(e.text, "schemas apply to one property"), "%zu: %s", i, ok ? "was accepted" : e.text);
        buf_deinit(&b);
    }
}
