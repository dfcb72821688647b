/* Compiling takes bounded work, whatever it is given. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "grammar/rig.h"
#include "tok/small.h"

#define MAX_CPU_S (0.5 * TEST_SLOWER)

static void list(buf *b, int n, const char *fmt, int factor)
{
    for (int i = 0; i < n; i++) {
        if (i) buf_putc(b, ',');
        buf_printf(b, fmt, i * factor, i * factor, i * factor);
    }
}

/* --- kinds of large schemas ---------------------------------------------------------------------*/
static void put_enums(buf *b, int n)
{
    buf_puts(b, "{\"allOf\":[{\"enum\":[");
    list(b, n, "%d", 2);
    buf_puts(b, "]},{\"enum\":[");
    list(b, n, "%d", 3);
    buf_puts(b, "]}]}");
}

static void put_references(buf *b, int n)
{
    buf_puts(b, "{\"$defs\":{");
    list(b, n, "\"d%d\":{\"minimum\":%d}", 1);
    buf_puts(b, "},\"allOf\":[");
    list(b, n, "{\"$ref\":\"#/$defs/d%d\"}", 1);
    buf_puts(b, "]}");
}

static void put_properties_by_choices(buf *b, int n)
{
    buf_puts(b, "{\"properties\":{");
    list(b, n / 2, "\"p%d\":{}", 1);
    buf_puts(b, "},\"anyOf\":[");
    list(b, n, "{\"minProperties\":1}", 1);
    buf_puts(b, "]}");
}

static void put_doubled(buf *b, int n)
{
    buf_puts(b, "{\"$defs\":{\"a0\":{\"type\":\"integer\",\"maximum\":5}");
    for (int i = 1; i <= n; i++)
        buf_printf(b, ",\"a%d\":{\"allOf\":[{\"$ref\":\"#/$defs/a%d\"},{\"$ref\":\"#/$defs/a%d\"}]}", i, i - 1, i - 1);
    buf_printf(b, "},\"$ref\":\"#/$defs/a%d\"}", n);
}

static void put_constants_by_choices(buf *b, int n)
{
    buf_puts(b, "{\"enum\":[");
    list(b, n, "%d", 1);
    buf_puts(b, "],\"anyOf\":[");
    list(b, n, "{\"maximum\":-1.%d}", 1);
    buf_puts(b, ",{\"minimum\":3}]}");
}

static void put_choices_by_choices(buf *b, int n)
{
    buf_puts(b, "{\"type\":\"string\",\"allOf\":[");
    for (int i = 0; i < 3; i++) {
        buf_puts(b, i ? ",{\"anyOf\":[" : "{\"anyOf\":[");
        list(b, n, "{\"minLength\":%d}", 1);
        buf_puts(b, "]}");
    }
    buf_puts(b, "]}");
}

static void put_prefix(buf *b, int n)
{
    buf_puts(b, "{\"type\":\"array\",\"prefixItems\":[");
    list(b, n, "{\"type\":\"integer\",\"minimum\":%d}", 1);
    buf_puts(b, "]}");
}

static void put_long_names(buf *b, int n)
{
    buf_puts(b, "{\"required\":[");
    list(b, n, "\"%060d\"", 1);
    buf_puts(b, "]}");
}

static void put_objects(buf *b, int n)
{
    buf_puts(b, "{\"anyOf\":[");
    list(b, n, "{\"properties\":{\"k\":{\"const\":%d}},\"required\":[\"k\"]}", 1);
    buf_puts(b, "]}");
}

static void put_object_constants(buf *b, int n)
{
    buf_puts(b, "{\"allOf\":[{\"enum\":[");
    list(b, n, "{\"a\":[%d,{\"b\":\"%d\"}],\"c\":%d}", 1);
    buf_puts(b, "]},{\"enum\":[");
    list(b, n, "{\"c\":%d,\"a\":[%d,{\"b\":\"%d\"}]}", 1);
    buf_puts(b, "]}]}");
}

static void put_pattern(buf *b, int n)
{
    buf_puts(b, "{\"pattern\":\"^(");
    for (int i = 0; i < n; i++) buf_printf(b, "%s[a-z]{1,9}%d", i ? "|" : "", i);
    buf_puts(b, ")$\"}");
}

static void put_patterns(buf *b, int n)
{
    buf_puts(b, "{\"allOf\":[");
    list(b, n, "{\"pattern\":\"[a-z]{2}%d(x|y)*z\"}", 1);
    buf_puts(b, "]}");
}

static void put_key_patterns(buf *b, int n)
{
    buf_puts(
        b,
        "{\"patternProperties\":{\"^a\":{},\"b$\":{},\"c\":{},\"[d-f]{3}\":{},\"g*h\":{},\"i|j\":{}},\"properties\":{");
    list(b, n, "\"name%d\":{}", 7);
    buf_puts(b, "}}");
}

static void put_exclusive(buf *b, int n)
{
    buf_puts(b, "{\"oneOf\":[");
    list(b, n, "{\"type\":\"object\",\"properties\":{\"k%d\":{\"const\":%d}}}", 1);
    buf_puts(b, "]}");
}

static void put_told_apart(buf *b, int n)
{
    buf_puts(b, "{\"oneOf\":[");
    list(b, n, "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":%d}},\"required\":[\"k\"]}", 1);
    buf_puts(b, "]}");
}

static void put_nots(buf *b, int n)
{
    for (int i = 0; i < 60; i++) buf_puts(b, i ? "{\"not\":" : "{\"type\":\"object\",\"not\":");
    buf_puts(b, "{\"required\":[");
    list(b, n, "\"r%d\"", 1);
    buf_puts(b, "]}");
    for (int i = 0; i < 60; i++) buf_putc(b, '}');
}

static void put_dependencies(buf *b, int n)
{
    buf_puts(b, "{\"dependentRequired\":{");
    list(b, n < 30 ? n : 30, "\"a%d\":[\"b%d\"]", 1);
    buf_puts(b, "}}");
}

static void put_counted_items(buf *b, int n)
{
    buf_printf(b, "{\"type\":\"array\",\"contains\":{\"const\":1},\"minContains\":%d,\"maxContains\":%d}", n, n + 9);
}

static void put_unique(buf *b, int n)
{
    buf_printf(b, "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":%d,\"items\":{\"enum\":[", n / 2);
    list(b, n, "%d", 1);
    buf_puts(b, "]}}");
}

static void put_anchors(buf *b, int n)
{
    buf_puts(b, "{\"$defs\":{");
    list(b, n, "\"d%d\":{\"$id\":\"http://a.example/%d\",\"minimum\":%d}", 1);
    buf_puts(b, "},\"anyOf\":[");
    list(b, n, "{\"$ref\":\"http://a.example/%d\"}", 1);
    buf_puts(b, "]}");
}

/* Two schemas with many annotations and required properties, each a reference to the schema itself. */
static void put_wide_alternatives(buf *b, int n)
{
    static const char *const member[][2] = {{"\"a%d\":{\"const\":1}", "\"a%d\":{\"const\":2}"},
                                            {"\"a%d\":{\"$ref\":\"#/$defs/d1\"}", "\"a%d\":{\"$ref\":\"#/$defs/d2\"}"}};
    buf_puts(b, "{\"oneOf\":[{\"$ref\":\"#/$defs/d1\"},{\"$ref\":\"#/$defs/d2\"}],\"$defs\":{");
    for (int k = 0; k < 2; k++) {
        buf_printf(b, "%s\"d%d\":{", k ? "," : "", k + 1);
        list(b, n, "\"x-%d\":0", 1);
        buf_puts(b, ",\"type\":\"object\",\"required\":[");
        list(b, n < 60 ? n : 60, "\"a%d\"", 1);
        buf_puts(b, "],\"properties\":{");
        list(b, n < 60 ? n : 60, member[n >= 60][k], 1); /* with references to themselves no value fits */
        buf_puts(b, "}}");
    }
    buf_puts(b, "}}");
}

/* --- kinds of large grammars --------------------------------------------------------------------*/
static void put_branches(buf *b, int n)
{
    buf_puts(b, "root ::= ");
    for (int i = 0; i < n; i++) buf_printf(b, "%s\"%d\" [a-z]", i ? " | " : "", i);
}

static void put_counted(buf *b, int n)
{
    buf_puts(b, "root ::= w{1,1000000}\nw ::= ");
    for (int i = 0; i < n; i++) buf_printf(b, "%s(\"a\"? \"%d\")", i ? " | " : "", i);
}

static void put_classes(buf *b, int n)
{
    buf_puts(b, "root ::= ");
    for (int i = 0; i < n; i++) buf_printf(b, "[\\u%04x-\\u%04x]", 0x100 + i, 0x110 + i);
}

static void put_optional_rules(buf *b, int n)
{
    buf_puts(b, "root ::= a0");
    for (int i = 1; i < n; i++) buf_printf(b, "|a%d", i);
    for (int i = 0; i < n; i++) {
        buf_printf(b, "\na%d ::= ", i);
        for (int k = 0; k < 10; k++) buf_printf(b, "b%d? ", (i + k) % n);
    }
    for (int i = 0; i < n; i++) buf_printf(b, "\nb%d ::= \"%d\"", i, i);
}

static void put_nested(buf *b, int n)
{
    n = n < 30 ? n : 30;
    buf_puts(b, "root ::= ");
    for (int i = 0; i < n; i++) buf_puts(b, "( [a-z] ");
    for (int i = 0; i < n; i++) buf_puts(b, "){2,9}");
}

static const struct {
    const char *name;
    bool        gbnf;
    void (*put)(buf *b, int n);
    int size[3];
} kinds[] = {
    {"allOf of enums", false, put_enums, {100, 30000, 200000}},
    {"$defs and as many $ref", false, put_references, {100, 20000, 60000}},
    {"properties times anyOf", false, put_properties_by_choices, {20, 1000, 8000}},
    {"allOf that doubles", false, put_doubled, {10, 30, 200}},
    {"enum times anyOf", false, put_constants_by_choices, {100, 1000, 8000}},
    {"anyOf times anyOf times anyOf", false, put_choices_by_choices, {4, 16, 100}},
    {"prefixItems", false, put_prefix, {100, 1000, 4000}},
    {"long names", false, put_long_names, {100, 1000, 4000}},
    {"objects told apart by a const", false, put_objects, {100, 1000, 8000}},
    {"allOf of enums of objects", false, put_object_constants, {100, 1000, 30000}},
    {"a pattern of alternatives", false, put_pattern, {100, 1000, 15000}},
    {"patterns that must all match", false, put_patterns, {3, 8, 16}},
    {"patterns of keys", false, put_key_patterns, {10, 300, 4000}},
    {"oneOf that is not told apart", false, put_exclusive, {3, 12, 2000}},
    {"oneOf told apart by a const", false, put_told_apart, {100, 1000, 8000}},
    {"nested not", false, put_nots, {10, 1000, 30000}},
    {"dependencies", false, put_dependencies, {6, 12, 30}},
    {"contains", false, put_counted_items, {10, 1000, 100000}},
    {"uniqueItems", false, put_unique, {8, 80, 30000}},
    {"$id and $ref", false, put_anchors, {100, 1000, 30000}},
    {"oneOf of wide objects", false, put_wide_alternatives, {20, 300, 30000}},
    {"GBNF alternatives", true, put_branches, {100, 3000, 30000}},
    {"GBNF counted alternatives", true, put_counted, {100, 3000, 30000}},
    {"GBNF classes", true, put_classes, {100, 3000, 30000}},
    {"GBNF optional rules", true, put_optional_rules, {100, 1000, 8000}},
    {"GBNF nested repetitions", true, put_nested, {4, 12, 30}},
};

static bool compile(grammar **g, bool gbnf, str text, const atomic_bool *cancel, double *took, err *e)
{
    arena             mem;
    const json_value *tree = NULL;
    *g                     = NULL;
    arena_init(&mem, (size_t)256 << 20);
    bool   ok     = gbnf || json_parse(&tree, &mem, text, NULL, e);
    double before = clock_thread_s();
    ok    = ok && (gbnf ? grammar_from_gbnf(g, text, cancel, e) : grammar_from_schema(g, tree, NULL, cancel, e));
    *took = clock_thread_s() - before;
    arena_deinit(&mem);
    return ok;
}

/* Also the places that are worked out beforehand. */
static double warm(const grammar *g)
{
    grammar_machine *m;
    double           before = clock_thread_s();
    if (grammar_machine_new(&m, g, rig_nano()->vocab, NULL)) {
        grammar_machine_warm(m);
        grammar_machine_free(m);
    }
    return clock_thread_s() - before;
}

TEST_LONG(grammar_compiles_in_bounded_time)
{
    buf b;
    buf_init(&b, 16 << 20);
    rig_nano();
    for (size_t i = 0; i < COUNT(kinds); i++)
        for (int size = 0; size < 3; size++) {
            grammar *g;
            err      e = {0};
            double   took;
            buf_clear(&b);
            kinds[i].put(&b, kinds[i].size[size]);
            CHECK(!b.failed);
            bool ok = compile(&g, kinds[i].gbnf, buf_str(&b), NULL, &took, &e);
            if (ok) took += warm(g);
            CHECK_MSG(took < MAX_CPU_S, "%s, %d: %.2f s", kinds[i].name, kinds[i].size[size], took);
            CHECK_MSG(ok || e.code == ERR_TOO_LARGE || e.code == ERR_INPUT, "%s: %s", kinds[i].name, e.text);
            CHECK_MSG(ok || size, "%s, small: %s", kinds[i].name, e.text);
            grammar_free(g);
        }
    buf_deinit(&b);
}

/* --- what the limits say ------------------------------------------------------------------------*/
static bool compile_kind(void (*put)(buf *b, int n), int n, const atomic_bool *cancel, double *took, err *e)
{
    grammar *g;
    buf      b;
    buf_init(&b, 16 << 20);
    put(&b, n);
    bool ok = compile(&g, false, buf_str(&b), cancel, took, e);
    grammar_free(g);
    buf_deinit(&b);
    return ok;
}

TEST(grammar_too_much_work_is_said_with_its_path)
{
    err    e = {0};
    double took;
    CHECK(!compile_kind(put_constants_by_choices, 8000, NULL, &took, &e));
    CHECK_INT(e.code, ERR_TOO_LARGE);
    CHECK_MSG(strstr(e.text, "#/anyOf: the schema takes too much work to compile"), "%s", e.text);
    CHECK(!compile_kind(put_prefix, 4000, NULL, &took, &e));
    CHECK_MSG(strstr(e.text, "compiling it takes more than 16000000 steps"), "%s", e.text);
}

/* As many steps on any machine: what is refused here is refused everywhere. */
TEST(grammar_accepts_large_schemas_of_real_kinds)
{
    err    e = {0};
    double took;
    CHECK_OK(compile_kind(put_enums, 30000, NULL, &took, &e), e);
    CHECK_OK(compile_kind(put_references, 20000, NULL, &took, &e), e);
    CHECK_OK(compile_kind(put_prefix, 2000, NULL, &took, &e), e);
    CHECK_OK(compile_kind(put_objects, 2000, NULL, &took, &e), e);
}

TEST(grammar_compilation_can_be_cancelled)
{
    static atomic_bool cancel = true;
    err                e      = {0};
    double             whole, cut;
    grammar           *g;
    compile_kind(put_prefix, 2000, NULL, &whole, &e);
    CHECK(!compile_kind(put_prefix, 2000, &cancel, &cut, &e));
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    CHECK_MSG(cut < whole / 4, "%.4f s of %.4f", cut, whole);
    CHECK(!compile(&g, true, STR("root ::= \"a\" [a-z]+"), &cancel, &cut, &e));
    CHECK_MSG(strstr(e.text, "cancelled"), "%s", e.text);
    CHECK(!grammar_from_regex(&g, STR("(?=a)[a-z]+"), &cancel, NULL)); /* the reason is not needed */
}

/* --- what hashes find ---------------------------------------------------------------------------*/
/* A schema in single quotes, padded to lists that are searched by hash. */
static void check_schema(test_case *t, const char *schema, const char *const *right, const char *const *wrong)
{
    char text[4096];
    snprintf(text, sizeof text, "%s", schema);
    for (char *p = text; *p; p++)
        if (*p == '\'') *p = '"';
    grammar_machine *m = rig_schema(t, rig_bytes(), text);
    for (; m && *right; right++) CHECK_MSG(rig_follow(m, str_of(*right)) == RIG_WHOLE, "%s: %s", schema, *right);
    for (; m && *wrong; wrong++) CHECK_MSG(rig_follow(m, str_of(*wrong)) != RIG_WHOLE, "%s: %s", schema, *wrong);
    rig_free(m);
}
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

TEST(grammar_enums_are_joined_by_value)
{
    check_schema(t,
                 "{'allOf':[{'enum':[1,2,3,4,5,6,7,8,9,10,0.5,'a',null,true]},"
                 "{'enum':[10.0,9,8e0,20,30,40,50,60,70,80,5e-1,'b',null,false]}]}",
                 LIST("8", "9", "10", "0.5", "null"), LIST("1", "7", "20", "true", "false", "\"a\"", "\"b\""));
    check_schema(t,
                 "{'allOf':[{'enum':[{'a':1,'b':[2]},{'a':1},[1,2],[2,1],'','x',0.25,12,13,7]},"
                 "{'enum':[{'b':[2],'a':1.0},{'a':2},[2,1],[2,1,3],'y','z',0,11,12.0,1000]}]}",
                 LIST("{\"a\":1,\"b\":[2]}", "[2,1]", "12"), LIST("{\"a\":1}", "[1,2]", "7", "0.25", "\"x\""));
    check_schema(t, "{'allOf':[{'enum':[true,false,[true],{'a':false}]},{'enum':[true,[false],{'a':false}]}]}",
                 LIST("true", "{\"a\":false}"), LIST("false", "[true]", "[false]"));
    check_schema(t, "{'enum':[1,2,3,4,5,6,7,8,9,10,11,12],'const':11}", LIST("11"), LIST("1", "12"));
}

/* Whole numbers that one double stands for are not the same. */
TEST(grammar_large_integers_are_told_apart)
{
    check_schema(t,
                 "{'allOf':[{'enum':[1,2,3,4,5,6,7,8,9,9007199254740993,9007199254740995]},"
                 "{'enum':[11,12,13,14,15,16,17,18,9007199254740992,9007199254740995]}]}",
                 LIST("9007199254740995"), LIST("9007199254740993", "9007199254740992", "1", "11"));
    check_schema(t, "{'allOf':[{'enum':[1,9007199254740993]},{'enum':[1,9007199254740992]}]}", LIST("1"),
                 LIST("9007199254740993", "9007199254740992"));
}

/* More objects that are searched by hash than the table of tables has room for at first. */
TEST(grammar_many_objects_are_searched_by_name)
{
    enum { OBJECTS = 150 };
    char text[64];
    buf  b;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{'anyOf':[");
    for (int i = 0; i < OBJECTS; i++) buf_printf(&b, "%s{'$ref':'#/$defs/o%d/k7'}", i ? "," : "", i);
    buf_puts(&b, "],'$defs':{");
    for (int i = 0; i < OBJECTS; i++) {
        buf_printf(&b, "%s'o%d':{", i ? "," : "", i);
        for (int k = 0; k < 12; k++) buf_printf(&b, "%s'k%d':{'const':%d}", k ? "," : "", k, 100 * i + k);
        buf_puts(&b, "}");
    }
    buf_puts(&b, "}}");
    for (size_t i = 0; i < b.n; i++)
        if (b.p[i] == '\'') b.p[i] = '"';
    buf_putc(&b, 0);
    grammar_machine *m = rig_schema(t, rig_bytes(), b.p);
    for (int i = 0; m && i < OBJECTS; i++) {
        snprintf(text, sizeof text, "%d", 100 * i + 7);
        CHECK(rig_follow(m, str_of(text)) == RIG_WHOLE);
        snprintf(text, sizeof text, "%d", 100 * i + 6);
        CHECK(rig_follow(m, str_of(text)) != RIG_WHOLE);
    }
    rig_free(m);
    buf_deinit(&b);
}

TEST(grammar_pointers_are_undone_and_named)
{
    err               e = {0};
    arena             mem;
    grammar          *g;
    const json_value *tree;
    check_schema(t,
                 "{'$defs':{'a/':{'const':1},'~':{'const':2},'b~1':{'const':3},'c d':{'const':4},'e%':{'const':5}},"
                 "'anyOf':[{'$ref':'#/$defs/a~1'},{'$ref':'#/$defs/~0'},{'$ref':'#/$defs/b~01'},"
                 "{'$ref':'#/$defs/c%20d'},{'$ref':'#/$defs/e%'}]}",
                 LIST("1", "2", "3", "4", "5"), LIST("6", "0"));
    check_schema(t, "{'anyOf':[{'type':'string','maxLength':0},{'type':'string','minLength':1,'maxLength':0}]}",
                 LIST("\"\""), LIST("\"a\""));
    arena_init(&mem, 1 << 20);
    CHECK_OK(json_parse(&tree, &mem, STR("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"unknown\":{}}}}"), NULL, &e), e);
    CHECK(!grammar_from_schema(&g, tree, NULL, NULL, &e));
    CHECK_MSG(strstr(e.text, ": #/$defs/a/unknown: "), "%s", e.text);
    arena_deinit(&mem);
}

TEST(grammar_members_are_found_by_name)
{
    check_schema(t,
                 "{'$defs':{'a':{'const':1},'b':{'const':2},'c':{'const':3},'d':{'const':4},'e':{'const':5},"
                 "'f':{'const':6},'g':{'const':7},'h':{'const':8},'i':{'const':9},'j':{'const':10}},"
                 "'anyOf':[{'$ref':'#/$defs/a'},{'$ref':'#/$defs/j'},{'$ref':'#/$defs/f'}]}",
                 LIST("1", "10", "6"), LIST("2", "9", "3"));
    check_schema(t,
                 "{'type':'object','properties':{'a':{'const':1},'b':{'const':2}},'required':['c','a','c'],"
                 "'additionalProperties':{'const':3}}",
                 LIST("{\"a\":1,\"c\":3}", "{\"a\":1,\"b\":2,\"c\":3}"), LIST("{\"a\":1}", "{\"b\":2,\"c\":3}"));
}

TEST(grammar_schemas_said_twice_are_joined_once)
{
    err    e = {0};
    double took;
    buf    b;
    CHECK_OK(compile_kind(put_doubled, 30, NULL, &took, &e), e);
    CHECK(!compile_kind(put_doubled, 40, NULL, &took, &e));
    CHECK_MSG(strstr(e.text, "nested more than 64 levels deep") && !strstr(e.text, "itself"), "%s", e.text);
    buf_init(&b, 1 << 16);
    put_doubled(&b, 30);
    buf_putc(&b, 0);
    check_schema(t, b.p, LIST("5", "-3"), LIST("6", "\"a\"", "null"));
    buf_deinit(&b);
    check_schema(
        t, "{'allOf':[{'$ref':'#/$defs/a'},{'$ref':'#/$defs/a'}],'$defs':{'a':{'anyOf':[{'const':1},{'const':2}]}}}",
        LIST("1", "2"), LIST("3"));
}
