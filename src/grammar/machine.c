/* Follows texts: a position in a grammar is a set of stacks, each with a place on top.
 *
 *      config   a PLACE_BYTES and the stack of calls under it
 *      state    a sorted set of configs, plus whether the grammar may end here
 *
 * Stacks are lists that share their lower parts. Equal stacks are one node and equal sets are one state, so a state is
 * compared, kept and forked as a number. The transition of (state, class of symbols) is cached: after a while,
 * following a text is a table lookup.
 *
 * (1) All pools are allocated at creation. When one is full, entries that no referenced or cached state needs are
 * swept. Only configs move; numbers of states and stacks stay valid. (2) A closure visits at most MAX_WORK configs. A
 * byte that needs more is refused, regardless of the cache. (3) So is a state of more than MAX_FOUND configs or
 * MAX_NODES stack nodes. The pools have room for that for every row and lane of a step, and for a walk, so other
 * requests and draft tokens do not change whether a text is accepted. */
#include "base/mem.h"
#include "base/num.h"
#include "grammar/inside.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_LIVE  = 8192, /* states */
    MAX_HELD  = 576,  /* referenced states with guaranteed room: 256 draft tokens, 256 lanes, and some temporary ones */
    MAX_FOUND = 2048, /* configs of a state */
    MAX_NODES = 2048, /* nodes of its stacks together */
    MAX_WORK  = 8192, /* configs of a closure */
    STATE_TABLE = MAX_LIVE * 4,
    STACK_TABLE = 1 << 17,
    SEEN_TABLE  = MAX_WORK * 4,
};

/* --- stacks ------------------------------------------------------------------------------------ */
static uint64_t stack_hash(int32_t then, int32_t count, int32_t parent)
{
    return hash_mix(hash_mix((uint32_t)then, (uint32_t)count), (uint32_t)parent);
}

static void sweep(grammar_machine *m);

static void table_put(int32_t *table, uint32_t size, uint64_t hash, int32_t i)
{
    uint32_t at = (uint32_t)hash & (size - 1);
    while (table[at]) at = (at + 1) & (size - 1);
    table[at] = i + 1;
}

static int32_t find_stack(const grammar_machine *m, uint64_t hash, int32_t then, int32_t count, int32_t parent)
{
    for (int32_t i = m->stack_table[hash & (STACK_TABLE - 1)]; i; i = m->stack[i].next) {
        const stack_node *s = &m->stack[i];
        if (s->then == then && s->count == count && s->parent == parent) return i;
    }
    return -1;
}

static void put_stack(grammar_machine *m, uint64_t hash, int32_t i)
{
    int32_t *head    = &m->stack_table[hash & (STACK_TABLE - 1)];
    m->stack[i].next = *head;
    *head            = i;
}

/* COUNT_FREE and COUNT_BELOW occur only in cut stacks, whose distances are never used. */
static int32_t distance_behind(const grammar_machine *m, int32_t then, int32_t count, int32_t parent)
{
    const place *p = &m->g->place[then];
    int64_t      d = p->distance;
    if (count) {
        int64_t rounds = count < COUNT_FREE && p->min > count ? p->min - count : 0;
        d              = rounds * m->g->place[m->g->start[p->rule]].distance + m->g->place[p->then].distance;
    }
    d += m->stack[parent].distance;
    return d < GRAMMAR_FAR ? (int32_t)d : GRAMMAR_FAR;
}

/* Returns -1 and sets `starved` when there is no room. */
int32_t machine_push(grammar_machine *m, int32_t then, int32_t count, int32_t parent)
{
    uint64_t hash = stack_hash(then, count, parent);
    int32_t  i    = find_stack(m, hash, then, count, parent);
    if (i >= 0) return i;
    if (m->free_stack < 0 && m->n_stack == m->max_stack) sweep(m);
    i = m->free_stack;
    if (i >= 0)
        m->free_stack = m->stack[i].parent;
    else if (m->n_stack < m->max_stack)
        i = m->n_stack++;
    if (i < 0) {
        m->starved = true;
        return -1;
    }
    m->stack[i] =
        (stack_node){then, count, parent, m->stack[parent].depth + 1, distance_behind(m, then, count, parent), 0};
    put_stack(m, hash, i);
    return i;
}

/* --- closures ---------------------------------------------------------------------------------- */
static void begin_closure(grammar_machine *m)
{
    m->n_work = m->n_found = 0;
    m->found_end = m->refused_depth = m->overflow = false;
    m->need                                       = 0;
    if (!++m->round) {
        memset(m->seen_round, 0, SEEN_TABLE * sizeof *m->seen_round);
        m->round = 1;
    }
}

static void add_config(grammar_machine *m, int32_t p, int32_t stack)
{
    if (stack < 0) return;
    int32_t height = m->g->place[p].height, need = m->stack[stack].depth + height;
    if (height >= HEIGHT_NEVER) return;
    if (need > m->need) m->need = need;
    if (need > m->g->max_depth) {
        m->refused_depth = true;
        return;
    }
    uint32_t at = (uint32_t)hash_mix((uint32_t)p, (uint32_t)stack) & (SEEN_TABLE - 1);
    for (; m->seen_round[at] == m->round; at = (at + 1) & (SEEN_TABLE - 1)) {
        const config *c = &m->work[m->seen[at]];
        if (c->place == p && c->stack == stack) return;
    }
    if (m->n_work == MAX_WORK) { /* (2) */
        m->overflow = true;
        return;
    }
    m->seen_round[at]    = m->round;
    m->seen[at]          = (uint32_t)m->n_work;
    m->work[m->n_work++] = (config){p, stack};
}

static void begin_round(grammar_machine *m, int32_t loop, int32_t count, int32_t stack)
{
    const place *p = &m->g->place[loop];
    if (count < COUNT_FREE) count = min_int(count, p->max < 0 ? max_int(p->min, 1) : p->max);
    add_config(m, m->g->start[p->rule], machine_push(m, loop, count, stack));
}

static void end_call(grammar_machine *m, int32_t stack)
{
    stack_node   f = m->stack[stack];
    const place *p = &m->g->place[f.then];
    if (stack == STACK_BOTTOM) {
        m->found_end = true;
        return;
    }
    /* A call pushes the place after it, which may itself be a loop; count marks the frame of a loop. */
    if (!f.count) {
        add_config(m, f.then, f.parent);
        return;
    }
    bool special = f.count >= COUNT_FREE;
    if (special ? f.count == COUNT_FREE : f.count >= p->min) add_config(m, p->then, f.parent);
    if (special || p->max < 0 || f.count < p->max) begin_round(m, f.then, f.count + !special, f.parent);
}

static void look_at(grammar_machine *m, config c)
{
    const place *p = &m->g->place[c.place];
    switch (p->kind) {
    case PLACE_BYTES:
        if (m->n_found == MAX_FOUND)
            m->overflow = true;
        else
            m->found[m->n_found++] = c;
        break;
    case PLACE_SPLIT:
        for (int32_t i = 0; i < p->n; i++) add_config(m, m->g->edge[p->first + i].to, c.stack);
        break;
    case PLACE_CALL:
        add_config(m, m->g->start[p->rule], p->then < 0 ? c.stack : machine_push(m, p->then, 0, c.stack));
        break;
    case PLACE_LOOP:
        if (!p->min) add_config(m, p->then, c.stack);
        begin_round(m, c.place, 1, c.stack);
        break;
    case PLACE_END: end_call(m, c.stack); break;
    }
}

static bool comes_before(config a, config b) { return a.stack != b.stack ? a.stack < b.stack : a.place < b.place; }

/* Sorts by stack and place with Shell's sort, which needs no memory. */
static void sort_configs(config *c, int32_t n)
{
    static const int32_t gaps[] = {701, 301, 132, 57, 23, 10, 4, 1};
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
        for (int32_t i = gaps[g]; i < n; i++) {
            config  x = c[i];
            int32_t k = i;
            for (; k >= gaps[g] && comes_before(x, c[k - gaps[g]]); k -= gaps[g]) c[k] = c[k - gaps[g]];
            c[k] = x;
        }
}

/* Returns whether the stacks of the result have more than MAX_NODES nodes. Uses the marks of a sweep and clears
 * them. */
static bool too_many_nodes(grammar_machine *m)
{
    int32_t deepest = 0, n = 0, i, k;
    for (i = 0; i < m->n_found; i++) deepest = max_int(deepest, m->stack[m->found[i].stack].depth);
    if ((int64_t)deepest * m->n_found <= MAX_NODES) return false;
    for (i = 0; i < m->n_found && n <= MAX_NODES; i++)
        for (k = m->found[i].stack; k > STACK_BOTTOM && !m->stack_mark[k] && n <= MAX_NODES;
             k = m->stack[k].parent, n++)
            m->stack_mark[k] = 1;
    machine_spend(m, n);
    for (i = 0; i < m->n_found; i++)
        for (k = m->found[i].stack; k > STACK_BOTTOM && m->stack_mark[k]; k = m->stack[k].parent) m->stack_mark[k] = 0;
    return n > MAX_NODES;
}

static int32_t end_closure(grammar_machine *m)
{
    enum { SORT_STEPS = 4 };
    for (int32_t i = 0; i < m->n_work && !m->overflow && !m->starved; i++) look_at(m, m->work[i]);
    machine_spend(m, m->n_work);
    m->stats.steps += m->n_work;
    if (m->overflow || m->starved || (!m->n_found && !m->found_end)) return GRAMMAR_NO;
    if (too_many_nodes(m)) return GRAMMAR_NO; /* (3) */
    sort_configs(m->found, m->n_found);
    machine_spend(m, (int64_t)SORT_STEPS * m->n_found);
    return machine_intern(m, m->found, m->n_found, m->found_end, m->need);
}

/* --- states ------------------------------------------------------------------------------------ */
static uint64_t state_hash(const config *c, int32_t n, bool can_end)
{
    uint64_t h = hash_mix((uint32_t)n, can_end);
    for (int32_t i = 0; i < n; i++) h = hash_mix(h, (uint64_t)(uint32_t)c[i].place << 32 | (uint32_t)c[i].stack);
    return h;
}

static int32_t find_state(const grammar_machine *m, uint64_t hash, const config *c, int32_t n, bool can_end)
{
    for (uint32_t at = (uint32_t)hash & (STATE_TABLE - 1); m->state_table[at]; at = (at + 1) & (STATE_TABLE - 1)) {
        int32_t      i = m->state_table[at] - 1;
        const state *s = &m->state[i];
        if (s->hash == hash && s->n == n && s->can_end == can_end &&
            (!n || !memcmp(m->config + s->first, c, (size_t)n * sizeof *c)))
            return i;
    }
    return -1;
}

int32_t machine_intern(grammar_machine *m, config *c, int32_t n, bool can_end, int32_t need)
{
    uint64_t hash = state_hash(c, n, can_end);
    int32_t  i    = find_state(m, hash, c, n, can_end);
    if (i >= 0) {
        m->state[i].need = max_int(m->state[i].need, need);
        return i;
    }
    if ((m->free_state < 0 && m->n_states == MAX_LIVE) || m->n_configs + n > m->max_configs) sweep(m);
    if ((m->free_state < 0 && m->n_states == MAX_LIVE) || m->n_configs + n > m->max_configs) {
        m->starved = true;
        return GRAMMAR_NO;
    }
    i = m->free_state;
    if (i >= 0)
        m->free_state = m->state[i].first;
    else
        i = m->n_states++;
    m->state[i] = (state){.first   = m->n_configs,
                          .n       = n,
                          .need    = need,
                          .mask    = -1,
                          .local   = -1,
                          .hash    = hash,
                          .live    = true,
                          .can_end = can_end};
    if (n) memcpy(m->config + m->n_configs, c, (size_t)n * sizeof *c);
    m->n_configs += n;
    m->most_configs = max_int(m->most_configs, m->n_configs);
    m->n_live++;
    machine_spend(m, m->g->n_classes); /* includes its share of a sweep */
    int32_t *next = m->next + (size_t)i * (size_t)m->g->n_classes;
    for (int32_t k = 0; k < m->g->n_classes; k++) next[k] = NEXT_UNKNOWN;
    table_put(m->state_table, STATE_TABLE, hash, i);
    return i;
}

void machine_hold(grammar_machine *m, int32_t s) { m->state[s].refs++; }

void machine_let_go(grammar_machine *m, int32_t s)
{
    assert(m->state[s].refs);
    m->state[s].refs--;
}

/* Returns the target of a class; edges are sorted and do not overlap. */
static int32_t follow_edge(const grammar *g, const place *p, int32_t cls)
{
    const edge *e = g->edge + p->first;
    for (int32_t i = 0; i < p->n && e[i].lo <= cls; i++)
        if (cls <= e[i].hi) return e[i].to;
    return -1;
}

int32_t machine_next(grammar_machine *m, int32_t s, int32_t cls)
{
    size_t  at = (size_t)s * (size_t)m->g->n_classes + (size_t)cls;
    int32_t to = m->next[at];
    if (to != NEXT_UNKNOWN) return to;
    if (m->budget <= 0) m->starved = true;
    if (m->starved) return GRAMMAR_NO;
    machine_hold(m, s);
    begin_closure(m);
    for (int32_t i = 0; i < m->state[s].n; i++) {
        config  c = m->config[m->state[s].first + i];
        int32_t q = follow_edge(m->g, &m->g->place[c.place], cls);
        if (q >= 0) add_config(m, q, c.stack);
    }
    machine_spend(m, m->state[s].n);
    to = end_closure(m);
    if (m->refused_depth) m->state[s].need = INT32_MAX;
    machine_let_go(m, s);
    return m->starved ? GRAMMAR_NO : (m->next[at] = to);
}

int32_t machine_pop(grammar_machine *m, int32_t stack)
{
    begin_closure(m);
    end_call(m, stack);
    return end_closure(m);
}

int32_t machine_rule(grammar_machine *m, int32_t index)
{
    begin_closure(m);
    add_config(m, m->g->start[index], STACK_BOTTOM);
    return end_closure(m);
}

/* --- sweeping (1) ------------------------------------------------------------------------------ */
static void mark_stack(grammar_machine *m, int32_t i)
{
    while (i > STACK_BOTTOM && !m->stack_mark[i]) {
        m->stack_mark[i] = 1;
        i                = m->stack[i].parent;
    }
}

static void mark_all(grammar_machine *m)
{
    for (int32_t i = 0; i < m->n_states; i++) {
        state *s  = &m->state[i];
        s->marked = s->live && (s->refs || s->mask >= 0 || s->local >= 0);
    }
    for (int32_t i = 0; i < m->n_path; i++) m->state[m->path[i]].marked = true;
    for (int32_t i = 0; i < m->n_states; i++) {
        const state *s = &m->state[i];
        for (int32_t k = 0; s->marked && k < s->n; k++) mark_stack(m, m->config[s->first + k].stack);
    }
    for (int32_t i = 0; i < m->n_work; i++) mark_stack(m, m->work[i].stack);
}

static void sweep_states(grammar_machine *m)
{
    int32_t n     = 0;
    config *to    = m->config_spare;
    m->free_state = -1;
    m->n_live     = 0;
    memset(m->state_table, 0, STATE_TABLE * sizeof *m->state_table);
    for (int32_t i = m->n_states - 1; i >= 0; i--) {
        state *s = &m->state[i];
        if (!s->marked) {
            *s            = (state){.first = m->free_state};
            m->free_state = i;
            continue;
        }
        if (s->n) memcpy(to + n, m->config + s->first, (size_t)s->n * sizeof *to);
        s->first = n;
        n += s->n;
        m->n_live++;
        table_put(m->state_table, STATE_TABLE, s->hash, i);
    }
    m->config_spare = m->config;
    m->config       = to;
    m->n_configs    = n;
    for (int32_t i = 0; i < m->n_states; i++) {
        int32_t *next = m->next + (size_t)i * (size_t)m->g->n_classes;
        for (int32_t k = 0; m->state[i].live && k < m->g->n_classes; k++)
            if (next[k] >= 0 && !m->state[next[k]].live) next[k] = NEXT_UNKNOWN;
    }
}

static void sweep_stacks(grammar_machine *m)
{
    m->free_stack = -1;
    m->n_nodes    = 0;
    memset(m->stack_table, 0, STACK_TABLE * sizeof *m->stack_table);
    for (int32_t i = m->n_stack - 1; i > STACK_BOTTOM; i--) {
        stack_node *s = &m->stack[i];
        if (m->stack_mark[i]) {
            m->stack_mark[i] = 0;
            m->n_nodes++;
            put_stack(m, stack_hash(s->then, s->count, s->parent), i);
        } else {
            *s            = (stack_node){.depth = -1, .parent = m->free_stack};
            m->free_stack = i;
        }
    }
}

static bool crowded(const grammar_machine *m)
{
    return m->n_live > MAX_LIVE / 4 * 3 || m->n_configs > m->max_configs / 4 * 3 || m->n_nodes > m->max_stack / 4 * 3;
}

static void sweep(grammar_machine *m)
{
    m->stats.sweeps++;
    for (int attempt = 0; attempt < 2; attempt++) {
        mark_all(m);
        sweep_states(m);
        sweep_stacks(m);
        if (!crowded(m)) return;
        mask_cache_forget(m);
    }
}

/* --- the machine's life ------------------------------------------------------------------------ */
static bool find_markers(grammar_machine *m, err *e)
{
    for (int32_t i = 0; i < m->g->n_markers; i++) {
        str     name   = str_of(m->g->marker[i]);
        int64_t id     = tok_find(m->v->tok, name);
        str     digits = {name.s + 2, name.n > 4 ? name.n - 4 : 0};
        if (digits.n && str_starts(name, "<[") && str_ends(name, "]>") && !str_to_i64(digits, &id)) id = -1;
        if (id < 0 || id >= m->v->n || tok_kind(m->v->tok, (int32_t)id) == TOK_UNUSED)
            return err_set(e, ERR_INPUT, "the grammar names the token %s, which the model does not have",
                           m->g->marker[i]);
        for (size_t k = 0; k < m->v->n_ends; k++)
            if (m->v->end_id[k] == id)
                return err_set(e, ERR_INPUT, "the grammar names the token %s, which is a stop token", m->g->marker[i]);
        m->marker_id[i] = (int32_t)id;
    }
    return true;
}

static void *alloc_items(grammar_machine *m, size_t n, size_t each, bool *ok)
{
    void *p = *ok ? mem_try_n(n, each) : NULL;
    if (!p) *ok = false;
    m->stats.bytes += n * each;
    return p;
}

static bool take_pools(grammar_machine *m, err *e)
{
    bool    ok      = true;
    int32_t n_held  = MAX_HELD + 3 * (m->v->max_depth + 2); /* (3); one walk and two paused ones */
    m->max_configs  = n_held * MAX_FOUND;
    m->max_stack    = n_held * MAX_NODES + 2 * MAX_WORK;
    m->state        = alloc_items(m, MAX_LIVE, sizeof *m->state, &ok);
    m->next         = alloc_items(m, MAX_LIVE, (size_t)m->g->n_classes * sizeof *m->next, &ok);
    m->state_table  = alloc_items(m, STATE_TABLE, sizeof *m->state_table, &ok);
    m->config       = alloc_items(m, (size_t)m->max_configs, sizeof *m->config, &ok);
    m->config_spare = alloc_items(m, (size_t)m->max_configs, sizeof *m->config, &ok);
    m->stack        = alloc_items(m, (size_t)m->max_stack, sizeof *m->stack, &ok);
    m->stack_mark   = alloc_items(m, (size_t)m->max_stack, 1, &ok);
    m->stack_table  = alloc_items(m, STACK_TABLE, sizeof *m->stack_table, &ok);
    m->work         = alloc_items(m, MAX_WORK, sizeof *m->work, &ok);
    m->found        = alloc_items(m, MAX_FOUND, sizeof *m->found, &ok);
    m->seen         = alloc_items(m, SEEN_TABLE, sizeof *m->seen, &ok);
    m->seen_round   = alloc_items(m, SEEN_TABLE, sizeof *m->seen_round, &ok);
    m->symbol       = alloc_items(m, GRAMMAR_MAX_AHEAD, sizeof *m->symbol, &ok);
    m->cache        = ok ? mask_cache_new(m->v, &m->stats.bytes) : NULL;
    return m->cache ||
           err_set(e, ERR_UNAVAILABLE, "no memory for the state of a grammar (%zu MiB)", m->stats.bytes >> 20);
}

bool grammar_machine_new(grammar_machine **out, const grammar *g, const grammar_vocab *v, err *e)
{
    grammar_machine *m = mem_try(sizeof *m);
    *out               = NULL;
    if (!m) return err_set(e, ERR_UNAVAILABLE, "no memory for the state of a grammar");
    m->g = g;
    m->v = v;
    if (!find_markers(m, e) || !take_pools(m, e)) {
        grammar_machine_free(m);
        return false;
    }
    m->n_stack    = STACK_BOTTOM + 1;
    m->free_state = m->free_stack = -1;
    *out                          = m;
    return true;
}

void grammar_machine_free(grammar_machine *m)
{
    if (!m) return;
    mem_free(m->state), mem_free(m->next), mem_free(m->state_table);
    mem_free(m->config), mem_free(m->config_spare);
    mem_free(m->stack), mem_free(m->stack_mark), mem_free(m->stack_table);
    mem_free(m->work), mem_free(m->found), mem_free(m->seen), mem_free(m->seen_round);
    mem_free(m->symbol);
    mask_cache_free(m->cache);
    mem_free(m);
}

grammar_stats grammar_machine_stats(const grammar_machine *m)
{
    grammar_stats s = m->stats;
    s.used          = (size_t)m->n_states * (sizeof *m->state + (size_t)m->g->n_classes * sizeof *m->next) +
             (size_t)m->most_configs * 2 * sizeof *m->config + (size_t)m->n_stack * sizeof *m->stack +
             mask_cache_used(m->cache);
    s.n_states  = m->n_live;
    s.n_classes = m->g->n_classes;
    return s;
}

int64_t grammar_machine_work(const grammar_machine *m) { return m->stats.work; }

/* --- following a text -------------------------------------------------------------------------- */
void machine_begin(grammar_machine *m)
{
    m->budget  = GRAMMAR_MASK_WORK;
    m->pause   = INT64_MIN;
    m->starved = m->paused = false;
    m->n_path              = 0;
    m->n_work              = 0;
}

/* Returns a reference for the caller. */
static grammar_state give(grammar_machine *m, int32_t s)
{
    if (m->starved) return GRAMMAR_FULL;
    if (s >= 0) machine_hold(m, s);
    return s;
}

grammar_state grammar_start(grammar_machine *m)
{
    machine_begin(m);
    return give(m, machine_rule(m, m->g->root));
}

grammar_state grammar_fork(grammar_machine *m, grammar_state s)
{
    if (s >= 0) machine_hold(m, s);
    return s;
}

void grammar_drop(grammar_machine *m, grammar_state s)
{
    if (s >= 0) machine_let_go(m, s);
}

grammar_state grammar_take_bytes(grammar_machine *m, grammar_state s, str bytes)
{
    machine_begin(m);
    m->budget = INT64_MAX; /* the number of closures is bounded, as in grammar_shortest */
    for (size_t i = 0; i < bytes.n && s >= 0; i++) s = machine_next(m, s, m->g->class_of[(uint8_t)bytes.s[i]]);
    return give(m, s);
}

grammar_state grammar_take(grammar_machine *m, grammar_state s, int32_t token)
{
    if (s < 0 || token < 0 || token >= m->v->n) return GRAMMAR_NO;
    machine_begin(m);
    for (size_t i = 0; i < m->v->n_ends; i++)
        if (m->v->end_id[i] == token && m->state[s].can_end) return GRAMMAR_ENDED;
    for (int32_t i = 0; i < m->g->n_markers; i++) {
        int32_t to = m->marker_id[i] == token ? machine_next(m, s, m->g->class_of[SYMBOL_MARKER + i]) : GRAMMAR_NO;
        if (to >= 0 || m->starved) return give(m, to);
    }
    return m->v->length[token] ? grammar_take_bytes(m, s, tok_bytes(m->v->tok, token)) : GRAMMAR_NO;
}

bool grammar_can_end(const grammar_machine *m, grammar_state s) { return s >= 0 && m->state[s].can_end; }

int32_t machine_only(grammar_machine *m, int32_t s, int32_t *to)
{
    const grammar *g    = m->g;
    int32_t        only = -1;
    for (int32_t k = 0; k < g->n_classes; k++) {
        int32_t x = machine_next(m, s, k);
        if (x < 0) continue;
        int32_t end = k + 1 < g->n_classes ? g->symbol_of[k + 1] : SYMBOL_MARKER + g->n_markers;
        if (only >= 0) grammar_drop(m, *to);
        if (only >= 0 || end > g->symbol_of[k] + 1) return -1;
        only = g->symbol_of[k];
        machine_hold(m, *to = x);
    }
    return only;
}
