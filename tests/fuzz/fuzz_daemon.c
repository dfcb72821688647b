/* The daemon's input: lines split at the same places however the bytes arrive, and each one parsed as a command of both
 * protocols. */
#include "daemon/command.h"
#include "daemon/line_reader.h"
#include "daemon/lines_command.h"
#include "require.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LINE = 4096 };

static void parse_line(str line)
{
    arena         mem;
    command       c;
    command_error why = {0};
    lines_command older;
    arena_init(&mem, 16 << 20);
    if (command_read(&c, &mem, line, 1, &why)) {
        bool flag = false;
        str  text = {0};
        REQUIRE(c.id && c.op < OP_COUNT && !why.code);
        command_bool(&c, "stream", &flag, &why);
        command_str(&c, "target", &text, &why);
    } else {
        REQUIRE(why.code && why.message[0]);
    }
    arena_deinit(&mem);
    lines_command_read(&older, line);
    REQUIRE(older.kind <= LINES_UNKNOWN && older.n >= 0 && older.slot >= 0 && older.slot < LINES_SLOTS &&
            older.snap_slot < LINES_SLOTS && older.temp >= 0);
}

/* Appends all lines, each with its kind before it. */
static void collect(str text, size_t piece, buf *out, bool parses)
{
    line_reader r;
    str         line;
    line_kind   k;
    line_reader_init(&r, MAX_LINE);
    for (size_t at = 0; at < text.n; at += piece) {
        str in = {text.s + at, text.n - at < piece ? text.n - at : piece};
        while ((k = line_reader_next(&r, &in, &line)) != LINE_NONE) {
            REQUIRE(line.n <= MAX_LINE);
            buf_putc(out, (char)k);
            if (line.n) buf_put(out, line.s, line.n);
            buf_putc(out, '\n');
            if (parses && k == LINE_WHOLE) parse_line(line);
        }
    }
    if ((k = line_reader_finish(&r, &line)) != LINE_NONE && k == LINE_WHOLE && line.n) buf_put(out, line.s, line.n);
    line_reader_deinit(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    str text = {(const char *)data, size};
    buf whole, pieces;
    buf_init(&whole, 64 << 20);
    buf_init(&pieces, 64 << 20);
    collect(text, size ? size : 1, &whole, true);
    collect(text, size ? 1 + data[0] % 7 : 1, &pieces, false);
    REQUIRE(str_eq(buf_str(&whole), buf_str(&pieces)));
    buf_deinit(&whole);
    buf_deinit(&pieces);
    return 0;
}
