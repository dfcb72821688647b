/* The model and its drafters: one name and one path, alike wherever they are reported; settings while it is parked. */
#include "server_rig.h"

#include "../sched/engine_rig.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char settings_path[] = "/api/models/nano/settings";

static void copy_file(char to[600], const char *from, const char *name)
{
    file_map m = {0};
    if (file_map_open(&m, from, NULL)) snprintf(to, 600, "%s", test_tmp_file(name, m.p, m.n));
    file_map_close(&m);
}

/* --- reports --------------------------------------------------------------------------------------*/
static bool has_line(const char *text, const char *const *part, size_t n)
{
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *end = strchr(line, '\n');
        size_t      len = end ? (size_t)(end - line) : strlen(line), found = 0;
        for (size_t i = 0; i < n; i++) found += memmem(line, len, part[i], strlen(part[i])) != NULL;
        if (found == n) return true;
    }
    return false;
}

TEST(server_reports_of_the_model_and_its_drafters_agree)
{
    static const char *const drafter_names[] = {"first", "second"};
    server_rig               r;
    rig_reply                models, props, numbers;
    tandem_drafter           list[2];
    char                     said[65536];
    rig_init(&r, t);
    memcpy(list, r.engine_opt.drafters, sizeof list);
    for (int i = 0; i < 2; i++) list[i].name = drafter_names[i];
    list[1].shown             = "inside";
    r.engine_opt.drafters     = list;
    r.engine_opt.fingerprints = true;
    test_listen_begin(false);
    rig_start(&r);
    snprintf(said, sizeof said, "%s", test_listen_end());
    const json_value *v = rig_ask_json(&r, "GET", "/api/models", "", &models, 200);
    const json_value *p = rig_ask_json(&r, "GET", "/props", "", &props, 200);
    rig_ask_json(&r, "GET", "/metrics", "", &numbers, 200);
    CHECK_STR(rig_str(p, "model_alias"), STR("nano"));
    CHECK_STR(rig_str(p, "model_path"), str_of(r.engine_opt.path));
    CHECK_STR(rig_str(v, "data.0.path"), str_of(r.engine_opt.path));
    CHECK_STR(rig_str(v, "data.1.path"), str_of(list[0].path));
    CHECK_STR(rig_str(v, "data.2.path"), STR("inside"));
    CHECK_STR(rig_str(v, "data.2.id"), STR("second"));
    CHECK_INT(rig_at(p, "models")->n, 3);
    CHECK_INT(rig_at(p, "files")->n, 3);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"id", "role", "path", "family", "fingerprint", "state"};
        char                     label[COUNT(names)][400], at[64];
        const char              *part[COUNT(names)];
        for (size_t k = 0; k < COUNT(names); k++) {
            snprintf(at, sizeof at, "data.%d.%s", i, names[k]);
            str s = rig_str(v, at);
            CHECK(s.n > 0);
            snprintf(at, sizeof at, "models.%d.%s", i, names[k]);
            CHECK_STR(rig_str(p, at), s);
            snprintf(label[k], sizeof label[k], "%s=\"%.*s\"", names[k], STR_ARG(s));
            part[k] = label[k];
        }
        CHECK_MSG(has_line(numbers.body.p, part, COUNT(part) - 1), "no line for %s in /metrics", part[0]);
        for (size_t k = 0; k < COUNT(names); k++) {
            snprintf(at, sizeof at, "data.%d.%s", i, names[k]);
            snprintf(label[k], sizeof label[k], "%s=%.*s", names[k], STR_ARG(rig_str(v, at)));
        }
        CHECK_MSG(has_line(said, part, COUNT(part)), "no line for %s in the log: %s", part[0], said);
    }
    rig_reply_deinit(&models);
    rig_reply_deinit(&props);
    rig_reply_deinit(&numbers);
    rig_stop(&r);
}

TEST(server_shows_a_drafter_that_failed_at_start_and_tries_it_again)
{
    server_rig        r;
    rig_reply         a;
    char              dflash[600], away[700];
    const json_value *v;
    rig_init(&r, t);
    copy_file(dflash, r.engine_opt.drafters[0].path, "served-dflash.gguf");
    snprintf(away, sizeof away, "%s.away", dflash);
    CHECK(rename(dflash, away) == 0);
    r.engine_opt.n_drafters   = 0;
    r.engine_opt.fingerprints = true;
    nano_setting(&r.engine_opt, "dflash_draft_model", dflash);
    rig_start(&r);
    v = rig_ask_json(&r, "GET", "/api/models/dflash", "", &a, 200);
    CHECK_STR(rig_str(v, "state"), STR("failed"));
    CHECK_STR(rig_str(v, "path"), str_of(dflash));
    CHECK_STR(rig_str(v, "id"), STR("served-dflash.gguf"));
    CHECK(rig_str(v, "error").n > 0);
    rig_reply_deinit(&a);
    rig_expect(&r, "POST", "/api/models/dflash/unpark", "", 503, "error.code", "load_failed");
    v = rig_ask_json(&r, "GET", "/props", "", &a, 200);
    CHECK_INT(rig_at(v, "files")->n, 1);
    CHECK_STR(rig_str(v, "models.1.state"), STR("failed"));
    CHECK(!rig_at(v, "engine.dflash")->b);
    rig_reply_deinit(&a);
    CHECK(rename(away, dflash) == 0);
    rig_expect(&r, "POST", "/api/models/served-dflash.gguf/unpark", "", 200, "state", "loaded");
    v = rig_ask_json(&r, "GET", "/props", "", &a, 200);
    CHECK_INT(rig_at(v, "files")->n, 2);
    CHECK_STR(rig_str(v, "files.1.role"), STR("drafter"));
    CHECK_STR(rig_str(v, "files.1.name"), STR("served-dflash.gguf"));
    CHECK(rig_at(v, "engine.dflash")->b);
    CHECK(str_starts(rig_str(v, "models.1.fingerprint"), "sha256:"));
    rig_reply_deinit(&a);
    rig_post(&r, "/v1/completions",
             "{\"prompt\":\"Once\",\"max_tokens\":16,\"ignore_eos\":true,\"speculative\":\"dflash\"}", &a);
    CHECK(rig_int(rig_json(&a), "timings.draft_n") > 0);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* --- settings while it is parked ------------------------------------------------------------------*/
static int64_t setting(const server_rig *r, const char *name)
{
    rig_reply a;
    char      at[80];
    rig_ask(r, "GET", settings_path, "", "", &a);
    snprintf(at, sizeof at, "settings.%s.value", name);
    int64_t n = rig_int(rig_json(&a), at);
    rig_reply_deinit(&a);
    return n;
}

static void change_while_parked(test_case *t, const char *file)
{
    server_rig        r;
    rig_reply         a;
    const json_value *v;
    char              dflash[600], body[800];
    rig_init(&r, t);
    copy_file(dflash, r.engine_opt.drafters[0].path, "parked-dflash.gguf");
    r.engine_opt.settings_path = r.opt.settings_path = file;
    r.engine_opt.name                                = "nano";
    nano_setting(&r.engine_opt, "queue_max", "7");
    nano_setting(&r.engine_opt, "kv_cap", "0.8");
    rig_start(&r);
    rig_expect(&r, "POST", "/api/models/nano/park", "", 200, "state", "parked");
    rig_expect(&r, "PUT", settings_path, "{\"queue_max\":9,\"kv_cap\":7}", 400, "error.param", "kv_cap");
    rig_expect(&r, "PUT", settings_path, "{\"queue_max\":9,\"dflash_draft_quant_activation_bits\":16}", 400,
               "error.param", "dflash_draft_quant_activation_bits");
    CHECK_INT(setting(&r, "queue_max"), 7); /* all or nothing */
    snprintf(body, sizeof body, "{\"queue_max\":9,\"kv_cap\":0.5,\"dflash_draft_model\":\"%s\"}", dflash);
    v = rig_ask_json(&r, "PUT", settings_path, body, &a, 200);
    CHECK_INT(rig_int(v, "settings.queue_max.value"), 9);
    CHECK_STR(rig_str(v, "settings.queue_max.source"), file ? STR("file") : STR("api"));
    CHECK(rig_at(v, "settings.kv_cap.pending")->b);
    rig_reply_deinit(&a);
    rig_expect(&r, "PUT", settings_path, "{\"max_stall_ms\":33}", 200, "model", "nano"); /* the others stay */
    rig_expect(&r, "POST", "/api/models/nano/unpark", "", 200, "state", "loaded");
    CHECK_INT(setting(&r, "queue_max"), 9);
    CHECK_INT(setting(&r, "max_stall_ms"), 33);
    v = rig_ask_json(&r, "GET", settings_path, "", &a, 200);
    CHECK_NEAR(rig_at(v, "settings.kv_cap.value")->d, 0.5, 1e-9);
    CHECK(!rig_at(v, "settings.kv_cap.pending")->b);
    rig_reply_deinit(&a);
    rig_expect(&r, "GET", "/api/models/dflash", "", 200, "path", dflash);
    /* Changed while it is loaded, it is pending until the next load, over the option. */
    v = rig_ask_json(&r, "PUT", settings_path, "{\"kv_cap\":0.25}", &a, 200);
    CHECK(rig_at(v, "settings.kv_cap.pending")->b);
    rig_reply_deinit(&a);
    for (int i = 0; i < 2; i++)
        rig_expect(&r, "POST", i ? "/api/models/nano/unpark" : "/api/models/nano/park", "", 200, "id", "nano");
    v = rig_ask_json(&r, "GET", settings_path, "", &a, 200);
    CHECK_NEAR(rig_at(v, "settings.kv_cap.value")->d, 0.25, 1e-9);
    CHECK(!rig_at(v, "settings.kv_cap.pending")->b);
    CHECK_INT(rig_int(v, "settings.queue_max.value"), 9);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

TEST(server_settings_change_while_the_model_is_parked)
{
    static const char text[] = "{\"models\":{\"nano\":{\"max_stall_ms\":44}}}";
    char              file[600];
    change_while_parked(t, NULL);
    snprintf(file, sizeof file, "%s", test_tmp_file("parked.json", text, strlen(text)));
    change_while_parked(t, file);
    file_map m = {0};
    CHECK(file_map_open(&m, file, NULL) && memmem(m.p, m.n, "\"kv_cap\":0.25", 13));
    file_map_close(&m);
}

TEST(server_settings_tell_bounds_and_the_trained_length)
{
    server_rig        r;
    rig_reply         a;
    const json_value *v;
    rig_init(&r, t);
    rig_start(&r);
    v           = rig_ask_json(&r, "GET", "/api/models/dflash", "", &a, 200);
    int trained = (int)rig_int(v, "context");
    CHECK(trained > 0);
    rig_reply_deinit(&a);
    v = rig_ask_json(&r, "GET", settings_path, "", &a, 200);
    for (int i = 0; i < n_settings; i++) {
        const setting_info *info = &setting_table[i];
        const json_value   *x    = rig_at(rig_at(v, "settings"), info->name);
        bool number = info->kind == SETTING_INT || info->kind == SETTING_REAL, text = info->kind == SETTING_TEXT;
        CHECK_MSG(x && json_get(x, "default") && json_get(x, "help"), "%s", info->name);
        CHECK_MSG(!json_get(x, "min") == !number && !json_get(x, "max") == !number, "%s", info->name);
        CHECK_MSG(!json_get(x, "max_length") == !text, "%s", info->name);
    }
    CHECK_INT(rig_int(v, "settings.dflash_max_ctx.trained_length"), trained);
    CHECK_INT(rig_at(v, "warnings")->n, 0);
    rig_reply_deinit(&a);
    for (int over = 0; over < 2; over++) {
        char body[64];
        snprintf(body, sizeof body, "{\"dflash_max_ctx\":%d}", trained + over);
        test_listen_begin(false);
        v                = rig_ask_json(&r, "PUT", settings_path, body, &a, 200);
        const char *said = test_listen_end();
        CHECK_INT(rig_at(v, "warnings")->n, over);
        CHECK(!strstr(said, "the drafter was trained on") == !over);
        if (over) CHECK(memmem(rig_str(v, "warnings.0").s, rig_str(v, "warnings.0").n, "trained on", 10));
        rig_reply_deinit(&a);
    }
    rig_stop(&r);
}
