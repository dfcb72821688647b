#include "ops/cache_inside.h"

#include "base/num.h"
#include "gguf/quant.h"
#include "gguf/safetensors.h"
#include "test.h"

#include <math.h>

static const cache_type SCALED[] = {CACHE_Q8_0, CACHE_Q4_0, CACHE_TQ3};
static const int        DIMS[]   = {64, 128, 256, 512};
static const int        SHOWN[]  = {0, 11, 12, 13, 14, 15}; /* positions of `rotated` and `decoded` */

static const void *find(test_case *t, const safetensors *s, const char *name, size_t bytes)
{
    const tensor *x = tensor_find(safetensors_tensors(s), str_of(name));
    return CHECK_MSG(x && x->bytes == bytes, "%s is missing or has another size", name) ? x->data : NULL;
}

static const void *find_of(test_case *t, const safetensors *s, int dim, const char *type, const char *what,
                           size_t bytes)
{
    char name[64];
    snprintf(name, sizeof name, "d%d.%s%s%s", dim, type, type[0] ? "." : "", what);
    return find(t, s, name, bytes);
}

static bool open_golden(test_case *t, safetensors **out)
{
    err e = {0};
    return CHECK_OK(safetensors_open(out, test_path("tests/golden/kv-types/golden.safetensors"), &e), e);
}

static void check_plane(test_case *t, const safetensors *s, cache_type type, int dim)
{
    const cache_layout  *l     = cache_layout_of(type);
    size_t               bytes = cache_head_bytes(l, dim);
    const float         *x     = find_of(t, s, dim, "", "x", KV_PAGE * (size_t)dim * sizeof *x);
    const uint8_t       *want  = find_of(t, s, dim, l->name, "bytes", bytes);
    _Alignas(16) uint8_t plane[CACHE_MAX_HEAD * KV_PAGE * 4];
    memset(plane, 0xAA, bytes);
    if (!x || !want) return;
    for (int at = KV_PAGE; at-- > 0;) cache_encode(type, plane, at, x + (size_t)at * (size_t)dim, dim);
    for (size_t i = 0; i < bytes; i++)
        if (!CHECK_MSG(plane[i] == want[i], "%s, head of %d: byte %zu is %d, expected %d", l->name, dim, i, plane[i],
                       want[i]))
            return;
}

TEST(cache_codes_are_the_golden_bytes)
{
    safetensors *s;
    if (!open_golden(t, &s)) return;
    check_plane(t, s, CACHE_F16, 64);
    for (size_t k = 0; k < COUNT(SCALED); k++)
        for (size_t d = 0; d < COUNT(DIMS); d++) check_plane(t, s, SCALED[k], DIMS[d]);
    safetensors_close(s);
}

static void check_decoded(test_case *t, const safetensors *s, cache_type type, int dim)
{
    const cache_layout *l     = cache_layout_of(type);
    const uint8_t      *plane = find_of(t, s, dim, l->name, "bytes", cache_head_bytes(l, dim));
    const float        *want  = find_of(t, s, dim, l->name, "decoded", COUNT(SHOWN) * (size_t)dim * sizeof *want);
    for (size_t i = 0; plane && want && i < COUNT(SHOWN); i++) {
        float y[CACHE_MAX_HEAD];
        cache_decode(type, plane, SHOWN[i], y, dim);
        CHECK_MSG(!memcmp(y, want + i * (size_t)dim, (size_t)dim * sizeof *y), "%s, head of %d: position %d differs",
                  l->name, dim, SHOWN[i]);
    }
}

TEST(cache_codes_decode_to_the_golden_values)
{
    safetensors *s;
    if (!open_golden(t, &s)) return;
    for (size_t k = 0; k < COUNT(SCALED); k++)
        for (int d = 0; d < 2; d++) check_decoded(t, s, SCALED[k], DIMS[d]);
    safetensors_close(s);
}

TEST(cache_rotation_is_golden_and_has_an_inverse)
{
    safetensors *s;
    if (!open_golden(t, &s)) return;
    for (int d = 0; d < 2; d++) {
        size_t       dim  = (size_t)DIMS[d];
        const float *x    = find_of(t, s, DIMS[d], "", "x", KV_PAGE * dim * sizeof *x);
        const float *want = find_of(t, s, DIMS[d], "", "rotated", COUNT(SHOWN) * dim * sizeof *want);
        for (size_t i = 0; x && want && i < COUNT(SHOWN); i++) {
            float        y[CACHE_MAX_HEAD], max = 0;
            const float *from = x + (size_t)SHOWN[i] * dim;
            memcpy(y, from, dim * sizeof *y);
            cache_rotate(y, DIMS[d]);
            CHECK_MSG(!memcmp(y, want + i * dim, dim * sizeof *y), "position %d of heads of %zu differs", SHOWN[i],
                      dim);
            cache_unrotate(y, DIMS[d]);
            for (size_t k = 0; k < dim; k++) max = fmaxf(max, fabsf(from[k]));
            for (size_t k = 0; k < dim; k++) CHECK_NEAR(y[k], from[k], 1e-6 * max);
        }
    }
    safetensors_close(s);
}

/* Halves, equal extremes and zeros. The rotation of the head that is encoded gives exactly the wanted block. */
TEST(cache_codes_of_blocks_at_the_edges)
{
    safetensors *s;
    if (!open_golden(t, &s)) return;
    const float *y = find(t, s, "edge.y", 4 * CACHE_BLOCK * sizeof *y);
    for (int k = 0; y && k < 2; k++) {
        const char *name = cache_layout_of(SCALED[k])->name;
        char        what[64];
        snprintf(what, sizeof what, "edge.%s.codes", name);
        const int32_t *code = find(t, s, what, 4 * CACHE_BLOCK * sizeof *code);
        snprintf(what, sizeof what, "edge.%s.scales", name);
        const uint16_t *scale = find(t, s, what, 4 * sizeof *scale);
        for (int i = 0; code && scale && i < 4; i++) {
            int8_t   got[CACHE_BLOCK];
            uint16_t got_scale = cache_encode_block(SCALED[k], got, y + (ptrdiff_t)i * CACHE_BLOCK);
            CHECK_INT(got_scale, scale[i]);
            for (int j = 0; j < CACHE_BLOCK; j++) CHECK_INT(got[j], code[i * CACHE_BLOCK + j]);
        }
    }
    safetensors_close(s);
}

/* A NaN or infinity reaches attention; it must not become a plausible number. */
TEST(cache_codes_keep_nan_visible)
{
    for (size_t k = 0; k < COUNT(SCALED); k++)
        for (int which = 0; which < 2; which++) {
            _Alignas(16) uint8_t plane[64 * KV_PAGE * 4];
            float                x[64], y[64];
            for (int i = 0; i < 64; i++) x[i] = (float)(i - 20);
            x[37] = which ? NAN : INFINITY;
            memset(plane, 0, sizeof plane);
            cache_encode(SCALED[k], plane, 3, x, 64);
            cache_decode(SCALED[k], plane, 3, y, 64);
            for (int i = 0; i < 64; i++) CHECK(isnan(y[i]) || (!which && fabsf(y[i]) > 1e4f));
        }
}

TEST(cache_copy_moves_codes_and_scales)
{
    for (int type = 0; type < CACHE_N_TYPES; type++) {
        size_t               bytes = cache_head_bytes(cache_layout_of((cache_type)type), 128);
        _Alignas(16) uint8_t a[128 * KV_PAGE * 4], b[128 * KV_PAGE * 4], want[sizeof b];
        float                x[128];
        memset(a, 1, sizeof a);
        memset(b, 0x5A, sizeof b);
        for (int i = 0; i < 128; i++) x[i] = sinf((float)(i * i));
        cache_encode((cache_type)type, a, 7, x, 128);
        memcpy(want, b, sizeof b);
        cache_encode((cache_type)type, want, 12, x, 128);
        cache_copy((cache_type)type, b, 12, a, 7, 128);
        CHECK(!memcmp(b, want, bytes));
    }
}
