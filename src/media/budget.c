#include "media/budget.h"

static int64_t cell_area(const patch_rule *r) { return (int64_t)r->cell * r->cell; }

int64_t media_default_tokens(const media_rules *m)
{
    return m->image.fit == PATCH_FIT_BUDGET ? m->image.max_cells : m->image.max_area / cell_area(&m->image);
}

/* Lowers the largest area, and the smallest one with it. */
static void limit_area(patch_rule *r, int64_t tokens)
{
    if (tokens >= r->max_area / cell_area(r) / r->frames) return;
    r->max_area = tokens * cell_area(r) * r->frames;
    if (r->max_area < cell_area(r)) r->max_area = cell_area(r);
    if (r->min_area > r->max_area) r->min_area = r->max_area;
}

patch_rule media_image_rule(const media_rules *m, int64_t tokens)
{
    patch_rule r = m->image;
    if (r.fit == PATCH_FIT_AREA) {
        patch_rule still = r;
        still.frames     = 1; /* a still picture's area counts once */
        limit_area(&still, tokens);
        r.min_area = still.min_area;
        r.max_area = still.max_area;
        return r;
    }
    if (m->n_budgets) r.max_cells = m->budget[0];
    for (int i = 1; i < m->n_budgets && m->budget[i] <= tokens; i++) r.max_cells = m->budget[i];
    return r;
}

patch_rule media_video_rule(const media_rules *m, int64_t tokens)
{
    patch_rule r = m->video;
    if (r.fit == PATCH_FIT_AREA) limit_area(&r, tokens);
    return r;
}

int64_t media_tokens(const patch_rule *r, int width, int height, int n_frames)
{
    return (int64_t)patch_cells(r, width, height) * (n_frames ? patch_steps(r, n_frames) : 1);
}
