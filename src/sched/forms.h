/* sched/forms.h - the cache of compiled grammars ("forms"): agents send the same schema with every request.
 *
 * A form is found by the hash of its tenant and its source, so that no tenant can measure which grammars another one
 * has compiled. Lanes follow a form on the engine's thread only; any thread may compile, find, hold and drop one. Forms
 * that are not held stay for the next request while they are among the newest, also of their tenant, and use little
 * memory. The trie of the vocabulary is built with the first form. */
#ifndef TANDEM_SCHED_FORMS_H
#define TANDEM_SCHED_FORMS_H
#include "grammar/guide.h"

#include "tandem.h"

enum {
    FORMS_IDLE       = 16,        /* forms that are not held */
    FORMS_IDLE_BYTES = 256 << 20, /* memory that they use */
    FORMS_LANES      = 64,        /* a smaller max_lanes counts as this */
    FORMS_WAITING    = 8,         /* in addition to the lanes, for waiting requests of one tenant */
    FORMS_SPARE      = 32,        /* in addition to the lanes, for all tenants; a form reserves 50 MB, uses a few */
    FORM_WARNING     = 767,       /* bytes */
};

typedef struct answer_forms answer_forms;
typedef struct answer_form  answer_form;

/* t and end_ids must live as long as the cache. t NULL: every grammar is refused. */
answer_forms *forms_new(const tok *t, const int32_t *end_ids, size_t n_ends, int max_lanes);
void          forms_free(answer_forms *f); /* no form is held any more; NULL is fine */
typedef struct {
    const tandem_grammar *grammar;
    uint64_t              tenant;
    const atomic_bool    *cancel; /* as for grammar_from_gbnf; may be NULL */
} form_source;
/* Finds or compiles a form and holds it. ERR_INPUT and ERR_TOO_LARGE: what is wrong with the grammar; ERR_BUSY: too
 * many are in use; ERR_UNAVAILABLE: no memory, or cancelled. */
bool         forms_take(answer_forms *f, const form_source *r, answer_form **out, err *e);
answer_form *forms_find(answer_forms *f, const form_source *r); /* finds it without compiling; NULL: it is not there */
answer_form *form_hold(answer_form *x);                         /* holds it once more and returns it */
void         form_drop(answer_form *x);                         /* NULL is fine */
guide       *form_guide(answer_form *x);
/* Returns warnings about tools whose schemas are not enforced, joined by "; "; empty: none. */
const char *form_warning(const answer_form *x);
#endif
