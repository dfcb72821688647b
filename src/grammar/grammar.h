/* grammar/grammar.h - compiles grammars, follows texts through them, and computes the tokens that may come next.
 *
 *      GBNF ---------.                                     vocabulary --> grammar_vocab (a trie of the tokens' bytes)
 *      JSON Schema ---+--> grammar (rules as automata) ------------------------. |
 *      any object ---'                                                         grammar_machine
 *                                     state --token--> state ...    state --> mask, tokens that must follow
 *
 * A state is a number that stands for a position in the grammar. Two texts after which the same may follow often have
 * the same state. States are reference-counted, so every row of a tree of draft tokens can hold its own. A symbol is a
 * byte or a marker; a marker is a token that is matched as a whole, not by its bytes.
 *
 * Limits are counts of steps, not times, so a grammar is refused on every machine or on none. Every allowed text can
 * be completed: a rule may begin only if it can end within the depth limit. The grammar of a schema allows no value
 * that is nested deeper than GRAMMAR_JSON_DEPTH.
 *
 * Errors: ERR_INPUT for a grammar or schema that cannot be enforced, with line or path; ERR_TOO_LARGE over a limit,
 * also when a mask needs too much work or memory; ERR_UNAVAILABLE when there is no memory. On failure *out is NULL.
 *
 * Threads: a grammar and a grammar_vocab are immutable and can be shared. A machine belongs to one thread at a time
 * and may serve any number of responses. It borrows the grammar and the vocabulary, and allocates all its memory when
 * it is created. */
#ifndef TANDEM_GRAMMAR_GRAMMAR_H
#define TANDEM_GRAMMAR_GRAMMAR_H
#include "tok/tok.h"
#include "json/json.h"

#include <stdatomic.h>

enum {
    GRAMMAR_MAX_TEXT    = 1 << 20, /* bytes of a GBNF text or pattern, or of a schema's names and constants */
    GRAMMAR_MAX_RULES   = 1 << 14,
    GRAMMAR_MAX_STATES  = 1 << 17,         /* states of all automata together */
    GRAMMAR_MAX_REPEAT  = 1 << 24,         /* count of a repetition such as {0,99} */
    GRAMMAR_MAX_TOKEN   = 255,             /* bytes; longer tokens are never allowed */
    GRAMMAR_MAX_MARKERS = 32,              /* markers that one grammar names */
    GRAMMAR_MASK_WORK   = 8 * 1000 * 1000, /* maximum of steps of one mask, 5 to 25 ns each */
    GRAMMAR_JSON_DEPTH  = 63,              /* nested rules of a schema's grammar, about the number of open brackets */
    GRAMMAR_GBNF_DEPTH  = 1024, /* nested rules of a GBNF grammar; a rule at the end of another does not count */
    GRAMMAR_MAX_WORK    = 16 * 1000 * 1000, /* steps of one compilation, 5 to 15 ns each: about 100 ms */
};
#define GRAMMAR_MAX_MEMORY ((size_t)64 << 20) /* bytes of one compilation */

/* --- compiling --------------------------------------------------------------------------------- */
typedef struct grammar grammar;

/* Compiles a GBNF grammar, in llama.cpp's notation, that starts at the rule `root`. <name> is the token whose text is
 * <name>, and <[7]> is token 7; only these two forms match a token as a whole (a marker).
 *
 * All compilations take at most GRAMMAR_MAX_WORK steps and fail with ERR_TOO_LARGE above that, on any machine and under
 * any load. When another thread sets *cancel, a compilation ends soon with ERR_UNAVAILABLE; cancel may be NULL. A
 * grammar keeps no pointer to the arguments. */
bool grammar_from_gbnf(grammar **out, str text, const atomic_bool *cancel, err *e);
/* Compiles a regular expression, in the notation of JSON Schema's `pattern`, which must match the whole text. */
bool grammar_from_regex(grammar **out, str pattern, const atomic_bool *cancel, err *e);

/* Compiles a grammar of the values that match a JSON Schema: written as JSON if call is NULL, else as the arguments of
 * a tool call in this markup, with bare keys and strings between quote markers. */
bool grammar_from_schema(grammar **out, const json_value *schema, const tok_markup *call, const atomic_bool *cancel,
                         err *e);
bool grammar_any_object(grammar **out, err *e); /* any JSON object: response_format json_object */
/* A tool that grammar_tool_calls allows to be called. */
typedef struct {
    str               name;
    const json_value *parameters; /* JSON Schema of the arguments; NULL or JSON null: no arguments */
    bool              strict;     /* if its schema cannot be enforced: an error if set, else `free` is set */
    bool              free;       /* any arguments are allowed; may be set by grammar_tool_calls */
} grammar_tool;
typedef struct {
    const tok_markup *markup;  /* how a call is written; its call_open and call_close are set */
    bool              several; /* allow more than one call in a row */
    const json_value *answer;  /* a schema whose JSON is allowed instead of calls; NULL: only calls */
    buf *warnings; /* a message is appended for each tool whose `free` is set; NULL only if all are strict */
    const atomic_bool *cancel; /* may be NULL */
} grammar_calls;
/* Compiles a grammar of calls of n tools. An error in a tool's schema or name names the tool and has the field
 * "tools". */
bool grammar_tool_calls(grammar **out, grammar_tool *tool, size_t n, const grammar_calls *how, err *e);
void grammar_free(grammar *g); /* all _free functions accept NULL */

/* --- the vocabulary ---------------------------------------------------------------------------- */
typedef struct grammar_vocab grammar_vocab;

/* Builds the trie of a vocabulary from normal and byte tokens. Borrows t until grammar_vocab_free, copies end_ids.
 * end_ids are the stop tokens: they are allowed exactly where the grammar can end, and never matched by their bytes. */
bool   grammar_vocab_new(grammar_vocab **out, const tok *t, const int32_t *end_ids, size_t n_ends, err *e);
void   grammar_vocab_free(grammar_vocab *v);
size_t grammar_mask_words(const grammar_vocab *v); /* words of a mask; token id is bit id & 63 of word id >> 6 */

/* --- following a text -------------------------------------------------------------------------- */
typedef struct grammar_machine grammar_machine;
typedef int32_t                grammar_state; /* 0 and above: a state of the machine; negative: one of these */
enum {
    GRAMMAR_NO    = -1, /* the grammar does not allow it */
    GRAMMAR_ENDED = -2, /* after a stop token: nothing follows */
    GRAMMAR_FULL  = -3, /* the text needs more memory or work than a machine has; only hostile grammars do */
};

/* Creates a machine. Fails with ERR_INPUT if a marker of the grammar is not in the vocabulary or is a stop token. */
bool grammar_machine_new(grammar_machine **out, const grammar *g, const grammar_vocab *v, err *e);
void grammar_machine_free(grammar_machine *m);
/* Computes the masks inside strings, where nearly every token is allowed, in advance. It takes some milliseconds for
 * 262,144 tokens. Call it only for a new machine, before the first mask. */
void grammar_machine_warm(grammar_machine *m);

/* Return a state with one reference for the caller, who releases it with grammar_drop, or a negative value, which
 * needs no release. The caller's reference to s is unchanged. */
grammar_state grammar_start(grammar_machine *m);
grammar_state grammar_take(grammar_machine *m, grammar_state s, int32_t token); /* s negative: returns GRAMMAR_NO */
grammar_state grammar_fork(grammar_machine *m, grammar_state s); /* adds a reference and returns s; s may be negative */
void          grammar_drop(grammar_machine *m, grammar_state s); /* removes a reference; s may be negative */

bool grammar_can_end(const grammar_machine *m, grammar_state s); /* a stop token may follow; false if s < 0 */

/* Returns the mask of the tokens that may come next. It is never empty. It is owned by the machine and valid until the
 * next call of grammar_mask or grammar_mask_work. Returns NULL with ERR_TOO_LARGE when the mask takes more than
 * GRAMMAR_MASK_WORK steps or no token is allowed. Asserts that s is not negative. */
const uint64_t *grammar_mask(grammar_machine *m, grammar_state s, err *e);
/* Computes the mask of s, not negative, in parts: works for about *work steps and subtracts the steps used from *work.
 * Returns GRAMMAR_READY when grammar_mask needs only a lookup, until some hundred other masks are computed. Returns
 * GRAMMAR_LATER when *work is used up: call it again to continue. Returns GRAMMAR_NO, with e set, when grammar_mask
 * would return NULL. A machine computes one mask at a time: it first finishes an earlier one, unless that state has no
 * reference any more. */
typedef enum { GRAMMAR_LATER, GRAMMAR_READY } grammar_progress;
int grammar_mask_work(grammar_machine *m, grammar_state s, int64_t *work, err *e);

/* --- looking ahead ----------------------------------------------------------------------------- */
enum {
    GRAMMAR_FAR       = 1 << 28, /* larger distances are reported as this */
    GRAMMAR_MAX_AHEAD = 1024,    /* maximum of symbols computed in advance */
};
/* Returns the number of symbols (bytes and markers) of the shortest text after which the grammar can end, at most
 * GRAMMAR_FAR; 0 if s < 0. */
int32_t grammar_distance(const grammar_machine *m, grammar_state s);
/* Splits the shortest text to an end into tokens, each as long as possible, without the stop token. Returns their
 * number and writes the first `max`; out may be NULL if max is 0. Returns -1 if s is negative, or the text is longer
 * than GRAMMAR_MAX_AHEAD, too ambiguous, or cannot be spelled by tokens; this depends on the state alone. After the
 * first token, the rest is the shortest text from there. */
int     grammar_shortest(grammar_machine *m, grammar_state s, int32_t *out, int max);
int32_t grammar_longest(const grammar_machine *m); /* symbols of the longest token, at least 1 */
/* Writes the tokens of the text that must come next, each as long as possible: a draft. Returns their number. Stops
 * where several symbols are allowed, where the text may end, and after max tokens or about 16 * max symbols. */
int grammar_forced_tokens(grammar_machine *m, grammar_state s, int32_t *out, int max);

/* Counters of a machine since its creation. */
typedef struct {
    int64_t masks, cached;       /* calls of grammar_mask; masks found in the cache */
    int64_t steps;               /* pairs of a place and a stack visited while following symbols */
    int64_t work;                /* steps of all calls, 5 to 25 ns each */
    int64_t locals, sweeps;      /* masks of a place of a rule without its callers; collections of unused states */
    int32_t n_states, n_classes; /* live states; classes of symbols */
    size_t  bytes, used;         /* bytes of memory allocated; about the part written so far */
} grammar_stats;
grammar_stats grammar_machine_stats(const grammar_machine *m);
int64_t       grammar_machine_work(const grammar_machine *m); /* grammar_stats.work */
#endif
