#include "load/sse.h"

#include "test.h"

static void put_event(void *ctx, str data)
{
    buf_put(ctx, data.s, data.n);
    buf_putc(ctx, '|');
}

static const struct {
    const char *in, *want;
} cases[] = {
    {"data: a\n\n", "a|"},
    {"data:a\ndata: b\ndata:  c\n\n", "a\nb\n c|"},
    {"data: a\r\n\r\ndata: b\r\rdata: c\n\r\n", "a|b|c|"},
    {"\xef\xbb\xbf"
     "data: a\n\n",
     "a|"},
    {": ping\n\nevent: x\nid: 7\nretry: 3\ndata: a\n\n\n\n", "a|"},
    {"data\n\ndata:\n\n", "||"},
    {"datax: a\n\ndat: b\n\n data: c\n\n", ""},
    {"data: unfinished\n", ""},
    {"data: unfinished", ""},
    {"data: {\"a\": \"\xc3\xa9: b\"}\n\ndata: [DONE]\n\n", "{\"a\": \"\xc3\xa9: b\"}|[DONE]|"},
};

/* In two pieces cut at every byte, and in bytes. */
TEST(load_sse_is_the_same_however_it_is_cut)
{
    sse_reader r;
    buf        out;
    err        e;
    buf_init(&out, 1 << 16);
    sse_init(&r, put_event, &out);
    for (size_t i = 0; i < COUNT(cases); i++) {
        str in = str_of(cases[i].in);
        for (size_t cut = 0; cut <= in.n + 1; cut++) {
            buf_clear(&out);
            sse_reset(&r);
            if (cut <= in.n) {
                CHECK_OK(sse_feed(&r, (str){in.s, cut}, &e), e);
                CHECK_OK(sse_feed(&r, (str){in.s + cut, in.n - cut}, &e), e);
            }
            for (size_t k = 0; cut > in.n && k < in.n; k++) CHECK_OK(sse_feed(&r, (str){in.s + k, 1}, &e), e);
            CHECK_MSG(str_is(buf_str(&out), cases[i].want), "cut at %zu '%s' is '%.*s'", cut, in.s, (int)out.n, out.p);
        }
    }
    sse_deinit(&r);
    buf_deinit(&out);
}

TEST(load_sse_is_bounded)
{
    static char some[1 << 16];
    sse_reader  r;
    buf         out;
    err         e  = {0};
    bool        ok = true;
    memset(some, 'x', sizeof some);
    buf_init(&out, 1 << 10);
    sse_init(&r, put_event, &out);
    for (int i = 0; ok && i < 1000; i++) ok = sse_feed(&r, (str){some, sizeof some}, &e);
    CHECK(!ok && strstr(e.text, "larger than 8 MiB"));
    sse_reset(&r);
    memcpy(some, "data:", 5);
    some[sizeof some - 1] = '\n';
    ok                    = true;
    for (int i = 0; ok && i < 1000; i++) ok = sse_feed(&r, (str){some, sizeof some}, &e);
    CHECK(!ok && strstr(e.text, "larger than 8 MiB"));
    sse_deinit(&r);
    buf_deinit(&out);
}
