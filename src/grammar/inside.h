/* grammar/inside.h - shared by the files of grammar/.
 *
 * Readers (gbnf.c, regex.c, schema.c) build rules from nodes. compile.c turns every rule into an automaton over
 * symbols: 0 to 255 are bytes, the numbers from SYMBOL_MARKER on are the markers that the grammar names. All automata
 * are in one array of places; a place is a state of an automaton.
 *
 *      PLACE_BYTES   consumes one symbol: edges lo..hi -> to
 *      PLACE_SPLIT   any of its edges, consuming nothing
 *      PLACE_CALL    rule `rule`, then `then`; without a `then` the rule replaces the caller's place (a tail call)
 *      PLACE_LOOP    rule `rule` min to max times, counted on the stack, then `then`
 *      PLACE_END     the rule is complete
 *
 * `height` of a place: the number of calls that must be opened on top of the current ones to complete the rule from
 * there. A place is entered only if its height fits the grammar's depth, so nothing begins that could not end.
 * `distance`: symbols of the shortest path to complete the rule from there. */
#ifndef TANDEM_GRAMMAR_INSIDE_H
#define TANDEM_GRAMMAR_INSIDE_H
#include "grammar/grammar.h"

/* --- small things ------------------------------------------------------------------------------ */
/* Returns the hash h extended by x. */
static inline uint64_t hash_mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

/* Compares by bytes; a prefix comes first. */
static inline int str_order(str a, str b)
{
    int d = memcmp(a.n ? a.s : "", b.n ? b.s : "", a.n < b.n ? a.n : b.n);
    return d ? d : a.n < b.n ? -1 : a.n > b.n;
}

typedef struct { /* a text being read */
    const char *p, *end;
} scan;

/* Returns the next byte, -1 at the end. */
static inline int scan_peek(const scan *s) { return s->p < s->end ? (uint8_t)*s->p : -1; }

/* Skips `what` and returns true if the text continues with it. */
static inline bool scan_accept(scan *s, const char *what)
{
    size_t n = strlen(what);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, what, n)) return false;
    s->p += n;
    return true;
}

/* Reads n hexadecimal digits. Returns false, after the digits that there are, if one is missing. */
static inline bool scan_hex(scan *s, int n, uint32_t *out)
{
    for (*out = 0; n; n--, s->p++) {
        int c = scan_peek(s), low = c | 32,
            d = c >= '0' && c <= '9'       ? c - '0'
                : low >= 'a' && low <= 'f' ? low - 'a' + 10
                                           : -1;
        if (d < 0) return false;
        *out = *out << 4 | (uint32_t)d;
    }
    return true;
}

/* Reads a number up to GRAMMAR_MAX_REPEAT. Returns false if there is none, or a larger one. */
static inline bool scan_count(scan *s, int32_t *out)
{
    int32_t n     = 0;
    bool    found = false;
    for (; scan_peek(s) >= '0' && scan_peek(s) <= '9' && n <= GRAMMAR_MAX_REPEAT; found = true)
        n = n * 10 + (*s->p++ - '0');
    *out = n;
    return found && n <= GRAMMAR_MAX_REPEAT;
}

/* --- building ---------------------------------------------------------------------------------- */
/* A text; one character of a class; a sequence; alternatives; a repetition; a rule; a marker; a lookahead. */
typedef enum { NODE_TEXT, NODE_CLASS, NODE_SEQ, NODE_ALT, NODE_REPEAT, NODE_RULE, NODE_MARKER, NODE_AHEAD } node_kind;
typedef struct {
    uint32_t lo, hi; /* code points, inclusive */
} char_range;
typedef struct node node;
struct node {
    node_kind kind;
    int32_t   n;      /* number of kids or ranges */
    int32_t   weight; /* about the number of its places; 0: unknown. Set by compile.c */
    int32_t   round;  /* repeated body: its rule + 1. Set by compile.c */
    union {
        str         text;  /* NODE_TEXT: bytes */
        char_range *range; /* NODE_CLASS: sorted */
        node      **kid;   /* NODE_SEQ, NODE_ALT; an ALT without kids matches nothing */
        struct {
            node   *body;     /* NODE_REPEAT, NODE_AHEAD; a lookahead is never compiled, only regular.c reads it */
            int32_t min, max; /* NODE_REPEAT: max < 0: unbounded. NODE_AHEAD: max 0: negative, else 1 */
        };
        int32_t index; /* NODE_RULE, NODE_MARKER: index in the builder */
    };
};

typedef struct {
    str   name; /* for messages; empty: a generated rule */
    node *body; /* NULL: not defined yet */
} rule;

/* A grammar being built. Errors are kept: after a failure functions may still be called, and grammar_compile reports
 * the first error. */
typedef struct {
    arena              mem; /* owns nodes, rules and texts */
    rule              *rule;
    int32_t            n_rules, rule_cap;
    str                marker[GRAMMAR_MAX_MARKERS]; /* names, as in the grammar */
    int32_t            n_markers;
    size_t             n_bytes;   /* bytes of texts */
    int                max_depth; /* nested rules: GRAMMAR_JSON_DEPTH or GRAMMAR_GBNF_DEPTH */
    bool               inlines;   /* inline small repeated rules in their callers */
    int64_t            work;      /* steps left of GRAMMAR_MAX_WORK */
    bool               too_long;  /* failed because the work was used up */
    bool               failed;    /* out of memory, over a limit, or cancelled; see `why` */
    err                why;
    const atomic_bool *cancel; /* may be NULL */
} builder;

void builder_init(builder *b, int max_depth, const atomic_bool *cancel);
void builder_deinit(builder *b);
/* Fail the builder, unless it has failed already. Always return false. builder_full: its arena returned NULL, because
 * it is over its limit or there is no memory. builder_stop: out of work, or cancelled. */
bool builder_fail(builder *b, err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool builder_full(builder *b);
bool builder_stop(builder *b);

/* Counts n steps of work, some 10 ns each. Returns false when the builder has failed, also because the steps are used
 * up or it was cancelled. Every loop whose length a client chooses counts its iterations. */
static inline bool builder_spend(builder *b, size_t n)
{
    b->work -= (int64_t)n;
    if (b->work < 0 || (b->cancel && atomic_load_explicit(b->cancel, memory_order_relaxed))) return builder_stop(b);
    return !b->failed;
}

/* Counts the work of sorting n items with n_bytes of text. */
static inline bool builder_spend_sort(builder *b, size_t n, size_t n_bytes)
{
    return builder_spend(b, 8 * n + n_bytes / 2);
}
/* Return a node, never NULL, owned by the builder; after a failure, a node that matches nothing. Texts, ranges and
 * arrays of kids are copied; the kids are not. */
node *node_text(builder *b, str s);
node *node_puts(builder *b, const char *s);
node *node_class(builder *b, const char_range *r, int32_t n); /* one character of the ranges, in any order */
node *node_not(builder *b, const char_range *r, int32_t n);   /* one character outside the ranges */
node *node_list(builder *b, node_kind kind, node *const *kid, int32_t n); /* kind: NODE_SEQ or NODE_ALT */
node *node_repeat(builder *b, node *body, int32_t min, int32_t max);      /* max < 0: unbounded */
node *node_rule(builder *b, int32_t index);
node *node_marker(builder *b, str name); /* the token whose text is name, or "<[7]>" */
node *node_lookahead(builder *b, node *body, bool negative);
/* Adds a rule without a body and returns its index; 0 after a failure. Borrows the name. */
int32_t builder_rule(builder *b, str name);
void    builder_define(builder *b, int32_t index, node *body); /* sets the rule's body */
#define node_seq(b, ...)                                                                                               \
    node_list((b), NODE_SEQ, (node *[]){__VA_ARGS__}, (int32_t)(sizeof((node *[]){__VA_ARGS__}) / sizeof(node *)))
#define node_alt(b, ...)                                                                                               \
    node_list((b), NODE_ALT, (node *[]){__VA_ARGS__}, (int32_t)(sizeof((node *[]){__VA_ARGS__}) / sizeof(node *)))
static inline node *node_empty(builder *b) { return node_text(b, (str){0}); }

/* A growing array of nodes in the builder's arena. Begins zeroed. */
typedef struct {
    node  **p;
    int32_t n, cap;
} node_vec;
void node_vec_put(builder *b, node_vec *v, node *x); /* adds nothing when the builder fails */

/* A regular expression as a node over the characters of a string. */
typedef struct {
    builder *b;
    /* Returns the node for one character of the ranges as it is written in the text, such as with JSON's escapes. */
    node *(*wrap)(void *ctx, const char_range *r, int32_t n);
    void *ctx;
    bool  whole; /* the pattern must match the whole text; false: without ^ and $, any part of it */
} regex_options;
typedef struct {
    node   *body;               /* matches the whole text; owned by the builder */
    bool    has_lookahead;      /* the body has lookaheads, which only term_of_node supports */
    int32_t min, max;           /* characters of the shortest and longest match; max < 0: unbounded */
    node   *only;               /* the pattern is this class, only_min to only_max times; NULL: it is another pattern */
    int32_t only_min, only_max; /* only_max < 0: unbounded */
} regex;
/* Parses a pattern. Fails with ERR_INPUT, which names unsupported syntax. A failure of the builder is not reported
 * here: check it too. */
bool regex_parse(regex *out, str pattern, const regex_options *o, err *e);

/* --- compiled ---------------------------------------------------------------------------------- */
enum { SYMBOL_MARKER = 256, MAX_SYMBOLS = SYMBOL_MARKER + GRAMMAR_MAX_MARKERS, HEIGHT_NEVER = 1 << 20 };
/* The kinds of places, as drawn above. */
typedef enum { PLACE_BYTES, PLACE_SPLIT, PLACE_CALL, PLACE_LOOP, PLACE_END } place_kind;
typedef struct {
    uint16_t lo, hi; /* symbols, inclusive; after compilation classes of symbols */
    int32_t  to;     /* place */
} edge;
typedef struct {
    uint8_t kind;       /* place_kind */
    int32_t n;          /* number of edges, for BYTES and SPLIT */
    int32_t first;      /* index of the first edge; those of BYTES are sorted and do not overlap */
    int32_t rule, then; /* CALL, LOOP; then < 0: a call at the end */
    int32_t min, max;   /* LOOP; max < 0: no end */
    int32_t height;     /* HEIGHT_NEVER: it cannot be completed */
    int32_t distance;   /* at most GRAMMAR_FAR */
} place;
struct grammar {
    place   *place;
    edge    *edge;
    int32_t *start;                                         /* start place of each rule */
    int32_t  n_places, n_edges, n_rules, root;              /* root: index of the first rule of a text */
    int      max_depth;                                     /* nested calls */
    int32_t  n_classes;                                     /* classes of adjacent symbols that no edge distinguishes */
    uint16_t class_of[MAX_SYMBOLS], symbol_of[MAX_SYMBOLS]; /* class of a symbol, first symbol of a class */
    char    *marker[GRAMMAR_MAX_MARKERS];                   /* names, owned */
    int32_t  n_markers;
};
/* Compiles the builder's rules; `root` is the rule of a whole text. Reports the builder's error if it failed. On
 * failure *out is NULL. The grammar needs nothing of the builder. */
bool grammar_compile(grammar **out, builder *b, int32_t root, err *e);

/* --- the vocabulary ---------------------------------------------------------------------------- */
/* A trie in the order of a walk: a node's descendants follow it, up to `next`. Node 0 is the root, of depth 0. */
typedef struct {
    uint32_t next;                 /* first node after its descendants */
    int32_t  token;                /* lowest token that ends here, -1: none; grammar_vocab.same links the others */
    uint8_t  byte, depth, deepest; /* deepest: maximum depth of it and its descendants */
    bool     twins;                /* several tokens end here */
} trie_node;
struct grammar_vocab {
    const tok *tok;       /* borrowed */
    int32_t    n;         /* number of ids */
    int        max_depth; /* bytes of the longest token of the trie */
    uint32_t   n_nodes;
    trie_node *node;
    int32_t   *same;                            /* [n] the next token with the same bytes, -1: none */
    uint8_t   *length;                          /* [n] in bytes; 0: not in the trie */
    int32_t   *longest;                         /* tokens of the trie by length, the longest first */
    int32_t    n_longer[GRAMMAR_MAX_TOKEN + 1]; /* [length]: how many of them are longer */
    int32_t   *end_id;                          /* stop tokens */
    size_t     n_ends;
};

/* --- the machine ------------------------------------------------------------------------------- */
enum {
    STACK_BOTTOM = 0,       /* the empty stack */
    COUNT_FREE   = 1 << 30, /* count of a loop in a cut stack (mask.c): the minimum is reached, the maximum is far */
    COUNT_BELOW,            /* the same: the minimum is far */
    NEXT_UNKNOWN = -2,      /* in grammar_machine.next, in addition to GRAMMAR_NO: not computed yet */
};
typedef struct {
    int32_t then;     /* place to continue at; for a loop, the loop itself */
    int32_t count;    /* loop: iterations begun, from 1; a call: 0 */
    int32_t parent;   /* index of the stack node below */
    int32_t depth;    /* nodes of the stack; bottom: 0 */
    int32_t distance; /* shortest path in symbols to the end after the call on top; at most GRAMMAR_FAR */
    int32_t next;     /* next node with the same hash, 0: none */
} stack_node;
typedef struct {
    int32_t place, stack; /* a PLACE_BYTES, and the stack of calls under it */
} config;
typedef struct {
    int32_t  first, n; /* its configs, sorted by stack and place */
    uint32_t refs;
    int32_t  need;    /* maximum depth needed on the way here or from here; INT32_MAX: a symbol was refused for it */
    int32_t  mask;    /* slot of its mask in the cache, -1: none */
    int32_t  local;   /* slot of its mask without callers (mask.c), -1: none */
    uint64_t hash;    /* hash of the configs and can_end */
    bool     live;    /* in use; false: a free slot */
    bool     can_end; /* the grammar can end here */
    bool     marked;  /* by a sweep */
} state;

typedef struct mask_cache mask_cache;
struct grammar_machine {
    const grammar       *g; /* borrowed, as v is */
    const grammar_vocab *v;
    int32_t              marker_id[GRAMMAR_MAX_MARKERS]; /* token of each marker of the grammar */

    state   *state;
    int32_t *next;        /* [state][class]: the state after a class of symbols, GRAMMAR_NO or NEXT_UNKNOWN */
    int32_t  n_states;    /* slots used so far */
    int32_t  free_state;  /* first free slot, linked by state.first; -1: none */
    int32_t  n_live;      /* states in use */
    int32_t *state_table; /* hash -> state + 1 */

    config *config, *config_spare;                /* configs of all states; the target of the next sweep */
    int32_t n_configs, max_configs, most_configs; /* now; limit; maximum so far */

    stack_node *stack;                          /* free ones: depth < 0, parent is the next free */
    uint8_t    *stack_mark;                     /* [stack node], set during a sweep */
    int32_t     n_stack, max_stack, free_stack; /* nodes used so far; limit; first free one, -1: none */
    int32_t     n_nodes;                        /* nodes left by the last sweep */
    int32_t    *stack_table;                    /* hash -> the first node, 0: none */

    /* A closure: all that can be reached from some configs without a symbol. */
    config   *work; /* its configs in order; their stacks are not swept */
    int32_t   n_work;
    config   *found; /* its result: those at a PLACE_BYTES */
    int32_t   n_found;
    uint32_t *seen;                                /* index in work, by hash; valid where seen_round equals round */
    uint32_t *seen_round, round;                   /* round: number of the closure */
    bool      found_end;                           /* the grammar can end */
    bool      refused_depth;                       /* a config was refused because of max_depth */
    bool      overflow;                            /* this closure is too large, regardless of the pools */
    bool      starved;                             /* the pools or the budget of this call are exhausted */
    int32_t   need;                                /* as state.need */
    int32_t   path[GRAMMAR_MAX_TOKEN + 2], n_path; /* states of a walk through the vocabulary, which are not swept */

    uint16_t     *symbol; /* [GRAMMAR_MAX_AHEAD] symbols computed in advance */
    int64_t       budget; /* steps left for the current call */
    int64_t       pause;  /* the mask is paused when the budget falls to this */
    bool          paused; /* the mask was paused */
    mask_cache   *cache;
    grammar_stats stats;
};

/* Returns the state after these bytes, with a reference, as grammar_take does for a token; s itself if it is negative.
 * Tests use it too. */
grammar_state grammar_take_bytes(grammar_machine *m, grammar_state s, str bytes);
/* Resets the budget and flags of a call. Every public function that follows symbols calls it first. */
void machine_begin(grammar_machine *m);
/* Counts n steps of 5 to 25 ns each. */
static inline void machine_spend(grammar_machine *m, int64_t n)
{
    m->budget -= n;
    m->stats.work += n;
}
/* The next four return a state without a reference: the next sweep may free it. They return GRAMMAR_NO when there is
 * none, or when m->starved. A state, place or stack is given by its index. */
/* Returns the state after a class of symbols. */
int32_t machine_next(grammar_machine *m, int32_t s, int32_t cls);
/* Returns the state after the call on top of this stack ends. */
int32_t machine_pop(grammar_machine *m, int32_t stack);
/* Returns the state in which a rule is called on an empty stack. */
int32_t machine_rule(grammar_machine *m, int32_t index);
/* Returns the state of exactly these configs, sorted by stack and place, without a closure. */
int32_t machine_intern(grammar_machine *m, config *c, int32_t n, bool can_end, int32_t need);
/* Returns the stack of `parent` with a call (count 0) or loop on top; -1 when m->starved. */
int32_t machine_push(grammar_machine *m, int32_t then, int32_t count, int32_t parent);
/* Returns the only symbol that may come next, and sets *to to the state after it, with a reference. Returns -1, without
 * a reference, when there are several or none. */
int32_t machine_only(grammar_machine *m, int32_t s, int32_t *to);
/* Add and remove a reference to s, which must not be negative. */
void machine_hold(grammar_machine *m, int32_t s);
void machine_let_go(grammar_machine *m, int32_t s);

mask_cache *mask_cache_new(const grammar_vocab *v, size_t *bytes); /* adds its size to *bytes; NULL: no memory */
void        mask_cache_free(mask_cache *c);
size_t      mask_cache_used(const mask_cache *c);  /* bytes written so far, about */
void        mask_cache_forget(grammar_machine *m); /* clears it, so that its states can be swept */
#endif
