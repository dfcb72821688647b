/* Every row of the table of request fields, at and around its limits. */
#include "test.h"

#include "server/tables_inside.h"

typedef struct {
    arena mem;
    union {
        server_fields   f;
        tokenize_fields tokenize;
        park_fields     park;
        bench_fields    bench;
    };
    server_error why;
} reading;

/* {"a":VALUE}, or {"a":{"b":VALUE}} for a.b */
static void put_body(buf *b, const char *name, const char *value)
{
    const char *dot = strchr(name, '.');
    buf_printf(b, "{\"%.*s\":", dot ? (int)(dot - name) : (int)strlen(name), name);
    if (dot)
        put_body(b, dot + 1, value);
    else
        buf_puts(b, value);
    buf_putc(b, '}');
}

/* Returns the table of an endpoint. */
static const field_table *table_for(int endpoint)
{
    for (int i = 0; i < n_field_tables; i++)
        for (int k = 0; k < field_tables[i]->n; k++)
            if (field_tables[i]->row[k].endpoint & endpoint) return field_tables[i];
    return &fields_generate;
}

static bool read_one(reading *r, const field_info *f, const char *value)
{
    const json_value *v;
    buf               b;
    err               e = {0};
    buf_init(&b, 1 << 26);
    arena_init(&r->mem, 1 << 28);
    put_body(&b, f->name, value);
    r->why  = (server_error){0};
    bool ok = json_parse(&v, &r->mem, buf_str(&b), NULL, &e);
    if (ok)
        ok = fields_read(&r->f, table_for(f->endpoint), v, f->endpoint, &r->why);
    else
        error_set(&r->why, 400, f->name, NULL, "%s", e.text);
    arena_deinit(&r->mem);
    buf_deinit(&b);
    return ok;
}

static void takes(test_case *t, const field_info *f, const char *value)
{
    reading r;
    CHECK_MSG(read_one(&r, f, value), "%s: %.60s is refused: %s", f->name, value, r.why.message);
}

static void refuses(test_case *t, const field_info *f, const char *value)
{
    reading r;
    CHECK_MSG(!read_one(&r, f, value), "%s: %.60s is taken", f->name, value);
    CHECK_INT(r.why.status, 400);
    CHECK_MSG(!strcmp(r.why.param, f->name), "%s: the error is about '%s'", f->name, r.why.param);
    CHECK_MSG(strstr(r.why.message, f->name) || strstr(r.why.message, "column"), "%s: '%s' does not name it", f->name,
              r.why.message);
}

/* A value of n bytes, items or members. */
static char *of_size(field_kind kind, size_t n)
{
    buf b;
    buf_init(&b, 1 << 26);
    buf_puts(&b, kind == FIELD_STRING ? "\"" : kind == FIELD_ARRAY ? "[" : "{");
    for (size_t i = 0; i < n; i++) {
        if (kind == FIELD_STRING) buf_putc(&b, 'x');
        if (kind == FIELD_ARRAY) buf_puts(&b, i ? ",0" : "0");
        if (kind == FIELD_OBJECT) buf_printf(&b, "%s\"k%zu\":null", i ? "," : "", i);
    }
    buf_puts(&b, kind == FIELD_STRING ? "\"" : kind == FIELD_ARRAY ? "]" : "}");
    buf_putc(&b, 0);
    return b.p;
}

static void sized(test_case *t, const field_info *f)
{
    size_t sizes[] = {(size_t)f->min, (size_t)f->max, (size_t)f->max + 1, (size_t)f->min - (f->min > 0)};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        char *value = of_size(f->kind, sizes[i]);
        bool  good  = (double)sizes[i] >= f->min && (double)sizes[i] <= f->max;
        (good ? takes : refuses)(t, f, value);
        mem_free(value);
    }
}

static void number(test_case *t, const field_info *f)
{
    char   text[64];
    double step  = f->kind == FIELD_INT ? 1 : 1e-3;
    bool   whole = f->max >= 0x1p62; /* as wide as an int64: there is nothing beyond that JSON could hold */
    snprintf(text, sizeof text, "%.17g", f->min);
    if (!whole) takes(t, f, text);
    snprintf(text, sizeof text, "%.17g", f->max);
    if (!whole) takes(t, f, text);
    snprintf(text, sizeof text, "%.17g", f->min - step);
    if (!whole) refuses(t, f, text);
    snprintf(text, sizeof text, "%.17g", f->max + step);
    if (!whole) refuses(t, f, text);
    if (f->kind == FIELD_INT) refuses(t, f, "1.5");
    refuses(t, f, "NaN");
    refuses(t, f, "Infinity");
    refuses(t, f, "1e300");
    refuses(t, f, "-1e300");
    refuses(t, f, "99999999999999999999999");
    refuses(t, f, "\"1\"");
    refuses(t, f, "true");
}

static void most(test_case *t, const field_info *f)
{
    static const char *const good[] = {"0", "7.0", "2147483647", "4294967296", "9223372036854775807", "1e300"};
    static const char *const bad[]  = {"-2", "1.5", "-1e300", "NaN", "\"1\"", "true"};
    for (size_t i = 0; i < COUNT(good); i++) takes(t, f, good[i]);
    for (size_t i = 0; i < COUNT(bad); i++) refuses(t, f, bad[i]);
    (f->min < 0 ? takes : refuses)(t, f, "-1");
}

/* All rows of all tables. */
static int n_rows(void)
{
    int n = 0;
    for (int i = 0; i < n_field_tables; i++) n += field_tables[i]->n;
    return n;
}

static const field_info *row(int n)
{
    int i = 0;
    for (; n >= field_tables[i]->n; i++) n -= field_tables[i]->n;
    return &field_tables[i]->row[n];
}

TEST(fields_hold_their_limits)
{
    static const char *const wrong[] = {"\"x\"", "7", "[]", "{}", "true"};
    static const json_kind   kinds[] = {JSON_STRING, JSON_INT, JSON_ARRAY, JSON_OBJECT, JSON_BOOL};
    static const json_kind   right[] = {
          [FIELD_BOOL] = JSON_BOOL,     [FIELD_INT] = JSON_INT,     [FIELD_MOST] = JSON_INT,     [FIELD_REAL] = JSON_INT,
          [FIELD_STRING] = JSON_STRING, [FIELD_ARRAY] = JSON_ARRAY, [FIELD_OBJECT] = JSON_OBJECT};
    for (int n = 0; n < n_rows(); n++) {
        const field_info *f = row(n);
        takes(t, f, "null");
        if (f->kind == FIELD_ANY) continue;
        for (size_t k = 0; k < COUNT(wrong); k++)
            if (kinds[k] != right[f->kind]) refuses(t, f, wrong[k]);
        if (f->kind == FIELD_BOOL) {
            takes(t, f, "false");
            (f->max > 0 ? takes : refuses)(t, f, "true");
        } else if (f->kind == FIELD_INT || f->kind == FIELD_REAL) {
            number(t, f);
        } else if (f->kind == FIELD_MOST) {
            most(t, f);
        } else {
            sized(t, f);
        }
    }
}

/* What a field must be reads as a sentence, also where only one value is allowed. */
TEST(fields_are_described_in_words)
{
    static const struct {
        field_info  f;
        const char *want;
    } cases[] = {
        {{.kind = FIELD_STRING, .min = 0, .max = 0}, "an empty string"},
        {{.kind = FIELD_STRING, .min = 0, .max = 64}, "a string of at most 64 bytes"},
        {{.kind = FIELD_STRING, .min = 1, .max = 256}, "a string of 1 to 256 bytes"},
        {{.kind = FIELD_ARRAY, .min = 0, .max = 0}, "an empty list"},
        {{.kind = FIELD_ARRAY, .min = 0, .max = 16}, "a list of at most 16 items"},
        {{.kind = FIELD_ARRAY, .min = 1, .max = 16}, "a list of 1 to 16 items"},
        {{.kind = FIELD_INT, .min = 1, .max = 1}, "1"},
        {{.kind = FIELD_INT, .min = 1, .max = 32}, "a whole number from 1 to 32"},
        {{.kind = FIELD_INT, .min = -0x1p63, .max = 0x1p63}, "a whole number from -(2^63 - 1) to 2^63 - 1"},
        {{.kind = FIELD_BOOL, .max = 0}, "false"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[128];
        field_describe(&cases[i].f, text, sizeof text);
        CHECK_STR(str_of(text), str_of(cases[i].want));
    }
}

static int all_places(const char *name)
{
    int endpoint = 0;
    for (int i = 0; i < fields_generate.n; i++)
        if (!strcmp(fields_generate.row[i].name, name)) endpoint |= fields_generate.row[i].endpoint;
    return endpoint;
}

TEST(fields_that_are_unknown_or_elsewhere_are_ignored)
{
    reading    r;
    field_info unknown = {.name = "no_such_field", .endpoint = FIELD_CHAT};
    CHECK(read_one(&r, &unknown, "{\"a\":[1,2,\"x\"]}"));
    for (int i = 0; i < fields_generate.n; i++) {
        field_info f = fields_generate.row[i];
        f.endpoint   = FIELD_ANSWERS & ~all_places(f.name);
        CHECK_MSG(read_one(&r, &f, "[[]]"), "%s is looked at where it does not belong", f.name);
    }
}

TEST(fields_have_defaults)
{
    reading r;
    CHECK(read_one(&r, &(field_info){.name = "x", .endpoint = FIELD_BOTH}, "1"));
    CHECK_INT(r.f.n, 1);
    CHECK_INT(r.f.stream, 0);
    CHECK_INT(r.f.parallel_tool_calls, 1);
    CHECK(r.f.max_tokens == FIELD_ABSENT && r.f.seed == FIELD_ABSENT);
    CHECK(isnan(r.f.temperature) && r.f.repeat_penalty == 1 && r.f.presence_penalty == 0);
    CHECK(!r.f.stop && !r.f.messages && !r.f.model.s);
}

TEST(fields_take_whole_reals_and_all_seeds)
{
    reading           r;
    const field_info *seed = NULL, *most = NULL;
    for (int i = 0; i < fields_generate.n; i++) {
        const field_info *f = &fields_generate.row[i];
        if (!strcmp(f->name, "seed")) seed = f;
        if (!strcmp(f->name, "max_tokens") && f->endpoint & FIELD_CHAT) most = f;
    }
    CHECK(read_one(&r, most, "100.0") && r.f.max_tokens == 100);
    CHECK(read_one(&r, most, "-1") && r.f.max_tokens == -1);
    CHECK(read_one(&r, most, "4294967296") && r.f.max_tokens == INT32_MAX);
    CHECK(read_one(&r, seed, "9223372036854775807") && r.f.seed == INT64_MAX);
    CHECK(read_one(&r, seed, "-1") && r.f.seed == -1);
    CHECK(read_one(&r, seed, "-9223372036854775807") && r.f.seed == -INT64_MAX);
    CHECK(!read_one(&r, seed, "-9223372036854775808")); /* it would be as if there were none */
    CHECK(!read_one(&r, seed, "9223372036854775808.0"));
    CHECK(!read_one(&r, seed, "18446744073709551615"));
}
