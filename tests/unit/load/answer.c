#include "load/answer.h"

#include "load/drive.h"
#include "stub.h"
#include "test.h"

/* A reply's bytes through the readers, in pieces; piece k comes at second k. */
static bool read_answer(load_answer *a, str in, size_t piece, load_gaps *gaps, err *e)
{
    http_response r;
    bool          ok = true, told = false;
    double        now = 0;
    err           why = {0};
    http_response_init(&r);
    load_answer_init(a);
    load_answer_begin(a, -1, gaps);
    for (size_t at = 0; ok && at < in.n && r.state != RESPONSE_DONE; now++)
        for (size_t end = in.n - at < piece ? in.n : at + piece; ok && at < end && r.state != RESPONSE_DONE;) {
            size_t used = 0;
            str    body;
            ok = http_response_feed(&r, (str){in.s + at, end - at}, &used, &body, &why);
            at += used;
            if (ok && !told && r.state != RESPONSE_HEAD) load_answer_head(a, &r), told = true;
            if (ok && body.n) load_answer_body(a, body, now);
        }
    ok = ok && http_response_end(&r, &why);
    ok = load_answer_end(a, now, ok ? NULL : &why, e);
    http_response_deinit(&r);
    return ok;
}

TEST(load_answer_counts_tokens_and_time)
{
    load_answer a;
    load_gaps   gaps = {0};
    err         e;
    buf         in;
    buf_init(&in, 1 << 16);
    stub_put_stream(&in, 40, ",\"timings\":{\"draft_n\":30,\"draft_n_accepted\":20,\"acceptance_length\":2.5}");
    for (size_t piece = 1; piece <= in.n; piece++) {
        gaps.n = 0;
        CHECK_OK(read_answer(&a, buf_str(&in), piece, &gaps, &e), e);
        CHECK_INT(a.s.pieces, 2);
        CHECK(a.s.has_usage);
        CHECK_INT(a.s.completion_tokens, 40);
        CHECK_INT(a.s.prompt_tokens, 11);
        CHECK_INT(a.s.cached_tokens, 4);
        CHECK_INT(a.s.drafted, 30);
        CHECK_INT(a.s.accepted, 20);
        CHECK_NEAR(a.s.acceptance_length, 2.5, 0);
        CHECK(a.s.due < a.s.first && a.s.first <= a.s.last && a.s.last <= a.s.end);
        CHECK_INT(gaps.n, 1);
        CHECK_NEAR(gaps.s[0], a.s.last - a.s.first, 1e-12);
        if (piece == 1) CHECK(gaps.s[0] > 50);
        load_answer_deinit(&a);
    }
    buf_clear(&in);
    stub_put_stream(&in, 0, "");
    CHECK_OK(read_answer(&a, buf_str(&in), 7, &gaps, &e), e);
    CHECK(!a.s.has_usage);
    CHECK_INT(a.s.completion_tokens, 2); /* pieces */
    load_answer_deinit(&a);
    buf_deinit(&in);
    mem_free(gaps.s);
}

#define SSE "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
TEST(load_answer_says_what_is_wrong)
{
    static const struct {
        const char *in, *why;
    } bad[] = {
        {"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>",
         "the response has type text/html, not an event stream"},
        {"HTTP/1.1 200 OK\r\nContent-Type: a\x9b\xc2\x9b\r\n\r\n", "has type a, not an event stream"},
        {"HTTP/1.1 200 OK\r\n\r\n{}", "the response has no type, not an event stream"},
        {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n", "compressed (gzip)"},
        {"HTTP/1.1 307 X\r\nLocation: http://h/x\r\nContent-Length: 0\r\n\r\n",
         "HTTP 307: the server redirects to http://h/x"},
        {"HTTP/1.1 401 X\r\n\r\n{\"error\":{\"message\":\"no \\u001b[31mkey\",\"code\":1}}", "HTTP 401: no [31mkey"},
        {"HTTP/1.1 400 X\r\n\r\n{\"error\":\"bad\"}", "HTTP 400: bad"},
        {"HTTP/1.1 422 X\r\n\r\n{\"detail\":\"worse\"}", "HTTP 422: worse"},
        {"HTTP/1.1 502 X\r\n\r\n<html>\n\x1b]0;x\x07 <h1>Bad  gateway\xc2\x9b</h1>\xff",
         "HTTP 502: <html> ]0;x <h1>Bad gateway </h1>"},
        {"HTTP/1.1 403 X\r\n\r\n{\"error\":\"\\u202eon\\u202c \\u2066a\\u2069 b\\u200bc\\u2028d\\u2060e\\ufeff "
         "\\u2027\\u2030\"}",
         "HTTP 403: on a b c d e \u2027\u2030"},
        {"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n", "HTTP 500"},
        {SSE "data: nonsense\n\n", "an event is not JSON"},
        {SSE "data: {\"error\":{\"message\":\"out of memory\"}}\n\n", "the server broke off: out of memory"},
        {SSE "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n", "without a finish reason and without [DONE]"},
        {SSE "data: [DONE]\n\n", "the response is empty"},
        {SSE, "without a finish reason"},
        {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 500\r\n\r\ndata: [DONE]\n\n",
         "in the middle of its response"},
        {"nonsense\n", "does not speak HTTP/1.1"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        load_answer a;
        load_gaps   gaps = {0};
        err         e;
        CHECK_FAILS(read_answer(&a, str_of(bad[i].in), 13, &gaps, &e), e, bad[i].why);
        load_answer_deinit(&a);
        mem_free(gaps.s);
    }
}

TEST(load_answer_ignores_odd_types)
{
    static const char in[] =
        SSE "data: 7\n\ndata: {\"choices\":{},\"usage\":[],\"timings\":3}\n\n"
            "data: {\"choices\":[1,{\"delta\":[]},{\"text\":\"x\",\"finish_reason\":\"stop\"}],\"usage\":"
            "{\"completion_tokens\":-4},\"timings\":{\"draft_n\":\"x\",\"acceptance_length\":null}}\n\n";
    load_answer a;
    load_gaps   gaps = {0};
    err         e;
    CHECK_OK(read_answer(&a, str_of(in), 9, &gaps, &e), e);
    CHECK_INT(a.s.completion_tokens, 1);
    CHECK(!a.s.has_usage && !a.s.drafted);
    load_answer_deinit(&a);
    mem_free(gaps.s);
}

TEST(load_counters)
{
    load_counters c = load_counters_read(STR("# HELP vllm:spec_decode_num_drafts_total x\n"
                                             "vllm:spec_decode_num_drafts_total{engine=\"0\",model=\"a b\"} 10.0\r\n"
                                             "vllm:spec_decode_num_drafts_total{engine=\"1\"} 5\n"
                                             "vllm:spec_decode_num_draft_tokens_total 4.5e1\n"
                                             "vllm:spec_decode_num_draft_tokens_total_more 7\n"
                                             "vllm:spec_decode_num_accepted_tokens_total 30\n"
                                             "tandem_spec_decode_num_draft_tokens_total 45"));
    CHECK(c.reported);
    CHECK_NEAR(c.rounds, 15, 0);
    CHECK_NEAR(c.drafted, 45, 0);
    CHECK_NEAR(c.accepted, 30, 0);
    c = load_counters_read(STR("tandem_spec_decode_num_draft_tokens_total 8\n"));
    CHECK(c.reported && c.drafted == 8);
    CHECK(!load_counters_read(STR("<html>\nvllm:spec_decode_num_draft_tokens_total")).reported);
    CHECK(!load_counters_read(STR("")).reported);
}
