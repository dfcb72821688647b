/* grammar/grammar.h - what an answer may be: a grammar, where a text stands in it, and the tokens that may come next.
 *
 *      GBNF ---------.                                     vocabulary --> grammar_vocab (a trie of the tokens' bytes)
 *      JSON Schema ---+--> grammar (rules as automata) ------------------------. |
 *      any object ---'                                                         grammar_machine
 *                                     state --token--> state ...    state --> mask, forced token, forced text
 *
 * A state is a number: equal texts, and texts after which the same may follow, often have the same one. Keeping a state
 * costs a count, so every row of a tree of guesses has its own.
 *
 * Limits are counts, not clocks, so a grammar is refused everywhere or nowhere. A text can always be completed: what could
 * not be ended within the depth limit is not allowed to begin. What is nested over GRAMMAR_JSON_DEPTH deep is not written by
 * a schema's grammar.
 *
 * Errors: ERR_INPUT for a grammar or schema that cannot be enforced, with line or path; ERR_TOO_LARGE over a limit,
 * also when following a text needs too much work or memory; ERR_UNAVAILABLE when there is no memory.
 *
 * Threads: a grammar and a grammar_vocab do not change: any number of threads. A machine belongs to one thread at a time; it
 * may serve any number of answers. It borrows the grammar and the vocabulary, and takes all its memory at birth. */
#ifndef TANDEM_GRAMMAR_GRAMMAR_H
#define TANDEM_GRAMMAR_GRAMMAR_H
#include "tok/tok.h"
#include "json/json.h"

#include <stdatomic.h>

enum {
    GRAMMAR_MAX_TEXT    = 1 << 20, /* bytes of a GBNF text, or of a schema's names and constants */
    GRAMMAR_MAX_RULES   = 1 << 14,
    GRAMMAR_MAX_STATES  = 1 << 17, /* of all automata together */
    GRAMMAR_MAX_REPEAT  = 1 << 24,
    GRAMMAR_MAX_TOKEN   = 255, /* bytes; longer tokens are never allowed */
    GRAMMAR_MAX_MARKERS = 32,
    GRAMMAR_MASK_WORK   = 8 * 1000 * 1000,  /* steps of one mask, 5 to 25 ns each */
    GRAMMAR_JSON_DEPTH  = 63,               /* open calls of a schema's grammar: about as many open brackets */
    GRAMMAR_GBNF_DEPTH  = 1024,             /* open calls of a GBNF grammar; calls at the end of a rule do not count */
    GRAMMAR_MAX_WORK    = 16 * 1000 * 1000, /* steps of one compilation, 5 to 15 ns each: about 100 ms */
};
#define GRAMMAR_MAX_MEMORY ((size_t)64 << 20) /* bytes of one compilation */

/* --- compiling --------------------------------------------------------------------------------- */
typedef struct grammar grammar;

/* Compiling takes at most GRAMMAR_MAX_WORK steps: a larger grammar is ERR_TOO_LARGE, on any machine and under any load.
 * cancel: ends the compilation soon with ERR_UNAVAILABLE once another thread sets it; may be NULL.
 *
 * grammar_from_gbnf compiles GBNF as llama.cpp's users write it; it starts at the rule `root`. <name> is the one token whose
 * text is <name>, <[7]> the token 7: the only way to a marker. */
bool grammar_from_gbnf(grammar **out, str text, const atomic_bool *cancel, err *e);
/* Compiles a regular expression, as JSON Schema's `pattern` may be, that all of the text matches. */
bool grammar_from_regex(grammar **out, str pattern, const atomic_bool *cancel, err *e);

/* Compiles the values that fit a schema. call NULL: written as JSON; otherwise as the arguments of a tool call in this
 * markup, with bare keys and strings between quote markers. */
bool grammar_from_schema(grammar **out, const json_value *schema, const tok_markup *call, const atomic_bool *cancel,
                         err *e);
bool grammar_any_object(grammar **out, err *e); /* response_format json_object */
/* grammar_tool_calls compiles one call of one of the tools, or several one after another. */
typedef struct {
    str               name;
    const json_value *parameters; /* NULL: it takes no arguments */
    bool              strict;     /* a schema that cannot be enforced is an error; otherwise it frees the tool */
    bool              free;       /* any arguments are allowed; also set here */
} grammar_tool;
typedef struct {
    const tok_markup  *markup; /* how a call is written; all of its call_ members and quote are set */
    bool               several;
    const json_value  *answer;   /* a schema: its JSON is allowed instead of calls; NULL: only calls are */
    buf               *warnings; /* a sentence for each tool that was freed is appended */
    const atomic_bool *cancel;
} grammar_calls;
bool grammar_tool_calls(grammar **out, grammar_tool *tool, size_t n, const grammar_calls *how, err *e);
void grammar_free(grammar *g); /* NULL is fine, here and below */

/* --- the vocabulary ---------------------------------------------------------------------------- */
typedef struct grammar_vocab grammar_vocab;

/* Normal and byte tokens take part by their bytes. end_ids end an answer: allowed exactly where the grammar can end. */
bool    grammar_vocab_new(grammar_vocab **out, const tok *t, const int32_t *end_ids, size_t n_ends, err *e);
void    grammar_vocab_free(grammar_vocab *v);
int32_t grammar_vocab_size(const grammar_vocab *v);
size_t  grammar_mask_words(const grammar_vocab *v); /* of a mask: bit id & 63 of word id >> 6 */

/* --- following a text -------------------------------------------------------------------------- */
typedef struct grammar_machine grammar_machine;
typedef int32_t                grammar_state;
enum {
    GRAMMAR_NO    = -1, /* the grammar does not allow it */
    GRAMMAR_ENDED = -2, /* behind an end token: nothing follows */
    GRAMMAR_FULL  = -3, /* following it needs more than a machine has: only grammars made for it get there */
};

/* ERR_INPUT when the grammar names a marker that the vocabulary lacks, or one that ends answers. */
bool grammar_machine_new(grammar_machine **out, const grammar *g, const grammar_vocab *v, err *e);
void grammar_machine_free(grammar_machine *m);
/* Works out beforehand where nearly every token is allowed (inside strings): some milliseconds for 262,144 tokens, better
 * spent where the grammar was compiled than in the first step that gets there. */
void grammar_machine_warm(grammar_machine *m);

/* What these return is held once for the caller, who drops it; negative values need no dropping. */
grammar_state grammar_start(grammar_machine *m);
grammar_state grammar_take(grammar_machine *m, grammar_state s, int32_t token);
grammar_state grammar_take_bytes(grammar_machine *m, grammar_state s, str bytes);
grammar_state grammar_fork(grammar_machine *m, grammar_state s); /* holds it once more and returns it */
void          grammar_drop(grammar_machine *m, grammar_state s);

bool grammar_can_end(const grammar_machine *m, grammar_state s);
bool grammar_must_end(const grammar_machine *m, grammar_state s); /* nothing else may follow */

/* The tokens that may come next: never none. Borrowed until the next call of grammar_mask or grammar_forced. NULL with
 * ERR_TOO_LARGE when the grammar is so ambiguous that the work or the memory has no bound that a step could bear. */
const uint64_t *grammar_mask(grammar_machine *m, grammar_state s, err *e);
/* Works on the mask of s for about *work steps, and takes from *work what it used. GRAMMAR_READY: grammar_mask is a lookup
 * now, until some hundred other masks were asked for. GRAMMAR_LATER: call it again; what was done is kept. GRAMMAR_NO: as NULL of
 * grammar_mask. A machine works on one mask at a time: another one that was begun is finished first. */
typedef enum { GRAMMAR_LATER, GRAMMAR_READY } grammar_progress;
int grammar_mask_work(grammar_machine *m, grammar_state s, int64_t *work, err *e);
/* The only token that may come next, -1 when there are several. */
int32_t grammar_forced(grammar_machine *m, grammar_state s);
/* The bytes that must come next whatever the tokens, at most cap: a draft for the tokenizer to cut. Stops before a place
 * where the text may end. */
size_t grammar_forced_text(grammar_machine *m, grammar_state s, char *out, size_t cap);

/* --- beforehand -------------------------------------------------------------------------------- */
enum {
    GRAMMAR_FAR       = 1 << 28,
    GRAMMAR_MAX_AHEAD = 1024, /* symbols that are worked out beforehand */
};
/* Symbols (bytes and markers) of the shortest way to an end, at most GRAMMAR_FAR. */
int32_t grammar_distance(const grammar_machine *m, grammar_state s);
/* The tokens of the shortest way to an end, each the longest that fits: how many; at most the first `max` are written. -1: the
 * way is longer than GRAMMAR_MAX_AHEAD or too ambiguous, or no tokens spell it: a matter of the state alone, whatever is cached.
 * Behind the first of them the rest is the shortest way from there. */
int     grammar_shortest(grammar_machine *m, grammar_state s, int32_t *out, int max);
int32_t grammar_longest(const grammar_machine *m); /* symbols that one token can be */
/* The tokens of what must come next whatever the tokens, cut in the same way: a draft. Up to a place where the text may end,
 * or max of them. */
int grammar_ahead(grammar_machine *m, grammar_state s, int32_t *out, int max);

typedef struct {
    int64_t masks, cached;       /* asked for; answered from the cache */
    int64_t steps;               /* configs looked at */
    int64_t work;                /* steps of all calls, 5 to 25 ns each */
    int64_t locals, sweeps;      /* rule positions worked out for the whole vocabulary; times the pools were swept */
    int32_t n_states, n_classes; /* live now; of bytes */
    size_t  bytes, used;         /* of memory taken at birth; of it written to so far, about */
} grammar_stats;
grammar_stats grammar_machine_stats(const grammar_machine *m);
int64_t       grammar_machine_work(const grammar_machine *m); /* .work of these */
#endif
