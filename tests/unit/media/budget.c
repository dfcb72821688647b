/* Budgets of soft tokens: of models that have a list of them, and of models that limit the area. */
#include "media/budget.h"

#include "base/mem.h"
#include "test.h"
#include "unit/media/rules.h"

static media_rules with_budgets(void)
{
    return (media_rules){.image     = rule_rows(280),
                         .video     = rule_rows(70),
                         .frames    = {.max_frames = 32},
                         .budget    = {70, 140, 280, 560, 1120},
                         .n_budgets = 5};
}

static media_rules with_areas(void)
{
    media_rules m    = {.image = rule_cells(), .video = rule_cells()};
    m.video.min_area = 4096;
    m.video.max_area = 25165824;
    return m;
}

TEST(media_budget_is_the_largest_that_fits)
{
    static const struct {
        int64_t tokens;
        int     cells;
    } k[] = {{1, 70}, {69, 70}, {70, 70}, {139, 70}, {140, 140}, {300, 280}, {1119, 560}, {MEDIA_MOST_TOKENS, 1120}};
    media_rules m = with_budgets();
    for (size_t i = 0; i < COUNT(k); i++) CHECK_INT(media_image_rule(&m, k[i].tokens).max_cells, k[i].cells);
    CHECK_INT(media_default_tokens(&m), 280);
    CHECK_INT(media_video_rule(&m, 1).max_cells, 70); /* a frame has its own budget */
    m.n_budgets = 0;
    CHECK_INT(media_image_rule(&m, 1).max_cells, 280);
}

/* A picture has no more soft tokens than allowed, and the rule is one that the decoder accepts. */
TEST(media_area_is_limited_by_tokens)
{
    static const int64_t tokens[]   = {1, 4, 63, 64, 256, 1000, 16384, 100000, MEDIA_MOST_TOKENS};
    static const int     sizes[][2] = {{640, 480}, {5000, 5000}, {4000, 3000}};
    media_rules          m          = with_areas();
    CHECK_INT(media_default_tokens(&m), 16384);
    for (size_t i = 0; i < COUNT(tokens); i++) {
        patch_rule still = media_image_rule(&m, tokens[i]), moving = media_video_rule(&m, tokens[i]);
        CHECK(still.min_area <= still.max_area && still.max_area >= 32 * 32 && still.max_area <= m.image.max_area);
        CHECK(moving.min_area <= moving.max_area && moving.max_area >= 32 * 32 && moving.max_area <= m.video.max_area);
        CHECK_INT(still.frames, 2);
        for (size_t s = 0; s < COUNT(sizes); s++) {
            int w, h;
            err e;
            if (!CHECK_OK(patch_target_size(&w, &h, &still, sizes[s][0], sizes[s][1], 0, &e), e)) continue;
            int64_t n = media_tokens(&still, w, h, 0);
            CHECK_MSG(n <= tokens[i], "%d x %d: %lld of %lld tokens", sizes[s][0], sizes[s][1], (long long)n,
                      (long long)tokens[i]);
        }
    }
    CHECK_INT(media_image_rule(&m, 16384).max_area, 16777216);
    CHECK_INT(media_image_rule(&m, 256).max_area, 256 * 1024);
    CHECK_INT(media_video_rule(&m, 256).max_area, 256 * 1024 * 2); /* two frames share a token */
}

TEST(media_tokens_of_steps)
{
    patch_rule rows = rule_rows(70), cells = rule_cells();
    CHECK_INT(media_tokens(&rows, 96, 48, 0), 2);
    CHECK_INT(media_tokens(&rows, 96, 48, 5), 10);
    CHECK_INT(media_tokens(&cells, 64, 64, 0), 4);
    CHECK_INT(media_tokens(&cells, 64, 64, 5), 12);
}
