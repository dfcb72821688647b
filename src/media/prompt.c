/* media/prompt.c - the spans of a prompt, their hashes and their ids in the prefix cache. */
#include "media/prompt.h"

#include "base/mem.h"
#include "base/sha256.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

struct media_prompt {
    atomic_int refs;
    int        n;
    media_span span[];
};

static void hash_span(media_span *s)
{
    sha256  h;
    char    hex[2 * MEDIA_HASH + 1];
    int32_t head[3] = {s->is_video, s->width, s->height};

    sha256_init(&h);
    sha256_put(&h, head, sizeof head);
    for (int i = 0; i < MEDIA_STEP_FRAMES && s->frames[i].rgb; i++)
        sha256_put(&h, s->frames[i].rgb, picture_bytes(&s->frames[i]));
    sha256_hex(&h, hex);
    for (int i = 0; i < MEDIA_HASH; i++) {
        int high = hex[2 * i], low = hex[2 * i + 1];
        s->hash[i] =
            (uint8_t)((high <= '9' ? high - '0' : high - 'a' + 10) << 4 | (low <= '9' ? low - '0' : low - 'a' + 10));
    }
}

media_prompt *media_prompt_new(media_span *spans, int n)
{
    media_prompt *m = xalloc(sizeof *m + (size_t)n * sizeof *m->span);

    m->refs = 1;
    m->n    = n;
    for (int i = 0; i < n; i++) {
        assert(i == 0 || spans[i].first >= spans[i - 1].first + spans[i - 1].n);
        m->span[i] = spans[i];
        memset(spans[i].frames, 0, sizeof spans[i].frames); /* m owns the pixels now */
        hash_span(&m->span[i]);
    }
    return m;
}

media_prompt *media_prompt_share(media_prompt *m)
{
    if (m) atomic_fetch_add(&m->refs, 1);
    return m;
}

void media_prompt_drop(media_prompt *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) > 1) return;
    for (int i = 0; i < m->n; i++)
        for (int k = 0; k < MEDIA_STEP_FRAMES; k++) picture_free(&m->span[i].frames[k]);
    mem_free(m);
}

int media_prompt_spans(const media_prompt *m) { return m ? m->n : 0; }

const media_span *media_prompt_span(const media_prompt *m, int i)
{
    assert(i >= 0 && i < m->n);
    return &m->span[i];
}

/* Word i of a span's ids is 31 bits of its hash, mixed with i so that a page cannot match at another place. */
static int32_t marked_id(const media_span *s, int32_t i)
{
    uint32_t word;
    memcpy(&word, s->hash + 4 * (i % (MEDIA_HASH / 4)), sizeof word);
    word ^= (uint32_t)i * 0x9e3779b1u;
    return (int32_t)(word | 0x80000000u);
}

void media_prompt_mark(const media_prompt *m, int32_t *ids, size_t n_ids)
{
    for (int k = 0; k < media_prompt_spans(m); k++) {
        const media_span *s = media_prompt_span(m, k);
        assert((size_t)s->first + (size_t)s->n <= n_ids);
        for (int32_t i = 0; i < s->n; i++) ids[s->first + i] = marked_id(s, i);
    }
}

int32_t media_prompt_chunk(const media_prompt *m, int32_t from, int32_t n)
{
    for (int k = 0; k < media_prompt_spans(m); k++) {
        const media_span *s   = media_prompt_span(m, k);
        int32_t           end = from + n;
        if (s->first < end && end < s->first + s->n) return s->first > from ? s->first - from : 0;
    }
    return n;
}

void media_prompt_place(const media_prompt *m, int cell, int32_t pos, int32_t out[3])
{
    int32_t shift = 0;
    for (int k = 0; k < media_prompt_spans(m); k++) {
        const media_span *s    = media_prompt_span(m, k);
        int32_t           cols = s->width / cell, rows = s->height / cell, i = pos - s->first;
        if (i < 0) break;
        if (i < s->n) {
            out[0] = s->first + shift;
            out[1] = s->first + shift + i / cols;
            out[2] = s->first + shift + i % cols;
            return;
        }
        shift += (cols > rows ? cols : rows) - s->n;
    }
    out[0] = out[1] = out[2] = pos + shift;
}
