/* Renders a prompt to bytes or to token ids. */
#include "base/mem.h"
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
    chat_prompt *p;
    const tok   *tok;
    buf          text; /* since the last marker: encoded whole, since merges do not stop at our seams */
    size_t       cap_media;
} id_sink;

static bool flush_text(id_sink *k, err *e)
{
    bool ok = !k->text.n || tok_encode(k->tok, &k->p->ids, buf_str(&k->text), false, e);
    buf_clear(&k->text);
    return ok;
}

static bool put_medium(id_sink *k, const chat_part *part, err *e)
{
    chat_prompt *p = k->p;
    if (p->n_media == k->cap_media) {
        size_t       cap   = k->cap_media ? 2 * k->cap_media : 8;
        chat_medium *grown = mem_try_resize(p->media, cap * sizeof *grown);
        if (!grown) return err_set(e, ERR_UNAVAILABLE, "no memory for %zu images in a prompt", cap);
        p->media     = grown;
        k->cap_media = cap;
    }
    p->media[p->n_media++] = (chat_medium){part, p->ids.n};
    return true;
}

static bool put_marker(id_sink *k, const chat_segment *s, err *e)
{
    int32_t    id   = tok_find(k->tok, s->text);
    tok_kind_t kind = tok_kind(k->tok, id);
    if (!flush_text(k, e)) return false;
    if (kind != TOK_CONTROL && kind != TOK_USER) /* an ordinary token of that name could come out of any text */
        return err_set(e, ERR_INPUT, "the tokenizer has no %.*s: the model is of another family", STR_ARG(s->text));
    if (s->kind == CHAT_SEG_MEDIA && !put_medium(k, s->part, e)) return false;
    k->p->in_thought = id == tok_find_marker(k->tok, tok_markup_of(k->tok)->thought_open);
    if (tok_ids_put(&k->p->ids, id)) return true;
    if (k->p->ids.n < k->p->ids.max) return err_set(e, ERR_UNAVAILABLE, "no memory for the tokens of a prompt");
    return err_set(e, ERR_TOO_LARGE, "the prompt has more than %zu tokens", k->p->ids.max);
}

static bool put_ids(void *ctx, const chat_segment *s, err *e)
{
    id_sink *k = ctx;
    if (s->kind != CHAT_SEG_TEXT) return put_marker(k, s, e);
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
    p->media   = NULL;
    p->n_media = 0;
}

void chat_prompt_deinit(chat_prompt *p)
{
    forget_media(p);
    tok_ids_deinit(&p->ids);
}

bool chat_render_ids(chat_prompt *p, const tok *t, const chat *c, const chat_options *o, err *e)
{
    id_sink k = {.p = p, .tok = t};
    tok_ids_clear(&p->ids);
    forget_media(p);
    p->in_thought = false;
    buf_init(&k.text, CHAT_MAX_PROMPT);
    bool ok = render_with_prefill(c, o, &(chat_sink){put_ids, &k}, e) && flush_text(&k, e);
    buf_deinit(&k.text);
    return ok;
}
