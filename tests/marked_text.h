/* marked_text.h - feeds a parser with text in which the markers are written out. */
#ifndef TANDEM_TESTS_MARKED_TEXT_H
#define TANDEM_TESTS_MARKED_TEXT_H
#include "base/buf.h"
#include "chat/gemma4_inside.h"

#include <string.h>

typedef struct {
    chat_parser *parser;
    buf          pending; /* the start of a marker */
} marked_text;

static inline void marked_text_init(marked_text *m, chat_parser *p)
{
    m->parser = p;
    buf_init(&m->pending, (size_t)1 << 28);
}

/* Returns whether s starts with a marker. *partly: s is the start of one. */
static inline bool marked_text_find(str s, gemma4_marker *out, bool *partly)
{
    *partly = false;
    for (gemma4_marker m = 0; m < GEMMA4_MARKERS; m++) {
        str name = gemma4_marker_name(m);
        *out     = m;
        if (s.n >= name.n && !memcmp(s.s, name.s, name.n)) return true;
        *partly |= s.n < name.n && !memcmp(s.s, name.s, s.n);
    }
    return false;
}

/* Parses a piece of text. Keeps the start of a marker until the rest of it comes. */
static inline void marked_text_put(marked_text *m, str text)
{
    buf_put(&m->pending, text.s, text.n);
    str s = buf_str(&m->pending);
    while (s.n) {
        const char   *at = memchr(s.s, '<', s.n);
        size_t        n  = at ? (size_t)(at - s.s) : s.n;
        gemma4_marker marker;
        bool          partly;
        gemma4_parser_put_text(m->parser, (str){s.s, n});
        s = (str){s.s + n, s.n - n};
        if (!s.n) break;
        if (marked_text_find(s, &marker, &partly)) {
            gemma4_parser_put_marker(m->parser, marker);
            n = gemma4_marker_name(marker).n;
        } else if (partly) {
            break;
        } else {
            gemma4_parser_put_text(m->parser, (str){s.s, 1});
            n = 1;
        }
        s = (str){s.s + n, s.n - n};
    }
    buf_drop_front(&m->pending, m->pending.n - s.n);
}

/* Parses the start of a marker that was kept, as text, and frees its memory. The parser must be finished next. Returns
 * false if memory was missing. */
static inline bool marked_text_end(marked_text *m)
{
    bool ok = !m->pending.failed;
    gemma4_parser_put_text(m->parser, buf_str(&m->pending));
    buf_deinit(&m->pending);
    return ok;
}
#endif
