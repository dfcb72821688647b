/* Each format in its variants, written here by hand or by the format's library; damaged and oversized files. */
#include "base/buf.h"
#include "base/file.h"
#include "decode/inside.h"
#include "test.h"

#include <jpeglib.h>
#include <stdlib.h>
#include <webp/encode.h>

static void put_le(buf *b, int n, uint32_t v)
{
    for (int i = 0; i < n; i++) buf_putc(b, (char)(v >> 8 * i));
}

/* A picture whose pixels all differ. */
static picture sample(test_case *t, int width, int height)
{
    picture p = {0};
    err     e;
    CHECK_OK(picture_new(&p, width, height, &e), e);
    for (int i = 0; p.rgb && i < width * height; i++) {
        p.rgb[i * 3]     = (uint8_t)(i * 7);
        p.rgb[i * 3 + 1] = (uint8_t)(i >> 3);
        p.rgb[i * 3 + 2] = (uint8_t)(255 - i * 3);
    }
    return p;
}

static void check_same(test_case *t, const char *what, const buf *file, const picture *want)
{
    picture got;
    err     e;
    if (!CHECK_OK(decode_picture(&got, buf_str(file), &e), e)) return;
    CHECK_MSG(got.width == want->width && got.height == want->height, "%s: the size is %d x %d", what, got.width,
              got.height);
    CHECK_MSG(got.width != want->width || got.height != want->height ||
                  !memcmp(got.rgb, want->rgb, picture_bytes(want)),
              "%s: the pixels differ", what);
    picture_free(&got);
}

/* --- BMP --------------------------------------------------------------------------------------- */
static void bmp_header(buf *b, int width, int height, int bits, int compression, int n_colors, size_t extra)
{
    buf_puts(b, "BM");
    put_le(b, 4, 0);
    put_le(b, 4, 0);
    put_le(b, 4, (uint32_t)(54 + n_colors * 4 + (int)extra));
    put_le(b, 4, 40);
    put_le(b, 4, (uint32_t)width);
    put_le(b, 4, (uint32_t)height);
    put_le(b, 2, 1);
    put_le(b, 2, (uint32_t)bits);
    put_le(b, 4, (uint32_t)compression);
    for (int i = 0; i < 3; i++) put_le(b, 4, 0);
    put_le(b, 4, (uint32_t)n_colors);
    put_le(b, 4, 0);
}

static void bmp_rows(buf *b, const picture *p, int bits, bool top_down)
{
    for (int i = 0; i < p->height; i++) {
        const uint8_t *row = p->rgb + (size_t)(top_down ? i : p->height - 1 - i) * (size_t)p->width * 3;
        size_t         at  = b->n;
        for (int x = 0; x < p->width; x++, row += 3) {
            if (bits == 16)
                put_le(b, 2, (uint32_t)(row[0] >> 3 << 11 | row[1] >> 2 << 5 | row[2] >> 3));
            else
                put_le(b, bits / 8, (uint32_t)(row[0] << 16 | row[1] << 8 | row[2]));
        }
        while ((b->n - at) % 4) buf_putc(b, 0);
    }
}

TEST(decode_bmp_pixels)
{
    picture p = sample(t, 13, 7);
    buf     b;
    buf_init(&b, 1 << 16);
    bmp_header(&b, 13, 7, 24, 0, 0, 0);
    bmp_rows(&b, &p, 24, false);
    check_same(t, "24 bits", &b, &p);
    buf_clear(&b);
    bmp_header(&b, 13, -7, 32, 0, 0, 0);
    bmp_rows(&b, &p, 32, true);
    check_same(t, "32 bits, top down", &b, &p);
    buf_clear(&b);
    bmp_header(&b, 13, 7, 16, 3, 0, 12);
    put_le(&b, 4, 0xf800);
    put_le(&b, 4, 0x7e0);
    put_le(&b, 4, 0x1f);
    bmp_rows(&b, &p, 16, false);
    for (size_t i = 0; i < picture_bytes(&p); i++)
        p.rgb[i] = (uint8_t)(i % 3 == 1 ? (p.rgb[i] >> 2) * 255 / 63 : (p.rgb[i] >> 3) * 255 / 31);
    check_same(t, "16 bits with fields", &b, &p);
    picture_free(&p);
    buf_deinit(&b);
}

static const uint8_t colors[4][3] = {{1, 2, 3}, {200, 0, 0}, {0, 200, 0}, {0, 0, 200}};

static picture of_indices(test_case *t, int width, int height, const char *index)
{
    picture p = {0};
    err     e;
    CHECK_OK(picture_new(&p, width, height, &e), e);
    for (int i = 0; i < width * height; i++) memcpy(p.rgb + i * 3, colors[index[i] - '0'], 3);
    return p;
}

static void bmp_indexed(buf *b, int width, int height, int bits, int compression, str data)
{
    bmp_header(b, width, height, bits, compression, 4, 0);
    for (int i = 0; i < 4; i++) put_le(b, 4, (uint32_t)(colors[i][0] << 16 | colors[i][1] << 8 | colors[i][2]));
    buf_put(b, data.s, data.n);
}

TEST(decode_bmp_palettes_and_runs)
{
    picture two = of_indices(t, 6, 2,
                             "123000"
                             "111123");
    buf     b;
    buf_init(&b, 1 << 16);
    bmp_indexed(&b, 6, 2, 8, 0, STR("\1\1\1\1\2\3\0\0\1\2\3\0\0\0\0\0"));
    check_same(t, "8 bits", &b, &two);
    buf_clear(&b);
    bmp_indexed(&b, 6, 2, 4, 0, STR("\x11\x11\x23\0\x12\x30\0\0"));
    check_same(t, "4 bits", &b, &two);
    buf_clear(&b);
    /* A run, a literal of 3 with its padding; a move of 0, 1; a literal; the end. */
    bmp_indexed(&b, 6, 2, 8, 1, STR("\3\1\0\3\1\2\3\0\0\0\0\3\1\2\3\0\0\1"));
    check_same(t, "runs of 8 bits", &b, &two);
    buf_clear(&b);
    bmp_indexed(&b, 6, 2, 4, 2, STR("\4\x11\2\x23\0\0\0\3\x12\x30\0\1"));
    check_same(t, "runs of 4 bits", &b, &two);
    picture_free(&two);
    picture one = of_indices(t, 9, 1, "101000011");
    buf_clear(&b);
    bmp_indexed(&b, 9, 1, 1, 0, STR("\xa1\x80\0\0"));
    check_same(t, "1 bit", &b, &one);
    picture_free(&one);
    buf_deinit(&b);
}

/* --- GIF --------------------------------------------------------------------------------------- */
typedef struct {
    buf      out;
    uint32_t bits;
    int      n_bits;
} gif_bits;

static void gif_code(gif_bits *g, int code, int width)
{
    g->bits |= (uint32_t)code << g->n_bits;
    for (g->n_bits += width; g->n_bits >= 8; g->n_bits -= 8, g->bits >>= 8) buf_putc(&g->out, (char)g->bits);
}

/* LZW as an encoder does it, with a table that is searched one by one. */
static void gif_lzw(buf *to, const uint8_t *pixels, size_t n, int min_bits)
{
    static int prefix[4096], last[4096];
    int        clear = 1 << min_bits, n_codes = clear + 2, width = min_bits + 1, old = -1;
    gif_bits   g = {0};
    buf_init(&g.out, 1 << 20);
    gif_code(&g, clear, width);
    for (size_t i = 0; i < n; i++) {
        int found = old < 0 ? pixels[i] : -1;
        for (int c = clear + 2; found < 0 && c < n_codes; c++)
            if (prefix[c] == old && last[c] == pixels[i]) found = c;
        if (found >= 0) {
            old = found;
            continue;
        }
        gif_code(&g, old, width);
        if (n_codes < 4096) {
            prefix[n_codes] = old;
            last[n_codes]   = pixels[i];
            if (n_codes++ == 1 << width) width++;
        } else if (i % 3000 == 0) {
            gif_code(&g, clear, width);
            n_codes = clear + 2;
            width   = min_bits + 1;
        }
        old = pixels[i];
    }
    gif_code(&g, old, width);
    if (n_codes == 1 << width && width < 12) width++;
    gif_code(&g, clear + 1, width);
    gif_code(&g, 0, 7);
    buf_putc(to, (char)min_bits);
    for (size_t i = 0; i < g.out.n; i += 255) {
        size_t each = g.out.n - i < 255 ? g.out.n - i : 255;
        buf_putc(to, (char)each);
        buf_put(to, g.out.p + i, each);
    }
    buf_putc(to, 0);
    buf_deinit(&g.out);
}

static void gif_header(buf *b, int width, int height, int color_bits)
{
    buf_puts(b, "GIF89a");
    put_le(b, 2, (uint32_t)width);
    put_le(b, 2, (uint32_t)height);
    buf_putc(b, (char)(0x80 | (color_bits - 1)));
    put_le(b, 2, 0);
    for (int i = 0; i < 1 << color_bits; i++)
        for (int c = 0; c < 3; c++) buf_putc(b, (char)(i < 4 ? colors[i][c] : i * (c + 1)));
}

static void gif_frame(buf *b, int x, int y, int width, int height, bool interlaced)
{
    buf_putc(b, 0x2c);
    put_le(b, 2, (uint32_t)x);
    put_le(b, 2, (uint32_t)y);
    put_le(b, 2, (uint32_t)width);
    put_le(b, 2, (uint32_t)height);
    buf_putc(b, interlaced ? 0x40 : 0);
}

TEST(decode_gif_frames)
{
    buf b;
    buf_init(&b, 1 << 20);
    gif_header(&b, 4, 3, 2);
    buf_put(&b, "\x21\xfe\3abc\0\x21\xf9\4\1\0\0\3\0", 15); /* a comment; color 3 is transparent */
    gif_frame(&b, 1, 1, 2, 2, false);
    gif_lzw(&b, (const uint8_t *)"\1\2\0\1", 4, 2);
    picture want = of_indices(t, 4, 3, "333331233013");
    check_same(t, "a frame inside the screen", &b, &want);
    picture_free(&want);

    buf_clear(&b);
    gif_header(&b, 1, 9, 2);
    gif_frame(&b, 0, 0, 1, 9, true);
    gif_lzw(&b, (const uint8_t *)"\0\1\2\3\0\1\2\3\0", 9, 2); /* rows 0 8, 4, 2 6, 1 3 5 7 */
    want = of_indices(t, 1, 9, "013223001");
    check_same(t, "interlaced", &b, &want);
    picture_free(&want);
    buf_deinit(&b);
}

TEST(decode_gif_with_full_code_tables)
{
    enum { W = 200, H = 150 };
    static uint8_t pixels[W * H];
    uint64_t       state = 5;
    picture        want  = {0};
    buf            b;
    err            e;
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)(test_rand(&state) % 200 & (i < 9000 ? 255 : 7));
    buf_init(&b, 1 << 20);
    gif_header(&b, W, H, 8);
    gif_frame(&b, 0, 0, W, H, false);
    gif_lzw(&b, pixels, sizeof pixels, 8);
    CHECK_OK(picture_new(&want, W, H, &e), e);
    for (size_t i = 0; i < sizeof pixels; i++)
        for (int c = 0; c < 3; c++)
            want.rgb[i * 3 + (size_t)c] = pixels[i] < 4 ? colors[pixels[i]][c] : (uint8_t)(pixels[i] * (c + 1));
    check_same(t, "all code widths", &b, &want);
    picture_free(&want);
    buf_deinit(&b);
}

/* --- WebP and JPEG ----------------------------------------------------------------------------- */
TEST(decode_webp_pictures)
{
    picture  p   = sample(t, 20, 11), framed;
    uint8_t *out = NULL;
    size_t   n   = WebPEncodeLosslessRGB(p.rgb, 20, 11, 60, &out);
    buf      b;
    err      e;
    buf_init(&b, 1 << 20);
    buf_put(&b, out, n);
    check_same(t, "lossless", &b, &p);

    /* An animation: a canvas of 24 x 12, its first frame at 2, 0. */
    buf_clear(&b);
    buf_puts(&b, "RIFF");
    put_le(&b, 4, (uint32_t)(4 + 18 + 14 + 24 + n - 12));
    buf_puts(&b, "WEBPVP8X");
    put_le(&b, 4, 10);
    put_le(&b, 4, 2);
    put_le(&b, 3, 23);
    put_le(&b, 3, 11);
    buf_puts(&b, "ANIM");
    put_le(&b, 4, 6);
    put_le(&b, 4, 0);
    put_le(&b, 2, 0);
    buf_puts(&b, "ANMF");
    put_le(&b, 4, (uint32_t)(16 + n - 12));
    put_le(&b, 3, 1);
    put_le(&b, 3, 0);
    put_le(&b, 3, 19);
    put_le(&b, 3, 10);
    put_le(&b, 4, 100);
    buf_put(&b, out + 12, n - 12);
    CHECK_OK(picture_new(&framed, 24, 12, &e), e);
    for (size_t y = 0; y < 11; y++) memcpy(framed.rgb + (y * 24 + 2) * 3, p.rgb + y * 60, 60);
    check_same(t, "the first frame of an animation", &b, &framed);
    WebPFree(out);
    picture_free(&framed);
    picture_free(&p);
    buf_deinit(&b);
}

/* Encodes p: as it is, or its first channel as grey, or CMYK. */
static void jpeg_of(buf *to, const picture *p, J_COLOR_SPACE space, bool progressive)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr       errors;
    unsigned char              *out = NULL;
    unsigned long               n   = 0;
    int                         k   = space == JCS_GRAYSCALE ? 1 : space == JCS_CMYK ? 4 : 3;
    uint8_t                    *row = xnew_n(uint8_t, (size_t)p->width * 4);
    c.err                           = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &out, &n);
    c.image_width      = (JDIMENSION)p->width;
    c.image_height     = (JDIMENSION)p->height;
    c.input_components = k;
    c.in_color_space   = space;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, 100, TRUE);
    if (progressive) jpeg_simple_progression(&c);
    jpeg_start_compress(&c, TRUE);
    for (int y = 0; y < p->height; y++) {
        for (int x = 0; x < p->width; x++)
            for (int i = 0; i < k; i++) row[x * k + i] = i == 3 ? 200 : p->rgb[(y * p->width + x) * 3 + i];
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    buf_put(to, out, n);
    free(out);
    mem_free(row);
}

static picture flat(test_case *t, int r, int g, int b)
{
    picture p = sample(t, 16, 16);
    for (int i = 0; i < 256 * 3; i++) p.rgb[i] = (uint8_t)(i % 3 == 0 ? r : i % 3 == 1 ? g : b);
    return p;
}

TEST(decode_jpeg_color_formats)
{
    picture p = sample(t, 40, 30), got, gray = flat(t, 90, 90, 90), ink = flat(t, 255, 128, 0);
    buf     b;
    err     e;
    buf_init(&b, 1 << 20);
    jpeg_of(&b, &p, JCS_RGB, false);
    if (CHECK_OK(decode_picture(&got, buf_str(&b), &e), e)) {
        buf_clear(&b);
        jpeg_of(&b, &p, JCS_RGB, true);
        check_same(t, "progressive", &b, &got);
        picture_free(&got);
    }
    buf_clear(&b);
    jpeg_of(&b, &gray, JCS_GRAYSCALE, false);
    check_same(t, "grey", &b, &gray);
    buf_clear(&b);
    jpeg_of(&b, &ink, JCS_CMYK, false); /* with Adobe's marker: 255 is no ink */
    picture want = flat(t, 200, 100, 0);
    check_same(t, "CMYK", &b, &want);
    picture_free(&want);
    picture_free(&ink);
    picture_free(&gray);
    picture_free(&p);
    buf_deinit(&b);
}

/* --- orientation ------------------------------------------------------------------------------- */
TEST(decode_orientations)
{
    /* 2 x 3 pixels 0 1 / 2 3 / 4 5, and how each orientation shows them. */
    static const char *const want[] = {"012345", "103254", "543210", "452301", "024135", "420531", "531420", "135024"};
    for (int i = 0; i < 8; i++) {
        picture p = {0};
        err     e;
        CHECK_OK(picture_new(&p, 2, 3, &e), e);
        for (int k = 0; k < 18; k++) p.rgb[k] = (uint8_t)(k / 3);
        CHECK_OK(decode_orient(&p, i + 1, &e), e);
        CHECK_INT(p.width, i < 4 ? 2 : 3);
        for (int k = 0; k < 18; k++) CHECK_INT(p.rgb[k], want[i][k / 3] - '0');
        picture_free(&p);
    }
}

TEST(decode_exif_orientation_values)
{
    static const char little[] = "II*\0\x08\0\0\0\2\0\x0f\1\2\0\1\0\0\0\0\0\0\0\x12\1\3\0\1\0\0\0\6\0\0\0";
    static const char big[]    = "Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\x08\0\0";
    char              bad[sizeof little];
    CHECK_INT(decode_exif_orientation((str){little, sizeof little - 1}), 6);
    CHECK_INT(decode_exif_orientation((str){big, sizeof big - 1}), 8);
    for (size_t n = 0; n < sizeof little - 1; n++) CHECK_INT(decode_exif_orientation((str){little, n}), 1);
    memcpy(bad, little, sizeof bad);
    bad[30] = 9; /* no such orientation */
    CHECK_INT(decode_exif_orientation((str){bad, sizeof bad - 1}), 1);
    memset(bad + 4, -1, 4); /* the directory is outside */
    CHECK_INT(decode_exif_orientation((str){bad, sizeof bad - 1}), 1);
}

/* --- damage ------------------------------------------------------------------------------------ */
static void decode_any(test_case *t, str file)
{
    picture p;
    err     e = {0};
    if (decode_picture(&p, file, &e))
        CHECK(p.rgb && p.width > 0 && p.height > 0);
    else
        CHECK(!p.rgb && e.text[0] && e.code != ERR_NONE);
    picture_free(&p);
}

TEST(decode_damaged_files)
{
    static const char *const names[] = {"alpha.png", "palette.png", "photo.jpg", "rotated.jpg"};
    uint64_t                 state   = 3;
    for (size_t i = 0; i < COUNT(names); i++) {
        char     path[256];
        file_map f;
        err      e;
        picture  p;
        snprintf(path, sizeof path, "tests/golden/vision-images/%s", names[i]);
        if (!CHECK_OK(file_map_open(&f, test_path(path), &e), e)) return;
        CHECK_FAILS(decode_picture(&p, (str){f.p, f.n / 2}, &e), e, "ends early");
        for (size_t n = 0; n < f.n; n += 1 + n / 16) decode_any(t, (str){f.p, n});
        char *bytes = xnew_n(char, f.n);
        for (int k = 0; k < 200; k++) {
            memcpy(bytes, f.p, f.n);
            for (int flips = 1 + k % 5; flips--;) bytes[test_rand(&state) % f.n] ^= (char)(1 << test_rand(&state) % 8);
            decode_any(t, (str){bytes, f.n});
        }
        mem_free(bytes);
        file_map_close(&f);
    }
}

TEST(decode_refuses_oversized_pictures)
{
    picture p;
    buf     b;
    err     e;
    buf_init(&b, 1 << 16);
    gif_header(&b, 65535, 65535, 2);
    gif_frame(&b, 0, 0, 1, 1, false);
    gif_lzw(&b, (const uint8_t *)"\1", 1, 2);
    CHECK_FAILS(decode_picture(&p, buf_str(&b), &e), e, "at most 67108864 pixels, got 65535 x 65535");
    CHECK_INT(e.code, ERR_TOO_LARGE);
    buf_clear(&b);
    bmp_header(&b, 1, 200000, 24, 0, 0, 0);
    CHECK_FAILS(decode_picture(&p, buf_str(&b), &e), e, "1 to 131072 pixels wide and high");
    buf_clear(&b);
    bmp_header(&b, -5, 2, 24, 0, 0, 0);
    CHECK_FAILS(decode_picture(&p, buf_str(&b), &e), e, "1 to 131072 pixels wide and high");
    CHECK_FAILS(decode_picture(&p, STR("hello, world"), &e), e, "not a picture");
    CHECK_FAILS(decode_picture(&p, STR(""), &e), e, "not a picture");
    buf_deinit(&b);
}
