#include "kv/image.h"

#include "base/mem.h"
#include "base/num.h"
#include "kv/inside.h"

#include <assert.h>
#include <string.h>

/* Returns whether the class exists and has pages of positions, in group 0 or added. */
static bool has_positions(const kv_pool *p, int cls) { return p->cls[cls].group != NO_CLASS && !p->cls[cls].is_state; }
static bool is_added(const kv_pool *p, int cls) { return has_positions(p, cls) && p->cls[cls].group != 0; }

/* --- export -------------------------------------------------------------------------------------*/
struct kv_export {
    pack     image;
    kv_range range; /* text: owned */
    int      section;
    int32_t  next; /* the next page of the section */
};

/* Returns the node of the page before page `end`; NULL when the tree does not have all pages before it. */
static kv_node *node_before(const kv_prefix *t, const kv_range *r, int32_t end)
{
    kv_node *n = NULL;
    for (int32_t k = 0; k < end; k++)
        if (!(n = kv_prefix_next(t, r->salt, n, r->text + (size_t)k * KV_PAGE))) return NULL;
    return n;
}

static bool add_section(pack *p, uint32_t kind, int id, int32_t first, int32_t n, size_t bytes, err *e)
{
    pack_section *s = pack_add(p, kind, (uint32_t)id, bytes);
    if (!s) return err_set(e, ERR_UNAVAILABLE, "no memory for %zu bytes of K/V", bytes);
    s->first = first;
    s->n     = n;
    return true;
}

static bool lost(err *e) { return err_set(e, ERR_NOT_FOUND, "the pages are not in the prefix cache any more"); }

/* Adds a section for each run of pages that the tree has in [first, end) of the class. `at` is the node of the last
 * page. */
static bool plan_class(kv_export *x, const kv_prefix *t, int cls, int32_t first, kv_node *at, err *e)
{
    const page_class *c = &kv_prefix_pool(t)->cls[cls];
    for (int32_t k = x->range.to / KV_PAGE, end = k; k >= first; k--) {
        bool there = k > first && kv_node_page(at, cls) != NO_PAGE;
        if (!there && c->group == 0 && k > first) return lost(e);
        if (!there && end > k &&
            !add_section(&x->image, IMAGE_PAGES, cls, k, end - k, (size_t)(end - k) * c->page_bytes, e))
            return false;
        if (!there) end = k - 1;
        if (k > first) at = kv_node_parent(at);
    }
    return true;
}

/* Adds the sections of all classes, without their bytes. */
static bool plan_sections(kv_export *x, const kv_prefix *t, const kv_image_key *key, err *e)
{
    const kv_pool *p    = kv_prefix_pool(t);
    int32_t        from = x->range.from / KV_PAGE, to = x->range.to / KV_PAGE;
    kv_node       *at = node_before(t, &x->range, to);
    if (!at) return lost(e);
    for (int i = 0; i < KV_MAX_CLASSES; i++) {
        if (!has_positions(p, i) || (is_added(p, i) && hash128_is_zero(key->added[i]))) continue;
        int32_t first = max_int(from, first_seen_page(&p->cls[i], x->range.to)), before = x->image.n;
        if (!plan_class(x, t, i, first, at, e)) return false;
        for (int k = before; is_added(p, i) && k < x->image.n; k++) x->image.section[k].tag = key->added[i];
    }
    for (int i = 0; i < p->group[0].n_states; i++) {
        if (!kv_node_has(at, state_class(p, i))) return lost(e);
        if (!add_section(&x->image, IMAGE_STATE, i, to, 1, p->cls[state_class(p, i)].page_bytes, e)) return false;
    }
    return true;
}

bool kv_export_begin(kv_export **out, kv_prefix *t, const kv_image_key *k, const kv_range *r, err *e)
{
    size_t     bytes = (size_t)r->to * sizeof *r->text;
    kv_export *x     = xnew(kv_export);
    assert(r->from >= 0 && r->from < r->to && r->from % KV_PAGE == 0 && r->to % KV_PAGE == 0);
    *out                 = NULL;
    x->range             = *r;
    x->image.fingerprint = k->target;
    bool ok              = add_section(&x->image, IMAGE_TOKENS, 0, 0, r->to, bytes, e);
    if (ok) {
        x->range.text = memcpy(x->image.section[0].data, r->text, bytes);
        x->section    = 1;
        ok            = plan_sections(x, t, k, e);
    }
    if (ok)
        *out = x;
    else
        kv_export_free(x);
    return ok;
}

void kv_export_free(kv_export *x)
{
    if (!x) return;
    pack_deinit(&x->image);
    mem_free(x);
}

pack *kv_export_pack(kv_export *x) { return &x->image; }

static int section_class(const kv_pool *p, const pack_section *s)
{
    return s->kind == IMAGE_STATE ? state_class(p, (int)s->id) : (int)s->id;
}

/* Returns whether the section's class is still the one for which its memory was allocated: when a drafter leaves,
 * another one can get the number of its class, with pages of another size. */
static bool is_same_class(const kv_pool *p, const kv_image_key *k, const pack_section *s, int cls)
{
    if (!hash128_is_zero(s->tag) && !hash128_equal(s->tag, k->added[cls])) return false;
    return p->cls[cls].group != NO_CLASS && s->bytes == (uint64_t)s->n * p->cls[cls].page_bytes;
}

/* Enqueues the copy of pages of one section to the host, from its last page on. Returns false when the tree lacks one
 * of them, or has pages of another class in their place. */
static bool copy_section(kv_export *x, const kv_prefix *t, const kv_image_key *k, size_t *left)
{
    const kv_pool      *p     = kv_prefix_pool(t);
    const pack_section *s     = &x->image.section[x->section];
    const int           cls   = section_class(p, s);
    const size_t        bytes = p->cls[cls].page_bytes;
    const int32_t end = s->kind == IMAGE_STATE ? s->first : s->first + s->n - x->next; /* pages before it are missing */
    kv_node      *at  = node_before(t, &x->range, end);
    if (!is_same_class(p, k, s, cls)) return false;
    for (; x->next<s->n && * left> 0; x->next++, at = kv_node_parent(at)) {
        if (!at || !kv_node_has(at, cls)) return false;
        p->o->download(p->q, (char *)s->data + (size_t)(s->n - 1 - x->next) * bytes,
                       dev_at(p->memory, (size_t)kv_node_page(at, cls) * KV_UNIT), bytes);
        *left -= *left < bytes ? *left : bytes;
    }
    return true;
}

bool kv_export_more(kv_export *x, kv_prefix *t, const kv_image_key *k, size_t max_bytes, bool *done, err *e)
{
    const kv_pool *p  = kv_prefix_pool(t);
    bool           ok = true;
    for (size_t left = max_bytes > 0 ? max_bytes : 1; ok && left > 0 && x->section < x->image.n;) {
        ok = copy_section(x, t, k, &left);
        if (x->next < x->image.section[x->section].n) continue;
        x->section++;
        x->next = 0;
    }
    p->o->sync(p->q); /* the downloads end before their memory may be freed */
    *done = ok && x->section == x->image.n;
    return ok ? p->o->check(p->q, e) : lost(e);
}

/* --- images -------------------------------------------------------------------------------------*/
kv_image_filter *kv_image_filter_new(const kv_prefix *t, const kv_image_key *k, const int32_t *text, int32_t n)
{
    kv_image_filter *x = xalloc(sizeof *x + (size_t)n * sizeof *text);
    x->key             = *k;
    x->n               = n;
    memcpy(x->text, text, (size_t)n * sizeof *text);
    for (int i = 0; i < KV_MAX_CLASSES; i++) x->window[i] = kv_prefix_pool(t)->cls[i].window;
    return x;
}

bool kv_image_wants(const void *ctx, const pack_section *s, int32_t end)
{
    const kv_image_filter *x = ctx;
    if (s->kind == IMAGE_TOKENS) return true;
    if (s->kind == IMAGE_STATE) return s->first == end;
    if (s->kind != IMAGE_PAGES || s->id >= KV_MAX_CLASSES) return false;
    if (!hash128_is_zero(s->tag)) return hash128_equal(s->tag, x->key.added[s->id]);
    page_class c = {.window = x->window[s->id]};
    return (int64_t)s->first + s->n > first_seen_page(&c, end * KV_PAGE);
}

static bool is_of_model(const kv_image_key *k, const pack *p, err *e)
{
    return hash128_equal(p->fingerprint, k->target) ||
           err_set(e, ERR_FORMAT, "it was made with another model, other K/V types or another build of this program");
}

bool kv_image_fits(const void *ctx, const pack *p, int32_t to, err *e)
{
    const kv_image_filter *x = ctx;
    const pack_section    *s = pack_find(p, IMAGE_TOKENS, 0);
    if (!is_of_model(&x->key, p, e)) return false;
    bool same = s && s->data && s->n == (int64_t)to * KV_PAGE && s->n <= x->n &&
                s->bytes == (uint64_t)s->n * sizeof *x->text && !memcmp(s->data, x->text, s->bytes);
    return same || err_set(e, ERR_FORMAT, "it holds another text");
}

hash128 kv_image_added(const kv_prefix *t, const kv_image_key *k, const kv_range *r)
{
    const kv_node *at = node_before(t, r, r->to / KV_PAGE);
    hash128        h  = {0};
    for (int i = 0; at && i < KV_MAX_CLASSES; i++)
        if (!hash128_is_zero(k->added[i]) && kv_node_has(at, i)) h = hash128_join(h, &k->added[i], sizeof k->added[i]);
    return h;
}

static bool bad_section(int i, err *e) { return err_set(e, ERR_FORMAT, "section %d does not fit this model", i); }

static bool check_section(const kv_pool *p, const kv_image_key *k, const pack_section *s, int32_t to, int i, err *e)
{
    if (s->kind == IMAGE_TOKENS || s->kind > IMAGE_LAST_KIND) return true;
    bool state = s->kind == IMAGE_STATE;
    if ((!state && s->kind != IMAGE_PAGES) || s->id >= KV_MAX_CLASSES) return bad_section(i, e);
    if (state && (s->id >= (uint32_t)p->group[0].n_states || s->first != to / KV_PAGE || s->n != 1))
        return bad_section(i, e);
    if (!state && (s->first < 0 || s->n < 0 || s->first > to / KV_PAGE - s->n)) return bad_section(i, e);
    int cls = section_class(p, s);
    if (!state && !hash128_is_zero(s->tag) && (!is_added(p, cls) || !hash128_equal(s->tag, k->added[cls]))) return true;
    if (!state && !has_positions(p, cls)) return bad_section(i, e);
    return s->bytes == (uint64_t)s->n * p->cls[cls].page_bytes || bad_section(i, e);
}

bool kv_image_check(const kv_prefix *t, const kv_image_key *k, const pack *p, err *e)
{
    const pack_section *s = pack_find(p, IMAGE_TOKENS, 0);
    if (!is_of_model(k, p, e)) return false;
    if (!s || s->n < 0 || s->n % KV_PAGE || s->bytes != (uint64_t)s->n * sizeof(int32_t))
        return err_set(e, ERR_FORMAT, "it has no tokens");
    for (int i = 0; i < p->n; i++)
        if (!check_section(kv_prefix_pool(t), k, &p->section[i], s->n, i, e)) return false;
    return true;
}

/* --- import -------------------------------------------------------------------------------------*/
typedef struct {
    const kv_pool      *p;
    const kv_image_key *key;
    const kv_wanted    *w;
    const pack *const  *image;
    int                 n_images;
    int32_t            *same; /* [n_images]: number of pages whose tokens equal those of the text */
    size_t              left; /* bytes that may still be copied */
} source;

/* Returns whether the section has page k of the class: bytes that this pool can use. */
static bool section_has(const source *x, const pack_section *s, int32_t k, int cls)
{
    if (!s->data) return false;
    if (x->p->cls[cls].is_state)
        return s->kind == IMAGE_STATE && state_class(x->p, (int)s->id) == cls && s->first == k + 1;
    if (s->kind != IMAGE_PAGES || (int)s->id != cls || k < s->first || k >= s->first + s->n) return false;
    return is_added(x->p, cls) ? hash128_equal(s->tag, x->key->added[cls]) && !hash128_is_zero(s->tag)
                               : hash128_is_zero(s->tag);
}

/* Returns the bytes of page k of the class, or of the state at its end; NULL: no image has them. */
static const void *image_page(const source *x, int32_t k, int cls)
{
    if (x->p->cls[cls].group == NO_CLASS) return NULL;
    for (int i = 0; i < x->n_images; i++) {
        const pack *p = x->image[i];
        for (int j = 0; k < x->same[i] && j < p->n; j++)
            if (section_has(x, &p->section[j], k, cls))
                return (const char *)p->section[j].data +
                       (x->p->cls[cls].is_state ? 0 : (size_t)(k - p->section[j].first) * x->p->cls[cls].page_bytes);
    }
    return NULL;
}

static bool source_has(const void *ctx, int32_t k, int cls) { return image_page(ctx, k, cls) != NULL; }

static int32_t same_pages(const pack *p, const int32_t *text, int32_t n)
{
    const pack_section *s = pack_find(p, IMAGE_TOKENS, 0);
    int32_t             k = 0;
    while (s->data && (k + 1) * KV_PAGE <= min_int(n, s->n) &&
           !memcmp((const int32_t *)s->data + (size_t)k * KV_PAGE, text + (size_t)k * KV_PAGE, KV_PAGE * sizeof *text))
        k++;
    return k;
}

/* Returns whether a hit at `end` uses page k of this class. It uses all pages of added classes without a wish, or with
 * one that requires nothing. */
static bool is_needed(const source *x, int32_t k, int cls, int32_t end)
{
    const page_class *c = &x->p->cls[cls];
    if (c->group == NO_CLASS) return false;
    if (c->is_state) return (k + 1) * KV_PAGE == end;
    if (c->group == 0) return k >= first_seen_page(c, end);
    for (int i = 0; i < x->w->n_wishes; i++) {
        const kv_wish *w = &x->w->wish[i];
        if (w->cls != cls) continue;
        int32_t first = w->first(w->ctx, end);
        return k < w->head_pages || k >= first / KV_PAGE || (!w->head_pages && first >= end);
    }
    return true;
}

/* Refers to page k of the class, so that it is not evicted; takes it from the images if the tree lacks it. *n is its
 * node, NULL for a new one. Returns false when the pool is full, or when no more bytes may be copied. */
static bool hold_page(kv_prefix *t, source *x, int32_t k, int cls, kv_node *at, kv_node **n)
{
    kv_pool *p = kv_prefix_pool(t);
    if (*n && kv_node_has(*n, cls)) {
        kv_page_ref(p, cls, kv_node_page(*n, cls));
        return true;
    }
    const void *bytes = image_page(x, k, cls);
    if (!bytes) return true;
    if (!x->left) return false;
    int32_t id = kv_page_take(p, cls);
    if (id == NO_PAGE) return false;
    x->left -= x->left < p->cls[cls].page_bytes ? x->left : p->cls[cls].page_bytes;
    p->o->upload(p->q, dev_at(p->memory, (size_t)id * KV_UNIT), bytes, p->cls[cls].page_bytes);
    *n = kv_prefix_add(t, x->w->salt, at, x->w->text + (size_t)k * KV_PAGE, cls, id);
    return true;
}

/* Holds all needed pages of page k, the anchor first. Sets held to a bit for each class. */
static bool hold_node(kv_prefix *t, source *x, int32_t k, int32_t end, kv_node *at, kv_node **n, uint32_t *held)
{
    int anchor = kv_prefix_anchor(t);
    *held      = 0;
    *n         = kv_prefix_next(t, x->w->salt, at, x->w->text + (size_t)k * KV_PAGE);
    if (!hold_page(t, x, k, anchor, at, n) || !*n) return false;
    *held = (uint32_t)1 << anchor;
    for (int i = 0; i < KV_MAX_CLASSES; i++) {
        if (i == anchor || !is_needed(x, k, i, end)) continue;
        if (!hold_page(t, x, k, i, at, n)) return false;
        if (kv_node_has(*n, i)) *held |= (uint32_t)1 << i;
    }
    return true;
}

static void release_node(kv_pool *p, const kv_node *n, uint32_t held)
{
    for (int i = 0; i < KV_MAX_CLASSES; i++)
        if (held & (uint32_t)1 << i) kv_page_unref(p, i, kv_node_page(n, i));
}

/* Adds pages of a hit that ends at `end`, up to x->left bytes. They are held meanwhile: taking one may evict others.
 * Returns true when all are there or the pool is full. */
static bool add_pages(kv_prefix *t, source *x, int32_t end)
{
    int32_t   n = end / KV_PAGE, k = 0;
    kv_node **node = xnew_n(kv_node *, (size_t)n);
    uint32_t *held = xnew_n(uint32_t, (size_t)n);
    bool      ok   = true;
    for (; ok && k < n; k++) ok = hold_node(t, x, k, end, k ? node[k - 1] : NULL, &node[k], &held[k]);
    if (ok) kv_prefix_keep(t, node[n - 1]);
    while (k-- > 0) release_node(kv_prefix_pool(t), node[k], held[k]);
    mem_free(node);
    mem_free(held);
    return ok || x->left;
}

int32_t kv_import(kv_prefix *t, const kv_image_key *k, const kv_wanted *w, const pack *const *images, int n_images,
                  size_t max_bytes, bool *done)
{
    int32_t    *same = xnew_n(int32_t, (size_t)max_int(n_images, 1));
    source      x    = {kv_prefix_pool(t), k, w, images, n_images, same, max_bytes > 0 ? max_bytes : 1};
    page_source more = {source_has, &x};
    for (int i = 0; i < n_images; i++) same[i] = same_pages(images[i], w->text, w->n);
    int32_t end = kv_prefix_reach_with(t, w, &more);
    /* Also when the hit is complete: a drafter's pages may be missing. */
    *done = !end || !n_images || add_pages(t, &x, end);
    mem_free(same);
    return kv_prefix_reach(t, w->salt, w->text, w->n, w->wish, w->n_wishes);
}
