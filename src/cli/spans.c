#include "cli/spans.h"

#include "base/file.h"
#include "base/mem.h"
#include "decode/worker.h"

#include <string.h>

enum { MAX_SPANS = 4096 };

typedef struct {
    const media_rules *r;
    decode_worker     *worker;
    media_span        *image, *video; /* [MAX_SPANS] each, `first` not set */
    int                n_images, n_videos;
} reader;

static bool decode_file(reader *d, decoded *out, const char *path, const patch_rule *patches, bool is_video, err *e)
{
    file_map map;
    if (!file_map_open(&map, path, e)) return false;
    decode_job job = {.is_video = is_video, .patches = *patches, .frames = d->r->frames, .file = {map.p, map.n}};
    bool       ok =
        map.n <= DECODE_MAX_FILE || err_set(e, ERR_TOO_LARGE, "the file has more than %zu MB", DECODE_MAX_FILE >> 20);
    ok = ok && decode_worker_run(d->worker, out, &job, e);
    file_map_close(&map);
    return ok || err_wrap(e, "%s", path);
}

/* Adds a span of n pictures, which it takes over. */
static bool add_span(media_span *list, int *n_list, const patch_rule *r, bool is_video, picture *frames, int n, err *e)
{
    if (*n_list == MAX_SPANS) return err_set(e, ERR_INPUT, "there are more than %d pictures", MAX_SPANS);
    media_span *s = &list[(*n_list)++];
    *s            = (media_span){.is_video = is_video, .width = frames[0].width, .height = frames[0].height};
    s->n          = patch_cells(r, s->width, s->height);
    for (int i = 0; i < n; i++) {
        s->frames[i] = frames[i];
        frames[i]    = (picture){0};
    }
    return true;
}

static bool copy_picture(picture *out, const picture *p, err *e)
{
    if (!picture_new(out, p->width, p->height, e)) return false;
    memcpy(out->rgb, p->rgb, picture_bytes(p));
    return true;
}

/* Divides frames of one size into steps; an incomplete one repeats the last frame. */
static bool add_steps(reader *d, picture *frames, int n, err *e)
{
    const patch_rule *r = &d->r->video;
    for (int i = 0; i < n; i += r->frames) {
        picture step[MEDIA_STEP_FRAMES] = {frames[i]};
        if (r->frames == 2 && i + 1 < n) step[1] = frames[i + 1];
        if (r->frames == 2 && i + 1 == n && !copy_picture(&step[1], &step[0], e)) return false;
        for (int k = 0; k < r->frames && i + k < n; k++) frames[i + k] = (picture){0};
        bool ok = add_span(d->video, &d->n_videos, r, true, step, r->frames, e);
        for (int k = 0; k < MEDIA_STEP_FRAMES; k++) picture_free(&step[k]);
        if (!ok) return false;
    }
    return true;
}

static bool read_image(reader *d, const char *path, err *e)
{
    decoded x  = {0};
    bool    ok = decode_file(d, &x, path, &d->r->image, false, e) &&
              add_span(d->image, &d->n_images, &d->r->image, false, x.frames, 1, e);
    decoded_free(&x);
    return ok;
}

/* Reads a picture in its own size. */
static bool read_frame(reader *d, picture *out, const char *path, err *e)
{
    patch_rule as_is = {
        .fit = PATCH_FIT_AREA, .patch = 1, .cell = 1, .frames = 1, .min_area = 1, .max_area = PICTURE_MAX_PIXELS};
    decoded x = {0};
    if (!decode_file(d, &x, path, &as_is, false, e)) return false;
    *out        = x.frames[0];
    x.frames[0] = (picture){0};
    decoded_free(&x);
    return true;
}

static bool resize_frames(reader *d, picture *frames, int n, err *e)
{
    int from_width = frames[0].width, from_height = frames[0].height, width, height;
    if (!patch_target_size(&width, &height, &d->r->video, from_width, from_height, n, e)) return false;
    for (int i = 0; i < n; i++) {
        picture sized;
        if (frames[i].width != from_width || frames[i].height != from_height)
            return err_set(e, ERR_INPUT, "frame %d has %d x %d pixels, the first one %d x %d", i, frames[i].width,
                           frames[i].height, from_width, from_height);
        if (!picture_resize(&sized, &frames[i], width, height, e)) return false;
        picture_free(&frames[i]);
        frames[i] = sized;
    }
    return true;
}

/* Reads frames from a list of files. */
static bool read_list(reader *d, const char *list, err *e)
{
    picture *frames = xnew_n(picture, FRAMES_MAX);
    int      n      = 0;
    bool     ok     = true;
    for (const char *at = list; ok && *at;) {
        char   path[4096];
        size_t len = strcspn(at, ",");
        if (n == FRAMES_MAX) ok = err_set(e, ERR_INPUT, "a video has more than %d frames", FRAMES_MAX);
        if (len >= sizeof path) ok = err_set(e, ERR_INPUT, "the path of frame %d is too long", n);
        if (!ok) break;
        memcpy(path, at, len);
        path[len] = 0;
        ok        = read_frame(d, &frames[n], path, e);
        n += ok;
        at += len + (at[len] == ',');
    }
    ok = ok && (n || err_set(e, ERR_INPUT, "a video has no frames")) && resize_frames(d, frames, n, e) &&
         add_steps(d, frames, n, e);
    for (int i = 0; i < n; i++) picture_free(&frames[i]);
    mem_free(frames);
    return ok;
}

static bool read_video(reader *d, const char *path, err *e)
{
    decoded x = {0};
    if (strchr(path, ',')) return read_list(d, path, e);
    bool ok = decode_file(d, &x, path, &d->r->video, true, e) && add_steps(d, x.frames, x.n, e);
    decoded_free(&x);
    return ok;
}

static bool read_files(reader *d, const picture_flags *f, err *e)
{
    bool ok = true;
    if (f->videos.n && d->r->video_id < 0) return err_set(e, ERR_INPUT, "the model reads no videos");
    for (int i = 0; ok && i < f->images.n; i++) ok = read_image(d, f->images.item[i], e);
    for (int i = 0; ok && i < f->videos.n; i++) ok = read_video(d, f->videos.item[i], e);
    return ok;
}

/* Gives the spans to the runs of placeholders, in order. */
static bool match_runs(reader *d, media_span *out, int *n_out, const tok_ids *ids, err *e)
{
    int at[2] = {0, 0};
    *n_out    = 0;
    for (size_t i = 0, end; i < ids->n; i = end) {
        int32_t id    = ids->p[i];
        bool    video = id == d->r->video_id;
        end           = i + 1;
        if (id < 0 || (id != d->r->image_id && !video)) continue;
        while (end < ids->n && ids->p[end] == id) end++;
        const char *what = video ? "video" : "picture";
        if (at[video] == (video ? d->n_videos : d->n_images))
            return err_set(e, ERR_INPUT, "no %s is given for the placeholders at token %zu", what, i);
        media_span *s = &(video ? d->video : d->image)[at[video]++];
        if ((size_t)s->n != end - i)
            return err_set(e, ERR_INPUT, "the %s at token %zu has %zu placeholders, expected %d for %d x %d pixels",
                           what, i, end - i, s->n, s->width, s->height);
        s->first        = (int32_t)i;
        out[(*n_out)++] = *s;
        memset(s->frames, 0, sizeof s->frames);
    }
    return (at[0] == d->n_images && at[1] == d->n_videos) ||
           err_set(e, ERR_INPUT, "the prompt has placeholders for %d pictures and %d steps of videos, got %d and %d",
                   at[0], at[1], d->n_images, d->n_videos);
}

static void free_spans(media_span *s, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < MEDIA_STEP_FRAMES; k++) picture_free(&s[i].frames[k]);
}

static bool choose_budget(media_rules *r, int budget, err *e)
{
    int i = 0;
    if (!budget) return true;
    if (!r->n_budgets) return err_set(e, ERR_INPUT, "--image-tokens: the model has no budget of soft tokens");
    while (i < r->n_budgets && r->budget[i] != budget) i++;
    r->image.max_cells = budget;
    return i < r->n_budgets || err_set(e, ERR_INPUT,
                                       "--image-tokens must be between %d and %d and one of the model's "
                                       "budgets, got %d",
                                       r->budget[0], r->budget[r->n_budgets - 1], budget);
}

bool cli_load_spans(media_prompt **out, const picture_flags *f, const media_rules *rules, const tok_ids *ids, err *e)
{
    *out = NULL;
    if (!(f->images.n + f->videos.n)) return true;
    if (!rules) return err_set(e, ERR_INPUT, "the model reads text only");
    media_rules r   = *rules;
    reader      d   = {.r = &r, .worker = decode_worker_new(decode_default_limits())};
    d.image         = xnew_n(media_span, MAX_SPANS);
    d.video         = xnew_n(media_span, MAX_SPANS);
    media_span *all = xnew_n(media_span, 2 * MAX_SPANS);
    int         n   = 0;
    bool        ok  = choose_budget(&r, f->budget, e) && read_files(&d, f, e) && match_runs(&d, all, &n, ids, e);
    if (ok && n) *out = media_prompt_new(all, n);
    if (!ok) free_spans(all, n);
    free_spans(d.image, d.n_images);
    free_spans(d.video, d.n_videos);
    mem_free(all);
    mem_free(d.image);
    mem_free(d.video);
    decode_worker_free(d.worker);
    return ok;
}
