/* The table of model families: complete, and free of duplicates. */
#include "model/family.h"
#include "model/drafter.h"
#include "test.h"

/* The family of a directory with this config.json. */
static const model_family *family_of_config(test_case *t, const char *format, const char *name)
{
    char       text[256];
    checkpoint c = {0};
    err        e = {0};
    arena      a;
    arena_init(&a, 1 << 16);
    snprintf(text, sizeof text, format, name);
    CHECK_OK(json_parse(&c.config, &a, str_of(text), NULL, &e), e);
    const model_family *f = family_of(&c);
    arena_deinit(&a);
    return f;
}

TEST(family_table_is_complete)
{
    static const char model[]      = "{\"model_type\":\"%s\"}";
    static const char of_drafter[] = "{\"model_type\":\"%s\",\"architectures\":[\"Gemma4DSparkModel\"]}";
    for (const model_family *const *f = model_families; *f; f++) {
        const chat_format *c = (*f)->chat;
        CHECK((*f)->name && (*f)->arch[0] && (*f)->open && (*f)->describe && (*f)->plan && c);
        CHECK(c->title && c->outline && c->detect && c->revision_name && c->render);
        CHECK(c->tokens->gguf_model && c->tokens->markup && c->tokens->markup->turn_close);
        CHECK(c->parser->create && c->parser->destroy && c->parser->put_id);
        CHECK(c->parser->in_thought && c->parser->undecided && c->parser->finish);
        for (const char *const *a = (*f)->arch; *a; a++) {
            CHECK(family_of_config(t, model, *a) == *f);
            CHECK(!family_of_config(t, of_drafter, *a)); /* a copy of the target's configuration */
        }
        for (const model_family *const *other = model_families; other < f; other++)
            CHECK(strcmp((*other)->name, (*f)->name) && (*other)->chat != c);
    }
    CHECK(!family_of_config(t, model, "llama") && !family_of_config(t, model, ""));
}

TEST(family_drafter_kinds_are_complete)
{
    for (int k = 0; k < DRAFTER_KINDS; k++) {
        const drafter_kind_info *d = &drafter_kinds[k];
        CHECK(d->name);
        CHECK(!d->matches == !d->open && !d->matches == !d->kv_bytes && !d->matches == !d->plan);
        for (int i = 0; i < k; i++) CHECK(strcmp(d->name, drafter_kinds[i].name));
    }
}
