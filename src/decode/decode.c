#include "decode/inside.h"

#include "base/mem.h"

static const struct {
    const char *name, *magic;
    size_t      n;
    const char *second; /* at byte 8, four bytes; NULL: none */
    bool (*decode)(picture *out, int *orientation, str file, err *e);
} formats[] = {
    {"PNG", "\x89PNG\r\n\x1a\n", 8, NULL, decode_png},
    {"JPEG", "\xff\xd8\xff", 3, NULL, decode_jpeg},
    {"WebP", "RIFF", 4, "WEBP", decode_webp},
    {"GIF", "GIF87a", 6, NULL, decode_gif},
    {"GIF", "GIF89a", 6, NULL, decode_gif},
    {"BMP", "BM", 2, NULL, decode_bmp},
};

static bool has_magic(size_t i, str file)
{
    if (file.n < 12 || memcmp(file.s, formats[i].magic, formats[i].n)) return false;
    return !formats[i].second || !memcmp(file.s + 8, formats[i].second, 4);
}

bool decode_picture(picture *out, str file, err *e)
{
    *out = (picture){0};
    for (size_t i = 0; i < COUNT(formats); i++) {
        int orientation = 1;
        if (!has_magic(i, file)) continue;
        if (!formats[i].decode(out, &orientation, file, e) || !decode_orient(out, orientation, e)) {
            picture_free(out);
            return err_wrap(e, "%s", formats[i].name);
        }
        return true;
    }
    return err_set(e, ERR_INPUT, "the file is not a picture: PNG, JPEG, WebP, GIF and BMP are read");
}
