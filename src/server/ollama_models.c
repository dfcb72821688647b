/* Describes the model to Ollama's clients: the list of models, one model's description, what is loaded. Refuses
 * requests about files: no endpoint writes or loads a file that a caller names. */
#include "server/admin.h"
#include "server/ollama.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "chat/format.h"

#include <ctype.h>
#include <stdio.h>
#include <time.h>

enum { MAX_REPLY = 1 << 20, DIGEST = 64, CENTURY = 36525 };

/* --- one model ----------------------------------------------------------------------------------*/
static void put_time(json_writer *w, const char *key, time_t at)
{
    buf text;
    buf_init(&text, 64);
    clock_put_utc(&text, &(struct timespec){.tv_sec = at}, 0);
    json_key(w, key);
    json_put_str(w, buf_str(&text));
    buf_deinit(&text);
}

/* Writes the modification time of the model's file, or default_time if it is not known. */
static void put_modified(json_writer *w, path_info path, time_t default_time)
{
    put_time(w, "modified_at", path.modified ? path.modified : default_time);
}

static void put_name(json_writer *w, const char *key, const char *name)
{
    buf full;
    buf_init(&full, 1 << 12);
    ollama_put_name(&full, str_of(name));
    json_key(w, key);
    json_put_str(w, buf_str(&full));
    buf_deinit(&full);
}

/* Writes the hash of the model's fingerprint; where that has another length, a hash of it. */
static void put_digest(json_writer *w, const tandem_info *i)
{
    const char *colon = strrchr(i->fingerprint, ':'), *hash = colon ? colon + 1 : i->fingerprint;
    const char *text = i->fingerprint[0] ? i->fingerprint : i->name;
    char        made[DIGEST + 1];
    sha256      sum;
    sha256_init(&sum);
    sha256_put(&sum, text, strlen(text));
    sha256_hex(&sum, made);
    json_member_str(w, "digest", strlen(hash) == DIGEST ? hash : made);
}

/* Writes 25.2B for 25,200,000,000. */
static void put_size(json_writer *w, uint64_t n)
{
    char text[32];
    if (n >= 1000000000)
        snprintf(text, sizeof text, "%.1fB", (double)n / 1e9);
    else if (n >= 1000000)
        snprintf(text, sizeof text, "%.1fM", (double)n / 1e6);
    else
        snprintf(text, sizeof text, "%.1fK", (double)n / 1e3);
    json_member_str(w, "parameter_size", text);
}

static void put_details(json_writer *w, const tandem_info *i, path_info path)
{
    char type[32];
    snprintf(type, sizeof type, "%s", i->quantisation);
    for (char *p = type; *p; p++) *p = (char)toupper((unsigned char)*p);
    json_key(w, "details");
    json_begin_object(w);
    json_member_str(w, "parent_model", "");
    json_member_str(w, "format", path.is_dir ? "safetensors" : "gguf");
    json_member_str(w, "family", i->family);
    json_key(w, "families");
    json_begin_array(w);
    json_put_str(w, str_of(i->family));
    json_end(w);
    put_size(w, i->n_params);
    json_member_str(w, "quantization_level", type);
    json_end(w);
}

static void put_capabilities(json_writer *w, const tandem_info *i)
{
    static const char *const all[] = {"completion", "tools", "thinking"};
    json_key(w, "capabilities");
    json_begin_array(w);
    for (size_t k = 0; k < COUNT(all); k++) json_put_str(w, str_of(all[k]));
    if (i->has_images) json_put_str(w, STR("vision"));
    json_end(w);
}

/* --- lists --------------------------------------------------------------------------------------*/
typedef void put_fn(json_writer *w, const server *s, const tandem_info *i);

static void put_listed(json_writer *w, const server *s, const tandem_info *i)
{
    put_modified(w, files_first(s->files), (time_t)s->created);
    json_member_int(w, "size", (int64_t)i->weight_bytes);
    put_capabilities(w, i);
}

static void put_running(json_writer *w, const server *s, const tandem_info *i)
{
    int64_t bytes = (int64_t)(i->weight_bytes + i->kv_bytes);
    put_time(w, "expires_at", (time_t)s->created + (time_t)CENTURY * 86400);
    json_member_int(w, "size", bytes);
    json_member_int(w, "size_vram", strcmp(i->device, "cpu") ? bytes : 0);
    json_member_int(w, "context_length", i->n_ctx);
}

static void put_model(json_writer *w, const server *s, const char *name, const tandem_info *i, put_fn *put)
{
    json_begin_object(w);
    put_name(w, "name", name);
    put_name(w, "model", name);
    put_digest(w, i);
    put_details(w, i, files_first(s->files));
    put(w, s, i);
    json_end(w);
}

/* Replies with a list of the model by all its names, if there is one. */
static void reply_list(server *s, server_call *c, bool any, const tandem_info *i, put_fn *put)
{
    buf         out;
    json_writer w;
    buf_init(&out, MAX_REPLY);
    json_writer_init(&w, &out);
    json_begin_object(&w);
    json_key(&w, "models");
    json_begin_array(&w);
    if (any) put_model(&w, s, s->opt->model, i, put);
    for (size_t k = 0; any && k < s->opt->n_aliases; k++) put_model(&w, s, s->opt->aliases[k], i, put);
    json_end(&w);
    json_end(&w);
    call_reply(s, c, 200, "application/json", buf_str(&out));
    buf_deinit(&out);
}

void ollama_tags(server *s, server_call *c)
{
    tandem_info  info;
    server_error why;
    bool         known = life_info(s, &info, NULL, NULL);
    if (known || life_check(s->life.state, &why))
        reply_list(s, c, known, &info, put_listed);
    else
        call_refuse(s, c, &why);
}

void ollama_ps(server *s, server_call *c)
{
    tandem_info info;
    bool        known = life_info(s, &info, NULL, NULL);
    reply_list(s, c, known && s->engine, &info, put_running);
}

/* Replies with the version of the API; the server's own is in a header. */
void ollama_version(server *s, server_call *c)
{
    http_field f[SERVER_MAX_FIELDS + 2];
    int        n = call_headers(s, c, f);
    f[n++]       = (http_field){STR("Content-Type"), STR("application/json")};
    f[n++]       = (http_field){STR("X-Tandem-Version"), STR(TANDEM_VERSION)};
    http_reply(c->http, 200, f, (size_t)n, STR("{\"version\":\"" OLLAMA_VERSION "\"}"));
}

/* --- show ---------------------------------------------------------------------------------------*/
static const chat_format *chat_format_of(const tandem *t)
{
    chat_options o;
    engine_format(t, &o, NULL); /* sets the format also for a model whose template cannot be read */
    return o.format;
}

/* Writes lines such as `temperature 1` and `stop "..."`, the marker that ends a turn. */
static void put_parameters(json_writer *w, const tandem *t)
{
    tandem_request r;
    buf            text;
    str            stop = str_of(chat_format_of(t)->tokens->markup->turn_close);
    tandem_request_init(t, &r);
    buf_init(&text, 1 << 12);
    buf_printf(&text, "temperature %g\ntop_k %d\ntop_p %g\nmin_p %g\nrepeat_penalty %g\nstop \"%.*s\"", (double)r.temp,
               r.top_k, (double)r.top_p, (double)r.min_p, (double)r.repeat_penalty, STR_ARG(stop));
    json_key(w, "parameters");
    json_put_str(w, buf_str(&text));
    buf_deinit(&text);
}

/* Writes the text of the chat template, in which clients look for the word "tools". A model whose file has none gets an
 * outline of the format that its prompts are written in. */
static void put_template(json_writer *w, const tandem *t)
{
    str text = engine_template(t);
    json_key(w, "template");
    json_put_str(w, text.n ? text : str_of(chat_format_of(t)->outline));
}

static void put_info(json_writer *w, const tandem *t, str model)
{
    const tandem_info *i     = engine_info(t);
    const char        *colon = model.n ? memchr(model.s, ':', model.n) : NULL;
    const struct {
        const char *name;
        int64_t     x;
    } number[] = {{"context_length", i->n_ctx},
                  {"embedding_length", i->n_embd},
                  {"block_count", i->n_layers},
                  {"vocab_size", i->n_vocab}};
    char key[64];
    json_key(w, "model_info");
    json_begin_object(w);
    json_member_str(w, "general.architecture", i->family);
    json_key(w, "general.basename");
    json_put_str(w, (str){model.s, colon ? (size_t)(colon - model.s) : model.n});
    json_member_int(w, "general.parameter_count", (int64_t)i->n_params);
    for (size_t k = 0; k < COUNT(number); k++) {
        snprintf(key, sizeof key, "%s.%s", i->family, number[k].name);
        json_member_int(w, key, number[k].x);
    }
    json_end(w);
}

static bool read_model(server_request *r, str *model, server_error *why)
{
    const json_value *body;
    if (!r->body.n) return error_set(why, 400, NULL, NULL, "missing request body");
    return admin_read_body(buf_str(&r->body), &r->mem, &body, why) && ollama_check_model(r, body, model, why);
}

bool ollama_show(server_request *r, const tandem *t, buf *out, server_error *why)
{
    json_writer w;
    str         model;
    path_info   path = files_read_path(engine_info(t)->path);
    if (!read_model(r, &model, why)) return false;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_str(&w, "license", "");
    json_member_str(&w, "modelfile", "");
    put_parameters(&w, t);
    put_template(&w, t);
    put_details(&w, engine_info(t), path);
    put_info(&w, t, model);
    put_capabilities(&w, engine_info(t));
    put_modified(&w, path, time(NULL));
    json_end(&w);
    return !out->failed || error_no_memory(why);
}

/* --- files --------------------------------------------------------------------------------------*/
bool ollama_pull(server_request *r, const tandem *t, buf *out, server_error *why)
{
    str model = {0};
    (void)t;
    if (read_model(r, &model, why)) return buf_puts(out, "{\"status\":\"success\"}\n") || error_no_memory(why);
    return why->status == 404 &&
           error_set(why, 404, "model", "model_not_found",
                     "model '%.*s' not found: this server serves '%s' alone, and loads no others. Start one with "
                     "'tandem serve -m FILE --alias NAME'.",
                     STR_ARG(model), r->served);
}

void ollama_no_files(server *s, server_call *c)
{
    server_error why;
    error_set(&why, 501, NULL, "not_supported",
              "This server does not create, copy, push or delete models: it serves the one that it was started with.");
    call_refuse(s, c, &why);
}
