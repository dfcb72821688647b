/* Results in a SQLite file: order, the limit, several owners, and a file that is none. */
#include "store/results.h"

#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct {
    int  n, max;
    long first, last; /* the numbers in the texts */
} seen;

static bool note(void *ctx, int64_t ts, str text)
{
    seen *s = ctx;
    long  x = strtol(text.s, NULL, 10);
    if (!s->n) s->first = x;
    s->last = x;
    return ts == 1000 + x && ++s->n < s->max;
}

static seen read_all(test_case *t, results *h, int max)
{
    seen s = {.max = max};
    err  e = {0};
    CHECK_OK(results_each(h, note, &s, &e), e);
    return s;
}

static void add(test_case *t, results *h, int x)
{
    char text[16];
    err  e = {0};
    snprintf(text, sizeof text, "%d", x);
    CHECK_OK(results_add(h, 1000 + x, str_of(text), &e), e);
}

TEST(results_keeps_the_newest)
{
    char        dir[4096], file[4200];
    results    *h, *other;
    struct stat st;
    err         e = {0};
    snprintf(dir, sizeof dir, "%s/results", test_tmp_dir());
    snprintf(file, sizeof file, "%s/results.db", dir);
    CHECK_OK(results_open(&h, dir, &e), e);
    CHECK(stat(file, &st) == 0 && (st.st_mode & 0777) == 0600);
    CHECK_INT(read_all(t, h, 1000).n, 0);
    for (int i = 0; i < RESULTS_MAX + 5; i++) add(t, h, i);
    CHECK_OK(results_open(&other, dir, &e), e); /* of another process */
    add(t, other, RESULTS_MAX + 5);
    results_close(other);
    seen s = read_all(t, h, 1000);
    CHECK_INT(s.n, RESULTS_MAX);
    CHECK_INT(s.first, RESULTS_MAX + 5);
    CHECK_INT(s.last, 6);
    CHECK_INT(read_all(t, h, 3).n, 3);
    results_close(h);
    results_close(NULL);
}

TEST(results_in_memory_and_without_a_place)
{
    results *h;
    err      e = {0};
    char     dir[4096], file[4200];
    CHECK_OK(results_open(&h, NULL, &e), e);
    add(t, h, 7);
    CHECK_INT(read_all(t, h, 10).first, 7);
    results_close(h);
    CHECK_FAILS(results_open(&h, "/nonexistent/place", &e), e, "cannot make /nonexistent/place");
    CHECK(!h);
    snprintf(dir, sizeof dir, "%s/broken", test_tmp_dir());
    snprintf(file, sizeof file, "%s/results.db", dir);
    mkdir(dir, 0700);
    FILE *f = fopen(file, "w");
    for (int i = 0; i < 1000; i++) fputs("this is no database\n", f);
    fclose(f);
    e = (err){0};
    CHECK_FAILS(results_open(&h, dir, &e), e, "cannot open the results");
}
