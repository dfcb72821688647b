/* Loads the images and videos of a request: finds their files, reads and decodes them, within the limits. */
#include "base/clock.h"
#include "base/mem.h"
#include "media/budget.h"
#include "server/media.h"

enum { LOAD_S = 180 }; /* time for all media of a request */

/* --- sources --------------------------------------------------------------------------------------*/
typedef enum { DETAIL_AUTO, DETAIL_LOW, DETAIL_HIGH } detail_kind;

typedef struct {
    str         url, base64; /* one of them */
    detail_kind detail;
} media_source;

static str string_of(const json_value *v, const char *key)
{
    const json_value *m = json_find(v, key);
    return m && m->kind == JSON_STRING ? m->s : (str){0};
}

static bool read_detail(const json_value *v, detail_kind *out, err *e)
{
    static const struct {
        const char *name;
        detail_kind detail;
    } known[] = {{"auto", DETAIL_AUTO}, {"low", DETAIL_LOW}, {"high", DETAIL_HIGH}, {"original", DETAIL_HIGH}};
    const json_value *d = json_find(v, "detail");
    for (size_t i = 0; d && d->kind == JSON_STRING && i < COUNT(known); i++)
        if (str_is(d->s, known[i].name)) {
            *out = known[i].detail;
            return true;
        }
    return !d || err_set(e, ERR_INPUT, "its detail must be auto, low or high");
}

/* Reads where a part has its file: image_url or video_url, a URL or an object with one (OpenAI's), source, an object
 * (Anthropic's), or data, which is base64 (Ollama's). */
static bool read_source(const chat_part *part, media_source *out, err *e)
{
    const json_value *v = part->source, *url = json_find(v, part->kind == CHAT_VIDEO ? "video_url" : "image_url");
    const json_value *source = json_find(v, "source");
    *out                     = (media_source){.base64 = string_of(v, "data")};
    if (!read_detail(v, &out->detail, e) || (url && !read_detail(url, &out->detail, e))) return false;
    if (url) {
        out->url = url->kind == JSON_STRING ? url->s : string_of(url, "url");
        return out->url.s || err_set(e, ERR_INPUT, "it has no URL");
    }
    if (source) {
        out->url    = str_is(string_of(source, "type"), "url") ? string_of(source, "url") : (str){0};
        out->base64 = str_is(string_of(source, "type"), "base64") ? string_of(source, "data") : (str){0};
        return out->url.s || out->base64.s ||
               err_set(e, ERR_INPUT, "its source must be of the type base64, with data, or url, with a url");
    }
    if (json_find(v, "file_id")) return err_set(e, ERR_INPUT, "files are not stored here: send its data or a URL");
    if (str_starts(out->base64, "data:")) {
        out->url    = out->base64;
        out->base64 = (str){0};
    }
    return out->url.s || out->base64.s || err_set(e, ERR_INPUT, "it has neither a URL nor data");
}

/* --- loading --------------------------------------------------------------------------------------*/
enum { LOW_TOKENS = 256 }; /* detail low, where the model has no budgets */

typedef struct {
    server_request     *r;
    const tandem       *t;
    const media_rules  *rules;
    const media_access *access;
    const atomic_bool  *cancel;
    settings            now;
    int64_t             bytes, pixels, tokens; /* sums over the media so far */
    double              deadline;
} loader;

static patch_rule rule_for(const loader *l, bool is_video, detail_kind detail)
{
    int64_t half = engine_info(l->t)->n_ctx / 2, tokens = l->now.image_tokens, limit = engine_max_span(l->t);
    if (half < 1) half = 1;
    if (is_video) return media_video_rule(l->rules, half);
    if (detail == DETAIL_LOW)
        tokens = l->rules->n_budgets ? 1 : LOW_TOKENS;
    else if (detail == DETAIL_HIGH)
        tokens = MEDIA_MOST_TOKENS;
    else if (tokens == SETTING_UNLIMITED)
        tokens = media_default_tokens(l->rules) < half ? media_default_tokens(l->rules) : half;
    return media_image_rule(l->rules, tokens < limit ? tokens : limit);
}

static bool read_file(loader *l, const media_source *from, buf *file, err *e)
{
    int64_t        left = l->now.media_max_bytes - l->bytes;
    source_options o    = l->access->from;
    bool           all  = left < (int64_t)DECODE_MAX_FILE; /* the limit of all files is the smaller one */
    o.max_bytes         = all ? (size_t)left : DECODE_MAX_FILE;
    o.cancel            = l->cancel;
    buf_init(file, o.max_bytes ? o.max_bytes : 1);
    bool ok = from->url.s ? source_load(file, &o, from->url, e) : source_base64(file, from->base64, e);
    l->bytes += (int64_t)file->n;
    if (ok || !all || e->code != ERR_TOO_LARGE) return ok;
    return err_set(e, ERR_TOO_LARGE, "the files of a request have at most %lld bytes together",
                   (long long)l->now.media_max_bytes);
}

static size_t bytes_of(const decoded *d) { return (size_t)d->n * picture_bytes(d->frames); }

/* Counts a decoded medium against the limits of a request. */
static bool count_pixels(loader *l, const decoded *d, const decode_job *job, err *e)
{
    request_media *m = &l->r->media;
    l->pixels += (int64_t)d->source_width * d->source_height * d->n;
    l->tokens += media_tokens(&job->patches, d->frames->width, d->frames->height, job->is_video ? d->n : 0);
    if (l->pixels > l->now.media_max_pixels)
        return err_set(e, ERR_TOO_LARGE, "the images and videos of a request have at most %lld pixels together",
                       (long long)l->now.media_max_pixels);
    m->held = l->access->held;
    m->held_bytes += bytes_of(d);
    return atomic_fetch_add(m->held, bytes_of(d)) + bytes_of(d) <= l->access->max_held ||
           err_set(e, ERR_UNAVAILABLE, "no memory for its pixels");
}

static bool load_part(loader *l, chat_part *part, decoded *out, err *e)
{
    media_source from;
    buf          file = {0};
    decode_job   job  = {.is_video = part->kind == CHAT_VIDEO, .frames = l->rules->frames, .cancel = l->cancel};
    if (!read_source(part, &from, e)) return false;
    job.patches = rule_for(l, job.is_video, from.detail);
    if (job.frames.max_frames > l->now.media_max_frames) job.frames.max_frames = (int)l->now.media_max_frames;
    bool ok  = read_file(l, &from, &file, e);
    job.file = buf_str(&file);
    ok       = ok && decode_worker_run(l->access->decoder, out, &job, e);
    buf_deinit(&file);
    if (!ok || !count_pixels(l, out, &job, e)) return false;
    part->pixels = out;
    return true;
}

static bool refuse_part(const server_request *r, const chat_part *part, const err *e, server_error *why)
{
    char path[MEDIA_PATH_MAX];
    media_print_path(r, part, path);
    return error_set(why, e->code == ERR_UNAVAILABLE ? 503 : 400, path,
                     e->code == ERR_UNAVAILABLE ? "unavailable" : "invalid_media", "The %s at %s cannot be used: %s.",
                     part->kind == CHAT_VIDEO ? "video" : "image", path, e->text);
}

/* Refuses a request whose media alone are more than the context, before the rest is decoded. A client that lets the
 * oldest turns be left out may send more. */
static bool check_tokens(const loader *l, server_error *why)
{
    int n_ctx = engine_info(l->t)->n_ctx;
    return l->tokens <= n_ctx || l->r->ollama.truncate ||
           error_context(why, request_param(l->r), "messages", n_ctx, (size_t)l->tokens);
}

bool media_load(server_request *r, const tandem *t, const media_access *a, const atomic_bool *cancel, server_error *why)
{
    loader l = {
        .r = r, .t = t, .rules = engine_media(t), .access = a, .cancel = cancel, .deadline = clock_s() + LOAD_S};
    r->media.pixels = arena_try(&r->mem, r->media.n, sizeof *r->media.pixels);
    if (!r->media.pixels) return error_no_memory(why);
    engine_get_settings(t, &l.now);
    for (size_t i = 0; i < r->media.n; i++) {
        err e = {0};
        if (atomic_load(cancel)) return error_shutting_down(why);
        if (clock_s() > l.deadline)
            return error_set(why, 400, request_param(r), NULL,
                             "The images and videos of this request take longer than %d s to load.", LOAD_S);
        r->media.n_pixels = i + 1;
        if (!load_part(&l, r->media.part[i], &r->media.pixels[i], &e)) return refuse_part(r, r->media.part[i], &e, why);
        if (!check_tokens(&l, why)) return false;
    }
    r->media.loaded = true;
    return true;
}
