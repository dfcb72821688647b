#include "sched/open.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/family.h"

enum { DEFAULT_CTX = 8192 };

const char *const open_draft_quants[] = {"none", "q8_0", "q4_0", NULL};
const quant_type  open_draft_types[]  = {QUANT_F32, QUANT_Q8_0, QUANT_Q4_0};

/* --- the model ----------------------------------------------------------------------------------*/
/* Refused with numbers now, rather than ended by the system later. */
static bool check_memory(const char *device, double bytes, const char *what, err *e)
{
    ops_device d;
    if (!ops_device_find(&d, device, e)) return false;
    double there = (double)d.free_bytes;
    return bytes <= there ||
           err_set(e, ERR_UNAVAILABLE, "%s %.1f GB of memory, and %.1f GB are free", what, bytes / 1e9, there / 1e9);
}

bool open_target(target **out, ops_device *device, const open_options *o, err *e)
{
    checkpoint   *cp;
    double        start = clock_s();
    model_options mo    = {.device       = device->name,
                           .n_threads    = o->n_threads,
                           .wrap         = o->wrap,
                           .progress     = o->progress,
                           .progress_ctx = o->progress_ctx};
    if (!ops_device_find(device, o->device, e)) return false;
    if (!(o->image.n ? checkpoint_open_bytes(&cp, o->path, o->image, e) : checkpoint_open(&cp, o->path, e)))
        return false;
    bool ok = check_memory(device->name, (double)cp->bytes, "its weights need", e) && model_open(out, cp, &mo, e);
    checkpoint_close(cp);
    if (ok)
        log_event(LOG_INFO, "load", "%s on %s: %d layers, %.2f GB of weights in %.1f s", o->name, (*out)->o->name,
                  (*out)->n_layers, (double)(*out)->weight_bytes / 1e9, clock_s() - start);
    return ok;
}

bool open_context(int *n_ctx, const target *m, err *e)
{
    if (!*n_ctx) *n_ctx = m->n_ctx < DEFAULT_CTX ? m->n_ctx : DEFAULT_CTX;
    return *n_ctx <= m->n_ctx ||
           err_set(e, ERR_INPUT, "a context of %d is over the model's limit of %d", *n_ctx, m->n_ctx);
}

/* --- the loop -----------------------------------------------------------------------------------*/
bool open_check_cache(const char *device, size_t bytes, err *e)
{
    return check_memory(device, (double)bytes, "the K/V cache of this context needs", e);
}

/* All lanes at once are rarely at the end of their contexts: what is scarce is shared. */
size_t open_pool_bytes(int max_lanes, size_t all, size_t single, size_t free_bytes)
{
    size_t most = free_bytes / 5 * 4;
    if (max_lanes == 1 || all < most) return 0;
    return single < most ? most : single;
}

static bool choose_bytes(size_t *out, const target *m, const char *device, const spec_options *o, err *e)
{
    spec_options one = *o;
    ops_device   d;
    size_t       all, single;
    one.max_lanes = 1;
    if (!ops_device_find(&d, device, e)) return false;
    if (!spec_kv_bytes(m, o, &all) || !spec_kv_bytes(m, &one, &single))
        return err_set(e, ERR_LIMIT, "a context of %d is too large", o->n_ctx);
    *out = open_pool_bytes(o->max_lanes, all, single, d.free_bytes);
    return open_check_cache(device, single, e);
}

bool open_spec(spec **out, target *m, const char *device, const spec_options *o, err *e)
{
    spec_options so = *o;
    if (so.kv_bytes ? !open_check_cache(device, so.kv_bytes, e) : !choose_bytes(&so.kv_bytes, m, device, o, e))
        return false;
    return spec_new(out, m, &so, e);
}

int open_add_drafter(spec *s, const spec_draft_source *src)
{
    err  e  = {0};
    bool ok = spec_add_drafter(s, src, &e);
    if (!ok) log_event(LOG_WARN, "draft", "%s; continuing without it", e.text);
    return ok;
}

/* --- text ---------------------------------------------------------------------------------------*/
static bool open_gguf_tok(tok **out, const char *path, err *e)
{
    gguf *g;
    if (!gguf_open(&g, path, e)) return false;
    bool ok = family_tok_from_gguf(out, g, e);
    gguf_close(g);
    return ok;
}

bool open_tok(tok **out, const char *path, err *e)
{
    char json[4096];
    *out = NULL;
    if (file_is_dir(path)) {
        if (!file_join(json, sizeof json, path, "tokenizer.json")) return err_set(e, ERR_INPUT, "the path is too long");
        if (!file_exists(json)) return err_set(e, ERR_NOT_FOUND, "%s has no tokenizer.json", path);
        return family_tok_from_json(out, json, e);
    }
    return str_ends(str_of(path), ".json") ? family_tok_from_json(out, path, e) : open_gguf_tok(out, path, e);
}

/* Logs how prompts are written when the model's template does not decide it. */
static void log_format(const chat_format *f, const chat_template *t, bool has_template)
{
    const char *name = f->revision_name(t->revision);
    if (!has_template)
        log_event(LOG_INFO, "chat", "the model has no chat template: prompts are written as %s's of %s", f->title,
                  name);
    else if (!t->known)
        log_event(LOG_WARN, "chat", "the model's chat template is not %s's: prompts are written as %s's of %s",
                  f->title, f->title, name);
    else if (!t->published)
        log_event(LOG_WARN, "chat",
                  "the model's chat template is not a published one: prompts are written as by the most similar one, "
                  "%s (%d of %d features)",
                  name, t->n_same, t->n_signs);
}

bool open_chat_format(chat_options *o, buf *keep, const target *m, const char *path, err *e)
{
    buf own, *text = keep ? keep : &own;
    buf_init(&own, OPEN_TEMPLATE_MAX);
    bool          ok = chat_template_load(text, path, e);
    chat_template t  = m->family->chat->detect(buf_str(text));
    *o               = (chat_options){.format                = m->family->chat,
                                      .revision              = t.revision,
                                      .empty_thought         = t.known ? t.empty_thought : m->empty_thought,
                                      .add_generation_prompt = true};
    if (ok) log_format(o->format, &t, text->n > 0);
    buf_deinit(&own);
    return ok;
}
