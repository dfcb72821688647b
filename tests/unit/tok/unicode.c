#include "tok/unicode.h"

#include "base/clock.h"
#include "base/fault.h"
#include "test.h"

TEST(unicode_classes_of_characters)
{
    static const struct {
        uint32_t c;
        char_class class;
    } cases[] = {{0, CHAR_OTHER},        {'\t', CHAR_SPACE},     {'\n', CHAR_SPACE},    {0x0B, CHAR_SPACE},
                 {'\r', CHAR_SPACE},     {0x1C, CHAR_OTHER},     {' ', CHAR_SPACE},     {'!', CHAR_OTHER},
                 {'0', CHAR_NUMBER},     {'9', CHAR_NUMBER},     {':', CHAR_OTHER},     {'@', CHAR_OTHER},
                 {'A', CHAR_LETTER},     {'Z', CHAR_LETTER},     {'[', CHAR_OTHER},     {'_', CHAR_OTHER},
                 {'`', CHAR_OTHER},      {'a', CHAR_LETTER},     {'z', CHAR_LETTER},    {'{', CHAR_OTHER},
                 {0x7F, CHAR_OTHER},     {0x85, CHAR_SPACE},     {0xA0, CHAR_SPACE},    {0xAA, CHAR_LETTER},
                 {0xAD, CHAR_OTHER},     {0xB2, CHAR_NUMBER},    {0xBD, CHAR_NUMBER},   {0xD7, CHAR_OTHER},
                 {0xE9, CHAR_LETTER},    {0x301, CHAR_LETTER},   {0x416, CHAR_LETTER},  {0x663, CHAR_NUMBER},
                 {0x94D, CHAR_LETTER},   {0x967, CHAR_NUMBER},   {0x1680, CHAR_SPACE},  {0x180E, CHAR_OTHER},
                 {0x200A, CHAR_SPACE},   {0x200B, CHAR_OTHER},   {0x200D, CHAR_OTHER},  {0x2028, CHAR_SPACE},
                 {0x202F, CHAR_SPACE},   {0x205F, CHAR_SPACE},   {0x2167, CHAR_NUMBER}, {0x2460, CHAR_NUMBER},
                 {0x3000, CHAR_SPACE},   {0x3001, CHAR_OTHER},   {0x3007, CHAR_NUMBER}, {0x30AC, CHAR_LETTER},
                 {0x4E2D, CHAR_LETTER},  {0x9FFF, CHAR_LETTER},  {0xAC00, CHAR_LETTER}, {0xD7A3, CHAR_LETTER},
                 {0xD800, CHAR_OTHER},   {0xE000, CHAR_OTHER},   {0xFE0F, CHAR_LETTER}, {0xFEFF, CHAR_OTHER},
                 {0xFFFD, CHAR_OTHER},   {0x1D7D9, CHAR_NUMBER}, {0x1F600, CHAR_OTHER}, {0x20000, CHAR_LETTER},
                 {0xE0100, CHAR_LETTER}, {0x10FFFF, CHAR_OTHER}};
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECK_MSG(unicode_class(cases[i].c) == cases[i].class, "U+%04X has class %d, expected %d", cases[i].c,
                  unicode_class(cases[i].c), cases[i].class);
}

/* --- NFC ----------------------------------------------------------------------------------------- */
static void check_nfc(test_case *t, str text, str want)
{
    buf out;
    buf_init(&out, NFC_GROWTH * text.n);
    CHECK(nfc_put(&out, text));
    CHECK_STR(buf_str(&out), want);
    if (nfc_quick_check(text)) CHECK_STR(text, want);
    buf_deinit(&out);
}

TEST(nfc_of_known_texts)
{
    static const char *const cases[][2] = {
        {"", ""},
        {"plain text", "plain text"},
        {"e\xCC\x81", "\xC3\xA9"}, /* e U+0301 */
        {"xe\xCC\x81y", "x\xC3\xA9y"},
        {"\xCC\x81", "\xCC\x81"},                                 /* a mark alone */
        {"\xE2\x84\xAB", "\xC3\x85"},                             /* U+212B, a singleton */
        {"q\xCC\x87\xCC\xA3", "q\xCC\xA3\xCC\x87"},               /* classes 230 and 220 change places */
        {"s\xCC\x87\xCC\xA3", "\xE1\xB9\xA9"},                    /* U+1E69 from three */
        {"\xE1\xB8\x8B\xCC\xA3", "\xE1\xB8\x8D\xCC\x87"},         /* U+1E0B U+0323 gives U+1E0D U+0307 */
        {"a\xCC\x81\xCC\x81", "\xC3\xA1\xCC\x81"},                /* the first mark blocks the second */
        {"\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C"}, /* a Hangul syllable from three */
        {"\xED\x95\x98\xE1\x86\xAB", "\xED\x95\x9C"},             /* from a syllable and a tail */
        {"\xED\x95\x9C\xE1\x86\xAB", "\xED\x95\x9C\xE1\x86\xAB"}, /* a syllable has one tail at most */
        {"\xE0\xA4\xA8\xE0\xA4\xBC", "\xE0\xA4\xA9"},             /* U+0928 U+093C */
        {"\xE0\xA4\x95\xE0\xA4\xBC", "\xE0\xA4\x95\xE0\xA4\xBC"}, /* U+0958 is excluded from composition */
        {"\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC"},
        {"\xF0\x9D\x85\xA0", "\xF0\x9D\x85\x98\xF0\x9D\x85\xA5\xF0\x9D\x85\xAE"}, /* U+1D160: three times the bytes */
        {"\xEF\xAC\xAC", "\xD7\xA9\xD6\xBC\xD7\x81"},                             /* U+FB2C: two steps */
        {"\xE1\xBE\x82", "\xE1\xBE\x82"},                                         /* U+1F82: three steps and back */
        {"\xCE\xB1\xCC\x93\xCC\x80\xCD\x85", "\xE1\xBE\x82"},
        {"\xEF\xA4\x80", "\xE8\xB1\x88"},             /* U+F900 */
        {"\xE3\x82\xAB\xE3\x82\x99", "\xE3\x82\xAC"}, /* U+30AB U+3099 */
        {"\xFF"
         "e\xCC\x81\x80\xCC\x81",
         "\xFF\xC3\xA9\x80\xCC\x81"}, /* bytes that are not UTF-8 compose nothing */
        {"\xC3", "\xC3"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) check_nfc(t, str_of(cases[i][0]), str_of(cases[i][1]));
    check_nfc(t, (str){0}, (str){0});
}

/* Marks of two classes in turn: all marks of the lower class come first. */
TEST(nfc_sorts_a_megabyte_of_marks)
{
    enum { N = 1 << 18 };
    char *text = xalloc(4 * N + 1), *want = xalloc(4 * N + 1);
    text[0] = want[0] = 'q';
    for (size_t i = 0; i < N; i++) {
        memcpy(text + 1 + 4 * i, "\xCC\x87\xCC\xA3", 4);
        memcpy(want + 1 + 2 * i, "\xCC\xA3", 2);
        memcpy(want + 1 + 2 * N + 2 * i, "\xCC\x87", 2);
    }
    double from = clock_thread_s();
    check_nfc(t, (str){text, 4 * N + 1}, (str){want, 4 * N + 1});
    CHECK(clock_thread_s() - from < 5);
    mem_free(text);
    mem_free(want);
}

TEST(nfc_of_its_result_is_the_result)
{
    static const uint32_t from[] = {0x41, 0xC0, 0x300, 0x590, 0x900, 0x1100, 0x1E00, 0x3040, 0xAC00, 0xFB00, 0x1D150};
    uint64_t              seed   = 1;
    for (int i = 0; i < 20000; i++) {
        buf text, once;
        buf_init(&text, 1000);
        buf_init(&once, 1000);
        for (uint64_t n = test_rand(&seed) % 8; n; n--) {
            char     c[4];
            uint32_t x = from[test_rand(&seed) % COUNT(from)];
            buf_put(&text, c, (size_t)utf8_encode(c, x + (uint32_t)(test_rand(&seed) % 128)));
        }
        if (test_rand(&seed) % 8 == 0) buf_putc(&text, (char)test_rand(&seed));
        CHECK(nfc_put(&once, buf_str(&text)));
        check_nfc(t, buf_str(&once), buf_str(&once));
        if (nfc_quick_check(buf_str(&text))) CHECK_STR(buf_str(&text), buf_str(&once));
        buf_deinit(&text);
        buf_deinit(&once);
    }
}

TEST(nfc_answers_when_memory_runs_out)
{
    for (long n = 1; n < 10; n++) {
        buf out;
        buf_init(&out, 1000);
        fault_fail_nth(n);
        bool ok    = nfc_put(&out, STR("e\xCC\x81"));
        long tries = fault_tries();
        fault_fail_nth(0);
        CHECK(ok == (tries < n));
        buf_deinit(&out);
        if (ok) return;
    }
    CHECK(!"it never had enough memory");
}
