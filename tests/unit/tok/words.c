#include "base/clock.h"
#include "test.h"
#include "tok/unicode.h"

#include <strings.h>

/* Joins the words of a text with '|'. */
static void put_words(test_case *t, buf *out, str text)
{
    while (text.n) {
        size_t n = word_length(text);
        CHECK(n > 0 && n <= text.n);
        if (!n || n > text.n) return;
        buf_printf(out, "%s%.*s", out->n ? "|" : "", (int)n, text.s);
        text = (str){text.s + n, text.n - n};
    }
}

TEST(words_of_known_texts)
{
    static const char *const cases[][2] = {
        {"I'll pay $123.45!!\n\n  ok", "I|'ll| pay| $|1|2|3|.|4|5|!!\n\n| | ok"},
        {"x   \n\n  y", "x|   \n\n| | y"},
        {"a  b", "a| | b"},
        {"end   ", "end|   "},
        {"\tfoo 'Re", "\tfoo| '|Re"},
        {"def f(x):\n    return x+1", "def| f|(x|):\n|   | return| x|+|1"},
        {"e\xCC\x81t\xC3\xA9 42", "e\xCC\x81t\xC3\xA9| |4|2"},
        {"a\xC2\xA0"
         "b",
         "a|\xC2\xA0"
         "b"},
        {"!\xCC\x81"
         "a",
         "!\xCC\x81"
         "a"},
        {"I'VE he'D they'rE 'lL'm", "I|'VE| he|'D| they|'rE| '|lL|'m"},
        {"it'sx 'x '", "it|'s|x| '|x| '"},
        {"x'\xC5\xBF"
         "a",
         "x|'\xC5\xBF|a"}, /* a long s is an s */
        {"''s", "''|s"},
        {"'", "'"},
        {"'r", "'r"},
        {"'rx", "'rx"},
        {" 7", " |7"},
        {"a1b", "a|1|b"},
        {"\r\n\r\nx", "\r\n\r\n|x"},
        {" \n x", " \n| x"},
        {"?\r\n\nx", "?\r\n\n|x"},
        {"? \n", "?| \n"},
        {"\nx", "\n|x"},
        {" \xE3\x80\x80x", " |\xE3\x80\x80x"},
        {" \t", " \t"},
        {" \t!", " |\t|!"},
        {"  !", " | !"},
        {"\xE4\xB8\xAD\xE6\x96\x87\xEF\xBC\x8C\xE5\xA5\xBD", "\xE4\xB8\xAD\xE6\x96\x87|\xEF\xBC\x8C\xE5\xA5\xBD"},
        {"\xE0\xA4\x95\xE0\xA5\x8D\xE0\xA4\xB7 \xE0\xA5\xA7", "\xE0\xA4\x95\xE0\xA5\x8D\xE0\xA4\xB7| |\xE0\xA5\xA7"},
        {"\xF0\x9F\x98\x80\xF0\x9F\x98\x80 \xF0\x9F\x98\x80", "\xF0\x9F\x98\x80\xF0\x9F\x98\x80| \xF0\x9F\x98\x80"},
        {"a\xFF\xC3 \x80", "a|\xFF\xC3| \x80"}, /* bytes that are not UTF-8 are like punctuation */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        buf out;
        buf_init(&out, 1000);
        put_words(t, &out, str_of(cases[i][0]));
        CHECK_STR(buf_str(&out), str_of(cases[i][1]));
        buf_deinit(&out);
    }
}

/* --- the pattern, tried as it is written ----------------------------------------------------------- */
static bool space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
static bool newline(char c) { return c == '\r' || c == '\n'; }
static bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool digit(char c) { return c >= '0' && c <= '9'; }
static bool other(char c) { return !space(c) && !letter(c) && !digit(c); }

static size_t run(const char *s, size_t n, bool (*in)(char))
{
    size_t i = 0;
    while (i < n && in(s[i])) i++;
    return i;
}

/* Tries the alternatives of word_pattern in their order, for ASCII. */
static size_t first_match(const char *s, size_t n)
{
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    for (size_t k = 0; s[0] == '\'' && k < COUNT(ends); k++)
        if (strlen(ends[k]) < n && !strncasecmp(s + 1, ends[k], strlen(ends[k]))) return 1 + strlen(ends[k]);
    size_t prefix = !newline(s[0]) && !letter(s[0]) && !digit(s[0]);
    size_t k      = run(s + prefix, n - prefix, letter);
    if (k) return prefix + k;
    if (digit(s[0])) return 1;
    prefix = s[0] == ' ';
    k      = run(s + prefix, n - prefix, other);
    if (k) return prefix + k + run(s + prefix + k, n - prefix - k, newline);
    size_t blank = run(s, n, space);
    for (k = blank; k; k--)
        if (newline(s[k - 1])) return k;
    for (k = blank; k; k--) /* \s+(?!\S) */
        if (k == n || space(s[k])) return k;
    return blank;
}

TEST(words_agree_with_the_pattern)
{
    static const char alphabet[] = "  \t\r\n\n''''sStTreREvVmMlLdDxQ09.!-";
    uint64_t          seed       = 1;
    for (int i = 0; i < 200000; i++) {
        char   text[16];
        size_t n = 1 + test_rand(&seed) % sizeof text;
        for (size_t k = 0; k < n; k++) text[k] = alphabet[test_rand(&seed) % (sizeof alphabet - 1)];
        size_t got = word_length((str){text, n}), want = first_match(text, n);
        CHECK_MSG(got == want, "'%.*s': %zu, expected %zu", (int)n, text, got, want);
        if (got != want) return;
    }
}

/* No run of one character, or of two in turn, makes the work grow faster than the text. */
TEST(words_of_long_runs_take_linear_time)
{
    static const char *const unit[] = {"a",    " ",  "\n",  " \n",      "\t \n",        "'", "'s", "!", "1",
                                       "\xFF", " a", "\n ", "\xCC\x81", "\xE3\x80\x80", "! "};
    enum { N = 1 << 20 };
    char *text = xalloc(N + 16);
    for (size_t i = 0; i < COUNT(unit); i++) {
        size_t len = strlen(unit[i]), at = 0;
        for (; at < N; at += len) memcpy(text + at, unit[i], len);
        double from = clock_thread_s();
        for (str s = {text, at}; s.n;) {
            size_t n = word_length(s);
            s        = (str){s.s + n, s.n - n};
        }
        double spent = clock_thread_s() - from;
        CHECK_MSG(spent < 2, "a megabyte of '%s' takes %.1f s", unit[i], spent);
    }
    mem_free(text);
}
