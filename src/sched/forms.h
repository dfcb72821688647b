/* sched/forms.h - the grammars that answers are held to, compiled once: agents send the same schema every turn.
 *
 * A form is found by the hash of its tenant and its source: no tenant can measure what another one has compiled. Lanes
 * follow a form on the engine's thread alone; making, finding, holding and dropping is for any thread. Forms that
 * nobody holds stay for the next request as long as they are among the newest, of the tenant too, and have little
 * memory. The vocabulary's trie is made with the first form. */
#ifndef TANDEM_SCHED_FORMS_H
#define TANDEM_SCHED_FORMS_H
#include "grammar/guide.h"

#include "tandem.h"

enum {
    FORMS_IDLE       = 16,        /* that nobody holds */
    FORMS_IDLE_BYTES = 256 << 20, /* that these have used */
    FORMS_MAX        = 96,        /* in all: a form reserves 50 MB, and uses a few */
    FORM_WARNING     = 767,       /* bytes */
    FORMS_OF_TENANT  = 72,        /* of one tenant: as many as there are lanes, and some that wait */
};

typedef struct answer_forms answer_forms;
typedef struct answer_form  answer_form;

/* t and the ends of answers must live on. t may be NULL: every grammar is refused then. */
answer_forms *forms_new(const tok *t, const int32_t *end_ids, size_t n_ends);
void          forms_free(answer_forms *f); /* NULL is fine; nobody holds any */
typedef struct {
    const tandem_grammar *grammar;
    uint64_t              tenant;
    const atomic_bool    *cancel; /* as for grammar_from_gbnf; may be NULL */
} form_source;
/* Finds or compiles a form and holds it. ERR_INPUT and ERR_TOO_LARGE: what is wrong with the grammar; ERR_BUSY: too
 * many are in use; ERR_UNAVAILABLE: no memory, or cancelled. */
bool         forms_take(answer_forms *f, const form_source *r, answer_form **out, err *e);
answer_form *forms_find(answer_forms *f, const form_source *r); /* the same without compiling; NULL: it is not there */
answer_form *form_hold(answer_form *x);                         /* once more; returns it */
void         form_drop(answer_form *x);                         /* NULL is fine */
guide       *form_guide(answer_form *x);
/* Sentences about tools that are not held to their schemas, joined by "; "; empty: none. */
const char *form_warning(const answer_form *x);
#endif
