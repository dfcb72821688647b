#include "cli/pictures.h"

#include "base/file.h"
#include "base/mem.h"
#include "media/budget.h"

static bool check_model(const media_rules *m, bool is_video, err *e)
{
    if (!m) return err_set(e, ERR_INPUT, "the model accepts text only: it has no encoder for images (--mmproj)");
    return !is_video || m->video_id >= 0 || err_set(e, ERR_INPUT, "the model accepts images, but no video");
}

/* Sets the rules by which the file becomes pixels, as the server does. */
static void set_rules(decode_job *job, const tandem *t, int tokens)
{
    const media_rules *m    = engine_media(t);
    int64_t            half = engine_info(t)->n_ctx / 2, limit = media_default_tokens(m);
    settings           now;
    engine_get_settings(t, &now);
    if (limit > half) limit = half;
    if (tokens) limit = tokens;
    if (limit > engine_max_span(t)) limit = engine_max_span(t);
    job->frames  = m->frames;
    job->patches = job->is_video ? media_video_rule(m, half) : media_image_rule(m, limit);
    if (job->frames.max_frames > now.media_max_frames) job->frames.max_frames = (int)now.media_max_frames;
}

/* Makes room for one more file and a text. */
static bool grow(picture_list *l, err *e)
{
    chat_part *part   = mem_try_resize(l->part, (l->n + 2) * sizeof *part);
    decoded   *pixels = mem_try_resize(l->pixels, (l->n + 1) * sizeof *pixels);
    char     **path   = mem_try_resize(l->path, (l->n + 1) * sizeof *path);
    if (part) l->part = part;
    if (pixels) l->pixels = pixels;
    if (path) l->path = path;
    for (size_t i = 0; i < l->n; i++) l->part[i].pixels = &l->pixels[i]; /* they may have moved */
    return (part && pixels && path) || err_set(e, ERR_UNAVAILABLE, "no memory for %zu images", l->n + 1);
}

bool picture_list_add(picture_list *l, decode_worker *w, const tandem *t, const char *path, bool is_video, int tokens,
                      err *e)
{
    file_map   f   = {0};
    decode_job job = {.is_video = is_video};
    decoded    pixels;
    if (!check_model(engine_media(t), is_video, e) || !file_map_open(&f, path, e)) return false;
    set_rules(&job, t, tokens);
    job.file = (str){f.p, f.n};
    bool ok  = grow(l, e) && (decode_worker_run(w, &pixels, &job, e) || err_wrap(e, "cannot use %s", path));
    file_map_close(&f);
    if (!ok) return false;
    l->path[l->n] = xalloc(strlen(path) + 1);
    memcpy(l->path[l->n], path, strlen(path));
    l->pixels[l->n] = pixels;
    l->part[l->n]   = (chat_part){.kind = is_video ? CHAT_VIDEO : CHAT_IMAGE, .pixels = &l->pixels[l->n]};
    l->n++;
    return true;
}

chat_content picture_list_content(picture_list *l, str text)
{
    if (!l->n) return (chat_content){.kind = CHAT_STRING, .text = text};
    l->part[l->n] = (chat_part){.kind = CHAT_TEXT, .text = text};
    return (chat_content){.kind = CHAT_PARTS, .part = l->part, .n_parts = l->n + 1};
}

void picture_list_free(picture_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        decoded_free(&l->pixels[i]);
        mem_free(l->path[i]);
    }
    mem_free(l->part);
    mem_free(l->pixels);
    mem_free(l->path);
    *l = (picture_list){0};
}
