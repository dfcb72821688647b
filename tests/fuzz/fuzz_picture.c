/* Files of pictures: every format's front, the checks of sizes, and the pixels of small pictures. A picture comes out, or
 * an error and nothing.
 *
 * A few bytes can announce millions of pixels, whose decoding would leave time for a thousand inputs a second. So
 * picture_new is replaced by a function that makes the checks, and refuses what is accepted but not small. Chunks of PNG
 * have checksums, which are corrected first: hardly an input would pass them. */
#include "base/mem.h"
#include "decode/inside.h"

#include <assert.h>
#include <string.h>

bool __real_picture_new(picture *out, int width, int height, err *e);
bool __wrap_picture_new(picture *out, int width, int height, err *e);

bool __wrap_picture_new(picture *out, int width, int height, err *e)
{
    enum { SMALL = 1 << 12 };
    int64_t pixels = (int64_t)width * height;
    if (width >= 1 && height >= 1 && width <= PICTURE_MAX_SIDE && height <= PICTURE_MAX_SIDE && pixels > SMALL &&
        pixels <= PICTURE_MAX_PIXELS)
        return err_set(e, ERR_TOO_LARGE, "%d x %d pixels are not decoded here", width, height);
    bool ok = __real_picture_new(out, width, height, e);
    assert(!ok || (pixels >= 1 && pixels <= SMALL));
    return ok;
}

static uint32_t read_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t crc_of(const uint8_t *p, size_t n)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    }
    return ~crc;
}

/* A chunk: length, name, data, checksum of name and data. */
static void correct_png(uint8_t *p, size_t size)
{
    for (size_t at = 8; size >= at + 12;) {
        size_t n = read_be32(p + at);
        if (n > size - at - 12) return;
        uint32_t crc = crc_of(p + at + 4, n + 4);
        for (int k = 0; k < 4; k++) p[at + 8 + n + (size_t)k] = (uint8_t)(crc >> (24 - 8 * k));
        at += n + 12;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MAX_INPUT = 1 << 16 };
    picture p;
    err     e = {0};
    if (size > MAX_INPUT) return 0;
    uint8_t *copy = xalloc(size ? size : 1); /* its end is the end of the allocation */
    str      file = {(const char *)copy, size};
    if (size) memcpy(copy, data, size);
    if (size > 8 && !memcmp(copy, "\x89PNG", 4)) correct_png(copy, size);
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
    mem_free(copy);
    return 0;
}
