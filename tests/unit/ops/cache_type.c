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
                {"f16/f16", {CACHE_F16, CACHE_F16}, "f16"},
                {"q8_0", {CACHE_Q8_0, CACHE_Q8_0}, NULL},
                {"q8_0/tq3", {CACHE_Q8_0, CACHE_TQ3}, NULL},
                {"k=q8_0,v=q4_0", {CACHE_Q8_0, CACHE_Q4_0}, "q8_0/q4_0"},
                {"v=q4_0,k=q8_0", {CACHE_Q8_0, CACHE_Q4_0}, "q8_0/q4_0"},
                {"v=tq3", {CACHE_F16, CACHE_TQ3}, "f16/tq3"},
                {"k=f32", {CACHE_F32, CACHE_F16}, "f32/f16"}};
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
    static const char *const bad[] = {"",      "q4",      "/",         "f16/",   "/f16",         "f16/f32/f16",
                                      "F16",   "f16 ",    "f16f32",    "k=",     "k=q8_0,",      "k=q4_0,k=q8_0",
                                      "q=f16", "f16,f32", "k=f16/f32", ",v=f16", "k=f16,v=f16,", "v=f16;k=f16"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        cache_types got = {CACHE_F16, CACHE_F32};
        err         e   = {0};
        CHECK_FAILS(cache_types_parse(&got, str_of(bad[i]), &e), e,
                    "must be f32, f16, q8_0, q4_0 or tq3, or two of them as k=TYPE,v=TYPE, got");
        CHECK(got.k == CACHE_F16 && got.v == CACHE_F32);
    }
}

/* Bytes of a head of a page for heads of 64, 128, 256 and 512. */
TEST(cache_layouts_count_codes_and_scales)
{
    static const int dims[] = {64, 128, 256, 512};
    static const struct {
        cache_type type;
        size_t     bytes[COUNT(dims)];
    } known[] = {{CACHE_F32, {4096, 8192, 16384, 32768}},
                 {CACHE_F16, {2048, 4096, 8192, 16384}},
                 {CACHE_Q8_0, {1088, 2176, 4352, 8704}},
                 {CACHE_Q4_0, {576, 1152, 2304, 4608}},
                 {CACHE_TQ3, {416, 800, 1600, 3200}}};
    for (size_t i = 0; i < COUNT(known); i++)
        for (size_t d = 0; d < COUNT(dims); d++)
            CHECK_INT(cache_head_bytes(cache_layout_of(known[i].type), dims[d]), known[i].bytes[d]);
}

TEST(cache_types_are_raised_to_a_limit)
{
    cache_types got = cache_types_at_least((cache_types){CACHE_TQ3, CACHE_F16}, CACHE_Q8_0);
    CHECK(got.k == CACHE_Q8_0 && got.v == CACHE_F16);
    CHECK(cache_types_equal(cache_types_at_least(got, CACHE_Q8_0), got));
}
