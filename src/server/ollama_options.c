#include "base/mem.h"
#include "server/ollama_reader.h"

#include <math.h>

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

bool ollama_read_keep_alive(const ollama_reader *r, bool *unload)
{
    const json_value *v = json_find(r->from, "keep_alive");
    double            x = 1;
    if (v && v->kind == JSON_STRING) {
        if (!read_duration(v->s, &x))
            return error_set(r->why, 400, "keep_alive", NULL, "time: invalid duration \"%.*s\"", STR_ARG(v->s));
    } else if (v && (v->kind == JSON_INT || v->kind == JSON_REAL)) {
        x = v->d;
    } else if (v) {
        return ollama_bad(r, "keep_alive", "must be a number of seconds or a duration such as \"5m\"");
    }
    *unload = x == 0;
    return true;
}

/* --- options ------------------------------------------------------------------------------------*/
typedef enum { OPTION_INT, OPTION_REAL, OPTION_BOOL, OPTION_TEXTS } option_kind;
typedef enum {
    SAME,    /* a field of OpenAI's or of ours has the same name and meaning */
    HANDLED, /* in add_handled */
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

static bool check_option(const ollama_reader *r, size_t i, const json_value *v)
{
    static const char *const type[] = {"integer", "float32", "boolean", "array"};
    return has_kind(v, options[i].kind) ||
           error_set(r->why, 400, options[i].name, NULL, "option \"%s\" must be of type %s", options[i].name,
                     type[options[i].kind]);
}

/* Returns an option as a whole number that is not beyond `limit` in either direction; `absent` when it is not given. */
static int64_t whole(const json_value *all, const char *name, int64_t limit, int64_t absent)
{
    const json_value *v = json_find(all, name);
    return v ? (int64_t)fmax(fmin(trunc(v->d), (double)limit), -(double)limit) : absent;
}

static bool add_speculation(ollama_reader *r, const json_value *all)
{
    int64_t    n = whole(all, "draft_num_predict", TANDEM_MAX_DRAFT, -1);
    json_value o;
    if (n < 0) return true;
    if (!ollama_new_object(r, &o)) return false;
    ollama_put(&o, n ? "draft_max" : "enabled", n ? json_of_int(n) : json_of_bool(false));
    ollama_put(&r->body, "speculative", o);
    return true;
}

/* Adds the options that have no field of their name. A negative seed is none: one is drawn. */
static bool add_handled(ollama_reader *r, const json_value *all)
{
    enum { ABSENT = INT32_MIN };
    const json_value *penalty = json_find(all, "repeat_penalty"), *seed = json_find(all, "seed");
    int64_t           predict = whole(all, "num_predict", INT32_MAX, ABSENT);
    int64_t           window  = whole(all, "repeat_last_n", INT32_MAX, -1);
    if (predict != ABSENT) ollama_put(&r->body, "max_tokens", json_of_int(predict > 0 ? predict : -1));
    if (penalty && window) ollama_put(&r->body, "repeat_penalty", *penalty);
    if (penalty && window > 0) request_warn(r->q, "option repeat_last_n has no effect: all tokens count");
    if (seed && seed->d >= 0x1p63) return ollama_bad(r, "options.seed", "must be below 9223372036854775808");
    if (seed && seed->d >= 0)
        ollama_put(&r->body, "seed", seed->kind == JSON_INT ? *seed : json_of_int((int64_t)seed->d));
    r->q->ollama.n_ctx = (int)fmax((double)whole(all, "num_ctx", INT32_MAX, 0), 0);
    return add_speculation(r, all);
}

bool ollama_add_options(ollama_reader *r)
{
    const json_value *all = json_find(r->from, "options");
    if (!all) return true;
    if (all->kind != JSON_OBJECT) return ollama_bad(r, "options", "must be an object");
    for (size_t i = 0; i < COUNT(options); i++) {
        const json_value *v = json_find(all, options[i].name);
        if (!v) continue;
        if (!check_option(r, i, v)) return false;
        bool is_int = options[i].kind == OPTION_INT;
        if (options[i].use == SAME)
            ollama_put(&r->body, options[i].name, is_int ? json_of_int(whole(all, options[i].name, INT32_MAX, 0)) : *v);
        if (options[i].use == WITHOUT) request_warn(r->q, "option %s has no effect", options[i].name);
    }
    return add_handled(r, all);
}

/* --- format, think, logprobs --------------------------------------------------------------------*/
bool ollama_add_format(ollama_reader *r)
{
    const json_value *v = ollama_find_given(r->from, "format");
    json_value        o, schema;
    if (!v) return true;
    if (v->kind != JSON_OBJECT && !(v->kind == JSON_STRING && str_is(v->s, "json")))
        return ollama_bad(r, "format", "must be \"json\" or a JSON Schema");
    if (!ollama_new_object(r, &o) || !ollama_new_object(r, &schema)) return false;
    ollama_put(&o, "type", json_of_text(v->kind == JSON_OBJECT ? STR("json_schema") : STR("json_object")));
    if (v->kind == JSON_OBJECT) {
        ollama_put(&schema, "schema", *v);
        ollama_put(&o, "json_schema", schema);
    }
    ollama_put(&r->body, "response_format", o);
    return true;
}

bool ollama_add_think(ollama_reader *r)
{
    static const char *const level[] = {"low", "medium", "high", "max"};
    const json_value        *v       = json_find(r->from, "think");
    bool                     known   = !v || v->kind == JSON_BOOL;
    for (size_t i = 0; !known && v->kind == JSON_STRING && i < COUNT(level); i++) known = str_is(v->s, level[i]);
    if (!known) return ollama_bad(r, "think", "must be true, false, \"low\", \"medium\", \"high\" or \"max\"");
    if (v && v->kind == JSON_STRING)
        ollama_put(&r->body, "reasoning_effort", *v);
    else
        ollama_put(&r->body, "enable_thinking", json_of_bool(!v || v->b));
    return true;
}

bool ollama_add_logprobs(ollama_reader *r, bool raw)
{
    const json_value *top  = json_find(r->from, "top_logprobs");
    bool              want = false;
    if (!ollama_read_bool(r, "logprobs", &want)) return false;
    if (top && !((top->kind == JSON_INT || top->kind == JSON_REAL) && top->d >= 0 && top->d <= TANDEM_MAX_LOGPROBS &&
                 top->d == floor(top->d)))
        return error_set(r->why, 400, "top_logprobs", NULL, "top_logprobs must be between 0 and %d",
                         TANDEM_MAX_LOGPROBS);
    if (!want) return true;
    if (!raw) ollama_put(&r->body, "logprobs", json_of_bool(true));
    ollama_put(&r->body, raw ? "logprobs" : "top_logprobs", json_of_int(top ? (int64_t)top->d : 0));
    return true;
}
