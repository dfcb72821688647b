/* Reads settings of any content. Accepted values must be in range, survive being written and read again, and be usable
 * for drafting. */
#include "sched/settings.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_number(const settings *s, const setting_info *info)
{
    const void *at = (const char *)s + info->at;
    double      x  = info->kind == SETTING_INT ? (double)*(const int64_t *)at : *(const double *)at;
    assert((x >= info->min && x <= info->max) || (info->word && x == SETTING_UNLIMITED));
}

static void check_accepted(const settings *s)
{
    quant_type type;
    for (int i = 0; i < n_settings; i++)
        if (setting_table[i].kind == SETTING_INT || setting_table[i].kind == SETTING_REAL)
            check_number(s, &setting_table[i]);
    if (settings_draft_type(s, &type)) assert(type == QUANT_Q4_0 || type == QUANT_Q8_0);
}

static void check_round_trip(const settings *s, arena *a)
{
    const json_value *v;
    settings          again;
    json_writer       w;
    buf               b;
    int               unknown = 0;
    buf_init(&b, 1 << 20);
    json_writer_init(&w, &b);
    json_begin_object(&w);
    settings_put_json(s, &w);
    json_end(&w);
    settings_init(&again);
    assert(!b.failed && json_parse(&v, a, buf_str(&b), NULL, NULL) && settings_set_all(&again, v, &unknown, NULL));
    assert(unknown == 0 && !settings_differ(s, &again));
    buf_deinit(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const json_value *v;
    json_limits       lim = {.max_memory = 16 << 20};
    settings          s;
    arena             a;
    err               e       = {0};
    int               unknown = 0;
    arena_init(&a, 64 << 20);
    settings_init(&s);
    if (json_parse(&v, &a, (str){(const char *)data, size}, &lim, &e)) {
        if (settings_set_all(&s, v, &unknown, &e)) {
            check_accepted(&s);
            check_round_trip(&s, &a);
        } else
            assert(e.text[0]);
    }
    arena_deinit(&a);
    return 0;
}
