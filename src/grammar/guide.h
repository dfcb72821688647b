/* grammar/guide.h - an answer that is held to a grammar: first perhaps a thought, then what the grammar allows, and an end
 * before the tokens run out.
 *
 *      GUIDE_START --<|channel>--> GUIDE_THOUGHT --<channel|>--> the grammar's start --> ... --> GRAMMAR_ENDED
 *           `------------------------------------------------------^
 *
 * Where an answer stands is a grammar_state, or one of the two places before it; all are held and dropped alike. The pick at
 * a place is a function of the logits, the place and the tokens that are left, so it is the same however it was guessed.
 *
 * The end: a token is kept when the shortest end behind it still fits into the tokens that are left; otherwise the first
 * token of the shortest end from where the answer stands takes its place. What does not fit even from there is cut as usual.
 *
 * Threads: one at a time, as for its machine. */
#ifndef TANDEM_GRAMMAR_GUIDE_H
#define TANDEM_GRAMMAR_GUIDE_H
#include "grammar/grammar.h"

enum { GUIDE_START = -4, GUIDE_THOUGHT = -5 }; /* beside GRAMMAR_NO and its like */
typedef enum {
    GUIDE_NO_THOUGHT,
    GUIDE_MAY_THINK,  /* the answer may begin with a thought */
    GUIDE_IN_THOUGHT, /* the prompt ends inside of one */
} guide_begins;

/* The markers of thoughts, and what may stand in one: text, but no end of the answer and no other marker. */
typedef struct {
    int32_t   open, close; /* -1: there are none */
    uint64_t *mask;
} guide_thoughts;
bool guide_thoughts_init(guide_thoughts *t, const tok *k, const int32_t *end_ids, size_t n_ends, err *e);
void guide_thoughts_deinit(guide_thoughts *t);

typedef struct guide guide;
/* Takes the grammar, also when it fails; the vocabulary and the thoughts must live on. */
bool guide_new(guide **out, grammar *g, const grammar_vocab *v, const guide_thoughts *t, err *e);
void guide_free(guide *g); /* NULL is fine */

grammar_state guide_begin(guide *g, guide_begins how); /* held for the caller, as what guide_take gives */
grammar_state guide_take(guide *g, grammar_state s, int32_t token);
void          guide_drop(guide *g, grammar_state s);
bool          guide_goes_on(grammar_state s); /* tokens may follow */
/* As grammar_mask. */
const uint64_t *guide_mask(guide *g, grammar_state s, err *e);
size_t          guide_mask_words(const guide *g);
/* The token that follows when `pick` was picked with so many tokens left, itself counted. */
int32_t guide_settle(guide *g, grammar_state s, int32_t pick, int32_t n_left);
/* Tokens that must follow, or that will unless the model picks others: a draft. Returns how many. */
int guide_draft(guide *g, grammar_state s, int32_t n_left, int32_t *out, int max);
#endif
