/* PNG through libpng. Palettes and grey become RGB, 16 bit become 8, transparency is dropped without blending. */
#include "base/mem.h"
#include "decode/inside.h"

#include <png.h>
#include <setjmp.h>

typedef struct {
    png_structp png;
    png_infop   info;
    str         file;
    size_t      at; /* bytes read */
    picture    *out;
    uint8_t   **rows;
    int        *orientation;
    err        *e;
} job;

static void on_read(png_structp png, png_bytep to, size_t n)
{
    job *j = png_get_io_ptr(png);
    if (!range_inside(j->at, n, j->file.n)) png_error(png, "the file ends early");
    memcpy(to, j->file.s + j->at, n);
    j->at += n;
}

__attribute__((noreturn)) static void on_error(png_structp png, png_const_charp why)
{
    job *j = png_get_error_ptr(png);
    err_set(j->e, ERR_INPUT, "the file is damaged: %s", why);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp why)
{
    (void)png;
    (void)why;
}

/* Chunks that a picture does not need: their contents are not decompressed. */
static void skip_chunks(png_structp png)
{
    static const png_byte names[] = "iCCP\0zTXt\0iTXt\0tEXt\0sPLT";
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, names, 5);
    png_set_chunk_malloc_max(png, 1 << 20);
    png_set_user_limits(png, PICTURE_MAX_SIDE, PICTURE_MAX_SIDE);
}

static void read_exif(job *j)
{
    png_uint_32 n    = 0;
    png_bytep   exif = NULL;
    if (png_get_eXIf_1(j->png, j->info, &n, &exif)) *j->orientation = decode_exif_orientation((str){(char *)exif, n});
}

/* Returns false with *e set, or jumps to the caller's setjmp. */
static bool read_all(job *j)
{
    png_structp png = j->png;
    skip_chunks(png);
    png_set_read_fn(png, j, on_read);
    png_read_info(png, j->info);
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    png_set_interlace_handling(png);
    int width = (int)png_get_image_width(png, j->info), height = (int)png_get_image_height(png, j->info);
    if (!picture_new(j->out, width, height, j->e)) return false;
    png_read_update_info(png, j->info);
    if (png_get_rowbytes(png, j->info) != (size_t)width * 3) png_error(png, "its pixels have an unknown format");
    j->rows = mem_try_n((size_t)height, sizeof *j->rows);
    if (!j->rows) return err_set(j->e, ERR_UNAVAILABLE, "no memory for the rows of a picture");
    for (int y = 0; y < height; y++) j->rows[y] = j->out->rgb + (size_t)y * (size_t)width * 3;
    png_read_image(png, j->rows);
    png_read_end(png, j->info);
    read_exif(j);
    return true;
}

static bool read_or_fail(job *j) { return !setjmp(png_jmpbuf(j->png)) && read_all(j); }

bool decode_png(picture *out, int *orientation, str file, err *e)
{
    job j  = {.file = file, .out = out, .orientation = orientation, .e = e};
    j.png  = png_create_read_struct(PNG_LIBPNG_VER_STRING, &j, on_error, on_warning);
    j.info = j.png ? png_create_info_struct(j.png) : NULL;
    bool ok;
    if (j.info)
        ok = read_or_fail(&j);
    else
        ok = err_set(e, ERR_UNAVAILABLE, "libpng cannot start");
    png_destroy_read_struct(&j.png, &j.info, NULL);
    mem_free(j.rows);
    if (!ok) picture_free(out);
    return ok;
}
