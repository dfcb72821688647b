#include "tok/stop.h"

#include "test.h"

/* The plain answer: the text up to the earliest end of a stop string, less the longest string that ends there. */
static str plain(str text, const str *stops, int n_stops)
{
    for (size_t end = 1; end <= text.n; end++) {
        size_t cut = 0;
        for (int i = 0; i < n_stops; i++)
            if (stops[i].n <= end && stops[i].n > cut && !memcmp(text.s + end - stops[i].n, stops[i].s, stops[i].n))
                cut = stops[i].n;
        if (cut) return (str){text.s, end - cut};
    }
    return text;
}

static void check_split(test_case *t, str text, const str *stops, int n_stops, uint64_t *r)
{
    stop_match m;
    buf        out;
    buf_init(&out, 4096);
    stop_init(&m);
    for (int i = 0; i < n_stops; i++) CHECK(stop_add(&m, stops[i]));
    for (size_t at = 0; at < text.n;) {
        size_t n = 1 + test_rand(r) % 4;
        if (n > text.n - at) n = text.n - at;
        stop_put(&m, (str){text.s + at, n}, &out);
        at += n;
    }
    bool found = m.found;
    stop_finish(&m, &out);
    str want = plain(text, stops, n_stops);
    CHECK_STR(buf_str(&out), want);
    CHECK_INT(found, want.n < text.n);
    if (found) { /* the string that is named stands there */
        str s = stops[m.which];
        CHECK(want.n + s.n <= text.n && !memcmp(text.s + want.n, s.s, s.n));
    }
    CHECK_INT(m.n_held, 0);
    buf_deinit(&out);
}

TEST(stop_strings_are_found_in_any_split)
{
    static const str stops[] = {STR("ab"), STR("aab"), STR("bbb"), STR("ba"), STR("c"), STR("abacab")};
    uint64_t         r       = 3;
    for (int round = 0; round < 20000; round++) {
        char text[24];
        int  n = (int)(test_rand(&r) % sizeof text), first = (int)(test_rand(&r) % COUNT(stops));
        int  n_stops = 1 + (int)(test_rand(&r) % (COUNT(stops) - (size_t)first));
        for (int i = 0; i < n; i++) text[i] = "aabbc"[test_rand(&r) % 5];
        check_split(t, (str){text, (size_t)n}, stops + first, n_stops, &r);
    }
}

TEST(stop_strings_as_many_as_there_may_be)
{
    char     word[STOP_MAX_STRINGS][8];
    str      stops[STOP_MAX_STRINGS];
    uint64_t r = 5;
    for (int round = 0; round < 3000; round++) {
        char text[200];
        for (int i = 0; i < STOP_MAX_STRINGS; i++) {
            stops[i] = (str){word[i], 4 + test_rand(&r) % 5};
            for (size_t k = 0; k < stops[i].n; k++) word[i][k] = "aaab"[test_rand(&r) % 4];
        }
        for (size_t i = 0; i < sizeof text; i++) text[i] = "aabbbb"[test_rand(&r) % 6];
        check_split(t, (str){text, sizeof text}, stops, STOP_MAX_STRINGS, &r);
    }
}

/* Strings that do not begin in the text cost little while another one is held back. */
TEST(stop_strings_are_compared_where_they_begin)
{
    enum { N = 20000 };
    static char hold[STOP_MAX_BYTES], other[STOP_MAX_BYTES], text[N];
    stop_match  m;
    buf         out;
    double      took[2];
    memset(hold, 'a', sizeof hold);
    memset(other, 'b', sizeof other);
    memset(text, 'a', sizeof text);
    hold[STOP_MAX_BYTES - 1] = 'c';
    for (int many = 0; many < 2; many++) {
        stop_init(&m);
        for (int i = 0; i < (many ? STOP_MAX_STRINGS - 1 : 1); i++) stop_add(&m, (str){other, sizeof other});
        stop_add(&m, (str){hold, sizeof hold});
        buf_init(&out, N);
        double start = test_cpu_s();
        CHECK(!stop_put(&m, (str){text, N}, &out));
        took[many] = test_cpu_s() - start;
        stop_finish(&m, &out);
        CHECK_INT(out.n, N);
        buf_deinit(&out);
    }
    CHECK_MSG(took[1] < 40 * took[0] + 0.02, "%.4f s for 63 strings, %.4f s for one", took[1], took[0]);
}

TEST(stop_strings_that_make_no_sense_are_refused)
{
    stop_match m;
    char       s[STOP_MAX_BYTES + 1] = {0};
    stop_init(&m);
    CHECK(!stop_add(&m, STR("")));
    CHECK(!stop_add(&m, (str){s, sizeof s}));
    for (int i = 0; i < STOP_MAX_STRINGS; i++) CHECK(stop_add(&m, (str){s, STOP_MAX_BYTES}));
    CHECK(!stop_add(&m, STR("x")));
    buf out;
    buf_init(&out, 100);
    stop_init(&m); /* the first of two equal strings is named */
    CHECK(stop_add(&m, STR("y")) && stop_add(&m, STR("x")) && stop_add(&m, STR("x")));
    CHECK(stop_put(&m, STR("abxcd"), &out) && m.which == 1);
    CHECK(stop_put(&m, STR("ef"), &out)); /* the rest is swallowed */
    stop_finish(&m, &out);
    CHECK_STR(buf_str(&out), STR("ab"));
    buf_deinit(&out);
}
