#include "ops/cache_type.h"

#include "test.h"

TEST(cache_types_are_read_and_written)
{
    static const struct {
        const char *text;
        cache_types types;
        const char *name; /* NULL: as the text */
    } good[] = {{"f16", {CACHE_F16, CACHE_F16}, NULL},
                {"f32", {CACHE_F32, CACHE_F32}, NULL},
                {"f16/f32", {CACHE_F16, CACHE_F32}, NULL},
                {"f32/f16", {CACHE_F32, CACHE_F16}, NULL},
                {"f16/f16", {CACHE_F16, CACHE_F16}, "f16"}};
    for (size_t i = 0; i < COUNT(good); i++) {
        cache_types got;
        char        text[CACHE_TYPES_TEXT];
        err         e = {0};
        CHECK_OK(cache_types_parse(&got, str_of(good[i].text), &e), e);
        CHECK(got.k == good[i].types.k && got.v == good[i].types.v);
        CHECK_STR(str_of(cache_types_text(got, text)), str_of(good[i].name ? good[i].name : good[i].text));
    }
}

TEST(cache_types_unknown_are_refused_with_the_names)
{
    static const char *const bad[] = {"", "q4", "/", "f16/", "/f16", "f16/f32/f16", "F16", "f16 ", "f16f32"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        cache_types got = {CACHE_F16, CACHE_F32};
        err         e   = {0};
        CHECK_FAILS(cache_types_parse(&got, str_of(bad[i]), &e), e, "must be f32 or f16, or two of them as K/V, got");
        CHECK(got.k == CACHE_F16 && got.v == CACHE_F32);
    }
}

/* Types with scales, as they will be stored: bytes of a head of a page for heads of 64, 128, 256 and 512. */
TEST(cache_layouts_count_codes_and_scales)
{
    static const int dims[] = {64, 128, 256, 512};
    static const struct {
        cache_layout layout;
        size_t       bytes[COUNT(dims)];
    } known[] = {{{"f16", 16, 0}, {2048, 4096, 8192, 16384}},
                 {{"8 bits, a scale for 32", 8, 32}, {1088, 2176, 4352, 8704}},
                 {{"4 bits, a scale for 32", 4, 32}, {576, 1152, 2304, 4608}},
                 {{"3 bits, a scale for 128", 3, 128}, {416, 800, 1600, 3200}}};
    for (size_t i = 0; i < COUNT(known); i++)
        for (size_t d = 0; d < COUNT(dims); d++)
            CHECK_INT(cache_head_bytes(&known[i].layout, dims[d]), known[i].bytes[d]);
    CHECK_INT(cache_head_bytes(cache_layout_of(CACHE_F16), 256), 8192);
    CHECK_INT(cache_head_bytes(cache_layout_of(CACHE_F32), 256), 16384);
}
