/* Bursts of requests, some of which are cancelled: none fails, nothing is left behind, every token is accounted for.
 *
 *     engine_soak [ROUNDS] [REQUESTS] [MODEL]
 *
 * ROUNDS (3) times REQUESTS (100) come at once, with dflash_max_concurrent 4, then with auto, then without kept prefixes.
 * Behind each round: all answers have ended as they should, usage is what was delivered and what the engine counted, no
 * page is held and none reserved; behind the last one the heap holds what it held behind the first. MODEL: nano (default)
 * or nano-qwen. */
#include "stage.h"

#include "base/clock.h"
#include "base/mem.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_REQUESTS = 1000, READERS = 4, MAX_TOKENS = 48, WARM = 1 };

static prompt_set set;
static int        n_wrong;

#define WRONG(...)                                                                                                     \
    do {                                                                                                               \
        if (__atomic_add_fetch(&n_wrong, 1, __ATOMIC_RELAXED) <= 10) printf("FAILED: " __VA_ARGS__), putchar('\n');    \
    } while (0)

typedef struct {
    int         prompt, way, method, cancel_at, max_tokens;
    tandem_job *job;
    reply       got;
} call;
static call calls[MAX_REQUESTS];
static int  n_calls;

static void submit(tandem *t, call *c, uint64_t *random, bool warming)
{
    tandem_request r;
    tandem_error   e = {0};
    c->prompt        = (int)draw(random, (uint64_t)set.n_prompts);
    c->way           = warming ? N_WAYS - 1 : (int)draw(random, N_WAYS);
    c->method        = draw(random, 2) ? TANDEM_SPEC_AUTO : (int)draw(random, TANDEM_SPEC_AUTO);
    c->max_tokens    = warming ? MAX_TOKENS : 1 + (int)draw(random, MAX_TOKENS);
    c->cancel_at     = !warming && draw(random, 3) == 0 ? (int)draw(random, 12) : -1;
    c->got.n         = 0;
    request_for(&r, t, &set.prompt[c->prompt], c->way, (uint64_t)c->prompt, c->max_tokens);
    r.spec.method     = warming ? TANDEM_SPEC_AUTO : (tandem_method)c->method;
    r.ignore_stop_ids = r.ignore_stop_ids || warming;
    r.priority        = (int)draw(random, 3) - 1;
    r.tenant          = draw(random, 3) ? NULL : "another";
    if (!tandem_submit(t, &r, &c->job, &e)) WRONG("a request was refused: %s", e.text);
}

/* Takes what is there; true when it is done and gone. */
static bool attend(call *c)
{
    bool done = tandem_job_result(c->job) != NULL; /* before the last look at its tokens */
    reply_take(&c->got, c->job, done || c->cancel_at < 0 ? RIG_MAX_TOKENS : c->cancel_at - c->got.n);
    if (c->cancel_at >= 0 && c->got.n >= c->cancel_at) tandem_cancel(c->job);
    if (!done) return false;
    c->got.result = *tandem_job_result(c->job);
    tandem_release(c->job);
    c->job = NULL;
    return true;
}

/* Each reader looks after every READERS-th answer, and is not always quick. */
static void *read_all(void *first)
{
    call *waiting = first;
    while (waiting) {
        waiting = NULL;
        for (call *c = first; c < calls + n_calls; c += READERS)
            if (c->job && !attend(c)) waiting = c;
        if (waiting) tandem_wait(waiting->job, 0.002);
    }
    return NULL;
}

static long check_call(const call *c)
{
    const tandem_result *r = &c->got.result;
    if (r->finish == TANDEM_FINISH_ERROR || r->finish == TANDEM_FINISH_TIMEOUT || r->finish == TANDEM_FINISH_NONE)
        WRONG("an answer ended with %s: %s", tandem_finish_name(r->finish), r->error.text);
    if (r->finish == TANDEM_FINISH_CANCELLED && c->cancel_at < 0) WRONG("an answer was cancelled by nobody");
    if (r->finish == TANDEM_FINISH_LENGTH && c->got.n != c->max_tokens)
        WRONG("%d tokens where %d are the limit", c->got.n, c->max_tokens);
    if (r->usage.completion_tokens != c->got.n)
        WRONG("usage says %d tokens, %d were delivered", r->usage.completion_tokens, c->got.n);
    if (r->usage.prompt_tokens != (int32_t)set.prompt[c->prompt].n)
        WRONG("usage says %d prompt tokens", r->usage.prompt_tokens);
    return c->got.n;
}

static void check_texts(void)
{
    for (int i = 0; i < n_calls; i++)
        for (int k = 0; k < i; k++) {
            const call *a = &calls[i], *b = &calls[k];
            if (a->prompt != b->prompt || a->way != b->way) continue;
            bool less = a->got.n < b->got.n;
            if (!reply_begins(less ? &a->got : &b->got, less ? &b->got : &a->got))
                WRONG("two answers to prompt %d, %s, differ", a->prompt, sampling_ways[a->way].name);
        }
}

static int64_t finished(const tandem_stats *s)
{
    int64_t n = 0;
    for (int i = 0; i < TANDEM_FINISHES; i++) n += s->finished[i];
    return n;
}

/* The first one warms up: all lanes take what they keep. */
static void burst(tandem *t, uint64_t *random, bool warming)
{
    tandem_stats before, after;
    pthread_t    reader[READERS];
    long         tokens = 0;
    tandem_get_stats(t, &before);
    for (int i = 0; i < n_calls; i++) submit(t, &calls[i], random, warming);
    for (int i = 0; i < READERS; i++) pthread_create(&reader[i], NULL, read_all, &calls[i]);
    for (int i = 0; i < READERS; i++) pthread_join(reader[i], NULL);
    for (int i = 0; i < n_calls; i++) tokens += check_call(&calls[i]);
    check_texts();
    tandem_get_stats(t, &after);
    if (after.completion_tokens - before.completion_tokens != tokens)
        WRONG("the engine counted %lld tokens, %ld were delivered",
              (long long)(after.completion_tokens - before.completion_tokens), tokens);
    if (after.submitted - before.submitted != n_calls || finished(&after) - finished(&before) != n_calls)
        WRONG("%d requests, %lld submitted and %lld finished", n_calls, (long long)(after.submitted - before.submitted),
              (long long)(finished(&after) - finished(&before)));
    if (after.running || after.queued || after.kv_pinned_bytes || after.kv_reserved_bytes || after.failed_steps)
        WRONG("at rest %d run, %d wait, %llu bytes are pinned, %llu reserved, %lld steps failed", after.running,
              after.queued, (unsigned long long)after.kv_pinned_bytes, (unsigned long long)after.kv_reserved_bytes,
              (long long)after.failed_steps);
}

/* --- memory ---------------------------------------------------------------------------------------*/
static size_t heap_in_use(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static size_t resident(void)
{
    long  pages = 0;
    FILE *f     = fopen("/proc/self/statm", "r");
    malloc_trim(0);
    if (f && fscanf(f, "%*s %ld", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* A sanitizer's allocator keeps what was freed, and looks for leaks itself. */
static bool memory_is_ours(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#else
    return true;
#endif
}

static void soak(int n_rounds, const char *most, bool no_prefix)
{
    tandem_options o;
    tandem_drafter drafters[2];
    tandem_stats   s, warm = {0};
    uint64_t       random = 3;
    size_t         heap = 0, rss = 0;
    double         start = clock_s();
    stage_options(&o, &set, drafters);
    o.max_lanes = 32;
    o.no_prefix = no_prefix;
    tandem *t   = need_engine(&o);
    need_set(t, "dflash_max_concurrent", most);
    for (int r = 0; r < n_rounds + WARM; r++) {
        burst(t, &random, r < WARM);
        if (r == WARM - 1) heap = heap_in_use(), rss = resident(), tandem_get_stats(t, &warm);
    }
    size_t heap_end = heap_in_use(), rss_end = resident();
    tandem_get_stats(t, &s);
    if (no_prefix && s.kv_cached_bytes)
        WRONG("%llu bytes are kept though nothing was to be", (unsigned long long)s.kv_cached_bytes);
    if (memory_is_ours() && heap_end > heap + (256 << 10)) WRONG("the heap grew from %zu to %zu bytes", heap, heap_end);
    /* The prefix cache keeps more texts with every burst, and recurrent states with them. */
    size_t cached = s.kv_cached_bytes > warm.kv_cached_bytes ? s.kv_cached_bytes - warm.kv_cached_bytes : 0;
    if (memory_is_ours() && rss_end > rss + cached + cached / 4 + (16 << 20))
        WRONG("resident memory grew from %zu to %zu bytes", rss, rss_end);
    printf("dflash_max_concurrent %-4s %s: %lld requests, %lld tokens, %lld of %lld guesses right, %lld cancelled, "
           "heap %+ld bytes, "
           "%.1f s\n",
           most, no_prefix ? "nothing kept" : "prefixes kept", (long long)s.submitted, (long long)s.completion_tokens,
           (long long)s.spec.accepted, (long long)s.spec.drafted, (long long)s.finished[TANDEM_FINISH_CANCELLED],
           (long)heap_end - (long)heap, clock_s() - start);
    if (!s.spec.accepted || !s.finished[TANDEM_FINISH_CANCELLED]) WRONG("nothing was speculated, or nothing cancelled");
    tandem_close(t);
}

int main(int argc, char **argv)
{
    int n_rounds = argc > 1 ? atoi(argv[1]) : 3;
    n_calls      = argc > 2 ? atoi(argv[2]) : 100;
    if (n_calls > MAX_REQUESTS) return fprintf(stderr, "at most %d requests\n", MAX_REQUESTS), 2;
    stage_model = rig_find_model(argc > 3 ? argv[3] : "nano");
    prompts_open(&set, 24, 4);
    soak(n_rounds, "4", false);
    soak(n_rounds, "auto", false);
    soak(n_rounds, "auto", true);
    prompts_close(&set);
    printf("bursts of %d requests, %s: %s\n", n_calls, stage_model->name, n_wrong ? "FAILED" : "all cases passed");
    return n_wrong ? 1 : 0;
}
