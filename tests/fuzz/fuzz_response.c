/* Reads a server's bytes as a client does: the response, its events, their JSON. It must hold that
 *   - the input whole, byte by byte and in random pieces gives the same result or the same error;
 *   - the body that is reported lies inside the input;
 *   - error sentences, with the text that they quote, are UTF-8 without control characters. */
#include "http_stream.h"
#include "load/drive.h"
#include "load/inside.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_sentence(const char *s)
{
    MUST(*s);
    for (size_t left = strlen(s); left;) {
        uint32_t cp = 0;
        int      n  = utf8_decode(s, left, &cp);
        MUST(n && cp >= ' ' && (cp < 0x7f || cp >= 0xa0));
        s += n;
        left -= (size_t)n;
    }
}

static size_t piece_of(uint64_t *state, size_t left)
{
    *state   = *state * 6364136223846793005u + 1442695040888963407u;
    size_t n = 1 + (size_t)(*state >> 33) % (*state >> 60 ? 9 : 300);
    return n < left ? n : left;
}

static bool feed(http_response *r, load_answer *a, str in, bool *told, err *e)
{
    while (in.n && r->state != RESPONSE_DONE) {
        size_t used = 0;
        str    body;
        if (!http_response_feed(r, in, &used, &body, e)) return false;
        MUST(used > 0 && used <= in.n && (!body.n || (body.s == in.s && body.n == used)));
        if (!*told && r->state != RESPONSE_HEAD) {
            *told = true;
            load_answer_head(a, r);
        }
        if (body.n) load_answer_body(a, body, 1);
        in = (str){in.s + used, in.n - used};
    }
    return true;
}

/* how: 0 whole, 1 byte by byte, 2 random. */
static void transcribe(str in, int how, buf *out)
{
    http_response r;
    load_answer   a;
    load_gaps     gaps = {0};
    err           why = {0}, e = {0};
    bool          ok = true, told = false;
    uint64_t      state = str_hash(in);
    http_response_init(&r);
    load_answer_init(&a);
    load_answer_begin(&a, 0, &gaps);
    while (ok && in.n && r.state != RESPONSE_DONE) {
        size_t n = how == 0 ? in.n : how == 1 ? 1 : piece_of(&state, in.n);
        ok       = feed(&r, &a, (str){in.s, n}, &told, &why);
        in       = (str){in.s + n, in.n - n};
    }
    ok = ok && http_response_end(&r, &why);
    if (!ok) check_sentence(why.text);
    bool good = load_answer_end(&a, 2, ok ? NULL : &why, &e);
    if (!good) check_sentence(e.text);
    MUST(!good || a.s.completion_tokens > 0);
    buf_printf(out, "%d %d %s %lld %lld %lld %lld %g", r.status, good, good ? "" : e.text, (long long)a.s.pieces,
               (long long)a.s.completion_tokens, (long long)a.s.prompt_tokens, (long long)a.s.drafted,
               a.s.acceptance_length);
    http_response_deinit(&r);
    load_answer_deinit(&a);
    mem_free(gaps.s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    str          in = {(const char *)data, size};
    buf          out[3];
    load_prompts p;
    for (int i = 0; i < 3; i++) {
        buf_init(&out[i], 1 << 16);
        transcribe(in, i, &out[i]);
        MUST(str_eq(buf_str(&out[0]), buf_str(&out[i])));
    }
    for (int i = 0; i < 3; i++) buf_deinit(&out[i]);
    load_counters_read(in);
    err e = {0};
    if (!load_prompts_parse(&p, in, &e)) MUST(e.text[0]);
    load_prompts_deinit(&p);
    return 0;
}
