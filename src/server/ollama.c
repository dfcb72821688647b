#include "server/ollama.h"

#include "base/mem.h"
#include "server/request.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { MAX_MEMBERS = 24 }; /* of a body that is made here, and of a message */

typedef struct {
    server_request   *q;
    const tandem     *t;
    const json_value *from; /* the client's body */
    json_value        body; /* the new one */
    server_error     *why;
} reader;

/* --- trees --------------------------------------------------------------------------------------*/
static json_value text_value(str s) { return (json_value){.kind = JSON_STRING, .s = s}; }
static json_value bool_value(bool b) { return (json_value){.kind = JSON_BOOL, .b = b}; }
static json_value int_value(int64_t i) { return (json_value){.kind = JSON_INT, .i = i, .d = (double)i}; }

static bool new_object(const reader *r, json_value *out)
{
    *out = (json_value){.kind = JSON_OBJECT, .member = arena_try(&r->q->mem, MAX_MEMBERS, sizeof *out->member)};
    return out->member || error_no_memory(r->why);
}

static bool new_list(const reader *r, size_t n, json_value *out)
{
    *out = (json_value){.kind = JSON_ARRAY, .n = n, .item = arena_try(&r->q->mem, n + 1, sizeof *out->item)};
    return out->item || error_no_memory(r->why);
}

static void put(json_value *object, const char *key, json_value v)
{
    object->member[object->n++] = (json_member){str_of(key), v};
}

/* Finds a member; an empty text is the same as none. */
static const json_value *find_given(const json_value *v, const char *key)
{
    const json_value *m = json_find(v, key);
    return m && m->kind == JSON_STRING && !m->s.n ? NULL : m;
}

static bool bad(const reader *r, const char *field, const char *what)
{
    return error_set(r->why, 400, field, NULL, "'%s' %s.", field, what);
}

static bool read_bool(const reader *r, const char *key, bool *out)
{
    const json_value *v = json_find(r->from, key);
    if (!v) return true;
    if (v->kind != JSON_BOOL) return bad(r, key, "must be true or false");
    *out = v->b;
    return true;
}

static bool read_text(const reader *r, const char *key, str *out)
{
    const json_value *v = json_find(r->from, key);
    *out                = STR("");
    if (!v) return true;
    if (v->kind != JSON_STRING) return bad(r, key, "must be a string");
    *out = v->s;
    return true;
}

/* --- names --------------------------------------------------------------------------------------*/
static bool has_tag(str name)
{
    const char *slash = name.n ? memrchr(name.s, '/', name.n) : NULL;
    size_t      from  = slash ? (size_t)(slash - name.s) : 0;
    return name.n && memchr(name.s + from, ':', name.n - from);
}

void ollama_put_name(buf *out, str name)
{
    buf_put(out, name.s, name.n);
    if (!has_tag(name)) buf_puts(out, ":latest");
}

static bool same_name(str a, str b)
{
    str  latest = STR(":latest");
    bool tagged = has_tag(a);
    if (tagged == has_tag(b)) return str_is_nocase(a, b);
    str longer = tagged ? a : b, bare = tagged ? b : a;
    if (longer.n != bare.n + latest.n) return false;
    return str_is_nocase((str){longer.s, bare.n}, bare) && str_is_nocase((str){longer.s + bare.n, latest.n}, latest);
}

static bool is_served(const server_request *r, str name)
{
    bool found = same_name(name, str_of(r->served));
    for (size_t i = 0; i < r->n_aliases; i++) found |= same_name(name, str_of(r->aliases[i]));
    return found;
}

bool ollama_check_model(const server_request *r, const json_value *body, str *out, server_error *why)
{
    const json_value *v = find_given(body, "model");
    if (!v) v = find_given(body, "name");
    if (!v) return error_set(why, 400, "model", NULL, "model is required");
    if (v->kind != JSON_STRING) return error_set(why, 400, "model", NULL, "'model' must be a string.");
    *out = v->s;
    return is_served(r, v->s) ||
           error_set(why, 404, "model", "model_not_found", "model '%.*s' not found", STR_ARG(v->s));
}

/* --- keep_alive ---------------------------------------------------------------------------------*/
/* Reads a number and its unit, such as the "1.5h" of "1.5h30m"; *at moves past them. */
static bool read_time(const char **at, const char *end, double *seconds)
{
    static const struct {
        const char *name;
        double      s;
    } unit[]      = {{"ns", 1e-9}, {"us", 1e-6}, {"\xC2\xB5s", 1e-6}, {"\xCE\xBCs", 1e-6},
                     {"ms", 1e-3}, {"s", 1},     {"m", 60},           {"h", 3600}};
    const char *p = *at;
    double      x = 0, scale = 1;
    bool        point = false, digits = false;
    for (; p < end && ((*p >= '0' && *p <= '9') || (*p == '.' && !point)); p++) {
        if (*p == '.') {
            point = true;
            continue;
        }
        digits = true;
        x      = x * 10 + (*p - '0');
        if (point) scale *= 10;
    }
    for (size_t i = 0; digits && i < COUNT(unit); i++)
        if (str_starts((str){p, (size_t)(end - p)}, unit[i].name)) {
            *at = p + strlen(unit[i].name);
            *seconds += x / scale * unit[i].s;
            return true;
        }
    return false;
}

/* Reads a duration as Go writes them: "5m", "1h30m", "-1m", "0". */
static bool read_duration(str s, double *seconds)
{
    const char *at = s.s, *end = s.s + s.n;
    bool        minus = s.n && *at == '-';
    *seconds          = 0;
    at += s.n && (*at == '-' || *at == '+');
    if (end - at == 1 && *at == '0') return true;
    if (at == end) return false;
    while (at < end)
        if (!read_time(&at, end, seconds)) return false;
    if (minus) *seconds = -*seconds;
    return true;
}

/* The model is always held: only a time of 0 makes a difference, to the reply of a request without a prompt. */
static bool read_keep_alive(const reader *r, bool *unload)
{
    const json_value *v = json_find(r->from, "keep_alive");
    double            x = 1;
    if (v && v->kind == JSON_STRING) {
        if (!read_duration(v->s, &x))
            return error_set(r->why, 400, "keep_alive", NULL, "time: invalid duration \"%.*s\"", STR_ARG(v->s));
    } else if (v && (v->kind == JSON_INT || v->kind == JSON_REAL)) {
        x = v->d;
    } else if (v) {
        return bad(r, "keep_alive", "must be a number of seconds or a duration such as \"5m\"");
    }
    *unload = x == 0;
    return true;
}

/* --- options ------------------------------------------------------------------------------------*/
typedef enum { OPTION_INT, OPTION_REAL, OPTION_BOOL, OPTION_TEXTS } option_kind;
typedef enum {
    SAME,    /* a field of OpenAI's or of ours has the same name and meaning */
    HANDLED, /* in add_options */
    NO_TEXT, /* it would not change the text: accepted, without effect */
    WITHOUT, /* it would change the text, and does not here */
} option_use;

static const struct {
    const char *name;
    option_kind kind;
    option_use  use;
} options[] = {
    {"num_predict", OPTION_INT, HANDLED},
    {"temperature", OPTION_REAL, SAME},
    {"top_k", OPTION_INT, SAME},
    {"top_p", OPTION_REAL, SAME},
    {"min_p", OPTION_REAL, SAME},
    {"repeat_penalty", OPTION_REAL, HANDLED},
    {"repeat_last_n", OPTION_INT, HANDLED},
    {"presence_penalty", OPTION_REAL, SAME},
    {"frequency_penalty", OPTION_REAL, SAME},
    {"seed", OPTION_INT, HANDLED},
    {"stop", OPTION_TEXTS, SAME},
    {"num_ctx", OPTION_INT, HANDLED},
    {"draft_num_predict", OPTION_INT, HANDLED},
    {"num_keep", OPTION_INT, NO_TEXT},
    {"num_batch", OPTION_INT, NO_TEXT},
    {"num_gpu", OPTION_INT, NO_TEXT},
    {"main_gpu", OPTION_INT, NO_TEXT},
    {"num_thread", OPTION_INT, NO_TEXT},
    {"use_mmap", OPTION_BOOL, NO_TEXT},
    {"use_mlock", OPTION_BOOL, NO_TEXT},
    {"numa", OPTION_BOOL, NO_TEXT},
    {"low_vram", OPTION_BOOL, NO_TEXT},
    {"f16_kv", OPTION_BOOL, NO_TEXT},
    {"vocab_only", OPTION_BOOL, NO_TEXT},
    {"logits_all", OPTION_BOOL, NO_TEXT},
    {"embedding_only", OPTION_BOOL, NO_TEXT},
    {"penalize_newline", OPTION_BOOL, WITHOUT},
    {"typical_p", OPTION_REAL, WITHOUT},
    {"tfs_z", OPTION_REAL, WITHOUT},
    {"mirostat", OPTION_INT, WITHOUT},
    {"mirostat_tau", OPTION_REAL, WITHOUT},
    {"mirostat_eta", OPTION_REAL, WITHOUT},
};

static bool has_kind(const json_value *v, option_kind kind)
{
    switch (kind) {
    case OPTION_BOOL: return v->kind == JSON_BOOL;
    case OPTION_TEXTS:
        if (v->kind == JSON_STRING) return true;
        for (size_t i = 0; v->kind == JSON_ARRAY && i < v->n; i++)
            if (v->item[i].kind != JSON_STRING) return false;
        return v->kind == JSON_ARRAY;
    default: return v->kind == JSON_INT || v->kind == JSON_REAL;
    }
}

static bool check_option(const reader *r, size_t i, const json_value *v)
{
    static const char *const type[] = {"integer", "float32", "boolean", "array"};
    return has_kind(v, options[i].kind) ||
           error_set(r->why, 400, options[i].name, NULL, "option \"%s\" must be of type %s", options[i].name,
                     type[options[i].kind]);
}

/* Returns an option as a whole number that is not beyond `most` in either direction; `absent` when it is not given. */
static int64_t whole(const json_value *all, const char *name, int64_t most, int64_t absent)
{
    const json_value *v = json_find(all, name);
    return v ? (int64_t)fmax(fmin(trunc(v->d), (double)most), -(double)most) : absent;
}

static bool add_speculation(reader *r, const json_value *all)
{
    int64_t    n = whole(all, "draft_num_predict", TANDEM_MAX_DRAFT, -1);
    json_value o;
    if (n < 0) return true;
    if (!new_object(r, &o)) return false;
    put(&o, n ? "draft_max" : "enabled", n ? int_value(n) : bool_value(false));
    put(&r->body, "speculative", o);
    return true;
}

/* A negative seed is none: one is drawn. */
static bool add_handled(reader *r, const json_value *all)
{
    enum { ABSENT = INT32_MIN };
    const json_value *penalty = json_find(all, "repeat_penalty"), *seed = json_find(all, "seed");
    int64_t           predict = whole(all, "num_predict", INT32_MAX, ABSENT);
    int64_t           window  = whole(all, "repeat_last_n", INT32_MAX, -1);
    if (predict != ABSENT) put(&r->body, "max_tokens", int_value(predict > 0 ? predict : -1));
    if (penalty && window) put(&r->body, "repeat_penalty", *penalty);
    if (penalty && window > 0) request_warn(r->q, "option repeat_last_n has no effect: all tokens count");
    if (seed && seed->d >= 0) put(&r->body, "seed", seed->kind == JSON_INT ? *seed : int_value((int64_t)seed->d));
    r->q->ollama.n_ctx = (int)fmax((double)whole(all, "num_ctx", INT32_MAX, 0), 0);
    return add_speculation(r, all);
}

static bool add_options(reader *r)
{
    const json_value *all = json_find(r->from, "options");
    if (!all) return true;
    if (all->kind != JSON_OBJECT) return bad(r, "options", "must be an object");
    for (size_t i = 0; i < COUNT(options); i++) {
        const json_value *v = json_find(all, options[i].name);
        if (!v) continue;
        if (!check_option(r, i, v)) return false;
        bool is_int = options[i].kind == OPTION_INT;
        if (options[i].use == SAME)
            put(&r->body, options[i].name, is_int ? int_value(whole(all, options[i].name, INT32_MAX, 0)) : *v);
        if (options[i].use == WITHOUT) request_warn(r->q, "option %s has no effect", options[i].name);
    }
    return add_handled(r, all);
}

/* --- format, think, logprobs --------------------------------------------------------------------*/
static bool add_format(reader *r)
{
    const json_value *v = find_given(r->from, "format");
    json_value        o, schema;
    if (!v) return true;
    if (v->kind != JSON_OBJECT && !(v->kind == JSON_STRING && str_is(v->s, "json")))
        return bad(r, "format", "must be \"json\" or a JSON Schema");
    if (!new_object(r, &o) || !new_object(r, &schema)) return false;
    put(&o, "type", text_value(v->kind == JSON_OBJECT ? STR("json_schema") : STR("json_object")));
    if (v->kind == JSON_OBJECT) {
        put(&schema, "schema", *v);
        put(&o, "json_schema", schema);
    }
    put(&r->body, "response_format", o);
    return true;
}

static bool add_think(reader *r)
{
    static const char *const level[] = {"low", "medium", "high", "max"};
    const json_value        *v       = json_find(r->from, "think");
    bool                     known   = !v || v->kind == JSON_BOOL;
    for (size_t i = 0; !known && v->kind == JSON_STRING && i < COUNT(level); i++) known = str_is(v->s, level[i]);
    if (!known) return bad(r, "think", "must be true, false, \"low\", \"medium\", \"high\" or \"max\"");
    if (v && v->kind == JSON_STRING)
        put(&r->body, "reasoning_effort", *v);
    else
        put(&r->body, "enable_thinking", bool_value(!v || v->b));
    return true;
}

static bool add_logprobs(reader *r, bool raw)
{
    const json_value *top  = json_find(r->from, "top_logprobs");
    bool              want = false;
    if (!read_bool(r, "logprobs", &want)) return false;
    if (top && !((top->kind == JSON_INT || top->kind == JSON_REAL) && top->d >= 0 && top->d <= TANDEM_MAX_LOGPROBS &&
                 top->d == floor(top->d)))
        return error_set(r->why, 400, "top_logprobs", NULL, "top_logprobs must be between 0 and %d",
                         TANDEM_MAX_LOGPROBS);
    if (!want) return true;
    if (!raw) put(&r->body, "logprobs", bool_value(true));
    put(&r->body, raw ? "logprobs" : "top_logprobs", int_value(top ? (int64_t)top->d : 0));
    return true;
}

/* --- messages -----------------------------------------------------------------------------------*/
static bool is_text(const json_value *v) { return v && v->kind == JSON_STRING; }

static bool bad_member(const reader *r, size_t i, const char *member, const char *what)
{
    char path[64];
    snprintf(path, sizeof path, "messages[%zu]%s%s", i, member ? "." : "", member ? member : "");
    return bad(r, path, what);
}

static bool add_role(const reader *r, const json_value *m, size_t i, json_value *out, str *role)
{
    const json_value *v = json_find(m, "role");
    char             *copy;
    if (!is_text(v)) return bad_member(r, i, "role", "must be system, user, assistant or tool");
    if (!(copy = arena_str(&r->q->mem, v->s))) return error_no_memory(r->why);
    for (size_t k = 0; k < v->s.n; k++)
        if (copy[k] >= 'A' && copy[k] <= 'Z') copy[k] = (char)(copy[k] | 0x20);
    *role = (str){copy, v->s.n};
    put(out, "role", text_value(*role));
    return true;
}

/* A tool's picture is named in place of being shown, as in all APIs: its client would send it again and again. */
static bool add_content(const reader *r, const json_value *m, size_t i, json_value *out, bool is_tool)
{
    const json_value *v = json_find(m, "content"), *images = json_find(m, "images");
    char              path[64];
    str               text = is_text(v) ? v->s : STR("");
    if (v && !is_text(v)) return bad_member(r, i, "content", "must be a string");
    if (images && images->kind != JSON_ARRAY) return bad_member(r, i, "images", "must be a list of base64 strings");
    if (images && images->n && !is_tool) {
        snprintf(path, sizeof path, "messages[%zu].images", i);
        return error_no_media(r->why, path);
    }
    if (images && images->n) {
        chat_part    part[] = {{.text = text}, {.text = STR(ERROR_NOT_SHOWN)}};
        chat_content both   = {.kind = CHAT_PARTS, .part = part, .n_parts = COUNT(part)};
        if (!chat_join(&r->q->mem, &both, "\n", &text)) return error_no_memory(r->why);
    }
    put(out, "content", text_value(text));
    return true;
}

/* --- calls and their answers --------------------------------------------------------------------*/
typedef struct {
    str  id, name;
    bool answered;
} call;

typedef struct {
    call   of[CHAT_MAX_CALLS]; /* of the last message with calls */
    size_t n, n_all;           /* n_all: of all messages */
} call_list;

/* Gives a call without an id one. */
static bool add_call(const reader *r, const json_value *v, size_t i, json_value *out, call_list *calls)
{
    const json_value *f = json_find(v, "function"), *id = find_given(v, "id"), *name = json_find(f, "name");
    char              made[32];
    if (v->kind != JSON_OBJECT || !f || f->kind != JSON_OBJECT || !is_text(name))
        return bad_member(r, i, "tool_calls", "must be objects with a function that has a name");
    if (id && !is_text(id)) return bad_member(r, i, "tool_calls", "must have ids that are strings");
    snprintf(made, sizeof made, "call_%zu", calls->n_all++);
    char *copy = arena_str(&r->q->mem, str_of(made));
    if (!copy || !new_object(r, out)) return error_no_memory(r->why);
    str given             = id ? id->s : str_of(copy);
    calls->of[calls->n++] = (call){.id = given, .name = name->s};
    put(out, "id", text_value(given));
    put(out, "function", *f);
    return true;
}

static bool add_calls(const reader *r, const json_value *m, size_t i, json_value *out, call_list *calls)
{
    const json_value *list = json_find(m, "tool_calls");
    json_value        all;
    if (!list) return true;
    if (list->kind != JSON_ARRAY) return bad_member(r, i, "tool_calls", "must be a list");
    if (list->n > CHAT_MAX_CALLS) return bad_member(r, i, "tool_calls", "has more than 256 calls");
    if (!list->n) return true;
    if (!new_list(r, list->n, &all)) return false;
    calls->n = 0;
    for (size_t k = 0; k < list->n; k++)
        if (!add_call(r, &list->item[k], i, &all.item[k], calls)) return false;
    put(out, "tool_calls", all);
    return true;
}

/* Finds the call that a tool's message answers: by its id, else by the tool's name, else the next one in order. NULL: none. */
static call *find_answered(call_list *calls, const json_value *id, const json_value *name)
{
    for (size_t i = 0; id && i < calls->n; i++)
        if (str_eq(calls->of[i].id, id->s)) return &calls->of[i];
    for (size_t i = 0; name && i < calls->n; i++)
        if (!calls->of[i].answered && str_eq(calls->of[i].name, name->s)) return &calls->of[i];
    for (size_t i = 0; !name && i < calls->n; i++)
        if (!calls->of[i].answered) return &calls->of[i];
    return NULL;
}

static bool add_answered(const reader *r, const json_value *m, size_t i, json_value *out, call_list *calls)
{
    const json_value *id = find_given(m, "tool_call_id"), *name = find_given(m, "tool_name");
    if (!name) name = find_given(m, "name");
    if ((id && !is_text(id)) || (name && !is_text(name)))
        return bad_member(r, i, id && !is_text(id) ? "tool_call_id" : "tool_name", "must be a string");
    call *found = find_answered(calls, id, name);
    if (found) found->answered = true;
    if (found) put(out, "tool_call_id", text_value(found->id));
    if (!found && id) put(out, "tool_call_id", *id);
    if (name) put(out, "name", *name);
    return true;
}

static bool add_message(const reader *r, const json_value *m, size_t i, json_value *out, call_list *calls)
{
    const json_value *thinking = find_given(m, "thinking");
    str               role     = {0};
    if (m->kind != JSON_OBJECT) return bad_member(r, i, NULL, "must be an object with role and content");
    if (!new_object(r, out) || !add_role(r, m, i, out, &role)) return false;
    bool is_tool = str_is(role, "tool");
    if (!add_content(r, m, i, out, is_tool) || !add_calls(r, m, i, out, calls)) return false;
    if (thinking && !is_text(thinking)) return bad_member(r, i, "thinking", "must be a string");
    if (thinking) put(out, "reasoning_content", *thinking);
    return !is_tool || add_answered(r, m, i, out, calls);
}

/* Returns whether the last message is an answer that was begun, which the model goes on with. */
static bool is_begun(const json_value *all)
{
    const json_value *m = &all->item[all->n - 1];
    return all->n > 1 && str_is(json_get(m, "role")->s, "assistant") && json_get(m, "content")->s.n &&
           !json_get(m, "tool_calls") && !json_get(m, "reasoning_content");
}

static bool add_messages(reader *r, const json_value *list)
{
    json_value        all;
    call_list        *calls = arena_try(&r->q->mem, 1, sizeof *calls);
    const json_value *tools = json_find(r->from, "tools");
    if (!calls) return error_no_memory(r->why);
    if (!new_list(r, list->n, &all)) return false;
    for (size_t i = 0; i < list->n; i++)
        if (!add_message(r, &list->item[i], i, &all.item[i], calls)) return false;
    put(&r->body, "messages", all);
    if (tools) put(&r->body, "tools", *tools);
    if (is_begun(&all)) put(&r->body, "continue_final_message", bool_value(true));
    return true;
}

static bool read_chat(reader *r, bool unload)
{
    const json_value *list = json_find(r->from, "messages");
    r->q->ollama.is_chat   = true;
    r->q->where            = FIELD_CHAT;
    if (list && list->kind != JSON_ARRAY) return bad(r, "messages", "must be a list");
    if (!list || !list->n) {
        r->q->ollama.loaded = unload ? "unload" : "load";
        return true;
    }
    return add_messages(r, list) && add_think(r) && add_logprobs(r, false);
}

/* --- generate -----------------------------------------------------------------------------------*/
static bool is_empty(const json_value *v) { return !v || (v->kind == JSON_ARRAY && !v->n); }

static bool check_unsupported(const reader *r, bool raw, str system)
{
    const json_value *context = json_find(r->from, "context"), *images = json_find(r->from, "images");
    str template, suffix;
    if (!read_text(r, "template", &template) || !read_text(r, "suffix", &suffix)) return false;
    if (raw && (template.n || system.n || !is_empty(context)))
        return error_set(r->why, 400, "raw", NULL, "raw mode does not support template, system, or context");
    if (suffix.n)
        return error_set(r->why, 400, "suffix", NULL, "\"%.*s\" does not support insert", STR_ARG(r->q->ollama.model));
    if (template.n)
        return error_set(r->why, 400, "template", NULL,
                         "'template' is not supported: prompts are written in the model's own format, or as they are "
                         "with 'raw'.");
    if (!is_empty(context))
        return error_set(r->why, 400, "context", NULL,
                         "'context' is not supported: send the conversation as the messages of /api/chat.");
    return is_empty(images) || error_no_media(r->why, "images");
}

/* A prompt in the client's own template: its markers are tokens. */
static bool add_raw(reader *r, str text)
{
    tok_ids   *ids = &r->q->rendered.ids;
    const tok *t   = r->t->tok;
    err        e   = {0};
    json_value list;
    if (!tok_encode(t, ids, text, true, &e)) return error_take(r->why, &e, "prompt", false);
    bool begin = tok_add_bos(t) && (!ids->n || ids->p[0] != tok_bos(t));
    if (ids->failed) return error_no_memory(r->why);
    if (ids->n > (size_t)r->t->info.n_ctx)
        return error_context(r->why, "prompt", "prompt", r->t->info.n_ctx, ids->n + begin);
    if (!new_list(r, ids->n + begin, &list)) return false;
    if (begin) list.item[0] = int_value(tok_bos(t));
    for (size_t i = 0; i < ids->n; i++) list.item[i + begin] = int_value(ids->p[i]);
    put(&r->body, "prompt", list);
    return true;
}

static bool add_text(reader *r, str system, str prompt)
{
    const str  role[] = {STR("system"), STR("user")}, text[] = {system, prompt};
    json_value all;
    if (!new_list(r, COUNT(role), &all)) return false;
    all.n = 0;
    for (size_t i = 0; i < COUNT(role); i++) {
        json_value *m = &all.item[all.n];
        if (!text[i].n) continue;
        if (!new_object(r, m)) return false;
        put(m, "role", text_value(role[i]));
        put(m, "content", text_value(text[i]));
        all.n++;
    }
    put(&r->body, "messages", all);
    return true;
}

static bool read_generate(reader *r, bool unload)
{
    str  prompt, system;
    bool raw = false;
    if (!read_bool(r, "raw", &raw) || !read_text(r, "prompt", &prompt) || !read_text(r, "system", &system) ||
        !check_unsupported(r, raw, system))
        return false;
    r->q->where = raw ? FIELD_TEXT : FIELD_CHAT;
    if (!prompt.n) {
        r->q->ollama.loaded = unload ? "unload" : "load";
        return true;
    }
    return (raw ? add_raw(r, prompt) : add_text(r, system, prompt) && add_think(r)) && add_logprobs(r, raw);
}

/* --- all of it ----------------------------------------------------------------------------------*/
bool ollama_translate(server_request *q, const tandem *t, const json_value **body, server_error *why)
{
    reader      r      = {.q = q, .t = t, .from = *body, .why = why};
    bool        stream = true, unload = false, is_chat = q->where == FIELD_OLLAMA_CHAT;
    json_value *made = arena_try(&q->mem, 1, sizeof *made);
    if (!made) return error_no_memory(why);
    if (!new_object(&r, &r.body) || !ollama_check_model(q, *body, &q->ollama.model, why) ||
        !read_bool(&r, "stream", &stream) || !read_bool(&r, "truncate", &q->ollama.truncate) ||
        !read_keep_alive(&r, &unload))
        return false;
    put(&r.body, "stream", bool_value(stream));
    if (!add_options(&r) || !add_format(&r) || !(is_chat ? read_chat(&r, unload) : read_generate(&r, unload)))
        return false;
    *made = r.body;
    *body = made;
    return true;
}

static bool is_system(const chat_message *m) { return m->role == CHAT_SYSTEM || m->role == CHAT_DEVELOPER; }

/* Returns the place of the first message after n turns. */
static size_t after_turns(const chat *c, size_t from, size_t n)
{
    size_t i = from;
    for (; n && i < c->n; n--) do
            i++;
        while (i < c->n && c->message[i].role != CHAT_USER);
    return i;
}

static size_t n_leading(const chat *c)
{
    size_t n = 0;
    while (n < c->n && is_system(&c->message[n])) n++;
    return n;
}

size_t ollama_turns(const chat *c)
{
    size_t n = 0;
    for (size_t i = n_leading(c); i < c->n; n++) i = after_turns(c, i, 1);
    return n;
}

bool ollama_leave_out(chat *c, const chat *whole, size_t n, server_error *why)
{
    size_t lead = n_leading(whole), from = after_turns(whole, lead, n);
    c->n       = lead + whole->n - from;
    c->message = arena_try(whole->mem, c->n + 1, sizeof *c->message);
    if (!c->message) return error_no_memory(why);
    memcpy(c->message, whole->message, lead * sizeof *c->message);
    memcpy(c->message + lead, whole->message + from, (whole->n - from) * sizeof *c->message);
    c->cap = c->n;
    return true;
}

void ollama_limit(server_request *q, const tandem *t)
{
    settings now;
    int32_t  room;
    if (!q->ollama.n_ctx || q->ollama.n_ctx >= t->info.n_ctx || !q->n_prompts) return;
    room = q->ollama.n_ctx + 1 - (int32_t)q->prompt[0].n;
    sched_get_settings(t->sched, &now);
    if (q->ask.max_tokens < 0) q->ask.max_tokens = (int32_t)fmin((double)now.default_max_tokens, INT32_MAX);
    if (q->ask.max_tokens > room) q->ask.max_tokens = room;
}
