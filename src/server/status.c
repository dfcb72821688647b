#include "server/status.h"

#include "base/log.h"

/* --- alive ----------------------------------------------------------------------------------------*/
void watchdog_look(watchdog *w, double busy_s)
{
    bool hangs = w->limit_s > 0 && busy_s > w->limit_s;
    if (hangs && !w->hangs) log_event(LOG_ERROR, "watchdog", "a step has been running for %.1f s", busy_s);
    if (!hangs && w->hangs) log_event(LOG_WARN, "watchdog", "the engine responds again");
    w->hangs = hangs;
}

static bool unavailable(server_error *why, const char *code, const char *message)
{
    return error_set(why, 503, NULL, code, "%s", message);
}

static bool check_life(const status_view *v, server_error *why)
{
    if (!v->loaded_before && !life_check(v->state, why)) return false;
    if (v->state == MODEL_FAILED) return life_check(v->state, why);
    if (v->draining) return unavailable(why, "unavailable", "The server is shutting down.");
    if (v->drained) return error_drained(why);
    return !v->hangs || unavailable(why, "engine_hangs", "The engine does not respond.");
}

bool status_health(const status_view *v, buf *out, server_error *why)
{
    return check_life(v, why) &&
           buf_printf(out, "{\"status\":\"%s\"}", v->state == MODEL_LOADED ? "ok" : model_state_names[v->state]);
}

bool status_ready(const status_view *v, buf *out, server_error *why)
{
    if (!check_life(v, why) || !life_check(v->state, why)) return false;
    if (v->stuck) return unavailable(why, "worker_stuck", "A worker has not finished a request for a long time.");
    if (v->stats.running + v->stats.queued >= v->info.max_lanes + v->queue_max)
        return unavailable(why, "queue_full", "The queue is full.");
    return buf_puts(out, "{\"status\":\"ready\"}");
}

/* --- what it runs ---------------------------------------------------------------------------------*/
void status_version(buf *out) { buf_printf(out, "{\"version\":\"%s\"}", tandem_version()); }

static void put_model(json_writer *w, const status_view *v, str id)
{
    const tandem_info *i = &v->info;
    json_begin_object(w);
    json_key(w, "id");
    json_put_str(w, id);
    json_member_str(w, "object", "model");
    json_member_int(w, "created", v->created);
    json_member_str(w, "owned_by", "tandem");
    json_member_int(w, "max_model_len", i->n_ctx);
    parts_put_modalities(w, i);
    json_key(w, "meta");
    json_begin_object(w);
    json_member_str(w, "family", i->family);
    json_member_int(w, "n_vocab", i->n_vocab);
    json_member_int(w, "n_layers", i->n_layers);
    json_member_int(w, "size", (int64_t)i->weight_bytes);
    json_end(w);
    json_end(w);
}

void status_models(const status_view *v, buf *out)
{
    json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_str(&w, "object", "list");
    json_key(&w, "data");
    json_begin_array(&w);
    put_model(&w, v, str_of(v->info.name));
    for (size_t i = 0; i < v->n_aliases; i++) put_model(&w, v, str_of(v->aliases[i]));
    json_end(&w);
    json_end(&w);
}

static void put_marker(json_writer *w, const char *key, const tok *t, int32_t id)
{
    json_key(w, key);
    if (id >= 0)
        json_put_str(w, tok_text(t, id));
    else
        json_put_null(w);
}

void status_tokenizer(const status_view *v, const tok *t, buf *out)
{
    json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_str(&w, "tokenizer_class", v->info.family);
    json_member_int(&w, "vocab_size", tok_size(t));
    json_member_int(&w, "model_max_length", v->info.n_ctx);
    json_member_bool(&w, "add_bos_token", tok_add_bos(t));
    put_marker(&w, "bos_token", t, tok_bos(t));
    put_marker(&w, "eos_token", t, tok_eos(t));
    put_marker(&w, "pad_token", t, tok_pad(t));
    put_marker(&w, "unk_token", t, tok_unk(t));
    json_end(&w);
}

static bool is_called(const status_view *v, str id)
{
    bool found = str_is(id, v->info.name);
    for (size_t i = 0; i < v->n_aliases; i++) found |= str_is(id, v->aliases[i]);
    return found;
}

bool status_model(const status_view *v, str id, buf *out, server_error *why)
{
    json_writer w;
    if (!is_called(v, id))
        return error_set(why, 404, "model", "model_not_found", "There is no model '%.*s'.", STR_ARG(id));
    json_writer_init(&w, out);
    put_model(&w, v, id);
    return true;
}

static void put_defaults(json_writer *w, const status_view *v)
{
    const tandem_request *r = &v->defaults;
    json_begin_object(w);
    json_member_int(w, "n_ctx", v->info.n_ctx);
    json_key(w, "params");
    json_begin_object(w);
    json_member_real(w, "temperature", (double)r->temp);
    json_member_int(w, "top_k", r->top_k);
    json_member_real(w, "top_p", (double)r->top_p);
    json_member_real(w, "min_p", (double)r->min_p);
    json_member_real(w, "repeat_penalty", (double)r->repeat_penalty);
    json_member_real(w, "presence_penalty", (double)r->presence_penalty);
    json_member_real(w, "frequency_penalty", (double)r->frequency_penalty);
    json_member_str(w, "speculative", tandem_method_name((int)r->spec.method));
    json_end(w);
    json_end(w);
}

static void put_engine(json_writer *w, const tandem_info *i)
{
    json_begin_object(w);
    json_member_str(w, "device", i->device);
    json_member_int(w, "threads", i->n_threads);
    json_member_str(w, "kv_type", i->kv_type);
    json_member_str(w, "kv_sliding", i->kv_sliding);
    json_member_str(w, "kv_draft", i->kv_draft);
    json_member_real(w, "sparse_fa", i->sparse_fa);
    json_member_int(w, "kv_bytes_per_token", (int64_t)i->kv_bytes_per_token);
    json_member_int(w, "kv_bytes_per_token_full", (int64_t)i->kv_bytes_per_token_full);
    json_member_int(w, "kv_bytes", (int64_t)i->kv_bytes);
    json_member_int(w, "step_tokens", i->step_tokens);
    json_member_bool(w, "dflash", i->has_dflash);
    json_member_bool(w, "mtp", i->has_mtp);
    json_end(w);
}

/* text: an object that this server wrote. */
static void put_settings(json_writer *w, const char *text)
{
    const json_value *v;
    arena             mem;
    arena_init(&mem, 1 << 20);
    json_key(w, "settings");
    if (text && json_parse(&v, &mem, str_of(text), NULL, NULL))
        json_put_value(w, v);
    else
        json_put_null(w);
    arena_deinit(&mem);
}

static void put_parts(json_writer *w, const model_parts *all)
{
    json_key(w, "models");
    json_begin_array(w);
    for (int i = 0; i <= all->n_drafters; i++) {
        json_begin_object(w);
        parts_put_members(w, &all->part[i]);
        json_end(w);
    }
    json_end(w);
}

void status_props(const status_view *v, buf *out)
{
    json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_key(&w, "default_generation_settings");
    put_defaults(&w, v);
    json_member_int(&w, "total_slots", v->info.max_lanes);
    json_member_str(&w, "model_alias", v->info.name);
    json_member_str(&w, "model_path", v->info.shown);
    put_parts(&w, &v->parts);
    json_key(&w, "modalities");
    json_begin_object(&w);
    json_member_bool(&w, "vision", v->info.has_images);
    json_member_bool(&w, "video", v->info.has_video);
    json_member_bool(&w, "audio", false);
    json_end(&w);
    json_member_str(&w, "build_info", "tandem " TANDEM_VERSION);
    json_key(&w, "limits");
    json_begin_object(&w);
    json_member_int(&w, "request_memory", (int64_t)v->request_bytes);
    json_member_int(&w, "body_memory", (int64_t)v->body_bytes);
    json_end(&w);
    json_key(&w, "engine");
    put_engine(&w, &v->info);
    put_settings(&w, v->settings);
    if (v->files) {
        files_want(v->files);
        json_key(&w, "files");
        files_write(v->files, &w);
    }
    json_end(&w);
}

/* --- who is in it ---------------------------------------------------------------------------------*/
static void put_slot(json_writer *w, const status_view *v, int id, const slot_view *s)
{
    json_begin_object(w);
    json_member_int(w, "id", id);
    json_member_int(w, "n_ctx", v->info.n_ctx);
    json_member_bool(w, "speculative", v->info.has_dflash || v->info.has_mtp);
    json_member_bool(w, "is_processing", s != NULL);
    if (s) {
        json_member_str(w, "request_id", s->request_id);
        json_member_int(w, "n_prompt", s->prompt_tokens);
        json_member_int(w, "n_decoded", s->tokens);
        json_member_real(w, "age_s", s->age_s);
    }
    json_end(w);
}

bool status_slots(const status_view *v, const slot_view *slot, size_t n, bool need_idle, buf *out, server_error *why)
{
    json_writer w;
    int         lanes = v->info.max_lanes;
    if (need_idle && n >= (size_t)lanes) return unavailable(why, "no_slot", "There is no idle slot.");
    json_writer_init(&w, out);
    json_begin_array(&w);
    for (int i = 0; i < lanes; i++) put_slot(&w, v, i, (size_t)i < n ? &slot[i] : NULL);
    json_end(&w);
    return true;
}
