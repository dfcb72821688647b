/* grammar/guide.h - responses constrained by a grammar: an optional thought, then text of the grammar, and an end
 * before the tokens run out. All responses with the same grammar may share a guide.
 *
 *      before --thought_open--> thought --thought_close--> the grammar's start --> ... --> GRAMMAR_ENDED
 *         | `----------------------------------------------------^
 *         `--call_open--> free, also after a thought
 *
 * With calls_only: free --call_open--> the grammar --call_close--> free
 *
 * These are the markers of the tokenizer's tok_markup. Free: all tokens are allowed.
 *
 * The position of a response is a grammar_state of the guide's machine, or a state outside the grammar, which is a
 * number below all others of grammar.h. All are referenced and dropped in the same way. The token chosen at a position
 * is a function of the logits, the position and the tokens left, so it does not depend on drafting.
 *
 * Length (guide_settle): a token is taken if the shortest end after it fits into the tokens left; otherwise the first
 * token of the shortest end from the current position replaces it. If even that does not fit, the token is taken, and
 * the response is cut off when its tokens run out.
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

/* The markers and masks that all guides of a vocabulary share. Immutable after guide_markers_init. */
typedef struct {
    int32_t   open, close, call; /* ids of thought_open, thought_close and call_open; -1: none */
    uint64_t *thought, *any;     /* masks: tokens allowed in a thought (text and `close`, no stop token); all tokens */
} guide_markers;
/* end_ids: the stop tokens, not kept. After a failure there is nothing to free. */
bool guide_markers_init(guide_markers *k, const tok *t, const int32_t *end_ids, size_t n_ends, err *e);
void guide_markers_deinit(guide_markers *k);

typedef struct guide guide;
/* Creates a guide, with the masks inside strings computed (grammar_machine_warm). Takes ownership of the grammar, also
 * on failure; *out is then NULL. The vocabulary and the markers must outlive the guide. calls_only: the grammar is that
 * of one call and applies to every call of the response; other text is free. */
bool guide_new(guide **out, grammar *g, bool calls_only, const grammar_vocab *v, const guide_markers *k, err *e);
void guide_free(guide *g); /* g may be NULL */

/* Return a state with one reference for the caller, or a negative value of grammar.h, as grammar_take does. Flags of
 * *b whose markers the vocabulary lacks are ignored; with calls_only all are. */
grammar_state guide_begin(guide *g, const guide_begins *b);
grammar_state guide_take(guide *g, grammar_state s, int32_t token);
void          guide_drop(guide *g, grammar_state s);
bool          guide_goes_on(grammar_state s); /* true if s is a state: false for GRAMMAR_NO, _ENDED and _FULL */
/* As grammar_mask and grammar_mask_work. They fail with ERR_TOO_LARGE if guide_goes_on(s) is false. */
const uint64_t *guide_mask(guide *g, grammar_state s, err *e);
int             guide_mask_work(guide *g, grammar_state s, int64_t *work, err *e);
size_t          guide_mask_words(const guide *g);
/* Returns the token to use when `pick`, a token of the mask, was chosen: pick, or the one that leads to the shortest
 * end (see Length). n_left: tokens that the response may still have, including this one. */
int32_t guide_settle(guide *g, grammar_state s, int32_t pick, int32_t n_left);
/* Writes up to max tokens that the model is likely to choose: the shortest end if the n_left tokens may
 * run out before it, else the text that must come next. Returns their number. */
int guide_draft(guide *g, grammar_state s, int32_t n_left, int32_t *out, int max);
/* Reports that n_right of n_tried tokens of such a draft were accepted. */
void guide_note(guide *g, int n_tried, int n_right);
/* Returns whether the next draft is worth verifying: about three of four recent tokens were accepted. Otherwise it
 * returns true for every 64th call, to try again. */
bool          guide_draft_pays(guide *g);
grammar_stats guide_stats(const guide *g); /* the counters of its machine */
int64_t       guide_work(const guide *g);  /* grammar_stats.work */
#endif
