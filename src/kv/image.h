/* kv/image.h - copies a part of the prefix tree to a pack (store/pack.h) and back.
 *
 * An image holds the pages [from, to) of one text, by class, as the pool stores them: K/V of any type, a drafter's own
 * K/V, and the recurrent states at `to`. It also holds all tokens of the text up to `to`, which an import compares.
 *
 *      tokens 0 .. to | full: pages from .. to | sliding: the pages that a row at `to` sees | drafter | states at `to`
 *
 * Classes without a window are complete. A class with a window has the last window before `to`, so that a hit can end
 * there; the images of a text that follow one another together contain what a hit at the end of each of them needs. An
 * image has all pages of an added class (a drafter's K/V) that the tree has.
 *
 * An import adds the pages to the tree, and kv_prefix_find finds them there. So the code that admits requests decides
 * how much of an image is used. By promise 1 a page is the same bit by bit wherever it was computed, provided that the
 * fingerprints are equal: the caller computes them from all that the numbers depend on (spec/image.h).
 *
 * Thread: the engine thread; a finished export may be passed to another thread. */
#ifndef TANDEM_KV_IMAGE_H
#define TANDEM_KV_IMAGE_H
#include "kv/prefix.h"
#include "store/pack.h"

/* The kinds of the sections. id is the index of the class (states: among the state classes), first is the first page
 * and n the number of pages; a state has first = to / KV_PAGE and n = 1. */
enum { IMAGE_TOKENS = 1, IMAGE_PAGES = 2, IMAGE_STATE = 3, IMAGE_LAST_KIND = 15 };

typedef struct {
    hash128 target; /* fingerprint of the target's K/V and states */
    /* Fingerprints of added classes, by class; zero: the class is neither exported nor imported. */
    hash128 added[KV_MAX_CLASSES];
} kv_image_key;

/* Pages of a text: from and to are multiples of KV_PAGE, and text has at least `to` tokens. */
typedef struct {
    uint64_t       salt;
    const int32_t *text;
    int32_t        from, to;
} kv_range;

typedef struct kv_export kv_export;
/* Begins to copy a range of the tree: allocates memory for all of it. Fails with ERR_NOT_FOUND when the tree lacks a
 * page or state that a hit at `to` needs. *r and *k are copied, the text too. */
bool kv_export_begin(kv_export **out, kv_prefix *t, const kv_image_key *k, const kv_range *r, err *e);
/* Copies further pages, of about max_bytes, and blocks until they are copied. Between two calls the tree and its
 * classes may change; *k is the key of now. Fails with ERR_NOT_FOUND when a page was evicted or an added class was
 * replaced. Sets *done after the last one. */
bool  kv_export_more(kv_export *x, kv_prefix *t, const kv_image_key *k, size_t max_bytes, bool *done, err *e);
pack *kv_export_pack(kv_export *x); /* complete after *done; valid as long as x */
void  kv_export_free(kv_export *x); /* accepts NULL */

/* Checks that a pack is an image that fits the pool of the tree and this key. ERR_FORMAT: the reason. Sections of added
 * classes with another fingerprint are not an error: kv_import ignores them. */
bool kv_image_check(const kv_prefix *t, const kv_image_key *k, const pack *p, err *e);
/* Adds pages of checked images to the tree, as many as the longest hit of text[0 .. n - 2] needs, and marks its end as
 * kv_prefix_keep does. Copies about max_bytes. *done false: there is more; a later call with the same arguments goes on
 * there, and copies pages again that were evicted between the calls. Sections that are not loaded count as missing.
 * Returns the length of the hit that kv_prefix_find finds afterwards with the same wishes. It is shorter than the
 * images when the pool has no room, or when they have gaps. */
typedef struct {
    uint64_t       salt;
    const int32_t *text; /* [n] */
    int32_t        n;
    const kv_wish *wish; /* as for kv_prefix_find */
    int            n_wishes;
} kv_wanted;
int32_t kv_import(kv_prefix *t, const kv_image_key *k, const kv_wanted *w, const pack *const *images, int n_images,
                  size_t max_bytes, bool *done);

/* Selects the sections of images that a hit at a given length needs, so that the others need not be read, and the
 * images that are of a text. */
typedef struct {
    kv_image_key key;
    int          window[KV_MAX_CLASSES];
    int32_t      n; /* tokens */
    int32_t      text[];
} kv_image_filter;
/* Copies the text. The caller frees the filter with mem_free. */
kv_image_filter *kv_image_filter_new(const kv_prefix *t, const kv_image_key *k, const int32_t *text, int32_t n);
/* Any thread may call these two. x: a kv_image_filter. */
/* Returns whether a hit at `end` pages needs the section. */
bool kv_image_wants(const void *x, const pack_section *s, int32_t end);
/* Checks that the image, whose tokens are loaded, is of this model and holds the text up to page `to`. ERR_FORMAT: the
 * reason. */
bool kv_image_fits(const void *x, const pack *p, int32_t to, err *e);
/* Returns a fingerprint of the added classes that have the last page before `to`; zero: none. */
hash128 kv_image_added(const kv_prefix *t, const kv_image_key *k, const kv_range *r);
#endif
