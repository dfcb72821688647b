/* The sections of a session's file: arbitrary bytes give a session whose tokens and options are in their ranges, or an
 * error. The input is a list of sections, without checksums: those are tested with store/pack. */
#include "base/mem.h"
#include "require.h"
#include "sched/session_file.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_VOCAB = 4096, MAX_SECTION = 1 << 16 };

/* Takes a number of n bytes from the front. */
static uint32_t take(const uint8_t **p, size_t *left, int n)
{
    uint32_t x = 0;
    for (int i = 0; i < n && *left; i++, (*p)++, (*left)--) x |= (uint32_t) * *p << 8 * i;
    return x;
}

/* Adds sections: kind, id, n, number of bytes, bytes. */
static void read_sections(pack *p, const uint8_t *data, size_t left)
{
    p->kind = take(&data, &left, 1);
    while (left && p->n < PACK_MAX_SECTIONS) {
        uint32_t kind = take(&data, &left, 1), id = take(&data, &left, 1), n = take(&data, &left, 4);
        size_t   bytes = take(&data, &left, 2);
        if (bytes > left) bytes = left;
        pack_section *s = pack_add(p, kind, id, bytes);
        if (!s) return;
        s->n = (int32_t)n;
        if (bytes) memcpy(s->data, data, bytes);
        data += bytes;
        left -= bytes;
    }
}

static void check_content(const tandem_session_content *c)
{
    REQUIRE(c->ids.n && c->n_prompt >= 0 && (size_t)c->n_prompt <= c->ids.n);
    for (size_t i = 0; i < c->ids.n; i++) REQUIRE(c->ids.p[i] < N_VOCAB); /* negative: a picture */
    REQUIRE(c->temp >= 0 && c->temp <= 100 && c->top_p >= 0 && c->top_p <= 1 && c->min_p >= 0 && c->min_p <= 1);
    REQUIRE(c->top_k >= 0 && c->repeat_penalty > 0 && c->presence_penalty >= -100 && c->frequency_penalty <= 100);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pack                  *p = xnew(pack);
    tandem_session_content c;
    err                    e = {0};
    read_sections(p, data, size);
    if (session_get(p, N_VOCAB, &c, &e))
        check_content(&c);
    else
        REQUIRE(e.code && e.text[0]);
    tandem_session_content_free(&c);
    pack_deinit(p);
    mem_free(p);
    return 0;
}
