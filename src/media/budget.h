/* media/budget.h - how many soft tokens a picture or video may become. */
#ifndef TANDEM_MEDIA_BUDGET_H
#define TANDEM_MEDIA_BUDGET_H
#include "media/prompt.h"

#define MEDIA_MOST_TOKENS INT64_MAX /* as `tokens` below: as many as the model accepts */

/* Returns the model's default of soft tokens per picture. */
int64_t media_default_tokens(const media_rules *m);
/* Returns the rule for a picture of at most `tokens` soft tokens: the model's largest budget that is not above it, or
 * its smallest one. tokens is at least 1. */
patch_rule media_image_rule(const media_rules *m, int64_t tokens);
/* Returns the rule for the frames of a video, which become at most about `tokens` soft tokens together where the model
 * has no fixed budget per frame. */
patch_rule media_video_rule(const media_rules *m, int64_t tokens);
/* Returns the soft tokens of a picture (n_frames 0) or a video whose pixels have the size of the rule. */
int64_t media_tokens(const patch_rule *r, int width, int height, int n_frames);
#endif
