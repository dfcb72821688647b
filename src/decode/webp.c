/* WebP through libwebp: the first frame on its canvas, which is black elsewhere. */
#include "decode/inside.h"

#include <webp/decode.h>
#include <webp/demux.h>

static void read_exif(const WebPDemuxer *d, int *orientation)
{
    WebPChunkIterator c;
    if (WebPDemuxGetChunk(d, "EXIF", 1, &c))
        *orientation = decode_exif_orientation((str){(const char *)c.chunk.bytes, c.chunk.size});
    WebPDemuxReleaseChunkIterator(&c);
}

static bool read_frame(picture *out, const WebPIterator *f, err *e)
{
    int x = f->x_offset, y = f->y_offset, width = 0, height = 0;
    if (!WebPGetInfo(f->fragment.bytes, f->fragment.size, &width, &height) || width != f->width || height != f->height)
        return err_set(e, ERR_INPUT, "the file is damaged: its first frame has no size");
    if (x < 0 || y < 0 || width > out->width - x || height > out->height - y)
        return err_set(e, ERR_INPUT, "the file is damaged: its first frame is not inside the picture");
    size_t   skip = ((size_t)y * (size_t)out->width + (size_t)x) * 3;
    uint8_t *ok   = WebPDecodeRGBInto(f->fragment.bytes, f->fragment.size, out->rgb + skip, picture_bytes(out) - skip,
                                      out->width * 3);
    return ok || err_set(e, ERR_INPUT, "the file is damaged: its first frame cannot be decoded");
}

bool decode_webp(picture *out, int *orientation, str file, err *e)
{
    WebPData     data = {(const uint8_t *)file.s, file.n};
    WebPDemuxer *d    = WebPDemux(&data);
    WebPIterator first;
    if (!d) return err_set(e, ERR_INPUT, "the file is damaged or ends early");
    bool ok =
        picture_new(out, (int)WebPDemuxGetI(d, WEBP_FF_CANVAS_WIDTH), (int)WebPDemuxGetI(d, WEBP_FF_CANVAS_HEIGHT), e);
    if (ok && !WebPDemuxGetFrame(d, 1, &first))
        ok = err_set(e, ERR_INPUT, "the file is damaged: it has no frame");
    else if (ok) {
        ok = read_frame(out, &first, e);
        WebPDemuxReleaseIterator(&first);
    }
    if (ok) read_exif(d, orientation);
    WebPDemuxDelete(d);
    if (!ok) picture_free(out);
    return ok;
}
