#include "sched/settings.h"

#include "base/fault.h"
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const json_value *parse(arena *a, const char *text)
{
    const json_value *v;
    err               e = {0};
    if (!json_parse(&v, a, str_of(text), NULL, &e)) fprintf(stderr, "%s: %s\n", text, e.text);
    return v;
}

static bool set_json(settings *s, const char *text, int *unknown, err *e)
{
    arena a;
    arena_init(&a, 1 << 20);
    bool ok = settings_set_all(s, parse(&a, text), unknown, e);
    arena_deinit(&a);
    return ok;
}

static void file_text(const char *path, char *out, size_t cap)
{
    FILE *f                                = fopen(path, "r");
    out[f ? fread(out, 1, cap - 1, f) : 0] = 0;
    if (f) fclose(f);
}

TEST(settings_defaults)
{
    settings s;
    err      e = {0};
    settings_init(&s);
    CHECK(s.dflash_enabled && !s.dflash_lazy_drafter && !s.dflash_draft_quant_enabled && s.routing_log);
    CHECK_INT(s.dflash_max_concurrent, SETTING_UNLIMITED);
    CHECK_INT(s.dflash_max_ctx, SETTING_UNLIMITED);
    CHECK_NEAR(s.dflash_kv_pressure_threshold, 0.7, 0);
    CHECK_INT(s.default_max_tokens, 8192);
    CHECK_NEAR(s.kv_cap, 0.9, 0);
    CHECK_INT(s.max_stall_ms, 200);
    CHECK_INT(s.request_timeout_ms, SETTING_UNLIMITED);
    CHECK_INT(s.routing_log_max_bytes, 500000000);
    CHECK_STR(str_of(s.dflash_draft_model), STR(""));
    CHECK_OK(settings_check(&s, &e), e);
}

/* Every row of the table: its ends are taken, what lies beyond is refused with the name in the sentence. */
TEST(settings_ranges)
{
    for (int i = 0; i < n_settings; i++) {
        const setting_info *info = &setting_table[i];
        settings            s;
        err                 e = {0};
        settings_init(&s);
        CHECK(setting_find(str_of(info->name)) == info && info->help[0]);
        if (info->kind == SETTING_BOOL) {
            CHECK_OK(settings_set(&s, info, &(json_value){.kind = JSON_BOOL, .b = true}, &e), e);
            CHECK_FAILS(settings_set(&s, info, &(json_value){.kind = JSON_INT, .i = 1, .d = 1}, &e), e, info->name);
        }
        if (info->kind == SETTING_INT || info->kind == SETTING_REAL) {
            json_value low  = {.kind = JSON_INT, .i = (int64_t)info->min, .d = info->min},
                       high = {.kind = JSON_INT, .i = (int64_t)info->max, .d = info->max};
            if (low.d == (double)low.i) CHECK_OK(settings_set(&s, info, &low, &e), e);
            CHECK_OK(settings_set(&s, info, &high, &e), e);
            low.i = (int64_t)(low.d = floor(info->min) - 1);
            high.i++;
            high.d++;
            CHECK_FAILS(settings_set(&s, info, &low, &e), e, info->name);
            CHECK_FAILS(settings_set(&s, info, &high, &e), e, info->name);
            CHECK_FAILS(settings_set(&s, info, &(json_value){.kind = JSON_STRING, .s = STR("many")}, &e), e,
                        info->name);
            CHECK_FAILS(settings_set(&s, info, &(json_value){.kind = JSON_ARRAY}, &e), e, "an array");
        }
        if (info->kind == SETTING_INT)
            CHECK_FAILS(settings_set(&s, info, &(json_value){.kind = JSON_REAL, .d = 1.5}, &e), e, "a whole number");
        if (info->word) {
            CHECK_OK(settings_set_text(&s, info, str_of(info->word), &e), e);
            CHECK_INT(*(int64_t *)(void *)((char *)&s + info->at), SETTING_UNLIMITED);
        }
    }
}

TEST(settings_sentences)
{
    settings s;
    err      e       = {0};
    int      unknown = 0;
    settings_init(&s);
    CHECK_FAILS(set_json(&s, "{\"dflash_max_concurrent\": \"many\"}", &unknown, &e), e,
                "dflash_max_concurrent is \"many\", expected a whole number from 0 to 4096, or \"auto\"");
    CHECK_FAILS(set_json(&s, "{\"dflash_kv_pressure_threshold\": 1.5}", &unknown, &e), e,
                "dflash_kv_pressure_threshold is 1.5, expected a number from 0 to 1");
    CHECK_FAILS(set_json(&s, "{\"dflash_enabled\": \"yes\"}", &unknown, &e), e,
                "dflash_enabled is \"yes\", expected true or false");
    CHECK_FAILS(set_json(&s, "{\"dflash_draft_quant_weight_bits\": 3}", &unknown, &e), e, "4 (q4_0) or 8 (q8_0)");
    CHECK_FAILS(set_json(&s, "{\"dflash_draft_quant_activation_bits\": 4}", &unknown, &e), e, "8, 16 or \"none\"");
    CHECK_FAILS(set_json(&s, "{\"dflash_draft_quant_group_size\": 64}", &unknown, &e), e, "expected 32");
    CHECK_FAILS(set_json(&s, "[]", &unknown, &e), e, "an object");
    CHECK_FAILS(set_json(&s, "{\"dflash_max_ctx\": 9, \"kv_cap\": 2}", &unknown, &e), e, "kv_cap");
    CHECK_INT(s.dflash_max_ctx, SETTING_UNLIMITED); /* all or nothing */
    CHECK_INT(unknown, 0);
}

TEST(settings_zero_and_null)
{
    settings s;
    err      e       = {0};
    int      unknown = 0;
    settings_init(&s);
    CHECK_OK(set_json(&s,
                      "{\"dflash_max_concurrent\": 0, \"dflash_max_ctx\": 0, \"dflash_kv_pressure_threshold\": 0,"
                      " \"queue_max\": 0, \"queue_timeout_ms\": 0, \"max_stall_ms\": 0, \"routing_log_max_bytes\": 0,"
                      " \"what_is_this\": 1}",
                      &unknown, &e),
             e);
    CHECK(s.dflash_max_concurrent == 0 && s.dflash_max_ctx == 0 && s.dflash_kv_pressure_threshold == 0);
    CHECK(s.queue_max == 0 && s.queue_timeout_ms == 0 && s.max_stall_ms == 0 && s.routing_log_max_bytes == 0);
    CHECK_INT(unknown, 1);
    CHECK_OK(
        set_json(&s, "{\"dflash_max_concurrent\": null, \"dflash_max_ctx\": null, \"queue_max\": null}", &unknown, &e),
        e);
    CHECK(s.dflash_max_concurrent == SETTING_UNLIMITED && s.dflash_max_ctx == SETTING_UNLIMITED);
    CHECK_INT(s.queue_max, 256);
}

TEST(settings_draft_types)
{
    settings   s;
    quant_type type = QUANT_F32;
    err        e    = {0};
    int        n    = 0;
    settings_init(&s);
    CHECK(!settings_draft_type(&s, &type));
    CHECK_OK(set_json(&s, "{\"dflash_draft_quant_enabled\": true, \"dflash_draft_quant_activation_bits\": 16}", &n, &e),
             e);
    CHECK(settings_draft_type(&s, &type));
    CHECK_INT(type, QUANT_Q8_0);
    CHECK_OK(set_json(&s, "{\"dflash_draft_quant_weight_bits\": 4}", &n, &e), e);
    CHECK(settings_draft_type(&s, &type));
    CHECK_INT(type, QUANT_Q4_0);
}

/* What is written reads back the same, whatever the values. */
TEST(settings_round_trip)
{
    uint64_t seed = 1;
    for (int round = 0; round < 200; round++) {
        settings    s, again;
        json_writer w;
        buf         b;
        err         e       = {0};
        int         unknown = 0;
        settings_init(&s);
        for (int i = 0; i < n_settings; i++) {
            const setting_info *info = &setting_table[i];
            double              x    = (double)(test_rand(&seed) % 1000) / 999;
            json_value          v    = {.kind = JSON_INT, .i = (int64_t)(info->min + x * (info->max - info->min))};
            v.d                      = (double)v.i;
            if (info->kind == SETTING_BOOL) v = (json_value){.kind = JSON_BOOL, .b = test_rand(&seed) % 2};
            if (info->kind == SETTING_REAL)
                v = (json_value){.kind = JSON_REAL, .d = info->min + x * (info->max - info->min)};
            if (info->kind == SETTING_TEXT) v = (json_value){.kind = JSON_STRING, .s = STR("a \"b\"/\xc3\xa9\n")};
            if (info->kind == SETTING_TEXT && str_starts(str_of(info->name), "kv_")) v.s = STR("k=q8_0,v=tq3");
            if (str_is(str_of(info->name), "sparse_fa")) v.s = STR("0.125");
            if (info->word && test_rand(&seed) % 3 == 0) v = (json_value){.kind = JSON_NULL};
            if (!strncmp(info->name, "dflash_draft_quant_", 19) && info->kind == SETTING_INT) continue;
            CHECK_OK(settings_set(&s, info, &v, &e), e);
        }
        buf_init(&b, 1 << 16);
        json_writer_init(&w, &b);
        json_begin_object(&w);
        settings_put_json(&s, &w);
        json_end(&w);
        buf_putc(&b, 0);
        settings_init(&again);
        CHECK_OK(set_json(&again, b.p, &unknown, &e), e);
        CHECK(!settings_differ(&s, &again));
        CHECK_INT(unknown, 0);
        buf_deinit(&b);
    }
}

TEST(settings_that_differ)
{
    settings a, b;
    settings_init(&a);
    b = a;
    CHECK(!settings_differ(&a, &b));
    b.dflash_draft_model[0] = 'x';
    CHECK(settings_differ(&a, &b));
    b = a;
    b.routing_log_files += 1;
    CHECK(settings_differ(&a, &b));
}

/* Returns the bits of the settings with this source. */
static uint64_t with_source(const settings *s, setting_source from)
{
    uint64_t names = 0;
    for (int i = 0; i < n_settings; i++)
        if (s->source[i] == from) names |= settings_bit(&setting_table[i]);
    return names;
}

static void put_source(settings *s, uint64_t names, setting_source from)
{
    for (int i = 0; i < n_settings; i++)
        if (names >> i & 1) s->source[i] = (uint8_t)from;
}

/* Each setting by itself: its value and its origin are copied if it is named, and nothing else is. */
TEST(settings_take_copies_what_is_named)
{
    for (int i = 0; i < n_settings; i++) {
        const setting_info *info = &setting_table[i];
        uint64_t            bit  = settings_bit(info);
        settings            defaults, from, to;
        settings_init(&defaults);
        from = defaults;
        memset((char *)&from + info->at, 1, 1); /* another value of any kind */
        from.changed = from.pending = ~0ull;
        put_source(&from, ~0ull, SETTING_FROM_FILE);
        if (!settings_differ(&defaults, &from)) *((char *)&from + info->at) = 0;
        CHECK(settings_differ(&defaults, &from) == bit);
        to = defaults;
        settings_take(&to, &from, ~bit);
        CHECK(!settings_differ(&to, &defaults));
        CHECK(with_source(&to, SETTING_FROM_DEFAULT) == bit && to.changed == ~bit && to.pending == ~bit);
        settings_take(&to, &from, bit);
        CHECK(!settings_differ(&to, &from) && !with_source(&to, SETTING_FROM_DEFAULT));
        from.changed = from.pending = 0;
        put_source(&from, ~0ull, SETTING_FROM_DEFAULT);
        settings_take(&to, &from, bit);
        CHECK(with_source(&to, SETTING_FROM_DEFAULT) == bit && to.changed == ~0ull && to.pending == ~0ull);
        to = defaults;
        put_source(&to, bit, SETTING_FROM_ENVIRONMENT);
        settings_take(&to, &from, bit);
        CHECK(!settings_differ(&to, &defaults)); /* the environment's value stays */
    }
}

TEST(settings_texts_have_a_length)
{
    static char         text[SETTING_TEXT_MAX + 1];
    const setting_info *info = setting_find(STR("dflash_draft_model"));
    settings            s, first;
    err                 e = {0};
    memset(text, 'x', sizeof text);
    settings_init(&s);
    CHECK_OK(settings_set_text(&s, info, (str){text, SETTING_TEXT_MAX - 1}, &e), e);
    CHECK_INT(strlen(s.dflash_draft_model), SETTING_TEXT_MAX - 1);
    CHECK_FAILS(settings_set_text(&s, info, (str){text, SETTING_TEXT_MAX}, &e), e, "dflash_draft_model is \"xxx");
    CHECK_FAILS(settings_set_text(&s, info, (str){"a\0b", 3}, &e), e,
                "expected a string of less than 1024 bytes without NUL");
    CHECK_FAILS(settings_set(&s, info, &(json_value){.kind = JSON_OBJECT}, &e), e, "dflash_draft_model is an object");
    CHECK_OK(settings_set_text(&s, info, STR("a.gguf"), &e), e);
    CHECK_STR(str_of(s.dflash_draft_model), STR("a.gguf"));
    settings_init(&first);
    CHECK_OK(settings_set_text(&first, info, STR("a.gguf"), &e), e);
    CHECK(!settings_differ(&first, &s)); /* nothing of the longer one is left */
}

TEST(settings_numbers_in_sentences)
{
    settings s;
    err      e       = {0};
    int      unknown = 0;
    settings_init(&s);
    CHECK_FAILS(set_json(&s, "{\"kv_cap\": 0}", &unknown, &e), e, "kv_cap is 0, expected a number from 0.01 to 1");
    CHECK_FAILS(set_json(&s, "{\"sparse_fa\": \"1\"}", &unknown, &e), e,
                "sparse_fa: the share of sparse attention must be from 0 to below 1, got '1'");
    CHECK_FAILS(set_json(&s, "{\"routing_log_max_bytes\": -1}", &unknown, &e), e,
                "routing_log_max_bytes is -1, expected a whole number from 0 to 1e+15");
    CHECK_FAILS(set_json(&s, "{\"dflash_max_ctx\": true}", &unknown, &e), e,
                "dflash_max_ctx is true, expected a whole number from 0 to 1073741824, or \"none\"");
    CHECK(!strstr(e.text, "auto"));
    CHECK_FAILS(set_json(&s, "{\"queue_max\": \"none\"}", &unknown, &e), e, "from 0 to 1048576");
    CHECK(!strstr(e.text, ", or"));
}

/* Texts of the command line are read by the kind of the setting. */
TEST(settings_of_texts)
{
    const setting_info *on = setting_find(STR("dflash_enabled")), *cap = setting_find(STR("kv_cap")),
                       *most = setting_find(STR("queue_max")), *path = setting_find(STR("mtp_draft_model"));
    static const struct {
        const char *text;
        json_kind   kind;
        bool        value;
    } k[] = {{"true", JSON_BOOL, true},     {"1", JSON_BOOL, true},      {"false", JSON_BOOL, false},
             {"0", JSON_BOOL, false},       {"yes", JSON_STRING, false}, {"", JSON_STRING, false},
             {"truely", JSON_STRING, false}};
    for (size_t i = 0; i < COUNT(k); i++) {
        json_value v = settings_value(on, str_of(k[i].text));
        CHECK_INT(v.kind, k[i].kind);
        if (v.kind == JSON_BOOL) CHECK_INT(v.b, k[i].value);
    }
    CHECK_INT(settings_value(most, STR("12")).kind, JSON_INT);
    CHECK_INT(settings_value(most, STR("12")).i, 12);
    CHECK_NEAR(settings_value(most, STR("12")).d, 12, 0);
    CHECK_INT(settings_value(most, STR("12.5")).kind, JSON_STRING);
    CHECK_INT(settings_value(cap, STR("0.5")).kind, JSON_REAL);
    CHECK_NEAR(settings_value(cap, STR("0.5")).d, 0.5, 0);
    CHECK_INT(settings_value(cap, STR("half")).kind, JSON_STRING);
    CHECK_INT(settings_value(path, STR("1")).kind, JSON_STRING);
    CHECK_STR(settings_value(path, STR("1")).s, STR("1"));
}

static bool logs(const settings *s, int trained_ctx, const char *part)
{
    test_listen_begin(false);
    settings_log(s, "nano", trained_ctx);
    return strstr(test_listen_end(), part) != NULL;
}

/* The log has words as they are typed, says what the environment holds, and warns of a context beyond the trained one. */
TEST(settings_are_logged)
{
    settings s;
    char     text[256] = "";
    settings_init(&s);
    CHECK(logs(&s, 0, "nano: dflash_enabled=true dflash_max_concurrent=auto"));
    CHECK(logs(&s, 0, " kv_cap=0.9 max_mask_ms=10000") && !logs(&s, 0, "(environment)"));
    settings_note(&s, setting_find(STR("dflash_max_ctx")), SETTING_FROM_ENVIRONMENT);
    CHECK(logs(&s, 0, " dflash_max_ctx=none (environment) dflash_draft_window=none dflash_draft_model=\"\" "));
    CHECK(!settings_warning(&s, 4096, text, sizeof text)); /* no limit of its own: the drafter's is meant */
    static const struct {
        int64_t ctx;
        int     trained;
        bool    warns;
    } k[] = {{4096, 4096, false}, {4097, 4096, true}, {1 << 20, 0, false}, {2, 1, true}, {0, 4096, false}};
    for (size_t i = 0; i < COUNT(k); i++) {
        s.dflash_max_ctx = k[i].ctx;
        CHECK_INT(settings_warning(&s, k[i].trained, text, sizeof text), k[i].warns);
        CHECK_INT(logs(&s, k[i].trained, "the drafter was trained on"), k[i].warns);
    }
    s.dflash_max_ctx = 5000;
    CHECK(settings_warning(&s, 4096, text, sizeof text) && strstr(text, "dflash_max_ctx is 5000") &&
          strstr(text, "trained on 4096 tokens"));
}

/* --- changes ------------------------------------------------------------------------------------- */
static bool change(settings *s, const settings_owner *of, const char *text, uint64_t *names, err *e)
{
    arena a;
    arena_init(&a, 1 << 20);
    bool ok = settings_change(s, of, parse(&a, text), names, e);
    arena_deinit(&a);
    return ok;
}

/* Without a file a value must be live or carried to the next load, and not the environment's. */
TEST(settings_change_without_a_file)
{
    settings_owner of = {.model = "nano", .device = "cpu"};
    settings       s, before;
    uint64_t       names = 0, cap = settings_bit(setting_find(STR("kv_cap"))),
             most = settings_bit(setting_find(STR("queue_max"))),
             ctx  = settings_bit(setting_find(STR("dflash_max_ctx")));
    err  e        = {0};
    char name[200], text[300];
    settings_init(&s);
    put_source(&s, most | cap, SETTING_FROM_OPTIONS);
    CHECK_OK(change(&s, &of, "{\"queue_max\": 5}", &names, &e), e);
    CHECK(names == most && s.queue_max == 5 && with_source(&s, SETTING_FROM_OPTIONS) == cap && s.changed == most &&
          !s.pending && with_source(&s, SETTING_FROM_API) == most);
    CHECK_FAILS(change(&s, &of, "{\"kv_cap\": 0.5}", &names, &e), e,
                "kv_cap takes effect when the model is next opened, and there is no settings file");
    of.carried = true;
    CHECK_OK(change(&s, &of, "{\"kv_cap\": 0.5, \"queue_max\": null}", &names, &e), e);
    CHECK(names == (cap | most) && s.kv_cap == 0.5 && s.queue_max == 256 && !with_source(&s, SETTING_FROM_OPTIONS));
    CHECK(s.changed == (cap | most) && s.pending == cap && with_source(&s, SETTING_FROM_API) == (cap | most));
    put_source(&s, ctx, SETTING_FROM_ENVIRONMENT);
    before = s;
    CHECK_FAILS(change(&s, &of, "{\"queue_max\": 6, \"dflash_max_ctx\": 1}", &names, &e), e,
                "dflash_max_ctx is set by the environment, and there is no settings file");
    CHECK_FAILS(change(&s, &of, "7", &names, &e), e, "an object of names and values");
    CHECK_FAILS(change(&s, &of, "{\"dflash_draft_quant_weight_bits\": 5}", &names, &e), e, "4 (q4_0) or 8 (q8_0)");
    CHECK_FAILS(change(&s, &of, "{\"dflash_draft_quant_activation_bits\": 16}", &names, &e), e, "cpu computes with 8");
    memset(name, 'n', sizeof name);
    snprintf(text, sizeof text, "{\"%.81s\": 1}", name);
    CHECK_FAILS(change(&s, &of, text, &names, &e), e, "there is no setting 'nnn");
    CHECK_INT(strlen(strchr(e.text, '\'')), 82); /* 80 bytes of it between quotes */
    snprintf(text, sizeof text, "{\"%.79s\": 1}", name);
    CHECK_FAILS(change(&s, &of, text, &names, &e), e, "there is no setting 'nnn");
    CHECK_INT(strlen(strchr(e.text, '\'')), 81);
    CHECK(!settings_differ(&s, &before) && names == (cap | most)); /* all or nothing */
    CHECK_OK(change(&s, &of, "{\"queue_max\": 7}", NULL, &e), e);
    CHECK_INT(s.queue_max, 7);
}

/* With a file the environment's value stays, and the file has the new one, which must be a good one. */
TEST(settings_change_with_a_file)
{
    settings_owner      of  = {.model = "nano", .device = "cpu"};
    const setting_info *ctx = setting_find(STR("dflash_max_ctx"));
    char                path[600];
    settings            s, again;
    uint64_t            names = 0;
    err                 e     = {0};
    snprintf(path, sizeof path, "%s", test_tmp_file("changed.json", "{\"x\":[1],\"models\":{},\"y\":2}\n", 28));
    CHECK_OK(settings_file_open(&of.file, path, &e), e);
    settings_init(&s);
    settings_note(&s, ctx, SETTING_FROM_ENVIRONMENT);
    s.dflash_max_ctx = 100;
    CHECK_OK(change(&s, &of, "{\"dflash_max_ctx\": 7, \"kv_cap\": 0.5}", &names, &e), e);
    CHECK(s.dflash_max_ctx == 100 && s.kv_cap == 0.5 && names == (settings_bit(ctx) | s.pending));
    CHECK(with_source(&s, SETTING_FROM_FILE) == s.pending && s.changed == s.pending &&
          s.pending == settings_bit(setting_find(STR("kv_cap"))));
    CHECK_FAILS(change(&s, &of, "{\"dflash_max_ctx\": -7}", &names, &e), e, "dflash_max_ctx is -7");
    CHECK_OK(settings_file_get(of.file, STR("nano"), &again, &e), e);
    CHECK(again.dflash_max_ctx == 7 && again.kv_cap == 0.5 && with_source(&again, SETTING_FROM_FILE) == names);
    CHECK_OK(change(&s, &of, "{\"dflash_max_ctx\": null}", &names, &e), e);
    CHECK(names == settings_bit(ctx) && with_source(&s, SETTING_FROM_FILE) == s.pending && s.dflash_max_ctx == 100);
    settings_file_close(of.file);
    char text[200];
    file_text(path, text, sizeof text);
    CHECK_STR(str_of(text), STR("{\"x\":[1],\"y\":2,\"models\":{\"nano\":{\"kv_cap\":0.5}}}\n"));
}

/* --- the environment ----------------------------------------------------------------------------- */
static bool with_variable(settings *s, const char *name, const char *value, err *e)
{
    settings_init(s);
    setenv(name, value, 1);
    bool ok = settings_take_environment(s, e);
    unsetenv(name);
    return ok;
}

TEST(settings_environment)
{
    settings s;
    err      e       = {0};
    int      unknown = 0;
    CHECK_OK(with_variable(&s, "DFLASH_MAX_CTX", "8192", &e), e);
    CHECK_INT(s.dflash_max_ctx, 8192);
    CHECK_OK(set_json(&s, "{\"dflash_max_ctx\": 100, \"queue_max\": 3}", &unknown, &e), e); /* it stays */
    CHECK_INT(s.dflash_max_ctx, 8192);
    CHECK_INT(s.queue_max, 3);
    CHECK_OK(with_variable(&s, "DFLASH_MAX_CTX", "0", &e), e);
    CHECK_INT(s.dflash_max_ctx, 0);
    CHECK_OK(with_variable(&s, "DFLASH_MAX_CTX", "none", &e), e);
    CHECK_INT(s.dflash_max_ctx, SETTING_UNLIMITED);
    static const char *const bad[] = {"", " 4096", "4096 ", "4k", "-1", "1e3", "0x10", "99999999999999999999", "auto"};
    for (size_t i = 0; i < COUNT(bad); i++)
        CHECK_FAILS(with_variable(&s, "DFLASH_MAX_CTX", bad[i], &e), e, "DFLASH_MAX_CTX");
    CHECK_OK(with_variable(&s, "DFLASH_METRIC_MAX_SIZE", "1000", &e), e);
    CHECK_INT(s.routing_log_max_bytes, 1000);
    CHECK_FAILS(with_variable(&s, "DFLASH_METRIC_MAX_SIZE", "1 MB", &e), e, "DFLASH_METRIC_MAX_SIZE");
    CHECK_OK(with_variable(&s, "DFLASH_METRIC_DISABLE", "1", &e), e);
    CHECK(!s.routing_log);
    CHECK_OK(set_json(&s, "{\"routing_log\": true}", &unknown, &e), e);
    CHECK(!s.routing_log);
    CHECK_OK(with_variable(&s, "DFLASH_METRIC_DISABLE", "0", &e), e);
    CHECK(s.routing_log);
    CHECK_FAILS(with_variable(&s, "DFLASH_METRIC_DISABLE", "maybe", &e), e, "DFLASH_METRIC_DISABLE");
}

/* --- the file ------------------------------------------------------------------------------------ */
static bool put(settings_file *f, const char *model, const char *text, err *e)
{
    arena a;
    arena_init(&a, 1 << 20);
    bool ok = settings_file_put(f, str_of(model), parse(&a, text), e);
    arena_deinit(&a);
    return ok;
}

static int files_in(const char *dir)
{
    DIR *d = opendir(dir);
    int  n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n - 2;
}

TEST(settings_file_that_says_nothing_of_a_model)
{
    static const char text[] = "{\"models\":{\"a\":{\"queue_max\":5}}}";
    char              of_a[600];
    const char       *path[]  = {of_a, "/nowhere/settings.json"};
    const char       *words[] = {"of_a.json has no entry for 'b'", "/nowhere/settings.json does not exist"};
    settings_file    *f;
    settings          s;
    err               e = {0};
    snprintf(of_a, sizeof of_a, "%s", test_tmp_file("of_a.json", text, strlen(text)));
    for (size_t i = 0; i < COUNT(path); i++) {
        test_listen_begin(false);
        CHECK_OK(settings_file_open(&f, path[i], &e), e);
        CHECK_OK(settings_file_get(f, STR("b"), &s, &e), e);
        const char *said = test_listen_end();
        CHECK_MSG(strstr(said, words[i]), "'%s' does not say '%s'", said, words[i]);
        settings_file_close(f);
    }
    test_listen_begin(false);
    CHECK_OK(settings_file_open(&f, path[0], &e), e);
    CHECK_OK(settings_file_get(f, STR("a"), &s, &e), e);
    CHECK(!strstr(test_listen_end(), "nothing"));
    settings_file_close(f);
}

TEST(settings_file_keeps_and_replaces)
{
    char           dir[512], path[600], text[2000];
    settings_file *f;
    settings       s;
    err            e = {0};
    snprintf(dir, sizeof dir, "%s/settings", test_tmp_dir());
    mkdir(dir, 0777);
    snprintf(path, sizeof path, "%s/settings.json", dir);
    CHECK_OK(settings_file_open(&f, path, &e), e);
    CHECK_OK(settings_file_get(f, STR("a"), &s, &e), e);
    CHECK_INT(s.dflash_max_concurrent, SETTING_UNLIMITED);
    CHECK_INT(files_in(dir), 0); /* asking writes nothing */
    CHECK_OK(put(f, "a", "{\"dflash_max_concurrent\": 4, \"from_the_future\": {\"x\": [1, 2.5, null]}}", &e), e);
    CHECK_OK(put(f, "b", "{\"dflash_max_ctx\": 0}", &e), e);
    CHECK_OK(put(f, "a", "{\"dflash_enabled\": false}", &e), e);
    settings_file_close(f);
    CHECK_INT(files_in(dir), 1);
    file_text(path, text, sizeof text);
    CHECK_STR(str_of(text), STR("{\"models\":{\"b\":{\"dflash_max_ctx\":0},\"a\":{\"dflash_max_concurrent\":4,"
                                "\"from_the_future\":{\"x\":[1,2.5,null]},\"dflash_enabled\":false}}}\n"));
    CHECK_OK(settings_file_open(&f, path, &e), e);
    CHECK_OK(settings_file_get(f, STR("a"), &s, &e), e);
    CHECK(s.dflash_max_concurrent == 4 && !s.dflash_enabled);
    CHECK_OK(settings_file_get(f, STR("b"), &s, &e), e);
    CHECK(s.dflash_max_ctx == 0 && s.dflash_enabled);
    CHECK_OK(put(f, "a", "{\"dflash_max_concurrent\": null}", &e), e); /* back to the default */
    CHECK_OK(settings_file_get(f, STR("a"), &s, &e), e);
    CHECK_INT(s.dflash_max_concurrent, SETTING_UNLIMITED);
    CHECK_FAILS(put(f, "a", "{\"dflash_max_ctx\": 7, \"queue_max\": -1}", &e), e, "settings of 'a': queue_max is -1");
    CHECK_OK(settings_file_get(f, STR("a"), &s, &e), e);
    CHECK_INT(s.dflash_max_ctx, SETTING_UNLIMITED);
    settings_file_close(f);
}

/* A broken file is an error that says where, and stays as it is. */
TEST(settings_file_broken)
{
    static const struct {
        const char *text, *part;
    } k[] = {{"{\"models\":\n {\"a\": {\"dflash_enabled\": tru}}}", "line 2"},
             {"{\"models\": {\"a\": {}}", "line 1"},
             {"", "line 1"},
             {"[]", "not a JSON object"},
             {"{\"models\": 3}", "\"models\""},
             {"{\"models\": {\"a\": 3}}", "settings of 'a'"},
             {"{\"models\": {\"a\": {\"kv_cap\": 0}}}", "kv_cap is 0"},
             {"{\"models\": {\"a\": {}, \"a\": {}}}", "line 1"}};
    for (size_t i = 0; i < COUNT(k); i++) {
        settings_file *f;
        err            e    = {0};
        const char    *path = test_tmp_file("broken.json", k[i].text, strlen(k[i].text));
        char           text[200];
        CHECK_FAILS(settings_file_open(&f, path, &e), e, k[i].part);
        CHECK_MSG(!f && strstr(e.text, "broken.json"), "%s", e.text);
        file_text(path, text, sizeof text);
        CHECK_STR(str_of(text), str_of(k[i].text));
    }
}

/* --- several at one file -------------------------------------------------------------------------- */
static const char *fresh_path(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", test_tmp_dir(), name);
    unlink(path);
    return path;
}

static int64_t queue_max_of(test_case *t, const settings_file *f, const char *model)
{
    settings s;
    err      e = {0};
    return CHECK_OK(settings_file_get(f, str_of(model), &s, &e), e) ? s.queue_max : -1;
}

TEST(settings_file_of_two_handles)
{
    const char    *path = fresh_path("shared.json");
    char           text[500];
    settings_file *one, *other;
    err            e = {0};
    CHECK_OK(settings_file_open(&one, path, &e), e);
    CHECK_OK(settings_file_open(&other, path, &e), e);
    CHECK_OK(put(one, "a", "{\"queue_max\": 1}", &e), e);
    CHECK_OK(put(other, "b", "{\"queue_max\": 2}", &e), e);
    CHECK_INT(queue_max_of(t, other, "a"), 1);
    CHECK_OK(put(one, "b", "{\"max_stall_ms\": 3}", &e), e);
    CHECK_OK(put(other, "a", "{\"queue_max\": null}", &e), e);
    CHECK_INT(queue_max_of(t, other, "a"), 256);
    file_text(path, text, sizeof text);
    CHECK_STR(str_of(text), STR("{\"models\":{\"b\":{\"queue_max\":2,\"max_stall_ms\":3},\"a\":{}}}\n"));
    settings_file_close(one);
    settings_file_close(other);
}

enum { WRITERS = 2, WRITES = 40 };

static bool write_many(const char *path, int who)
{
    settings_file *f;
    err            e  = {0};
    bool           ok = settings_file_open(&f, path, &e);
    for (int i = 0; ok && i < WRITES; i++) {
        char model[20], member[40];
        snprintf(model, sizeof model, "%d of %d", i, who);
        snprintf(member, sizeof member, "{\"queue_max\": %d}", i);
        ok = put(f, model, member, &e);
    }
    if (!ok) fprintf(stderr, "%s\n", e.text);
    settings_file_close(f);
    return ok;
}

TEST(settings_file_of_two_programs)
{
    const char    *path = fresh_path("programs.json");
    settings_file *f;
    err            e = {0};
    pid_t          pid[WRITERS];
    int            status;
    for (int who = 0; who < WRITERS; who++) {
        pid[who] = fork();
        if (pid[who] == 0) _exit(!write_many(path, who));
    }
    for (int who = 0; who < WRITERS; who++) CHECK(waitpid(pid[who], &status, 0) == pid[who] && status == 0);
    if (!CHECK_OK(settings_file_open(&f, path, &e), e)) return;
    for (int i = 0; i < WRITERS * WRITES; i++) {
        char model[20];
        snprintf(model, sizeof model, "%d of %d", i / WRITERS, i % WRITERS);
        CHECK_INT(queue_max_of(t, f, model), i / WRITERS);
    }
    settings_file_close(f);
}

/* As by a hand that saved half of it. */
TEST(settings_file_that_becomes_broken)
{
    static const char half[] = "{\"models\": {\"b\": ";
    char              path[600], text[200];
    settings_file    *f;
    err               e = {0};
    snprintf(path, sizeof path, "%s", test_tmp_file("torn.json", "{}", 2));
    CHECK_OK(settings_file_open(&f, path, &e), e);
    test_tmp_file("torn.json", half, sizeof half - 1);
    CHECK_FAILS(put(f, "a", "{\"queue_max\": 1}", &e), e, "line 1");
    CHECK_INT(e.code, ERR_FORMAT);
    CHECK_MSG(strstr(e.text, "torn.json"), "%s", e.text);
    file_text(path, text, sizeof text);
    CHECK_STR(str_of(text), str_of(half));
    CHECK_INT(queue_max_of(t, f, "a"), 256);
    test_tmp_file("torn.json", "{\"models\":{\"b\":{}}}", 19);
    CHECK_OK(put(f, "a", "{\"queue_max\": 1}", &e), e);
    file_text(path, text, sizeof text);
    CHECK_STR(str_of(text), STR("{\"models\":{\"b\":{},\"a\":{\"queue_max\":1}}}\n"));
    settings_file_close(f);
}

TEST(settings_file_whose_directory_is_locked)
{
    const char    *path = fresh_path("locked.json");
    settings_file *f;
    err            e  = {0};
    int            fd = open(test_tmp_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(flock(fd, LOCK_EX) == 0);
    CHECK_OK(settings_file_open(&f, path, &e), e);
    CHECK_FAILS(put(f, "a", "{\"queue_max\": 1}", &e), e, "another program has locked its directory");
    CHECK_INT(e.code, ERR_BUSY);
    close(fd);
    CHECK_OK(put(f, "a", "{\"queue_max\": 1}", &e), e);
    settings_file_close(f);
}

TEST(settings_file_that_cannot_be_written)
{
    settings_file *f;
    settings       s;
    err            e = {0};
    CHECK_OK(settings_file_open(&f, "/proc/no-such-place/settings.json", &e), e);
    CHECK_FAILS(put(f, "a", "{\"queue_max\": 1}", &e), e, "cannot write");
    CHECK_OK(settings_file_get(f, STR("a"), &s, &e), e);
    CHECK_INT(s.queue_max, 256); /* what is not on the disk is not so */
    settings_file_close(f);
}

TEST(settings_file_without_memory)
{
    static const char text[] = "{\"models\": {\"a\": {\"queue_max\": 5, \"x\\u0041\": \"\\u0042\"}}}";
    char              path[600];
    long              n = 1;
    arena             a;
    arena_init(&a, 1 << 20);
    const json_value *change = parse(&a, "{\"queue_max\": 6}");
    snprintf(path, sizeof path, "%s", test_tmp_file("starved.json", text, sizeof text - 1));
    for (bool more = true; more; n++) {
        settings_file *f = NULL;
        settings       s;
        err            e = {0};
        fault_fail_nth(n);
        if (settings_file_open(&f, path, &e) && !settings_file_put(f, STR("a"), change, &e)) CHECK(e.text[0]);
        more = fault_tries() >= n;
        fault_fail_nth(0);
        if (f && settings_file_get(f, STR("a"), &s, &e)) CHECK(s.queue_max == 5 || s.queue_max == 6);
        settings_file_close(f);
    }
    arena_deinit(&a);
    CHECK_MSG(n > 5, "%ld allocations", n - 2);
}

TEST(settings_file_paths)
{
    static char       path[5000];
    static const char text[] = "{\"models\":{\"a\":{\"hat\":1,\"queue_max\":2}}}";
    char              real[600], link[600], back[200], here[600];
    settings_file    *f;
    err               e = {0};
    memset(path, 'x', sizeof path - 1);
    CHECK_FAILS(settings_file_open(&f, path, &e), e, "path is too long");
    CHECK(!f);
    snprintf(real, sizeof real, "%s", test_tmp_file("real.json", text, sizeof text - 1));
    snprintf(link, sizeof link, "%s/link.json", test_tmp_dir());
    unlink(link);
    CHECK(symlink(real, link) == 0);
    test_listen_begin(false);
    CHECK_OK(settings_file_open(&f, link, &e), e);
    const char *said = test_listen_end();
    CHECK_MSG(strstr(said, "'hat' of 'a' is unknown") && !strstr(said, "'queue_max'"), "%s", said);
    CHECK_FAILS(put(f, "a", "[1]", &e), e, "an object of names and values");
    CHECK_OK(put(f, "a", "{\"queue_max\": 3}", &e), e);
    settings_file_close(f);
    file_text(real, back, sizeof back);
    CHECK_STR(str_of(back), STR("{\"models\":{\"a\":{\"hat\":1,\"queue_max\":3}}}\n"));
    CHECK(getcwd(here, sizeof here) && chdir(test_tmp_dir()) == 0); /* a name without a directory */
    CHECK_OK(settings_file_open(&f, "real.json", &e), e);
    CHECK_OK(put(f, "a", "{\"queue_max\": 4}", &e), e);
    CHECK_INT(queue_max_of(t, f, "a"), 4);
    settings_file_close(f);
    unlink("fresh.json"); /* nor is it there yet */
    CHECK_OK(settings_file_open(&f, "fresh.json", &e), e);
    CHECK_OK(put(f, "a", "{\"queue_max\": 5}", &e), e);
    settings_file_close(f);
    file_text("fresh.json", back, sizeof back);
    CHECK_STR(str_of(back), STR("{\"models\":{\"a\":{\"queue_max\":5}}}\n"));
    CHECK(chdir(here) == 0);
}

TEST(settings_file_has_a_size)
{
    enum { LARGE = 3 << 20 };
    char          *text = malloc(LARGE + 100);
    settings_file *f;
    settings       s;
    err            e = {0};
    int            n = snprintf(text, 100, "{\"models\":{\"a\":{\"x\":\"");
    memset(text + n, 'x', LARGE);
    snprintf(text + n + LARGE, 10, "\"}}}");
    char path[600];
    snprintf(path, sizeof path, "%s", test_tmp_file("large.json", text, strlen(text)));
    CHECK_OK(settings_file_open(&f, path, &e), e);
    snprintf(text, 100, "{\"y\":\"");
    memset(text + 6, 'y', LARGE);
    snprintf(text + 6 + LARGE, 10, "\"}");
    json_member m = {.key = STR("y"), .value = {.kind = JSON_STRING, .s = {text, LARGE}}};
    CHECK_FAILS(settings_file_put(f, STR("a"), &(json_value){.kind = JSON_OBJECT, .n = 1, .member = &m}, &e), e,
                "it would have more than 4194304 bytes");
    CHECK_OK(put(f, "a", "{\"x\": null, \"queue_max\": 3}", &e), e);
    CHECK_OK(settings_file_get(f, STR("a"), &s, &e), e);
    CHECK_INT(s.queue_max, 3);
    settings_file_close(f);
    free(text);
}
