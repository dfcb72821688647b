/* tests/unit/test.h - a test is a function with a name; a failed check prints both values and goes on.
 *
 *   TEST(arena_grows) { CHECK_INT(2 + 2, 4); }
 *   TEST_LONG(arena_grows_far) { ... }
 *   TEST_SLOW(arena_grows_for_hours) { ... }
 *
 * All tests of the tree are linked into one program: build/unit [-v] [-j N] [--quick | --full] [part of a name ...].
 * A part with a slash is compared with the name of the source file: build/unit unit/json/.
 * TEST_LONG marks a test that takes about a second of CPU time: --quick (`make check`) leaves it out.
 * TEST_SLOW marks a test that takes seconds of CPU time and repeats quicker ones at length: it runs with --full
 * (`make test-all`), or when its full name is given. Other tests may ask test_full() for how much to do.
 * A test that cannot run here calls test_skip; with CI=true in the environment that is a failure. */
#ifndef TANDEM_TEST_H
#define TANDEM_TEST_H
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

#include <math.h>
#include <stdio.h>

typedef struct test_case test_case;
struct test_case {
    const char *name;
    const char *file; /* __FILE__ of its source */
    void (*run)(test_case *t);
    test_case *next;
    int        n_failed; /* checks */
    bool       skipped;
    int        level; /* 0: TEST, 1: TEST_LONG, 2: TEST_SLOW */
};

void test_register(test_case *t);
bool test_check(test_case *t, bool ok, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Returns true with --full: run every size and combination. Without it a test should take less than 2 s of CPU. */
bool test_full(void);
void test_skip(test_case *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Returns a directory for the scratch files of this test alone; it is made by the first call. */
const char *test_tmp_dir(void);
/* Removes it with all that is in it. Called after each test and at exit. */
void test_tmp_clear(void);
/* Writes a scratch file there and returns its path, good until the next call. */
const char *test_tmp_file(const char *name, const void *bytes, size_t n);
/* Collects the log at LOG_INFO until the end. The text is valid until the next begin. */
void        test_listen_begin(bool json);
const char *test_listen_end(void);
/* A path below the repository's root, whatever the working directory: good until the next call but three. */
const char *test_path(const char *rel);
/* Returns the CPU time that this process has used, in seconds: it does not depend on what else the machine does. */
double test_cpu_s(void);
/* Reproducible random numbers. */
uint64_t test_rand(uint64_t *state);
float    test_randn(uint64_t *state);

#define TEST(id)      TEST_DEFINE(id, 0)
#define TEST_LONG(id) TEST_DEFINE(id, 1)
#define TEST_SLOW(id) TEST_DEFINE(id, 2)
#define TEST_DEFINE(id, length)                                                                                        \
    static void      test_fn_##id(test_case *t);                                                                       \
    static test_case test_case_##id = {.name = #id, .file = __FILE__, .run = test_fn_##id, .level = length};           \
    __attribute__((constructor)) static void test_reg_##id(void) { test_register(&test_case_##id); }                   \
    static void                              test_fn_##id(__attribute__((unused)) test_case *t)

#define CHECK(cond)          test_check(t, (cond), __FILE__, __LINE__, "%s", #cond)
#define CHECK_MSG(cond, ...) test_check(t, (cond), __FILE__, __LINE__, __VA_ARGS__)
#define CHECK_INT(a, b)                                                                                                \
    do {                                                                                                               \
        long long a_ = (long long)(a), b_ = (long long)(b);                                                            \
        test_check(t, a_ == b_, __FILE__, __LINE__, "%s is %lld, expected %lld", #a, a_, b_);                          \
    } while (0)
#define CHECK_STR(a, b)                                                                                                \
    do {                                                                                                               \
        str a_ = (a), b_ = (b);                                                                                        \
        test_check(t, str_eq(a_, b_), __FILE__, __LINE__, "%s is '%.*s', expected '%.*s'", #a, STR_ARG(a_),            \
                   STR_ARG(b_));                                                                                       \
    } while (0)
#define CHECK_NEAR(a, b, tol)                                                                                          \
    do {                                                                                                               \
        double a_ = (a), b_ = (b);                                                                                     \
        test_check(t, fabs(a_ - b_) <= (tol), __FILE__, __LINE__, "%s is %.9g, expected %.9g", #a, a_, b_);            \
    } while (0)
/* A call that must succeed: prints its sentence when it does not. */
#define CHECK_OK(call, e) test_check(t, (call), __FILE__, __LINE__, "%s: %s", #call, (e).text)
/* A call that must fail with a sentence that contains `part`. */
#define CHECK_FAILS(call, e, part)                                                                                     \
    do {                                                                                                               \
        (e).text[0] = 0;                                                                                               \
        bool ok_    = (call);                                                                                          \
        test_check(t, !ok_ && strstr((e).text, (part)), __FILE__, __LINE__, "%s: %s; expected a failure with '%s'",    \
                   #call, ok_ ? "succeeded" : (e).text, (part));                                                       \
    } while (0)
#endif
