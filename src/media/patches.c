#include "media/patches.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

#define MAX_SHAPE 200 /* PATCH_FIT_AREA: the longer side over the shorter one */

static int64_t floor_to(double v, int unit) { return (int64_t)floor(v / unit) * unit; }
static int64_t ceil_to(double v, int unit) { return (int64_t)ceil(v / unit) * unit; }
static int64_t round_to(double v, int unit) { return (int64_t)rint(v / unit) * unit; } /* halves to even */

static void fit_budget(int64_t *out_width, int64_t *out_height, const patch_rule *r, int64_t width, int64_t height)
{
    double  f = sqrt((double)r->max_cells * r->cell * r->cell / ((double)height * (double)width));
    int64_t h = floor_to(f * (double)height, r->cell), w = floor_to(f * (double)width, r->cell);
    int64_t limit = (int64_t)r->max_cells * r->cell;
    if (!h) {
        h = r->cell;
        w = width / height * r->cell;
        if (w > limit) w = limit;
    } else if (!w) {
        w = r->cell;
        h = height / width * r->cell;
        if (h > limit) h = limit;
    }
    *out_width  = w;
    *out_height = h;
}

/* Scales up a frame of a video until no side is below a cell. */
static void grow_to_cell(int64_t *width, int64_t *height, int cell)
{
    if (*width >= cell && *height >= cell) return;
    double scale = fmax((double)cell / (double)*height, (double)cell / (double)*width);
    *height      = (int64_t)((double)*height * scale);
    *width       = (int64_t)((double)*width * scale);
}

static void fit_area(int64_t *out_width, int64_t *out_height, const patch_rule *r, int64_t width, int64_t height,
                     int n_frames)
{
    int64_t h = round_to((double)height, r->cell), w = round_to((double)width, r->cell);
    int64_t steps = n_frames ? round_to(n_frames, r->frames) : 1;
    double  area  = (double)(n_frames ? n_frames : 1) * (double)height * (double)width;
    if (steps * h * w > r->max_area) {
        double b = sqrt(area / (double)r->max_area);
        h        = floor_to((double)height / b, r->cell);
        w        = floor_to((double)width / b, r->cell);
        if (h < r->cell) h = r->cell;
        if (w < r->cell) w = r->cell;
    } else if (steps * h * w < r->min_area) {
        double b = sqrt((double)r->min_area / area);
        h        = ceil_to((double)height * b, r->cell);
        w        = ceil_to((double)width * b, r->cell);
    }
    *out_width  = w;
    *out_height = h;
}

bool patch_target_size(int *out_width, int *out_height, const patch_rule *r, int width, int height, int n_frames,
                       err *e)
{
    int64_t w = width, h = height;
    if (width < 1 || height < 1) return err_set(e, ERR_INPUT, "a picture of %d x %d is empty", width, height);
    if (r->fit == PATCH_FIT_BUDGET) {
        fit_budget(&w, &h, r, w, h);
    } else {
        if (n_frames) grow_to_cell(&w, &h, r->cell);
        if ((w > h ? w : h) > (w > h ? h : w) * MAX_SHAPE)
            return err_set(e, ERR_INPUT, "a picture's longer side is at most %d times the shorter one, got %d x %d",
                           MAX_SHAPE, width, height);
        fit_area(&w, &h, r, w, h, n_frames);
    }
    if (w < 1 || h < 1 || w > PICTURE_MAX_SIDE || h > PICTURE_MAX_SIDE || w * h > PICTURE_MAX_PIXELS)
        return err_set(e, ERR_INPUT, "a picture of %d x %d has a shape that this model does not accept", width, height);
    *out_width  = (int)w;
    *out_height = (int)h;
    return true;
}

void patch_position(int *x, int *y, const patch_rule *r, int width, int i)
{
    int side = r->order == PATCH_ORDER_CELLS ? r->cell / r->patch : 1; /* patches of a cell are consecutive */
    int area = side * side, across = width / (side * r->patch);
    *x = i / area % across * side + i % area % side;
    *y = i / area / across * side + i % area / side;
}

static void write_rows(uint8_t *out, const patch_rule *r, const picture *p, int x, int y)
{
    size_t n = (size_t)r->patch * 3;
    for (int row = 0; row < r->patch; row++, out += n)
        memcpy(out, p->rgb + ((size_t)(y + row) * (size_t)p->width + (size_t)x) * 3, n);
}

static void write_planes(uint8_t *out, const patch_rule *r, const picture *const *frames, int x, int y)
{
    size_t plane = (size_t)r->patch * (size_t)r->patch, step = (size_t)r->frames * plane; /* between channels */
    for (int t = 0; t < r->frames; t++)
        for (int row = 0; row < r->patch; row++) {
            const picture *p    = frames[t];
            const uint8_t *from = p->rgb + ((size_t)(y + row) * (size_t)p->width + (size_t)x) * 3;
            uint8_t       *to   = out + (size_t)t * plane + (size_t)row * (size_t)r->patch;
            for (int i = 0; i < r->patch; i++)
                for (size_t channel = 0; channel < 3; channel++) to[channel * step + (size_t)i] = *from++;
        }
}

void patch_write(uint8_t *out, const patch_rule *r, const picture *const *frames, int x, int y)
{
    if (r->order == PATCH_ORDER_ROWS)
        write_rows(out, r, frames[0], x * r->patch, y * r->patch);
    else
        write_planes(out, r, frames, x * r->patch, y * r->patch);
}

float patch_value(const patch_rule *r, uint8_t byte)
{
    return r->order == PATCH_ORDER_ROWS ? byte / 255.0f : (byte / 255.0f - 0.5f) / 0.5f;
}
