/* An answer as its reader gets it: stop strings in the content, the end of a call, tokens of thoughts. */
#include "chat/stream.h"
#include "chat/gemma4_inside.h"

#include "base/fault.h"
#include "chat/transcript.h"
#include "test.h"
#include "tok/inside.h"

#define Q    "<|\"|>"
#define CALL "<|tool_call>call:f{s:" Q "stop" Q "}<tool_call|>"

typedef struct {
    tok        *tok;
    tok_ids     ids;
    transcript  x;
    chat_stream a;
} rig;

static bool rig_init(test_case *t, rig *r, const char *text)
{
    err e;
    *r = (rig){0};
    if (!CHECK_OK(tok_from_json(&r->tok, test_path("tests/golden/demo/tokenizer.json"), &gemma4_tokens, &e), e))
        return false;
    tok_ids_init(&r->ids, 1 << 16);
    buf_init(&r->x.text, 1 << 16);
    CHECK_OK(tok_encode(r->tok, &r->ids, str_of(text), true, &e), e);
    chat_stream_init(&r->a, &(chat_parse_options){
                                .format = &gemma4_format, .on_event = transcript_note, .ctx = &r->x, .tok = r->tok});
    return true;
}

static void rig_deinit(rig *r)
{
    chat_stream_deinit(&r->a);
    buf_deinit(&r->x.text);
    tok_ids_deinit(&r->ids);
    tok_free(r->tok);
}

/* Puts ids until the answer ends; returns how many it took. */
static size_t put_all(test_case *t, rig *r)
{
    size_t n = 0;
    err    e;
    while (n < r->ids.n && chat_stream_on_token(&r->a, r->ids.p[n++])) continue;
    CHECK_OK(chat_stream_finish(&r->a, &e), e);
    transcript_close(&r->x);
    return n;
}

static void check_answer(test_case *t, const char *text, const char *stop, bool one_call, const char *want)
{
    rig r;
    if (!rig_init(t, &r, text)) return;
    if (stop) CHECK(stop_add(&r.a.stop, str_of(stop)));
    r.a.one_call = one_call;
    put_all(t, &r);
    CHECK(r.a.over);
    CHECK_MSG(str_is(buf_str(&r.x.text), want), "'%s' gives '%.*s', expected '%s'", text, STR_ARG(buf_str(&r.x.text)),
              want);
    rig_deinit(&r);
}

TEST(answer_ends_before_a_stop_string_in_its_content)
{
    check_answer(t, "one stop two", NULL, false, "C(one stop two)");
    check_answer(t, "one stop two", "stop", false, "C(one )");
    check_answer(t, "one stop two", "st", false, "C(one )");
    check_answer(t, "one sto", "stop", false, "C(one sto)"); /* what was held comes out */
    check_answer(t, "one", "x", false, "C(one)");
    check_answer(t, "stop", "stop", false, "");
}

TEST(answer_has_no_stop_strings_in_thoughts_and_calls)
{
    check_answer(t, "<|channel>thought\nstop\n<channel|>a stop b", "stop", false, "R(stop)C(a )");
    check_answer(t, CALL "a stop" CALL, "stop", false, "0:f({\"s\":\"stop\"})|C(a )");
    check_answer(t, "s" CALL "top", "stop", false, "0:f({\"s\":\"stop\"})|"); /* the content is one text */
}

TEST(answer_of_one_call_ends_with_it)
{
    check_answer(t, "a" CALL "b" CALL, NULL, true, "C(a)0:f({\"s\":\"stop\"})|");
    check_answer(t, "a" CALL "b" CALL, NULL, false, "C(a)0:f({\"s\":\"stop\"})|C(b)1:f({\"s\":\"stop\"})|");
    check_answer(t, "no call", NULL, true, "C(no call)");
}

/* The token that completes a stop string or the one call is the last that is asked for. */
TEST(answer_asks_for_no_token_after_its_end)
{
    rig r;
    if (!rig_init(t, &r, CALL "x")) return;
    r.a.one_call = true;
    size_t n     = put_all(t, &r);
    CHECK(n < r.ids.n && r.ids.p[n - 1] == tok_find(r.tok, STR("<tool_call|>")));
    rig_deinit(&r);
    if (!rig_init(t, &r, "one stop two")) return;
    CHECK(stop_add(&r.a.stop, STR("stop")));
    n = put_all(t, &r);
    buf text;
    buf_init(&text, 1000);
    tok_decode(r.tok, r.ids.p, n, true, &text);
    CHECK(strstr((buf_putc(&text, 0), text.p), "stop") && n < r.ids.n);
    buf_clear(&text);
    tok_decode(r.tok, r.ids.p, n - 1, true, &text);
    CHECK(!strstr((buf_putc(&text, 0), text.p), "stop"));
    buf_deinit(&text);
    rig_deinit(&r);
}

/* Markers of a thought count, the text around it does not. */
TEST(answer_counts_tokens_of_thoughts)
{
    static const char *const texts[] = {"<|channel>thought\nTwo and two.\n<channel|>", "before <|channel>thought\nx",
                                        "no thought"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        rig r;
        if (!rig_init(t, &r, texts[i])) return;
        int32_t open = tok_find(r.tok, STR("<|channel>")), close = tok_find(r.tok, STR("<channel|>"));
        size_t  from = r.ids.n, to = r.ids.n;
        for (size_t k = 0; k < r.ids.n; k++) {
            if (r.ids.p[k] == open) from = k;
            if (r.ids.p[k] == close) to = k + 1;
        }
        put_all(t, &r);
        CHECK_INT(r.a.n_reasoning, to - from);
        rig_deinit(&r);
    }
}

/* A thought without its marker counts once it is known to be one. */
TEST(answer_counts_tokens_of_thoughts_without_a_marker)
{
    static const struct {
        const char *text;
        bool        thinking, all; /* all: up to <channel|>, or to the end without one */
    } cases[] = {
        {"thought\nTwo and two.\n<channel|>Four it is", false, true},
        {"thought\nFour it is", false, false},
        {"thought\nTwo and two.\n<channel|>Four it is", true, true},
        {"thought\nFour it is", true, true},
        {"thoughtful words", true, false},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        rig r;
        if (!rig_init(t, &r, cases[i].text)) return;
        chat_stream_deinit(&r.a);
        chat_stream_init(&r.a,
                         &(chat_parse_options){.format = &gemma4_format, .tok = r.tok, .thinking = cases[i].thinking});
        int32_t close = tok_find(r.tok, STR("<channel|>"));
        size_t  to    = 0;
        while (to < r.ids.n && r.ids.p[to] != close) to++;
        put_all(t, &r);
        CHECK_INT(r.a.n_reasoning, cases[i].all ? to + (to < r.ids.n) : 0);
        rig_deinit(&r);
    }
}

TEST(answer_without_a_reader_finds_its_end)
{
    rig r;
    if (!rig_init(t, &r, "one stop two")) return;
    chat_stream_deinit(&r.a);
    chat_stream_init(&r.a, &(chat_parse_options){.format = &gemma4_format, .tok = r.tok});
    CHECK(stop_add(&r.a.stop, STR("stop")));
    CHECK(put_all(t, &r) < r.ids.n);
    CHECK(r.a.stop.found);
    CHECK_INT(r.x.text.n, 0);
    rig_deinit(&r);
}

/* Content that found no memory is not passed over in silence. */
TEST(answer_says_when_memory_ran_out)
{
    bool failed = false, done = false;
    for (long n = 1; n < 60 && !done; n++) {
        rig r;
        err e = {0};
        if (!rig_init(t, &r, "<|channel>thought\nhm<channel|>one sto" CALL "two")) return;
        CHECK(stop_add(&r.a.stop, STR("stop")));
        buf_put(&r.x.text, "", 0);
        fault_fail_nth(n);
        for (size_t i = 0; i < r.ids.n; i++) chat_stream_put(&r.a, r.ids.p[i]);
        bool ok    = chat_stream_finish(&r.a, &e);
        long tries = fault_tries();
        fault_fail_nth(0);
        done = ok && tries < n;
        failed |= !ok;
        if (!ok) CHECK_INT(e.code, ERR_UNAVAILABLE);
        if (ok && !r.x.text.failed) {
            transcript_close(&r.x);
            CHECK_STR(buf_str(&r.x.text), STR("R(hm)C(one )0:f({\"s\":\"stop\"})|C(stotwo)"));
        }
        rig_deinit(&r);
    }
    CHECK(failed && done);
}
