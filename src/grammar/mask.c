/* Computes which tokens may come next.
 *
 * The vocabulary is a trie in preorder. A walk carries a state and skips subtrees that it cannot enter, which is short
 * from most states. Inside a string nearly every token is allowed, and the walk visits the whole trie: milliseconds.
 * But the result hardly depends on the caller of the string's rule. So configs with the same stack are walked
 * separately, with the stack cut off below ("local"):
 *
 *      tokens that stay inside the call, or end exactly with it         allowed with any stack below
 *      exits: nodes of the trie where the call ends inside of tokens     walked on with the state below
 *
 * The first part is computed once for each place of the grammar, and only the exits for each stack. The counts of loops
 * on top of the stack are kept, but only as far as the longest token can reach.
 *
 * A cut stack is lower: where the depth limit could matter, the state's own walk is done instead.
 *
 * A mask can be computed in slices (grammar_mask_work). The walk is paused at a node of the trie, with references to
 * the states on its path, and `mask_job` records which runs and exits are done. */
#include "base/mem.h"
#include "base/num.h"
#include "grammar/inside.h"

#include <assert.h>
#include <stdlib.h>

enum {
    MAX_MASKS    = 336, /* cached masks: more than a step has rows and lanes */
    MAX_LOCALS   = 160,
    MAX_LOOPS    = 4,  /* counted loops kept on top of a cut stack */
    MAX_RUNS     = 16, /* stacks of a state; with more it is walked as a whole */
    WORDS_A_STEP = 32, /* words of a mask that take the time of one step */
    MANY_SYMBOLS = 64, /* states with this number of symbols are computed in advance */
};

/* --- the vocabulary ---------------------------------------------------------------------------- */
typedef struct {
    str     bytes;
    int32_t id;
} spelled;

static int by_bytes(const void *pa, const void *pb)
{
    const spelled *a = pa, *b = pb;
    int            d = str_order(a->bytes, b->bytes);
    return d ? d : a->id < b->id ? -1 : 1;
}

/* Returns the length of the common prefix of a token and the one before it. */
static size_t same_start(const spelled *s, int32_t i)
{
    size_t n = 0;
    while (i && n < s[i].bytes.n && n < s[i - 1].bytes.n && s[i].bytes.s[n] == s[i - 1].bytes.s[n]) n++;
    return n;
}

/* Closes the nodes that are open below `depth`. */
static void close_nodes(grammar_vocab *v, const uint32_t *open, int from, int depth)
{
    for (int d = from; d > depth; d--) {
        trie_node *n = &v->node[open[d]];
        n->next      = v->n_nodes;
        n->deepest   = n->deepest > d ? n->deepest : (uint8_t)d;
        if (d && v->node[open[d - 1]].deepest < n->deepest) v->node[open[d - 1]].deepest = n->deepest;
    }
}

static void fill_trie(grammar_vocab *v, const spelled *s, int32_t n)
{
    uint32_t open[GRAMMAR_MAX_TOKEN + 1] = {0};
    int      depth                       = 0;
    v->n_nodes                           = 1;
    v->node[0]                           = (trie_node){.token = -1};
    for (int32_t i = 0; i < n; i++) {
        str    x    = s[i].bytes;
        size_t same = same_start(s, i);
        close_nodes(v, open, depth, (int)same);
        for (size_t k = same; k < x.n; k++) {
            open[k + 1]           = v->n_nodes;
            v->node[v->n_nodes++] = (trie_node){.token = -1, .byte = (uint8_t)x.s[k], .depth = (uint8_t)(k + 1)};
        }
        depth          = (int)x.n;
        trie_node *end = &v->node[open[depth]];
        if (end->token < 0) {
            end->token = s[i].id;
        } else {
            v->same[s[i - 1].id] = s[i].id; /* equal ones come in order */
            end->twins           = true;
        }
        v->max_depth = max_int(v->max_depth, depth);
    }
    close_nodes(v, open, depth, -1);
}

static void sort_by_length(grammar_vocab *v)
{
    for (int length = GRAMMAR_MAX_TOKEN; length >= 0; length--) v->n_longer[length] = 0;
    for (int32_t id = 0; id < v->n; id++)
        for (int length = 0; length < v->length[id]; length++) v->n_longer[length]++;
    int32_t at[GRAMMAR_MAX_TOKEN + 1];
    memcpy(at, v->n_longer, sizeof at);
    for (int32_t id = 0; id < v->n; id++)
        if (v->length[id]) v->longest[at[v->length[id]]++] = id;
}

static bool is_end(const grammar_vocab *v, int32_t id)
{
    for (size_t i = 0; i < v->n_ends; i++)
        if (v->end_id[i] == id) return true;
    return false;
}

static bool build_vocab(grammar_vocab *v)
{
    size_t   n_nodes = 1;
    int32_t  n       = 0;
    spelled *s       = mem_try_n((size_t)v->n + 1, sizeof *s);
    for (int32_t id = 0; s && id < v->n; id++) {
        tok_kind_t kind  = tok_kind(v->tok, id);
        str        bytes = tok_bytes(v->tok, id);
        if ((kind != TOK_NORMAL && kind != TOK_BYTE) || !bytes.n || bytes.n > GRAMMAR_MAX_TOKEN || is_end(v, id))
            continue;
        v->length[id] = (uint8_t)bytes.n;
        s[n++]        = (spelled){bytes, id};
    }
    if (s) qsort(s, (size_t)n, sizeof *s, by_bytes);
    for (int32_t i = 0; s && i < n; i++) n_nodes += s[i].bytes.n - same_start(s, i);
    v->node = s ? mem_try_n(n_nodes, sizeof *v->node) : NULL;
    if (v->node) {
        fill_trie(v, s, n);
        sort_by_length(v);
    }
    mem_free(s);
    return v->node != NULL;
}

bool grammar_vocab_new(grammar_vocab **out, const tok *t, const int32_t *end_ids, size_t n_ends, err *e)
{
    grammar_vocab *v = mem_try(sizeof *v);
    bool           ok;
    *out = NULL;
    if (!v) return err_set(e, ERR_UNAVAILABLE, "no memory for the vocabulary's bytes");
    v->tok     = t;
    v->n       = tok_size(t);
    v->n_ends  = n_ends;
    v->same    = mem_try_n((size_t)v->n + 1, sizeof *v->same);
    v->length  = mem_try((size_t)v->n + 1);
    v->longest = mem_try_n((size_t)v->n + 1, sizeof *v->longest);
    v->end_id  = mem_try_n(n_ends + 1, sizeof *v->end_id);
    ok         = v->same && v->length && v->longest && v->end_id;
    if (ok) {
        memset(v->same, 0xFF, (size_t)v->n * sizeof *v->same);
        if (n_ends) memcpy(v->end_id, end_ids, n_ends * sizeof *end_ids);
        ok = build_vocab(v);
    }
    if (ok)
        *out = v;
    else
        grammar_vocab_free(v);
    return ok || err_set(e, ERR_UNAVAILABLE, "no memory for the vocabulary's bytes");
}

void grammar_vocab_free(grammar_vocab *v)
{
    if (!v) return;
    mem_free(v->node);
    mem_free(v->same);
    mem_free(v->length);
    mem_free(v->longest);
    mem_free(v->end_id);
    mem_free(v);
}

size_t grammar_mask_words(const grammar_vocab *v) { return ((size_t)v->n + 63) / 64; }

/* --- the cache --------------------------------------------------------------------------------- */
typedef struct {
    int32_t  state; /* -1: free */
    uint64_t used;
} mask_slot;
typedef struct {
    int32_t  state, need; /* need: calls above the cut; INT32_MAX: it depends on the stack */
    uint32_t first_exit, n_exits;
} local_slot;

typedef struct { /* a walk that was left; the states on its path are held */
    uint32_t at; /* node of the trie; 0: none was left */
    int32_t  n_path;
    int32_t  path[GRAMMAR_MAX_TOKEN + 2];
} walk_rest;

typedef struct { /* a local being computed */
    uint32_t *exit;
    uint32_t  n, max;
    int32_t   need;
    int       known; /* shorter tokens are known from another local */
} exits;

typedef struct {     /* a local whose walk was left; held */
    int32_t   state; /* -1: none */
    int32_t   slot;  /* where it will be */
    uint32_t  first; /* exit */
    exits     x;
    walk_rest rest;
} local_job;

typedef struct {     /* a mask that is being worked out */
    int32_t   state; /* held; -1: none */
    int32_t   slot;
    int64_t   budget;       /* left of GRAMMAR_MASK_WORK */
    bool      begun, whole; /* whole: as one walk */
    int32_t   first;        /* config of the run at hand */
    int32_t   below;        /* held: the state below the run, whose exits are walked; -1: not yet */
    uint32_t  exit, end;    /* the next of them */
    walk_rest rest;
} mask_job;

struct mask_cache {
    mask_job   job;
    local_job  part;
    size_t     n_words;
    mask_slot  mask[MAX_MASKS];
    uint64_t  *mask_bits;
    uint64_t   clock;
    local_slot local[MAX_LOCALS];
    int32_t    n_locals, most_locals; /* now; so far */
    uint64_t  *local_bits;
    uint32_t  *exit; /* exits of all locals */
    uint32_t   n_exits, max_exits;
};

mask_cache *mask_cache_new(const grammar_vocab *v, size_t *bytes)
{
    mask_cache *c = mem_try(sizeof *c);
    if (!c) return NULL;
    c->n_words    = grammar_mask_words(v);
    c->max_exits  = v->n_nodes / 2 + 1024;
    c->mask_bits  = mem_try_n(c->n_words * MAX_MASKS, sizeof *c->mask_bits);
    c->local_bits = mem_try_n(c->n_words * MAX_LOCALS, sizeof *c->local_bits);
    c->exit       = mem_try_n(c->max_exits, sizeof *c->exit);
    *bytes += c->n_words * (MAX_MASKS + MAX_LOCALS) * sizeof(uint64_t) + c->max_exits * sizeof *c->exit;
    for (int i = 0; i < MAX_MASKS; i++) c->mask[i].state = -1;
    c->job.state = c->job.below = c->part.state = -1;
    if (c->mask_bits && c->local_bits && c->exit) return c;
    mask_cache_free(c);
    return NULL;
}

void mask_cache_free(mask_cache *c)
{
    if (!c) return;
    mem_free(c->mask_bits);
    mem_free(c->local_bits);
    mem_free(c->exit);
    mem_free(c);
}

size_t mask_cache_used(const mask_cache *c)
{
    size_t n = 0;
    for (int i = 0; i < MAX_MASKS; i++) n += c->mask[i].used > 0;
    return (n + (size_t)c->most_locals) * c->n_words * sizeof(uint64_t);
}

static void forget_locals(grammar_machine *m)
{
    mask_cache *c = m->cache;
    for (int32_t i = 0; i < c->n_locals; i++) m->state[c->local[i].state].local = -1;
    c->n_locals = 0;
    c->n_exits  = 0;
}

void mask_cache_forget(grammar_machine *m)
{
    mask_cache *c = m->cache;
    for (int32_t i = 0; i < MAX_MASKS; i++) {
        if (c->mask[i].state >= 0) m->state[c->mask[i].state].mask = -1;
        c->mask[i].state = -1;
    }
    forget_locals(m);
}

static int32_t oldest_mask(const mask_cache *c)
{
    int32_t best = 0;
    for (int32_t i = 0; i < MAX_MASKS; i++) {
        if (c->mask[i].state < 0) return i;
        if (c->mask[i].used < c->mask[best].used) best = i;
    }
    return best;
}

/* --- walks ------------------------------------------------------------------------------------- */
static void put_bit(uint64_t *bits, int32_t id) { bits[id >> 6] |= UINT64_C(1) << (id & 63); }

static void allow(const grammar_vocab *v, uint64_t *bits, const trie_node *n)
{
    put_bit(bits, n->token);
    for (int32_t id = n->token; n->twins && (id = v->same[id]) >= 0;) put_bit(bits, id);
}

static void put_exit(exits *x, uint32_t at)
{
    if (x->n < x->max) x->exit[x->n] = at;
    x->n++;
}

static void leave_walk(grammar_machine *m, walk_rest *r, uint32_t at, int32_t n_path)
{
    r->at     = at;
    r->n_path = n_path;
    for (int32_t i = 0; i < n_path; i++) machine_hold(m, r->path[i] = m->path[i]);
    m->paused = true;
}

static void forget_walk(grammar_machine *m, walk_rest *r)
{
    for (int32_t i = 0; r->at && i < r->n_path; i++) machine_let_go(m, r->path[i]);
    r->at = 0;
}

/* Returns the node to continue at, with the path restored. */
static uint32_t resume_walk(grammar_machine *m, walk_rest *r)
{
    uint32_t at = r->at;
    memcpy(m->path, r->path, (size_t)r->n_path * sizeof *r->path);
    forget_walk(m, r);
    return at;
}

/* Adds the tokens below a node of the trie that state s allows. A paused walk continues where r says. */
static void walk(grammar_machine *m, uint32_t from, int32_t s, uint64_t *bits, exits *x, walk_rest *r)
{
    const trie_node *trie    = m->v->node;
    const int32_t   *next    = m->next;
    size_t           classes = (size_t)m->g->n_classes;
    uint32_t         end = trie[from].next, i = from + 1;
    int              base = trie[from].depth;
    m->path[0]            = s;
    if (r->at) i = resume_walk(m, r);
    while (i < end) {
        trie_node n = trie[i];
        if (m->budget <= m->pause) {
            leave_walk(m, r, i, n.depth - base);
            break;
        }
        machine_spend(m, 1);
        if (x && n.deepest <= x->known) {
            i = n.next;
            continue;
        }
        int     d   = n.depth - base;
        int32_t was = m->path[d - 1];
        size_t  cls = m->g->class_of[n.byte];
        int32_t to  = next[(size_t)was * classes + cls];
        if (to == NEXT_UNKNOWN) {
            m->n_path = d;
            to        = machine_next(m, was, (int32_t)cls);
            if (x) x->need = max_int(x->need, m->state[was].need);
            if (m->starved) break;
        }
        if (to < 0) {
            i = n.next;
            continue;
        }
        m->path[d] = to;
        if (n.token >= 0) allow(m->v, bits, &n);
        if (x) {
            x->need = max_int(x->need, m->state[to].need);
            if (m->state[to].can_end && n.next > i + 1 && n.depth > x->known) put_exit(x, i);
        }
        i++;
    }
    m->n_path = 0;
}

/* --- locals ------------------------------------------------------------------------------------ */
/* Returns the count of a loop, reduced to the values that tokens of up to `bytes` bytes distinguish. */
static int32_t plain_count(const place *p, int32_t count, int32_t bytes)
{
    if (count >= COUNT_FREE) return count;
    if (count < p->min) return p->min - count > bytes ? COUNT_BELOW : count;
    return p->max < 0 || p->max - count > bytes ? COUNT_FREE : count;
}

/* Returns the stack of a run with its loops only; *cut is the part below. */
static int32_t cut_stack(grammar_machine *m, int32_t stack, int32_t *cut)
{
    int32_t loop[MAX_LOOPS], n = 0, local = STACK_BOTTOM;
    while (n < MAX_LOOPS && stack != STACK_BOTTOM && m->stack[stack].count) {
        loop[n++] = stack;
        stack     = m->stack[stack].parent;
    }
    *cut = stack;
    while (n-- && local >= 0) {
        stack_node f = m->stack[loop[n]];
        local        = machine_push(m, f.then, plain_count(&m->g->place[f.then], f.count, m->v->max_depth), local);
        if (local >= 0) m->work[m->n_work++] = (config){0, local};
    }
    return local;
}

/* The state of configs first .. first + n of s, with their stack cut. */
static int32_t local_state(grammar_machine *m, int32_t s, int32_t first, int32_t n, int32_t *cut)
{
    m->n_work     = 0;
    int32_t stack = cut_stack(m, m->config[m->state[s].first + first].stack, cut);
    if (stack < 0) return GRAMMAR_NO;
    for (int32_t i = 0; i < n; i++) m->found[i] = (config){m->config[m->state[s].first + first + i].place, stack};
    return machine_intern(m, m->found, n, false, 0);
}

static const local_slot *work_out_local(grammar_machine *m, int32_t local);

/* Returns the local of the same places with their loops far from the end, which is equal for tokens of up to *bytes;
 * NULL: none. */
static const local_slot *far_local(grammar_machine *m, int32_t local, int *bytes)
{
    const state *s = &m->state[local];
    int32_t      n = s->n, stack = n ? m->config[s->first].stack : STACK_BOTTOM;
    stack_node   f = m->stack[stack];
    if (stack == STACK_BOTTOM || f.parent != STACK_BOTTOM || !f.count || f.count >= COUNT_FREE) return NULL;
    const place *p = &m->g->place[f.then];
    *bytes         = f.count < p->min ? p->min - f.count : p->max - f.count;
    if (!*bytes) return NULL;
    int32_t far = machine_push(m, f.then, plain_count(p, f.count, -1), STACK_BOTTOM);
    if (far < 0) return NULL;
    m->n_work            = 0;
    m->work[m->n_work++] = (config){0, far};
    for (int32_t i = 0; i < n; i++) m->found[i] = (config){m->config[m->state[local].first + i].place, far};
    int32_t twin = machine_intern(m, m->found, n, false, 0);
    return twin < 0 ? NULL : work_out_local(m, twin);
}

/* Begins a local with the short tokens of the local far from the end. */
static void begin_as(grammar_machine *m, const local_slot *far, int bytes, uint64_t *bits, exits *x)
{
    mask_cache          *c = m->cache;
    const grammar_vocab *v = m->v;
    memcpy(bits, c->local_bits + (size_t)(far - c->local) * c->n_words, c->n_words * sizeof *bits);
    machine_spend(m, (int64_t)c->n_words / WORDS_A_STEP + v->n_longer[bytes] / 4);
    for (int32_t i = 0; i < v->n_longer[bytes]; i++) bits[v->longest[i] >> 6] &= ~(UINT64_C(1) << (v->longest[i] & 63));
    for (uint32_t i = 0; i < far->n_exits; i++)
        if (v->node[c->exit[far->first_exit + i]].depth <= bytes) put_exit(x, c->exit[far->first_exit + i]);
    x->need  = far->need;
    x->known = bytes;
}

static void forget_part(grammar_machine *m)
{
    local_job *p = &m->cache->part;
    if (p->state < 0) return;
    forget_walk(m, &p->rest);
    machine_let_go(m, p->state);
    p->state = -1;
}

static void begin_local(grammar_machine *m, int32_t local)
{
    mask_cache *c = m->cache;
    if (c->n_locals >= MAX_LOCALS - 1 || c->n_exits > c->max_exits / 4 * 3) forget_locals(m);
    int               bytes = 0;
    const local_slot *far   = far_local(m, local, &bytes);
    if (m->paused || m->starved) return; /* the part at hand is the far one's */
    forget_part(m);
    local_job *p    = &c->part;
    uint64_t  *bits = c->local_bits + (size_t)c->n_locals * c->n_words;
    *p              = (local_job){.state = local, .slot = c->n_locals, .first = c->n_exits};
    p->x            = (exits){.exit = c->exit + p->first, .max = c->max_exits - p->first};
    memset(bits, 0, c->n_words * sizeof *bits);
    machine_spend(m, (int64_t)c->n_words / WORDS_A_STEP);
    machine_hold(m, local);
    if (far && far->need < INT32_MAX && m->state[far->state].local >= 0) begin_as(m, far, bytes, bits, &p->x);
}

/* Returns NULL when the machine starved or paused. */
static const local_slot *work_out_local(grammar_machine *m, int32_t local)
{
    mask_cache *c = m->cache;
    local_job  *p = &c->part;
    if (m->state[local].local >= 0) return &c->local[m->state[local].local];
    if (p->state != local || p->slot != c->n_locals || p->first != c->n_exits) { /* or the others were forgotten */
        if (p->state == local) forget_part(m);
        machine_hold(m, local);
        begin_local(m, local);
        machine_let_go(m, local);
        if (m->paused || m->starved) return NULL;
    }
    int32_t slot = p->slot;
    walk(m, 0, local, c->local_bits + (size_t)slot * c->n_words, &p->x, &p->rest);
    if (m->paused) return NULL;
    exits    x     = p->x;
    uint32_t first = p->first;
    forget_part(m);
    m->stats.locals++;
    if (m->starved) return NULL;
    if (c->n_locals != slot) { /* a sweep forgot the others: this one is not kept either */
        c->local[slot] = (local_slot){local, INT32_MAX, 0, 0};
        return &c->local[slot];
    }
    bool fits      = x.n <= x.max;
    c->local[slot] = (local_slot){local, fits ? x.need : INT32_MAX, first, fits ? x.n : 0};
    c->n_exits += fits ? x.n : 0;
    c->n_locals++;
    c->most_locals        = max_int(c->most_locals, c->n_locals);
    m->state[local].local = slot;
    return &c->local[slot];
}

/* Adds the tokens allowed with any stack below the run, and finds its exits. Returns false when the whole state must be
 * walked, or when paused. */
static bool begin_run(grammar_machine *m, mask_job *j, int32_t n, uint64_t *bits)
{
    int32_t           cut, local = local_state(m, j->state, j->first, n, &cut);
    const local_slot *l = local < 0 ? NULL : work_out_local(m, local);
    if (!l || l->need >= INT32_MAX - m->g->max_depth || l->need + m->stack[cut].depth > m->g->max_depth) return false;
    const uint64_t *more = m->cache->local_bits + (size_t)(l - m->cache->local) * m->cache->n_words;
    for (size_t i = 0; i < m->cache->n_words; i++) bits[i] |= more[i];
    machine_spend(m, (int64_t)m->cache->n_words / WORDS_A_STEP);
    if (cut == STACK_BOTTOM || !l->n_exits) return true;
    j->exit       = l->first_exit;
    j->end        = l->first_exit + l->n_exits;
    m->n_work     = 0;
    int32_t below = machine_pop(m, cut);
    if (below < 0) return !m->starved; /* cannot be: a call that was begun has an end */
    machine_hold(m, j->below = below);
    return true;
}

static void end_exits(grammar_machine *m, mask_job *j)
{
    if (j->below >= 0) machine_let_go(m, j->below);
    j->below = -1;
}

/* Adds the tokens that a run of n configs allows. Returns false when the whole state must be walked, or when paused. */
static bool allow_run(grammar_machine *m, mask_job *j, int32_t n, uint64_t *bits)
{
    if (j->below < 0 && !begin_run(m, j, n, bits)) return false;
    if (j->below < 0) return true;
    while (j->exit < j->end && !m->starved) {
        walk(m, m->cache->exit[j->exit], j->below, bits, NULL, &j->rest);
        if (m->paused) return false;
        j->exit++;
    }
    end_exits(m, j);
    return true;
}

/* Returns the first config after those with the same stack as the i-th. */
static int32_t run_end(const grammar_machine *m, int32_t s, int32_t i)
{
    const config *c = m->config + m->state[s].first;
    int32_t       k = i + 1;
    while (k < m->state[s].n && c[k].stack == c[i].stack) k++;
    return k;
}

static void clear_bits(grammar_machine *m, uint64_t *bits)
{
    memset(bits, 0, m->cache->n_words * sizeof *bits);
    machine_spend(m, (int64_t)m->cache->n_words / WORDS_A_STEP);
}

static bool has_few_runs(const grammar_machine *m, int32_t s)
{
    int32_t n_runs = 0;
    for (int32_t i = 0; i < m->state[s].n && n_runs <= MAX_RUNS; i = run_end(m, s, i)) n_runs++;
    return n_runs <= MAX_RUNS;
}

static bool allow_runs(grammar_machine *m, mask_job *j, uint64_t *bits)
{
    if (!has_few_runs(m, j->state)) return false;
    for (int32_t k; j->first < m->state[j->state].n; j->first = k) {
        k = run_end(m, j->state, j->first);
        if (!allow_run(m, j, k - j->first, bits)) return false;
    }
    return true;
}

/* --- the mask ---------------------------------------------------------------------------------- */
static void allow_markers_and_ends(grammar_machine *m, int32_t s, uint64_t *bits)
{
    for (int32_t i = 0; i < m->g->n_markers; i++)
        if (machine_next(m, s, m->g->class_of[SYMBOL_MARKER + i]) >= 0) put_bit(bits, m->marker_id[i]);
    for (size_t i = 0; m->state[s].can_end && i < m->v->n_ends; i++) {
        int32_t id = m->v->end_id[i];
        if (id >= 0 && id < m->v->n) put_bit(bits, id);
    }
}

/* Continues a mask until it is done, paused or starved. */
static void work_out(grammar_machine *m, mask_job *j, uint64_t *bits)
{
    if (!j->begun) clear_bits(m, bits);
    j->begun = true;
    if (!j->whole && !allow_runs(m, j, bits)) {
        if (m->paused || m->starved) return;
        j->whole = true;
        clear_bits(m, bits);
    }
    if (j->whole) walk(m, 0, j->state, bits, NULL, &j->rest);
    if (!m->paused && !m->starved) allow_markers_and_ends(m, j->state, bits);
}

static bool any(const uint64_t *bits, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bits[i]) return true;
    return false;
}

static void begin_job(grammar_machine *m, int32_t s)
{
    mask_cache *c    = m->cache;
    int32_t     slot = oldest_mask(c);
    if (c->mask[slot].state >= 0) m->state[c->mask[slot].state].mask = -1;
    c->mask[slot].state = -1;
    c->job              = (mask_job){.state = s, .slot = slot, .budget = GRAMMAR_MASK_WORK, .below = -1};
    machine_hold(m, s);
}

static void end_job(grammar_machine *m)
{
    mask_job *j = &m->cache->job;
    if (j->state < 0) return;
    forget_walk(m, &j->rest);
    end_exits(m, j);
    machine_let_go(m, j->state);
    j->state = -1;
}

/* Computes the current mask for *work steps. GRAMMAR_READY: it is in the cache. */
static int continue_mask(grammar_machine *m, int64_t *work, err *e)
{
    mask_cache *c     = m->cache;
    mask_job   *j     = &c->job;
    uint64_t   *bits  = c->mask_bits + (size_t)j->slot * c->n_words;
    int64_t     begun = j->budget;
    machine_begin(m);
    m->budget = j->budget;
    m->pause  = *work < j->budget ? j->budget - *work : INT64_MIN;
    work_out(m, j, bits);
    j->budget = m->budget;
    *work -= begun - j->budget;
    if (m->paused) return GRAMMAR_LATER;
    int32_t s = j->state, slot = j->slot;
    bool    there = !m->starved && any(bits, c->n_words);
    end_job(m);
    if (!there) {
        forget_part(m);
        err_set(e, ERR_TOO_LARGE, "the grammar is too ambiguous");
        return GRAMMAR_NO;
    }
    c->mask[slot]    = (mask_slot){s, ++c->clock};
    m->state[s].mask = slot;
    return GRAMMAR_READY;
}

/* Drops the job when nothing else refers to its state. */
static void forget_unwanted_job(grammar_machine *m)
{
    const mask_job *j = &m->cache->job;
    if (j->state >= 0 && m->state[j->state].refs == 1) end_job(m);
}

int grammar_mask_work(grammar_machine *m, grammar_state s, int64_t *work, err *e)
{
    mask_cache *c = m->cache;
    assert(s >= 0);
    forget_unwanted_job(m);
    if (m->state[s].mask >= 0) {
        c->mask[m->state[s].mask].used = ++c->clock;
        return GRAMMAR_READY;
    }
    if (c->job.state >= 0 && c->job.state != s && *work > 0 && continue_mask(m, work, NULL) == GRAMMAR_LATER)
        return GRAMMAR_LATER;
    if (*work <= 0) return GRAMMAR_LATER;
    if (c->job.state < 0) begin_job(m, s);
    return continue_mask(m, work, e);
}

const uint64_t *grammar_mask(grammar_machine *m, grammar_state s, err *e)
{
    int64_t work = INT64_MAX;
    assert(s >= 0);
    m->stats.masks++;
    m->stats.cached += m->state[s].mask >= 0;
    if (grammar_mask_work(m, s, &work, e) != GRAMMAR_READY) return NULL;
    return m->cache->mask_bits + (size_t)m->state[s].mask * m->cache->n_words;
}

/* --- beforehand -------------------------------------------------------------------------------- */
static int symbols_taken(grammar_machine *m, int32_t s)
{
    int n = 0;
    for (int32_t k = 0; k < m->g->n_classes; k++)
        if (machine_next(m, s, k) >= 0)
            n += (k + 1 < m->g->n_classes ? m->g->symbol_of[k + 1] : SYMBOL_MARKER + m->g->n_markers) -
                 m->g->symbol_of[k];
    return n;
}

static void warm(grammar_machine *m, int32_t s)
{
    mask_job once = {.state = s, .below = -1};
    machine_hold(m, s);
    if (symbols_taken(m, s) >= MANY_SYMBOLS)
        allow_runs(m, &once, m->cache->mask_bits + (size_t)oldest_mask(m->cache) * m->cache->n_words);
    end_exits(m, &once);
    machine_let_go(m, s);
}

void grammar_machine_warm(grammar_machine *m)
{
    machine_begin(m);
    for (int32_t r = 0; r < m->g->n_rules && m->cache->n_locals < MAX_LOCALS / 2 && !m->starved; r++) {
        int32_t s = machine_rule(m, r);
        if (s < 0) continue;
        machine_hold(m, s);
        warm(m, s);
        for (int32_t k = 0; k < m->g->n_classes && !m->starved; k++) {
            int32_t to = machine_next(m, s, k);
            if (to >= 0) warm(m, to);
        }
        machine_let_go(m, s);
    }
}
