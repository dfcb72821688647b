/* The public functions that are not a job's (read.c): opening and closing, text, numbers. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/thread.h"
#include "model/family.h"
#include "sched/inside.h"

#include <stdio.h>

_Static_assert((int)TANDEM_INPUT == ERR_INPUT && (int)TANDEM_BUSY == ERR_BUSY && (int)TANDEM_IO == ERR_IO &&
                   (int)TANDEM_CONTEXT == ERR_CONTEXT && sizeof(((tandem_error *)0)->text) == sizeof(((err *)0)->text),
               "the public errors are ours");

const char *tandem_version(void) { return TANDEM_VERSION; }

/* Copies an error to the public type; `to` may be NULL. */
static void copy_error(tandem_error *to, const err *from)
{
    if (!to) return;
    to->code = (tandem_code)from->code;
    memcpy(to->text, from->text, sizeof to->text);
}

const tandem_info *engine_info(const tandem *t) { return &t->info; }
const tok         *engine_tok(const tandem *t) { return t->m.tok; }
const media_rules *engine_media(const tandem *t) { return t->m.model->media; }
int                engine_max_span(const tandem *t) { return sched_max_span(t->sched); }
str                engine_template(const tandem *t) { return buf_str(&t->m.template_text); }

bool engine_format(const tandem *t, chat_options *out, err *e)
{
    *out = t->m.format;
    return !t->m.no_format.code || err_set(e, t->m.no_format.code, "%s", t->m.no_format.text);
}

/* --- opening ------------------------------------------------------------------------------------*/
void tandem_options_init(tandem_options *o)
{
    *o = (tandem_options){.device      = "auto",
                          .spec        = {.method = TANDEM_SPEC_AUTO},
                          .max_lanes   = 32,
                          .kv_type     = "f16",
                          .cache_bytes = 10000000000,
                          .wake_ms     = SCHED_WAKE_MS};
}

static bool in_range(const char *name, double x, double min, double max, err *e)
{
    return (x >= min && x <= max) ||
           err_set(e, ERR_INPUT, "%s must be between %.10g and %.10g, got %.10g", name, min, max, x);
}

/* Parses types of K and V. Sets *out unless text is NULL or empty. */
static bool read_types(const char *name, const char *text, cache_types *out, err *e)
{
    return !text || !text[0] || cache_types_parse(out, str_of(text), e) || err_wrap(e, "%s", name);
}

static bool read_sparse(const char *text, sparse_params *out, err *e)
{
    return !text || !text[0] || sparse_parse(out, str_of(text), e) || err_wrap(e, "sparse_fa");
}

/* Sets *out to the types of the options and of the settings, which replace them. */
static bool choose_kv_types(kv_types *out, const tandem_options *o, const settings *s, err *e)
{
    cache_types full = cache_types_both(CACHE_F16);
    if (!read_types("kv_type", o->kv_type, &full, e) || !read_types("kv_type", s->kv_type, &full, e)) return false;
    *out = kv_types_default(full);
    return read_types("kv_sliding", o->kv_sliding, &out->sliding, e) &&
           read_types("kv_sliding", s->kv_sliding, &out->sliding, e) &&
           read_types("kv_draft", o->kv_draft, &out->draft, e) && read_types("kv_draft", s->kv_draft, &out->draft, e) &&
           read_sparse(o->sparse_fa, &out->sparse, e) && read_sparse(s->sparse_fa, &out->sparse, e);
}

static bool check_share(const tandem_options *o, err *e)
{
    if (!(o->memory_share >= 0 && o->memory_share <= 1))
        return err_set(e, ERR_INPUT, "memory_share must be between 0 and 1, got %g", (double)o->memory_share);
    return !(o->memory_share > 0 && o->kv_bytes) ||
           err_set(e, ERR_INPUT, "memory_share and kv_bytes both set the size of the K/V cache: give one");
}

static bool check_options(const tandem_options *o, err *e)
{
    if (!o->path) return err_set(e, ERR_INPUT, "no path of a model is given");
    return job_check_speculation(&o->spec, e) && in_range("n_threads", o->n_threads, 0, 256, e) &&
           in_range("n_ctx", o->n_ctx, 0, TANDEM_MAX_PROMPT, e) &&
           in_range("max_lanes", o->max_lanes, 1, TANDEM_MAX_LANES, e) &&
           (!o->step_tokens || in_range("step_tokens", o->step_tokens, o->max_lanes > 16 ? o->max_lanes : 16,
                                        TANDEM_MAX_STEP_TOKENS, e)) &&
           in_range("wake_ms", o->wake_ms, 0, 1000, e) && in_range("n_drafters", o->n_drafters, 0, 64, e) &&
           check_share(o, e);
}

/* Names and paths are wanted for longer than the call. */
static const char *keep_name(tandem *t, const char *s) { return arena_str(&t->mem, str_of(s)); }

static const char *keep_types(tandem *t, cache_types types)
{
    char text[CACHE_TYPES_TEXT];
    return keep_name(t, cache_types_text(types, text));
}

static bool set_one(settings *s, const char *name, const char *value, err *e)
{
    const setting_info *info = setting_find(str_of(name));
    if (!info) return err_set(e, ERR_INPUT, "there is no setting '%.80s'", name);
    return settings_set_text(s, info, str_of(value), e);
}

/* The last one wins: the default, the file, the options, changes since the program began (in the file where there is
 * one), the environment. */
static bool open_settings(tandem *t, const tandem_options *o, const settings *changed, settings *s, err *e)
{
    uint64_t reapplied = changed ? changed->changed : 0;
    settings_init(s);
    if (o->settings_path &&
        (!settings_file_open(&t->file, o->settings_path, e) || !settings_file_get(t->file, str_of(t->info.name), s, e)))
        return false;
    for (int i = 0; i < o->n_settings; i++) {
        const setting_info *info = setting_find(str_of(o->settings[i].name));
        if (info && reapplied & settings_bit(info)) continue;
        if (!set_one(s, o->settings[i].name, o->settings[i].value, e)) return false;
        settings_note(s, info, SETTING_FROM_OPTIONS);
    }
    if (changed && !t->file) settings_take(s, changed, reapplied);
    for (int i = 0; i < n_settings; i++)
        if (reapplied >> i & 1 && s->source[i] == SETTING_FROM_DEFAULT) s->source[i] = SETTING_FROM_API;
    s->changed |= reapplied;
    s->pending = 0;
    return settings_take_environment(s, e) && settings_check(s, e);
}

/* Returns whether texts are stored and brought back (spec/image.h). */
static bool wants_images(const tandem_options *o)
{
    return (o->cache_dir || o->park_bytes || o->session_dir) && !o->no_prefix;
}
static bool wants_fingerprints(const tandem_options *o) { return o->fingerprints || o->routing_log || wants_images(o); }

static bool open_files(tandem *t, const tandem_options *o, const engine_extra *x, err *e)
{
    open_options oo = {.path         = o->path,
                       .name         = t->info.name,
                       .files        = x->files,
                       .mmproj       = o->mmproj,
                       .device       = o->device,
                       .n_threads    = o->n_threads,
                       .max_rows     = !o->step_tokens                      ? 0
                                       : o->step_tokens > STEP_DEFAULT_ROWS ? o->step_tokens
                                                                            : STEP_DEFAULT_ROWS,
                       .n_ctx        = o->n_ctx,
                       .text         = true,
                       .need_tok     = x->need_tok,
                       .fingerprint  = wants_fingerprints(o),
                       .progress     = o->progress,
                       .progress_ctx = o->progress_ctx};
    if (!open_model(&t->m, &oo, e)) return false;
    t->info.n_ctx       = t->m.n_ctx;
    t->info.fingerprint = t->m.fingerprint;
    return true;
}

static bool open_lanes(tandem *t, const tandem_options *o, const settings *s, err *e)
{
    spec_options so = {.max_lanes = o->max_lanes,
                       .kv_type   = t->kv,
                       .kv_bytes  = (size_t)o->kv_bytes,
                       .kv_cap    = s->kv_cap,
                       .no_prefix = o->no_prefix,
                       .wipe      = o->wipe_pages};
    if (wants_images(o)) so.fingerprint = t->m.stamp;
    if (o->memory_share > 0 && !open_share_bytes(&so.kv_bytes, &t->m, o->memory_share, e)) return false;
    return open_loop(&t->m, &so, e);
}

/* --- drafters at start --------------------------------------------------------------------------*/
static bool draft_type(const settings *s, const tandem_drafter *d, quant_type *out, err *e)
{
    int k = 0;
    if (!d->quantise && settings_draft_type(s, out)) return true;
    while (d->quantise && open_draft_quants[k] && strcmp(d->quantise, open_draft_quants[k]) != 0) k++;
    if (!open_draft_quants[k])
        return err_set(e, ERR_INPUT, "a drafter cannot be quantised to '%s', expected none, q8_0 or q4_0", d->quantise);
    *out = open_draft_types[k];
    return true;
}

/* Returns the window of a drafter's full layers: the caller's, else that of the setting; 0: none. */
static int draft_window(const settings *s, const tandem_drafter *d)
{
    int64_t n = d->window > 0 ? d->window : s->dflash_draft_window;
    return n == SETTING_UNLIMITED ? 0 : (int)n;
}

/* method: as spec_draft_source's. */
static bool draft_source(tandem *t, const tandem_options *o, const settings *s, const tandem_drafter *d,
                         spec_method method, spec_draft_source *out, err *e)
{
    *out = (spec_draft_source){.path        = keep_name(t, d->path),
                               .name        = d->name ? keep_name(t, d->name) : NULL,
                               .shown       = d->shown ? keep_name(t, d->shown) : NULL,
                               .opt         = {.n_ctx = d->n_ctx, .window = draft_window(s, d), .kv_type = t->kv.draft},
                               .lazy        = d->lazy || s->dflash_lazy_drafter,
                               .fingerprint = wants_fingerprints(o),
                               .method      = method,
                               .keep        = true,
                               .wrap        = t->watch.wrap,
                               .wrap_ctx    = t->watch.ctx};
    return draft_type(s, d, &out->opt.quantise, e);
}

static bool add_drafter(tandem *t, const spec_draft_source *src, bool required, err *e)
{
    if (!required)
        open_add_drafter(t->m.spec, src);
    else if (!spec_add_drafter(t->m.spec, src, e))
        return false;
    return spec_kv_bytes_total(t->m.spec) || err_set(e, ERR_UNAVAILABLE, "no memory is left for the K/V cache");
}

/* Returns the path of the drafter that a setting names for the method of src; NULL: there is none. */
static const char *setting_instead(const settings *s, const spec_draft_source *src)
{
    spec_method m;
    if (!src->files || !spec_drafter_method(src, &m, NULL)) return NULL;
    const char *path = m == SPEC_MTP ? s->mtp_draft_model : s->dflash_draft_model;
    return path[0] ? path : NULL;
}

static bool add_listed(tandem *t, const tandem_options *o, const settings *s, const tandem_drafter *d, err *e)
{
    spec_draft_source src;
    checkpoint       *files = NULL;
    if (!draft_source(t, o, s, d, SPEC_OFF, &src, e)) return false;
    if (checkpoint_open(&files, src.path, NULL)) src.files = files; /* else spec_add_drafter reports it */
    const char *other = setting_instead(s, &src);
    bool        ok    = other || add_drafter(t, &src, d->required, e);
    if (other) log_event(LOG_WARN, "draft", "%s is not used: a setting names %s", d->name ? d->name : d->path, other);
    checkpoint_close(files);
    return ok;
}

static bool add_by_setting(tandem *t, const tandem_options *o, const settings *s, const char *path, spec_method m,
                           err *e)
{
    spec_draft_source src;
    tandem_drafter    d = o->by_setting;
    d.path              = path;
    d.name              = file_name(path);
    return !path[0] || (draft_source(t, o, s, &d, m, &src, e) && add_drafter(t, &src, false, e));
}

static bool add_drafters(tandem *t, const tandem_options *o, const settings *s, err *e)
{
    for (int i = 0; i < o->n_drafters; i++)
        if (!add_listed(t, o, s, &o->drafters[i], e)) return false;
    return add_by_setting(t, o, s, s->dflash_draft_model, SPEC_DFLASH, e) &&
           add_by_setting(t, o, s, s->mtp_draft_model, SPEC_MTP, e);
}

/* --- the engine ---------------------------------------------------------------------------------*/
static void fill_info(tandem *t, const tandem_options *o)
{
    tandem_info *i   = &t->info;
    i->family        = t->m.model->family->name;
    i->device        = t->m.model->o->name;
    i->kv_type       = keep_types(t, t->kv.full);
    i->kv_sliding    = keep_types(t, t->kv.sliding);
    i->kv_draft      = keep_types(t, t->kv.draft);
    i->sparse_fa     = sparse_share(&t->kv.sparse);
    i->n_threads     = t->m.model->o->n_threads;
    i->n_vocab       = t->m.model->n_vocab;
    i->n_layers      = t->m.model->n_layers;
    i->n_embd        = t->m.model->n_embd;
    i->max_lanes     = o->max_lanes;
    i->step_tokens   = o->step_tokens ? o->step_tokens : t->m.model->max_rows;
    i->weight_bytes  = t->m.model->weight_bytes;
    i->n_params      = t->m.model->n_params;
    i->has_images    = t->m.model->media;
    i->has_video     = t->m.model->media && t->m.model->media->video_id >= 0;
    i->quantisation  = quant_name(t->m.model->weight_type);
    i->has_tokenizer = t->m.tok;
    for (int k = 0; k < t->m.model->n_kv_classes; k++) {
        const kv_class_spec *c = &t->m.model->kv_class[k];
        i->kv_bytes_per_token += kv_bytes_per_pos(c);
        if (!c->window) i->kv_bytes_per_token_full += kv_bytes_per_pos(c);
    }
}

static bool open_log(tandem *t, const tandem_options *o, const settings *s, err *e)
{
    routing_log_options lo = {.path        = o->routing_log,
                              .model       = t->info.name,
                              .fingerprint = t->info.fingerprint,
                              .max_bytes   = s->routing_log_max_bytes,
                              .n_files     = (int)s->routing_log_files,
                              .on          = s->routing_log};
    return !o->routing_log || routing_log_open(&t->log, &lo, e);
}

static bool start_engine(tandem *t, const tandem_options *o, const settings *s, err *e)
{
    sched_options so = {.spec        = t->m.spec,
                        .model       = t->m.model,
                        .tok         = t->m.tok,
                        .n_ctx       = t->info.n_ctx,
                        .max_lanes   = o->max_lanes,
                        .step_tokens = t->info.step_tokens,
                        .settings    = *s,
                        .limit       = &t->spec,
                        .log         = t->log,
                        .cache_bytes = o->cache_bytes,
                        .park_bytes  = o->park_bytes,
                        .wake_s      = o->wake_ms / 1e3,
                        .wake        = o->wake,
                        .wake_ctx    = o->wake_ctx,
                        .ended       = t->watch.ended,
                        .ended_ctx   = t->watch.ctx};
    if (o->cache_dir && wants_images(o)) so.cache_dir = keep_name(t, o->cache_dir);
    return sched_new(&t->sched, &so, e);
}

static void put_settings(const settings *s, buf *out)
{
    json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    settings_put_json(s, &w);
    json_end(&w);
}

/* Makes the fingerprint anew for these settings. */
static void make_fingerprint(tandem *t, const settings *s)
{
    const tandem_info *i = &t->info;
    buf                text;
    sha256             sum;
    char               hex[65];
    buf_init(&text, 1 << 20);
    buf_printf(&text, "%s\n%s\n%s\n%s\n%s\n%g\n%d\n", tandem_version(), i->fingerprint[0] ? i->fingerprint : i->path,
               i->device, i->kv_type, i->kv_sliding, i->sparse_fa, i->n_ctx);
    put_settings(s, &text);
    sha256_init(&sum);
    sha256_put(&sum, text.p, text.n);
    sha256_hex(&sum, hex);
    pthread_mutex_lock(&t->fingerprint_lock);
    snprintf(t->fingerprint, sizeof t->fingerprint, "fp_%.16s", hex);
    pthread_mutex_unlock(&t->fingerprint_lock);
    buf_deinit(&text);
}

/* Gives the scheduler new settings. Under the lock. */
static void set_settings(tandem *t, const settings *s)
{
    sched_set_settings(t->sched, s);
    make_fingerprint(t, s);
}

static bool open_engine(tandem *t, const tandem_options *o, const engine_extra *x, err *e)
{
    settings s;
    if (!check_options(o, e)) return false;
    t->spec       = o->spec;
    t->info.name  = keep_name(t, o->name ? o->name : o->path);
    t->info.path  = keep_name(t, o->path);
    t->info.shown = keep_name(t, o->shown ? o->shown : o->path);
    if (!open_settings(t, o, x->changed, &s, e) || !choose_kv_types(&t->kv, o, &s, e) || !open_files(t, o, x, e) ||
        !settings_check_device(&s, t->m.model->o->name, e) || !open_lanes(t, o, &s, e) || !add_drafters(t, o, &s, e) ||
        !spec_warm(t->m.spec, e))
        return false;
    fill_info(t, o);
    make_fingerprint(t, &s);
    settings_log(&s, t->info.name, spec_trained_ctx(t->m.spec));
    if (o->session_dir && !session_store_open(&t->sessions, o->session_dir, e)) return false;
    return open_log(t, o, &s, e) && start_engine(t, o, &s, e);
}

bool engine_open(tandem **out, const tandem_options *o, const engine_extra *x, err *e)
{
    tandem *t  = xnew(tandem);
    *out       = NULL;
    t->carried = x->changed;
    t->watch   = x->watch;
    arena_init(&t->mem, 1 << 20);
    pthread_mutex_init(&t->settings_lock, NULL);
    pthread_mutex_init(&t->fingerprint_lock, NULL);
    if (open_engine(t, o, x, e)) {
        *out = t;
        return true;
    }
    tandem_close(t);
    return false;
}

bool tandem_open(tandem **out, const tandem_options *o, tandem_error *e)
{
    err  why = {0};
    bool ok  = engine_open(out, o, &(engine_extra){0}, &why);
    if (!ok) copy_error(e, &why);
    return ok;
}

void tandem_shutdown(tandem *t, double grace_s) { sched_shutdown(t->sched, grace_s > 0 ? grace_s : 0); }

void tandem_close(tandem *t)
{
    if (!t) return;
    sched_free(t->sched);
    session_store_close(t->sessions);
    routing_log_close(t->log);
    open_close(&t->m);
    settings_file_close(t->file);
    pthread_mutex_destroy(&t->settings_lock);
    pthread_mutex_destroy(&t->fingerprint_lock);
    arena_deinit(&t->mem);
    mem_free(t);
}

void tandem_get_info(const tandem *t, tandem_info *out)
{
    tandem_drafter_info all[TANDEM_MAX_DRAFTERS];
    tandem_stats        now;
    int                 n = tandem_drafters(t, all);
    sched_get_stats(t->sched, &now);
    *out          = t->info;
    out->kv_bytes = now.kv_bytes;
    for (int i = 0; i < n; i++) {
        bool there = all[i].state != TANDEM_DRAFTER_FAILED;
        if (all[i].method == TANDEM_SPEC_MTP)
            out->has_mtp = there;
        else
            out->has_dflash = there;
    }
}

/* --- requests -----------------------------------------------------------------------------------*/
void tandem_request_init(const tandem *t, tandem_request *r)
{
    job_request_init(r, t->m.model);
    r->spec = t->spec;
}

void engine_limit_speculation(const tandem *t, tandem_speculation *s) { job_limit_speculation(s, &t->spec); }

bool engine_submit(tandem *t, const tandem_request *r, media_prompt *media, response_grammar *compiled,
                   tandem_job **out, err *e)
{
    return sched_submit_with(t->sched, r, media, compiled, out, e);
}

bool engine_compile(const tandem *t, const tandem_request *r, const atomic_bool *cancel, response_grammar **out, err *e)
{
    return sched_compile(t->sched, r, cancel, out, e);
}

response_grammar *engine_find_compiled(const tandem *t, const tandem_request *r)
{
    return sched_find_compiled(t->sched, r);
}

bool tandem_submit(tandem *t, const tandem_request *r, tandem_job **out, tandem_error *e)
{
    err  why = {0};
    bool ok  = sched_submit(t->sched, r, out, &why);
    if (!ok) copy_error(e, &why);
    return ok;
}

/* --- sessions -----------------------------------------------------------------------------------*/
static bool has_sessions(const tandem *t, err *e)
{
    return t->sessions || err_set(e, ERR_UNAVAILABLE, "there is no directory for sessions (--session-dir)");
}

bool tandem_session_save(tandem *t, const tandem_session *s, tandem_session_info *out, tandem_error *e)
{
    err  why = {0};
    bool ok  = has_sessions(t, &why) && session_save(t->sessions, t->sched, s, out, &why);
    if (!ok) copy_error(e, &why);
    return ok;
}

bool tandem_session_restore(tandem *t, const tandem_session *s, tandem_session_content *content,
                            tandem_session_info *out, tandem_error *e)
{
    err why  = {0};
    *content = (tandem_session_content){0};
    bool ok  = has_sessions(t, &why) && session_restore(t->sessions, t->sched, s, content, out, &why);
    if (!ok) copy_error(e, &why);
    return ok;
}

bool tandem_session_delete(tandem *t, const char *owner, const char *name, tandem_error *e)
{
    err  why = {0};
    bool ok  = has_sessions(t, &why) && session_delete(t->sessions, owner, name, &why);
    if (!ok) copy_error(e, &why);
    return ok;
}

size_t tandem_sessions(tandem *t, const char *owner, tandem_session_info *out, size_t max)
{
    return t->sessions ? session_list(t->sessions, owner, out, max) : 0;
}

void tandem_get_stats(const tandem *t, tandem_stats *out) { sched_get_stats(t->sched, out); }

/* --- text ---------------------------------------------------------------------------------------*/
static bool need_tok(const tandem *t, err *e)
{
    return t->m.tok || err_set(e, ERR_INPUT, "the model has no tokenizer, which text needs");
}

static bool give_ids(tok_ids *from, tandem_ids *out, err *e)
{
    if (from->failed) return err_set(e, ERR_UNAVAILABLE, "no memory for the tokens of this text");
    *out  = (tandem_ids){from->p, from->n};
    *from = (tok_ids){0};
    return true;
}

bool tandem_tokenize(const tandem *t, const char *text, size_t n, bool markers, tandem_ids *out, tandem_error *e)
{
    err     why = {0};
    tok_ids ids;
    *out = (tandem_ids){0};
    tok_ids_init(&ids, TANDEM_MAX_PROMPT);
    bool ok =
        need_tok(t, &why) && tok_encode(t->m.tok, &ids, (str){text, n}, markers, &why) && give_ids(&ids, out, &why);
    if (!ok) copy_error(e, &why);
    tok_ids_deinit(&ids);
    return ok;
}

void tandem_ids_free(tandem_ids *ids)
{
    mem_free(ids->p);
    *ids = (tandem_ids){0};
}

static size_t give_bytes(const buf *from, char *out, size_t cap)
{
    size_t n = !cap ? 0 : from->n < cap ? from->n : cap - 1;
    if (n) memcpy(out, from->p, n);
    if (cap) out[n] = 0;
    return from->n;
}

size_t tandem_detokenize(const tandem *t, const int32_t *ids, size_t n, bool markers, char *out, size_t cap)
{
    buf text;
    buf_init(&text, (size_t)1 << 31);
    if (t->m.tok) tok_decode(t->m.tok, ids, n, markers, &text);
    size_t needed = give_bytes(&text, out, cap);
    buf_deinit(&text);
    return needed;
}

static bool render_chat(const tandem *t, const chat *c, bool think, tandem_ids *out, bool *in_thought, err *e)
{
    chat_options o;
    chat_prompt  p;
    if (!engine_format(t, &o, e)) return false;
    o.thinking = think;
    chat_apply_wishes(c, &o);
    chat_prompt_init(&p, TANDEM_MAX_PROMPT);
    bool ok = chat_render_ids(&p, t->m.tok, c, &o, e) && give_ids(&p.ids, out, e);
    if (ok && in_thought) *in_thought = p.in_thought;
    chat_prompt_deinit(&p);
    return ok;
}

static bool add_message(chat *c, const tandem_message *m, err *e)
{
    static const struct {
        const char *name;
        chat_role   role;
    } roles[] = {
        {"system", CHAT_SYSTEM}, {"developer", CHAT_DEVELOPER}, {"user", CHAT_USER}, {"assistant", CHAT_ASSISTANT}};
    for (size_t i = 0; i < COUNT(roles); i++)
        if (strcmp(m->role, roles[i].name) == 0)
            return chat_add(c, roles[i].role, str_of(m->content)) ||
                   err_set(e, ERR_TOO_LARGE, "the conversation has too many messages");
    return err_set(e, ERR_INPUT, "'%.40s' is not a role, expected system, developer, user or assistant", m->role);
}

bool tandem_chat_prompt(const tandem *t, const tandem_message *messages, size_t n, bool think, tandem_ids *out,
                        bool *in_thought, tandem_error *e)
{
    err   why = {0};
    arena mem;
    *out = (tandem_ids){0};
    arena_init(&mem, (size_t)64 << 20);
    chat *c  = chat_new(&mem);
    bool  ok = need_tok(t, &why) && (c || err_set(&why, ERR_UNAVAILABLE, "no memory for these messages"));
    for (size_t i = 0; ok && i < n; i++) ok = add_message(c, &messages[i], &why);
    ok = ok && render_chat(t, c, think, out, in_thought, &why);
    if (!ok) copy_error(e, &why);
    arena_deinit(&mem);
    return ok;
}

/* --- settings -----------------------------------------------------------------------------------*/
int engine_trained_ctx(const tandem_drafter_info *all, int n)
{
    for (int i = 0; i < n; i++)
        if (all[i].method == TANDEM_SPEC_DFLASH) return all[i].trained_ctx;
    return 0;
}

static int trained_ctx(const tandem *t)
{
    tandem_drafter_info all[TANDEM_MAX_DRAFTERS];
    int                 n = tandem_drafters(t, all);
    return engine_trained_ctx(all, n);
}

void engine_get_settings(const tandem *t, settings *out) { sched_get_settings(t->sched, out); }

bool engine_change_settings(tandem *t, const json_value *members, err *e)
{
    settings       s;
    settings_owner of    = {t->file, t->info.name, t->m.model->o->name, t->carried};
    uint64_t       names = 0;
    char           warning[256];
    pthread_mutex_lock(&t->settings_lock);
    sched_get_settings(t->sched, &s);
    bool ok = settings_change(&s, &of, members, &names, e);
    if (ok) set_settings(t, &s);
    pthread_mutex_unlock(&t->settings_lock);
    if (ok && names & settings_bit(setting_find(STR("dflash_max_ctx"))) &&
        settings_warning(&s, trained_ctx(t), warning, sizeof warning))
        log_event(LOG_WARN, "settings", "%s: %s", t->info.name, warning);
    return ok;
}

void engine_take_settings(tandem *t, const settings *from, uint64_t names)
{
    settings now;
    pthread_mutex_lock(&t->settings_lock);
    sched_get_settings(t->sched, &now);
    settings_take(&now, from, names);
    set_settings(t, &now);
    pthread_mutex_unlock(&t->settings_lock);
}

bool tandem_set(tandem *t, const char *name, const char *value, tandem_error *e)
{
    err                 why  = {0};
    const setting_info *info = setting_find(str_of(name));
    json_member         m    = {.key = str_of(name)};
    if (info) m.value = settings_value(info, str_of(value));
    bool ok = engine_change_settings(t, &(json_value){.kind = JSON_OBJECT, .n = 1, .member = &m}, &why);
    if (!ok) copy_error(e, &why);
    return ok;
}

size_t tandem_settings(const tandem *t, char *out, size_t cap)
{
    settings s;
    buf      text;
    buf_init(&text, 1 << 20);
    sched_get_settings(t->sched, &s);
    put_settings(&s, &text);
    size_t n = give_bytes(&text, out, cap);
    buf_deinit(&text);
    return n;
}

void engine_fingerprint(const tandem *t, char out[ENGINE_FINGERPRINT_MAX])
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&t->fingerprint_lock;
    pthread_mutex_lock(lock);
    memcpy(out, t->fingerprint, ENGINE_FINGERPRINT_MAX);
    pthread_mutex_unlock(lock);
}

int engine_parts(const tandem *t, engine_part out[ENGINE_MAX_PARTS])
{
    tandem_drafter_info    all[TANDEM_MAX_DRAFTERS];
    const checkpoint_list *files[TANDEM_MAX_DRAFTERS];
    int                    n = 1, n_drafters = sched_drafters(t->sched, all, files);
    out[0] = (engine_part){"model", t->info.path, t->info.shown, t->m.files};
    for (int i = 0; i < n_drafters; i++)
        if (all[i].state != TANDEM_DRAFTER_FAILED)
            out[n++] = (engine_part){"drafter", all[i].path, all[i].name, files[i]};
    return n;
}

/* --- drafters -----------------------------------------------------------------------------------*/
int tandem_drafters(const tandem *t, tandem_drafter_info out[TANDEM_MAX_DRAFTERS])
{
    return sched_drafters(t->sched, out, NULL);
}

static bool park_drafter(tandem *t, tandem_method m, bool park, tandem_error *e)
{
    err  why = {0};
    bool ok  = sched_park_drafter(t->sched, (int)m, park, &why);
    if (!ok) copy_error(e, &why);
    return ok;
}

bool tandem_park_drafter(tandem *t, tandem_method m, tandem_error *e) { return park_drafter(t, m, true, e); }
bool tandem_unpark_drafter(tandem *t, tandem_method m, tandem_error *e) { return park_drafter(t, m, false, e); }

/* --- decisions ----------------------------------------------------------------------------------*/
void engine_put_routing(const tandem *t, const char *request_id, int n, json_writer *w)
{
    size_t        max  = n < 0 ? 0 : n < ENGINE_ROUTING_MAX ? (size_t)n : ENGINE_ROUTING_MAX;
    routing_seen *seen = mem_try_n(ENGINE_ROUTING_MAX, sizeof *seen);
    size_t        got  = seen ? sched_recent(t->sched, request_id, seen, max) : 0;
    json_begin_array(w);
    for (size_t i = 0; i < got; i++) {
        json_begin_object(w);
        routing_put_record(w, &seen[i].r, seen[i].ts);
        json_end(w);
    }
    json_end(w);
    mem_free(seen);
}

const char *engine_public_reason(const char *reason)
{
    static const route_reason of_load[] = {ROUTE_COST, ROUTE_CONCURRENCY, ROUTE_KV_PRESSURE, ROUTE_NO_ROOM};
    for (size_t i = 0; i < COUNT(of_load); i++)
        if (!strcmp(reason, route_reason_names[of_load[i]])) return "policy";
    return reason;
}
