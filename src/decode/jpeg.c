/* JPEG through libjpeg-turbo, with its default arithmetic: the accurate integer transform and smooth chroma. */
#include "base/num.h"
#include "decode/inside.h"

#include <setjmp.h>
#include <stdio.h>

#include <jerror.h>
#include <jpeglib.h>

#define MAX_SCANS 200 /* each one of a progressive picture costs a pass over all of it */

typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr         errors;
    struct jpeg_progress_mgr      progress;
    jmp_buf                       failed;
    picture                      *out;
    int                          *orientation;
    err                          *e;
} job;

__attribute__((noreturn)) static void on_error(j_common_ptr jpeg)
{
    job *j = jpeg->client_data;
    char why[JMSG_LENGTH_MAX];
    jpeg->err->format_message(jpeg, why);
    err_set(j->e, jpeg->err->msg_code == JERR_OUT_OF_MEMORY ? ERR_UNAVAILABLE : ERR_INPUT, "the file is damaged: %s",
            why);
    longjmp(j->failed, 1);
}

__attribute__((noreturn)) static void fail(job *j, err_code code, const char *why)
{
    err_set(j->e, code, "%s", why);
    longjmp(j->failed, 1);
}

/* Warnings are ignored, except that the file ends early: the rest would be grey. */
static void on_message(j_common_ptr jpeg, int level)
{
    if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF)
        fail(jpeg->client_data, ERR_INPUT, "the file is damaged: it ends early");
}

static void on_progress(j_common_ptr jpeg)
{
    job *j = jpeg->client_data;
    if (jpeg->is_decompressor && j->jpeg.input_scan_number > MAX_SCANS)
        fail(j, ERR_INPUT, "the file is damaged: it has over 200 scans");
}

static void read_exif(job *j)
{
    for (jpeg_saved_marker_ptr m = j->jpeg.marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length > 6 && !memcmp(m->data, "Exif\0", 6)) {
            *j->orientation = decode_exif_orientation((str){(char *)m->data, m->data_length});
            return;
        }
}

/* Converts a row of CMYK in place. Adobe's files store the inverse of the ink. */
static void cmyk_to_rgb(uint8_t *to, const uint8_t *from, int n, bool inverse)
{
    for (int i = 0; i < n; i++, from += 4, to += 3) {
        int k = inverse ? from[3] : 255 - from[3];
        for (int c = 0; c < 3; c++) {
            int ink = inverse ? 255 - from[c] : from[c], v = ink * k + 128;
            to[c] = (uint8_t)max_int(k - ((v + (v >> 8)) >> 8), 0);
        }
    }
}

/* Returns on success; jumps to `failed` otherwise. */
static void read_all(job *j, str file)
{
    struct jpeg_decompress_struct *d = &j->jpeg;
    jpeg_mem_src(d, (const unsigned char *)file.s, file.n);
    jpeg_save_markers(d, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(d, TRUE);
    read_exif(j);
    bool is_cmyk       = d->jpeg_color_space == JCS_CMYK || d->jpeg_color_space == JCS_YCCK;
    d->out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
    if (!picture_new(j->out, (int)d->image_width, (int)d->image_height, j->e)) longjmp(j->failed, 1);
    jpeg_start_decompress(d);
    int width = j->out->width;
    if (d->output_components != (is_cmyk ? 4 : 3) || d->output_width != (JDIMENSION)width)
        fail(j, ERR_INPUT, "the file has an unknown color format");
    JSAMPARRAY line = is_cmyk ? d->mem->alloc_sarray((j_common_ptr)d, JPOOL_IMAGE, (JDIMENSION)width * 4, 1) : NULL;
    while (d->output_scanline < d->output_height) {
        uint8_t *to = j->out->rgb + (size_t)d->output_scanline * (size_t)width * 3;
        jpeg_read_scanlines(d, line ? line : &to, 1);
        if (line) cmyk_to_rgb(to, line[0], width, d->saw_Adobe_marker);
    }
    jpeg_finish_decompress(d);
}

static bool read_or_fail(job *j, str file)
{
    if (setjmp(j->failed)) return false;
    jpeg_create_decompress(&j->jpeg);
    j->jpeg.client_data          = j; /* jpeg_create_decompress keeps it, and `err` */
    j->progress.progress_monitor = on_progress;
    j->jpeg.progress             = &j->progress;
    read_all(j, file);
    return true;
}

bool decode_jpeg(picture *out, int *orientation, str file, err *e)
{
    job j                 = {.out = out, .orientation = orientation, .e = e};
    j.jpeg.err            = jpeg_std_error(&j.errors);
    j.jpeg.client_data    = &j;
    j.errors.error_exit   = on_error;
    j.errors.emit_message = on_message;
    bool ok               = read_or_fail(&j, file);
    jpeg_destroy_decompress(&j.jpeg);
    if (!ok) picture_free(out);
    return ok;
}
