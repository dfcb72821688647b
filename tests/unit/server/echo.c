/* Text completions that begin with their prompt, llama.cpp's own /completion, and what its streams tell beside the text. */
#include "server_rig.h"

#include "base/mem.h"

#include <stdio.h>

#define TEXT   "/v1/completions"
#define PROMPT "\"prompt\":\"Once upon a time\",\"temperature\":0"

static size_t n_items(const json_value *v, const char *path)
{
    const json_value *x = v ? rig_at(v, path) : NULL;
    return x && x->kind == JSON_ARRAY ? x->n : 0;
}

/* Writes out a member of all events, joined. */
static void join(rig_reply *s, const char *path, buf *out)
{
    size_t            at = 0;
    str               data;
    const json_value *e;
    while (rig_event(s, &at, &data)) {
        if (str_is(data, "[DONE]") || !json_parse(&e, &s->mem, data, NULL, NULL)) continue;
        const json_value *v = rig_at(e, path);
        if (v && v->kind == JSON_STRING) buf_put(out, v->s.s, v->s.n);
        for (size_t i = 0; v && v->kind == JSON_ARRAY && i < v->n; i++) {
            json_writer w;
            buf_putc(out, ' ');
            json_writer_init(&w, out);
            json_put_value(&w, &v->item[i]);
        }
    }
}

TEST(server_echoes_the_prompt)
{
    server_rig r;
    rig_reply  plain, a;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, TEXT, "{" PROMPT ",\"max_tokens\":6,\"ignore_eos\":true}", &plain);
    rig_post(&r, TEXT, "{" PROMPT ",\"max_tokens\":6,\"ignore_eos\":true,\"echo\":true}", &a);
    str text = rig_str(rig_json(&a), "choices.0.text"), rest = rig_str(rig_json(&plain), "choices.0.text");
    CHECK(str_starts(text, "Once upon a time") && text.n == 16 + rest.n && !memcmp(text.s + 16, rest.s, rest.n));
    CHECK(rig_at(rig_json(&a), "choices.0.logprobs")->kind == JSON_NULL);
    rig_reply_deinit(&a);
    rig_post(&r, TEXT, "{" PROMPT ",\"max_tokens\":0,\"echo\":true}", &a);
    CHECK_STR(rig_str(rig_json(&a), "choices.0.text"), STR("Once upon a time"));
    CHECK_INT(rig_int(rig_json(&a), "usage.completion_tokens"), 0);
    rig_reply_deinit(&a);
    rig_reply_deinit(&plain);
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* As evaluation harnesses ask: all items but the last are the prompt's, also where the answer ends at once. */
TEST(server_echoes_the_prompts_log_probabilities)
{
    server_rig r;
    rig_reply  a, again, s;
    buf        got, want;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, TEXT, "{" PROMPT ",\"max_tokens\":1,\"echo\":true,\"logprobs\":2,\"n\":2}", &a);
    const json_value *v = rig_json(&a);
    size_t            n = (size_t)rig_int(v, "usage.prompt_tokens") + 1;
    CHECK_INT(n_items(v, "choices.0.logprobs.tokens"), n);
    CHECK_INT(n_items(v, "choices.0.logprobs.token_logprobs"), n);
    CHECK_INT(n_items(v, "choices.0.logprobs.top_logprobs"), n);
    CHECK_INT(n_items(v, "choices.0.logprobs.text_offset"), n);
    CHECK(rig_at(v, "choices.0.logprobs.token_logprobs.0")->kind == JSON_NULL);
    CHECK(rig_at(v, "choices.0.logprobs.top_logprobs.0")->kind == JSON_NULL);
    CHECK(rig_at(v, "choices.0.logprobs.token_logprobs.1")->d < 0);
    CHECK_INT(rig_at(v, "choices.0.logprobs.top_logprobs.1")->n, 2);
    CHECK_STR(rig_str(v, "choices.0.logprobs.tokens.0"), STR("<bos>"));
    CHECK_INT(rig_int(v, "choices.0.logprobs.text_offset.1"), 0);
    CHECK(rig_int(v, "choices.0.logprobs.text_offset.2") > 0);
    buf_init(&got, 1 << 20);
    buf_init(&want, 1 << 20);
    json_writer w;
    for (int i = 0; i < 2; i++) {
        json_writer_init(&w, i ? &got : &want);
        json_put_value(&w, rig_at(v, i ? "choices.1.logprobs" : "choices.0.logprobs"));
    }
    CHECK_STR(buf_str(&got), buf_str(&want)); /* of the second answer to the prompt, too */
    rig_post(&r, TEXT, "{" PROMPT ",\"max_tokens\":1,\"echo\":true,\"logprobs\":2}", &again);
    buf_clear(&got);
    json_writer_init(&w, &got);
    json_put_value(&w, rig_at(rig_json(&again), "choices.0.logprobs"));
    CHECK_STR(buf_str(&got), buf_str(&want)); /* although all of it is in the cache */
    rig_post(&r, TEXT, "{" PROMPT ",\"max_tokens\":1,\"echo\":true,\"logprobs\":2,\"stream\":true}", &s);
    buf_clear(&got);
    buf_clear(&want);
    join(&s, "choices.0.logprobs.token_logprobs", &got);
    const json_value *all = rig_at(rig_json(&again), "choices.0.logprobs.token_logprobs");
    for (size_t i = 0; i < all->n; i++) {
        buf_putc(&want, ' ');
        json_writer_init(&w, &want);
        json_put_value(&w, &all->item[i]);
    }
    CHECK_STR(buf_str(&got), buf_str(&want));
    buf_deinit(&got);
    buf_deinit(&want);
    rig_reply_deinit(&a);
    rig_reply_deinit(&again);
    rig_reply_deinit(&s);
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* Token ids give the log-probabilities that their text gives. */
TEST(server_echoes_token_ids)
{
    server_rig r;
    rig_reply  ids, a, b;
    char       body[1024];
    buf        list;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, "/tokenize", "{\"content\":\"Once upon a time\",\"add_special\":true}", &ids);
    buf_init(&list, 4096);
    json_writer w;
    json_writer_init(&w, &list);
    json_put_value(&w, rig_at(rig_json(&ids), "tokens"));
    snprintf(body, sizeof body, "{\"prompt\":[%.*s],\"max_tokens\":1,\"echo\":true,\"logprobs\":1,\"temperature\":0}",
             (int)list.n, list.p);
    rig_post(&r, TEXT, body, &a);
    rig_post(&r, TEXT, "{" PROMPT ",\"max_tokens\":1,\"echo\":true,\"logprobs\":1}", &b);
    CHECK(str_starts(rig_str(rig_json(&a), "choices.0.text"), "Once upon a time"));
    CHECK_STR(rig_str(rig_json(&a), "choices.0.text"), rig_str(rig_json(&b), "choices.0.text"));
    for (int i = 1; i < 6; i++) {
        char path[64];
        snprintf(path, sizeof path, "choices.0.logprobs.token_logprobs.%d", i);
        CHECK(rig_at(rig_json(&a), path)->d == rig_at(rig_json(&b), path)->d);
    }
    buf_deinit(&list);
    rig_reply_deinit(&ids);
    rig_reply_deinit(&a);
    rig_reply_deinit(&b);
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* Log-probabilities of a long prompt are written in pieces, and all of them come: the I/O thread serves others in between. */
TEST(server_echoes_long_prompts_in_pieces)
{
    enum { TOKENS = 300, MOST = 80 };
    server_rig        r;
    rig_reply         a, s;
    buf               body, want, got;
    size_t            at = 0, events = 0;
    str               data;
    const json_value *e;
    rig_init(&r, t);
    rig_start(&r);
    buf_init(&body, 1 << 16);
    buf_init(&want, 1 << 20);
    buf_init(&got, 1 << 20);
    for (int stream = 0; stream < 2; stream++) {
        buf_clear(&body);
        buf_puts(&body, "{\"max_tokens\":1,\"echo\":true,\"logprobs\":2,\"temperature\":0,\"prompt\":[2");
        for (int i = 1; i < TOKENS; i++) buf_printf(&body, ",%d", 300 + i);
        buf_printf(&body, "],\"stream\":%s}", stream ? "true" : "false");
        buf_putc(&body, 0);
        rig_post(&r, TEXT, body.p, stream ? &s : &a);
    }
    const json_value *all = rig_at(rig_json(&a), "choices.0.logprobs.token_logprobs");
    CHECK_INT(all ? all->n : 0, TOKENS + 1);
    for (size_t i = 0; all && i < all->n; i++) {
        json_writer w;
        buf_putc(&want, ' ');
        json_writer_init(&w, &want);
        json_put_value(&w, &all->item[i]);
    }
    join(&s, "choices.0.logprobs.token_logprobs", &got);
    CHECK_STR(buf_str(&got), buf_str(&want));
    while (rig_event(&s, &at, &data)) {
        if (str_is(data, "[DONE]") || !json_parse(&e, &s.mem, data, NULL, NULL)) continue;
        events += n_items(e, "choices.0.logprobs.tokens") > 0;
        CHECK(n_items(e, "choices.0.logprobs.tokens") < MOST);
    }
    CHECK_MSG(events >= TOKENS / MOST, "%zu events", events);
    buf_deinit(&body);
    buf_deinit(&want);
    buf_deinit(&got);
    rig_reply_deinit(&a);
    rig_reply_deinit(&s);
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* --- /completion --------------------------------------------------------------------------------*/
TEST(server_native_completion)
{
    server_rig r;
    rig_reply  a, plain;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, TEXT, "{" PROMPT ",\"max_tokens\":8,\"ignore_eos\":true}", &plain);
    rig_post(&r, "/completion",
             "{" PROMPT ",\"n_predict\":8,\"ignore_eos\":true,\"n_probs\":3,\"return_tokens\":true,\"seed\":7,"
             "\"stop\":[\"never so\"],\"logit_bias\":[[5,-1]],\"mirostat\":0,\"cache_prompt\":true}",
             &a);
    const json_value *v = rig_json(&a);
    CHECK_MSG(a.status == 200, "%s", a.body.p);
    CHECK_STR(rig_str(v, "content"), rig_str(rig_json(&plain), "choices.0.text"));
    CHECK_INT(n_items(v, "tokens"), 8);
    CHECK(rig_at(v, "stop")->b && rig_at(v, "has_new_line")->kind == JSON_BOOL && !rig_at(v, "truncated")->b);
    CHECK_STR(rig_str(v, "stop_type"), STR("limit"));
    CHECK_STR(rig_str(v, "stopping_word"), STR(""));
    CHECK_STR(rig_str(v, "model"), str_of(r.opt.model));
    CHECK_STR(rig_str(v, "prompt"), STR("<bos>Once upon a time"));
    CHECK_INT(rig_int(v, "tokens_predicted"), 8);
    CHECK_INT(rig_int(v, "tokens_evaluated"), rig_int(rig_json(&plain), "usage.prompt_tokens"));
    CHECK_INT(rig_int(v, "timings.predicted_n"), 8);
    CHECK_INT(rig_int(v, "generation_settings.n_predict"), 8);
    CHECK_INT(rig_int(v, "generation_settings.seed"), 7);
    CHECK_STR(rig_str(v, "generation_settings.stop.0"), STR("never so"));
    CHECK_INT(rig_int(v, "generation_settings.logit_bias.0.token"), 5);
    CHECK_INT(n_items(v, "completion_probabilities"), 8);
    CHECK_INT(n_items(v, "completion_probabilities.0.top_logprobs"), 3);
    CHECK_INT(rig_int(v, "completion_probabilities.0.id"), rig_int(v, "tokens.0"));
    CHECK(rig_at(v, "completion_probabilities.0.logprob")->d <= 0);
    rig_reply_deinit(&a);
    rig_post(&r, "/completion", "{" PROMPT ",\"n_predict\":2}", &a);
    CHECK_INT(n_items(rig_json(&a), "tokens"), 0);
    CHECK(rig_at(rig_json(&a), "tokens") && !rig_at(rig_json(&a), "completion_probabilities"));
    rig_reply_deinit(&a);
    rig_post(&r, "/completion", "{" PROMPT ",\"n_predict\":8,\"typical_p\":0.5}", &a);
    CHECK_INT(a.status, 400);
    CHECK_STR(rig_str(rig_json(&a), "error.param"), STR("typical_p"));
    rig_reply_deinit(&a);
    rig_reply_deinit(&plain);
    rig_wait_idle(&r);
    rig_stop(&r);
}

TEST(server_native_completion_in_events)
{
    server_rig        r;
    rig_reply         whole, s;
    buf               text, ids;
    size_t            at = 0, ends = 0;
    str               data;
    const json_value *e;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, "/completion", "{" PROMPT ",\"n_predict\":12,\"ignore_eos\":true,\"return_tokens\":true}", &whole);
    rig_post(&r, "/completion", "{" PROMPT ",\"n_predict\":12,\"ignore_eos\":true,\"stream\":true}", &s);
    buf_init(&text, 1 << 16);
    buf_init(&ids, 1 << 16);
    join(&s, "content", &text);
    join(&s, "tokens", &ids);
    CHECK_STR(buf_str(&text), rig_str(rig_json(&whole), "content"));
    CHECK(ids.n > 12);
    while (rig_event(&s, &at, &data)) {
        if (!CHECK_MSG(json_parse(&e, &s.mem, data, NULL, NULL), "%.*s is no JSON", STR_ARG(data))) continue;
        ends += rig_at(e, "stop")->b;
        if (rig_at(e, "stop")->b) CHECK_STR(rig_str(e, "stop_type"), STR("limit"));
    }
    CHECK_INT(ends, 1);
    buf_deinit(&text);
    buf_deinit(&ids);
    rig_reply_deinit(&whole);
    rig_reply_deinit(&s);
    rig_wait_idle(&r);
    rig_stop(&r);
}

TEST(server_native_completion_picks_members)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    rig_start(&r);
    rig_post(&r, "/completion",
             "{" PROMPT ",\"n_predict\":4,\"ignore_eos\":true,"
             "\"response_fields\":[\"content\",\"generation_settings/n_predict\",\"no/such\",\"prompt\"]}",
             &a);
    const json_value *v = rig_json(&a);
    CHECK_MSG(v && v->kind == JSON_OBJECT && v->n == 3, "%s", a.body.p);
    CHECK(rig_str(v, "content").n > 0);
    CHECK(json_get(v, "generation_settings/n_predict") && json_get(v, "generation_settings/n_predict")->i == 4);
    rig_reply_deinit(&a);
    for (int others = 0; others < 2; others++) { /* probabilities are added as they are: they may be long */
        char body[512];
        snprintf(body, sizeof body,
                 "{" PROMPT ",\"n_predict\":4,\"ignore_eos\":true,\"n_probs\":2,"
                 "\"response_fields\":[%s\"completion_probabilities\"]}",
                 others ? "\"stop\"," : "");
        rig_post(&r, "/completion", body, &a);
        v = rig_json(&a);
        CHECK_MSG(v && v->kind == JSON_OBJECT && (int)v->n == 1 + others, "%s", a.body.p);
        CHECK(rig_at(v, "completion_probabilities.3.top_logprobs.1.id"));
        rig_reply_deinit(&a);
    }
    rig_wait_idle(&r);
    rig_stop(&r);
}

TEST(server_native_completion_prompts)
{
    static const struct {
        const char *prompt, *shown; /* shown NULL: refused */
        int         n;
    } k[] = {{"\"Hi\"", "<bos>Hi", 1},
             {"{\"prompt_string\":\"Hi\"}", "<bos>Hi", 1},
             {"[{\"prompt_string\":\"Hi\",\"multimodal_data\":[]}]", "<bos>Hi", 1},
             {"\"<bos><|turn>user\\nHi<turn|>\\n\"", "<bos><|turn>user\nHi<turn|>\n", 1},
             {"[2,\"Hi\"]", "<bos>Hi", 1},
             {"[\"Hi\",2]", "<bos>Hi<bos>", 1},
             {"[\"Hi\",\"Ho\"]", "<bos>Hi", 2},
             {"[\"Hi\",[2,5]]", "<bos>Hi", 2},
             {"{\"prompt_string\":\"Hi\",\"multimodal_data\":[\"AAAA\"]}", NULL, 0},
             {"{\"text\":\"Hi\"}", NULL, 0},
             {"[[2,\"a\",{}]]", NULL, 0},
             {"[]", NULL, 0}};
    server_rig r;
    rig_reply  a;
    char       body[256];
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(k); i++) {
        snprintf(body, sizeof body, "{\"prompt\":%s,\"n_predict\":1,\"temperature\":0}", k[i].prompt);
        rig_post(&r, "/completion", body, &a);
        const json_value *v = rig_json(&a);
        CHECK_MSG(a.status == (k[i].shown ? 200 : 400), "%s: %s", body, a.body.p);
        if (k[i].n == 1) CHECK_STR(rig_str(v, "prompt"), str_of(k[i].shown));
        if (k[i].n > 1) {
            CHECK_MSG(v && v->kind == JSON_ARRAY && v->n == (size_t)k[i].n, "%s: %s", body, a.body.p);
            CHECK_STR(rig_str(v, "0.prompt"), str_of(k[i].shown));
            CHECK_INT(rig_int(v, "1.index"), 1);
        }
        rig_reply_deinit(&a);
    }
    rig_wait_idle(&r);
    rig_stop(&r);
}

/* --- progress and timings -----------------------------------------------------------------------*/
static const struct {
    const char *path, *body;
} streams[] = {
    {"/v1/chat/completions", "\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":9"},
    {"/v1/completions", "\"prompt\":\"%s\",\"max_tokens\":9"},
    {"/completion", "\"prompt\":\"%s\",\"n_predict\":9"},
};

TEST(server_tells_the_progress_with_a_prompt)
{
    server_rig r;
    char       prompt[1200], body[2000];
    rig_init(&r, t);
    r.engine_opt.step_tokens = 64; /* several pieces */
    rig_start(&r);
    for (size_t i = 0; i < COUNT(streams); i++) {
        rig_reply a;
        size_t    at = 0, events = 0;
        str       data;
        int64_t   last = -1, total = 0;
        bool      text = false;
        memset(prompt, 0, sizeof prompt);
        for (int k = 0; k < 90; k++) snprintf(prompt + strlen(prompt), 12, "%zu%d and ", i, k);
        int n = snprintf(body, sizeof body, "{\"stream\":true,\"return_progress\":true,\"ignore_eos\":true,");
        n += snprintf(body + n, sizeof body - (size_t)n, streams[i].body, prompt);
        snprintf(body + n, sizeof body - (size_t)n, "}");
        rig_post(&r, streams[i].path, body, &a);
        while (rig_event(&a, &at, &data)) {
            const json_value *e;
            if (str_is(data, "[DONE]") || !json_parse(&e, &a.mem, data, NULL, NULL)) continue;
            text |=
                rig_str(e, "choices.0.delta.content").n || rig_str(e, "choices.0.text").n || rig_str(e, "content").n;
            if (!rig_at(e, "prompt_progress")) continue;
            events++;
            CHECK(!text && rig_int(e, "prompt_progress.processed") > last);
            CHECK(rig_int(e, "prompt_progress.cache") >= 0 && rig_int(e, "prompt_progress.time_ms") >= 0);
            last  = rig_int(e, "prompt_progress.processed");
            total = rig_int(e, "prompt_progress.total");
        }
        CHECK_MSG(events >= 1 && last == total && total > 100 && text, "%s: %zu events, %lld of %lld", streams[i].path,
                  events, (long long)last, (long long)total);
        rig_reply_deinit(&a);
    }
    rig_wait_idle(&r);
    rig_stop(&r);
}

TEST(server_tells_timings_with_every_event)
{
    server_rig r;
    char       body[512];
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(streams); i++) {
        rig_reply a;
        size_t    at = 0, with = 0;
        str       data;
        int64_t   last = 0;
        int       n = snprintf(body, sizeof body, "{\"stream\":true,\"timings_per_token\":true,\"ignore_eos\":true,");
        n += snprintf(body + n, sizeof body - (size_t)n, streams[i].body, "Hi");
        snprintf(body + n, sizeof body - (size_t)n, "}");
        rig_post(&r, streams[i].path, body, &a);
        while (rig_event(&a, &at, &data)) {
            const json_value *e;
            if (str_is(data, "[DONE]") || !json_parse(&e, &a.mem, data, NULL, NULL)) continue;
            bool text =
                rig_str(e, "choices.0.delta.content").n || rig_str(e, "choices.0.text").n || rig_str(e, "content").n;
            if (text) CHECK_MSG(rig_at(e, "timings.prompt_ms"), "%.*s has no timings", STR_ARG(data));
            with += text;
            if (rig_at(e, "timings")) last = rig_int(e, "timings.predicted_n");
        }
        CHECK_MSG(with > 0 && last == 9, "%s: %zu events, %lld tokens", streams[i].path, with, (long long)last);
        rig_reply_deinit(&a);
    }
    rig_wait_idle(&r);
    rig_stop(&r);
}
