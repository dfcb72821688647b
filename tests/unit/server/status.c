#include "server/status.h"

#include "base/file.h"
#include "base/sha256.h"
#include "server/files_inside.h"
#include "test.h"

#include <time.h>

static status_view healthy(void)
{
    return (status_view){.info      = {.name       = "nano",
                                       .family     = "gemma4",
                                       .device     = "cpu",
                                       .kv_type    = "f16",
                                       .kv_sliding = "f16",
                                       .kv_draft   = "f16",
                                       .n_ctx      = 256,
                                       .n_vocab    = 1024,
                                       .max_lanes  = 4,
                                       .has_mtp    = true},
                         .queue_max = 2,
                         .created   = 1700000000,
                         .defaults  = {.temp = 1, .top_p = 0.95f, .top_k = 64, .spec = {.method = TANDEM_SPEC_AUTO}},
                         .settings  = "{\"queue_max\":2}"};
}

static arena mem;
static buf   body;

/* The body as a tree, until the next one. */
static const json_value *tree(test_case *t)
{
    const json_value *v = NULL;
    err               e = {0};
    CHECK(!body.failed);
    CHECK_OK(json_parse(&v, &mem, buf_str(&body), NULL, &e), e);
    return v;
}

static void begin(void)
{
    arena_init(&mem, 1 << 20);
    buf_init(&body, 1 << 20);
}
static void end(void)
{
    arena_deinit(&mem);
    buf_deinit(&body);
}

static const char *text(const json_value *v, const char *key)
{
    const json_value *x = json_get(v, key);
    static char       out[256];
    snprintf(out, sizeof out, "%.*s", x ? (int)x->s.n : 0, x && x->s.n ? x->s.s : "");
    return out;
}

/* code: of the 503; NULL: all is well. */
static void check_one(test_case *t, bool ok, const server_error *why, const char *body_if_ok, const char *code)
{
    CHECK(ok == !code);
    if (ok)
        CHECK_STR(buf_str(&body), str_of(body_if_ok));
    else
        CHECK(why->status == 503 && code && strcmp(why->code, code) == 0);
    buf_clear(&body);
}

static void check_state(test_case *t, const status_view *v, const char *health, const char *ready)
{
    server_error why = {0};
    check_one(t, status_health(v, &body, &why), &why, "{\"status\":\"ok\"}", health);
    check_one(t, status_ready(v, &body, &why), &why, "{\"status\":\"ready\"}", ready);
}

TEST(server_status_health_and_ready)
{
    status_view v = healthy();
    begin();
    check_state(t, &v, NULL, NULL);
    v.stats = (tandem_stats){.running = 4, .queued = 1};
    check_state(t, &v, NULL, NULL);
    v.stats.queued = 2;
    check_state(t, &v, NULL, "queue_full");
    v.stats = (tandem_stats){0};
    v.stuck = true;
    check_state(t, &v, NULL, "worker_stuck");
    v.hangs = true;
    check_state(t, &v, "engine_hangs", "engine_hangs");
    v.drained = true;
    check_state(t, &v, "draining", "draining");
    v.draining = true;
    check_state(t, &v, "unavailable", "unavailable");
    check_state(t, &(status_view){.state = MODEL_LOADING}, "loading", "loading");
    end();
}

TEST(server_status_watchdog)
{
    watchdog w = {.limit_s = 10}, off = {0};
    test_listen_begin(false);
    watchdog_look(&w, 9.9);
    watchdog_look(&off, 1e9);
    CHECK(!w.hangs && !off.hangs);
    watchdog_look(&w, 10.1);
    watchdog_look(&w, 10.4); /* is said once */
    CHECK(w.hangs);
    watchdog_look(&w, 0.1);
    CHECK(!w.hangs);
    const char *said = test_listen_end();
    CHECK(strstr(said, "a step has been running for 10.1 s") && !strstr(said, "10.4 s") &&
          strstr(said, "the engine responds again"));
}

TEST(server_status_models)
{
    status_view  v   = healthy();
    server_error why = {0};
    begin();
    status_models(&v, &body);
    const json_value *list = tree(t), *data = json_get(list, "data");
    CHECK_STR(str_of(text(list, "object")), STR("list"));
    if (CHECK(data && data->n == 1)) {
        CHECK_STR(str_of(text(&data->item[0], "id")), STR("nano"));
        CHECK_INT(json_get(&data->item[0], "max_model_len")->i, 256);
        CHECK_INT(json_get(&data->item[0], "created")->i, 1700000000);
    }
    buf_clear(&body);
    CHECK(status_model(&v, STR("nano"), &body, &why));
    CHECK_STR(str_of(text(tree(t), "object")), STR("model"));
    buf_clear(&body);
    CHECK(!status_model(&v, STR("nan"), &body, &why) && why.status == 404);
    buf_clear(&body);
    status_version(&body);
    CHECK_STR(str_of(text(tree(t), "version")), str_of(tandem_version()));
    end();
}

TEST(server_status_slots)
{
    status_view  v    = healthy();
    server_error why  = {0};
    slot_view    s[4] = {{.request_id = "req-1", .prompt_tokens = 31, .tokens = 7, .age_s = 0.5}};
    begin();
    CHECK(status_slots(&v, s, 1, true, &body, &why));
    const json_value *all = tree(t);
    if (CHECK(all && all->n == 4)) {
        CHECK(json_get(&all->item[0], "is_processing")->b && !json_get(&all->item[1], "is_processing")->b);
        CHECK_STR(str_of(text(&all->item[0], "request_id")), STR("req-1"));
        CHECK_INT(json_get(&all->item[0], "n_decoded")->i, 7);
        CHECK(json_get(&all->item[0], "speculative")->b && !json_get(&all->item[1], "request_id"));
        CHECK_INT(json_get(&all->item[3], "id")->i, 3);
    }
    for (int i = 1; i < 4; i++) s[i] = s[0];
    buf_clear(&body);
    CHECK(status_slots(&v, s, 4, false, &body, &why));
    buf_clear(&body);
    CHECK(!status_slots(&v, s, 4, true, &body, &why) && why.status == 503);
    end();
}

/* --- files ----------------------------------------------------------------------------------------*/
static void hash_file(const char *path, char hex[65])
{
    file_map m;
    sha256   s;
    err      e = {0};
    sha256_init(&s);
    if (file_map_open(&m, path, &e)) sha256_put(&s, m.p, m.n);
    sha256_hex(&s, hex);
    file_map_close(&m);
}

static checkpoint_list *list_of(test_case *t, const char *path)
{
    checkpoint      *cp;
    checkpoint_list *l = NULL;
    err              e = {0};
    if (CHECK_OK(checkpoint_open(&cp, path, &e), e)) l = checkpoint_list_new(cp);
    checkpoint_close(cp);
    return l;
}

static model_files *open_list(test_case *t, const char *path)
{
    checkpoint_list *l = list_of(t, path);
    model_files     *m = files_open(&(engine_part){"model", path, NULL, l}, 1);
    mem_free(l);
    return m;
}

TEST(server_status_props_and_file_hashes)
{
    char              want[2][65];
    status_view       v      = healthy();
    const engine_part part[] = {{"model", NULL, "nano", list_of(t, test_path("models/nano/target.gguf"))},
                                {"draft", NULL, NULL, list_of(t, test_path("models/nano/mtp.gguf"))}};
    for (int i = 0; i < 2; i++) hash_file(part[i].files->file[0].path, want[i]);
    begin();
    v.files = files_open(part, 2);
    CHECK(!files_ready(v.files));
    status_props(&v, &body);
    const json_value *p = tree(t);
    CHECK_INT(json_get(p, "total_slots")->i, 4);
    CHECK_INT(json_get(json_get(p, "limits"), "request_memory")->i, v.request_bytes);
    CHECK_INT(json_get(json_get(p, "limits"), "body_memory")->i, v.body_bytes);
    CHECK_INT(json_get(json_get(p, "settings"), "queue_max")->i, 2);
    CHECK_INT(json_get(json_get(p, "default_generation_settings"), "n_ctx")->i, 256);
    CHECK_STR(str_of(text(json_get(json_get(p, "default_generation_settings"), "params"), "speculative")), STR("auto"));
    CHECK(json_get(json_get(p, "engine"), "mtp")->b);
    for (int i = 0; i < 20000 && !files_ready(v.files); i++) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    buf_clear(&body);
    status_props(&v, &body);
    p = json_get(tree(t), "files");
    if (CHECK(p && p->n == 2)) {
        CHECK_STR(str_of(text(&p->item[0], "name")), STR("nano"));
        CHECK_STR(str_of(text(&p->item[1], "name")), STR("mtp.gguf"));
        for (int i = 0; i < 2; i++) CHECK_STR(str_of(text(&p->item[i], "sha256")), str_of(want[i]));
    }
    files_close(v.files);
    for (int i = 0; i < 2; i++) mem_free((void *)part[i].files);
    end();
}

TEST(server_files_that_go)
{
    err          e = {0};
    model_files *m;
    char         path[4096], bytes[4096] = {0};
    json_writer  w;
    file_map     whole;
    m = files_open(&(engine_part){"model", NULL, NULL, NULL}, 1); /* of a drafter that was never opened */
    CHECK(files_ready(m));
    files_close(m);
    if (!CHECK_OK(file_map_open(&whole, test_path("models/nano/mtp.gguf"), &e), e)) return;
    snprintf(path, sizeof path, "%s", test_tmp_file("goes.gguf", whole.p, whole.n));
    m = open_list(t, path);
    test_tmp_file("goes.gguf", bytes, sizeof bytes); /* another file by now */
    files_want(m);
    for (int i = 0; i < 20000 && !files_ready(m); i++) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    begin();
    json_writer_init(&w, &body);
    files_write(m, &w);
    CHECK_INT(json_get(&tree(t)->item[0], "sha256")->kind, JSON_NULL);
    end();
    files_close(m);
    m = open_list(t, test_path("models/nano/target.gguf"));
    files_want(m);
    files_close(m); /* in the middle of it */
    file_map_close(&whole);
}
