/* decode/decode.h - files of pictures to pixels: PNG, JPEG, WebP, GIF and BMP.
 *
 * The first frame of an animation is taken, an EXIF orientation is applied, transparency is dropped. The bytes are
 * untrusted, and so are the libraries that read them: the server decodes in a separate process (decode/worker.h). */
#ifndef TANDEM_DECODE_DECODE_H
#define TANDEM_DECODE_DECODE_H
#include "base/str.h"
#include "media/picture.h"

/* Decodes a file, whose format is recognized by its first bytes. Sizes are checked before memory is allocated.
 * ERR_INPUT: unknown or damaged; ERR_TOO_LARGE: over the limits of media/picture.h; ERR_UNAVAILABLE: no memory. *out is
 * empty on failure. */
bool decode_picture(picture *out, str file, err *e);
#endif
