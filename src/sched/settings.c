#include "sched/settings.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "ops/cache_type.h"
#include "ops/sparse.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* clang-format off */
#define AT(field) offsetof(settings, field)
const setting_info setting_table[] = {
    {"dflash_enabled", SETTING_BOOL, AT(dflash_enabled), 0, 1, NULL, "true", NULL, true,
     "false: no speculation, n-grams included"},
    {"dflash_max_concurrent", SETTING_INT, AT(dflash_max_concurrent), 0, 4096, "auto", "auto", NULL, true,
     "maximum of concurrent requests that use a drafter, the oldest first; others decode without"},
    {"dflash_lazy_drafter", SETTING_BOOL, AT(dflash_lazy_drafter), 0, 1, NULL, "false", NULL, false,
     "the drafter is opened when a request first uses it"},
    {"dflash_kv_pressure_threshold", SETTING_REAL, AT(dflash_kv_pressure_threshold), 0, 1, NULL, "0.7", NULL, true,
     "no drafter while running requests use more than this share of the K/V cache"},
    {"dflash_max_ctx", SETTING_INT, AT(dflash_max_ctx), 0, 1 << 30, "none", "none", "DFLASH_MAX_CTX", true,
     "no drafter for prompts of this many tokens or more"},
    {"dflash_draft_window", SETTING_INT, AT(dflash_draft_window), 1, 1 << 24, "none", "none", NULL, false,
     "positions that the DFlash drafter's layers with full attention see, unless --draft-window is given"},
    {"dflash_draft_model", SETTING_TEXT, AT(dflash_draft_model), 0, 0, NULL, "", NULL, false,
     "the DFlash drafter, a file or a directory; replaces the one of --draft"},
    {"mtp_draft_model", SETTING_TEXT, AT(mtp_draft_model), 0, 0, NULL, "", NULL, false,
     "the MTP assistant, a file or a directory; replaces the one of --draft"},
    {"dflash_draft_quant_enabled", SETTING_BOOL, AT(dflash_draft_quant_enabled), 0, 1, NULL, "false", NULL, false,
     "the drafters' weights are quantised at load"},
    {"dflash_draft_quant_weight_bits", SETTING_INT, AT(dflash_draft_quant_weight_bits), 1, 32, NULL, "8", NULL, false,
     "8: q8_0, 4: q4_0"},
    {"dflash_draft_quant_activation_bits", SETTING_INT, AT(dflash_draft_quant_activation_bits), 1, 32, "none", "none",
     NULL, false,
     "none, or the bits that the device computes with: 8 on a CPU, 16 on a GPU; others are refused"},
    {"dflash_draft_quant_group_size", SETTING_INT, AT(dflash_draft_quant_group_size), 1, 4096, NULL, "32", NULL, false,
     "weights that share a scale: 32"},
    {"default_max_tokens", SETTING_INT, AT(default_max_tokens), 1, 1 << 30, NULL, "8192", NULL, true,
     "default maximum of tokens in a response"},
    {"kv_type", SETTING_TEXT, AT(kv_type), 0, 0, NULL, "", NULL, false,
     "types of K and V, such as q8_0 or k=q8_0,v=q4_0; empty: as --kv"},
    {"kv_sliding", SETTING_TEXT, AT(kv_sliding), 0, 0, NULL, "", NULL, false,
     "the same for sliding layers; empty: as --kv-sliding"},
    {"kv_draft", SETTING_TEXT, AT(kv_draft), 0, 0, NULL, "", NULL, false,
     "the same for the K/V of a DFlash drafter; empty: as --kv-draft"},
    {"sparse_fa", SETTING_TEXT, AT(sparse_fa), 0, 0, NULL, "", NULL, false,
     "sparse attention: share of the estimated weight to drop, such as 0.001; 0: off; empty: as --sparse-fa"},
    {"kv_cap", SETTING_REAL, AT(kv_cap), 0.01, 1, NULL, "0.9", NULL, false,
     "share of the K/V pool that requests may reserve"},
    {"max_mask_ms", SETTING_INT, AT(max_mask_ms), 1, 3600000, "none", "10000", NULL, true,
     "maximum CPU time of the grammar masks of one request; above it the request fails"},
    {"max_stall_ms", SETTING_INT, AT(max_stall_ms), 0, 600000, NULL, "200", NULL, true,
     "maximum time that a step with a prompt chunk delays other requests"},
    {"queue_max", SETTING_INT, AT(queue_max), 0, 1 << 20, NULL, "256", NULL, true,
     "maximum of waiting requests; 0: a request that cannot start immediately is refused"},
    {"max_lanes_per_key", SETTING_INT, AT(max_lanes_per_key), 1, 4096, "none", "none", NULL, true,
     "maximum of running requests per API key; none: all lanes, shared by waiting keys in turns"},
    {"max_queue_per_key", SETTING_INT, AT(max_queue_per_key), 0, 1 << 20, "none", "none", NULL, true,
     "maximum of waiting requests per API key; none: the whole queue, shared equally when it is full"},
    {"queue_timeout_ms", SETTING_INT, AT(queue_timeout_ms), 0, 1 << 30, "none", "30000", NULL, true,
     "maximum time in the queue; then a request is refused"},
    {"request_timeout_ms", SETTING_INT, AT(request_timeout_ms), 0, 1 << 30, "none", "none", NULL, true,
     "timeout of a request, from its arrival"},
    {"image_tokens", SETTING_INT, AT(image_tokens), 1, 16384, "auto", "auto", NULL, true,
     "maximum of tokens per image; auto: the model's default, at most half of the context"},
    {"media_max_frames", SETTING_INT, AT(media_max_frames), 1, 768, NULL, "32", NULL, true,
     "maximum of frames per video"},
    {"media_max_items", SETTING_INT, AT(media_max_items), 0, 4096, NULL, "64", NULL, true,
     "maximum of images and videos in a request"},
    {"media_max_bytes", SETTING_INT, AT(media_max_bytes), 1, 1e12, NULL, "128000000", NULL, true,
     "maximum size of all image and video files of a request together"},
    {"media_max_pixels", SETTING_INT, AT(media_max_pixels), 1, 1e12, NULL, "256000000", NULL, true,
     "maximum of pixels of all images and videos of a request together, as stored in their files"},
    {"encoder_idle_s", SETTING_INT, AT(encoder_idle_s), 0, 1e9, NULL, "600", NULL, true,
     "time without images after which their encoder is parked, in seconds; the next image loads it again"},
    {"session_max_count", SETTING_INT, AT(session_max_count), 0, 1 << 20, NULL, "100", NULL, true,
     "maximum of saved sessions per API key"},
    {"session_max_bytes", SETTING_INT, AT(session_max_bytes), 0, 1e15, NULL, "10000000000", NULL, true,
     "maximum size of all saved sessions of an API key together"},
    {"routing_log", SETTING_BOOL, AT(routing_log), 0, 1, NULL, "true", "DFLASH_METRIC_DISABLE", true,
     "log decisions and outcomes to routing.jsonl"},
    {"routing_log_max_bytes", SETTING_INT, AT(routing_log_max_bytes), 0, 1e15, NULL, "500000000",
     "DFLASH_METRIC_MAX_SIZE", true,
     "maximum size of all files of the routing log together"},
    {"routing_log_files", SETTING_INT, AT(routing_log_files), 1, 100, NULL, "4", NULL, false,
     "number of files of the routing log; the oldest is deleted for a new one; 1: writing stops at the limit"},
};
/* clang-format on */
const int n_settings = (int)COUNT(setting_table);
_Static_assert(COUNT(setting_table) <= SETTINGS_MAX, "one bit each");

const setting_info *setting_find(str name)
{
    for (int i = 0; i < n_settings; i++)
        if (str_is(name, setting_table[i].name)) return &setting_table[i];
    return NULL;
}

uint64_t settings_bit(const setting_info *info) { return 1ull << (info - setting_table); }

/* --- one value ----------------------------------------------------------------------------------- */
static void put_number(double x, buf *out)
{
    if (x == floor(x) && fabs(x) < 1e15)
        buf_printf(out, "%.0f", x);
    else
        buf_printf(out, "%g", x);
}

/* The value as it was given, for the sentence. */
static void put_given(const json_value *v, buf *out)
{
    json_writer w;
    json_writer_init(&w, out);
    if (v->kind == JSON_ARRAY || v->kind == JSON_OBJECT)
        buf_puts(out, v->kind == JSON_ARRAY ? "an array" : "an object");
    else
        json_put_value(&w, v);
}

static bool refuse_value(const setting_info *info, const json_value *v, err *e)
{
    buf b;
    buf_init(&b, 1 << 16);
    buf_printf(&b, "%s is ", info->name);
    put_given(v, &b);
    buf_puts(&b, ", expected ");
    if (info->kind == SETTING_BOOL)
        buf_puts(&b, "true or false");
    else if (info->kind == SETTING_TEXT)
        buf_printf(&b, "a string of less than %d bytes without NUL", SETTING_TEXT_MAX);
    else {
        buf_puts(&b, info->kind == SETTING_INT ? "a whole number from " : "a number from ");
        put_number(info->min, &b);
        buf_puts(&b, " to ");
        put_number(info->max, &b);
        if (info->word) buf_printf(&b, ", or \"%s\"", info->word);
    }
    err_set(e, ERR_INPUT, "%.*s", (int)b.n, b.p ? b.p : info->name);
    buf_deinit(&b);
    return err_blame(e, info->name, 0);
}

static bool is_word(const setting_info *info, const json_value *v)
{
    return info->word && (v->kind == JSON_NULL || (v->kind == JSON_STRING && str_is(v->s, info->word)));
}

static bool is_valid(const setting_info *info, const json_value *v)
{
    switch (info->kind) {
    case SETTING_BOOL: return v->kind == JSON_BOOL;
    case SETTING_TEXT: return v->kind == JSON_STRING && v->s.n < SETTING_TEXT_MAX && !memchr(v->s.s, 0, v->s.n);
    case SETTING_INT: return is_word(info, v) || (v->kind == JSON_INT && v->d >= info->min && v->d <= info->max);
    case SETTING_REAL: return (v->kind == JSON_INT || v->kind == JSON_REAL) && v->d >= info->min && v->d <= info->max;
    }
    return false;
}

static void store_value(settings *s, const setting_info *info, const json_value *v)
{
    void *at = (char *)s + info->at;
    switch (info->kind) {
    case SETTING_BOOL: *(bool *)at = v->b; break;
    case SETTING_INT: *(int64_t *)at = is_word(info, v) ? SETTING_UNLIMITED : v->i; break;
    case SETTING_REAL: *(double *)at = v->d; break;
    case SETTING_TEXT:
        memset(at, 0, SETTING_TEXT_MAX);
        if (v->s.n) memcpy(at, v->s.s, v->s.n);
        break;
    }
}

bool settings_set(settings *s, const setting_info *info, const json_value *v, err *e)
{
    if (v->kind == JSON_NULL && !info->word) return settings_set_text(s, info, str_of(info->default_text), e);
    if (!is_valid(info, v)) return refuse_value(info, v, e);
    if (settings_source(s, info) != SETTING_FROM_ENVIRONMENT) store_value(s, info, v);
    return true;
}

json_value settings_value(const setting_info *info, str text)
{
    json_value v  = {.kind = JSON_STRING, .s = text};
    bool       on = str_is(text, "true") || str_is(text, "1"), off = str_is(text, "false") || str_is(text, "0");
    if (info->kind == SETTING_BOOL && (on || off)) v = (json_value){.kind = JSON_BOOL, .b = on};
    if (info->kind == SETTING_INT && str_to_i64(text, &v.i))
        v = (json_value){.kind = JSON_INT, .i = v.i, .d = (double)v.i};
    if (info->kind == SETTING_REAL && str_to_f64(text, &v.d)) v.kind = JSON_REAL;
    return v;
}

bool settings_set_text(settings *s, const setting_info *info, str text, err *e)
{
    json_value v = settings_value(info, text);
    return settings_set(s, info, &v, e);
}

void settings_init(settings *s)
{
    *s = (settings){0};
    for (int i = 0; i < n_settings; i++) {
        bool ok = settings_set_text(s, &setting_table[i], str_of(setting_table[i].default_text), NULL);
        assert(ok);
        (void)ok;
    }
}

/* --- all of them --------------------------------------------------------------------------------- */
bool settings_set_all(settings *s, const json_value *object, int *unknown, err *e)
{
    settings new = *s;
    if (object->kind != JSON_OBJECT) return err_set(e, ERR_INPUT, "settings must be an object of names and values");
    for (size_t i = 0; i < object->n; i++) {
        const setting_info *info = setting_find(object->member[i].key);
        if (!info)
            ++*unknown;
        else if (!settings_set(&new, info, &object->member[i].value, e))
            return false;
    }
    if (!settings_check(&new, e)) return false;
    *s = new;
    return true;
}

/* Sets a boolean to the opposite of the text: 0, 1, true or false. */
static bool set_opposite(settings *s, const setting_info *info, const char *text, err *e)
{
    bool on = !strcmp(text, "1") || !strcmp(text, "true");
    if (!on && strcmp(text, "0") != 0 && strcmp(text, "false") != 0)
        return err_set(e, ERR_INPUT, "environment variable %s is \"%.100s\", expected 0, 1, true or false",
                       info->variable, text);
    *(bool *)((char *)s + info->at) = !on;
    return true;
}

static bool take_variable(settings *s, const setting_info *info, err *e)
{
    const char *text = info->variable ? getenv(info->variable) : NULL;
    if (!text) return true;
    if (str_ends(str_of(info->variable), "_DISABLE")) {
        if (!set_opposite(s, info, text, e)) return false;
    } else if (!settings_set_text(s, info, str_of(text), e))
        return err_wrap(e, "environment variable %s", info->variable);
    settings_note(s, info, SETTING_FROM_ENVIRONMENT);
    return true;
}

bool settings_take_environment(settings *s, err *e)
{
    for (int i = 0; i < n_settings; i++)
        if (!take_variable(s, &setting_table[i], e)) return false;
    return true;
}

setting_source settings_source(const settings *s, const setting_info *info)
{
    return (setting_source)s->source[info - setting_table];
}

void settings_note(settings *s, const setting_info *info, setting_source from)
{
    s->source[info - setting_table] = (uint8_t)from;
}

static bool check_types(const char *name, const char *text, err *e)
{
    cache_types t;
    if (!text[0] || cache_types_parse(&t, str_of(text), e)) return true;
    err_wrap(e, "%s", name);
    return err_blame(e, name, 0);
}

static bool check_sparse(const char *text, err *e)
{
    sparse_params p;
    if (!text[0] || sparse_parse(&p, str_of(text), e)) return true;
    err_wrap(e, "sparse_fa");
    return err_blame(e, "sparse_fa", 0);
}

bool settings_check(const settings *s, err *e)
{
    int64_t weight = s->dflash_draft_quant_weight_bits, row = s->dflash_draft_quant_activation_bits,
            group = s->dflash_draft_quant_group_size;
    if (weight != 4 && weight != 8)
        return err_set(e, ERR_INPUT, "dflash_draft_quant_weight_bits is %lld, expected 4 (q4_0) or 8 (q8_0)",
                       (long long)weight),
               err_blame(e, "dflash_draft_quant_weight_bits", 0);
    if (row != SETTING_UNLIMITED && row != 8 && row != 16)
        return err_set(e, ERR_INPUT, "dflash_draft_quant_activation_bits is %lld, expected 8, 16 or \"none\"",
                       (long long)row),
               err_blame(e, "dflash_draft_quant_activation_bits", 0);
    if (group != 32)
        return err_set(e, ERR_INPUT, "dflash_draft_quant_group_size is %lld, expected 32, the block of q4_0 and q8_0",
                       (long long)group),
               err_blame(e, "dflash_draft_quant_group_size", 0);
    return check_types("kv_type", s->kv_type, e) && check_types("kv_sliding", s->kv_sliding, e) &&
           check_types("kv_draft", s->kv_draft, e) && check_sparse(s->sparse_fa, e);
}

bool settings_check_device(const settings *s, const char *device, err *e)
{
    int64_t asked = s->dflash_draft_quant_activation_bits, bits = 0;
    if (str_starts(str_of(device), "cpu")) bits = 8;
    if (str_starts(str_of(device), "cuda")) bits = 16;
    if (asked == SETTING_UNLIMITED || asked == bits) return true;
    if (!bits)
        err_set(e, ERR_INPUT,
                "dflash_draft_quant_activation_bits is %lld, but %s does not round activations: expected \"none\"",
                (long long)asked, device);
    else
        err_set(e, ERR_INPUT,
                "dflash_draft_quant_activation_bits is %lld, but %s computes with %lld: expected %lld or \"none\"",
                (long long)asked, device, (long long)bits, (long long)bits);
    return err_blame(e, "dflash_draft_quant_activation_bits", 0);
}

bool settings_draft_type(const settings *s, quant_type *out)
{
    if (!s->dflash_draft_quant_enabled) return false;
    *out = s->dflash_draft_quant_weight_bits == 4 ? QUANT_Q4_0 : QUANT_Q8_0;
    return true;
}

static size_t bytes_of(const setting_info *info)
{
    static const size_t bytes[] = {[SETTING_BOOL] = sizeof(bool),
                                   [SETTING_INT]  = sizeof(int64_t),
                                   [SETTING_REAL] = sizeof(double),
                                   [SETTING_TEXT] = SETTING_TEXT_MAX};
    return bytes[info->kind];
}

void settings_take(settings *to, const settings *from, uint64_t names)
{
    for (int i = 0; i < n_settings; i++) {
        const setting_info *info = &setting_table[i];
        if (!(names & settings_bit(info)) || settings_source(to, info) == SETTING_FROM_ENVIRONMENT) continue;
        memcpy((char *)to + info->at, (const char *)from + info->at, bytes_of(info));
        to->source[i] = from->source[i];
    }
    to->changed |= from->changed & names;
    to->pending |= from->pending & names;
}

uint64_t settings_differ(const settings *a, const settings *b)
{
    uint64_t names = 0;
    for (int i = 0; i < n_settings; i++) {
        const setting_info *info = &setting_table[i];
        if (memcmp((const char *)a + info->at, (const char *)b + info->at, bytes_of(info))) names |= settings_bit(info);
    }
    return names;
}

/* --- showing ------------------------------------------------------------------------------------- */
void settings_put_value(const settings *s, const setting_info *info, json_writer *w)
{
    const void *at = (const char *)s + info->at;
    switch (info->kind) {
    case SETTING_BOOL: json_put_bool(w, *(const bool *)at); break;
    case SETTING_REAL: json_put_real(w, *(const double *)at); break;
    case SETTING_TEXT: json_put_str(w, str_of(at)); break;
    case SETTING_INT:
        if (*(const int64_t *)at == SETTING_UNLIMITED && info->word)
            json_put_str(w, str_of(info->word));
        else
            json_put_int(w, *(const int64_t *)at);
        break;
    }
}

static void put_text(const settings *s, const setting_info *info, buf *out)
{
    json_writer    w;
    const int64_t *n = (const int64_t *)(const void *)((const char *)s + info->at);
    json_writer_init(&w, out);
    if (info->kind == SETTING_INT && info->word && *n == SETTING_UNLIMITED)
        buf_puts(out, info->word);
    else
        settings_put_value(s, info, &w);
}

void settings_put_json(const settings *s, json_writer *w)
{
    for (int i = 0; i < n_settings; i++) {
        json_key(w, setting_table[i].name);
        settings_put_value(s, &setting_table[i], w);
    }
}

bool settings_warning(const settings *s, int trained_ctx, char *out, size_t cap)
{
    if (trained_ctx <= 0 || s->dflash_max_ctx <= trained_ctx) return false;
    snprintf(
        out, cap,
        "dflash_max_ctx is %lld, but the drafter was trained on %d tokens: it only reads the last %d of a longer text",
        (long long)s->dflash_max_ctx, trained_ctx, trained_ctx);
    return true;
}

void settings_log(const settings *s, const char *model, int trained_ctx)
{
    buf  b;
    char warning[256];
    buf_init(&b, 1 << 16);
    for (int i = 0; i < n_settings; i++) {
        buf_printf(&b, " %s=", setting_table[i].name);
        put_text(s, &setting_table[i], &b);
        if (s->source[i] == SETTING_FROM_ENVIRONMENT) buf_puts(&b, " (environment)");
    }
    log_event(LOG_INFO, "settings", "%s:%.*s", model, (int)b.n, b.p ? b.p : "");
    buf_deinit(&b);
    if (settings_warning(s, trained_ctx, warning, sizeof warning))
        log_event(LOG_WARN, "settings", "%s: %s", model, warning);
}
