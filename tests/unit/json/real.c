/* Reals through the reader and the writer: exact, shortest, whatever the locale. */
#include "test.h"
#include "json/internal.h"
#include "json/json.h"

#include <float.h>
#include <locale.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t bits_of(double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

static double of_bits(uint64_t u)
{
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

static void check_read(test_case *t, const char *text, double expected)
{
    double d = NAN;
    CHECK_MSG(json_real_read(str_of(text), &d) && bits_of(d) == bits_of(expected), "%.60s is %a, expected %a", text, d,
              expected);
}

static void check_print(test_case *t, double d, const char *expected)
{
    char   text[JSON_REAL_CHARS];
    size_t n = json_real_print(text, d);
    CHECK_STR(((str){text, n}), str_of(expected));
    check_read(t, expected, d);
}

TEST(json_reals_are_read_exactly)
{
    check_read(t, "0.0", 0.0);
    check_read(t, "-0.0", -0.0);
    check_read(t, "0e99999999999999999999", 0.0);
    check_read(t, "0.1", 0.1);
    check_read(t, "123456789012345e22", 123456789012345e22);
    check_read(t, "123456789012345e-22", 123456789012345e-22);
    check_read(t, "1234567890123456e23", 1234567890123456e23);
    check_read(t, "9007199254740993.0", 9007199254740992.0); /* a tie, to even */
    check_read(t, "9007199254740993.00000000000000000001", 9007199254740994.0);
    check_read(t, "2.2250738585072011e-308", 2.2250738585072011e-308); /* hung PHP and Java once */
    check_read(t, "5e-324", 4.9406564584124654e-324);
    check_read(t, "2.4703282292062327e-324", 0.0); /* just under half of the smallest */
    check_read(t, "2.4703282292062328e-324", 4.9406564584124654e-324);
    check_read(t, "1e-400", 0.0);
    check_read(t, "1e-99999999999999999999999", 0.0);
    check_read(t, "1.7976931348623158e308", DBL_MAX);
    check_read(t, "0.000001e6", 1.0);
    double d;
    CHECK(!json_real_read(STR("1.7976931348623159e308"), &d));
    CHECK(!json_real_read(STR("-1e309"), &d));
    CHECK(!json_real_read(STR("1e99999999999999999999999"), &d));
}

/* 1 + 2^-53 lies halfway between two doubles: it goes to the even one, and up when anything follows it,
 * at any distance. */
TEST(json_reals_of_any_length_are_read_exactly)
{
    static const char half[] = "1.00000000000000011102230246251565404236316680908203125";
    enum { ZEROS = 5000 };
    char *text = malloc(sizeof half + 2 * ZEROS + 16);
    check_read(t, half, 1.0);
    size_t n = (size_t)(stpcpy(text, half) - text);
    memset(text + n, '0', ZEROS);
    text[n + ZEROS] = 0;
    check_read(t, text, 1.0);
    strcpy(text + n + ZEROS, "1");
    check_read(t, text, 1.0000000000000002);
    memset(text, '0', ZEROS); /* 0.000...1e5000 and 1000...0e-5000 are both one */
    text[1] = '.';
    sprintf(text + ZEROS, "1e%d", ZEROS - 1);
    check_read(t, text, 1.0);
    text[0] = '1';
    memset(text + 1, '0', ZEROS - 1);
    sprintf(text + ZEROS, "e-%d", ZEROS - 1);
    check_read(t, text, 1.0);
    free(text);
}

TEST(json_reals_agree_with_strtod)
{
    uint64_t seed = 3;
    for (int i = 0; i < 20000; i++) {
        char text[64];
        int  n = 0, digits = 1 + (int)(test_rand(&seed) % 25), point = (int)(test_rand(&seed) % 25);
        for (int k = 0; k < digits; k++) {
            text[n++] = (char)(k ? '0' + test_rand(&seed) % 10 : '1' + test_rand(&seed) % 9);
            if (k == point && k + 1 < digits) text[n++] = '.';
        }
        sprintf(text + n, "e%d", (int)(test_rand(&seed) % 60) - 30 - (i % 7 ? 0 : 300));
        check_read(t, text, strtod(text, NULL));
    }
}

TEST(json_reals_are_printed_short_and_stay_reals)
{
    check_print(t, 0.0, "0.0");
    check_print(t, -0.0, "-0.0");
    check_print(t, 1, "1.0");
    check_print(t, -1.5, "-1.5");
    check_print(t, 0.1, "0.1");
    check_print(t, 0.1 + 0.2, "0.30000000000000004");
    check_print(t, 100, "100.0");
    check_print(t, 1234567.875, "1234567.875");
    check_print(t, 0.00001, "0.00001");
    check_print(t, 0.000001, "1e-6");
    check_print(t, 1.25e-7, "1.25e-7");
    check_print(t, 1e15, "1000000000000000.0");
    check_print(t, 1e16, "1e16");
    check_print(t, 9007199254740993, "9007199254740992.0");
    check_print(t, 1.7976931348623157e308, "1.7976931348623157e308");
    check_print(t, -2.2250738585072014e-308, "-2.2250738585072014e-308");
    check_print(t, 5e-324, "5e-324"); /* fewer digits than 15 are enough below the normal range */
    check_print(t, 0.1f, "0.10000000149011612");
}

TEST(json_reals_survive_printing_and_reading)
{
    uint64_t seed = 5;
    for (int i = 0; i < 20000; i++) {
        double d = of_bits(test_rand(&seed));
        if (i % 4 == 0) d = (double)(float)test_randn(&seed);
        if (i % 16 == 1) d = of_bits(test_rand(&seed) >> 12 >> test_rand(&seed) % 52); /* below the normal range */
        if (!isfinite(d)) continue;
        char   text[JSON_REAL_CHARS + 1];
        size_t n = json_real_print(text, d);
        CHECK_MSG(n < sizeof text, "%a takes %zu bytes", d, n);
        text[n] = 0;
        check_read(t, text, d);
        CHECK_MSG(strpbrk(text, ".e"), "%s reads back as an integer", text);
    }
}

/* Makes a locale whose point is a comma, as glibc would compile it: the machine need not have one. */
static bool set_comma_locale(const char *dir)
{
    static const struct {
        uint32_t magic, n, at[6];
        char     point[2], thousands[1], grouping[1];
        uint32_t point_wide, thousands_wide;
        char     codeset[8];
    } numeric = {0x20031115 ^ LC_NUMERIC, 6, {32, 34, 35, 36, 40, 44}, ",", "", "", ',', 0, "UTF-8"};
    char path[600];
    snprintf(path, sizeof path, "%s/comma", dir);
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/comma/LC_NUMERIC", dir);
    FILE *f = fopen(path, "wb");
    if (f) {
        fwrite(&numeric, sizeof numeric, 1, f);
        fclose(f);
    }
    setenv("LOCPATH", dir, 1);
    bool ok = setlocale(LC_NUMERIC, "comma") != NULL;
    unlink(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
    return ok;
}

static void check_in_comma_locale(test_case *t)
{
    char text[16];
    snprintf(text, sizeof text, "%.1f", 0.5);
    CHECK_STR(str_of(text), STR("0,5")); /* or the test tests nothing */
    check_print(t, 0.5, "0.5");
    check_print(t, 0.1 + 0.2, "0.30000000000000004");
    check_print(t, 1.5e300, "1.5e300");
    check_read(t, "123456789.0123456789e-3", 123456.7890123456789);
}

TEST(json_reals_do_not_know_the_locale)
{
    enum { NO_LOCALE = 100 };
    int         status;
    const char *dir = test_tmp_dir();
    pid_t       pid = fork(); /* the locale is the process's */
    if (!pid) {
        if (!set_comma_locale(dir)) _exit(NO_LOCALE);
        check_in_comma_locale(t);
        _exit(t->n_failed);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_LOCALE)
        test_skip(t, "this libc does not take a locale made by hand");
    else
        CHECK_INT(WEXITSTATUS(status), 0);
}
