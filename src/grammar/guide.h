/* grammar/guide.h - a response constrained by a grammar: an optional thought, then text of the grammar, and an end
 * before the tokens run out.
 *
 *      before --thought_open--> thought --thought_close--> the grammar's start --> ... --> GRAMMAR_ENDED
 *         | `----------------------------------------------------^
 *         `--call_open--> free, also after a thought
 *
 * With calls_only: free --call_open--> the grammar --call_close--> free
 *
 * These are the markers of the tokenizer's tok_markup.
 *
 * The position of a response is a grammar_state, or a state outside the grammar; all are referenced and dropped in the
 * same way. The token chosen at a position is a function of the logits, the position and the tokens left, so it does
 * not depend on drafting.
 *
 * Length: a token is taken if the shortest end after it fits into the tokens left; otherwise the first token of the
 * shortest end from the current position replaces it. If even that does not fit, the response is cut off.
 *
 * Threads: one at a time, as for its machine. */
#ifndef TANDEM_GRAMMAR_GUIDE_H
#define TANDEM_GRAMMAR_GUIDE_H
#include "grammar/grammar.h"

typedef struct {
    bool in_thought; /* the prompt ends inside a thought */
    bool may_think;  /* the response may begin with a thought */
    bool may_call;   /* the response may be a free tool call instead */
} guide_begins;

/* The markers around free parts, and the tokens allowed in a thought: text, but no stop token and no other marker. */
typedef struct {
    int32_t   open, close, call; /* -1: none */
    uint64_t *thought, *any;     /* masks */
} guide_markers;
bool guide_markers_init(guide_markers *k, const tok *t, const int32_t *end_ids, size_t n_ends, err *e);
void guide_markers_deinit(guide_markers *k);

typedef struct guide guide;
/* Creates a guide and takes ownership of the grammar, also on failure. The vocabulary and the markers must outlive it.
 * calls_only: the grammar is that of one call and applies to every call of the response; other text is free. */
bool guide_new(guide **out, grammar *g, bool calls_only, const grammar_vocab *v, const guide_markers *k, err *e);
void guide_free(guide *g); /* g may be NULL */

grammar_state guide_begin(guide *g, const guide_begins *b); /* returns a reference, as guide_take does */
grammar_state guide_take(guide *g, grammar_state s, int32_t token);
void          guide_drop(guide *g, grammar_state s);
bool          guide_goes_on(grammar_state s); /* true if tokens may follow */
/* As grammar_mask. */
const uint64_t *guide_mask(guide *g, grammar_state s, err *e);
/* As grammar_mask_work. */
int    guide_mask_work(guide *g, grammar_state s, int64_t *work, err *e);
size_t guide_mask_words(const guide *g);
/* Returns the token to use when `pick` was chosen and n_left tokens are left, including this one. */
int32_t guide_settle(guide *g, grammar_state s, int32_t pick, int32_t n_left);
/* Writes tokens that must follow, or that follow unless the model chooses others: a draft. Returns their number. */
int guide_draft(guide *g, grammar_state s, int32_t n_left, int32_t *out, int max);
/* Reports that n_right of n_tried tokens of such a draft were accepted. A model that splits words differently gets no
 * drafts for a while. */
void          guide_note(guide *g, int n_tried, int n_right);
bool          guide_draft_pays(guide *g);
grammar_stats guide_stats(const guide *g);
int64_t       guide_work(const guide *g); /* grammar_stats.work */
#endif
