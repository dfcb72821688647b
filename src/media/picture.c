#include "media/picture.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

bool picture_new(picture *out, int width, int height, err *e)
{
    *out = (picture){0};
    if (width < 1 || height < 1 || width > PICTURE_MAX_SIDE || height > PICTURE_MAX_SIDE)
        return err_set(e, ERR_TOO_LARGE, "a picture must be 1 to %d pixels wide and high, got %d x %d",
                       PICTURE_MAX_SIDE, width, height);
    if ((int64_t)width * height > PICTURE_MAX_PIXELS)
        return err_set(e, ERR_TOO_LARGE, "a picture has at most %lld pixels, got %d x %d",
                       (long long)PICTURE_MAX_PIXELS, width, height);
    picture p = {width, height, NULL};
    p.rgb     = mem_try(picture_bytes(&p));
    if (!p.rgb) return err_set(e, ERR_UNAVAILABLE, "no memory for a picture of %d x %d", width, height);
    *out = p;
    return true;
}

void picture_free(picture *p)
{
    if (!p) return;
    mem_free(p->rgb);
    *p = (picture){0};
}

/* One axis from n to m samples: sample i of the output is the sum of weight[at[i] ..] times the samples from first[i],
 * count[i] of them. */
typedef struct {
    int     *first, *count;
    size_t  *at;
    int32_t *weight; /* in units of 2^-22 */
} axis;

#define WEIGHT_BITS 22

static double cubic(double x)
{
    const double a = -0.5;
    x              = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

static void axis_free(axis *a)
{
    mem_free(a->first);
    mem_free(a->count);
    mem_free(a->at);
    mem_free(a->weight);
}

static bool axis_new(axis *a, int n, int m, err *e)
{
    double scale = (double)n / m, wide = scale > 1 ? scale : 1, support = 2 * wide;
    size_t max = (size_t)ceil(support) * 2 + 1; /* weights of one output sample */

    *a         = (axis){0};
    a->first   = mem_try_n((size_t)m, sizeof *a->first);
    a->count   = mem_try_n((size_t)m, sizeof *a->count);
    a->at      = mem_try_n((size_t)m, sizeof *a->at);
    a->weight  = mem_try_n((size_t)m * max, sizeof *a->weight);
    double *w  = mem_try_n(max, sizeof *w);
    bool    ok = a->first && a->count && a->at && a->weight && w;
    for (int i = 0; ok && i < m; i++) {
        double center = (i + 0.5) * scale, sum = 0;
        int    lo = max_int((int)(center - support + 0.5), 0), hi = min_int((int)(center + support + 0.5), n);
        for (int j = lo; j < hi; j++) sum += w[j - lo] = cubic((j - center + 0.5) / wide);
        a->first[i]  = lo;
        a->count[i]  = hi - lo;
        a->at[i]     = (size_t)i * max;
        int32_t *out = a->weight + a->at[i];
        for (int j = 0; j < hi - lo; j++) {
            double v = w[j] / sum * (1 << WEIGHT_BITS);
            out[j]   = (int32_t)(v < 0 ? v - 0.5 : v + 0.5);
        }
    }
    mem_free(w);
    return ok || err_set(e, ERR_UNAVAILABLE, "no memory to resize a picture");
}

static uint8_t to_byte(int32_t sum)
{
    int32_t v = sum >> WEIGHT_BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static void resize_columns(picture *out, const picture *in, const axis *a)
{
    for (int y = 0; y < in->height; y++) {
        const uint8_t *row = in->rgb + (size_t)y * in->width * 3;
        uint8_t       *to  = out->rgb + (size_t)y * out->width * 3;
        for (int x = 0; x < out->width; x++, to += 3) {
            const uint8_t *from   = row + (size_t)a->first[x] * 3;
            const int32_t *weight = a->weight + a->at[x];
            int32_t        r = 1 << (WEIGHT_BITS - 1), g = r, b = r;
            for (int j = 0; j < a->count[x]; j++, from += 3) {
                r += weight[j] * from[0];
                g += weight[j] * from[1];
                b += weight[j] * from[2];
            }
            to[0] = to_byte(r);
            to[1] = to_byte(g);
            to[2] = to_byte(b);
        }
    }
}

static void resize_rows(picture *out, const picture *in, const axis *a)
{
    size_t stride = (size_t)in->width * 3;
    for (int y = 0; y < out->height; y++) {
        const uint8_t *from   = in->rgb + (size_t)a->first[y] * stride;
        const int32_t *weight = a->weight + a->at[y];
        uint8_t       *to     = out->rgb + (size_t)y * stride;
        for (size_t i = 0; i < stride; i++) {
            int32_t sum = 1 << (WEIGHT_BITS - 1);
            for (int j = 0; j < a->count[y]; j++) sum += weight[j] * from[(size_t)j * stride + i];
            to[i] = to_byte(sum);
        }
    }
}

/* Resizes one axis, whose size changes. */
static bool one_pass(picture *out, const picture *in, int width, int height, err *e)
{
    bool wide = width != in->width;
    axis a;
    bool ok =
        axis_new(&a, wide ? in->width : in->height, wide ? width : height, e) && picture_new(out, width, height, e);
    if (ok) (wide ? resize_columns : resize_rows)(out, in, &a);
    axis_free(&a);
    return ok;
}

bool picture_resize(picture *out, const picture *in, int width, int height, err *e)
{
    picture narrow = {0};
    bool    ok;

    *out = (picture){0};
    if (width == in->width && height == in->height) {
        ok = picture_new(out, width, height, e);
        if (ok) memcpy(out->rgb, in->rgb, picture_bytes(in));
    } else if (width == in->width || height == in->height) {
        ok = one_pass(out, in, width, height, e);
    } else {
        ok = one_pass(&narrow, in, width, in->height, e) && one_pass(out, &narrow, width, height, e);
        picture_free(&narrow);
    }
    return ok;
}
