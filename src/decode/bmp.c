/* BMP: Windows and OS/2 headers, 1 to 32 bits a pixel, bit fields, run-length encoding. */
#include "base/mem.h"
#include "decode/inside.h"

#include <stdlib.h>

enum { PLAIN = 0, RLE8 = 1, RLE4 = 2, FIELDS = 3, ALPHA_FIELDS = 6 };

typedef struct {
    int      width, height; /* height is positive */
    bool     top_down;
    int      bits; /* per pixel */
    uint32_t compression;
    uint32_t mask[3]; /* red, green, blue: 16 and 32 bits */
    size_t   pixels;  /* position of the first row */
    uint8_t  palette[256][3];
} header;

static bool damaged(err *e, const char *why) { return err_set(e, ERR_INPUT, "the file is damaged: %s", why); }

static bool read_palette(header *h, str f, size_t at, size_t entry, size_t n, err *e)
{
    if (n > (size_t)1 << h->bits) n = (size_t)1 << h->bits;
    if (!range_inside(at, n * entry, f.n)) return damaged(e, "its palette ends early");
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < 3; c++) h->palette[i][c] = (uint8_t)f.s[at + i * entry + 2 - c];
    return true;
}

static bool read_masks(header *h, str f, size_t at, err *e)
{
    static const uint32_t of_16[] = {0x7c00, 0x3e0, 0x1f}, of_32[] = {0xff0000, 0xff00, 0xff};
    bool                  given = h->compression == FIELDS || h->compression == ALPHA_FIELDS;
    if (given && !range_inside(at, 12, f.n)) return damaged(e, "its bit fields end early");
    for (size_t c = 0; c < 3; c++)
        h->mask[c] = given ? decode_le32(f, at + 4 * c) : h->bits == 16 ? of_16[c] : of_32[c];
    return true;
}

static bool check_kind(const header *h, err *e)
{
    static const uint64_t plain = 1ull << 1 | 1ull << 4 | 1ull << 8 | 1ull << 16 | 1ull << 24 | 1ull << 32;
    bool                  known = h->bits > 0 && h->bits <= 32;
    switch (h->compression) {
    case PLAIN: known = known && plain >> h->bits & 1; break;
    case RLE8: known = h->bits == 8; break;
    case RLE4: known = h->bits == 4; break;
    case FIELDS:
    case ALPHA_FIELDS: known = h->bits == 16 || h->bits == 32; break;
    default: known = false;
    }
    return known || err_set(e, ERR_INPUT, "%d bits a pixel with compression %u are not read", h->bits, h->compression);
}

static bool read_header(header *h, str f, err *e)
{
    if (f.n < 26) return damaged(e, "it ends early");
    size_t size = decode_le32(f, 14), n_colors = 256, entry = 4, palette = 14 + size;
    h->pixels = decode_le32(f, 10);
    if (size == 12) {
        h->width  = (int)decode_le16(f, 18);
        h->height = (int)decode_le16(f, 20);
        h->bits   = (int)decode_le16(f, 24);
        entry     = 3;
    } else {
        if (size < 40 || size > 1024 || f.n < 14 + size) return damaged(e, "its header has an unknown size");
        int32_t height = (int32_t)decode_le32(f, 22);
        if (height == INT32_MIN) return damaged(e, "its height is impossible");
        h->width       = (int)decode_le32(f, 18);
        h->height      = abs(height);
        h->top_down    = height < 0;
        h->bits        = (int)decode_le16(f, 28);
        h->compression = decode_le32(f, 30);
        n_colors       = decode_le32(f, 46) ? decode_le32(f, 46) : 256;
        if (size == 40 && h->compression == FIELDS) palette += 12;
        if (size == 40 && h->compression == ALPHA_FIELDS) palette += 16;
    }
    if (!check_kind(h, e)) return false;
    if (h->bits <= 8) return read_palette(h, f, palette, entry, n_colors, e);
    return read_masks(h, f, 54, e);
}

/* Returns the first byte of the stored row y, counted from the first row of the file. */
static uint8_t *row_of(const picture *out, const header *h, int y)
{
    return out->rgb + (size_t)(h->top_down ? y : h->height - 1 - y) * (size_t)h->width * 3;
}

static uint8_t field(uint32_t pixel, uint32_t mask)
{
    if (!mask) return 0;
    int      shift = __builtin_ctz(mask);
    uint64_t limit = mask >> shift;
    return (uint8_t)((uint64_t)((pixel & mask) >> shift) * 255 / limit);
}

static void read_row(uint8_t *to, const header *h, str row)
{
    for (int x = 0; x < h->width; x++, to += 3) {
        size_t bit = (size_t)x * (size_t)h->bits, at = bit / 8;
        if (h->bits <= 8) {
            uint32_t index = decode_u8(row, at) >> (8 - h->bits - (int)(bit % 8)) & ((1u << h->bits) - 1);
            memcpy(to, h->palette[index], 3);
        } else if (h->bits == 24) {
            for (size_t c = 0; c < 3; c++) to[c] = (uint8_t)row.s[at + 2 - c];
        } else {
            uint32_t pixel = h->bits == 16 ? decode_le16(row, at) : decode_le32(row, at);
            for (int c = 0; c < 3; c++) to[c] = field(pixel, h->mask[c]);
        }
    }
}

static bool read_plain(picture *out, const header *h, str f, err *e)
{
    size_t stride = ((size_t)h->width * (size_t)h->bits + 31) / 32 * 4;
    if (!range_inside(h->pixels, stride * (size_t)h->height, f.n)) return damaged(e, "its pixels end early");
    for (int y = 0; y < h->height; y++)
        read_row(row_of(out, h, y), h, (str){f.s + h->pixels + (size_t)y * stride, stride});
    return true;
}

/* A position in a run-length encoded picture. */
typedef struct {
    picture      *out;
    const header *h;
    int           x, y;
} pen;

static void put(pen *p, uint32_t index)
{
    if (p->x < p->h->width && p->y < p->h->height)
        memcpy(row_of(p->out, p->h, p->y) + (size_t)p->x * 3, p->h->palette[index], 3);
    p->x++;
}

/* Puts n pixels: 8 or 4 bits each, from the bytes at `at`; a run repeats the first byte. */
static void put_many(pen *p, str f, size_t at, uint32_t n, bool run)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t byte = decode_u8(f, at + (run ? 0 : p->h->bits == 8 ? i : i / 2));
        put(p, p->h->bits == 8 ? byte : i % 2 ? byte & 15 : byte >> 4);
    }
}

static bool read_runs(picture *out, const header *h, str f, err *e)
{
    pen    p  = {out, h, 0, 0};
    size_t at = h->pixels;
    for (size_t i = 0; i < picture_bytes(out); i += 3) memcpy(out->rgb + i, h->palette[0], 3);
    while (p.y < h->height) {
        if (!range_inside(at, 2, f.n)) return damaged(e, "its pixels end early");
        uint32_t n = decode_u8(f, at), value = decode_u8(f, at + 1);
        at += 2;
        if (n) {
            put_many(&p, f, at - 1, n, true);
        } else if (value == 0) {
            p.x = 0;
            p.y++;
        } else if (value == 1) {
            break;
        } else if (value == 2) {
            if (!range_inside(at, 2, f.n)) return damaged(e, "its pixels end early");
            p.x += (int)decode_u8(f, at);
            p.y += (int)decode_u8(f, at + 1);
            at += 2;
        } else {
            size_t bytes = h->bits == 8 ? value : (value + 1) / 2;
            bytes += bytes % 2;
            if (!range_inside(at, bytes, f.n)) return damaged(e, "its pixels end early");
            put_many(&p, f, at, value, false);
            at += bytes;
        }
        if (p.x > PICTURE_MAX_SIDE + 256) return damaged(e, "a row is too long");
    }
    return true;
}

bool decode_bmp(picture *out, int *orientation, str file, err *e)
{
    header h = {0};
    (void)orientation; /* the format has none */
    if (!read_header(&h, file, e) || !picture_new(out, h.width, h.height, e)) return false;
    bool is_runs = h.compression == RLE8 || h.compression == RLE4;
    bool ok      = is_runs ? read_runs(out, &h, file, e) : read_plain(out, &h, file, e);
    if (!ok) picture_free(out);
    return ok;
}
