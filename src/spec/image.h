/* spec/image.h - stores texts of the prefix cache and brings them back (kv/image.h), with the fingerprints of the
 * target and of the drafters.
 *
 *      export   spec_export_begin, then spec_export_more between steps until it is done: a pack
 *      import   spec_import between steps until it is done: adds the packs of a text to the prefix cache.
 *               lane_request.images does the same at once when the request begins, and takes only the pages that this
 *               request uses.
 *
 * Images need spec_options.fingerprint. With it, a drafter adds all complete pages of a text to the prefix cache when
 * the request ends. A request continues from an image exactly as from the prefix cache, and drafts in its first round.
 * Thread: as spec. */
#ifndef TANDEM_SPEC_IMAGE_H
#define TANDEM_SPEC_IMAGE_H
#include "kv/image.h"
#include "spec/spec.h"

/* Returns whether images can be made and used: there is a fingerprint and a prefix cache. */
bool spec_has_images(const spec *s);
/* Computes the fingerprints. The target's covers the backend with its kernels, the sources of the arithmetic, the
 * model's files, and the types and sizes of pages and states. It stays the same as long as s. */
kv_image_key spec_image_key(const spec *s);
/* Returns the length up to which the prefix cache has all that a hit of this text needs without drafters, in tokens. */
int32_t spec_cached_len(const spec *s, uint64_t salt, const int32_t *text, int32_t n);
/* Returns about the length that a request with this method would reuse: the drafters' first and last pages are there
 * too. */
int32_t spec_usable_len(const spec *s, int method, uint64_t salt, const int32_t *text, int32_t n);
/* As the functions of kv/image.h; ERR_UNAVAILABLE: there are no images now. */
bool spec_export_begin(spec *s, const kv_range *r, kv_export **out, err *e);
bool spec_export_more(spec *s, kv_export *x, size_t max_bytes, bool *done, err *e);
bool spec_image_check(const spec *s, const pack *p, err *e);
/* As kv_image_filter_new; NULL without images. */
kv_image_filter *spec_image_filter(const spec *s, const int32_t *text, int32_t n);
/* Returns a fingerprint of the drafters that have K/V of the last page before r->to; zero: none. */
hash128 spec_image_drafters(const spec *s, const kv_range *r);
typedef struct {
    uint64_t           salt;
    const int32_t     *text; /* [n] */
    int32_t            n;
    const pack *const *images; /* [n_images]: of this text; those that spec_image_check refuses are ignored */
    int                n_images;
} spec_images;
/* Adds the images of one text to the prefix cache, about max_bytes with each call; *done as kv_import. Returns the
 * length up to which the prefix cache then has the target's part of text[0 .. n - 1], at most n - 1: the next request
 * for this text reuses that much, unless pages are evicted before. */
int32_t spec_import(spec *s, const spec_images *x, size_t max_bytes, bool *done);
#endif
