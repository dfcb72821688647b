/* GIF: the first frame on the logical screen. Pixels outside the frame have the transparent color, or color 0. */
#include "base/mem.h"
#include "base/num.h"
#include "decode/inside.h"

#define MAX_CODES 4096

typedef struct {
    str      in;
    size_t   at;
    uint8_t  palette[256][3];
    int      transparent; /* -1: none */
    uint8_t *indices;     /* the frame, in stored order */
} reader;

typedef struct {
    int  x, y, width, height;
    bool interlaced;
} frame;

static bool ends_early(err *e) { return err_set(e, ERR_INPUT, "the file is damaged: it ends early"); }

static bool has(const reader *r, size_t n) { return range_inside(r->at, n, r->in.n); }

static bool read_palette(reader *r, uint32_t flags, err *e)
{
    size_t n = (size_t)2 << (flags & 7);
    if (!(flags & 0x80)) return true;
    if (!has(r, n * 3)) return ends_early(e);
    memcpy(r->palette, r->in.s + r->at, n * 3);
    r->at += n * 3;
    return true;
}

/* Moves to the next data block and sets *out to its bytes: none at the end of the sequence. */
static bool next_block(reader *r, str *out, err *e)
{
    if (!has(r, 1)) return ends_early(e);
    size_t n = decode_u8(r->in, r->at++);
    if (!has(r, n)) return ends_early(e);
    *out = (str){r->in.s + r->at, n};
    r->at += n;
    return true;
}

static bool read_extension(reader *r, err *e)
{
    if (!has(r, 1)) return ends_early(e);
    bool is_control = decode_u8(r->in, r->at++) == 0xf9;
    for (str block = {0};;) {
        if (!next_block(r, &block, e)) return false;
        if (!block.n) return true;
        if (is_control && block.n >= 4) r->transparent = decode_u8(block, 0) & 1 ? (int)decode_u8(block, 3) : -1;
    }
}

/* Reads up to the descriptor of the first frame. */
static bool find_frame(reader *r, frame *f, err *e)
{
    for (;;) {
        if (!has(r, 1)) return ends_early(e);
        uint32_t kind = decode_u8(r->in, r->at++);
        if (kind == 0x2c) break;
        if (kind != 0x21) return err_set(e, ERR_INPUT, "the file is damaged: it has no frame");
        if (!read_extension(r, e)) return false;
    }
    if (!has(r, 9)) return ends_early(e);
    *f = (frame){(int)decode_le16(r->in, r->at), (int)decode_le16(r->in, r->at + 2), (int)decode_le16(r->in, r->at + 4),
                 (int)decode_le16(r->in, r->at + 6), false};
    uint32_t flags = decode_u8(r->in, r->at + 8);
    f->interlaced  = flags & 0x40;
    r->at += 9;
    if (!f->width || !f->height) return err_set(e, ERR_INPUT, "the file is damaged: its first frame is empty");
    return read_palette(r, flags, e);
}

typedef struct {
    uint16_t prefix[MAX_CODES];
    uint8_t  last[MAX_CODES];
    uint32_t length[MAX_CODES];
    int      n_codes, old, clear;
} lzw;

static void lzw_reset(lzw *z)
{
    z->n_codes = z->clear + 2;
    z->old     = -1;
}

static void lzw_init(lzw *z, int clear)
{
    z->clear = clear;
    for (int i = 0; i < clear; i++) {
        z->last[i]   = (uint8_t)i;
        z->length[i] = 1;
    }
    lzw_reset(z);
}

/* Writes the bytes of `code`, after its entry was made: at most `room` of them. Returns their number. */
static size_t lzw_write(const lzw *z, int code, uint8_t *out, size_t room)
{
    size_t n = z->length[code];
    for (size_t i = n; i-- > 0; code = z->prefix[code])
        if (i < room) out[i] = z->last[code];
    return n < room ? n : room;
}

/* Takes one code that is neither clear nor end. Returns false when it cannot occur here. */
static bool lzw_take(lzw *z, int code, uint8_t *out, size_t room, size_t *n)
{
    int first = code == z->n_codes ? z->old : code; /* its first byte ends the new entry */
    if (code > z->n_codes || first < 0 || (z->old < 0 && code >= z->clear)) return false;
    while (z->length[first] > 1) first = z->prefix[first];
    if (z->old >= 0 && z->n_codes < MAX_CODES) {
        z->prefix[z->n_codes] = (uint16_t)z->old;
        z->last[z->n_codes]   = z->last[first];
        z->length[z->n_codes] = z->length[z->old] + 1;
        z->n_codes++;
    }
    if (code >= z->n_codes) return false;
    *n     = lzw_write(z, code, out, room);
    z->old = code;
    return true;
}

/* The codes of a frame, least significant bit first. */
typedef struct {
    reader  *r;
    str      block;
    uint32_t bits;
    int      n_bits;
} codes;

static bool next_code(codes *c, int width, int *out, err *e)
{
    for (; c->n_bits < width; c->n_bits += 8) {
        if (!c->block.n && !next_block(c->r, &c->block, e)) return false;
        if (!c->block.n) return ends_early(e);
        c->bits |= decode_u8(c->block, 0) << c->n_bits;
        c->block = (str){c->block.s + 1, c->block.n - 1};
    }
    *out = (int)(c->bits & ((1u << width) - 1));
    c->bits >>= width;
    c->n_bits -= width;
    return true;
}

/* Reads the pixels of the frame. An end code leaves the rest as it is. */
static bool read_indices(reader *r, lzw *z, size_t total, err *e)
{
    codes c        = {.r = r};
    int   min_bits = has(r, 1) ? (int)decode_u8(r->in, r->at++) : 0, width = min_bits + 1;
    if (min_bits < 1 || min_bits > 8) return err_set(e, ERR_INPUT, "the file is damaged: its codes have no length");
    lzw_init(z, 1 << min_bits);
    for (size_t done = 0; done < total;) {
        size_t n    = 0;
        int    code = 0;
        if (!next_code(&c, width, &code, e)) return false;
        if (code == z->clear + 1) return true;
        if (code == z->clear) {
            lzw_reset(z);
            width = min_bits + 1;
            continue;
        }
        if (!lzw_take(z, code, r->indices + done, total - done, &n))
            return err_set(e, ERR_INPUT, "the file is damaged: it has an impossible code");
        done += n;
        if (z->n_codes == 1 << width && width < 12) width++;
    }
    return true;
}

/* Returns the row on the screen of the i-th stored row. */
static int row_of(const frame *f, int i)
{
    static const int first[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};
    if (!f->interlaced) return i;
    for (int pass = 0;; pass++) {
        int n = max_int((f->height - first[pass] + step[pass] - 1) / step[pass], 0);
        if (i < n || pass == 3) return first[pass] + i * step[pass];
        i -= n;
    }
}

static void draw(picture *out, const reader *r, const frame *f)
{
    int            background = r->transparent < 0 ? 0 : r->transparent;
    const uint8_t *index      = r->indices;
    for (size_t i = 0; i < picture_bytes(out); i += 3) memcpy(out->rgb + i, r->palette[background], 3);
    for (int i = 0; i < f->height; i++) {
        uint8_t *to = out->rgb + ((size_t)(f->y + row_of(f, i)) * (size_t)out->width + (size_t)f->x) * 3;
        for (int x = 0; x < f->width; x++, to += 3) memcpy(to, r->palette[*index++], 3);
    }
}

bool decode_gif(picture *out, int *orientation, str file, err *e)
{
    reader r = {.in = file, .at = 13, .transparent = -1};
    frame  f = {0};
    (void)orientation; /* the format has none */
    if (file.n < 13) return ends_early(e);
    if (!read_palette(&r, decode_u8(file, 10), e) || !find_frame(&r, &f, e)) return false;
    int width = max_int((int)decode_le16(file, 6), f.x + f.width);
    if (!picture_new(out, width, max_int((int)decode_le16(file, 8), f.y + f.height), e)) return false;
    size_t total = (size_t)f.width * (size_t)f.height;
    lzw   *z     = mem_try(sizeof *z);
    r.indices    = mem_try(total);
    bool ok      = (z && r.indices) || err_set(e, ERR_UNAVAILABLE, "no memory for a picture");
    if (ok && r.transparent >= 0) memset(r.indices, r.transparent, total);
    ok = ok && read_indices(&r, z, total, e);
    if (ok)
        draw(out, &r, &f);
    else
        picture_free(out);
    mem_free(z);
    mem_free(r.indices);
    return ok;
}
