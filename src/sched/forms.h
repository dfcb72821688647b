/* sched/forms.h - the cache of compiled grammars ("forms"): agents send the same schema with every request.
 *
 * A form is found by the hash of its tenant and its source, so that no tenant can measure which grammars another one
 * has compiled. Lanes follow a form on the engine thread only; any thread may compile, find, hold and drop one. Forms
 * that are not held are idle: they stay for the next request until there are more than FORMS_IDLE of them, or they use
 * more than FORMS_IDLE_BYTES. Then the tenant with the most idle forms loses the one that was not used for longest. The
 * trie of the vocabulary is built with the first form. */
#ifndef TANDEM_SCHED_FORMS_H
#define TANDEM_SCHED_FORMS_H
#include "grammar/guide.h"

#include "tandem.h"

enum {
    FORMS_IDLE       = 16,        /* maximum of idle forms */
    FORMS_IDLE_BYTES = 256 << 20, /* maximum of memory that they use */
    FORMS_LANES      = 64,        /* a smaller max_lanes counts as this in the next two limits */
    FORMS_WAITING    = 8,         /* a tenant may hold this many forms more than there are lanes */
    FORMS_SPARE      = 32,        /* maximum of all forms, idle or not, in addition to the number of lanes */
    FORM_WARNING     = 767,       /* maximum length of form_warning in bytes */
};

typedef struct answer_forms answer_forms;
typedef struct answer_form  answer_form;

/* Returns an empty cache, never NULL. t and end_ids, the tokens that end a response, must live as long as the cache.
 * t NULL: every grammar is refused. */
answer_forms *forms_new(const tok *t, const int32_t *end_ids, size_t n_ends, int max_lanes);
void          forms_free(answer_forms *f); /* requires that no form is held; accepts NULL */
/* A grammar as a request gives it, borrowed during a call. */
typedef struct {
    const tandem_grammar *grammar;
    uint64_t              tenant; /* hash of the tenant's name; 0: none */
    const atomic_bool    *cancel; /* as for grammar_from_gbnf; may be NULL */
} form_source;
/* Finds or compiles a form and holds it: the caller drops it. ERR_INPUT and ERR_TOO_LARGE: what is wrong with the
 * grammar; ERR_BUSY: too many are in use; ERR_UNAVAILABLE: no memory, or cancelled. *out is NULL on failure. */
bool forms_take(answer_forms *f, const form_source *r, answer_form **out, err *e);
/* Finds a form without compiling and holds it. Returns NULL when it is not in the cache. */
answer_form *forms_find(answer_forms *f, const form_source *r);
answer_form *form_hold(answer_form *x);  /* holds it once more and returns it */
void         form_drop(answer_form *x);  /* ends one hold; accepts NULL */
guide       *form_guide(answer_form *x); /* valid while the form is held */
/* Returns warnings about tools whose schemas are not enforced, joined by "; ", while the form is held. Empty: none. */
const char *form_warning(const answer_form *x);
#endif
