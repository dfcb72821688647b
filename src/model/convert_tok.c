/* The tokenizer's keys. Tokens and their kinds come from the loaded vocabulary, merges as the file has them. */
#include "base/log.h"
#include "base/mem.h"
#include "model/config_value.h"
#include "model/convert_plan.h"
#include "model/family.h"

#include <limits.h>
#include <stdio.h>

enum { MAX_TEMPLATE = 4 << 20, MAX_CONFIG_MEMORY = 64 << 20 };

/* As other converters write it, except in files with a pre-tokenizer: these tokenizers have no scores. */
static const float NO_SCORE = -1000;

/* --- tokens ------------------------------------------------------------------------------------- */
static bool put_tokens(convert_plan *p, const tok *t, err *e)
{
    int n = p->n_vocab;
    if (tok_size(t) > n)
        return err_set(e, ERR_FORMAT, "the tokenizer has %d tokens and the model only %d: they do not match",
                       tok_size(t), n);
    int32_t *kind  = xnew_n(int32_t, (size_t)n);
    float   *score = xnew_n(float, (size_t)n);
    gguf_put_strings(p->w, "tokenizer.ggml.tokens");
    for (int i = 0; i < n; i++) {
        char filler[32];
        snprintf(filler, sizeof filler, "[PAD%d]", i);
        str text = tok_text(t, i);
        kind[i]  = text.n ? tok_listed_kind(t, i) : TOK_UNUSED;
        score[i] = NO_SCORE;
        gguf_put_item(p->w, text.n ? text : str_of(filler)); /* a name for every row, each its own */
    }
    if (!tok_gguf_pre(t)) gguf_put_array(p->w, "tokenizer.ggml.scores", GGUF_F32, score, (size_t)n);
    gguf_put_array(p->w, "tokenizer.ggml.token_type", GGUF_I32, kind, (size_t)n);
    mem_free(kind);
    mem_free(score);
    return true;
}

/* --- merges ------------------------------------------------------------------------------------- */
/* Reads up to the value of `key` in the object that is open. */
static bool find_key(json_reader *r, const char *key, err *e)
{
    json_event ev;
    for (;;) {
        if (!json_next(r, &ev, e)) return false;
        if (ev.kind == JSON_OBJECT_END) return err_set(e, ERR_FORMAT, "the tokenizer has no '%s'", key);
        if (str_is(ev.s, key)) return true;
        if (!json_skip(r, e)) return false;
    }
}

static bool expect(json_reader *r, json_kind kind, const char *what, json_event *ev, err *e)
{
    return json_next(r, ev, e) && (ev->kind == kind || err_set(e, ERR_FORMAT, "the tokenizer has no %s", what));
}

/* "left right", or ["left", "right"] with the first bracket read. */
static bool put_merge(convert_plan *p, json_reader *r, const json_event *first, buf *b, err *e)
{
    json_event left, right, end;
    if (first->kind == JSON_STRING) {
        gguf_put_item(p->w, first->s);
        return true;
    }
    if (!expect(r, JSON_STRING, "left part in a merge", &left, e) ||
        !expect(r, JSON_STRING, "right part in a merge", &right, e) ||
        !expect(r, JSON_ARRAY_END, "end of a merge", &end, e))
        return false;
    if (memchr(left.s.s, ' ', left.s.n) || memchr(right.s.s, ' ', right.s.n))
        return err_set(e, ERR_FORMAT, "the merge of '%.*s' has a space in it, for which GGUF has no spelling",
                       STR_ARG(left.s));
    buf_clear(b);
    buf_put(b, left.s.s, left.s.n);
    buf_putc(b, ' ');
    buf_put(b, right.s.s, right.s.n);
    gguf_put_item(p->w, buf_str(b));
    return true;
}

static bool walk_merges(convert_plan *p, json_reader *r, buf *b, err *e)
{
    json_event ev;
    if (!expect(r, JSON_OBJECT, "object", &ev, e) || !find_key(r, "model", e) ||
        !expect(r, JSON_OBJECT, "model", &ev, e) || !find_key(r, "merges", e) ||
        !expect(r, JSON_ARRAY, "list of merges", &ev, e))
        return false;
    gguf_put_strings(p->w, "tokenizer.ggml.merges");
    for (;;) {
        if (!json_next(r, &ev, e)) return false;
        if (ev.kind == JSON_ARRAY_END) return true;
        if (!put_merge(p, r, &ev, b, e)) return false;
    }
}

/* The file was loaded as a tokenizer before, so what is found here has been checked. */
static bool put_merges(convert_plan *p, const char *path, err *e)
{
    file_map     file;
    json_reader *r = NULL;
    buf          b;
    if (!file_map_open(&file, path, e)) return false;
    buf_init(&b, 4 * TOK_MAX_TEXT_BYTES);
    bool ok = json_reader_open(&r, (str){file.p, file.n}, NULL, e) && walk_merges(p, r, &b, e);
    json_reader_close(r);
    buf_deinit(&b);
    file_map_close(&file);
    return ok;
}

/* --- special tokens ----------------------------------------------------------------------------- */
static void put_id(convert_plan *p, const char *name, int64_t id)
{
    char key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    if (id >= 0 && id < p->n_vocab) gguf_put_u32(p->w, key, (uint32_t)id);
}

static void add_stop(tok_ids *out, int64_t id)
{
    for (size_t i = 0; i < out->n; i++)
        if (out->p[i] == id) return;
    if (id >= 0 && id <= INT32_MAX) tok_ids_put(out, (int32_t)id);
}

/* eos_token_id: a number or a list */
static void add_stops(tok_ids *out, const json_value *o)
{
    const json_value *v = hf_present(o, "eos_token_id");
    if (v && v->kind == JSON_INT) add_stop(out, v->i);
    for (size_t i = 0; v && v->kind == JSON_ARRAY && i < v->n; i++)
        if (v->item[i].kind == JSON_INT) add_stop(out, v->item[i].i);
}

static int64_t config_id(const convert_plan *p, const char *key)
{
    const json_value *text = hf_present(p->cp->config, "text_config"),
                     *v    = hf_present(text ? text : p->cp->config, key);
    return v && v->kind == JSON_INT ? v->i : -1;
}

/* All stop tokens that the directory names, for readers of lists; llama.cpp finds them by their texts. */
static void put_stops(convert_plan *p, int32_t eos)
{
    tok_ids stops;
    tok_ids_init(&stops, TOK_MAX_STOPS);
    if (eos >= 0) add_stop(&stops, eos);
    add_stops(&stops, p->cp->config);
    add_stops(&stops, hf_present(p->cp->config, "text_config"));
    add_stops(&stops, p->cp->generation);
    if (stops.n) put_id(p, "eos_token_id", stops.p[0]);
    if (stops.n > 1) gguf_put_array(p->w, "tokenizer.ggml.eos_token_ids", GGUF_I32, stops.p, stops.n);
    tok_ids_deinit(&stops);
}

static void put_suppressed(convert_plan *p)
{
    const json_value *v = hf_present(p->cp->generation, "suppress_tokens");
    if (!v || v->kind != JSON_ARRAY || !v->n) return;
    int32_t *id = xnew_n(int32_t, v->n);
    size_t   n  = 0;
    for (size_t i = 0; i < v->n; i++)
        if (v->item[i].kind == JSON_INT && v->item[i].i >= 0 && v->item[i].i < p->n_vocab)
            id[n++] = (int32_t)v->item[i].i;
    gguf_put_array(p->w, "tokenizer.ggml.suppress_tokens", GGUF_I32, id, n);
    mem_free(id);
}

/* --- chat template ------------------------------------------------------------------------------ */
/* A string, or a list of {name, template} whose `default` counts. */
static str template_of(const json_value *config)
{
    const json_value *v = hf_present(config, "chat_template");
    if (v && v->kind == JSON_STRING) return v->s;
    for (size_t i = 0; v && v->kind == JSON_ARRAY && i < v->n; i++) {
        const json_value *name = json_get(&v->item[i], "name"), *text = json_get(&v->item[i], "template");
        if (name && text && name->kind == JSON_STRING && str_is(name->s, "default") && text->kind == JSON_STRING)
            return text->s;
    }
    return (str){0};
}

static bool template_from_config(convert_plan *p, const char *path, err *e)
{
    file_map          file;
    arena             mem;
    const json_value *config;
    json_limits       limits = {.max_memory = MAX_CONFIG_MEMORY};
    if (!file_map_open(&file, path, e)) return false;
    arena_init(&mem, MAX_CONFIG_MEMORY);
    bool ok   = json_parse(&config, &mem, (str){file.p, file.n}, &limits, e) || err_wrap(e, "cannot read %s", path);
    str  text = ok ? template_of(config) : (str){0};
    if (text.n) gguf_put_str(p->w, "tokenizer.chat_template", text);
    arena_deinit(&mem);
    file_map_close(&file);
    return ok;
}

static bool template_from_file(convert_plan *p, const char *path, err *e)
{
    file_map file;
    if (!file_map_open(&file, path, e)) return false;
    bool ok = file.n <= MAX_TEMPLATE || err_set(e, ERR_TOO_LARGE, "%s is larger than %d MiB", path, MAX_TEMPLATE >> 20);
    if (ok && file.n) gguf_put_str(p->w, "tokenizer.chat_template", (str){file.p, file.n});
    file_map_close(&file);
    return ok;
}

static bool put_template(convert_plan *p, err *e)
{
    char path[PATH_MAX];
    if (file_join(path, sizeof path, p->cp->path, "chat_template.jinja") && file_exists(path))
        return template_from_file(p, path, e);
    if (file_join(path, sizeof path, p->cp->path, "tokenizer_config.json") && file_exists(path))
        return template_from_config(p, path, e);
    return true;
}

/* --- the whole ---------------------------------------------------------------------------------- */
static bool put_vocabulary(convert_plan *p, const tok *t, const char *json, err *e)
{
    gguf_put_str(p->w, "tokenizer.ggml.model", str_of(tok_gguf_model(t)));
    if (tok_gguf_pre(t)) gguf_put_str(p->w, "tokenizer.ggml.pre", str_of(tok_gguf_pre(t)));
    if (tok_normalizes(t)) gguf_put_bool(p->w, "tokenizer.ggml.normalizer.nfc", true);
    if (!put_tokens(p, t, e) || !put_merges(p, json, e)) return false;
    put_id(p, "bos_token_id", tok_bos(t));
    put_id(p, "unknown_token_id", tok_unk(t));
    put_id(p, "padding_token_id", tok_pad(t));
    put_id(p, "mask_token_id", p->mask_id >= 0 ? p->mask_id : tok_find(t, STR("<mask>")));
    put_stops(p, tok_eos(t));
    gguf_put_bool(p->w, "tokenizer.ggml.add_bos_token", tok_add_bos(t));
    gguf_put_bool(p->w, "tokenizer.ggml.add_space_prefix", false);
    return true;
}

static void put_no_vocabulary(convert_plan *p)
{
    log_event(LOG_WARN, "convert", "%s has no tokenizer.json: the file will take token ids only", p->cp->path);
    gguf_put_str(p->w, "tokenizer.ggml.model", STR("none"));
    put_id(p, "bos_token_id", config_id(p, "bos_token_id"));
    put_id(p, "padding_token_id", config_id(p, "pad_token_id"));
    put_id(p, "mask_token_id", p->mask_id);
    put_stops(p, -1);
}

bool plan_tokenizer(convert_plan *p, const char *json, err *e)
{
    tok *t = NULL;
    if (json && !family_tok_from_json(&t, json, e)) return false;
    bool ok = !t || put_vocabulary(p, t, json, e);
    if (!t) put_no_vocabulary(p);
    put_suppressed(p);
    tok_free(t);
    return ok && put_template(p, e);
}
