#include "server/media.h"

#include "base/mem.h"

#include <stdio.h>

enum { PATH_MAX_DEPTH = 16 };

/* --- paths ----------------------------------------------------------------------------------------*/
/* Writes the path of a value in the tree below `at`. Returns false if it is not there. */
static bool find_path(const json_value *at, const json_value *want, char path[MEDIA_PATH_MAX], size_t n, int depth)
{
    if (at == want) return true;
    if (depth == PATH_MAX_DEPTH || n + 1 >= MEDIA_PATH_MAX) return false;
    for (size_t i = 0; at->kind == JSON_ARRAY && i < at->n; i++) {
        int added = snprintf(path + n, MEDIA_PATH_MAX - n, "[%zu]", i);
        if (find_path(&at->item[i], want, path, n + (size_t)added, depth + 1)) return true;
    }
    for (size_t i = 0; at->kind == JSON_OBJECT && i < at->n; i++) {
        const json_member *m     = &at->member[i];
        int                added = snprintf(path + n, MEDIA_PATH_MAX - n, "%s%.*s", n ? "." : "", STR_ARG(m->key));
        if (find_path(&m->value, want, path, n + (size_t)added, depth + 1)) return true;
    }
    path[n] = 0;
    return false;
}

/* Ollama's messages have a list of images, which became parts of a content. */
void media_print_path(const server_request *r, const chat_part *part, char path[MEDIA_PATH_MAX])
{
    path[0] = 0;
    if (!part->source || !find_path(r->root, part->source, path, 0, 0))
        snprintf(path, MEDIA_PATH_MAX, "%s", request_param(r));
    char *content = r->endpoint & FIELD_OLLAMA ? strstr(path, ".content") : NULL;
    if (content && r->ollama.is_chat)
        snprintf(content, MEDIA_PATH_MAX - (size_t)(content - path), ".images");
    else if (content)
        snprintf(path, MEDIA_PATH_MAX, "images");
}

/* --- finding --------------------------------------------------------------------------------------*/
static const char *refusal_of(const media_rules *m, const chat_part *part)
{
    if (!m) return "This model accepts text only: no images, audio or video";
    if (part->kind == CHAT_AUDIO && m->video_id < 0)
        return "Audio is not supported: this model accepts text and images";
    if (part->kind == CHAT_AUDIO) return "Audio is not supported: this model accepts text, images and video";
    return part->kind == CHAT_VIDEO && m->video_id < 0 ? "This model accepts text and images, but no video" : NULL;
}

/* Adds a part to the list, or replaces it, or refuses it. */
static bool take_part(server_request *r, const media_rules *m, const chat_message *of, chat_part *part,
                      server_error *why)
{
    const char *refusal = refusal_of(m, part);
    char        path[MEDIA_PATH_MAX];
    if (!refusal && chat_is_system(of)) refusal = "A system message has no images or videos";
    if (!refusal) {
        r->media.part[r->media.n++] = part;
        return true;
    }
    if (of->role == CHAT_TOOL) {
        *part = (chat_part){.kind = CHAT_TEXT, .text = STR(ERROR_NOT_SHOWN)};
        return true;
    }
    media_print_path(r, part, path);
    return error_set(why, 400, path, "unsupported_value", "%s (%s).", refusal, path);
}

static size_t count_media(const chat *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        const chat_content *x = &c->message[i].content;
        for (size_t k = 0; x->kind == CHAT_PARTS && k < x->n_parts; k++) n += x->part[k].kind != CHAT_TEXT;
    }
    return n;
}

static bool check_count(const server_request *r, const tandem *t, size_t n, server_error *why)
{
    settings now;
    engine_get_settings(t, &now);
    return (int64_t)n <= now.media_max_items ||
           error_set(why, 400, request_param(r), NULL, "A request has at most %lld images and videos, got %zu.",
                     (long long)now.media_max_items, n);
}

bool media_find(server_request *r, const tandem *t, server_error *why)
{
    const media_rules *m = engine_media(t);
    size_t             n = count_media(r->chat);
    if (!n) return true;
    if (m && !check_count(r, t, n, why)) return false;
    if (!(r->media.part = arena_try(&r->mem, n, sizeof *r->media.part))) return error_no_memory(why);
    for (size_t i = 0; i < r->chat->n; i++) {
        chat_message *x = &r->chat->message[i];
        for (size_t k = 0; x->content.kind == CHAT_PARTS && k < x->content.n_parts; k++)
            if (x->content.part[k].kind != CHAT_TEXT && !take_part(r, m, x, &x->content.part[k], why)) return false;
    }
    return true;
}

/* --- the prompt -----------------------------------------------------------------------------------*/
static void free_pixels(request_media *m)
{
    for (size_t i = 0; i < m->n_pixels; i++) decoded_free(&m->pixels[i]);
    m->n_pixels = 0;
}

bool media_keep(server_request *r, server_error *why)
{
    err e = {0};
    if (!chat_prompt_pictures(&r->rendered, &r->media.prompt, &e)) return error_no_memory(why);
    free_pixels(&r->media);
    return true;
}

void media_forget(request_media *m)
{
    free_pixels(m);
    media_prompt_drop(m->prompt);
    m->prompt = NULL;
    if (m->held) atomic_fetch_sub(m->held, m->held_bytes);
    m->held       = NULL;
    m->held_bytes = 0;
}
