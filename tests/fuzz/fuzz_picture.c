/* Files of pictures: every format's front, sizes and pixels. A picture comes out, or an error and nothing. */
#include "decode/inside.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MAX_INPUT = 1 << 16 };
    str     file = {(const char *)data, size};
    picture p;
    err     e = {0};
    if (size > MAX_INPUT) return 0;
    bool ok          = decode_picture(&p, file, &e);
    int  orientation = decode_exif_orientation(file);
    assert(orientation >= 1 && orientation <= 8);
    if (ok) {
        assert(p.rgb && p.width >= 1 && p.height >= 1 && p.width <= PICTURE_MAX_SIDE && p.height <= PICTURE_MAX_SIDE);
        assert((int64_t)p.width * p.height <= PICTURE_MAX_PIXELS);
        picture_free(&p);
    } else {
        assert(!p.rgb && e.text[0] && (e.code == ERR_INPUT || e.code == ERR_TOO_LARGE || e.code == ERR_UNAVAILABLE));
    }
    return 0;
}
