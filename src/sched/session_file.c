#include "sched/session_file.h"

#include "base/mem.h"
#include "json/json.h"

#include <math.h>
#include <string.h>

enum { MAX_OPTIONS = 1 << 16, MAX_NOTE = 64 << 20 };

/* --- options ------------------------------------------------------------------------------------*/
static void put_options(buf *out, const tandem_session *x)
{
    const tandem_request *r = x->request;
    json_writer           w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_int(&w, "n_prompt", x->n_prompt);
    if (r) {
        json_member_real(&w, "temp", r->temp);
        json_member_real(&w, "top_p", r->top_p);
        json_member_real(&w, "min_p", r->min_p);
        json_member_int(&w, "top_k", r->top_k);
        json_member_bool(&w, "has_seed", r->has_seed);
        json_member_int(&w, "seed", (int64_t)r->seed);
        json_member_real(&w, "repeat_penalty", r->repeat_penalty);
        json_member_real(&w, "presence_penalty", r->presence_penalty);
        json_member_real(&w, "frequency_penalty", r->frequency_penalty);
    }
    json_end(&w);
}

static bool read_real(const json_value *root, const char *key, double min, double max, float *out)
{
    const json_value *v = json_find(root, key);
    if (!v) return true;
    if ((v->kind != JSON_REAL && v->kind != JSON_INT) || !(v->d >= min && v->d <= max)) return false;
    *out = (float)v->d;
    return true;
}

static bool read_int(const json_value *root, const char *key, int64_t min, int64_t max, int64_t *out)
{
    const json_value *v = json_find(root, key);
    if (!v) return true;
    if (v->kind != JSON_INT || v->i < min || v->i > max) return false;
    *out = v->i;
    return true;
}

static bool get_options(const json_value *root, int32_t n_tokens, tandem_session_content *out)
{
    int64_t           n_prompt = 0, top_k = 0, seed = 0;
    const json_value *has = json_find(root, "has_seed");
    if (root->kind != JSON_OBJECT || !read_int(root, "n_prompt", 0, n_tokens, &n_prompt) ||
        !read_int(root, "top_k", 0, 1 << 22, &top_k) || !read_int(root, "seed", INT64_MIN, INT64_MAX, &seed) ||
        !read_real(root, "temp", 0, 100, &out->temp) || !read_real(root, "top_p", 0, 1, &out->top_p) ||
        !read_real(root, "min_p", 0, 1, &out->min_p) ||
        !read_real(root, "repeat_penalty", 0.01, 100, &out->repeat_penalty) ||
        !read_real(root, "presence_penalty", -100, 100, &out->presence_penalty) ||
        !read_real(root, "frequency_penalty", -100, 100, &out->frequency_penalty))
        return false;
    out->n_prompt = (int32_t)n_prompt;
    out->top_k    = (int32_t)top_k;
    out->seed     = (uint64_t)seed;
    out->has_seed = has && has->kind == JSON_BOOL && has->b;
    return true;
}

static bool read_options(const pack_section *s, int32_t n_tokens, tandem_session_content *out, err *e)
{
    arena             mem;
    const json_value *root;
    err               why;
    arena_init(&mem, 1 << 20);
    bool ok = s->bytes && s->bytes <= MAX_OPTIONS && json_parse(&root, &mem, (str){s->data, s->bytes}, NULL, &why) &&
              get_options(root, n_tokens, out);
    arena_deinit(&mem);
    return ok || err_set(e, ERR_FORMAT, "the options of the session are invalid");
}

/* --- sections -----------------------------------------------------------------------------------*/
static bool put_section(pack *p, uint32_t kind, uint32_t id, int32_t n, const void *bytes, size_t n_bytes, err *e)
{
    pack_section *s = pack_add(p, kind, id, n_bytes);
    if (!s) return err_set(e, ERR_UNAVAILABLE, "no memory for a session");
    s->n = n;
    if (n_bytes) memcpy(s->data, bytes, n_bytes);
    return true;
}

bool session_put(pack *p, const tandem_session *x, err *e)
{
    buf options;
    if (x->n_note > MAX_NOTE)
        return err_set(e, ERR_TOO_LARGE, "the note of a session may have %d bytes, got %zu", MAX_NOTE, x->n_note);
    buf_init(&options, MAX_OPTIONS);
    put_options(&options, x);
    p->kind = SESSION_PACK;
    bool ok = (!options.failed || err_set(e, ERR_UNAVAILABLE, "no memory for a session")) &&
              put_section(p, SESSION_OPTIONS, SESSION_FORMAT, (int32_t)x->n_ids, options.p, options.n, e) &&
              put_section(p, SESSION_TOKENS, 0, (int32_t)x->n_ids, x->ids, x->n_ids * sizeof *x->ids, e) &&
              put_section(p, SESSION_NOTE, 0, 0, x->note, x->n_note, e);
    buf_deinit(&options);
    return ok;
}

static const pack_section *find_kind(const pack *p, uint32_t kind)
{
    for (int i = 0; i < p->n; i++)
        if (p->section[i].kind == kind) return &p->section[i];
    return NULL;
}

bool session_check(const pack *p, int32_t *n_tokens, err *e)
{
    const pack_section *options = find_kind(p, SESSION_OPTIONS), *tokens = pack_find(p, SESSION_TOKENS, 0);
    if (p->kind != SESSION_PACK) return err_set(e, ERR_FORMAT, "the file is not a session");
    if (options && options->id != SESSION_FORMAT)
        return err_set(e, ERR_FORMAT, "the session has format %u, and this version reads format %d", options->id,
                       SESSION_FORMAT);
    if (!options || !tokens || tokens->n < 1 || tokens->n > TANDEM_MAX_PROMPT || options->n != tokens->n ||
        tokens->bytes != (uint64_t)tokens->n * sizeof(int32_t))
        return err_set(e, ERR_FORMAT, "the session has no valid list of tokens");
    *n_tokens = tokens->n;
    return true;
}

static bool read_tokens(const pack_section *s, int n_vocab, tandem_ids *out, err *e)
{
    out->p = mem_try(s->bytes);
    if (!out->p) return err_set(e, ERR_UNAVAILABLE, "no memory for a session");
    out->n = (size_t)s->n;
    memcpy(out->p, s->data, s->bytes);
    for (size_t i = 0; i < out->n; i++)
        if (out->p[i] >= n_vocab) /* negative: a picture (media_prompt_mark) */
            return err_set(e, ERR_FORMAT, "the session has token %d, and the model has %d", out->p[i], n_vocab);
    return true;
}

static bool read_note(const pack_section *s, tandem_session_content *out, err *e)
{
    if (!s || !s->bytes) return true;
    if (s->bytes > MAX_NOTE) return err_set(e, ERR_FORMAT, "the note of the session is too large");
    out->note = mem_try(s->bytes + 1);
    if (!out->note) return err_set(e, ERR_UNAVAILABLE, "no memory for a session");
    memcpy(out->note, s->data, s->bytes);
    out->n_note = s->bytes;
    return true;
}

bool session_get(const pack *p, int n_vocab, tandem_session_content *out, err *e)
{
    int32_t n;
    *out = (tandem_session_content){.top_p = 1, .repeat_penalty = 1};
    return session_check(p, &n, e) && read_options(find_kind(p, SESSION_OPTIONS), n, out, e) &&
           read_tokens(pack_find(p, SESSION_TOKENS, 0), n_vocab, &out->ids, e) &&
           read_note(pack_find(p, SESSION_NOTE, 0), out, e);
}

void tandem_session_content_free(tandem_session_content *c)
{
    tandem_ids_free(&c->ids);
    mem_free(c->note);
    *c = (tandem_session_content){0};
}
