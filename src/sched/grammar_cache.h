/* sched/grammar_cache.h - the cache of compiled grammars: agents send the same schema with every request.
 *
 * A grammar is found by the hash of its tenant and its source, so that no tenant can measure which grammars another
 * one has compiled. Lanes follow a grammar on the engine thread only; any thread may compile, find, hold and drop
 * one. Grammars that are not held are idle: they stay for the next request until there are more than GRAMMARS_IDLE
 * of them, or they use more than GRAMMARS_IDLE_BYTES. Then the tenant with the most idle grammars loses the one that
 * was not used for longest. The trie of the vocabulary is built with the first grammar. */
#ifndef TANDEM_SCHED_GRAMMAR_CACHE_H
#define TANDEM_SCHED_GRAMMAR_CACHE_H
#include "grammar/guide.h"

#include "tandem.h"

enum {
    GRAMMARS_IDLE       = 16,        /* maximum of idle grammars */
    GRAMMARS_IDLE_BYTES = 256 << 20, /* maximum of memory that they use */
    GRAMMARS_LANES      = 64,        /* a smaller max_lanes counts as this in the next two limits */
    GRAMMARS_WAITING    = 8,         /* a tenant may hold this many grammars more than there are lanes */
    GRAMMARS_SPARE      = 32,        /* maximum of all grammars, idle or not, in addition to the number of lanes */
    GRAMMAR_WARNING_MAX = 767,       /* maximum length of response_grammar_warning in bytes */
};

typedef struct grammar_cache    grammar_cache;
typedef struct response_grammar response_grammar;

/* Returns an empty cache, never NULL. t and end_ids, the tokens that end a response, must live as long as the cache.
 * t NULL: every grammar is refused. */
grammar_cache *grammar_cache_new(const tok *t, const int32_t *end_ids, size_t n_ends, int max_lanes);
void           grammar_cache_free(grammar_cache *f); /* requires that no grammar is held; accepts NULL */
/* A grammar as a request gives it, borrowed during a call. */
typedef struct {
    const tandem_grammar *grammar;
    uint64_t              tenant; /* hash of the tenant's name; 0: none */
    const atomic_bool    *cancel; /* as for grammar_from_gbnf; may be NULL */
} grammar_source;
/* Finds or compiles a grammar and holds it: the caller drops it. ERR_INPUT and ERR_TOO_LARGE: what is wrong with the
 * grammar; ERR_BUSY: too many are in use; ERR_UNAVAILABLE: no memory, or cancelled. *out is NULL on failure. */
bool grammar_cache_take(grammar_cache *f, const grammar_source *r, response_grammar **out, err *e);
/* Finds a grammar without compiling and holds it. Returns NULL when it is not in the cache. */
response_grammar *grammar_cache_find(grammar_cache *f, const grammar_source *r);
response_grammar *response_grammar_hold(response_grammar *x);  /* holds it once more and returns it */
void              response_grammar_drop(response_grammar *x);  /* ends one hold; accepts NULL */
guide            *response_grammar_guide(response_grammar *x); /* valid while the grammar is held */
/* Returns warnings about tools whose schemas are not enforced, joined by "; ", while the grammar is held. Empty:
 * none. */
const char *response_grammar_warning(const response_grammar *x);
#endif
