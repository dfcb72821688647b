/* Page classes of a Gemma 4 target by the types of K and V. */
#include "backends.h"
#include "model/model.h"
#include "test.h"
#include "tiny_model.h"

static target *open_tiny(test_case *t, int n_layers)
{
    err           e   = {0};
    checkpoint   *cp  = NULL;
    target       *m   = NULL;
    model_options opt = {.device = "cpu", .n_threads = 1};
    tiny_model    of  = {.type = QUANT_Q8_0, .n_embd = 256, .n_layers = n_layers, .n_vocab = 96};
    if (!CHECK_OK(checkpoint_open(&cp, tiny_model_write(&of, "kv_types.gguf"), &e), e)) return NULL;
    CHECK_OK(model_open(&m, cp, &opt, &e), e);
    checkpoint_close(cp);
    return m;
}

static int layers_of(const target *m)
{
    int n = 0;
    for (int i = 0; i < m->n_kv_classes; i++) n += m->kv_class[i].n_layers;
    return n;
}

static cache_types read_by_assistants(const target *m, int kind) { return m->kv_class[m->donor[kind].kv_class].types; }

static bool is(cache_types t, cache_type k, cache_type v) { return t.k == k && t.v == v; }

TEST(kv_types_default_to_f16_where_they_have_scales)
{
    kv_types a = kv_types_default(cache_types_both(CACHE_F32)),
             b = kv_types_default((cache_types){CACHE_F32, CACHE_TQ3});
    char text[KV_TYPES_TEXT];
    CHECK(is(a.full, CACHE_F32, CACHE_F32) && is(a.sliding, CACHE_F32, CACHE_F32) && is(a.draft, CACHE_F32, CACHE_F32));
    CHECK(is(b.full, CACHE_F32, CACHE_TQ3) && is(b.sliding, CACHE_F32, CACHE_F16) && is(b.draft, CACHE_F32, CACHE_F16));
    CHECK_STR(str_of(kv_types_text(&b, text)), STR("f32/tq3"));
    b.sliding = cache_types_both(CACHE_Q8_0);
    b.draft   = (cache_types){CACHE_Q8_0, CACHE_Q4_0};
    CHECK_STR(str_of(kv_types_text(&b, text)), STR("f32/tq3, sliding q8_0, draft q8_0/q4_0"));
}

/* 9 layers: 3 full (2, 5, 8) and 6 sliding. */
TEST(kv_classes_keep_what_assistants_read_at_q8_0)
{
    target *m = open_tiny(t, 9);
    if (!m) return;
    CHECK_INT(m->n_kv_classes, 2);
    kv_class_spec asked[KV_MAX_CLASSES];
    kv_types      low = KV_TYPES_ALL(CACHE_TQ3);
    CHECK_INT(target_kv_classes(m, &low, asked), 4);
    CHECK(m->n_kv_classes == 2 && is(m->kv_class[0].types, CACHE_F16, CACHE_F16)); /* asking changes nothing */
    target_set_kv(m, &low);
    CHECK_INT(m->n_kv_classes, 4);
    CHECK_INT(layers_of(m), 9);
    for (int kind = 0; kind < 2; kind++) {
        const kv_class_spec *c = &m->kv_class[m->donor[kind].kv_class];
        CHECK(is(c->types, CACHE_Q8_0, CACHE_Q8_0) && c->n_layers == 1 && !c->window == !kind);
    }
    target_set_kv(m, &(kv_types){.full    = {CACHE_Q8_0, CACHE_Q4_0},
                                 .sliding = {CACHE_F16, CACHE_F16},
                                 .draft   = {CACHE_F16, CACHE_F16}});
    CHECK_INT(m->n_kv_classes, 3);
    CHECK(is(read_by_assistants(m, 0), CACHE_Q8_0, CACHE_Q8_0) && is(read_by_assistants(m, 1), CACHE_F16, CACHE_F16));
    target_set_kv(m, &(kv_types)KV_TYPES_ALL(CACHE_Q8_0));
    CHECK(m->n_kv_classes == 2 && m->donor[0].kv_layer == 2 && m->donor[1].kv_layer == 5);
    model_close(m);
}

/* The only full layer is the one that assistants read. */
TEST(kv_class_of_a_single_layer_is_raised)
{
    target *m = open_tiny(t, 3);
    if (!m) return;
    target_set_kv(m, &(kv_types)KV_TYPES_ALL(CACHE_Q4_0));
    CHECK(is(read_by_assistants(m, 0), CACHE_Q8_0, CACHE_Q8_0));
    CHECK_INT(m->n_kv_classes, 3);
    CHECK_INT(layers_of(m), 3);
    model_close(m);
}

TEST(kv_bytes_per_position_are_those_of_pages)
{
    target *m = open_tiny(t, 9);
    if (!m) return;
    static const struct {
        cache_type type;
        size_t     full, sliding; /* bits of a value, times 1000 */
    } known[] = {{CACHE_F32, 32000, 32000}, {CACHE_F16, 16000, 16000}, {CACHE_Q8_0, 8500, 8500}};
    for (size_t i = 0; i < COUNT(known); i++) {
        target_set_kv(m,
                      &(kv_types){.full = cache_types_both(known[i].type), .sliding = cache_types_both(known[i].type)});
        for (int k = 0; k < m->n_kv_classes; k++) {
            const kv_class_spec *c      = &m->kv_class[k];
            size_t               values = 2 * (size_t)(c->n_layers * c->n_kv_heads * c->head_dim);
            size_t               exact  = values * (c->window ? known[i].sliding : known[i].full) / 8000;
            CHECK(kv_bytes_per_pos(c) >= exact && kv_bytes_per_pos(c) < exact + KV_UNIT / KV_PAGE);
        }
    }
    model_close(m);
}
