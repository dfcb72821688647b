/* grammar/guide.h - an answer that is held to a grammar: first perhaps a thought, then what the grammar allows, and an end
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
 * Where an answer stands is a grammar_state, or a place beside the grammar; all are held and dropped alike. The pick at
 * a place is a function of the logits, the place and the tokens that are left, so it is the same however it was guessed.
 *
 * The end: a token is kept when the shortest end behind it still fits into the tokens that are left; otherwise the first
 * token of the shortest end from where the answer stands takes its place. What does not fit even from there is cut as usual.
 *
 * Threads: one at a time, as for its machine. */
#ifndef TANDEM_GRAMMAR_GUIDE_H
#define TANDEM_GRAMMAR_GUIDE_H
#include "grammar/grammar.h"

typedef struct {
    bool in_thought; /* the prompt ends inside of one */
    bool may_think;  /* the answer may begin with a thought, */
    bool may_call;   /* or be a tool call instead, which nothing is held to */
} guide_begins;

/* The markers that begin and end what is free, and what may stand in a thought: text, but no end of the answer and no other
 * marker. */
typedef struct {
    int32_t   open, close, call; /* -1: there is none */
    uint64_t *thought, *any;     /* masks */
} guide_markers;
bool guide_markers_init(guide_markers *k, const tok *t, const int32_t *end_ids, size_t n_ends, err *e);
void guide_markers_deinit(guide_markers *k);

typedef struct guide guide;
/* Takes the grammar, also when it fails; the vocabulary and the markers must live on. calls_only: the grammar is of one
 * call, which every call in the answer is held to; all else is free. */
bool guide_new(guide **out, grammar *g, bool calls_only, const grammar_vocab *v, const guide_markers *k, err *e);
void guide_free(guide *g); /* NULL is fine */

grammar_state guide_begin(guide *g, const guide_begins *b); /* held for the caller, as what guide_take gives */
grammar_state guide_take(guide *g, grammar_state s, int32_t token);
void          guide_drop(guide *g, grammar_state s);
bool          guide_goes_on(grammar_state s); /* tokens may follow */
/* As grammar_mask. */
const uint64_t *guide_mask(guide *g, grammar_state s, err *e);
/* As grammar_mask_work. */
int    guide_mask_work(guide *g, grammar_state s, int64_t *work, err *e);
size_t guide_mask_words(const guide *g);
/* The token that follows when `pick` was picked with so many tokens left, itself counted. */
int32_t guide_settle(guide *g, grammar_state s, int32_t pick, int32_t n_left);
/* Tokens that must follow, or that will unless the model picks others: a draft. Returns how many. */
int guide_draft(guide *g, grammar_state s, int32_t n_left, int32_t *out, int max);
/* Of such a draft n_right were picked, of n_tried. A model that cuts its words in other ways is not offered any, for a while. */
void          guide_note(guide *g, int n_tried, int n_right);
bool          guide_draft_pays(guide *g);
grammar_stats guide_stats(const guide *g);
int64_t       guide_work(const guide *g); /* grammar_stats.work */
#endif
