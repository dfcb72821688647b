#include "sched/open.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/family.h"
#include "sched/inside.h"

enum { DEFAULT_CTX = 8192, MAX_TEMPLATE_BYTES = 1 << 24 };

const char *const open_draft_quants[] = {"none", "q8_0", "q4_0", NULL};
const quant_type  open_draft_types[]  = {QUANT_F32, QUANT_Q8_0, QUANT_Q4_0};

/* --- text ---------------------------------------------------------------------------------------*/
static bool open_dir_tok(tok **out, const char *path, err *e)
{
    char json[4096];
    if (!file_join(json, sizeof json, path, "tokenizer.json")) return err_set(e, ERR_INPUT, "the path is too long");
    if (!file_exists(json)) return err_set(e, ERR_NOT_FOUND, "%s has no tokenizer.json", path);
    return family_tok_from_json(out, json, e);
}

bool open_tok_of(tok **out, const checkpoint *files, err *e)
{
    *out = NULL;
    return files->gguf ? family_tok_from_gguf(out, files->gguf, e) : open_dir_tok(out, files->path, e);
}

bool open_tok(tok **out, const char *path, err *e)
{
    gguf *g;
    *out = NULL;
    if (file_is_dir(path)) return open_dir_tok(out, path, e);
    if (str_ends(str_of(path), ".json")) return family_tok_from_json(out, path, e);
    if (!gguf_open(&g, path, e)) return false;
    bool ok = family_tok_from_gguf(out, g, e);
    gguf_close(g);
    return ok;
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

/* Chooses the prompt format by the chat template, and logs when the template does not decide it. */
static void choose_format(opened_model *m, const checkpoint *files)
{
    const chat_format *f  = m->model->family->chat;
    bool               ok = chat_template_load(&m->template_text, files->path, files->gguf, &m->no_format);
    chat_template      t  = f->detect(buf_str(&m->template_text));
    m->format             = (chat_options){.format                = f,
                                           .revision              = t.revision,
                                           .empty_thought         = t.known ? t.empty_thought : m->model->empty_thought,
                                           .thinking              = t.thinking,
                                           .preserve_thinking     = t.preserve_thinking,
                                           .add_generation_prompt = true};
    if (ok) log_format(f, &t, m->template_text.n > 0);
}

/* --- the model ----------------------------------------------------------------------------------*/
/* Fails with the sizes, before the system ends the process for lack of memory. */
static bool check_memory(const ops_device *d, size_t needed, const char *what, err *e)
{
    double bytes = (double)needed, there = (double)d->free_bytes;
    return bytes <= there ||
           err_set(e, ERR_UNAVAILABLE, "%s %.1f GB of memory, and %.1f GB are free", what, bytes / 1e9, there / 1e9);
}

static bool open_weights(opened_model *m, const open_options *o, const checkpoint *files, err *e)
{
    double        start = clock_s();
    model_options mo    = {.device       = m->device.name,
                           .n_threads    = o->n_threads,
                           .max_rows     = o->max_rows,
                           .mmproj       = o->mmproj,
                           .wrap         = o->wrap,
                           .progress     = o->progress,
                           .progress_ctx = o->progress_ctx};
    if (!ops_device_find(&m->device, o->device, e) || !check_memory(&m->device, files->bytes, "its weights need", e) ||
        !model_open(&m->model, files, &mo, e))
        return false;
    log_event(LOG_INFO, "load", "%s on %s: %d layers, %.2f GB of weights in %.1f s", o->name, m->model->o->name,
              m->model->n_layers, (double)m->model->weight_bytes / 1e9, clock_s() - start);
    m->n_ctx = o->n_ctx;
    return open_context(&m->n_ctx, m->model, e);
}

static bool open_text(opened_model *m, const open_options *o, const checkpoint *files, err *e)
{
    if (open_tok_of(&m->tok, files, &m->no_tok)) return true;
    if (o->need_tok) {
        *e = m->no_tok;
        return err_wrap(e, "%s", o->need_tok);
    }
    if (m->no_tok.code != ERR_NOT_FOUND)
        log_event(LOG_WARN, "load", "the tokenizer cannot be used: %s", m->no_tok.text);
    return true;
}

static bool open_from(opened_model *m, const open_options *o, const checkpoint *files, err *e)
{
    if (o->text && !open_text(m, o, files, e)) return false;
    if (!open_weights(m, o, files, e)) return false;
    if (o->text) choose_format(m, files);
    if (o->fingerprint) {
        fingerprint_checkpoint(files, m->fingerprint);
        fingerprint_stamp(files, m->fingerprint, m->stamp);
    }
    m->files = checkpoint_list_new(files);
    return true;
}

bool open_model(opened_model *m, const open_options *o, err *e)
{
    checkpoint *own = NULL;
    *m              = (opened_model){0};
    buf_init(&m->template_text, MAX_TEMPLATE_BYTES);
    bool ok = o->files ||
              (o->image.n ? checkpoint_open_bytes(&own, o->path, o->image, e) : checkpoint_open(&own, o->path, e));
    ok = ok && open_from(m, o, own ? own : o->files, e);
    checkpoint_close(own);
    if (!ok) open_close(m);
    return ok;
}

void open_close(opened_model *m)
{
    step_deinit(&m->step);
    kv_lane_free(m->lane_kv);
    kv_pool_free(m->kv);
    spec_lane_free(m->lane);
    spec_free(m->spec);
    model_close(m->model);
    tok_free(m->tok);
    mem_free(m->files);
    buf_deinit(&m->template_text);
    *m = (opened_model){0};
}

bool open_context(int *n_ctx, const target *m, err *e)
{
    if (!*n_ctx) *n_ctx = m->n_ctx < DEFAULT_CTX ? m->n_ctx : DEFAULT_CTX;
    return *n_ctx <= m->n_ctx ||
           err_set(e, ERR_INPUT, "a context of %d is over the model's limit of %d", *n_ctx, m->n_ctx);
}

/* --- the loop -----------------------------------------------------------------------------------*/
static bool check_cache(const ops_device *d, size_t bytes, err *e)
{
    return check_memory(d, bytes, "the K/V cache of this context needs", e);
}

/* Lanes are rarely all at the end of their contexts, so they share the memory when it is scarce. */
size_t open_pool_bytes(int max_lanes, size_t all, size_t single, size_t free_bytes)
{
    size_t max = free_bytes / 5 * 4;
    if (max_lanes == 1 || all < max) return 0;
    return single < max ? max : single;
}

static bool choose_bytes(size_t *out, const target *m, const ops_device *d, const spec_options *o, err *e)
{
    spec_options one = *o;
    size_t       all, single;
    one.max_lanes = 1;
    if (!spec_kv_bytes(m, o, &all) || !spec_kv_bytes(m, &one, &single))
        return err_set(e, ERR_LIMIT, "a context of %d is too large", o->n_ctx);
    *out = open_pool_bytes(o->max_lanes, all, single, d->free_bytes);
    return check_cache(d, single, e);
}

size_t open_free_bytes(const ops *o, size_t free_bytes)
{
    if (!o->padding) return free_bytes;
    return free_bytes > OPEN_GRAPH_BYTES ? free_bytes - OPEN_GRAPH_BYTES : 0;
}

/* Describes the device as it is now: the weights have taken memory since m->device was filled in. */
static bool find_device_now(const opened_model *m, ops_device *now, err *e)
{
    if (!ops_device_find(now, m->device.name, e)) return false;
    now->free_bytes = open_free_bytes(m->model->o, now->free_bytes);
    now->free_bytes -= m->model->media_bytes < now->free_bytes ? m->model->media_bytes : now->free_bytes;
    return true;
}

bool open_share_bytes(size_t *out, const opened_model *m, float share, err *e)
{
    ops_device now;
    if (!find_device_now(m, &now, e)) return false;
    *out = (size_t)((double)now.free_bytes * (double)share);
    return *out || err_set(e, ERR_UNAVAILABLE, "no memory is free on %s for the K/V cache", m->device.name);
}

bool open_loop(opened_model *m, const spec_options *o, err *e)
{
    spec_options so = *o;
    ops_device   now;
    so.n_ctx = m->n_ctx;
    if (!find_device_now(m, &now, e)) return false;
    if (so.kv_bytes ? !check_cache(&now, so.kv_bytes, e) : !choose_bytes(&so.kv_bytes, m->model, &now, &so, e))
        return false;
    return spec_new(&m->spec, m->model, &so, e);
}

bool open_pages(opened_model *m, const kv_types *types, err *e)
{
    target    *t = m->model;
    ops_device now;
    target_set_kv(t, types);
    kv_pool_spec pages = {.classes   = t->kv_class,
                          .n_classes = t->n_kv_classes,
                          .max_lanes = 1,
                          .max_slots = m->n_ctx,
                          .states    = t->state,
                          .n_states  = t->n_states,
                          .q         = t->q};
    if (!kv_bytes_for(&pages, m->n_ctx, &pages.max_bytes))
        return err_set(e, ERR_LIMIT, "a context of %d is too large", m->n_ctx);
    if (!ops_device_find(&now, m->device.name, e) || !check_cache(&now, pages.max_bytes, e) ||
        !kv_pool_new(&m->kv, t->o, &pages, e))
        return false;
    m->lane_kv = kv_lane_new(m->kv);
    step_init(&m->step, t->max_rows);
    return true;
}

bool open_add_drafter(spec *s, const spec_draft_source *src)
{
    err  e  = {0};
    bool ok = spec_add_drafter(s, src, &e);
    if (!ok) log_event(LOG_WARN, "draft", "%s; continuing without it", e.text);
    return ok;
}
