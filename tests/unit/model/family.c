/* The table of model families: complete, and free of duplicates. */
#include "model/family.h"
#include "model/drafter.h"
#include "test.h"

TEST(family_table_is_complete)
{
    for (const model_family *const *f = model_families; *f; f++) {
        const chat_format *c = (*f)->chat;
        CHECK((*f)->name && (*f)->arch[0] && (*f)->open && (*f)->describe && (*f)->plan && c);
        CHECK(c->title && c->outline && c->detect && c->revision_name && c->render);
        CHECK(c->tokens->gguf_model && c->tokens->markup && c->tokens->markup->turn_close);
        CHECK(c->parser->create && c->parser->destroy && c->parser->put_id);
        CHECK(c->parser->in_thought && c->parser->undecided && c->parser->finish);
        for (const char *const *a = (*f)->arch; *a; a++) CHECK(family_of_arch(str_of(*a)) == *f);
        for (const model_family *const *other = model_families; other < f; other++)
            CHECK(strcmp((*other)->name, (*f)->name) && (*other)->chat != c);
    }
    CHECK(!family_of_arch(STR("llama")) && !family_of_arch(STR("")));
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
