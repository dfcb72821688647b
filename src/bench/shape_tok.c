#include "bench/shape_tok.h"

#include "base/file.h"
#include "base/mem.h"
#include "sched/open.h"

#include <stdio.h>

static const char mask_key[] = "tokenizer.ggml.mask_token_id";

/* --- from a GGUF file ---------------------------------------------------------------------------- */
/* The lists with an entry per token are filled up; their types are checked by the loader before. Fillers are ordinary
 * tokens with short texts: most tokens of random weights are fillers, and clients shall see them come. */
static void put_texts(convert_plan *p, const gguf_value *v)
{
    static const char digit[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
    const char       *at      = v->data;
    gguf_put_strings(p->w, "tokenizer.ggml.tokens");
    for (uint64_t i = 0; i < v->n; i++) gguf_put_item(p->w, gguf_next_str(&at));
    for (int i = (int)v->n; i < p->n_vocab; i++) {
        char filler[32];
        snprintf(filler, sizeof filler, "`%c%c%c", digit[i >> 12 & 63], digit[i >> 6 & 63], digit[i & 63]);
        gguf_put_item(p->w, str_of(filler));
    }
}

static void put_numbers(convert_plan *p, const char *key, const gguf_value *v, uint32_t filler)
{
    uint32_t *all = xnew_n(uint32_t, (size_t)p->n_vocab); /* f32 or int32 */
    memcpy(all, v->data, (size_t)v->n * sizeof *all);
    for (int i = (int)v->n; i < p->n_vocab; i++) all[i] = filler;
    gguf_put_array(p->w, key, v->item, all, (size_t)p->n_vocab);
    mem_free(all);
}

static bool put_value(convert_plan *p, const gguf_value *v, err *e)
{
    enum { NORMAL = 1 };
    bool texts = str_is(v->key, "tokenizer.ggml.tokens"), scores = str_is(v->key, "tokenizer.ggml.scores"),
         kinds = str_is(v->key, "tokenizer.ggml.token_type");
    if (str_is(v->key, mask_key) && p->mask_id >= 0) return true; /* a drafter has its own */
    if (!texts && !scores && !kinds) {
        gguf_put_value(p->w, v);
        return true;
    }
    if (v->type != GGUF_ARRAY || v->n > (uint64_t)p->n_vocab || (texts && v->item != GGUF_STRING) ||
        (!texts && gguf_type_bytes(v->item) != sizeof(uint32_t)))
        return err_set(e, ERR_FORMAT, "%.*s is not a list of up to %d entries", STR_ARG(v->key), p->n_vocab);
    if (texts)
        put_texts(p, v);
    else
        put_numbers(p, scores ? "tokenizer.ggml.scores" : "tokenizer.ggml.token_type", v, scores ? 0 : NORMAL);
    return true;
}

static bool copy_keys(convert_plan *p, const char *path, err *e)
{
    gguf *g;
    bool  ok = gguf_open(&g, path, e);
    for (size_t i = 0; ok && i < gguf_n_values(g); i++)
        if (str_starts(gguf_value_at(g, i)->key, "tokenizer.")) ok = put_value(p, gguf_value_at(g, i), e);
    if (ok && p->mask_id >= 0) gguf_put_u32(p->w, mask_key, (uint32_t)p->mask_id);
    gguf_close(g);
    return ok;
}

/* --- from tokenizer.json ------------------------------------------------------------------------- */
/* path: the file, or its directory; the template is next to it. */
static bool convert_keys(convert_plan *p, const char *path, err *e)
{
    checkpoint *dir = xnew(checkpoint);
    char        json[sizeof dir->path];
    const char *slash  = strrchr(path, '/');
    bool        is_dir = file_is_dir(path);
    snprintf(dir->path, sizeof dir->path, "%.*s",
             is_dir  ? (int)strlen(path)
             : slash ? (int)(slash - path)
                     : 1,
             is_dir || slash ? path : ".");
    bool ok = is_dir ? file_join(json, sizeof json, path, "tokenizer.json")
                     : (size_t)snprintf(json, sizeof json, "%s", path) < sizeof json;
    p->cp   = dir;
    ok      = (ok || err_set(e, ERR_INPUT, "the path of the tokenizer is too long")) && plan_tokenizer(p, json, e);
    p->cp   = NULL;
    mem_free(dir);
    return ok;
}

/* --- either -------------------------------------------------------------------------------------- */
/* Fails when it cannot be loaded, or has more tokens than the model. */
static bool check_tokenizer(const convert_plan *p, const char *path, err *e)
{
    tok *t;
    if (!open_tok(&t, path, e)) return false;
    bool ok = tok_size(t) <= p->n_vocab ||
              err_set(e, ERR_INPUT, "it has %d tokens, and the model only %d", tok_size(t), p->n_vocab);
    tok_free(t);
    return ok;
}

bool shape_put_tokenizer(convert_plan *p, const char *path, err *e)
{
    bool is_json = file_is_dir(path) || str_ends(str_of(path), ".json");
    return (check_tokenizer(p, path, e) && (is_json ? convert_keys : copy_keys)(p, path, e)) ||
           err_wrap(e, "cannot use the tokenizer %s", path);
}
