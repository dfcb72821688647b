/* Reads request bodies of any content. An accepted field must have its kind and be within its limits; an error must
 * name a field. */
#include "server/fields.h"

#include <assert.h>
#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_size(const field_info *f, size_t n, bool given)
{
    assert(!given || ((double)n >= f->min && (double)n <= f->max));
}

static void check_field(const field_info *f, const void *at)
{
    if (f->kind == FIELD_BOOL) {
        int b = *(const int *)at;
        assert(b == (int)f->default_value || (b >= 0 && b <= (int)f->max));
    } else if (f->kind == FIELD_INT || f->kind == FIELD_MOST) {
        int64_t i = *(const int64_t *)at;
        assert(i == (int64_t)f->default_value || ((double)i >= f->min && (double)i <= f->max));
    } else if (f->kind == FIELD_REAL) {
        double d = *(const double *)at;
        assert(isnan(d) ? isnan(f->default_value) : d == f->default_value || (d >= f->min && d <= f->max));
    } else if (f->kind == FIELD_STRING) {
        check_size(f, ((const str *)at)->n, ((const str *)at)->s);
    } else if (f->kind != FIELD_ANY) {
        const json_value *v = *(const json_value *const *)at;
        check_size(f, v ? v->n : 0, v);
    }
}

static bool is_field(const field_table *t, const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->row[i].name, name)) return true;
    return false;
}

static void read_as(const json_value *body, const field_table *t, int endpoint)
{
    union {
        server_fields   generate;
        tokenize_fields tokenize;
        park_fields     park;
        bench_fields    bench;
    } f;
    server_error why = {0};
    if (!fields_read(&f, t, body, endpoint, &why)) {
        assert(why.status == 400 && is_field(t, why.param) && why.message[0]);
        return;
    }
    for (int i = 0; i < t->n; i++)
        if (t->row[i].endpoint & endpoint) check_field(&t->row[i], (const char *)&f + t->row[i].at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct {
        const field_table *table;
        int                endpoint;
    } read[] = {{&fields_generate, FIELD_CHAT},     {&fields_generate, FIELD_TEXT},
                {&fields_tokenize, FIELD_TOKENIZE}, {&fields_tokenize, FIELD_DETOKENIZE},
                {&fields_generate, FIELD_MESSAGES}, {&fields_generate, FIELD_RESPONSES},
                {&fields_park, FIELD_PARK},         {&fields_bench, FIELD_BENCH}};
    const json_value *body;
    arena             mem;
    arena_init(&mem, 1 << 26);
    if (json_parse(&body, &mem, (str){(const char *)data, size}, NULL, NULL) && body->kind == JSON_OBJECT)
        for (size_t i = 0; i < sizeof read / sizeof *read; i++) read_as(body, read[i].table, read[i].endpoint);
    arena_deinit(&mem);
    return 0;
}
