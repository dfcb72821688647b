/* sched/forms.h - the grammars that answers are held to, compiled once: agents send the same schema every turn.
 *
 * A form is found by the hash of its source. Whoever holds one may let lanes follow it, on the engine's thread alone; making,
 * finding and letting go is for any thread. Forms that nobody holds stay for the next request, the newest few of them. The
 * vocabulary's trie is made with the first. */
#ifndef TANDEM_SCHED_FORMS_H
#define TANDEM_SCHED_FORMS_H
#include "grammar/guide.h"

#include "tandem.h"

enum {
    FORMS_IDLE = 16, /* that nobody holds */
    FORMS_MAX  = 96, /* in all: a form reserves 50 MB, and touches a few */
};

typedef struct answer_forms answer_forms;
typedef struct answer_form  answer_form;

/* t and the ends of answers must live on. t may be NULL: every grammar is refused then. */
answer_forms *forms_new(const tok *t, const int32_t *end_ids, size_t n_ends);
void          forms_free(answer_forms *f); /* NULL is fine; nobody holds any */
/* ERR_INPUT and ERR_TOO_LARGE: what is wrong with the grammar; ERR_BUSY: too many are in use. */
bool   forms_take(answer_forms *f, const tandem_grammar *g, answer_form **out, err *e);
void   form_drop(answer_form *x); /* NULL is fine */
guide *form_guide(answer_form *x);
#endif
