#include "sched/grammar_cache.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/sha256.h"

#include <pthread.h>
#include <stdio.h>

enum { KEY = 65, PARSE_MEMORY = 96 << 20, MAX_TOOLS = 1024 };

struct response_grammar {
    grammar_cache    *of;
    response_grammar *next; /* newest first */
    char              key[KEY];
    uint64_t          tenant;
    guide            *guide;
    char              warning[GRAMMAR_WARNING_MAX + 1];
    size_t            bytes; /* that its guide has used, when nobody holds it; under the lock, as the list is */
    int               holders;
    uint64_t          used;
};

struct grammar_cache {
    const tok     *tok;
    const int32_t *end_ids;
    size_t         n_ends;
    int            n_lanes; /* for the maximum of grammars */

    pthread_mutex_t vocab_lock; /* held while the trie is made; the other is not */
    grammar_vocab  *vocab;
    guide_markers   markers;

    pthread_mutex_t   lock;
    response_grammar *first;
    int               n;
    uint64_t          clock;
};

grammar_cache *grammar_cache_new(const tok *t, const int32_t *end_ids, size_t n_ends, int max_lanes)
{
    grammar_cache *f = xnew(grammar_cache);
    f->tok           = t;
    f->end_ids       = end_ids;
    f->n_ends        = n_ends;
    f->n_lanes       = max_int(max_lanes, GRAMMARS_LANES);
    pthread_mutex_init(&f->vocab_lock, NULL);
    pthread_mutex_init(&f->lock, NULL);
    return f;
}

static void free_grammar(response_grammar *x)
{
    guide_free(x->guide);
    mem_free(x);
}

void grammar_cache_free(grammar_cache *f)
{
    if (!f) return;
    for (response_grammar *x = f->first, *next; x; x = next) {
        next = x->next;
        free_grammar(x);
    }
    grammar_vocab_free(f->vocab);
    guide_markers_deinit(&f->markers);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->vocab_lock);
    mem_free(f);
}

guide      *response_grammar_guide(response_grammar *x) { return x->guide; }
const char *response_grammar_warning(const response_grammar *x) { return x->warning; }

/* --- compiling ----------------------------------------------------------------------------------*/
static bool need_vocab(grammar_cache *f, err *e)
{
    pthread_mutex_lock(&f->vocab_lock);
    bool ok = f->vocab || ((f->markers.any || guide_markers_init(&f->markers, f->tok, f->end_ids, f->n_ends, e)) &&
                           grammar_vocab_new(&f->vocab, f->tok, f->end_ids, f->n_ends, e));
    pthread_mutex_unlock(&f->vocab_lock);
    return ok;
}

typedef struct {
    grammar *grammar;
    bool     calls_only; /* as of guide_new */
    buf     *warnings;
} compiled;

static bool bad_tool(size_t i, err *e) { return err_set(e, ERR_INPUT, "tool %zu is not a function with a name", i); }

static bool is_true(const json_value *v) { return v && v->kind == JSON_BOOL && v->b; }

/* others_free: only strict tools are held to their schemas. */
static bool read_tools(grammar_tool *out, const json_value *v, bool others_free, err *e)
{
    for (size_t i = 0; i < v->n; i++) {
        const json_value *f = json_get(&v->item[i], "function"), *name = f ? json_get(f, "name") : NULL;
        if (!name || name->kind != JSON_STRING || !name->s.n) return bad_tool(i, e);
        bool strict = is_true(json_get(f, "strict"));
        out[i]      = (grammar_tool){name->s, json_find(f, "parameters"), strict, others_free && !strict};
    }
    return true;
}

/* v: the tools; of TANDEM_GRAMMAR_TOOLS an object with them, and perhaps the schema of an answer without calls. */
static bool compile_tools(compiled *out, const grammar_cache *f, arena *mem, const json_value *v,
                          const grammar_source *r, err *e)
{
    const tok_markup *markup = tok_markup_of(f->tok);
    bool              among  = r->grammar->kind == TANDEM_GRAMMAR_TOOLS;
    const json_value *list = among ? json_get(v, "tools") : v, *answer = among ? json_get(v, "answer") : NULL;
    if (!list || list->kind != JSON_ARRAY || list->n < 1 || list->n > MAX_TOOLS)
        return err_set(e, ERR_INPUT, "the tools must be a list of 1 to %d", MAX_TOOLS);
    if (!markup->call_open) return err_set(e, ERR_INPUT, "the model's chat format has no tool calls");
    grammar_tool *tool = arena_try(mem, list->n, sizeof *tool);
    if (!tool) return err_set(e, ERR_UNAVAILABLE, "no memory for the tools");
    grammar_calls how = {.markup   = markup,
                         .several  = r->grammar->kind == TANDEM_GRAMMAR_TOOL_CALLS || answer,
                         .answer   = answer,
                         .warnings = out->warnings,
                         .cancel   = r->cancel};
    return read_tools(tool, list, among, e) && grammar_tool_calls(&out->grammar, tool, list->n, &how, e);
}

/* Whether the answer is free outside of its calls. */
static bool calls_only(const json_value *v, const grammar_source *r)
{
    return r->grammar->kind == TANDEM_GRAMMAR_TOOLS && !json_get(v, "answer");
}

static bool not_json(err *e)
{
    err why = *e;
    return why.code == ERR_FORMAT && err_set(e, ERR_INPUT, "the schema is not JSON: %s", why.text);
}

static bool compile_json(compiled *out, const grammar_cache *f, const grammar_source *r, str text, err *e)
{
    arena             mem;
    const json_value *v;
    json_limits       limits = {.max_memory = PARSE_MEMORY};
    arena_init(&mem, (size_t)PARSE_MEMORY * 2);
    bool ok = (json_parse(&v, &mem, text, &limits, e) || not_json(e)) &&
              (r->grammar->kind == TANDEM_GRAMMAR_SCHEMA ? grammar_from_schema(&out->grammar, v, NULL, r->cancel, e)
                                                         : compile_tools(out, f, &mem, v, r, e));
    out->calls_only = ok && calls_only(v, r);
    arena_deinit(&mem);
    return ok;
}

static bool compile_grammar(compiled *out, const grammar_cache *f, const grammar_source *r, str text, err *e)
{
    switch (r->grammar->kind) {
    case TANDEM_GRAMMAR_GBNF: return grammar_from_gbnf(&out->grammar, text, r->cancel, e);
    case TANDEM_GRAMMAR_REGEX: return grammar_from_regex(&out->grammar, text, r->cancel, e);
    case TANDEM_GRAMMAR_OBJECT: return grammar_any_object(&out->grammar, e);
    case TANDEM_GRAMMAR_SCHEMA:
    case TANDEM_GRAMMAR_TOOLS:
    case TANDEM_GRAMMAR_TOOL_CALL:
    case TANDEM_GRAMMAR_TOOL_CALLS: return compile_json(out, f, r, text, e);
    default: return err_set(e, ERR_INPUT, "grammar.kind is %d, which is unknown", (int)r->grammar->kind);
    }
}

/* --- finding ------------------------------------------------------------------------------------*/
static str text_of(const tandem_grammar *g)
{
    return (str){g->text, g->text ? g->n_text ? g->n_text : strlen(g->text) : 0};
}

static void hash_source(const grammar_source *r, char out[KEY])
{
    sha256  s;
    str     text = text_of(r->grammar);
    int32_t kind = (int32_t)r->grammar->kind;
    sha256_init(&s);
    sha256_put(&s, &r->tenant, sizeof r->tenant);
    sha256_put(&s, &kind, sizeof kind);
    sha256_put(&s, text.s, text.n);
    sha256_hex(&s, out);
}

/* Returns the grammar with this key, held once more; NULL: there is none. The caller has the lock. */
static response_grammar *find_and_hold(grammar_cache *f, const char *key)
{
    for (response_grammar *x = f->first; x; x = x->next)
        if (!strcmp(x->key, key)) {
            x->holders++;
            x->used = ++f->clock;
            return x;
        }
    return NULL;
}

static int n_idle_of(const grammar_cache *f, uint64_t tenant)
{
    int n = 0;
    for (const response_grammar *x = f->first; x; x = x->next) n += !x->holders && x->tenant == tenant;
    return n;
}

/* Returns whether `a` is removed before `b`: its tenant has more idle grammars, or as many and `a` was not used for
 * longer. */
static bool goes_first(const grammar_cache *f, const response_grammar *a, const response_grammar *b)
{
    int of_a = n_idle_of(f, a->tenant), of_b = n_idle_of(f, b->tenant);
    return of_a != of_b ? of_a > of_b : a->used < b->used;
}

/* Removes an idle grammar from the list and returns it, if there are more than `max` of them or they use too much
 * memory; NULL: none. The caller has the lock. */
static response_grammar *take_idle(grammar_cache *f, int max)
{
    response_grammar **first = NULL;
    int                n     = 0;
    size_t             bytes = 0;
    for (response_grammar **at = &f->first; *at; at = &(*at)->next) {
        if ((*at)->holders) continue;
        n++;
        bytes += (*at)->bytes;
        if (!first || goes_first(f, *at, *first)) first = at;
    }
    if (!first || (n <= max && bytes <= GRAMMARS_IDLE_BYTES)) return NULL;
    response_grammar *x = *first;
    *first              = x->next;
    f->n--;
    return x;
}

static bool has_room(const grammar_cache *f, uint64_t tenant)
{
    int n_held = 0;
    for (const response_grammar *x = f->first; x; x = x->next) n_held += x->holders && x->tenant == tenant;
    return f->n < f->n_lanes + GRAMMARS_SPARE && n_held < f->n_lanes + GRAMMARS_WAITING;
}

/* Two may have made the same: the first is everybody's. False: there are too many. */
static bool add_to_cache(grammar_cache *f, response_grammar **x, response_grammar **spare)
{
    pthread_mutex_lock(&f->lock);
    response_grammar *other = find_and_hold(f, (*x)->key);
    *spare                  = other ? *x : f->n == f->n_lanes + GRAMMARS_SPARE ? take_idle(f, 0) : NULL;
    bool room               = other || has_room(f, (*x)->tenant);
    if (other) {
        *x = other;
    } else if (room) {
        (*x)->holders = 1;
        (*x)->used    = ++f->clock;
        (*x)->next    = f->first;
        f->first      = *x;
        f->n++;
    }
    pthread_mutex_unlock(&f->lock);
    return room;
}

static bool compile_new(grammar_cache *f, const grammar_source *r, const char *key, response_grammar **out, err *e)
{
    buf               warnings;
    compiled          made = {.warnings = &warnings};
    response_grammar *x = mem_try(sizeof *x), *spare = NULL;
    if (!x) return err_set(e, ERR_UNAVAILABLE, "no memory for a grammar");
    *x = (response_grammar){.of = f, .tenant = r->tenant};
    memcpy(x->key, key, KEY);
    buf_init(&warnings, GRAMMAR_WARNING_MAX);
    bool ok = need_vocab(f, e) && compile_grammar(&made, f, r, text_of(r->grammar), e) &&
              guide_new(&x->guide, made.grammar, made.calls_only, f->vocab, &f->markers, e);
    snprintf(x->warning, sizeof x->warning, "%.*s", (int)warnings.n, warnings.n ? warnings.p : "");
    buf_deinit(&warnings);
    if (ok && !add_to_cache(f, &x, &spare)) ok = err_set(e, ERR_BUSY, "too many grammars are in use");
    if (spare) free_grammar(spare);
    if (ok)
        *out = x;
    else
        free_grammar(x);
    return ok;
}

static response_grammar *find_key(grammar_cache *f, const char *key)
{
    pthread_mutex_lock(&f->lock);
    response_grammar *x = find_and_hold(f, key);
    pthread_mutex_unlock(&f->lock);
    return x;
}

response_grammar *grammar_cache_find(grammar_cache *f, const grammar_source *r)
{
    char key[KEY];
    hash_source(r, key);
    return find_key(f, key);
}

bool grammar_cache_take(grammar_cache *f, const grammar_source *r, response_grammar **out, err *e)
{
    char key[KEY];
    *out = NULL;
    if (!f->tok) return err_set(e, ERR_INPUT, "the model has no tokenizer: a grammar cannot be used");
    hash_source(r, key);
    *out = find_key(f, key);
    return *out || compile_new(f, r, key, out, e);
}

response_grammar *response_grammar_hold(response_grammar *x)
{
    pthread_mutex_lock(&x->of->lock);
    x->holders++;
    pthread_mutex_unlock(&x->of->lock);
    return x;
}

void response_grammar_drop(response_grammar *x)
{
    if (!x) return;
    grammar_cache *f = x->of;
    for (bool mine = true;;) {
        response_grammar *gone = NULL;
        pthread_mutex_lock(&f->lock);
        if (mine && !--x->holders) x->bytes = guide_stats(x->guide).used;
        if (!mine || !x->holders) gone = take_idle(f, GRAMMARS_IDLE);
        pthread_mutex_unlock(&f->lock);
        if (!gone) return;
        mine = false;
        free_grammar(gone);
    }
}
