#include "base/mem.h"
#include "decode/inside.h"

#define TAG_ORIENTATION 0x0112
#define TYPE_SHORT      3

static uint32_t number(str s, size_t at, int n, bool big)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++) v |= decode_u8(s, at + (size_t)i) << 8 * (big ? n - 1 - i : i);
    return v;
}

int decode_exif_orientation(str exif)
{
    if (exif.n >= 6 && !memcmp(exif.s, "Exif\0", 6)) exif = (str){exif.s + 6, exif.n - 6};
    if (exif.n < 8) return 1;
    bool big = exif.s[0] == 'M';
    if (memcmp(exif.s, big ? "MM\0*" : "II*", 4)) return 1;
    size_t at = number(exif, 4, 4, big);
    if (!range_inside(at, 2, exif.n)) return 1;
    size_t n = number(exif, at, 2, big);
    for (at += 2; n--; at += 12) {
        if (!range_inside(at, 12, exif.n)) return 1;
        if (number(exif, at, 2, big) != TAG_ORIENTATION || number(exif, at + 2, 2, big) != TYPE_SHORT) continue;
        uint32_t v = number(exif, at + 8, 2, big);
        return v >= 1 && v <= 8 ? (int)v : 1;
    }
    return 1;
}

bool decode_orient(picture *p, int orientation, err *e)
{
    static const struct {
        bool swap, from_right, from_bottom; /* where the stored picture is read */
    } ways[]    = {{false, false, false}, {false, true, false}, {false, true, true}, {false, false, true},
                   {true, false, false},  {true, false, true},  {true, true, true},  {true, true, false}};
    int     way = orientation - 1, w = p->width, h = p->height;
    picture out;
    if (way < 1 || way > 7) return true;
    if (!picture_new(&out, ways[way].swap ? h : w, ways[way].swap ? w : h, e)) return false;
    for (int y = 0; y < out.height; y++)
        for (int x = 0; x < out.width; x++) {
            int            sx = ways[way].swap ? y : x, sy = ways[way].swap ? x : y;
            const uint8_t *from;
            if (ways[way].from_right) sx = w - 1 - sx;
            if (ways[way].from_bottom) sy = h - 1 - sy;
            from = p->rgb + ((size_t)sy * (size_t)w + (size_t)sx) * 3;
            memcpy(out.rgb + ((size_t)y * (size_t)out.width + (size_t)x) * 3, from, 3);
        }
    picture_free(p);
    *p = out;
    return true;
}
