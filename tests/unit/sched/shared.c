/* What requests share: pages, prefixes, steps, settings. */
#include "base/file.h"
#include "engine_rig.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void long_prompt(int32_t *out, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++) out[i] = 5 + (int32_t)(test_rand(&seed) % 500);
}

/* Pages for one such request, or little more: the others wait for theirs, and all are answered. */
TEST(sched_waits_for_pages)
{
    enum { OTHERS = NANO_SLOWEST ? 2 : 8 };
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    alone, a;
    tandem_job    *j[OTHERS];
    tandem_stats   s;
    nano_options(&o);
    o.n_drafters = 0;
    o.kv_bytes   = 3 << 20;
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 230);
    nano_ask(t, e, &r, &alone);
    CHECK_INT(alone.n, 230);
    for (int i = 0; i < OTHERS; i++) j[i] = nano_submit(t, e, &r);
    for (int i = 0; i < OTHERS; i++) {
        nano_collect(j[i], &a);
        nano_same(t, &a, &alone);
        tandem_get_stats(e, &s);
        CHECK(s.kv_pinned_bytes <= s.kv_bytes);
    }
    nano_check_idle(t, e);
    tandem_close(e);
}

TEST(sched_refuses_what_never_fits)
{
    static int32_t ids[1000];
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    a;
    nano_options(&o);
    o.n_drafters = 0;
    o.n_ctx      = 4000;
    o.kv_bytes   = 4 << 20;
    if (!nano_open(t, &e, &o)) return;
    long_prompt(ids, 1000, 3);
    nano_request(e, &r, 2900);
    r.ids   = ids;
    r.n_ids = 1000;
    nano_ask(t, e, &r, &a);
    CHECK_INT(a.result.finish, TANDEM_FINISH_ERROR);
    CHECK_INT(a.result.error.code, TANDEM_CONTEXT);
    CHECK(strlen(a.result.error.text) > 10);
    CHECK_INT(a.n, 0);
    nano_request(e, &r, 20); /* others are not held up */
    nano_ask(t, e, &r, &a);
    CHECK_INT(a.n, 20);
    nano_check_idle(t, e);
    tandem_close(e);
}

/* The second time only the last page and what follows it is run; another tenant finds nothing of it. */
TEST(sched_prefix_is_shared_inside_a_tenant)
{
    static int32_t ids[150];
    tandem        *e;
    tandem_options o;
    tandem_request r;
    nano_answer    cold, a;
    tandem_stats   s;
    nano_options(&o);
    if (!nano_open(t, &e, &o)) return;
    long_prompt(ids, 150, 9);
    nano_request(e, &r, 30);
    r.ids         = ids;
    r.n_ids       = 150;
    r.tenant      = "one";
    r.spec.method = TANDEM_SPEC_DFLASH;
    nano_ask(t, e, &r, &cold);
    CHECK_INT(cold.result.usage.cached_tokens, 0);
    nano_ask(t, e, &r, &a);
    CHECK_INT(a.result.usage.cached_tokens, 144);
    nano_same(t, &a, &cold);
    CHECK_INT(a.result.usage.spec.drafted, cold.result.usage.spec.drafted); /* and guesses are as good at once */
    r.tenant = "two";
    nano_ask(t, e, &r, &a);
    CHECK_INT(a.result.usage.cached_tokens, 0);
    nano_same(t, &a, &cold);
    nano_check_idle(t, e);
    tandem_get_stats(e, &s);
    CHECK_INT(s.prefix_hits, 1);
    CHECK_INT(s.prefix_misses, 2);
    CHECK_INT(s.cached_tokens, 144);
    CHECK_INT(s.kv_reserved_bytes, 0);
    CHECK(s.kv_cached_bytes > 0 && s.kv_cached_bytes <= s.kv_bytes);
    tandem_close(e);
}

/* Long prompts in small pieces between the rounds of others: nobody's text changes. */
TEST(sched_prompts_between_rounds)
{
    enum { LONG = NANO_SLOWEST ? 3 : 6, EACH = LONG + 1 };
    static int32_t ids[LONG][200];
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    alone[EACH], a;
    tandem_job    *j[2 * EACH];
    tandem_stats   s;
    nano_options(&o);
    o.step_tokens = 24;
    nano_setting(&o, "max_stall_ms", "0");
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, NANO_SLOWEST ? 20 : 40);
    nano_ask(t, e, &r, &alone[LONG]);
    for (int i = 0; i < LONG; i++) {
        long_prompt(ids[i], 200, (uint64_t)i + 20);
        r.ids   = ids[i];
        r.n_ids = 60 + 25 * (size_t)i;
        nano_ask(t, e, &r, &alone[i]);
    }
    for (int i = 0; i < 2 * EACH; i++) {
        char tenant[8];
        int  k = i % EACH;
        snprintf(tenant, sizeof tenant, "%d", i); /* no hits */
        r.ids    = k < LONG ? ids[k] : nano_prompt;
        r.n_ids  = k < LONG ? 60 + 25 * (size_t)k : NANO_PROMPT;
        r.tenant = tenant;
        j[i]     = nano_submit(t, e, &r);
    }
    for (int i = 0; i < 2 * EACH; i++) {
        nano_collect(j[i], &a);
        nano_same(t, &a, &alone[i % EACH]);
    }
    tandem_get_stats(e, &s);
    CHECK(s.prompt_rows > 0 && s.rows > s.prompt_rows && s.failed_steps == 0);
    nano_check_idle(t, e);
    tandem_close(e);
}

TEST(sched_settings_change_while_it_runs)
{
    tandem_options o;
    tandem        *e;
    tandem_request r;
    nano_answer    a, plain;
    tandem_error   why = {0};
    char           text[4096];
    const char    *path = test_tmp_file("settings.json", "{}", 2);
    char           file[4096], log[4200];
    snprintf(file, sizeof file, "%s", path);
    snprintf(log, sizeof log, "%s/routing.jsonl", test_tmp_dir());
    nano_options(&o);
    o.name          = "nano";
    o.settings_path = file;
    o.routing_log   = log;
    if (!nano_open(t, &e, &o)) return;
    nano_request(e, &r, 40);
    r.id = "the-first";
    nano_ask(t, e, &r, &a);
    CHECK(a.result.usage.spec.drafted > 0);
    CHECK_OK(tandem_set(e, "dflash_enabled", "false", &why), why);
    nano_ask(t, e, &r, &plain);
    CHECK_INT(plain.result.usage.spec.drafted, 0);
    CHECK_STR(str_of(plain.result.usage.route_reason), STR("disabled"));
    nano_same(t, &plain, &a);
    CHECK_FAILS(tandem_set(e, "dflash_enabled", "maybe", &why), why, "dflash_enabled");
    CHECK_FAILS(tandem_set(e, "dflash_hat", "1", &why), why, "there is no setting 'dflash_hat'");
    CHECK(tandem_settings(e, text, sizeof text) < sizeof text);
    CHECK(strstr(text, "\"dflash_enabled\":false") != NULL);
    tandem_close(e);
    if (!nano_open(t, &e, &o)) return; /* it was kept */
    nano_ask(t, e, &r, &a);
    CHECK_INT(a.result.usage.spec.drafted, 0);
    tandem_close(e);
    file_map m   = {0};
    err      bad = {0};
    if (CHECK_OK(file_map_open(&m, log, &bad), bad)) {
        CHECK(memmem(m.p, m.n, "the-first", 9) != NULL);
        CHECK(memmem(m.p, m.n, "disabled", 8) != NULL);
        file_map_close(&m);
    }
}

static void check_shown(test_case *t, const tandem *e, const char *member)
{
    char text[4096];
    CHECK(tandem_settings(e, text, sizeof text) < sizeof text);
    CHECK_MSG(strstr(text, member), "%s is not in %s", member, text);
}

static void check_file(test_case *t, const char *path, const char *want)
{
    file_map m = {0};
    err      e = {0};
    if (CHECK_OK(file_map_open(&m, path, &e), e)) CHECK_STR(((str){m.p, m.n}), str_of(want));
    file_map_close(&m);
}

/* Not live: it is for the next time, which only a file remembers. */
TEST(sched_settings_for_the_next_opening)
{
    tandem_options o;
    tandem        *e;
    tandem_error   why = {0};
    char           path[600];
    nano_options(&o);
    o.name = "nano";
    if (!nano_open(t, &e, &o)) return;
    CHECK_FAILS(tandem_set(e, "kv_cap", "0.5", &why), why, "there is no settings file");
    CHECK_INT(why.code, TANDEM_INPUT);
    check_shown(t, e, "\"kv_cap\":0.9");
    tandem_close(e);

    snprintf(path, sizeof path, "%s", test_tmp_file("next.json", "{}", 2));
    o.settings_path = path;
    if (!nano_open(t, &e, &o)) return;
    CHECK_FAILS(tandem_set(e, "kv_cap", "5", &why), why, "kv_cap is 5");
    check_file(t, path, "{}");
    CHECK_OK(tandem_set(e, "kv_cap", "0.5", &why), why);
    check_file(t, path, "{\"models\":{\"nano\":{\"kv_cap\":0.5}}}\n");
    tandem_close(e);
    if (!nano_open(t, &e, &o)) return;
    check_shown(t, e, "\"kv_cap\":0.5");
    tandem_close(e);
}

/* The engine goes on with the environment's value; the file gets the new one, for when the variable is gone. */
TEST(sched_settings_that_the_environment_holds)
{
    tandem_options o;
    tandem        *e;
    tandem_error   why = {0};
    char           path[600];
    nano_options(&o);
    o.name = "nano";
    setenv("DFLASH_MAX_CTX", "100", 1);
    if (nano_open(t, &e, &o)) {
        CHECK_FAILS(tandem_set(e, "dflash_max_ctx", "7", &why), why, "dflash_max_ctx is set by the environment");
        CHECK_INT(why.code, TANDEM_INPUT);
        check_shown(t, e, "\"dflash_max_ctx\":100");
        tandem_close(e);
    }
    snprintf(path, sizeof path, "%s", test_tmp_file("held.json", "{}", 2));
    o.settings_path = path;
    if (nano_open(t, &e, &o)) {
        CHECK_OK(tandem_set(e, "dflash_max_ctx", "7", &why), why);
        check_shown(t, e, "\"dflash_max_ctx\":100");
        check_file(t, path, "{\"models\":{\"nano\":{\"dflash_max_ctx\":7}}}\n");
        CHECK_FAILS(tandem_set(e, "dflash_max_ctx", "-7", &why), why, "dflash_max_ctx is -7");
        check_file(t, path, "{\"models\":{\"nano\":{\"dflash_max_ctx\":7}}}\n");
        tandem_close(e);
    }
    unsetenv("DFLASH_MAX_CTX");
    if (!nano_open(t, &e, &o)) return;
    check_shown(t, e, "\"dflash_max_ctx\":7");
    tandem_close(e);
}
