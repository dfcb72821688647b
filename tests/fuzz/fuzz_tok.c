/* A text through the demo vocabulary and back. The first byte chooses the options. */
#include "base/mem.h"
#include "chat/gemma4_inside.h"
#include "require.h"
#include "tok/inside.h"
#include "tok/vocab.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MARKERS = 1, SHOW = 2, REFERENCE_CHARS = 300 };

static const tok *demo(void)
{
    static tok *t;
    err         e;
    if (!t && !tok_from_json(&t, TANDEM_ROOT "/tests/golden/demo/tokenizer.json", &gemma4_tokens, &e)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    return t;
}

/* Checks that decoding returns the text byte for byte, with U+2581 as a space. */
static void put_expected(buf *out, str text)
{
    for (size_t i = 0; i < text.n; i++) {
        bool space = i + 3 <= text.n && !memcmp(text.s + i, "\xE2\x96\x81", 3);
        buf_putc(out, space ? ' ' : text.s[i]);
        i += space ? 2 : 0;
    }
}

/* Encodes by the definition: searches all pairs for every merge. */
static void check_merges(const tok *t, str text, const tok_ids *ids)
{
    int32_t id[REFERENCE_CHARS];
    size_t  n = 0;
    for (size_t i = 0; i < text.n;) {
        uint32_t c;
        int      len  = utf8_decode(text.s + i, text.n - i, &c);
        int32_t  x    = len ? vocab_char(t, c == ' ' ? 0x2581 : c) : -1;
        size_t   used = len ? (size_t)len : 1;
        if (x >= 0) id[n++] = x;
        for (size_t k = 0; x < 0 && k < used; k++) id[n++] = t->byte_id[(uint8_t)text.s[i + k]];
        i += used;
    }
    for (;;) {
        size_t  best = 0;
        int32_t low  = VOCAB_NO_RANK;
        for (size_t i = 0; i + 1 < n; i++) {
            int32_t rank = vocab_rank(t, id[i], id[i + 1]);
            if (rank < low) {
                low  = rank;
                best = i;
            }
        }
        if (low == VOCAB_NO_RANK) break;
        id[best] = t->merged[low];
        memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof *id);
        n--;
    }
    REQUIRE(n == ids->n && (!n || !memcmp(id, ids->p, n * sizeof *id)));
}

/* The same bytes as byte tokens only: the printed text must not depend on how they were cut. */
static void check_stream(const tok *t, const buf *bytes, const buf *printed)
{
    tok_stream s;
    buf        out;
    buf_init(&out, 4 * bytes->n + 64);
    tok_stream_init(&s, t, false);
    for (size_t i = 0; i < bytes->n; i++) tok_stream_put(&s, t->byte_id[(uint8_t)bytes->p[i]], &out);
    tok_stream_finish(&s, &out);
    REQUIRE(str_eq(buf_str(&out), buf_str(printed)));
    for (size_t i = 0; i < out.n;) {
        uint32_t c;
        int      len = utf8_decode(out.p + i, out.n - i, &c);
        REQUIRE(len > 0);
        i += (size_t)len;
    }
    buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const tok *t = demo();
    tok_ids    ids;
    buf        bytes, expected, printed;
    err        e;
    if (!size) return 0;
    int  options = data[0];
    bool markers = options & MARKERS;
    str  text    = {(const char *)data + 1, size - 1};
    tok_ids_init(&ids, size);
    buf_init(&bytes, size);
    buf_init(&expected, size);
    buf_init(&printed, 4 * size);
    REQUIRE(tok_encode(t, &ids, text, markers, &e));
    for (size_t i = 0; i < ids.n; i++) {
        REQUIRE(ids.p[i] >= 0 && ids.p[i] < tok_size(t));
        tok_kind_t kind = tok_kind(t, ids.p[i]);
        REQUIRE(markers || kind == TOK_NORMAL || kind == TOK_BYTE);
        str b = tok_bytes(t, ids.p[i]);
        buf_put(&bytes, b.s, b.n);
    }
    put_expected(&expected, text);
    REQUIRE(str_eq(buf_str(&bytes), buf_str(&expected)));
    tok_decode(t, ids.p, ids.n, markers || options & SHOW, &printed);
    REQUIRE(!printed.failed);
    check_stream(t, &bytes, &printed);
    if (!markers && text.n <= REFERENCE_CHARS) check_merges(t, text, &ids);
    tok_ids_deinit(&ids);
    buf_deinit(&bytes);
    buf_deinit(&expected);
    buf_deinit(&printed);
    return 0;
}
