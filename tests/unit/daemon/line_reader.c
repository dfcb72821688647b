#include "daemon/line_reader.h"

#include "test.h"

#include <stdlib.h>

/* Splits the text into pieces of up to `piece` bytes and joins the lines as "<line>", those over the limit as "!". */
static void split_text(str text, size_t max, size_t piece, buf *out)
{
    line_reader r;
    str         line;
    line_kind   k;
    line_reader_init(&r, max);
    for (size_t at = 0; at < text.n; at += piece) {
        str in = {text.s + at, text.n - at < piece ? text.n - at : piece};
        while ((k = line_reader_next(&r, &in, &line)) != LINE_NONE)
            buf_printf(out, k == LINE_WHOLE ? "<%.*s>" : "!", (int)line.n, line.n ? line.s : "");
    }
    while ((k = line_reader_finish(&r, &line)) != LINE_NONE)
        buf_printf(out, k == LINE_WHOLE ? "<%.*s>" : "!", (int)line.n, line.n ? line.s : "");
    line_reader_deinit(&r);
}

static void check_split(test_case *t, const char *text, size_t max, const char *want)
{
    for (size_t piece = 1; piece <= strlen(text) + 1; piece++) {
        buf got;
        buf_init(&got, 1 << 16);
        split_text(str_of(text), max, piece, &got);
        CHECK_MSG(str_is(buf_str(&got), want), "pieces of %zu: '%.*s', expected '%s'", piece, (int)got.n, got.p, want);
        buf_deinit(&got);
    }
}

TEST(daemon_lines_are_split_at_any_byte)
{
    check_split(t, "a\nbc\n\nd", 100, "<a><bc><><d>");
    check_split(t, "a\r\n\r\nb\r", 100, "<a><><b>");
    check_split(t, "", 100, "");
    check_split(t, "\n", 100, "<>");
}

TEST(daemon_lines_over_the_limit_are_dropped_alone)
{
    check_split(t, "1234\n12345\n123\n", 4, "<1234>!<123>");
    check_split(t, "12345678901\n1", 4, "!<1>");
    check_split(t, "123456789", 4, "!");
}

TEST(daemon_lines_are_counted_and_free_their_memory)
{
    line_reader r;
    str         line;
    size_t      big  = 1 << 20;
    char       *text = malloc(big + 1);
    memset(text, 'x', big);
    text[big] = '\n';
    line_reader_init(&r, big);
    str half = {text, big / 2}, rest = {text + big / 2, big - big / 2 + 1}, none = {0};
    CHECK_INT(line_reader_next(&r, &half, &line), LINE_NONE);
    CHECK_INT(line_reader_next(&r, &rest, &line), LINE_WHOLE);
    CHECK_INT(line.n, big);
    CHECK_INT(line_reader_next(&r, &none, &line), LINE_NONE);
    CHECK_INT(r.held.cap, 0);
    CHECK_INT(r.n_lines, 1);
    line_reader_deinit(&r);
    free(text);
}
