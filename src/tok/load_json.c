/* Reads a vocabulary from a Hugging Face tokenizer.json. Refuses, by name, every option that would change the ids. */
#include "base/file.h"
#include "base/mem.h"
#include "tok/inside.h"
#include "tok/unicode.h"
#include "tok/vocab.h"
#include "json/json.h"

#include <limits.h>

typedef struct { /* an entry of added_tokens */
    int64_t id;
    str     content;
    bool    special, normalized;
    bool    trims; /* lstrip, rstrip or single_word is set */
} added_token;

typedef struct { /* a normalizer or a pre_tokenizer */
    str  type, pattern, regex, content, behavior;
    bool invert, add_prefix_space, use_regex;
} text_rule;

enum { MAX_RULES = 4 };

typedef struct { /* the rules of a Sequence, or one */
    text_rule rule[MAX_RULES];
    int       n;
} rule_list;

typedef struct {
    json_reader *r;
    vocab_source src;
    added_token *added;
    int32_t      n_added, added_cap;
    text_rule    rule;  /* being read */
    rule_list    parts; /* the Sequence being read */
    rule_list    normalizer, pre_tokenizer;
    bool         byte_fallback;
} loader;

/* --- walking ----------------------------------------------------------------------------------- */
/* Called after a key or before an item. Reads the value. */
typedef bool member_fn(loader *l, str key, err *e);
typedef bool item_fn(loader *l, const json_event *first, err *e);

static bool wrong(err *e, str key, const char *expected)
{
    return err_set(e, ERR_FORMAT, "'%.*s' is not %s", STR_ARG(key), expected);
}

/* Reads the members of an object whose opening brace was read. */
static bool read_members(loader *l, member_fn *fn, err *e)
{
    json_event ev;
    for (;;) {
        if (!json_next(l->r, &ev, e)) return false;
        if (ev.kind == JSON_OBJECT_END) return true;
        if (!fn(l, ev.s, e)) return false;
    }
}

static bool read_object(loader *l, str key, member_fn *fn, err *e)
{
    json_event ev;
    if (!json_next(l->r, &ev, e)) return false;
    return ev.kind == JSON_OBJECT ? read_members(l, fn, e) : wrong(e, key, "an object");
}

static bool read_array(loader *l, str key, item_fn *fn, err *e)
{
    json_event ev;
    if (!json_next(l->r, &ev, e)) return false;
    if (ev.kind != JSON_ARRAY) return wrong(e, key, "an array");
    for (;;) {
        if (!json_next(l->r, &ev, e)) return false;
        if (ev.kind == JSON_ARRAY_END) return true;
        if (!fn(l, &ev, e)) return false;
    }
}

/* Reads a string; null gives an empty one. */
static bool read_string(loader *l, str key, str *out, err *e)
{
    json_event ev;
    if (!json_next(l->r, &ev, e)) return false;
    if (ev.kind != JSON_STRING && ev.kind != JSON_NULL) return wrong(e, key, "a string");
    *out = ev.kind == JSON_STRING ? ev.s : STR("");
    return true;
}

static bool read_bool(loader *l, str key, bool *out, err *e)
{
    json_event ev;
    if (!json_next(l->r, &ev, e)) return false;
    if (ev.kind != JSON_BOOL && ev.kind != JSON_NULL) return wrong(e, key, "true or false");
    *out = ev.kind == JSON_BOOL && ev.b;
    return true;
}

/* --- added_tokens ------------------------------------------------------------------------------ */
static bool added_member(loader *l, str key, err *e)
{
    added_token *a = &l->added[l->n_added];
    json_event   ev;
    bool         trims = false;
    if (str_is(key, "content")) return read_string(l, key, &a->content, e);
    if (str_is(key, "special")) return read_bool(l, key, &a->special, e);
    if (str_is(key, "normalized")) return read_bool(l, key, &a->normalized, e);
    if (str_is(key, "lstrip") || str_is(key, "rstrip") || str_is(key, "single_word")) {
        bool ok = read_bool(l, key, &trims, e);
        a->trims |= trims;
        return ok;
    }
    if (!str_is(key, "id")) return json_skip(l->r, e);
    if (!json_next(l->r, &ev, e)) return false;
    a->id = ev.i;
    return ev.kind == JSON_INT || wrong(e, key, "an integer");
}

static bool added_item(loader *l, const json_event *first, err *e)
{
    if (first->kind != JSON_OBJECT) return err_set(e, ERR_FORMAT, "added token %d is not an object", l->n_added);
    if (l->n_added == TOK_MAX_TOKENS)
        return err_set(e, ERR_FORMAT, "the file has more than %d added tokens", TOK_MAX_TOKENS);
    if (l->n_added == l->added_cap) {
        int32_t      cap = l->added_cap * 2 + 64;
        added_token *p   = mem_try_resize(l->added, (size_t)cap * sizeof *p);
        if (!p) return err_set(e, ERR_UNAVAILABLE, "no memory for %d added tokens", cap);
        l->added     = p;
        l->added_cap = cap;
    }
    added_token *a = &l->added[l->n_added];
    *a             = (added_token){.id = -1};
    if (!read_members(l, added_member, e)) return false;
    if (a->trims)
        return err_set(e, ERR_FORMAT, "added token '%.*s' uses lstrip, rstrip or single_word, which is not supported",
                       STR_ARG(a->content));
    l->n_added++;
    return true;
}

/* Most added tokens are in the vocabulary already, under the same id; their flags are set there. */
static bool apply_added(loader *l, err *e)
{
    vocab_source *s = &l->src;
    for (int32_t i = 0; i < l->n_added; i++) {
        const added_token *a    = &l->added[i];
        tok_kind_t         kind = a->special ? TOK_CONTROL : TOK_USER;
        bool               same = a->id >= 0 && a->id < s->n && str_eq(s->entry[a->id].text, a->content);
        if (same && s->entry[a->id].kind)
            s->entry[a->id].kind = kind;
        else if (!vocab_source_set(s, a->id, a->content, kind, e))
            return false;
        s->entry[a->id].normalized = a->normalized;
    }
    return true;
}

/* --- normalizer and pre_tokenizer -------------------------------------------------------------- */
static bool pattern_member(loader *l, str key, err *e)
{
    if (str_is(key, "String")) return read_string(l, key, &l->rule.pattern, e);
    if (str_is(key, "Regex")) return read_string(l, key, &l->rule.regex, e);
    return json_skip(l->r, e);
}

static bool rule_member(loader *l, str key, err *e)
{
    if (str_is(key, "type")) return read_string(l, key, &l->rule.type, e);
    if (str_is(key, "content")) return read_string(l, key, &l->rule.content, e);
    if (str_is(key, "behavior")) return read_string(l, key, &l->rule.behavior, e);
    if (str_is(key, "invert")) return read_bool(l, key, &l->rule.invert, e);
    if (str_is(key, "add_prefix_space")) return read_bool(l, key, &l->rule.add_prefix_space, e);
    if (str_is(key, "use_regex")) return read_bool(l, key, &l->rule.use_regex, e);
    if (str_is(key, "pattern")) return read_object(l, key, pattern_member, e);
    return json_skip(l->r, e);
}

/* The values of options that a file leaves out. */
static const text_rule default_rule = {.add_prefix_space = true, .use_regex = true};

static bool part_item(loader *l, const json_event *first, err *e)
{
    text_rule outer = l->rule;
    if (first->kind != JSON_OBJECT) return err_set(e, ERR_FORMAT, "part %d of a Sequence is not an object", l->parts.n);
    if (l->parts.n == MAX_RULES) return err_set(e, ERR_FORMAT, "a Sequence has more than %d parts", MAX_RULES);
    l->rule                     = default_rule;
    bool ok                     = read_members(l, rule_member, e);
    l->parts.rule[l->parts.n++] = l->rule;
    l->rule                     = outer;
    return ok;
}

static bool outer_member(loader *l, str key, err *e)
{
    if (str_is(key, "normalizers") || str_is(key, "pretokenizers")) return read_array(l, key, part_item, e);
    return rule_member(l, key, e);
}

/* Reads null, one rule, or a Sequence of them. */
static bool read_rules(loader *l, str key, rule_list *out, err *e)
{
    json_event ev;
    l->rule  = default_rule;
    l->parts = (rule_list){0};
    *out     = (rule_list){0};
    if (!json_next(l->r, &ev, e)) return false;
    if (ev.kind == JSON_NULL) return true;
    if (ev.kind != JSON_OBJECT) return wrong(e, key, "an object");
    if (!read_members(l, outer_member, e)) return false;
    if (str_is(l->rule.type, "Sequence"))
        *out = l->parts;
    else
        *out = (rule_list){.rule = {l->rule}, .n = 1};
    return true;
}

/* --- model ------------------------------------------------------------------------------------- */
static bool vocab_member(loader *l, str text, err *e)
{
    json_event ev;
    if (!json_next(l->r, &ev, e)) return false;
    if (ev.kind != JSON_INT) return wrong(e, text, "mapped to an integer in the vocabulary");
    return vocab_source_set(&l->src, ev.i, text, TOK_NORMAL, e);
}

static bool merge_item(loader *l, const json_event *first, err *e)
{
    json_event a, b, end;
    if (first->kind == JSON_STRING) return vocab_source_merge_text(&l->src, first->s, e);
    if (first->kind == JSON_ARRAY) {
        if (!json_next(l->r, &a, e)) return false;
        if (a.kind == JSON_STRING && !json_next(l->r, &b, e)) return false;
        if (a.kind == JSON_STRING && b.kind == JSON_STRING && !json_next(l->r, &end, e)) return false;
        if (a.kind == JSON_STRING && b.kind == JSON_STRING && end.kind == JSON_ARRAY_END)
            return vocab_source_merge(&l->src, a.s, b.s, e);
    }
    return err_set(e, ERR_FORMAT, "merge %d is neither a string nor a pair of strings", l->src.n_merges);
}

/* Refuses options that would change the ids. Accepts their neutral values. */
static bool neutral_member(loader *l, str key, err *e)
{
    json_event ev;
    if (!json_next(l->r, &ev, e)) return false;
    bool neutral = ev.kind == JSON_NULL || (ev.kind == JSON_BOOL && !ev.b) || (ev.kind == JSON_STRING && !ev.s.n) ||
                   (ev.kind == JSON_INT && !ev.i) || (ev.kind == JSON_REAL && ev.d == 0);
    return neutral || err_set(e, ERR_FORMAT, "the model's option '%.*s' is not supported", STR_ARG(key));
}

static bool model_member(loader *l, str key, err *e)
{
    str type;
    if (str_is(key, "vocab")) return read_object(l, key, vocab_member, e);
    if (str_is(key, "merges")) return read_array(l, key, merge_item, e);
    if (str_is(key, "byte_fallback")) return read_bool(l, key, &l->byte_fallback, e);
    if (str_is(key, "unk_token")) return read_string(l, key, &l->src.unk_name, e);
    if (str_is(key, "dropout") || str_is(key, "continuing_subword_prefix") || str_is(key, "end_of_word_suffix") ||
        str_is(key, "ignore_merges"))
        return neutral_member(l, key, e);
    if (!str_is(key, "type")) return json_skip(l->r, e);
    if (!read_string(l, key, &type, e)) return false;
    return str_is(type, "BPE") ||
           err_set(e, ERR_FORMAT, "the tokenizer's model is '%.*s', expected 'BPE'", STR_ARG(type));
}

static bool top_member(loader *l, str key, err *e)
{
    if (str_is(key, "added_tokens")) return read_array(l, key, added_item, e);
    if (str_is(key, "normalizer")) return read_rules(l, key, &l->normalizer, e);
    if (str_is(key, "pre_tokenizer")) return read_rules(l, key, &l->pre_tokenizer, e);
    if (str_is(key, "model")) return read_object(l, key, model_member, e);
    return json_skip(l->r, e);
}

/* --- tokenizer_config.json --------------------------------------------------------------------- */
static bool content_member(loader *l, str key, err *e)
{
    return str_is(key, "content") ? read_string(l, key, &l->rule.content, e) : json_skip(l->r, e);
}

/* Reads the name of a token: a string, an object with "content", or null. */
static bool read_name(loader *l, str key, str *out, err *e)
{
    json_event ev;
    if (!json_next(l->r, &ev, e)) return false;
    l->rule.content = ev.kind == JSON_STRING ? ev.s : STR("");
    if (ev.kind == JSON_OBJECT && !read_members(l, content_member, e)) return false;
    if (ev.kind != JSON_OBJECT && ev.kind != JSON_STRING && ev.kind != JSON_NULL)
        return wrong(e, key, "a token's name");
    if (l->rule.content.n) *out = l->rule.content;
    return true;
}

static bool config_member(loader *l, str key, err *e)
{
    if (str_is(key, "bos_token")) return read_name(l, key, &l->src.bos_name, e);
    if (str_is(key, "eos_token")) return read_name(l, key, &l->src.eos_name, e);
    return json_skip(l->r, e);
}

/* --- entry points --------------------------------------------------------------------------------- */
/* Reads one document. Leaves the reader open, since it owns strings that the source borrows. */
static bool read_document(loader *l, json_reader **r, str text, member_fn *fn, err *e)
{
    json_event end;
    if (!json_reader_open(r, text, NULL, e)) return false;
    l->r = *r;
    return read_object(l, STR("the document"), fn, e) && json_next(l->r, &end, e);
}

/* --- the scheme -------------------------------------------------------------------------------- */
static tok_scheme scheme_of(const loader *l)
{
    for (int i = 0; i < l->pre_tokenizer.n; i++)
        if (str_is(l->pre_tokenizer.rule[i].type, "ByteLevel")) return TOK_BYTE_LEVEL;
    return TOK_SPACED;
}

static bool refuse_rule(err *e, const char *what, text_rule r)
{
    return err_set(e, ERR_FORMAT, "the %s '%.*s' is not supported", what, STR_ARG(r.type));
}

/* Accepts no pre-tokenizer, and a split at spaces: the normalizer has replaced all spaces. */
static bool check_spaced(const loader *l, err *e)
{
    text_rule norm = l->normalizer.rule[0], pre = l->pre_tokenizer.rule[0];
    bool      splits = l->pre_tokenizer.n && !(str_is(pre.type, "Split") && str_is(pre.pattern, " "));
    if (splits || l->pre_tokenizer.n > 1)
        return refuse_rule(e, "pre_tokenizer", splits ? pre : l->pre_tokenizer.rule[1]);
    if (!l->byte_fallback)
        return err_set(e, ERR_FORMAT,
                       "the tokenizer has no byte_fallback and no pre_tokenizer 'ByteLevel'; only BPE "
                       "with byte fallback and byte-level BPE are supported");
    if (l->normalizer.n != 1 || !str_is(norm.type, "Replace") || !str_is(norm.pattern, " ") ||
        !str_is(norm.content, "\xE2\x96\x81"))
        return err_set(e, ERR_FORMAT,
                       "the normalizer does not replace spaces by U+2581, which is the only supported form");
    return true;
}

/* Expects NFC or no normalizer, a split into the words of unicode.h, and the alphabet of bytes. */
static bool check_byte_level(const loader *l, err *e)
{
    const rule_list *norm = &l->normalizer, *pre = &l->pre_tokenizer;
    text_rule        split = pre->rule[0], bytes = pre->rule[1];
    if (norm->n && (norm->n > 1 || !str_is(norm->rule[0].type, "NFC")))
        return refuse_rule(e, "normalizer", norm->rule[norm->n - 1]);
    if (pre->n != 2 || !str_is(split.type, "Split") || !str_is(bytes.type, "ByteLevel"))
        return err_set(e, ERR_FORMAT, "the pre_tokenizer is not a sequence of 'Split' and 'ByteLevel'");
    if (!str_is(split.regex, word_pattern))
        return err_set(e, ERR_FORMAT, "the pre_tokenizer's pattern '%.*s' is not supported", STR_ARG(split.regex));
    if (!str_is(split.behavior, "Isolated") || split.invert)
        return err_set(e, ERR_FORMAT, "the pre_tokenizer's 'behavior' is not 'Isolated', or 'invert' is set");
    if (bytes.add_prefix_space || bytes.use_regex)
        return err_set(e, ERR_FORMAT, "the pre_tokenizer 'ByteLevel' has add_prefix_space or use_regex set");
    return true;
}

/* Chooses the first family with the file's scheme. */
static bool choose_family(loader *l, const tok_family *const *list, err *e)
{
    tok_scheme               scheme = scheme_of(l);
    const tok_family *const *f      = list;
    while (*f && (*f)->scheme != scheme) f++;
    l->src.family.scheme = scheme;
    l->src.nfc           = l->normalizer.n > 0; /* check_byte_level accepts no other normalizer */
    if (*f) {
        vocab_source_family(&l->src, *f);
    } else if (*list && scheme == TOK_BYTE_LEVEL) {
        return err_set(e, ERR_FORMAT, "the pre_tokenizer 'ByteLevel' is not supported");
    } else if (*list) {
        return err_set(e, ERR_FORMAT, "the tokenizer has no pre_tokenizer 'ByteLevel'");
    }
    return scheme == TOK_BYTE_LEVEL ? check_byte_level(l, e) : check_spaced(l, e);
}

static bool load_tokenizer(tok **out, str text, str config, const tok_family *const *list, err *e)
{
    bool         ok = false;
    loader       l  = {0};
    json_reader *rt = NULL, *rc = NULL;

    *out = NULL;
    vocab_source_init(&l.src, NULL);
    if (config.n && !read_document(&l, &rc, config, config_member, e)) {
        err_wrap(e, "tokenizer_config.json");
        goto done;
    }
    if (!read_document(&l, &rt, text, top_member, e)) goto done;
    if (!choose_family(&l, list, e)) goto done;
    if (!apply_added(&l, e)) goto done;
    ok = vocab_build(out, &l.src, e);
done:
    vocab_source_deinit(&l.src);
    mem_free(l.added);
    json_reader_close(rt);
    json_reader_close(rc);
    return ok;
}

bool tok_from_json_bytes(tok **out, str text, const tok_family *f, err *e)
{
    return load_tokenizer(out, text, STR(""), (const tok_family *const[]){f, NULL}, e);
}

/* Reads tokenizer_config.json in the same directory, if there is one. */
static bool map_config(file_map *m, const char *path, err *e)
{
    char        dir[PATH_MAX], config[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t      n     = slash ? (size_t)(slash - path) : 1;
    if (n >= sizeof dir) return true;
    memcpy(dir, slash ? path : ".", n);
    dir[n] = 0;
    if (!file_join(config, sizeof config, dir, "tokenizer_config.json") || !file_exists(config)) return true;
    return file_map_open(m, config, e);
}

bool tok_from_json_any(tok **out, const char *path, const tok_family *const *list, err *e)
{
    file_map file = {0}, config = {0};
    *out    = NULL;
    bool ok = file_map_open(&file, path, e) && map_config(&config, path, e) &&
              load_tokenizer(out, (str){file.p, file.n}, (str){config.p, config.n}, list, e);
    file_map_close(&file);
    file_map_close(&config);
    return ok || err_wrap(e, "cannot load the tokenizer %s", path);
}

bool tok_from_json(tok **out, const char *path, const tok_family *f, err *e)
{
    return tok_from_json_any(out, path, (const tok_family *const[]){f, NULL}, e);
}
