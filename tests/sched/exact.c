/* A request's answer is its own: the same bytes alone or in any company, however it was cut, speculated and cached.
 *
 *     engine_exact [SIZE [KV [MODEL]]]
 *
 * The answer to each question (a prompt, a way of sampling, a seed) is made once by an engine without drafters, cache or
 * company. Then engines with random limits answer the same questions again, by every method, among 0, 1, 3, 16 and 31
 * others that come, go and are cancelled at random, with prefixes kept or not, while settings are changed; and in steps of
 * exactly 1, 2, 3, 5, 7, 16, 17, 23, 31 and 32 requests.
 *
 * Guesses are looked at too: those that one method makes behind one text are the same whenever it is asked again.
 * In every cell guesses must have been both right and wrong, and rounds must have been met again: a method that silently
 * ran plainly fails. SIZE (1) is how often, 0: a quick look. KV: types of K and V. MODEL: nano (default), nano-qwen,
 * nano-vision, most of whose prompts have a picture, or qwen35-dense or qwen35-moe, whose weights are random: an oracle
 * makes their drafts, and n-grams repeat themselves in one way alone. */
#include "stage.h"

#include "base/clock.h"
#include "base/mem.h"
#include "sched/inside.h"
#include "spec/inside.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_COMPANY = 32, N_METHODS = TANDEM_SPEC_AUTO + 1, ROUNDS = 1 << 18 };

static prompt_set set;
static int        max_tokens = 40;
static reply      plain[64][N_WAYS];
static bool       failed;

static uint64_t seed_of(int prompt, int way) { return (uint64_t)prompt * 1000 + (uint64_t)way; }

/* --- guesses --------------------------------------------------------------------------------------*/
/* Rounds that were seen, by a hash of (text, method, guesses wanted). Written on the engine's thread. */
typedef struct {
    uint64_t    key;
    bool        shared;
    int         n;
    int32_t     token[DRAFT_MAX];
    signed char parent[DRAFT_MAX];
} seen_round;
static struct {
    seen_round *slot;
    uint64_t    salt;   /* of what else may decide guesses: the drafter's context */
    bool        cached; /* prefixes are kept */
    long        n, met_again[SPEC_COUNTED], different[SPEC_COUNTED];
} rounds;

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 29;
}

/* Biases and penalties are the guesses' too. */
static uint64_t key_of(const spec *s, const spec_round *r)
{
    const lane_options *o    = &s->lanes[r->lane]->opt;
    const int32_t      *text = s->lanes[r->lane]->text;
    uint64_t            h    = mix(mix(0, rounds.salt + 1), (uint64_t)r->method);
    h                        = mix(mix(h, (uint64_t)r->n_want), (uint64_t)r->n_text);
    h                        = mix(mix(h, o->penalty.n_bias), (uint64_t)(o->penalty.repeat * 1000));
    for (int i = 0; i < r->n_text; i++) h = mix(h, (uint64_t)text[i]);
    return h | 1;
}

/* Chains that competed for rows may end early. */
static bool same_guesses(const seen_round *a, const spec_round *b)
{
    bool cut = a->shared || b->shared;
    if (a->n != b->n && !cut) return false;
    for (int i = 0; i < b->n && i < a->n; i++)
        if (a->token[i] != b->token[i] || a->parent[i] != b->parent[i]) return false;
    return true;
}

static void tell_difference(const seen_round *a, const spec_round *b)
{
    printf("FAILED: %s drafts differ behind the same %d tokens, %d wanted:", tandem_method_name((int)b->method),
           b->n_text, b->n_want);
    for (int i = 0; i < a->n; i++) printf(" %d<%d", a->token[i], a->parent[i]);
    printf(" |");
    for (int i = 0; i < b->n; i++) printf(" %d<%d", b->token[i], b->parent[i]);
    printf("\n");
}

/* The head of a checkpoint has K/V of its own, of which rows before the end of a prefix hit are missing. */
static bool own_head(void) { return stage_model->drafters[1] && !strcmp(stage_model->model, stage_model->drafters[1]); }

static void look_at_round(void *ctx, const spec_round *r)
{
    uint64_t    key = key_of(ctx, r);
    seen_round *s;
    if (r->shared && r->method == SPEC_TREE) return; /* any of its branches may be missing */
    if (r->method == SPEC_MTP && rounds.cached && own_head()) return;
    for (size_t i = key % ROUNDS; (s = &rounds.slot[i])->key && s->key != key; i = (i + 1) % ROUNDS) continue;
    if (s->key) {
        rounds.met_again[r->method]++;
        if (!same_guesses(s, r) && rounds.different[r->method]++ < 3) tell_difference(s, r);
    } else if (rounds.n < ROUNDS / 2) {
        rounds.n++;
        s->key    = key;
        s->shared = r->shared;
        s->n      = r->n;
        for (int i = 0; i < r->n; i++) {
            s->token[i]  = r->token[i];
            s->parent[i] = (signed char)r->parent[i];
        }
    }
}

static tandem *open_watched(const tandem_options *o)
{
    tandem *t                   = need_engine(o);
    t->m.spec->opt.on_round     = look_at_round;
    t->m.spec->opt.on_round_ctx = t->m.spec;
    return t;
}

/* --- one answer among others ----------------------------------------------------------------------*/
typedef struct {
    tandem_job *job;
    int         prompt, way, method, cancel_at; /* cancel_at < 0: it is let be */
    reply       got;
} flight;

typedef struct {
    long answers, tokens, wrong, cancelled, cached;
    long drafted, accepted, rounds;
} cell;
static cell cells[N_METHODS][N_WAYS];

static void count_failure(const flight *f, const char *where, const char *what)
{
    const reply *want = &plain[f->prompt][f->way];
    int          i    = 0;
    failed            = true;
    if (cells[f->method][f->way].wrong++ >= 3) return;
    while (i < f->got.n && i < want->n && f->got.token[i] == want->token[i] && f->got.logprob[i] == want->logprob[i])
        i++;
    printf("FAILED: %s, %s, prompt %d, %s: %s; %d tokens for %d, %s; token %d is %d, plainly %d\n", where,
           tandem_method_name(f->method), f->prompt, sampling_ways[f->way].name, what, f->got.n, want->n,
           tandem_finish_name(f->got.result.finish), i, i < f->got.n ? f->got.token[i] : -1,
           i < want->n ? want->token[i] : -1);
}

static void judge(flight *f, const char *where)
{
    const tandem_result *r    = &f->got.result;
    const reply         *want = &plain[f->prompt][f->way];
    cell                *c    = &cells[f->method][f->way];
    c->answers++;
    c->tokens += f->got.n;
    c->cached += r->usage.cached_tokens;
    c->drafted += r->usage.spec.drafted;
    c->accepted += r->usage.spec.accepted;
    c->rounds += r->usage.spec.rounds;
    if (r->usage.completion_tokens != f->got.n) count_failure(f, where, "usage is not what was delivered");
    if (f->method == TANDEM_SPEC_OFF && r->usage.spec.drafted)
        count_failure(f, where, "guesses though they were switched off");
    if (r->finish == TANDEM_FINISH_CANCELLED && f->cancel_at >= 0) {
        c->cancelled++;
        if (!reply_begins(&f->got, want)) count_failure(f, where, "another text before it was cancelled");
    } else if (r->finish != want->result.finish) {
        count_failure(f, where, r->finish == TANDEM_FINISH_ERROR ? r->error.text : "another end");
    } else if (!reply_same(&f->got, want)) {
        count_failure(f, where, "another text");
    }
}

static void launch(tandem *t, flight *f, uint64_t *random, int cancel_percent, bool (*on_token)(void *, int32_t))
{
    tandem_request r;
    tandem_error   e = {0};
    f->prompt        = (int)draw(random, (uint64_t)set.n_prompts);
    f->way           = (int)draw(random, N_WAYS);
    f->method        = (int)draw(random, N_METHODS);
    f->cancel_at     = draw(random, 100) < (uint64_t)cancel_percent ? (int)draw(random, (uint64_t)max_tokens) : -1;
    f->got.n         = 0;
    request_for(&r, t, &set.prompt[f->prompt], f->way, seed_of(f->prompt, f->way), max_tokens);
    r.spec.method = (tandem_method)f->method;
    r.priority    = (int)draw(random, 3);
    r.on_token    = on_token;
    if (stage_submit(t, &set, &r, &f->job, &e)) return;
    printf("FAILED: submit: %s\n", e.text);
    exit(1);
}

/* Takes what is there; true when it is done and gone. */
static bool attend(flight *f, const char *where)
{
    bool done = tandem_job_result(f->job) != NULL; /* before the last look at its tokens */
    reply_take(&f->got, f->job, RIG_MAX_TOKENS - f->got.n);
    if (f->cancel_at >= 0 && f->got.n >= f->cancel_at) tandem_cancel(f->job);
    if (!done) return false;
    f->got.result = *tandem_job_result(f->job);
    tandem_release(f->job);
    f->job = NULL;
    judge(f, where);
    return true;
}

/* --- alone ----------------------------------------------------------------------------------------*/
static void answer_plainly(void)
{
    tandem_options o;
    tandem_drafter drafters[2];
    tandem_error   e = {0};
    tandem_request r;
    stage_options(&o, &set, drafters);
    o.n_drafters = 0;
    o.max_lanes  = 1;
    o.no_prefix  = true;
    tandem *t    = need_engine(&o);
    for (int p = 0; p < set.n_prompts; p++)
        for (int w = 0; w < N_WAYS; w++) {
            request_for(&r, t, &set.prompt[p], w, seed_of(p, w), max_tokens);
            r.spec.method = TANDEM_SPEC_OFF;
            if (reply_of(&plain[p][w], t, &set, &r, &e) && plain[p][w].result.finish != TANDEM_FINISH_ERROR) {
                stage_learn(r.ids, r.n_ids, plain[p][w].token, (size_t)plain[p][w].n);
                continue;
            }
            printf("FAILED: prompt %d: %s %s\n", p, e.text, plain[p][w].result.error.text);
            exit(1);
        }
    tandem_close(t);
}

static void answer_alone(tandem *t)
{
    static flight  f;
    tandem_error   e = {0};
    tandem_request r;
    for (int p = 0; p < set.n_prompts; p++)
        for (int w = 0; w < N_WAYS; w++)
            for (int m = 0; m < N_METHODS; m++) {
                f = (flight){.prompt = p, .way = w, .method = m, .cancel_at = -1};
                request_for(&r, t, &set.prompt[p], w, seed_of(p, w), max_tokens);
                r.spec.method = (tandem_method)m;
                if (reply_of(&f.got, t, &set, &r, &e))
                    judge(&f, "alone");
                else
                    count_failure(&f, "alone", e.text);
            }
}

/* --- among others ---------------------------------------------------------------------------------*/
static void change_settings(tandem *t, uint64_t *random)
{
    static const char *const most[] = {"0", "1", "4", "auto"};
    if (draw(random, 2))
        need_set(t, "dflash_max_concurrent", most[draw(random, COUNT(most))]);
    else
        need_set(t, "dflash_enabled", draw(random, 4) ? "true" : "false");
}

/* Up to `company` others at a time: all at once at first, then as it comes. */
static void answer_among(tandem *t, int company, int n_requests, uint64_t *random, bool restless, const char *where)
{
    static flight f[MAX_COMPANY];
    int           wanted = company + 1, n_live = 0, n_launched = 0;
    for (int i = 0; i < MAX_COMPANY; i++) f[i].job = NULL;
    while (n_launched < n_requests || n_live) {
        for (int i = 0; i <= company; i++) {
            if (!f[i].job && n_live < wanted && n_launched < n_requests) {
                launch(t, &f[i], random, 15, NULL);
                n_live++;
                n_launched++;
            } else if (f[i].job && attend(&f[i], where)) {
                n_live--;
                wanted = 1 + (int)draw(random, (uint64_t)company + 1);
            }
        }
        if (restless && draw(random, 8) == 0) change_settings(t, random);
        for (int i = (int)draw(random, (uint64_t)company + 1), k = 0; k <= company; k++)
            if (f[(i + k) % (company + 1)].job) {
                tandem_wait(f[(i + k) % (company + 1)].job, 0.005);
                break;
            }
    }
    if (restless) {
        need_set(t, "dflash_max_concurrent", "auto");
        need_set(t, "dflash_enabled", "true");
    }
}

static void check_at_rest(tandem *t, const char *where)
{
    tandem_stats s;
    tandem_get_stats(t, &s);
    if (s.running == 0 && s.queued == 0 && s.kv_pinned_bytes == 0 && s.kv_reserved_bytes == 0 && s.failed_steps == 0)
        return;
    printf("FAILED: %s: at rest %d run, %d wait, %llu bytes are pinned and %llu reserved, %lld steps failed\n", where,
           s.running, s.queued, (unsigned long long)s.kv_pinned_bytes, (unsigned long long)s.kv_reserved_bytes,
           (long long)s.failed_steps);
    failed = true;
}

static void try_company(int company, int pass, int n_requests)
{
    tandem_options o;
    tandem_drafter drafters[2];
    char           where[64], stall[16];
    uint64_t       random  = (uint64_t)company * 100 + (uint64_t)pass + 1;
    bool           sliding = pass % 2 == 1;
    stage_options(&o, &set, drafters);
    drafters[0].n_ctx = sliding ? 192 : 0;
    rounds.salt       = sliding;
    o.max_lanes       = company + 1;
    int least_rows    = stage_picture_rows() + (company < 16 ? 16 : company + 1);
    o.step_tokens     = least_rows + (int)draw(&random, (uint64_t)(257 - least_rows));
    snprintf(stall, sizeof stall, "%d", 1 + (int)draw(&random, 10));
    o.no_prefix   = draw(&random, 3) == 0;
    rounds.cached = !o.no_prefix;
    snprintf(where, sizeof where, "among %d, pass %d", company, pass);
    tandem *t = open_watched(&o);
    need_set(t, "max_stall_ms", stall);
    if (company == 0) answer_alone(t);
    answer_among(t, company, n_requests, &random, false, where);
    answer_among(t, company, n_requests, &random, true, where);
    check_at_rest(t, where);
    tandem_close(t);
}

/* --- steps of every size --------------------------------------------------------------------------*/
/* Looks from inside a step how many there are; the first one waits until all have come. */
static struct {
    spec       *s;
    atomic_bool all_here;
    int         most;
} together;

static bool count_lanes(void *ctx, int32_t token)
{
    int n = 0;
    (void)ctx, (void)token;
    while (!atomic_load(&together.all_here)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    for (int i = 0; i < together.s->opt.max_lanes; i++) n += together.s->lanes[i] && together.s->lanes[i]->live;
    if (n > together.most) together.most = n;
    return true;
}

static void try_size(tandem *t, int n, uint64_t *random)
{
    static flight f[MAX_COMPANY];
    char          where[64];
    snprintf(where, sizeof where, "%d at once", n);
    atomic_store(&together.all_here, false);
    together.most = 0;
    for (int i = 0; i < n; i++) launch(t, &f[i], random, 0, count_lanes);
    atomic_store(&together.all_here, true);
    for (int i = 0; i < n; i++)
        while (!attend(&f[i], where)) tandem_wait(f[i].job, -1);
    if (together.most != n) {
        printf("FAILED: %s: %d ran together at most\n", where, together.most);
        failed = true;
    }
    check_at_rest(t, where);
}

static void try_sizes(void)
{
    static const int sizes[] = {1, 2, 3, 5, 7, 16, 17, 23, 31, 32};
    tandem_options   o;
    tandem_drafter   drafters[2];
    uint64_t         random = 5;
    stage_options(&o, &set, drafters);
    rounds.salt   = 0;
    rounds.cached = true;
    o.max_lanes   = MAX_COMPANY;
    tandem *t     = open_watched(&o);
    together.s    = t->m.spec;
    for (size_t i = 0; i < COUNT(sizes); i++) try_size(t, sizes[i], &random);
    tandem_close(t);
}

/* --- the end --------------------------------------------------------------------------------------*/
static bool must_draft(int method, int way)
{
    return method != TANDEM_SPEC_OFF &&
           (method != TANDEM_SPEC_NGRAM || !stage_model->random || sampling_ways[way].biased);
}

static long report(void)
{
    long tokens = 0, cached = 0;
    printf("%-10s %-14s %8s %8s %10s %8s %8s %9s %6s\n", "method", "way", "answers", "tokens", "cancelled", "cached",
           "drafted", "accepted", "wrong");
    for (int m = 0; m < N_METHODS; m++)
        for (int w = 0; w < N_WAYS; w++) {
            const cell *c    = &cells[m][w];
            bool        idle = must_draft(m, w) && !(c->accepted > 0 && c->accepted < c->drafted);
            cached += c->cached;
            printf("%-10s %-14s %8ld %8ld %10ld %8ld %8ld %9ld %6ld%s\n", tandem_method_name(m), sampling_ways[w].name,
                   c->answers, c->tokens, c->cancelled, c->cached, c->drafted, c->accepted, c->wrong,
                   idle ? "  FAILED: not both right and wrong guesses" : "");
            failed |= idle || c->wrong;
            tokens += c->tokens;
        }
    if (!cached) printf("FAILED: no prompt was found in the cache\n"), failed = true;
    for (int m = SPEC_OFF + 1; m < SPEC_METHODS; m++) {
        bool bad = rounds.met_again[m] == 0 || rounds.different[m];
        printf("%-10s %ld rounds met again, %ld with other guesses%s\n", tandem_method_name(m), rounds.met_again[m],
               rounds.different[m], bad ? "  FAILED" : "");
        failed |= bad;
    }
    return tokens;
}

int main(int argc, char **argv)
{
    static const int company[] = {0, 1, 3, 16, 31};
    int              size      = argc > 1 ? atoi(argv[1]) : 1;
    double           start     = clock_s();
    stage_kv                   = argc > 2 ? argv[2] : NULL;
    stage_model                = rig_find_model(argc > 3 ? argv[3] : "nano");
    rounds.slot                = xnew_n(seen_round, ROUNDS);
    prompts_open(&set, size > 1 ? 24 : 3 + size, size > 1 ? 8 : 1 + size);
    if (size == 0) max_tokens = 24;
    answer_plainly();
    for (int pass = 0; pass < 1 + size; pass++)
        for (size_t i = 0; i < COUNT(company); i++)
            try_company(company[i], pass, size ? 12 + company[i] * 3 / 2 : 4 + company[i]);
    try_sizes();
    long tokens = report();
    prompts_close(&set);
    mem_free(rounds.slot);
    printf("%ld tokens in %.0f s: %s\n", tokens, clock_s() - start, failed ? "FAILED" : "all cases passed");
    return failed ? 1 : 0;
}
