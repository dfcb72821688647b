#include "kv/prefix.h"

#include "base/mem.h"
#include "kv/inside.h"

#include <assert.h>
#include <string.h>

struct kv_node {
    kv_node *parent;              /* in the list of unused nodes: the next one */
    kv_node *child, *prev, *next; /* first child; previous and next sibling */
    int32_t  in_bucket;           /* next node of the hash bucket, or NO_NODE */
    int32_t  end;                 /* length of the text up to its end; 0: the node is unused */
    uint64_t salt;
    int32_t  tokens[KV_PAGE];
    uint32_t marks; /* a bit for each marked class (kv_prefix_keep) */
    struct {
        int32_t  page;       /* or NO_PAGE */
        int32_t  prev, next; /* neighbours in the idle list of the class */
        uint64_t stamp;      /* when it became idle; 0: it is not idle */
    } of[KV_MAX_CLASSES];
};

typedef struct {
    int32_t first, last; /* node indices; first: idle longest */
} idle_list;

struct kv_prefix {
    kv_pool        *p;
    int             anchor;
    kv_node        *nodes;
    int32_t         max_nodes, n_ever; /* nodes from n_ever on were never used */
    kv_node        *unused;
    int32_t        *buckets;
    uint32_t        bucket_mask;
    idle_list       idle[2][KV_MAX_CLASSES]; /* [marked] */
    uint64_t        now;
    kv_prefix_stats stats;
};

static int32_t  index_of(const kv_prefix *t, const kv_node *n) { return (int32_t)(n - t->nodes); }
static uint32_t bit_of(int cls) { return (uint32_t)1 << cls; }

/* --- idle pages ---------------------------------------------------------------------------------*/
/* Returns whether the marks include the class. Classes without a window are marked with the anchor: a text is there
 * up to some length or not at all. */
static bool in_marks(const kv_prefix *t, uint32_t marks, int cls)
{
    const page_class *c = &t->p->cls[cls];
    return marks & bit_of(c->window > 0 || c->is_state ? cls : t->anchor);
}
static bool is_marked(const kv_prefix *t, const kv_node *n, int cls) { return in_marks(t, n->marks, cls); }

static void link_idle(kv_prefix *t, kv_node *n, int cls)
{
    idle_list *l                                                        = &t->idle[is_marked(t, n, cls)][cls];
    int32_t    at                                                       = index_of(t, n);
    n->of[cls].prev                                                     = l->last;
    n->of[cls].next                                                     = NO_NODE;
    n->of[cls].stamp                                                    = ++t->now;
    *(l->last == NO_NODE ? &l->first : &t->nodes[l->last].of[cls].next) = at;
    l->last                                                             = at;
}

static void unlink_idle(kv_prefix *t, kv_node *n, int cls)
{
    idle_list *l    = &t->idle[is_marked(t, n, cls)][cls];
    int32_t    prev = n->of[cls].prev, next = n->of[cls].next;
    assert(n->of[cls].stamp); /* (6) */
    *(prev == NO_NODE ? &l->first : &t->nodes[prev].of[cls].next) = next;
    *(next == NO_NODE ? &l->last : &t->nodes[next].of[cls].prev)  = prev;
    n->of[cls].stamp                                              = 0;
}

static void on_idle(void *ctx, int32_t node, int cls) { link_idle(ctx, &((kv_prefix *)ctx)->nodes[node], cls); }
static void on_busy(void *ctx, int32_t node, int cls) { unlink_idle(ctx, &((kv_prefix *)ctx)->nodes[node], cls); }
static void on_moved(void *ctx, int32_t node, int cls, int32_t id)
{
    ((kv_prefix *)ctx)->nodes[node].of[cls].page = id;
}

/* --- nodes --------------------------------------------------------------------------------------*/
static uint64_t hash_mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

static int32_t *bucket_of(const kv_prefix *t, uint64_t salt, const kv_node *parent, const int32_t *tokens)
{
    uint64_t h = hash_mix(hash_mix(0, salt), parent ? (uint64_t)index_of(t, parent) + 1 : 0);
    for (int i = 0; i < KV_PAGE; i++) h = hash_mix(h, (uint32_t)tokens[i]);
    return &t->buckets[(uint32_t)h & t->bucket_mask];
}

static kv_node *find_child(const kv_prefix *t, uint64_t salt, const kv_node *parent, const int32_t *tokens)
{
    for (int32_t i = *bucket_of(t, salt, parent, tokens); i != NO_NODE; i = t->nodes[i].in_bucket) {
        kv_node *n = &t->nodes[i];
        if (n->parent == parent && n->salt == salt && !memcmp(n->tokens, tokens, sizeof n->tokens)) return n;
    }
    return NULL;
}

static kv_node *unused_node(kv_prefix *t)
{
    kv_node *n = t->unused;
    if (n)
        t->unused = n->parent;
    else
        n = &t->nodes[t->n_ever++];
    assert(t->n_ever <= t->max_nodes); /* (5) one for each page that the anchor class can have */
    return n;
}

static kv_node *new_node(kv_prefix *t, uint64_t salt, kv_node *parent, const int32_t *tokens)
{
    kv_node *n      = unused_node(t);
    int32_t *bucket = bucket_of(t, salt, parent, tokens);
    *n = (kv_node){.parent = parent, .salt = salt, .end = (parent ? parent->end : 0) + KV_PAGE, .in_bucket = *bucket};
    memcpy(n->tokens, tokens, sizeof n->tokens);
    for (int i = 0; i < KV_MAX_CLASSES; i++) n->of[i].page = NO_PAGE;
    *bucket = index_of(t, n);
    if (parent) {
        n->next = parent->child;
        if (n->next) n->next->prev = n;
        parent->child = n;
    }
    t->stats.nodes++;
    return n;
}

static void add_page(kv_prefix *t, kv_node *n, int cls, int32_t id)
{
    page_info *x = kv_page_info(t->p, &t->p->cls[cls], id);
    assert(x->refs > 0 && x->node == NO_NODE); /* (5) */
    x->node         = index_of(t, n);
    n->of[cls].page = id;
    t->stats.pages++;
    t->stats.bytes += t->p->cls[cls].page_bytes;
}

static void remove_page(kv_prefix *t, kv_node *n, int cls)
{
    if (n->of[cls].page == NO_PAGE) return;
    if (n->of[cls].stamp) unlink_idle(t, n, cls);
    kv_page_uncache(t->p, cls, n->of[cls].page);
    n->of[cls].page = NO_PAGE;
    t->stats.pages--;
    t->stats.bytes -= t->p->cls[cls].page_bytes;
}

static void free_node(kv_prefix *t, kv_node *n)
{
    int32_t *at = bucket_of(t, n->salt, n->parent, n->tokens);
    assert(!n->child);
    for (int i = 0; i < KV_MAX_CLASSES; i++) remove_page(t, n, i);
    while (*at != index_of(t, n)) at = &t->nodes[*at].in_bucket;
    *at = n->in_bucket;
    if (n->next) n->next->prev = n->prev;
    if (n->prev)
        n->prev->next = n->next;
    else if (n->parent)
        n->parent->child = n->next;
    n->end    = 0;
    n->parent = t->unused;
    t->unused = n;
    t->stats.nodes--;
}

/* Frees the node and all nodes below it. */
static void remove_from(kv_prefix *t, kv_node *n)
{
    for (kv_node *m = n, *up;; m = up) {
        while (m->child) m = m->child;
        up = m->parent;
        free_node(t, m);
        if (m == n) return;
    }
}

static void on_remove(void *ctx, int32_t node, int cls)
{
    kv_prefix *t = ctx;
    if (cls == t->anchor)
        remove_from(t, &t->nodes[node]);
    else
        remove_page(t, &t->nodes[node], cls);
}

static void on_drop_class(void *ctx, int cls)
{
    kv_prefix *t = ctx;
    for (int32_t i = 0; i < t->n_ever; i++)
        if (t->nodes[i].end) remove_page(t, &t->nodes[i], cls);
}

/* --- eviction -----------------------------------------------------------------------------------*/
/* Returns the class of the page that has been idle longest, or NO_CLASS. */
static int oldest_class(const kv_prefix *t, const idle_list *lists)
{
    int      best  = NO_CLASS;
    uint64_t stamp = UINT64_MAX;
    for (int i = 0; i < KV_MAX_CLASSES; i++) {
        if (lists[i].first == NO_NODE || t->nodes[lists[i].first].of[i].stamp >= stamp) continue;
        best  = i;
        stamp = t->nodes[lists[i].first].of[i].stamp;
    }
    return best;
}

static bool on_evict(void *ctx)
{
    kv_prefix *t = ctx;
    for (int marked = 0; marked < 2; marked++) {
        int cls = oldest_class(t, t->idle[marked]);
        if (cls == NO_CLASS) continue;
        int32_t node = t->idle[marked][cls].first;
        size_t  had  = t->stats.pages;
        on_remove(t, node, cls);
        t->stats.evicted += (int64_t)(had - t->stats.pages);
        return true;
    }
    return false;
}

void kv_prefix_forget(kv_prefix *t)
{
    int64_t evicted = t->stats.evicted;
    while (on_evict(t)) {}
    t->stats.evicted = evicted;
}

/* Marks the node: in classes with a window only if a row at n_pos sees its page, in state classes only if it ends at
 * n_pos. Idle pages move to the list of marked pages; the anchor page goes in front of that of its parent, which is
 * marked next. */
static void mark_node(kv_prefix *t, kv_node *n, int32_t n_pos)
{
    uint32_t marks = n->marks, moved = 0;
    for (int i = 0; i < t->p->group[0].n_classes; i++)
        if (n->end / KV_PAGE > first_seen_page(&t->p->cls[i], n_pos)) marks |= bit_of(i);
    for (int i = 0; i < t->p->group[0].n_states && n->end == n_pos; i++) marks |= bit_of(state_class(t->p, i));
    for (int i = 0; i < KV_MAX_CLASSES; i++)
        if (n->of[i].stamp && (i == t->anchor || in_marks(t, marks, i) != is_marked(t, n, i))) {
            unlink_idle(t, n, i);
            moved |= bit_of(i);
        }
    n->marks = marks;
    for (int i = 0; i < KV_MAX_CLASSES; i++)
        if (moved & bit_of(i)) link_idle(t, n, i);
}

/* Returns whether this node and its ancestors already have the marks that a mark at n_pos sets, and none is idle. */
static bool all_marked(const kv_prefix *t, const kv_node *n, int32_t n_pos)
{
    if (!(n->marks & bit_of(t->anchor)) || n->of[t->anchor].stamp) return false;
    for (int i = 0; i < t->p->group[0].n_classes; i++)
        if (t->p->cls[i].window > 0 && n->end / KV_PAGE > first_seen_page(&t->p->cls[i], n_pos)) return false;
    return t->p->group[0].n_states == 0 || n->end != n_pos;
}

void kv_prefix_keep(kv_prefix *t, kv_node *n)
{
    int32_t n_pos = n ? n->end : 0;
    for (; n && !all_marked(t, n, n_pos); n = n->parent) mark_node(t, n, n_pos);
}

/* --- hits ---------------------------------------------------------------------------------------*/
/* Counts of a walk down the tree. */
typedef struct {
    int32_t run[KV_MAX_CLASSES];  /* pages up to the current node without a gap */
    int32_t head[KV_MAX_CLASSES]; /* pages from the root without a gap */
} reach;

static bool has_page(const kv_node *n, int32_t k, int cls, const page_source *more)
{
    return (n && n->of[cls].page != NO_PAGE) || (more && more->has(more->ctx, k, cls));
}

/* Adds page k of the text, whose node is n; NULL: the tree does not have it. */
static void reach_add(reach *r, const kv_node *n, int32_t k, const page_source *more)
{
    for (int i = 0; i < KV_MAX_CLASSES; i++) {
        bool there = has_page(n, k, i, more);
        r->run[i]  = there ? r->run[i] + 1 : 0;
        r->head[i] += there && r->head[i] == k;
    }
}

/* Returns whether the last node has all pages of the target that a row at n_pos sees. */
static bool has_pages(const kv_prefix *t, const reach *r, int32_t n_pos)
{
    for (int i = 0; i < t->p->group[0].n_classes; i++)
        if (r->run[i] < n_pos / KV_PAGE - first_seen_page(&t->p->cls[i], n_pos)) return false;
    return true;
}

/* Returns whether the last node has a state of each class. A state is valid at its own length only. */
static bool has_states(const kv_prefix *t, const reach *r)
{
    for (int i = 0; i < t->p->group[0].n_states; i++)
        if (!r->run[state_class(t->p, i)]) return false;
    return true;
}

static bool has_wishes(const reach *r, int32_t n_pos, const kv_wish *w, int n_wishes)
{
    int32_t n_pages = n_pos / KV_PAGE;
    for (int i = 0; i < n_wishes; i++) {
        int32_t head = w[i].head_pages < n_pages ? w[i].head_pages : n_pages;
        if (r->head[w[i].cls] < head) return false;
        if (r->run[w[i].cls] < n_pages - w[i].first(w[i].ctx, n_pos) / KV_PAGE) return false;
    }
    return true;
}

typedef struct {
    bool               pages_only; /* states are not needed */
    const kv_wish     *wish;
    int                n_wishes;
    const page_source *more; /* pages that count as present; NULL: none */
} hit_needs;

/* Returns the length of the longest prefix that a hit may end with. Sets *at to its last node, NULL if the tree does
 * not have that. */
static int32_t longest_hit(const kv_prefix *t, uint64_t salt, const int32_t *text, int32_t n, hit_needs needs,
                           kv_node **at)
{
    kv_node *node = NULL;
    reach    r    = {0};
    int32_t  best = 0;
    *at           = NULL;
    for (int32_t pos = 0, end; (end = pos + KV_PAGE) < n; pos = end) {
        node = pos == 0 || node ? find_child(t, salt, node, text + pos) : NULL;
        if (!has_page(node, pos / KV_PAGE, t->anchor, needs.more)) break;
        reach_add(&r, node, pos / KV_PAGE, needs.more);
        if (has_pages(t, &r, end) && (needs.pages_only || has_states(t, &r)) &&
            has_wishes(&r, end, needs.wish, needs.n_wishes)) {
            best = end;
            *at  = node;
        }
    }
    return best;
}

int32_t kv_prefix_reach(const kv_prefix *t, uint64_t salt, const int32_t *text, int32_t n, const kv_wish *w,
                        int n_wishes)
{
    kv_node *at;
    return longest_hit(t, salt, text, n, (hit_needs){.wish = w, .n_wishes = n_wishes}, &at);
}

int32_t kv_prefix_reach_pages(const kv_prefix *t, uint64_t salt, const int32_t *text, int32_t n)
{
    kv_node *at;
    return longest_hit(t, salt, text, n, (hit_needs){.pages_only = true}, &at);
}

int32_t kv_prefix_reach_with(const kv_prefix *t, const kv_wanted *w, const page_source *more)
{
    kv_node *at;
    return longest_hit(t, w->salt, w->text, w->n, (hit_needs){false, w->wish, w->n_wishes, more}, &at);
}

int32_t kv_prefix_find(kv_prefix *t, uint64_t salt, const int32_t *text, int32_t n, const kv_wish *w, int n_wishes,
                       kv_node **at)
{
    longest_hit(t, salt, text, n, (hit_needs){.wish = w, .n_wishes = n_wishes}, at);
    if (!*at) {
        t->stats.misses++;
        return 0;
    }
    t->stats.hits++;
    t->stats.hit_tokens += (*at)->end;
    return (*at)->end;
}

static void share_page(kv_prefix *t, const kv_node *n, int cls, kv_seq *s, int32_t k)
{
    assert(n->of[cls].page != NO_PAGE);
    kv_page_ref(t->p, cls, n->of[cls].page);
    kv_seq_set_page(s, cls, k, n->of[cls].page);
}

void kv_prefix_take(kv_prefix *t, kv_node *at, kv_seq *s)
{
    assert(s->live && s->group == 0 && s->n_pages == 0);
    if (!at) return;
    s->n_slots = at->end;
    s->n_pages = at->end / KV_PAGE;
    for (int i = 0; i < t->p->group[0].n_classes; i++) {
        s->of[i].first = first_seen_page(&t->p->cls[i], at->end);
        for (const kv_node *n = at; n && n->end / KV_PAGE > s->of[i].first; n = n->parent)
            share_page(t, n, i, s, n->end / KV_PAGE - 1);
    }
}

void kv_prefix_take_class(kv_prefix *t, kv_node *at, kv_seq *s, int head_pages, int32_t from)
{
    int32_t skip = from / KV_PAGE - head_pages;
    assert(s->live && s->group != 0 && s->n_pages == 0 && from % KV_PAGE == 0 && skip >= 0);
    if (!at) return;
    assert(from <= at->end);
    s->n_pages = at->end / KV_PAGE - skip;
    s->n_slots = s->n_pages * KV_PAGE;
    for (const kv_node *n = at; n; n = n->parent) {
        int32_t k = n->end / KV_PAGE - 1;
        if (k >= from / KV_PAGE) share_page(t, n, s->group, s, k - skip);
        if (k < head_pages) share_page(t, n, s->group, s, k);
    }
}

/* --- adding -------------------------------------------------------------------------------*/
static void put_page(kv_prefix *t, kv_node *n, int cls, kv_seq *s, int k)
{
    int32_t own = table_row(&t->p->cls[cls], s->lane)[k], known = n->of[cls].page;
    if (own == NO_PAGE || own == known) return;
    if (known == NO_PAGE) {
        add_page(t, n, cls, own);
        return;
    }
    kv_page_ref(t->p, cls, known);
    kv_seq_set_page(s, cls, k, known);
    kv_page_unref(t->p, cls, own);
}

/* --- states -------------------------------------------------------------------------------------*/
/* Copies the node's state into a new live state. The node's page is referenced while room is made, so that it is not
 * evicted. */
static bool take_state(kv_prefix *t, const kv_node *at, int cls, kv_seq *s)
{
    kv_pool *p = t->p;
    kv_page_ref(p, cls, at->of[cls].page);
    int32_t id = kv_page_take(p, cls); /* may move the node's page */
    if (id != NO_PAGE) {
        kv_seq_set_page(s, cls, LIVE_STATE, id);
        kv_page_copy(p, cls, id, at->of[cls].page);
    }
    kv_page_unref(p, cls, at->of[cls].page);
    return id != NO_PAGE;
}

bool kv_prefix_take_states(kv_prefix *t, const kv_node *at, kv_seq *s)
{
    for (int i = 0; i < t->p->group[0].n_states; i++)
        if (!take_state(t, at, state_class(t->p, i), s)) return false;
    return true;
}

void kv_prefix_put_states(kv_prefix *t, kv_node *n, kv_seq *s)
{
    for (int i = 0; i < t->p->group[0].n_states; i++) {
        put_page(t, n, state_class(t->p, i), s, SAVED_STATE);
        kv_seq_release(s, state_class(t->p, i), SAVED_STATE);
    }
}

kv_node *kv_prefix_put(kv_prefix *t, uint64_t salt, kv_node *at, const int32_t *tokens, kv_seq *s, int page_index)
{
    const seq_group *g = &t->p->group[s->group];
    kv_node         *n = find_child(t, salt, at, tokens);
    assert(s->live && page_index >= 0 && (page_index + 1) * KV_PAGE <= s->n_slots);
    if (!n && s->group != 0) return NULL;
    if (!n) n = new_node(t, salt, at, tokens);
    for (int i = g->first_class; i < g->first_class + g->n_classes; i++) put_page(t, n, i, s, page_index);
    assert(n->of[t->anchor].page != NO_PAGE); /* (5) */
    return n;
}

kv_node *kv_prefix_next(const kv_prefix *t, uint64_t salt, const kv_node *at, const int32_t *tokens)
{
    return find_child(t, salt, at, tokens);
}

kv_node *kv_prefix_add(kv_prefix *t, uint64_t salt, kv_node *at, const int32_t *tokens, int cls, int32_t id)
{
    kv_node *n = find_child(t, salt, at, tokens);
    assert(n || cls == t->anchor); /* (5) */
    if (!n) n = new_node(t, salt, at, tokens);
    add_page(t, n, cls, id);
    return n;
}

int             kv_prefix_anchor(const kv_prefix *t) { return t->anchor; }
kv_pool        *kv_prefix_pool(const kv_prefix *t) { return t->p; }
int32_t         kv_node_page(const kv_node *n, int cls) { return n->of[cls].page; }
bool            kv_node_has(const kv_node *n, int cls) { return n->of[cls].page != NO_PAGE; }
kv_node        *kv_node_parent(kv_node *n) { return n->parent; }
int32_t         kv_node_end(const kv_node *n) { return n->end; }
kv_prefix_stats kv_prefix_get_stats(const kv_prefix *t) { return t->stats; }

/* --- the invariants -----------------------------------------------------------------------------*/
static void check_node(const kv_prefix *t, const kv_node *n, size_t *n_pages)
{
    const kv_node *up = n->parent;
    assert(n->of[t->anchor].page != NO_PAGE && find_child(t, n->salt, up, n->tokens) == n); /* (5) */
    assert(n->end == (up ? up->end : 0) + KV_PAGE && (!up || up->salt == n->salt));         /* (5) */
    assert(!up || (n->prev ? n->prev->next == n : up->child == n));                         /* (5) */
    assert(!up || !(n->marks & bit_of(t->anchor)) || up->marks & bit_of(t->anchor));        /* (6) */
    for (int i = 0; i < KV_MAX_CLASSES; i++) {
        if (n->of[i].page == NO_PAGE) {
            assert(!n->of[i].stamp); /* (6) */
            continue;
        }
        const page_info *x = kv_page_info(t->p, &t->p->cls[i], n->of[i].page);
        assert(t->p->slabs[kv_page_slab(t->p, n->of[i].page)].cls == i && x->node == index_of(t, n)); /* (5) */
        assert((x->refs == 0) == (n->of[i].stamp > 0));                                               /* (6) */
        ++*n_pages;
    }
}

static size_t check_idle(const kv_prefix *t, const idle_list *l, int cls, int marked)
{
    size_t   n     = 0;
    uint64_t stamp = 0;
    int32_t  prev  = NO_NODE;
    for (int32_t i = l->first; i != NO_NODE; prev = i, i = t->nodes[i].of[cls].next) {
        const kv_node *x = &t->nodes[i];
        assert(x->end && x->of[cls].prev == prev && is_marked(t, x, cls) == marked); /* (6) */
        assert(x->of[cls].stamp > stamp);                                            /* (6) */
        stamp = x->of[cls].stamp;
        n++;
    }
    assert(l->last == prev); /* (6) */
    return n;
}

static void on_check(const void *ctx)
{
    const kv_prefix *t       = ctx;
    size_t           n_nodes = 0, n_pages = 0, n_named = 0, n_idle = 0, idle = 0;
    for (int32_t i = 0; i < t->n_ever; i++) {
        const kv_node *n = &t->nodes[i];
        if (!n->end) continue;
        n_nodes++;
        check_node(t, n, &n_pages);
        for (int k = 0; k < KV_MAX_CLASSES; k++) idle += n->of[k].stamp > 0;
    }
    for (size_t i = 0; i < (size_t)t->p->n_slabs * (size_t)t->p->max_per_slab; i++)
        n_named += t->p->pages[i].node != NO_NODE;
    for (int marked = 0; marked < 2; marked++)
        for (int i = 0; i < KV_MAX_CLASSES; i++) n_idle += check_idle(t, &t->idle[marked][i], i, marked);
    assert(n_nodes == t->stats.nodes && n_pages == t->stats.pages && n_pages == n_named &&
           n_idle == idle); /* (5) (6) */
}

/* --- creation ---------------------------------------------------------------------------------------*/
static bool init_nodes(kv_prefix *t, err *e)
{
    size_t n = (size_t)t->p->n_slabs * (size_t)t->p->cls[t->anchor].per_slab, n_buckets = 16;
    if (n > INT32_MAX / 4) return err_set(e, ERR_LIMIT, "a cache of %zu pages is too large for a prefix index", n);
    while (n_buckets < 2 * n) n_buckets *= 2;
    t->max_nodes   = (int32_t)n;
    t->bucket_mask = (uint32_t)(n_buckets - 1);
    t->nodes       = mem_try_n(n, sizeof *t->nodes);
    t->buckets     = mem_try_n(n_buckets, sizeof *t->buckets);
    if (!t->nodes || !t->buckets) return err_set(e, ERR_LIMIT, "no memory for a prefix index of %zu pages", n);
    for (size_t i = 0; i < n_buckets; i++) t->buckets[i] = NO_NODE;
    return true;
}

bool kv_prefix_new(kv_prefix **out, kv_pool *p, err *e)
{
    kv_prefix *t = xnew(kv_prefix);
    *out         = NULL;
    t->p         = p;
    while (p->cls[t->anchor].window > 0) t->anchor++;
    for (int i = 0; i < KV_MAX_CLASSES; i++) t->idle[0][i] = t->idle[1][i] = (idle_list){NO_NODE, NO_NODE};
    if (!init_nodes(t, e)) {
        kv_prefix_free(t);
        return false;
    }
    p->cache = (cache_hooks){t, on_idle, on_busy, on_remove, on_moved, on_evict, on_drop_class, on_check};
    *out     = t;
    return true;
}

void kv_prefix_free(kv_prefix *t)
{
    if (!t) return;
    for (int i = 0; i < KV_MAX_CLASSES; i++) on_drop_class(t, i);
    t->p->cache = (cache_hooks){0};
    mem_free(t->nodes);
    mem_free(t->buckets);
    mem_free(t);
}
