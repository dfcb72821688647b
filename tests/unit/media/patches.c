/* Sizes, soft tokens, patch order and frame sampling, against the tables of the models' reference processors. */
#include "media/patches.h"

#include "media/frames.h"
#include "test.h"
#include "unit/media/rules.h"

TEST(patches_fit_a_budget)
{
    static const struct {
        int height, width;
        int want[5][3]; /* height, width, soft tokens with 70, 140, 280, 560, 1120 */
    } table[] = {
        {480, 640, {{336, 432, 63}, {480, 624, 130}, {672, 912, 266}, {960, 1296, 540}, {1344, 1824, 1064}}},
        {1080, 1920, {{288, 528, 66}, {384, 720, 120}, {576, 1056, 264}, {816, 1488, 527}, {1200, 2112, 1100}}},
        {1, 1, {{384, 384, 64}, {528, 528, 121}, {768, 768, 256}, {1104, 1104, 529}, {1584, 1584, 1089}}},
        {1024, 1024, {{384, 384, 64}, {528, 528, 121}, {768, 768, 256}, {1104, 1104, 529}, {1584, 1584, 1089}}},
        {3, 900, {{48, 3360, 70}, {48, 6720, 140}, {48, 13440, 280}, {48, 19632, 409}, {48, 27792, 579}}},
        {2000, 20, {{3360, 48, 70}, {5664, 48, 118}, {8016, 48, 167}, {11328, 96, 472}, {16032, 144, 1002}}},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        for (int b = 0; b < 5; b++) {
            patch_rule r = rule_rows(70 << b);
            int        w = 0, h = 0;
            err        e;
            CHECK_OK(patch_target_size(&w, &h, &r, table[i].width, table[i].height, 0, &e), e);
            CHECK_INT(h, table[i].want[b][0]);
            CHECK_INT(w, table[i].want[b][1]);
            CHECK_INT(patch_cells(&r, w, h), table[i].want[b][2]);
            CHECK_INT(patch_count(&r, w, h), table[i].want[b][2] * 9);
        }
}

TEST(patches_fit_an_area)
{
    static const int table[][4] = {{480, 640, 480, 640},     {1080, 1920, 1088, 1920}, {100, 100, 256, 256},
                                   {5000, 5000, 4096, 4096}, {16, 1000, 64, 2048},     {8, 300, 64, 1568}};
    patch_rule       r          = rule_cells();
    int              w, h;
    err              e;
    for (size_t i = 0; i < COUNT(table); i++) {
        CHECK_OK(patch_target_size(&w, &h, &r, table[i][1], table[i][0], 0, &e), e);
        CHECK_INT(h, table[i][2]);
        CHECK_INT(w, table[i][3]);
    }
    CHECK_OK(patch_target_size(&w, &h, &r, 200, 1, 0, &e), e);
    CHECK_FAILS(patch_target_size(&w, &h, &r, 201, 1, 0, &e), e, "at most 200 times");
    CHECK_FAILS(patch_target_size(&w, &h, &r, 1, 201, 0, &e), e, "at most 200 times");
}

TEST(patches_fit_the_frames_of_a_video)
{
    /* frames, height, width, then the size of each frame */
    static const int table[][5] = {{4, 64, 96, 64, 96},         {2, 10, 10, 64, 64},       {768, 1080, 1920, 128, 224},
                                   {32, 1080, 1920, 640, 1152}, {5, 720, 1280, 704, 1280}, {4, 20, 640, 32, 1024}};
    patch_rule       r          = rule_cells();
    r.min_area                  = 4096;
    r.max_area                  = 25165824;
    for (size_t i = 0; i < COUNT(table); i++) {
        int w = 0, h = 0;
        err e;
        CHECK_OK(patch_target_size(&w, &h, &r, table[i][2], table[i][1], table[i][0], &e), e);
        CHECK_INT(h, table[i][3]);
        CHECK_INT(w, table[i][4]);
    }
    CHECK_INT(patch_steps(&r, 5), 3);
}

TEST(patches_follow_the_order_of_their_rule)
{
    static const int want[][2] = {{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {3, 0}, {2, 1}, {3, 1}, {0, 2}};
    patch_rule       rows = rule_rows(70), cells = rule_cells();
    int              x, y;
    for (int i = 0; i < (int)COUNT(want); i++) {
        patch_position(&x, &y, &cells, 64, i);
        CHECK_INT(x, want[i][0]);
        CHECK_INT(y, want[i][1]);
        patch_position(&x, &y, &rows, 64, i);
        CHECK_INT(x, i % 4);
        CHECK_INT(y, i / 4);
    }
}

TEST(patches_hold_both_frames_of_a_step)
{
    patch_rule r = rule_cells();
    picture    a, b;
    err        e;
    CHECK_OK(picture_new(&a, 32, 32, &e) && picture_new(&b, 32, 32, &e), e);
    for (size_t i = 0; i < picture_bytes(&a); i++) {
        a.rgb[i] = (uint8_t)(i % 3 * 10);
        b.rgb[i] = (uint8_t)(255 - i % 3 * 10);
    }
    uint8_t out[1536];
    CHECK_INT(patch_values(&r), 1536);
    patch_write(out, &r, (const picture *const[]){&a, &b}, 1, 1);
    for (int i = 0; i < 1536; i++) {
        int channel = i / 512, frame = i / 256 % 2, byte = frame ? 255 - channel * 10 : channel * 10;
        CHECK_INT(out[i], byte);
    }
    picture_free(&a);
    picture_free(&b);
}

TEST(patch_values_are_from_0_or_from_minus_1_to_1)
{
    patch_rule rows = rule_rows(70), cells = rule_cells();
    for (int i = 0; i < 256; i++) {
        CHECK_NEAR(patch_value(&rows, (uint8_t)i), i / 255.0, 1e-7);
        CHECK_NEAR(patch_value(&cells, (uint8_t)i), i / 127.5 - 1, 1e-6);
    }
}

TEST(frames_are_picked_evenly)
{
    frame_rule whole = {.max_frames = 32, .stamp = FRAME_STAMP_CLOCK};
    int64_t    index[FRAMES_MAX];
    CHECK_INT(frames_pick(index, &whole, 320, 30), 32);
    for (int i = 0; i < 32; i++) CHECK_INT(index[i], i * 10);
    CHECK_INT(frames_pick(index, &whole, 100, 0), 32);
    CHECK_INT(index[31], 96); /* floor(31 * 100 / 32) */
    CHECK_INT(frames_pick(index, &whole, 3, 30), 3);
    CHECK_INT(index[2], 2);
    CHECK_INT(frames_pick(index, &whole, (int64_t)1 << 50, 30), 32);
    CHECK_INT(index[31], ((int64_t)1 << 50) / 32 * 31);
}

TEST(frames_are_picked_by_seconds)
{
    frame_rule r = {.per_second = 2, .min_frames = 4, .max_frames = 768, .stamp = FRAME_STAMP_SECONDS};
    int64_t    index[FRAMES_MAX];
    CHECK_INT(frames_pick(index, &r, 300, 30), 20); /* 10 s */
    CHECK_INT(index[1], 16);                        /* round(299 / 19) */
    CHECK_INT(index[19], 299);
    CHECK_INT(frames_pick(index, &r, 30, 30), 4);
    CHECK_INT(index[1], 10); /* round(29 / 3) */
    CHECK_INT(frames_pick(index, &r, 3, 30), 3);
    CHECK_INT(frames_pick(index, &r, 1, 30), 1);
    CHECK_INT(index[0], 0);
    CHECK_INT(frames_pick(index, &r, 1000000, 25), 768);
    CHECK_INT(frames_pick(index, &r, 240, 0), 20); /* 24 frames per second when unknown */
    r.max_frames = 2;
    CHECK_INT(frames_pick(index, &r, 300, 30), 2);
    CHECK_INT(index[1], 299);
}

TEST(frames_have_time_stamps)
{
    static const double at[]  = {0, 0.5, 65.5, 6000.9, 7000};
    frame_rule          clock = {.max_frames = 32, .stamp = FRAME_STAMP_CLOCK};
    frame_rule          r     = {.per_second = 2, .max_frames = 32, .stamp = FRAME_STAMP_SECONDS};
    char                out[48];
    frames_stamp(out, &clock, at, 5, 1, 0);
    CHECK_STR(str_of(out), STR("00:00 "));
    frames_stamp(out, &clock, at, 5, 1, 2);
    CHECK_STR(str_of(out), STR(" 01:05 "));
    CHECK_INT(frames_stamp(out, &clock, at, 5, 1, 3), 8);
    CHECK_STR(str_of(out), STR(" 100:00 "));
    frames_stamp(out, &r, at, 5, 2, 0);
    CHECK_STR(str_of(out), STR("<0.2 seconds>"));
    frames_stamp(out, &r, at, 5, 2, 2);
    CHECK_STR(str_of(out), STR("<7000.0 seconds>"));
}
