/* Renders a prompt to bytes or to token ids. */
#include "base/mem.h"
#include "base/num.h"
#include "chat/format.h"

#include <stdarg.h>
#include <stdio.h>

/* Fails because `text` has no memory or is over its limit. */
static bool text_failed(const buf *text, err *e)
{
    if (!text->over) return err_set(e, ERR_UNAVAILABLE, "no memory for the text of a prompt");
    return err_set(e, ERR_TOO_LARGE, "the prompt is longer than %zu MiB", CHAT_MAX_PROMPT >> 20);
}

/* Renders the conversation and adds the prefill of the response. */
static bool render_with_prefill(const chat *c, const chat_options *o, const chat_sink *sink, err *e)
{
    chat_segment prefill = {.kind = CHAT_SEG_TEXT, .text = c->prefill};
    return o->format->render(c, o, sink, e) && (!c->prefill.n || sink->put(sink->ctx, &prefill, e));
}

/* --- sending ------------------------------------------------------------------------------------*/
void chat_out_send(chat_out *o, const chat_segment *s)
{
    if (!o->failed) o->failed = !o->sink->put(o->sink->ctx, s, o->e);
}

void chat_out_text(chat_out *o, str text)
{
    if (text.n) chat_out_send(o, &(chat_segment){.kind = CHAT_SEG_TEXT, .text = text});
}

void chat_out_marker(chat_out *o, str name)
{
    chat_out_send(o, &(chat_segment){.kind = CHAT_SEG_MARKER, .text = name});
}

void chat_out_fail(chat_out *o, err_code code, const char *fmt, ...)
{
    char    text[256];
    va_list ap;
    if (o->failed) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(o->e, code, "%s", text);
    o->failed = true;
}

/* --- bytes --------------------------------------------------------------------------------------*/
static bool put_bytes(void *ctx, const chat_segment *s, err *e)
{
    return buf_put(ctx, s->text.s, s->text.n) || text_failed(ctx, e);
}

bool chat_render_text(buf *out, const chat *c, const chat_options *o, err *e)
{
    return render_with_prefill(c, o, &(chat_sink){put_bytes, out}, e);
}

/* --- ids ----------------------------------------------------------------------------------------*/
typedef struct {
    chat_prompt       *p;
    const tok         *tok;
    const media_rules *media; /* NULL: no part has pixels */
    buf                text;  /* since the last marker: encoded whole, since merges do not stop at our seams */
    size_t             cap_media, cap_spans;
    bool               begin_waits; /* the begin of a medium, which comes after the text, is not written yet */
    bool               drops_end;   /* the next end of a medium is not written */
} id_sink;

static bool put_id(id_sink *k, int32_t id, err *e)
{
    k->p->in_thought = id == tok_find_marker(k->tok, tok_markup_of(k->tok)->thought_open);
    if (tok_ids_put(&k->p->ids, id)) return true;
    if (k->p->ids.n < k->p->ids.max) return err_set(e, ERR_UNAVAILABLE, "no memory for the tokens of a prompt");
    return err_set(e, ERR_TOO_LARGE, "the prompt has more than %zu tokens", k->p->ids.max);
}

static bool flush_text(id_sink *k, err *e)
{
    bool ok = !k->text.n || tok_encode(k->tok, &k->p->ids, buf_str(&k->text), false, e);
    if (ok && k->begin_waits) ok = put_id(k, k->media->begin_id, e);
    k->begin_waits = false;
    buf_clear(&k->text);
    return ok;
}

/* Returns an array with room for item n, at least twice the size of a full one. NULL: no memory, and `items` stays. */
static void *grow_list(void *items, size_t n, size_t *cap, size_t each, err *e)
{
    if (n < *cap) return items;
    size_t more  = *cap ? 2 * *cap : 8;
    void  *grown = mem_try_resize(items, more * each);
    if (!grown) {
        err_set(e, ERR_UNAVAILABLE, "no memory for %zu images in a prompt", more);
        return NULL;
    }
    *cap = more;
    return grown;
}

static bool put_medium(id_sink *k, const chat_part *part, err *e)
{
    chat_prompt *p     = k->p;
    chat_medium *grown = grow_list(p->media, p->n_media, &k->cap_media, sizeof *p->media, e);
    if (!grown) return false;
    p->media               = grown;
    p->media[p->n_media++] = (chat_medium){part, p->ids.n};
    return true;
}

/* Writes the soft tokens of step i, enclosed unless the template wrote the begin. */
static bool put_step(id_sink *k, const decoded *d, int i, int32_t id, bool is_video, bool enclosed, err *e)
{
    chat_prompt      *p     = k->p;
    const patch_rule *r     = is_video ? &k->media->video : &k->media->image;
    media_span       *grown = grow_list(p->span, p->n_spans, &k->cap_spans, sizeof *p->span, e);
    media_span        s     = {.is_video = is_video,
                               .n        = patch_cells(r, d->frames->width, d->frames->height),
                               .width    = d->frames->width,
                               .height   = d->frames->height};
    if (!grown) return false;
    p->span = grown;
    for (int f = 0; f < (is_video ? r->frames : 1); f++) s.frames[f] = d->frames[min_int(i * r->frames + f, d->n - 1)];
    if (enclosed && !put_id(k, k->media->begin_id, e)) return false;
    s.first = (int32_t)p->ids.n;
    for (int32_t n = 0; n < s.n; n++)
        if (!put_id(k, id, e)) return false;
    p->span[p->n_spans++] = s;
    return !enclosed || put_id(k, k->media->end_id, e);
}

/* Writes a picture, or the steps of a video with their time stamps. `id`: its placeholder. */
static bool put_pixels(id_sink *k, const chat_part *part, int32_t id, err *e)
{
    const media_rules *m     = k->media;
    const decoded     *d     = part->pixels;
    bool               video = part->kind == CHAT_VIDEO, outer = k->begin_waits;
    int                steps = video ? patch_steps(&m->video, d->n) : 1;
    if (outer && video && !m->keeps_outer) {
        k->begin_waits = false;
        k->drops_end   = true;
    }
    if (k->begin_waits && !flush_text(k, e)) return false;
    for (int i = 0; i < steps; i++) {
        char stamp[48];
        if (video && !buf_put(&k->text, stamp, frames_stamp(stamp, &m->frames, d->seconds, d->n, m->video.frames, i)))
            return text_failed(&k->text, e);
        if (!flush_text(k, e) || !put_step(k, d, i, id, video, video || !outer, e)) return false;
    }
    return true;
}

static bool put_marker(id_sink *k, const chat_segment *s, err *e)
{
    int32_t    id   = tok_find(k->tok, s->text);
    tok_kind_t kind = tok_kind(k->tok, id);
    if (kind != TOK_CONTROL && kind != TOK_USER) /* an ordinary token of that name could come out of any text */
        return err_set(e, ERR_INPUT, "the tokenizer has no %.*s: the model is of another family", STR_ARG(s->text));
    if (k->media && s->kind == CHAT_SEG_MEDIA && s->part->pixels) return put_pixels(k, s->part, id, e);
    if (k->media && id == k->media->end_id && k->drops_end) {
        k->drops_end = false;
        return true;
    }
    if (k->begin_waits && !flush_text(k, e)) return false;
    if (k->media && id == k->media->begin_id) {
        k->begin_waits = true;
        return true;
    }
    if (!flush_text(k, e)) return false;
    if (s->kind == CHAT_SEG_MEDIA && !put_medium(k, s->part, e)) return false;
    return put_id(k, id, e);
}

static bool put_ids(void *ctx, const chat_segment *s, err *e)
{
    id_sink *k = ctx;
    if (s->kind != CHAT_SEG_TEXT) return put_marker(k, s, e);
    if (k->begin_waits && !flush_text(k, e)) return false;
    return buf_put(&k->text, s->text.s, s->text.n) || text_failed(&k->text, e);
}

void chat_prompt_init(chat_prompt *p, size_t max_ids)
{
    *p = (chat_prompt){0};
    tok_ids_init(&p->ids, max_ids);
}

static void forget_media(chat_prompt *p)
{
    mem_free(p->media);
    mem_free(p->span);
    p->media   = NULL;
    p->n_media = 0;
    p->span    = NULL;
    p->n_spans = 0;
}

void chat_prompt_deinit(chat_prompt *p)
{
    forget_media(p);
    tok_ids_deinit(&p->ids);
}

bool chat_render_ids(chat_prompt *p, const tok *t, const chat *c, const chat_options *o, err *e)
{
    id_sink k = {.p = p, .tok = t, .media = o->media};
    tok_ids_clear(&p->ids);
    forget_media(p);
    p->in_thought = false;
    buf_init(&k.text, CHAT_MAX_PROMPT);
    bool ok = render_with_prefill(c, o, &(chat_sink){put_ids, &k}, e) && flush_text(&k, e);
    buf_deinit(&k.text);
    return ok;
}

/* --- pictures -----------------------------------------------------------------------------------*/
static bool copy_frames(media_span *s, err *e)
{
    for (int i = 0; i < MEDIA_STEP_FRAMES && s->frames[i].rgb; i++) {
        picture from = s->frames[i];
        if (!picture_new(&s->frames[i], from.width, from.height, e)) {
            memset(&s->frames[i], 0, (size_t)(MEDIA_STEP_FRAMES - i) * sizeof *s->frames);
            return false;
        }
        memcpy(s->frames[i].rgb, from.rgb, picture_bytes(&from));
    }
    return true;
}

bool chat_prompt_pictures(const chat_prompt *p, media_prompt **out, err *e)
{
    media_span *span = p->n_spans ? mem_try_n(p->n_spans, sizeof *span) : NULL;
    size_t      n    = 0;
    bool        ok   = span || !p->n_spans || err_set(e, ERR_UNAVAILABLE, "no memory for the pictures of a prompt");
    *out             = NULL;
    for (; ok && n < p->n_spans; n++) {
        span[n] = p->span[n];
        ok      = copy_frames(&span[n], e);
    }
    if (ok && n) *out = media_prompt_new(span, (int)n);
    for (size_t i = 0; !ok && i < n; i++)
        for (int k = 0; k < MEDIA_STEP_FRAMES; k++) picture_free(&span[i].frames[k]);
    mem_free(span);
    return ok;
}
