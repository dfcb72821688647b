/* The dashboard's files and headers, and the data that it shows: drafts of a stream, rounds of lanes, costs, results. */
#include "server/ui_inside.h"

#include "server_rig.h"

#include <stdio.h>
#include <unistd.h>

static const char chat_path[] = "/v1/chat/completions";

static bool has(str text, const char *part) { return memmem(text.s, text.n, part, strlen(part)); }

/* --- files --------------------------------------------------------------------------------------*/
TEST(server_ui_files_are_all_here)
{
    ui_file page = ui_find(STR(""));
    char    path[128];
    int     n = 0;
    CHECK(page.type && str_starts(str_of(page.type), "text/html"));
    /* what the policy does not let it do, it does not try */
    CHECK(!has(page.body, "<style") && !has(page.body, "style=") && !has(page.body, "<script>"));
    CHECK(!has(page.body, "http://") && !has(page.body, "https://"));
    for (const char *at = page.body.s; (at = memmem(at, (size_t)(page.body.s + page.body.n - at), "=\"/ui/", 6));
         at++) {
        snprintf(path, sizeof path, "%.*s", (int)strcspn(at + 6, "\""), at + 6);
        ui_file f = ui_find(str_of(path));
        CHECK_MSG(f.type && f.body.n > 1000, "there is no %s", path);
        CHECK(f.etag[0] == '"' && f.etag[strlen(f.etag) - 1] == '"' && strcmp(f.etag, page.etag) != 0);
        n++;
    }
    CHECK_INT(n, 2); /* a script and a style sheet */
    CHECK(!ui_find(STR("/ui/")).type && !ui_find(STR("none.js")).type);
}

TEST(server_ui_etags)
{
    CHECK(ui_is_known(STR("\"abc\""), "\"abc\"") && ui_is_known(STR("\"x\", W/\"abc\""), "\"abc\""));
    CHECK(!ui_is_known(STR("\"abcd\""), "\"abc\"") && !ui_is_known(STR(""), "\"abc\"") &&
          !ui_is_known((str){0}, "\"abc\""));
}

static void expect_page(const server_rig *r, const char *path, const char *fields, int status, const char *location)
{
    test_case *t = r->t;
    rig_reply  a;
    rig_ask(r, "GET", path, fields, "", &a);
    CHECK_MSG(a.status == status, "%s %s: %d", path, fields, a.status);
    CHECK_STR(rig_field(&a, "Location"), str_of(location));
    rig_reply_deinit(&a);
}

TEST(server_ui_is_served_with_a_policy_and_an_etag)
{
    server_rig r;
    rig_reply  a;
    char       fields[128];
    rig_init(&r, t);
    r.opt.api_key = "secret";
    rig_start(&r);
    rig_ask(&r, "GET", "/ui/", "", "", &a); /* needs no key: it asks for one */
    CHECK_INT(a.status, 200);
    str policy = rig_field(&a, "Content-Security-Policy");
    CHECK(str_starts(policy, "default-src 'none'; script-src 'self'; style-src 'self';"));
    CHECK(!has(policy, "unsafe") && !has(policy, "http"));
    CHECK_STR(rig_field(&a, "X-Content-Type-Options"), STR("nosniff"));
    CHECK_STR(rig_field(&a, "Cache-Control"), STR("no-cache"));
    str etag = rig_field(&a, "ETag");
    snprintf(fields, sizeof fields, "If-None-Match: %.*s\r\n", (int)etag.n, etag.s);
    rig_reply_deinit(&a);
    rig_ask(&r, "GET", "/ui/", fields, "", &a);
    CHECK(a.status == 304 && a.body.n == 0);
    rig_reply_deinit(&a);
    expect_page(&r, "/ui/none", "", 404, "");
    expect_page(&r, "/", "Accept: text/html,*/*\r\n", 302, "/ui/"); /* a browser */
    expect_page(&r, "/", "Accept: */*\r\n", 401, "");               /* curl */
    expect_page(&r, "/", "Authorization: Bearer secret\r\nAccept: text/html\r\n", 302, "/ui/");
    expect_page(&r, "/", "Authorization: Bearer secret\r\n", 200, "");
    rig_stop(&r);
}

/* --- drafts of a stream -------------------------------------------------------------------------*/
typedef struct {
    size_t  chars, in_runs;  /* characters of the text, and of all runs */
    int64_t drafted, own;    /* tokens by who proposed them */
    int64_t accepted, total; /* of the timings */
} draft_sums;

static size_t count_chars(str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.s[i] & 0xC0) != 0x80;
    return n;
}

static draft_sums read_drafts(const server_rig *r, const char *members)
{
    test_case *t = r->t;
    char       body[512];
    rig_reply  a;
    draft_sums s  = {0};
    size_t     at = 0;
    str        data;
    snprintf(
        body, sizeof body,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Count from 1 to 30.\"}],\"max_tokens\":100,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true}%s}",
        members);
    rig_post(r, chat_path, body, &a);
    while (rig_event(&a, &at, &data)) {
        const json_value *e;
        if (str_is(data, "[DONE]") || !json_parse(&e, &a.mem, data, NULL, NULL)) continue;
        const json_value *runs = rig_at(e, "choices.0.drafts");
        str               text = rig_str(e, "choices.0.delta.content");
        size_t            sum  = 0;
        for (size_t i = 0; runs && i < runs->n; i++) {
            bool own = str_is(runs->item[i].item[0].s, "off");
            s.own += own;
            s.drafted += !own;
            sum += (size_t)runs->item[i].item[1].i;
        }
        CHECK(!runs || sum == count_chars(text)); /* of this event */
        s.in_runs += sum;
        s.chars += count_chars(text);
        if (rig_at(e, "timings")) {
            s.accepted = rig_int(e, "timings.draft_n_accepted");
            s.total    = rig_int(e, "timings.predicted_n");
        }
    }
    rig_reply_deinit(&a);
    return s;
}

TEST(server_streams_tell_who_drafted_each_token)
{
    server_rig r;
    rig_init(&r, t);
    rig_start(&r);
    draft_sums s = read_drafts(&r, ",\"return_drafts\":true,\"speculative\":\"dflash\"");
    CHECK(s.chars > 20 && s.in_runs == s.chars);
    CHECK_MSG(s.drafted > 5 && s.drafted <= s.accepted, "%lld drafted, %lld accepted", (long long)s.drafted,
              (long long)s.accepted);
    CHECK(s.own > 0 && s.own + s.drafted <= s.total);
    draft_sums off = read_drafts(&r, ",\"return_drafts\":true,\"speculative\":\"off\"");
    CHECK(off.drafted == 0 && off.own > 0 && off.chars == s.chars && off.in_runs == s.chars);
    draft_sums none = read_drafts(&r, ",\"speculative\":\"dflash\"");
    CHECK(none.in_runs == 0 && none.own == 0 && none.chars == s.chars);
    rig_stop(&r);
}

/* --- lanes --------------------------------------------------------------------------------------*/
TEST(server_stats_show_the_rounds_of_lanes)
{
    server_rig        r;
    rig_reply         a;
    const json_value *slot = NULL;
    rig_init(&r, t);
    rig_start(&r);
    int fd = rig_connect(&r);
    rig_send(fd, "POST", chat_path, "",
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":7000,\"ignore_eos\":true,"
             "\"speculative\":\"ngram\"}");
    for (int tries = 0; tries < 4000; tries++) {
        slot = rig_at(rig_ask_json(&r, "GET", "/api/stats", "", &a, 200), "slots.0");
        if (slot && rig_int(slot, "rounds") > 40) break;
        rig_reply_deinit(&a);
        usleep(2000);
    }
    const json_value *rounds = slot ? rig_at(slot, "last_rounds") : NULL;
    CHECK(slot && rounds && rounds->n == ENGINE_ROUNDS_MAX);
    CHECK_STR(rig_str(slot, "phase"), STR("decode"));
    CHECK_INT(rig_int(slot, "prompt_done"), rig_int(slot, "prompt_tokens"));
    for (size_t i = 0; rounds && i < rounds->n; i++) {
        const json_value *x = rounds->item[i].item;
        CHECK(str_is(x[0].s, x[1].i ? "ngram" : "off") && x[2].i >= 0 && x[2].i <= x[1].i && x[1].i <= 64);
    }
    rig_reply_deinit(&a);
    rig_reset(fd);
    rig_wait_idle(&r);
    rig_stop(&r);
}

static int64_t sum_of(const json_value *v)
{
    int64_t n = 0;
    for (size_t i = 0; v && i < v->n; i++) n += v->item[i].i;
    return n;
}

TEST(server_stats_have_histograms_and_positions)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    rig_start(&r);
    draft_sums s = read_drafts(&r, ",\"speculative\":\"mtp\"");
    rig_wait_idle(&r);
    const json_value *v = rig_ask_json(&r, "GET", "/api/stats", "", &a, 200);
    CHECK_INT(sum_of(rig_at(v, "latency.first_token.counts")), 1);
    CHECK_INT(rig_at(v, "latency.first_token.counts")->n, rig_at(v, "latency.first_token.bounds_s")->n + 1);
    CHECK_INT(sum_of(rig_at(v, "latency.between_tokens.counts")), s.total - 1);
    CHECK_INT(sum_of(rig_at(v, "steps.buckets")), rig_int(v, "steps.steps"));
    CHECK_INT(sum_of(rig_at(v, "speculation.accepted_by_position")), s.accepted);
    CHECK_INT(rig_at(v, "speculation.accepted_by_position")->n, rig_at(v, "speculation.drafted_by_position")->n);
    rig_reply_deinit(&a);
    rig_stop(&r);
}

/* --- costs and results --------------------------------------------------------------------------*/
TEST(server_shows_measured_costs)
{
    server_rig        r;
    rig_reply         a;
    const json_value *v;
    rig_init(&r, t);
    rig_start(&r);
    v = rig_ask_json(&r, "GET", "/api/costs", "", &a, 200);
    CHECK_INT(rig_at(v, "steps.0.curve")->n, 0);
    rig_reply_deinit(&a);
    read_drafts(&r, ",\"speculative\":\"dflash\"");
    v                       = rig_ask_json(&r, "GET", "/api/costs", "", &a, 200);
    const json_value *curve = rig_at(v, "steps.0.curve"), *points = rig_at(v, "steps.0.points");
    CHECK(points->n > 0 && curve->n > 8 && curve->n <= 256);
    for (size_t i = 1; i < curve->n; i++) CHECK(curve->item[i].d >= curve->item[i - 1].d && curve->item[0].d > 0);
    for (size_t i = 0; i < points->n; i++)
        CHECK(points->item[i].item[0].i >= 1 && points->item[i].item[1].d > 0 && points->item[i].item[2].i > 0);
    CHECK_INT(rig_int(v, "steps.0.max_context"), 1024);
    CHECK_INT(rig_at(v, "steps.4.max_context")->kind, JSON_NULL);
    CHECK(rig_at(v, "drafts.dflash.points")->n > 0 && rig_at(v, "pace")->d > 0);
    rig_reply_deinit(&a);
    rig_ask_json(&r, "POST", "/api/models/nano/park", "{}", &a, 200);
    rig_reply_deinit(&a);
    rig_expect(&r, "GET", "/api/costs", "", 503, "error.code", "parked");
    rig_stop(&r);
}

TEST(server_keeps_results_of_benchmarks)
{
    static const char body[] = "{\"methods\":[\"off\",\"off\",\"auto\"],\"prompts\":[\"What is 27 plus 58?\",\"Hi\"],"
                               "\"output_tokens\":8,\"requests\":2,\"repeats\":2}";
    char              dir[4096], id[64] = "";
    snprintf(dir, sizeof dir, "%s/state", test_tmp_dir());
    for (int run = 0; run < 2; run++) { /* the second server finds the result of the first */
        server_rig        r;
        rig_reply         a;
        const json_value *v;
        rig_init(&r, t);
        r.opt.state_dir = dir;
        rig_start(&r);
        v = rig_ask_json(&r, "GET", "/api/bench", "", &a, 200);
        CHECK_INT(rig_at(v, "data")->n, run);
        if (run) CHECK_STR(rig_str(v, "data.0.result.id"), str_of(id));
        if (run) CHECK(rig_int(v, "data.0.ts") > 1700000000);
        rig_reply_deinit(&a);
        v = rig_ask_json(&r, "POST", "/api/bench", body, &a, 200);
        CHECK(rig_at(v, "same_text")->b && rig_at(v, "complete")->b);
        CHECK_INT(rig_int(v, "prompt_tokens"), 23); /* of the longer question */
        CHECK_INT(rig_at(v, "cells")->n, 3);
        CHECK_INT(rig_int(v, "cells.1.answers"), 4);
        snprintf(id, sizeof id, "%.*s", STR_ARG(rig_str(v, "id")));
        rig_reply_deinit(&a);
        v = rig_ask_json(&r, "GET", "/api/bench", "", &a, 200);
        CHECK_INT(rig_at(v, "data")->n, run + 1);
        CHECK_STR(rig_str(v, "data.0.result.id"), str_of(id));
        rig_reply_deinit(&a);
        rig_expect(&r, "POST", "/api/bench", "{\"prompts\":[3]}", 400, "error.param", "prompts");
        rig_expect(&r, "POST", "/api/bench", "{\"prompts\":[\"\"]}", 400, "error.param", "prompts");
        rig_expect(&r, "POST", "/api/bench", "{\"prompts\":[\"Hi\"],\"output_tokens\":500}", 400, "error.param",
                   "prompts");
        rig_stop(&r);
    }
}
