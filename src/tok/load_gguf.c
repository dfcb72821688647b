/* Reads a vocabulary from the tokenizer.ggml.* keys of a GGUF file. */
#include "tok/vocab.h"

static bool wrong(err *e, const char *key, const char *expected)
{
    return err_set(e, ERR_FORMAT, "'%s' is not %s", key, expected);
}

/* Returns an array of strings; NULL when the key is absent or of another type. */
static const gguf_value *string_array(const gguf *g, const char *key)
{
    const gguf_value *v = gguf_find(g, key);
    return v && v->type == GGUF_ARRAY && v->item == GGUF_STRING ? v : NULL;
}

static bool check_model(const gguf *g, const tok_family *f, err *e)
{
    str               name = STR("");
    const gguf_value *v    = gguf_find(g, "tokenizer.ggml.model");
    if (!v && !gguf_find(g, "tokenizer.ggml.tokens"))
        return err_set(e, ERR_NOT_FOUND, "the file has no tokenizer (no key 'tokenizer.ggml.model')");
    if (!v || !gguf_str(v, &name)) return wrong(e, "tokenizer.ggml.model", "a string");
    if (str_is(name, "none") || str_is(name, "no_vocab"))
        return err_set(e, ERR_NOT_FOUND, "the file has no tokenizer ('tokenizer.ggml.model' is '%.*s')", STR_ARG(name));
    if (f && f->gguf_model && !str_is(name, f->gguf_model))
        return err_set(e, ERR_FORMAT, "the file's tokenizer is of the kind '%.*s', expected '%s'", STR_ARG(name),
                       f->gguf_model);
    return true;
}

/* Checks how the file's texts are cut into words. */
static bool check_pre(const gguf *g, const tok_family *f, err *e)
{
    str               name;
    const char       *key = "tokenizer.ggml.pre";
    const gguf_value *v   = gguf_find(g, key);
    if (!f || !f->gguf_pre) return true;
    if (!v || !gguf_str(v, &name)) return wrong(e, key, "a string");
    return str_is(name, f->gguf_pre) ||
           err_set(e, ERR_FORMAT, "the file's pre-tokenizer is '%.*s', expected '%s'", STR_ARG(name), f->gguf_pre);
}

static bool read_tokens(vocab_source *s, const gguf *g, err *e)
{
    const char       *key    = "tokenizer.ggml.token_type";
    const gguf_value *tokens = string_array(g, "tokenizer.ggml.tokens"), *types = gguf_find(g, key);
    if (!tokens) return wrong(e, "tokenizer.ggml.tokens", "an array of strings");
    if (tokens->n > TOK_MAX_TOKENS)
        return err_set(e, ERR_FORMAT, "the file has %llu tokens, more than %d", (unsigned long long)tokens->n,
                       TOK_MAX_TOKENS);
    if (types && (types->type != GGUF_ARRAY || types->n != tokens->n))
        return wrong(e, key, "an array with a number for each token");
    const char *at = tokens->data;
    for (uint64_t i = 0; i < tokens->n; i++) {
        int64_t kind = TOK_NORMAL;
        if (types && !gguf_item_int(types, i, &kind)) return wrong(e, key, "an array of integers");
        if (kind < TOK_NORMAL || kind > TOK_BYTE)
            return err_set(e, ERR_FORMAT, "token %llu has type %lld, expected 1 to 6", (unsigned long long)i,
                           (long long)kind);
        if (!vocab_source_set(s, (int64_t)i, gguf_next_str(&at), (tok_kind_t)kind, e)) return false;
    }
    return true;
}

static bool read_merges(vocab_source *s, const gguf *g, err *e)
{
    const gguf_value *v = string_array(g, "tokenizer.ggml.merges");
    if (!v) return wrong(e, "tokenizer.ggml.merges", "an array of strings");
    const char *at = v->data;
    for (uint64_t i = 0; i < v->n; i++)
        if (!vocab_source_merge_text(s, gguf_next_str(&at), e)) return false;
    return true;
}

/* Reads an id, which must not be negative and must fit an int32. */
static bool check_id(const char *key, int64_t id, int32_t *out, err *e)
{
    if (id < 0 || id >= TOK_MAX_TOKENS)
        return err_set(e, ERR_FORMAT, "'%s' is %lld, not a token's id", key, (long long)id);
    *out = (int32_t)id;
    return true;
}

static bool read_id(const gguf *g, const char *key, int32_t *out, err *e)
{
    int64_t           id;
    const gguf_value *v = gguf_find(g, key);
    if (!v) return true;
    if (v->type == GGUF_ARRAY ? !v->n || !gguf_item_int(v, 0, &id) : !gguf_int(v, &id))
        return wrong(e, key, "an integer or an array of integers");
    return check_id(key, id, out, e);
}

/* Adds one id or an array of ids to the stop set. */
static bool read_stops(vocab_source *s, const gguf *g, const char *key, err *e)
{
    const gguf_value *v = gguf_find(g, key);
    for (uint64_t i = 0; v && i < v->n; i++) {
        int64_t id;
        if (v->type == GGUF_ARRAY ? !gguf_item_int(v, i, &id) : !gguf_int(v, &id))
            return wrong(e, key, "an integer or an array of integers");
        if (s->n_stop == TOK_MAX_STOPS)
            return err_set(e, ERR_FORMAT, "'%s' names more than %d stop tokens", key, TOK_MAX_STOPS);
        if (!check_id(key, id, &s->stop[s->n_stop++], e)) return false;
    }
    return true;
}

static bool read_specials(vocab_source *s, const gguf *g, err *e)
{
    static const char *const stops[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eos_token_ids",
                                        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    if (!read_id(g, "tokenizer.ggml.bos_token_id", &s->bos, e)) return false;
    if (!read_id(g, "tokenizer.ggml.eos_token_id", &s->eos, e)) return false;
    if (!read_id(g, "tokenizer.ggml.padding_token_id", &s->pad, e)) return false;
    if (!read_id(g, "tokenizer.ggml.unknown_token_id", &s->unk, e)) return false;
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        if (!read_stops(s, g, stops[i], e)) return false;
    return true;
}

/* A key of our own, which `convert` writes: GGUF has none for this. Other readers do not normalise, nor do files
 * without the key. */
static bool read_normalizer(vocab_source *s, const gguf *g, err *e)
{
    const char       *key = "tokenizer.ggml.normalizer.nfc";
    const gguf_value *v   = gguf_find(g, key);
    return !v || gguf_bool(v, &s->nfc) || wrong(e, key, "true or false");
}

/* Ignores add_bos_token: the family decides, and files that say otherwise are wrong. */
bool tok_from_gguf(tok **out, const gguf *g, const tok_family *f, err *e)
{
    vocab_source s;
    *out = NULL;
    if (!check_model(g, f, e) || !check_pre(g, f, e)) return false;
    vocab_source_init(&s, f);
    bool ok = read_tokens(&s, g, e) && read_merges(&s, g, e) && read_specials(&s, g, e) && read_normalizer(&s, g, e) &&
              vocab_build(out, &s, e);
    vocab_source_deinit(&s);
    return ok || err_wrap(e, "cannot load the tokenizer");
}
