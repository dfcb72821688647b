/* Schemas of others (tests/golden/schemas): the required tests of the official JSON-Schema-Test-Suite, drafts 2020-12 and 7, and
 * the types of zod and Pydantic. No document that the suite or zod calls invalid is allowed by the grammar of its schema. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/file.h"
#include "chat/gemma4_inside.h"
#include "grammar/rig.h"

#include <stdlib.h>

enum { MAX_ORDERS = 720, MAX_KEYS = 8 };

/* --- documents with their keys in any order ------------------------------------------------------*/
/* Writes v with the members of each object in an order that *seed chooses; *seed is divided by the number of orders. */
static void put_ordered(json_writer *w, const json_value *v, unsigned *seed)
{
    if (v->kind == JSON_ARRAY) {
        json_begin_array(w);
        for (size_t i = 0; i < v->n; i++) put_ordered(w, &v->item[i], seed);
        json_end(w);
    } else if (v->kind == JSON_OBJECT) {
        size_t left[MAX_KEYS], n = v->n;
        if (n > MAX_KEYS) abort();
        for (size_t i = 0; i < n; i++) left[i] = i;
        json_begin_object(w);
        for (; n; n--) {
            size_t k = *seed % n;
            *seed /= (unsigned)n;
            json_key_str(w, v->member[left[k]].key);
            put_ordered(w, &v->member[left[k]].value, seed);
            for (size_t i = k; i + 1 < n; i++) left[i] = left[i + 1];
        }
        json_end(w);
    } else {
        json_put_value(w, v);
    }
}

static bool allowed_in_some_order(grammar_machine *m, const json_value *v, buf *text)
{
    for (unsigned i = 0; i < MAX_ORDERS; i++) {
        unsigned    seed = i;
        json_writer w;
        buf_clear(text);
        json_writer_init(&w, text);
        put_ordered(&w, v, &seed);
        if (seed) break; /* all orders were tried */
        if (rig_follow(m, buf_str(text)) == RIG_WHOLE) return true;
    }
    return false;
}

/* --- the suite ----------------------------------------------------------------------------------*/
/* Valid documents that are never written, by file and reason; docs/grammar.md has the reasons. */
static const struct {
    const char *in;
    int         n; /* at most */
} lost[] = {
    {"draft2020-12/additionalProperties", 3},
    {"draft2020-12/const", 4},
    {"draft2020-12/contains", 1},
    {"draft2020-12/dependentRequired", 6},
    {"draft2020-12/dependentSchemas", 3},
    {"draft2020-12/enum", 4},
    {"draft2020-12/exclusiveMaximum", 1},
    {"draft2020-12/exclusiveMinimum", 1},
    {"draft2020-12/format", 70},
    {"draft2020-12/items", 2},
    {"draft2020-12/maxItems", 1},
    {"draft2020-12/maxLength", 1},
    {"draft2020-12/maxProperties", 3},
    {"draft2020-12/maximum", 1},
    {"draft2020-12/minItems", 1},
    {"draft2020-12/minLength", 1},
    {"draft2020-12/minProperties", 5},
    {"draft2020-12/minimum", 2},
    {"draft2020-12/multipleOf", 1},
    {"draft2020-12/oneOf", 1},
    {"draft2020-12/pattern", 6},
    {"draft2020-12/patternProperties", 3},
    {"draft2020-12/prefixItems", 1},
    {"draft2020-12/properties", 4},
    {"draft2020-12/propertyNames", 5},
    {"draft2020-12/ref", 2},
    {"draft2020-12/required", 7},
    {"draft2020-12/type", 1},
    {"draft2020-12/unevaluatedItems", 6},
    {"draft2020-12/unevaluatedProperties", 7},
    {"draft2020-12/vocabulary", 1},
    {"draft7/additionalItems", 1},
    {"draft7/additionalProperties", 3},
    {"draft7/const", 4},
    {"draft7/contains", 1},
    {"draft7/dependencies", 4},
    {"draft7/enum", 4},
    {"draft7/exclusiveMaximum", 1},
    {"draft7/exclusiveMinimum", 1},
    {"draft7/format", 48},
    {"draft7/items", 3},
    {"draft7/maxItems", 1},
    {"draft7/maxLength", 1},
    {"draft7/maxProperties", 3},
    {"draft7/maximum", 1},
    {"draft7/minItems", 1},
    {"draft7/minLength", 1},
    {"draft7/minProperties", 5},
    {"draft7/minimum", 2},
    {"draft7/multipleOf", 1},
    {"draft7/oneOf", 1},
    {"draft7/pattern", 6},
    {"draft7/patternProperties", 3},
    {"draft7/properties", 4},
    {"draft7/propertyNames", 5},
    {"draft7/ref", 3},
    {"draft7/required", 7},
    {"draft7/type", 1},
};

typedef struct {
    int taken, refused, yes, yes_allowed, no;
    int lost[COUNT(lost)];
} tally;

static int lost_row(str in)
{
    for (size_t i = 0; i < COUNT(lost); i++)
        if (str_is(in, lost[i].in)) return (int)i;
    return -1;
}

static void run_row(test_case *t, const json_value *row, tally *n, buf *text)
{
    grammar          *g  = NULL;
    grammar_machine  *m  = NULL;
    err               e  = {0};
    str               in = json_get(row, "in")->s, about = json_get(row, "about")->s;
    const json_value *yes = json_get(row, "yes"), *no = json_get(row, "no");
    if (!grammar_from_schema(&g, json_get(row, "schema"), NULL, NULL, &e)) {
        CHECK_MSG(e.code == ERR_INPUT && e.text[0], "%.*s (%.*s): %s", STR_ARG(in), STR_ARG(about), e.text);
        n->refused++;
        return;
    }
    n->taken++;
    if (!CHECK_OK(grammar_machine_new(&m, g, rig_bytes()->vocab, &e), e)) return;
    for (size_t i = 0; i < no->n; i++, n->no++)
        CHECK_MSG(!allowed_in_some_order(m, &no->item[i], text), "%.*s (%.*s) allows %.*s", STR_ARG(in), STR_ARG(about),
                  (int)text->n, text->p);
    for (size_t i = 0; i < yes->n; i++, n->yes++) {
        bool good = allowed_in_some_order(m, &yes->item[i], text);
        int  at   = good ? -1 : lost_row(in);
        CHECK_MSG(good || at >= 0, "%.*s (%.*s) does not allow %.*s", STR_ARG(in), STR_ARG(about), (int)text->n,
                  text->p);
        n->yes_allowed += good;
        if (at >= 0) n->lost[at]++;
    }
    grammar_machine_free(m);
    grammar_free(g);
}

static void check_tally(test_case *t, const tally *n, int taken, int refused, int yes_allowed)
{
    CHECK_INT(n->taken, taken);
    CHECK_INT(n->refused, refused);
    CHECK_INT(n->yes_allowed, yes_allowed);
    for (size_t i = 0; i < COUNT(lost); i++)
        CHECK_MSG(n->lost[i] <= lost[i].n, "%s: %d valid documents are not allowed", lost[i].in, n->lost[i]);
}

typedef struct {
    arena             mem;
    file_map          f;
    buf               text;
    const json_value *root; /* NULL: it could not be read */
} recorded;

static void open_recorded(test_case *t, recorded *x, const char *path)
{
    err e = {0};
    *x    = (recorded){0};
    arena_init(&x->mem, 1 << 24);
    buf_init(&x->text, 1 << 20);
    if (CHECK_OK(file_map_open(&x->f, test_path(path), &e), e))
        CHECK_OK(json_parse(&x->root, &x->mem, (str){x->f.p, x->f.n}, NULL, &e), e);
}

static void close_recorded(recorded *x)
{
    file_map_close(&x->f);
    buf_deinit(&x->text);
    arena_deinit(&x->mem);
}

TEST_LONG(grammar_keeps_the_schema_test_suite)
{
    recorded x;
    tally    of_2020 = {0}, of_7 = {0};
    open_recorded(t, &x, "tests/golden/schemas/suite.json");
    for (size_t i = 0; x.root && i < x.root->n; i++) {
        bool old = str_starts(json_get(&x.root->item[i], "in")->s, "draft7/");
        run_row(t, &x.root->item[i], old ? &of_7 : &of_2020, &x.text);
    }
    check_tally(t, &of_2020, 329, 54, 540);
    check_tally(t, &of_7, 228, 29, 394);
    close_recorded(&x);
}

/* --- types of clients ---------------------------------------------------------------------------*/
static void run_type(test_case *t, const json_value *row, const json_value *documents, buf *text)
{
    const json_value *schema = json_get(row, "schema"), *no = json_get(row, "no");
    str               in      = json_get(row, "in")->s;
    bool              refused = json_get(row, "refused")->b;
    grammar          *g       = NULL;
    grammar_machine  *m       = NULL;
    err               e       = {0};
    bool              ok      = grammar_from_schema(&g, schema, gemma4_tokens.markup, NULL, &e);
    CHECK_MSG(ok != refused, "%.*s as arguments: %s", STR_ARG(in), e.text);
    grammar_free(g);
    ok = grammar_from_schema(&g, schema, NULL, NULL, &e);
    CHECK_MSG(ok != refused, "%.*s: %s", STR_ARG(in), e.text);
    if (!ok || !CHECK_OK(grammar_machine_new(&m, g, rig_bytes()->vocab, &e), e)) return;
    for (size_t i = 0; no && i < no->n; i++)
        CHECK_MSG(!allowed_in_some_order(m, &documents->item[no->item[i].i], text), "%.*s allows %.*s", STR_ARG(in),
                  (int)text->n, text->p);
    grammar_machine_free(m);
    grammar_free(g);
}

static void run_types(test_case *t, const char *path, size_t n)
{
    recorded x;
    open_recorded(t, &x, path);
    const json_value *types = json_get(x.root, "types");
    CHECK(types && types->n == n);
    for (size_t i = 0; types && i < types->n; i++) run_type(t, &types->item[i], json_get(x.root, "documents"), &x.text);
    close_recorded(&x);
}

TEST(grammar_takes_the_types_of_zod) { run_types(t, "tests/golden/schemas/zod.json", 118); }
TEST(grammar_takes_the_types_of_pydantic) { run_types(t, "tests/golden/schemas/pydantic.json", 74); }

/* Equal strings share their automaton: twenty of 2,000 states each would have more rules than a grammar may have. */
TEST(grammar_equal_automata_are_shared)
{
    static const char host[] =
        "{\"type\":\"string\",\"pattern\":\"^(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\\\\.[a-z]{2,9})*$\"}";
    buf b;
    buf_init(&b, 1 << 16);
    buf_puts(&b, "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
    for (int i = 0; i < 20; i++) buf_printf(&b, "%s\"h%d\":%s", i ? "," : "", i, host);
    buf_puts(&b, "}}");
    buf_putc(&b, 0);
    grammar_machine *m = rig_schema(t, rig_bytes(), b.p);
    if (m) {
        CHECK(rig_follow(m, STR("{\"h0\":\"a.bc\",\"h9\":\"example.org\",\"h19\":\"x-y\"}")) == RIG_WHOLE);
        CHECK(rig_follow(m, STR("{\"h0\":\"a.bc\",\"h9\":\"-\"}")) == RIG_NO);
    }
    rig_free(m);
    buf_deinit(&b);
}

/* Masks inside of strings that are automata cost about as much as in other strings: steps, with a large vocabulary. */
TEST(grammar_masks_of_automata_are_cheap)
{
    static const struct {
        const char *schema, *text;
    } rows[] = {
        {"{\"type\":\"string\",\"maxLength\":40,\"pattern\":\"^[A-Za-z0-9_+-]+(\\\\.[a-z]+)*@([a-z0-9-]+\\\\.)+[a-z]{2,"
         "}$\"}",
         "\"some.body@mail.example.org\""},
        {"{\"type\":\"string\",\"pattern\":\"^(?=.{1,253}\\\\.?$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\\\\.[a-z0-9]([a-"
         "z0-9-]{0,61}"
         "[a-z0-9])?)*\\\\.?$\"}",
         "\"www.example.org\""},
        {"{\"type\":\"string\",\"not\":{\"enum\":[\"no\",\"none\",\"nothing\"]}}", "\"anything but that\""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        grammar_machine *m   = rig_schema(t, rig_large(), rows[i].schema);
        grammar_state    s   = m ? grammar_start(m) : GRAMMAR_NO;
        int64_t          max = 0;
        err              e   = {0};
        for (size_t k = 0; m && s >= 0 && rows[i].text[k]; k++) {
            int64_t before = grammar_machine_work(m);
            CHECK_OK(grammar_mask(m, s, &e) != NULL, e);
            int64_t work = grammar_machine_work(m) - before;
            if (work > max) max = work;
            grammar_state to = grammar_take_bytes(m, s, (str){&rows[i].text[k], 1});
            grammar_drop(m, s);
            s = to;
        }
        CHECK_MSG(s >= 0, "%s does not allow %s", rows[i].schema, rows[i].text);
        CHECK_MSG(max < 1000000, "%s: a mask takes %lld steps", rows[i].schema, (long long)max);
        grammar_drop(m, s);
        rig_free(m);
    }
}
