/* decode/inside.h - one function per format; private to src/decode and its tests. */
#ifndef TANDEM_DECODE_INSIDE_H
#define TANDEM_DECODE_INSIDE_H
#include "decode/decode.h"
#include "decode/worker.h"

/* The functions below decode a whole file. *out is empty before the call and after a failure. *orientation is set to
 * the EXIF orientation if the file has one. */
bool decode_png(picture *out, int *orientation, str file, err *e);
bool decode_jpeg(picture *out, int *orientation, str file, err *e);
bool decode_webp(picture *out, int *orientation, str file, err *e);
bool decode_gif(picture *out, int *orientation, str file, err *e);
bool decode_bmp(picture *out, int *orientation, str file, err *e);

/* Returns the orientation (1 to 8) of EXIF data, which begin with a TIFF header or with "Exif\0\0" and one; 1 when they
 * have none or are damaged. */
int decode_exif_orientation(str exif);
/* Turns and mirrors the picture so that orientation 1 is right for it. */
bool decode_orient(picture *p, int orientation, err *e);

int decode_worker_pid(const decode_worker *w); /* returns the process for pictures; 0: none */

/* Numbers at a position, which must be inside the string. */
static inline uint32_t decode_u8(str s, size_t at) { return (uint8_t)s.s[at]; }
static inline uint32_t decode_le16(str s, size_t at) { return decode_u8(s, at) | decode_u8(s, at + 1) << 8; }
static inline uint32_t decode_le32(str s, size_t at) { return decode_le16(s, at) | decode_le16(s, at + 2) << 16; }
#endif
