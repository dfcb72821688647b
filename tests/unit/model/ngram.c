#include "base/clock.h"
#include "base/fault.h"
#include "model/drafter.h"
#include "test.h"

/* The best place by looking at every one of them, as src/model/ngram.c describes it. */
static int32_t plain_search(const int32_t *text, int32_t n)
{
    int32_t best   = -1;
    int     length = 2, places = 0;
    for (int32_t at = n - 2; at >= 2 && places < 32; at--) {
        int k = 0;
        while (k < 64 && k <= at && text[at - k] == text[n - 1 - k]) k++;
        if (k < 3) continue;
        places++;
        if (k > length) {
            best   = at;
            length = k;
        }
    }
    return best;
}

static void check_draft(test_case *t, drafter *d, draft_job *job, const int32_t *text, int32_t n, int n_want)
{
    int32_t at = plain_search(text, n);
    err     e;
    job->text   = text;
    job->n_text = n;
    job->n_want = n_want;
    job->n      = -1;
    fault_no_alloc_begin("draft");
    CHECK_OK(d->draft(d, NULL, &job, 1, &e), e);
    fault_no_alloc_end();
    if (!CHECK_MSG(job->n == (at < 0 ? 0 : n_want), "text of %d: %d guesses, place %d", n, job->n, at)) return;
    for (int i = 0; i < job->n; i++) {
        int32_t want = text[at + 1 + i % (n - 1 - at)]; /* period by period */
        CHECK_MSG(job->token[i] == want, "text of %d, place %d: guess %d is %d, expected %d", n, at, i, job->token[i],
                  want);
    }
}

enum { N_CTX = 3000 };

/* Text that repeats itself: random tokens, and now and then a run copied from before. */
static int32_t grow_text(int32_t *text, int32_t n, int more, int alphabet, uint64_t *seed)
{
    for (int end = n + more; n < end;) {
        if (n > 8 && test_rand(seed) % 8 == 0) {
            int32_t from = (int32_t)(test_rand(seed) % (uint64_t)n), run = (int32_t)(test_rand(seed) % 40);
            for (; run > 0 && n < end; run--) text[n++] = text[from++];
        } else
            text[n++] = (int32_t)(test_rand(seed) % (uint64_t)alphabet);
    }
    return n;
}

/* A lane's life: text grows by a few tokens at a time, is cut and grows differently, is cut to nothing. */
static void check_life(test_case *t, drafter *d, int alphabet, uint64_t seed)
{
    static int32_t text[N_CTX];
    draft_job      job = {0};
    int32_t        n   = 0;
    err            e;
    if (!CHECK_OK(d->lane_new(d, &job.lane, &e), e)) return;
    while (n < N_CTX - 100) {
        n = grow_text(text, n, 1 + (int)(test_rand(&seed) % 60), alphabet, &seed);
        check_draft(t, d, &job, text, n, 1 + (int)(test_rand(&seed) % DRAFT_MAX));
        if (test_rand(&seed) % 6 == 0) {
            n = (int32_t)(test_rand(&seed) % 16 == 0 ? 0 : n - (int32_t)(test_rand(&seed) % (uint64_t)(n / 2 + 1)));
            d->cut(d, job.lane, n);
            if (n == 0 && test_rand(&seed) % 2) break;
        }
    }
    d->lane_free(d, job.lane);
}

TEST(ngram_finds_what_a_plain_search_finds)
{
    static const int alphabet[] = {1, 2, 3, 5, 20, 1000, 250000};
    drafter         *d          = drafter_open_ngram(NULL, N_CTX);
    for (size_t i = 0; i < COUNT(alphabet); i++)
        for (uint64_t seed = 1; seed <= 6; seed++) check_life(t, d, alphabet[i], seed * 977 + i);
    d->close(d);
}

TEST(ngram_needs_three_tokens_in_common)
{
    static const int32_t two[] = {1, 2, 3, 4, 9, 3, 4}, three[] = {1, 2, 3, 4, 9, 2, 3, 4};
    drafter             *d   = drafter_open_ngram(NULL, 16);
    draft_job            job = {0}, *jobs[] = {&job};
    err                  e;
    CHECK(!d->one_pass);
    CHECK_INT(d->max_draft, DRAFT_MAX);
    CHECK_OK(d->lane_new(d, &job.lane, &e), e);
    job.n_want = 2;
    job.text   = two;
    job.n_text = (int32_t)COUNT(two);
    CHECK_OK(d->draft(d, NULL, jobs, 1, &e), e);
    CHECK_INT(job.n, 0);
    d->cut(d, job.lane, 0);
    job.text   = three;
    job.n_text = (int32_t)COUNT(three);
    CHECK_OK(d->draft(d, NULL, jobs, 1, &e), e);
    CHECK_INT(job.n, 2);
    CHECK_INT(job.token[0], 9);
    CHECK_INT(job.token[1], 2);
    d->lane_free(d, job.lane);
    d->close(d);
}

/* Nobody said cut(): guesses may be poor, but no place outside the text is read. */
TEST(ngram_survives_another_text)
{
    drafter  *d   = drafter_open_ngram(NULL, 600);
    draft_job job = {.n_want = DRAFT_MAX}, *jobs[] = {&job};
    uint64_t  s = 5;
    err       e;
    CHECK_OK(d->lane_new(d, &job.lane, &e), e);
    for (int i = 0; i < 400; i++) {
        int32_t  n    = (int32_t)(test_rand(&s) % 601);
        int32_t *text = xnew_n(int32_t, (size_t)n + 1); /* its own block: a sanitizer sees a read beyond it */
        grow_text(text, 0, n, 3, &s);
        job.text   = text;
        job.n_text = n;
        CHECK_OK(d->draft(d, NULL, jobs, 1, &e), e);
        for (int k = 0; k < job.n; k++) CHECK(job.token[k] >= 0 && job.token[k] < 3);
        mem_free(text);
    }
    d->lane_free(d, job.lane);
    d->close(d);
}

/* All one token: every position is on one list, and every place matches to the end. */
TEST(ngram_is_quick_on_hostile_text)
{
    enum { N = 131072 };
    drafter  *d    = drafter_open_ngram(NULL, N);
    int32_t  *text = xnew_n(int32_t, N);
    draft_job job = {.n_want = DRAFT_MAX, .text = text}, *jobs[] = {&job};
    err       e;
    CHECK_OK(d->lane_new(d, &job.lane, &e), e);
    double began = clock_s();
    for (job.n_text = 1; job.n_text <= N; job.n_text += 2) CHECK_OK(d->draft(d, NULL, jobs, 1, &e), e);
    CHECK_INT(job.n, DRAFT_MAX);
    /* A token that was never there, 40 before the end: no place matches as far as it would have to. */
    for (int i = 0; i < 1000; i++) {
        text[N - 40] = 1 + i % 7;
        job.n_text   = N;
        CHECK_OK(d->draft(d, NULL, jobs, 1, &e), e);
        d->cut(d, job.lane, N - 50);
    }
    d->cut(d, job.lane, 0);
    double took = clock_s() - began;
    CHECK_MSG(took < 2, "%.2f s for 66000 drafts", took);
    d->lane_free(d, job.lane);
    d->close(d);
    mem_free(text);
}

TEST(ngram_lane_needs_memory)
{
    drafter    *d = drafter_open_ngram(NULL, 5000);
    draft_lane *l;
    err         e;
    for (int i = 1; i <= 3; i++) {
        fault_fail_nth(i);
        CHECK_FAILS(d->lane_new(d, &l, &e), e, "no memory for an index of 5000 positions");
        CHECK(l == NULL);
    }
    fault_fail_nth(0);
    d->lane_free(d, NULL);
    d->close(d);
}
