/* media/patches.h - sizes and patches: what a vision encoder reads of a picture.
 *
 *      picture -> patch_target_size -> picture_resize -> patch_write -> bytes -> patch_value -> numbers of the encoder
 *
 * A picture is cut into square patches. Square groups of patches, called cells here, become one soft token (a row of
 * the text model's input) each. A video is a sequence of steps; a step has `frames` pictures of one size, which share
 * patches. A still picture is one step, and fills all frames of its patches. */
#ifndef TANDEM_MEDIA_PATCHES_H
#define TANDEM_MEDIA_PATCHES_H
#include "media/picture.h"

/* Chooses the target size from that of the picture. */
typedef enum {
    PATCH_FIT_BUDGET, /* the largest size, of about the same shape, that has at most max_cells cells */
    PATCH_FIT_AREA,   /* the nearest multiple of a cell, scaled when its area is outside min_area .. max_area */
} patch_fit;

typedef enum {
    PATCH_ORDER_ROWS,  /* patches row by row; values of a patch: row, column, channel; from 0 to 1 */
    PATCH_ORDER_CELLS, /* cells row by row, in a cell patches row by row; values: channel, frame, row, column;
                          from -1 to 1 */
} patch_order;

/* Constants of an encoder. A model fills it in; these are not read from a request. */
typedef struct {
    patch_fit   fit;
    patch_order order;
    int         patch;              /* side of a patch in pixels */
    int         cell;               /* side of a cell in pixels, a multiple of patch */
    int         frames;             /* pictures that share a patch: 1 or 2 */
    int         max_cells;          /* PATCH_FIT_BUDGET: soft tokens of a picture */
    int64_t     min_area, max_area; /* PATCH_FIT_AREA: limits of width * height, times the frames of a video */
} patch_rule;

/* Sets the size to which a picture, or every frame of a video of n_frames (0: a still picture), is resized. Both sides
 * are multiples of a cell. ERR_INPUT when the shape is not accepted (one side over 200 times the other, with
 * PATCH_FIT_AREA). */
bool patch_target_size(int *out_width, int *out_height, const patch_rule *r, int width, int height, int n_frames,
                       err *e);

/* Numbers of a step, of pictures that were resized already. */
static inline int patch_count(const patch_rule *r, int width, int height)
{
    return (width / r->patch) * (height / r->patch);
}
static inline int patch_cells(const patch_rule *r, int width, int height)
{
    return (width / r->cell) * (height / r->cell); /* soft tokens */
}
static inline int patch_values(const patch_rule *r) { return r->patch * r->patch * 3 * r->frames; }
/* Returns the steps of a video of n_frames: an incomplete last step repeats the last frame. */
static inline int patch_steps(const patch_rule *r, int n_frames) { return (n_frames + r->frames - 1) / r->frames; }

/* Sets the column and row, in patches, of patch i of a step whose pictures are `width` wide. */
void patch_position(int *x, int *y, const patch_rule *r, int width, int i);
/* Writes the patch at column x and row y of one step, patch_values bytes. frames[0 .. r->frames) have one size; a still
 * picture is given for all of them. */
void patch_write(uint8_t *out, const patch_rule *r, const picture *const *frames, int x, int y);
/* Returns the number that the encoder reads for a byte of a patch. */
float patch_value(const patch_rule *r, uint8_t byte);
#endif
