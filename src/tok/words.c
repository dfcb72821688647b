/* Cuts a text into words, as a regular expression with ordered alternatives would:
 *
 *     1  (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *     2  [^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+
 *     3  \p{N}
 *     4   ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*
 *     5  \s*[\r\n]+
 *     6  \s+(?!\S)
 *     7  \s+
 *
 * L and M need no distinction: 2 takes a mark as the optional first character or as one of the rest, with the same
 * result. The scanner reads each character a constant number of times and never goes back over a word. */
#include "tok/unicode.h"

const char word_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                            " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

typedef struct {
    size_t   len; /* bytes; 0 at the end of the text */
    uint32_t c;
    char_class class;
} character;

static character char_at(str text, size_t i)
{
    character x = {.len = 0, .class = CHAR_OTHER};
    if (i >= text.n) return x;
    x.len = (size_t)utf8_decode(text.s + i, text.n - i, &x.c);
    if (!x.len) return (character){.len = 1, .c = 0xFFFD, .class = CHAR_OTHER};
    x.class = unicode_class(x.c);
    return x;
}

static bool is_newline(uint32_t c) { return c == '\r' || c == '\n'; }

/* Returns the end of the run of characters of a class that starts at i. */
static size_t run_end(str text, size_t i, char_class class)
{
    for (;;) {
        character x = char_at(text, i);
        if (!x.len || x.class != class) return i;
        i += x.len;
    }
}

static size_t newlines_end(str text, size_t i)
{
    while (i < text.n && is_newline((uint8_t)text.s[i])) i++;
    return i;
}

static uint32_t lower(uint32_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c == 0x17F ? 's' : c; /* U+017F: long s */ }

/* Returns the bytes of a contraction at the start of text, which starts with an apostrophe; 0: there is none. */
static size_t contraction(str text)
{
    character a = char_at(text, 1), b = char_at(text, 1 + a.len);
    if (!a.len) return 0;
    uint32_t x = lower(a.c), y = b.len ? lower(b.c) : 0;
    if (x == 's' || x == 't' || x == 'm' || x == 'd') return 1 + a.len;
    bool two = (x == 'r' && y == 'e') || (x == 'v' && y == 'e') || (x == 'l' && y == 'l');
    return two ? 1 + a.len + b.len : 0;
}

/* Returns the bytes of the white space that is a word of its own (5 to 7). Alternative 6 leaves the last character of
 * a run for the word that follows. */
static size_t white_space(str text)
{
    size_t i = 0, last = 0, newline = 0;
    for (;;) {
        character x = char_at(text, i);
        if (!x.len || x.class != CHAR_SPACE) break;
        last = i;
        i += x.len;
        if (is_newline(x.c)) newline = i;
    }
    if (newline) return newline;
    return i < text.n && last ? last : i;
}

size_t word_length(str text)
{
    character c   = char_at(text, 0);
    size_t    end = c.c == '\'' ? contraction(text) : 0;
    if (end) return end;
    if (c.class == CHAR_LETTER) return run_end(text, c.len, CHAR_LETTER);
    if (c.class == CHAR_NUMBER) return c.len;
    if (!is_newline(c.c) && (end = run_end(text, c.len, CHAR_LETTER)) > c.len) return end;
    size_t from = c.c == ' ' ? 1 : 0;
    if ((end = run_end(text, from, CHAR_OTHER)) > from) return newlines_end(text, end);
    return white_space(text);
}
