#include "spec/image.h"

#include "base/buf.h"
#include "base/mem.h"
#include "spec/inside.h"

bool spec_has_images(const spec *s) { return s->tree && s->opt.fingerprint && s->opt.fingerprint[0]; }

/* --- fingerprints -------------------------------------------------------------------------------*/
static void put_types(buf *b, cache_types t)
{
    buf_printf(b, "%s %s ", cache_layout_of(t.k)->name, cache_layout_of(t.v)->name);
}

static void put_class(buf *b, const kv_class *c)
{
    buf_printf(b, "%d %d %d ", c->n_layers, c->n_kv_heads, c->head_dim);
    put_types(b, c->types);
    buf_printf(b, "%u %d %d %d ", c->sparse.drop, c->sparse.sink, c->sparse.near, c->sparse.min_ctx);
}

static hash128 target_key(const spec *s)
{
    const target *t = s->t;
    char          types[KV_TYPES_TEXT];
    buf           b;
    buf_init(&b, 1 << 16);
    buf_printf(&b, "%d %s %s %s %s\n", PACK_VERSION, TANDEM_ARITHMETIC, t->o->name, t->o->kernels ? t->o->kernels : "",
               s->opt.fingerprint);
    buf_printf(&b, "%s\n", kv_types_text(&s->opt.kv_type, types)); /* sparse attention too */
    buf_printf(&b, "%d %d %d %d\n", KV_PAGE, t->n_layers, t->n_embd, t->n_vocab);
    if (t->media_stamp) buf_printf(&b, "%s\n", t->media_stamp); /* K/V of pictures depend on their encoder */
    for (int i = 0; i < t->n_kv_classes; i++) {
        put_class(&b, kv_pool_class(s->kv, i));
        buf_printf(&b, "%d\n", t->kv_class[i].window);
    }
    for (int i = 0; i < t->n_states; i++) buf_printf(&b, "%zu\n", t->state[i].bytes);
    hash128 h = hash128_of(b.p, b.n);
    buf_deinit(&b);
    return h;
}

static hash128 drafter_key(const spec *s, const draft_slot *k, int cls)
{
    buf b;
    buf_init(&b, 1 << 12);
    buf_printf(&b, "%s %s %d ", k->stamp, drafter_kinds[k->d->kind].name, (int)k->type);
    put_class(&b, kv_pool_class(s->kv, cls));
    hash128 h = hash128_of(b.p, b.n);
    buf_deinit(&b);
    return h;
}

kv_image_key spec_image_key(const spec *s)
{
    kv_image_key key = {0};
    if (!spec_has_images(s)) return key;
    key.target = target_key(s);
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        const draft_slot *k = &s->slots[i];
        kv_wish           w;
        if (!k->d || !k->d->wish || !k->fingerprint[0]) continue;
        k->d->wish(k->d, NULL, &w);
        key.added[w.cls] = drafter_key(s, k, w.cls);
    }
    return key;
}

/* --- images -------------------------------------------------------------------------------------*/
static bool no_images(err *e) { return err_set(e, ERR_UNAVAILABLE, "there is no prefix cache to store or to fill"); }

int32_t spec_cached_len(const spec *s, uint64_t salt, const int32_t *text, int32_t n)
{
    return s->tree ? kv_prefix_reach(s->tree, salt, text, n, NULL, 0) : 0;
}

static int32_t last_page(const void *ctx, int32_t n_pos)
{
    (void)ctx;
    return n_pos - KV_PAGE;
}

int32_t spec_usable_len(const spec *s, int method, uint64_t salt, const int32_t *text, int32_t n)
{
    kv_wish wish[DRAFTER_KINDS];
    int     n_wishes = 0;
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        const draft_slot *k = &s->slots[i];
        kv_wish           w;
        if (!k->d || !k->d->wish || k->parked || !is_requested(method, (drafter_kind)i)) continue;
        k->d->wish(k->d, NULL, &w);
        if (!w.head_pages) continue; /* it takes what is there */
        w.first          = last_page;
        wish[n_wishes++] = w;
    }
    return s->tree ? kv_prefix_reach(s->tree, salt, text, n, wish, n_wishes) : 0;
}

bool spec_export_begin(spec *s, const kv_range *r, kv_export **out, err *e)
{
    kv_image_key key = spec_image_key(s);
    *out             = NULL;
    return spec_has_images(s) ? kv_export_begin(out, s->tree, &key, r, e) : no_images(e);
}

bool spec_export_more(spec *s, kv_export *x, size_t max_bytes, bool *done, err *e)
{
    kv_image_key key = spec_image_key(s);
    *done            = false;
    return s->tree ? kv_export_more(x, s->tree, &key, max_bytes, done, e) : no_images(e);
}

bool spec_image_check(const spec *s, const pack *p, err *e)
{
    kv_image_key key = spec_image_key(s);
    return spec_has_images(s) ? kv_image_check(s->tree, &key, p, e) : no_images(e);
}

kv_image_filter *spec_image_filter(const spec *s, const int32_t *text, int32_t n)
{
    kv_image_key key = spec_image_key(s);
    return spec_has_images(s) ? kv_image_filter_new(s->tree, &key, text, n) : NULL;
}

hash128 spec_image_drafters(const spec *s, const kv_range *r)
{
    kv_image_key key = spec_image_key(s);
    return spec_has_images(s) ? kv_image_added(s->tree, &key, r) : (hash128){0};
}

int32_t import_images(spec *s, const kv_wanted *w, const pack *const *images, int n_images, size_t max_bytes,
                      bool *done)
{
    kv_image_key key = spec_image_key(s);
    const pack **ok  = xnew_n(const pack *, (size_t)max_int(n_images, 1));
    int          n   = 0;
    for (int i = 0; i < n_images; i++)
        if (kv_image_check(s->tree, &key, images[i], NULL)) ok[n++] = images[i];
    int32_t reach = kv_import(s->tree, &key, w, ok, n, max_bytes, done);
    mem_free(ok);
    return reach;
}

int32_t spec_import(spec *s, const spec_images *x, size_t max_bytes, bool *done)
{
    kv_wanted w = {.salt = x->salt, .text = x->text, .n = x->n};
    *done       = true;
    return spec_has_images(s) ? import_images(s, &w, x->images, x->n_images, max_bytes, done) : 0;
}
