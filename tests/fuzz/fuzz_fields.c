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

static bool is_field(const char *name)
{
    for (int i = 0; i < n_fields; i++)
        if (!strcmp(field_table[i].name, name)) return true;
    return false;
}

static void read_as(const json_value *body, int endpoint)
{
    server_fields f;
    server_error  why = {0};
    if (!fields_read(&f, body, endpoint, &why)) {
        assert(why.status == 400 && is_field(why.param) && why.message[0]);
        return;
    }
    for (int i = 0; i < n_fields; i++)
        if (field_table[i].endpoint & endpoint) check_field(&field_table[i], (const char *)&f + field_table[i].at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int  endpoint[] = {FIELD_CHAT,     FIELD_TEXT,      FIELD_TOKENIZE, FIELD_DETOKENIZE,
                                 FIELD_MESSAGES, FIELD_RESPONSES, FIELD_PARK,     FIELD_BENCH};
    const json_value *body;
    arena             mem;
    arena_init(&mem, 1 << 26);
    if (json_parse(&body, &mem, (str){(const char *)data, size}, NULL, NULL) && body->kind == JSON_OBJECT)
        for (size_t i = 0; i < sizeof endpoint / sizeof *endpoint; i++) read_as(body, endpoint[i]);
    arena_deinit(&mem);
    return 0;
}
