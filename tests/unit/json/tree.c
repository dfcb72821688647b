#include "json/json.h"

#include "base/fault.h"
#include "base/inside.h"
#include "test.h"

/* --- random documents --------------------------------------------------------------------------- */
/* The same document twice: `loose` as a strange but valid text, with white space and needless escapes,
 * `plain` as the writer would put it. */
typedef struct {
    uint64_t    seed;
    buf         loose, plain;
    json_writer w;
    int         n_left; /* values still to spend */
} maker;

static int below(maker *m, int n) { return (int)(test_rand(&m->seed) % (uint64_t)n); }

static void put_space(maker *m)
{
    while (below(m, 3) == 0) buf_putc(&m->loose, " \n\r\t"[below(m, 4)]);
}

static void put_char(maker *m, buf *raw)
{
    static const char *const chars[] = {"a",
                                        "b",
                                        "/",
                                        "\"",
                                        "\\",
                                        "\n",
                                        "\x01",
                                        "\x7f",
                                        "\xc3\xa9",
                                        "\xe2\x96\x81",
                                        "\xe2\x80\xa8",
                                        "\xf0\x9f\x98\x80",
                                        "plain text of some length"};
    const char              *c       = chars[below(m, COUNT(chars))];
    uint32_t                 cp;
    size_t                   n = strlen(c);
    utf8_decode(c, n, &cp);
    buf_puts(raw, c);
    bool must = (unsigned char)*c < 0x20 || *c == '"' || *c == '\\';
    if (n > 4 || (!must && below(m, 2)))
        buf_puts(&m->loose, c);
    else if (cp < 0x10000)
        buf_printf(&m->loose, below(m, 2) ? "\\u%04x" : "\\u%04X", cp);
    else
        buf_printf(&m->loose, "\\u%04x\\u%04X", 0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + (cp & 0x3FF));
}

/* A string into `loose`; `raw` is what it says. A number makes it one that no other of its object is. */
static void put_string(maker *m, buf *raw, int number)
{
    buf_putc(&m->loose, '"');
    for (int n = below(m, 6); n > 0; n--) put_char(m, raw);
    if (number >= 0) {
        buf_printf(raw, "#%d", number);
        buf_printf(&m->loose, "#%d", number);
    }
    buf_putc(&m->loose, '"');
}

static void put_number(maker *m)
{
    static const double reals[] = {0.5, -0.0, 1e300, 5e-324, 0.1, -123456.789, 1e21};
    if (below(m, 2)) {
        int64_t i = (int64_t)(test_rand(&m->seed) >> below(m, 64));
        json_put_int(&m->w, i);
        buf_printf(&m->loose, "%lld", (long long)i);
    } else {
        double d = reals[below(m, COUNT(reals))];
        json_put_real(&m->w, d);
        buf_printf(&m->loose, below(m, 2) ? "%.17e" : "%.25E", d);
    }
}

static void put_any(maker *m, int depth);

static void put_container(maker *m, int depth, bool is_object)
{
    buf raw;
    buf_init(&raw, 1000);
    if (is_object)
        json_begin_object(&m->w);
    else
        json_begin_array(&m->w);
    buf_putc(&m->loose, is_object ? '{' : '[');
    put_space(m);
    for (int i = 0, n = below(m, 8); i < n; i++) {
        if (i) buf_putc(&m->loose, ',');
        put_space(m);
        if (is_object) {
            buf_clear(&raw);
            put_string(m, &raw, i);
            json_key_str(&m->w, buf_str(&raw));
            put_space(m);
            buf_putc(&m->loose, ':');
            put_space(m);
        }
        put_any(m, depth + 1);
        put_space(m);
    }
    buf_putc(&m->loose, is_object ? '}' : ']');
    json_end(&m->w);
    buf_deinit(&raw);
}

static void put_any(maker *m, int depth)
{
    buf raw;
    buf_init(&raw, 1000);
    switch (depth < 12 && m->n_left-- > 0 ? below(m, 8) : 4 + below(m, 4)) {
    case 0:
    case 1: put_container(m, depth, false); break;
    case 2:
    case 3: put_container(m, depth, true); break;
    case 4:
        put_string(m, &raw, -1);
        json_put_str(&m->w, buf_str(&raw));
        break;
    case 5: put_number(m); break;
    case 6:
        json_put_bool(&m->w, m->n_left & 1);
        buf_puts(&m->loose, m->n_left & 1 ? "true" : "false");
        break;
    default: json_put_null(&m->w); buf_puts(&m->loose, "null");
    }
    buf_deinit(&raw);
}

static void make(maker *m, uint64_t seed)
{
    *m = (maker){.seed = seed, .n_left = 60};
    buf_init(&m->loose, 1 << 20);
    buf_init(&m->plain, 1 << 20);
    json_writer_init(&m->w, &m->plain);
    put_space(m);
    put_any(m, 0);
    put_space(m);
}

/* Writes the reader's events as JSON. */
static bool copy_events(buf *out, str text, err *e)
{
    json_reader *r;
    json_event   ev;
    json_writer  w;
    bool         ok = json_reader_open(&r, text, NULL, e);
    json_writer_init(&w, out);
    while (ok && (ok = json_next(r, &ev, e)) && ev.kind != JSON_END) {
        switch (ev.kind) {
        case JSON_NULL: json_put_null(&w); break;
        case JSON_BOOL: json_put_bool(&w, ev.b); break;
        case JSON_INT: json_put_int(&w, ev.i); break;
        case JSON_REAL: json_put_real(&w, ev.d); break;
        case JSON_STRING: json_put_str(&w, ev.s); break;
        case JSON_ARRAY: json_begin_array(&w); break;
        case JSON_OBJECT: json_begin_object(&w); break;
        case JSON_KEY: json_key_str(&w, ev.s); break;
        default: json_end(&w);
        }
    }
    json_reader_close(r);
    return ok;
}

TEST(json_tree_and_events_agree_with_what_was_written)
{
    size_t longest = 0;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        maker m;
        buf   by_tree, by_events;
        arena a;
        err   e = {0};
        make(&m, seed);
        arena_init(&a, 1 << 24);
        buf_init(&by_tree, 1 << 20);
        buf_init(&by_events, 1 << 20);
        const json_value *v;
        json_writer       w;
        json_writer_init(&w, &by_tree);
        if (CHECK_OK(json_parse(&v, &a, buf_str(&m.loose), NULL, &e), e)) json_put_value(&w, v);
        CHECK_OK(copy_events(&by_events, buf_str(&m.loose), &e), e);
        CHECK_STR(buf_str(&by_tree), buf_str(&m.plain));
        CHECK_STR(buf_str(&by_events), buf_str(&m.plain));
        if (m.plain.n > longest) longest = m.plain.n;
        arena_deinit(&a);
        buf_deinit(&by_tree);
        buf_deinit(&by_events);
        buf_deinit(&m.loose);
        buf_deinit(&m.plain);
    }
    CHECK_MSG(longest > 2000, "the longest has only %zu bytes", longest); /* or the documents are too tame */
}

/* --- the tree ----------------------------------------------------------------------------------- */
TEST(json_tree_keeps_order_and_kinds)
{
    str               text = STR("{\"z\":[1,2.5,[\"\\u0041\"]],\"a\":true,\"Z\":null,\"e\":{},\"f\":[]}");
    arena             a;
    const json_value *v;
    err               e = {0};
    arena_init(&a, 1 << 20);
    if (!CHECK_OK(json_parse(&v, &a, text, NULL, &e), e)) return;
    CHECK_INT(v->kind, JSON_OBJECT);
    CHECK_INT(v->n, 5);
    CHECK_STR(v->member[0].key, STR("z"));
    CHECK_STR(v->member[2].key, STR("Z"));
    const json_value *z = json_get(v, "z");
    CHECK(z == &v->member[0].value && z->kind == JSON_ARRAY && z->n == 3);
    CHECK(z->item[0].kind == JSON_INT && z->item[0].i == 1 && z->item[0].d == 1);
    CHECK(z->item[1].kind == JSON_REAL && z->item[1].d == 2.5);
    CHECK_STR(z->item[2].item[0].s, STR("A"));
    CHECK(json_get(v, "a")->kind == JSON_BOOL && json_get(v, "a")->b);
    CHECK_INT(json_get(v, "Z")->kind, JSON_NULL);
    CHECK(json_get(v, "e")->kind == JSON_OBJECT && json_get(v, "e")->n == 0);
    CHECK(json_get(v, "f")->kind == JSON_ARRAY && json_get(v, "f")->n == 0);
    CHECK(!json_get(v, "A") && !json_get(v, "") && !json_get(v, "zz")); /* neither case nor prefix */
    CHECK(!json_get(NULL, "a") && !json_get(z, "a") && !json_get(json_get(v, "e"), "a"));
    CHECK(json_find(v, "a") == json_get(v, "a") && !json_find(v, "Z") && !json_find(v, "A") && !json_find(NULL, "a"));
    arena_deinit(&a);
}

TEST(json_tree_strings_outlive_the_reader)
{
    arena             a;
    const json_value *v;
    err               e = {0};
    arena_init(&a, 1 << 20);
    if (!CHECK_OK(json_parse(&v, &a, STR("{\"\\u006b\":\"a\\tb\"}"), NULL, &e), e)) return;
    CHECK_STR(v->member[0].key, STR("k"));
    CHECK_STR(json_get(v, "k")->s, STR("a\tb"));
    arena_deinit(&a);
}

TEST(json_parse_fails_with_the_arena_as_it_was)
{
    arena             a;
    const json_value *v = (const json_value *)&a; /* anything but NULL */
    err               e = {0};
    arena_init(&a, 1 << 20);
    char *mine = arena_alloc(&a, 100);
    strcpy(mine, "kept");
    CHECK_FAILS(json_parse(&v, &a, STR("[\"\\n\",[1,2],\n{\"a\":1,\"a\":2}]"), NULL, &e), e,
                "line 2, column 8: key 'a'");
    CHECK(!v && a.used == 112 && a.limit == 1 << 20);
    CHECK_STR(str_of(mine), STR("kept"));
    CHECK_FAILS(json_parse(&v, &a, STR("1 1"), &(json_limits){.max_bytes = 2}, &e), e, "the limit is 2");
    CHECK(!v);
    arena_deinit(&a);
}

static void put_tree(buf *b)
{
    buf_puts(b, "{\"long\":\"\\n");
    for (int i = 0; i < 70000; i++) buf_putc(b, 'x'); /* more than a chunk of the arena */
    buf_puts(b, "\",\"many\":[");
    for (int i = 0; i < 3000; i++) buf_puts(b, i ? ",0" : "0");
    buf_puts(b, "],\"keys\":{");
    for (int i = 0; i < 100; i++) buf_printf(b, "%s\"\\u0041%d\":[{}]", i ? "," : "", i);
    buf_puts(b, "}}");
}

TEST(json_parse_keeps_to_its_memory)
{
    arena a;
    err   e = {0};
    buf   b;
    buf_init(&b, 1 << 20);
    arena_init(&a, (size_t)1 << 30);
    put_tree(&b);
    bool   ok    = false;
    size_t n_big = 0;
    for (size_t memory = 16; !ok && memory < 1 << 21; memory += memory / 4) {
        const json_value *v;
        size_t            used = a.used;
        ok                     = json_parse(&v, &a, buf_str(&b), &(json_limits){.max_memory = memory}, &e);
        CHECK_MSG(ok || e.code == ERR_TOO_LARGE, "%zu: %s", memory, e.text);
        CHECK(a.used - used <= memory && a.limit == (size_t)1 << 30);
        n_big += !ok;
    }
    CHECK_MSG(ok && n_big > 10, "%zu refused, then %d", n_big, ok);
    arena_deinit(&a);

    arena_init(&a, 1000); /* the arena's own ceiling holds too */
    const json_value *v;
    CHECK_FAILS(json_parse(&v, &a, buf_str(&b), NULL, &e), e, "more memory than its limit");
    CHECK(a.used == 0 && a.limit == 1000);
    arena_deinit(&a);
    buf_deinit(&b);
}

TEST(json_parse_survives_each_failing_allocation)
{
    err e = {0};
    buf b;
    buf_init(&b, 1 << 20);
    put_tree(&b);
    long n = 0;
    bool ok;
    do {
        arena             a;
        const json_value *v;
        arena_init(&a, 1 << 24);
        fault_fail_nth(++n);
        ok = json_parse(&v, &a, buf_str(&b), NULL, &e);
        if (!ok) CHECK_MSG(e.code == ERR_UNAVAILABLE && !v && !a.used && a.limit == 1 << 24, "%ld: %s", n, e.text);
        arena_deinit(&a);
    } while (!ok && n < 1000);
    CHECK_MSG(n > 15 && n < 1000, "%ld allocations", n);
    fault_fail_nth(0);
    buf_deinit(&b);
}
