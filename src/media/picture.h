/* media/picture.h - a picture as 8-bit RGB, and its resizing.
 *
 * A picture owns its pixels. A zeroed picture is empty. Any thread may call these functions. */
#ifndef TANDEM_MEDIA_PICTURE_H
#define TANDEM_MEDIA_PICTURE_H
#include "base/err.h"

#include <stddef.h>

/* Limits of width, height and their product. They keep 3 * width * height below 2^31. */
#define PICTURE_MAX_SIDE   (1 << 17)
#define PICTURE_MAX_PIXELS ((int64_t)1 << 26)

typedef struct {
    int      width, height;
    uint8_t *rgb; /* [height][width][3]; NULL: empty */
} picture;

/* Allocates zeroed pixels. ERR_TOO_LARGE when a size is outside the limits above, ERR_UNAVAILABLE when there is no
 * memory; *out is empty then. */
bool picture_new(picture *out, int width, int height, err *e);
void picture_free(picture *p); /* frees the pixels and empties *p; p may be NULL */

/* Returns the size in bytes of the pixels. */
static inline size_t picture_bytes(const picture *p) { return (size_t)p->width * (size_t)p->height * 3; }

/* Resizes with the antialiased bicubic filter that the models were trained with, bit for bit: columns first, then rows,
 * each pass from 8 bit to 8 bit. A pass whose size does not change is skipped. *out is a new picture, empty on failure
 * (the errors of picture_new). */
bool picture_resize(picture *out, const picture *in, int width, int height, err *e);
#endif
