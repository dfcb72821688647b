/* grammar/inside.h - shared by the files of grammar/.
 *
 * Readers (gbnf.c, schema.c) build rules from nodes. compile.c turns every rule into an automaton over symbols: bytes,
 * followed by the markers that the grammar names. All automata are in one array of places.
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

static inline int scan_peek(const scan *s) { return s->p < s->end ? (uint8_t)*s->p : -1; }

static inline bool scan_accept(scan *s, const char *what)
{
    size_t n = strlen(what);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, what, n)) return false;
    s->p += n;
    return true;
}

/* Reads n hexadecimal digits. Returns false if one is missing. */
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
typedef enum { NODE_TEXT, NODE_CLASS, NODE_SEQ, NODE_ALT, NODE_REPEAT, NODE_RULE, NODE_MARKER, NODE_AHEAD } node_kind;
typedef struct {
    uint32_t lo, hi; /* code points, inclusive */
} char_range;
typedef struct node node;
struct node {
    node_kind kind;
    int32_t   n;      /* number of kids or ranges */
    int32_t   weight; /* about the number of its places; 0: unknown */
    int32_t   round;  /* repeated body: its rule + 1 */
    union {
        str         text; /* bytes */
        char_range *range;
        node      **kid; /* an ALT without kids matches nothing */
        struct {
            node   *body;     /* body of a repetition, or of a lookahead, which is never compiled */
            int32_t min, max; /* max < 0: unbounded. For a lookahead, max 0: negative */
        };
        int32_t index; /* index of a rule or marker */
    };
};

typedef struct {
    str   name; /* for messages; empty: a generated rule */
    node *body; /* NULL: not defined yet */
} rule;

typedef struct {
    arena              mem;
    rule              *rule;
    int32_t            n_rules, rule_cap;
    str                marker[GRAMMAR_MAX_MARKERS];
    int32_t            n_markers;
    size_t             n_bytes; /* bytes of texts */
    int                max_depth;
    bool               inlines;  /* inline small repeated rules in their callers */
    int64_t            work;     /* steps left of GRAMMAR_MAX_WORK */
    bool               too_long; /* failed because the work was used up */
    bool               failed;   /* out of memory, over a limit, or cancelled; see `why` */
    err                why;
    const atomic_bool *cancel; /* may be NULL */
} builder;

void builder_init(builder *b, int max_depth, const atomic_bool *cancel);
void builder_deinit(builder *b);
/* Fails the builder because its arena returned NULL: over its limit, or no memory. */
bool builder_full(builder *b);
bool builder_fail(builder *b, err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool builder_stop(builder *b); /* fails: out of work, or cancelled. Always false */

/* Counts n steps of work, some 10 ns each. Returns false when the builder has failed, also by this. Every loop whose
 * length a client chooses counts its rounds. */
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
/* Return a new node, never NULL; after a failure, a node that matches nothing. Arrays of kids are copied. */
node   *node_text(builder *b, str s); /* copied */
node   *node_puts(builder *b, const char *s);
node   *node_class(builder *b, const char_range *r, int32_t n); /* sorted and joined here */
node   *node_not(builder *b, const char_range *r, int32_t n);   /* all other characters */
node   *node_list(builder *b, node_kind kind, node *const *kid, int32_t n);
node   *node_repeat(builder *b, node *body, int32_t min, int32_t max);
node   *node_rule(builder *b, int32_t index);
node   *node_marker(builder *b, str name);
node   *node_ahead(builder *b, node *body, bool negative); /* used by regular.c only */
int32_t builder_rule(builder *b, str name);                /* adds a rule without a body */
void    builder_define(builder *b, int32_t index, node *body);
#define node_seq(b, ...)                                                                                               \
    node_list((b), NODE_SEQ, (node *[]){__VA_ARGS__}, (int32_t)(sizeof((node *[]){__VA_ARGS__}) / sizeof(node *)))
#define node_alt(b, ...)                                                                                               \
    node_list((b), NODE_ALT, (node *[]){__VA_ARGS__}, (int32_t)(sizeof((node *[]){__VA_ARGS__}) / sizeof(node *)))
static inline node *node_empty(builder *b) { return node_text(b, (str){0}); }

/* A growing array of nodes in the builder's arena. */
typedef struct {
    node  **p;
    int32_t n, cap;
} node_vec;
void node_vec_put(builder *b, node_vec *v, node *x);

/* Parses a regular expression to a node over the characters of a string. `wrap` converts a class to its written form.
 * Unsupported syntax is refused by name. min and max: characters of the shortest and longest match; max < 0:
 * unbounded. */
typedef struct {
    builder *b;
    node *(*wrap)(void *ctx, const char_range *r, int32_t n);
    void *ctx;
    bool  whole; /* the pattern must match the whole text */
} regex_options;
typedef struct {
    node   *body;
    bool    ahead; /* the body has lookaheads, which only term_of_node supports */
    int32_t min, max;
    node   *only; /* the pattern is this class, only_min to only_max times; NULL: it is another pattern */
    int32_t only_min, only_max;
} regex;
bool regex_parse(regex *out, str pattern, const regex_options *o, err *e);

/* --- compiled ---------------------------------------------------------------------------------- */
enum { SYMBOL_MARKER = 256, MAX_SYMBOLS = SYMBOL_MARKER + GRAMMAR_MAX_MARKERS, HEIGHT_NEVER = 1 << 20 };
typedef enum { PLACE_BYTES, PLACE_SPLIT, PLACE_CALL, PLACE_LOOP, PLACE_END } place_kind;
typedef struct {
    uint16_t lo, hi; /* symbols; after compilation classes of symbols */
    int32_t  to;
} edge;
typedef struct {
    uint8_t kind;
    int32_t n;          /* edges */
    int32_t first;      /* edge */
    int32_t rule, then; /* CALL, LOOP; then < 0: a call at the end */
    int32_t min, max;   /* LOOP; max < 0: no end */
    int32_t height;     /* HEIGHT_NEVER: it cannot be completed */
    int32_t distance;   /* at most GRAMMAR_FAR */
} place;
struct grammar {
    place   *place;
    edge    *edge;
    int32_t *start; /* start place of each rule */
    int32_t  n_places, n_edges, n_rules, root;
    int      max_depth;
    int32_t  n_classes; /* classes of symbols that no edge distinguishes */
    uint16_t class_of[MAX_SYMBOLS], symbol_of[MAX_SYMBOLS];
    char    *marker[GRAMMAR_MAX_MARKERS];
    int32_t  n_markers;
};
bool grammar_compile(grammar **out, builder *b, int32_t root, err *e);

/* --- the vocabulary ---------------------------------------------------------------------------- */
/* A trie in the order of a walk: a node's descendants follow it, up to `next`. Node 0 is the root, of depth 0. */
typedef struct {
    uint32_t next;
    int32_t  token;                /* lowest token that ends here, -1: none; vocab.same links the others */
    uint8_t  byte, depth, deepest; /* deepest: maximum depth below */
    bool     twins;                /* several tokens end here */
} trie_node;
struct grammar_vocab {
    const tok *tok;
    int32_t    n;
    int        max_depth;
    uint32_t   n_nodes;
    trie_node *node;
    int32_t   *same;                            /* [n] the next token with the same bytes, -1: none */
    uint8_t   *length;                          /* [n] in bytes, 0: takes no part by them */
    int32_t   *longest;                         /* tokens by length, the longest first */
    int32_t    n_longer[GRAMMAR_MAX_TOKEN + 1]; /* tokens that are longer than this */
    int32_t   *end_id;
    size_t     n_ends;
};

/* --- the machine ------------------------------------------------------------------------------- */
enum {
    STACK_BOTTOM = 0,
    COUNT_FREE   = 1 << 30, /* loop in a cut stack: the minimum is reached, the maximum is far */
    COUNT_BELOW,            /* the minimum is far */
    NEXT_UNKNOWN = -2,      /* in state.next, in addition to GRAMMAR_NO */
};
typedef struct {
    int32_t then;     /* place to continue at; for a loop, the loop itself */
    int32_t count;    /* loop: rounds begun, from 1 */
    int32_t parent;   /* stack node */
    int32_t depth;    /* bottom: 0 */
    int32_t distance; /* shortest path in symbols to the end after the call on top; at most GRAMMAR_FAR */
    int32_t next;     /* with the same hash, 0: none */
} stack_node;
typedef struct {
    int32_t place, stack; /* a PLACE_BYTES */
} config;
typedef struct {
    int32_t  first, n; /* configs, sorted by stack and place */
    uint32_t refs;
    int32_t  need;  /* maximum depth needed on the way here or from here; INT32_MAX: refused for it */
    int32_t  mask;  /* slot of the cache, -1: none */
    int32_t  local; /* the same */
    uint64_t hash;
    bool     live, can_end, marked;
} state;

typedef struct mask_cache mask_cache;
struct grammar_machine {
    const grammar       *g;
    const grammar_vocab *v;
    int32_t              marker_id[GRAMMAR_MAX_MARKERS];

    state   *state;
    int32_t *next; /* [state][class] */
    int32_t  n_states, free_state, n_live;
    int32_t *state_table; /* hash -> state + 1 */

    config *config, *config_spare;
    int32_t n_configs, max_configs, most_configs; /* now; limit; maximum so far */

    stack_node *stack; /* free ones: depth < 0, parent is the next free */
    uint8_t    *stack_mark;
    int32_t     n_stack, max_stack, free_stack;
    int32_t     n_nodes;     /* nodes left by the last sweep */
    int32_t    *stack_table; /* hash -> the first node, 0: none */

    config   *work; /* configs of a closure in order; their stacks are not swept */
    int32_t   n_work;
    config   *found; /* its result */
    int32_t   n_found;
    uint32_t *seen; /* work index + 1 by hash, good when seen_round matches */
    uint32_t *seen_round, round;
    bool      found_end, refused_depth;
    bool      overflow; /* this closure is too large, regardless of the pools */
    bool      starved;  /* the pools or the budget of this call are exhausted */
    int32_t   need;
    int32_t   path[GRAMMAR_MAX_TOKEN + 2], n_path; /* states of a walk through the vocabulary, which are not swept */

    uint16_t     *symbol; /* [GRAMMAR_MAX_AHEAD] text computed in advance */
    int64_t       budget; /* steps left for the current call */
    int64_t       pause;  /* budget at which a mask is paused */
    bool          paused; /* the mask was paused */
    mask_cache   *cache;
    grammar_stats stats;
};

/* Returns the state after these bytes, as grammar_take does for a token. Tests use it too. */
grammar_state grammar_take_bytes(grammar_machine *m, grammar_state s, str bytes);
void          machine_begin(grammar_machine *m); /* at the start of each public function */
/* Counts steps, 5 to 25 ns each. */
static inline void machine_spend(grammar_machine *m, int64_t n)
{
    m->budget -= n;
    m->stats.work += n;
}
/* Returns the state after a class of symbols, or GRAMMAR_NO, without a reference. */
int32_t machine_next(grammar_machine *m, int32_t s, int32_t cls);
/* Returns the state after the call on top of this stack ends. */
int32_t machine_pop(grammar_machine *m, int32_t stack);
/* Returns the state in which a rule is called on an empty stack. */
int32_t machine_rule(grammar_machine *m, int32_t index);
/* Returns the state of exactly these configs, without a closure. */
int32_t machine_intern(grammar_machine *m, config *c, int32_t n, bool can_end, int32_t need);
int32_t machine_push(grammar_machine *m, int32_t then, int32_t count, int32_t parent);
/* Returns the only symbol that may come next and a reference to the state after it; -1: several or none. */
int32_t machine_only(grammar_machine *m, int32_t s, int32_t *to);
void    machine_hold(grammar_machine *m, int32_t s);
void    machine_let_go(grammar_machine *m, int32_t s);

mask_cache *mask_cache_new(const grammar_vocab *v, size_t *bytes);
void        mask_cache_free(mask_cache *c);
size_t      mask_cache_used(const mask_cache *c);  /* bytes, about */
void        mask_cache_forget(grammar_machine *m); /* clears it, so that its states can be swept */
#endif
