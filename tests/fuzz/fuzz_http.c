/* Parses any bytes as HTTP requests. It must hold that
 *   - the input whole, byte by byte and in random pieces gives the same requests and the same refusals at the same
 *     byte;
 *   - accepted requests are well formed: names are words, values have no control characters, lengths fit the limits;
 *   - no more memory is used than the limits allow;
 *   - an allocation that fails gives a 503 or the same result. */
#include "base/fault.h"
#include "http_stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t piece_one(void *ctx, size_t bytes_left)
{
    (void)ctx, (void)bytes_left;
    return 1;
}

static size_t piece_random(void *ctx, size_t bytes_left)
{
    uint64_t *state = ctx;
    *state          = *state * 6364136223846793005u + 1442695040888963407u;
    size_t n        = 1 + (size_t)(*state >> 33) % (*state >> 60 ? 9 : 300);
    return n < bytes_left ? n : bytes_left;
}

static void put(buf *out, const char *what, str s)
{
    buf_printf(out, "%s %zu ", what, s.n);
    buf_put(out, s.s, s.n);
    buf_putc(out, '\n');
}

static void check_text(str s, bool is_word)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.s[i];
        MUST((c >= 0x20 || c == '\t') && c != 0x7f);
        MUST(!is_word || (c > 0x20 && c < 0x7f && c != ':'));
    }
}

static void check_accepted(const one_request *r)
{
    const http_head *h = &r->head;
    MUST(h->target.n && !memchr(h->target.s, ' ', h->target.n) && h->path.n <= h->target.n);
    MUST(!memchr(h->path.s, 0, h->path.n));
    MUST(!(h->chunked && h->has_length) && h->n_fields <= MAX_FIELDS && r->body.n <= MAX_BODY);
    MUST(h->chunked || r->body.n == h->length);
    check_text(h->target, true && !memchr(h->target.s, ':', h->target.n));
    for (size_t i = 0; i < h->n_fields; i++) {
        MUST(h->field[i].name.n > 0);
        check_text(h->field[i].name, true);
        check_text(h->field[i].value, false);
    }
}

static void write_request(buf *out, const one_request *r)
{
    buf_printf(out, "%d %zu %d\n", r->verdict.status, r->at, r->done);
    if (r->verdict.why) buf_puts(out, r->verdict.why);
    if (!is_accepted(r)) return;
    const http_head *h = &r->head;
    put(out, "method", h->method);
    put(out, "target", h->target);
    put(out, "path", h->path);
    put(out, "query", h->query);
    put(out, "body", buf_str(&r->body));
    buf_printf(out, "1.%d %d %d\n", h->minor, h->keep_alive, h->expects_continue);
    for (size_t i = 0; i < h->n_fields; i++) {
        put(out, "name", h->field[i].name);
        put(out, "value", h->field[i].value);
    }
}

static void transcribe(buf *out, str in, piece_fn *piece, void *ctx)
{
    size_t at = 0;
    bool   go = true;
    buf_init(out, 64 << 20);
    while (go && at < in.n) {
        one_request r;
        read_request(&r, in, at, piece, ctx);
        MUST(r.scan.bytes.cap <= MAX_HEAD && r.body.cap <= MAX_BODY);
        if (is_accepted(&r)) check_accepted(&r);
        write_request(out, &r);
        at = r.at;
        go = is_accepted(&r);
        drop_request(&r);
    }
    MUST(!out->failed);
}

static void check_starved(str in, const buf *expected, long nth)
{
    one_request r;
    buf         got;
    buf_init(&got, 64 << 20);
    fault_fail_nth(nth);
    read_request(&r, in, 0, piece_all, NULL);
    fault_fail_nth(0);
    write_request(&got, &r);
    MUST(r.verdict.status == 503 || (got.n <= expected->n && !memcmp(got.p, expected->p, got.n)));
    drop_request(&r);
    buf_deinit(&got);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    str      in    = {(const char *)data, size};
    uint64_t state = str_hash(in);
    buf      whole, ones, pieces;
    if (!size) return 0;
    transcribe(&whole, in, piece_all, NULL);
    transcribe(&ones, in, piece_one, NULL);
    transcribe(&pieces, in, piece_random, &state);
    MUST(str_eq(buf_str(&whole), buf_str(&ones)));
    MUST(str_eq(buf_str(&whole), buf_str(&pieces)));
    check_starved(in, &whole, 1 + (long)(size % 4));
    buf_deinit(&whole);
    buf_deinit(&ones);
    buf_deinit(&pieces);
    return 0;
}
