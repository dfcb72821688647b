/* The next turn of a conversation has the same bytes wherever the state of the turns before it comes from.
 *
 *     engine_paths [CONVERSATIONS [KV [MODEL]]]
 *
 * A conversation is a prompt, its response, and a second prompt that begins with both. The response to the second prompt
 * is first made by an engine without drafters and prefix cache. Then it is made again, by every method, with the state of
 * the first turn
 *
 *     warm      in the prefix cache
 *     disk      in files of the disk tier, after the prefix cache was emptied
 *     restart   in the same files, by another engine
 *     snapshot  in a saved session, restored by another engine
 *     parked    in host memory, after other requests had filled the K/V cache
 *
 * Tokens and logprobs must be the same, and all whole pages of the first turn must be found. The draft tokens of every
 * round must be those of the warm run, the first round included, so that the acceptance is the same too; except for
 * auto, which chooses by measured times. KV: types of K and V (default f16), or "all": one run for each of a list. MODEL:
 * nano (default), nano-qwen, or qwen35-dense or qwen35-moe, whose drafters have random weights: hardly a draft token is
 * accepted. */
#include "stage.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "sched/inside.h"
#include "spec/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ANSWER = 40, MAX_TEXT = 2048, MAX_TALKS = 16, N_METHODS = TANDEM_SPEC_AUTO + 1 };
enum { WARM, DISK, RESTART, SNAPSHOT, PARKED, PATHS };
static const char *const path_names[PATHS] = {"warm", "disk", "restart", "snapshot", "parked"};

typedef struct {
    int32_t    text[MAX_TEXT];
    tandem_ids first, all, second; /* prompt; prompt and response; the prompt of the second turn */
    int        way;
    reply      plain; /* response to the second prompt */
} talk;

typedef struct {
    long turns, tokens, wrong, drafted, accepted;
    long undrafted;    /* first rounds without a draft */
    long other_drafts; /* turns with other drafts than the warm one */
} cell;

static prompt_set     set;
static talk           talks[MAX_TALKS];
static int            n_talks = 2;
static cell           cells[PATHS][N_METHODS];
static char           dir[4096];
static tandem_drafter drafters[2];
static int            n_ctx; /* of the longest conversation; 0: not known yet */
static int            n_repeated;
static bool           failed;

static struct { /* rounds of a response, seen on the engine thread */
    int      n, first_drafted;
    uint64_t hash; /* of all draft tokens */
} rounds;
static uint64_t warm_hash[MAX_TALKS][N_METHODS];

static void mix(uint64_t x) { rounds.hash = (rounds.hash ^ (x + 1)) * 0x9E3779B97F4A7C15ull; }

static void see_round(void *ctx, const spec_round *r)
{
    (void)ctx;
    if (!rounds.n++) rounds.first_drafted = r->n;
    mix((uint64_t)r->n_text << 32 | (uint64_t)r->n);
    for (int i = 0; i < r->n; i++) mix((uint64_t)r->token[i] << 32 | (uint64_t)(r->parent[i] + 1));
}

/* --- engines --------------------------------------------------------------------------------------*/
static void path_options(tandem_options *o, bool disk, bool sessions)
{
    static char cache[4200], saved[4200];
    stage_options(o, &set, drafters);
    o->n_ctx     = n_ctx ? n_ctx : o->n_ctx;
    o->max_lanes = 1;
    snprintf(cache, sizeof cache, "%s/cache", dir);
    snprintf(saved, sizeof saved, "%s/sessions", dir);
    if (disk) o->cache_dir = cache;
    if (sessions) o->session_dir = saved;
}

static tandem *open_path(const tandem_options *o)
{
    tandem *t               = need_engine(o);
    t->m.spec->opt.on_round = see_round;
    return t;
}

static void forget_prefixes(void *ctx, spec *s)
{
    (void)ctx;
    spec_forget(s);
}

/* Waits until all that ended is stored, and empties the prefix cache. */
static void forget_when_stored(tandem *t)
{
    tandem_stats s;
    int64_t      before = -1;
    for (int quiet = 0; quiet < 20; quiet++) { /* nothing was written for a while */
        tandem_get_stats(t, &s);
        if (s.disk.written != before) quiet = 0;
        before = s.disk.written;
        usleep(10000);
    }
    sched_do(t->sched, forget_prefixes, NULL, NULL);
}

/* --- turns ----------------------------------------------------------------------------------------*/
static void fail(const char *what, const char *why)
{
    printf("FAILED: %s: %s\n", what, why);
    failed = true;
}

static const char *tenant_of(int k, int method)
{
    static char name[32];
    snprintf(name, sizeof name, "%d-%d", k, method); /* methods share nothing */
    return name;
}

static void run(tandem *t, int k, int method, const tandem_ids *prompt, reply *out)
{
    tandem_request r;
    tandem_error   e = {0};
    request_for(&r, t, prompt, talks[k].way, (uint64_t)k, ANSWER);
    r.spec.method     = (tandem_method)method;
    r.tenant          = tenant_of(k, method);
    r.ignore_stop_ids = true;
    rounds.n = rounds.first_drafted = 0;
    rounds.hash                     = 1;
    if (!reply_of(out, t, &set, &r, &e)) fail("submit", e.text);
    if (out->result.finish == TANDEM_FINISH_ERROR) fail("a request", out->result.error.text);
}

static void first_turn(tandem *t, int k, int method)
{
    static reply got;
    run(t, k, method, &talks[k].first, &got);
    if ((size_t)got.n != talks[k].all.n - talks[k].first.n ||
        memcmp(got.token, talks[k].text + talks[k].first.n, (size_t)got.n * sizeof *got.token) != 0)
        fail("the first turn", "another text");
}

static bool is_read(int path) { return path == DISK || path == RESTART || path == PARKED; }

static void second_turn(tandem *t, int path, int k, int method)
{
    static reply got;
    const talk  *x = &talks[k];
    cell        *c = &cells[path][method];
    enum { TRIES = 20 };
    tandem_usage        u;
    const tandem_error *why   = &got.result.error;
    int                 pages = (int)(x->all.n - 1) / KV_PAGE * KV_PAGE; /* the last token of a response was not run */
    for (int i = 0; i < TRIES; i++) { /* on a busy machine the disk is not waited for, or measured as too slow */
        if (i > 0) sched_do(t->sched, forget_prefixes, NULL, NULL);
        run(t, k, method, &x->second, &got);
        if (got.result.usage.cached_tokens >= pages || !is_read(path)) break;
        n_repeated++;
    }
    u = got.result.usage;
    c->turns++;
    c->tokens += got.n;
    c->drafted += u.spec.drafted;
    c->accepted += u.spec.accepted;
    c->undrafted += method != TANDEM_SPEC_OFF && !rounds.first_drafted;
    if (path == WARM) warm_hash[k][method] = rounds.hash;
    c->other_drafts += rounds.hash != warm_hash[k][method];
    bool same = reply_same(&got, &x->plain);
    if (same && u.cached_tokens >= pages) return;
    failed = true;
    if (c->wrong++ < 3)
        printf("FAILED: %s, %s, conversation %d: %s, %d of %d tokens were cached %s\n", path_names[path],
               tandem_method_name(method), k, same ? "the same text" : "another text", u.cached_tokens, pages,
               why->text);
}

static void first_turns(tandem *t)
{
    for (int k = 0; k < n_talks; k++)
        for (int m = 0; m < N_METHODS; m++) first_turn(t, k, m);
}

static void second_turns(tandem *t, int path)
{
    for (int k = 0; k < n_talks; k++)
        for (int m = 0; m < N_METHODS; m++) second_turn(t, path, k, m);
}

/* --- paths ----------------------------------------------------------------------------------------*/
static void run_plain(void)
{
    tandem_options o;
    static reply   got;
    path_options(&o, false, false);
    o.n_drafters = 0;
    o.no_prefix  = true;
    tandem *t    = open_path(&o);
    for (int k = 0; k < n_talks; k++) {
        talk             *x    = &talks[k];
        const tandem_ids *p    = &set.prompt[set.n_short + k % (set.n_prompts - set.n_short)];
        const tandem_ids *next = &set.prompt[k % set.n_short];
        x->way                 = (int[]){0, 2, 3}[k % 3];
        memcpy(x->text, p->p, p->n * sizeof *x->text);
        x->first = (tandem_ids){x->text, p->n};
        run(t, k, TANDEM_SPEC_OFF, &x->first, &got);
        memcpy(x->text + p->n, got.token, (size_t)got.n * sizeof *x->text);
        x->all = (tandem_ids){x->text, p->n + (size_t)got.n};
        memcpy(x->text + x->all.n, next->p + 1, (next->n - 1) * sizeof *x->text);
        x->second = (tandem_ids){x->text, x->all.n + next->n - 1};
        run(t, k, TANDEM_SPEC_OFF, &x->second, &x->plain);
    }
    for (int k = 0; k < n_talks; k++) n_ctx = max_int(n_ctx, (int)talks[k].second.n + ANSWER);
    tandem_close(t);
}

/* Saves or restores the session of a conversation. */
static void turn_session(tandem *t, int k, int m, bool save)
{
    tandem_session_info    info;
    tandem_session_content content;
    tandem_error           e = {0};
    tandem_session         s = {.owner    = "me",
                                .name     = tenant_of(k, m),
                                .tenant   = tenant_of(k, m),
                                .ids      = talks[k].text,
                                .n_ids    = talks[k].all.n,
                                .n_prompt = (int32_t)talks[k].first.n};
    if (save ? !tandem_session_save(t, &s, &info, &e) : !tandem_session_restore(t, &s, &content, &info, &e))
        fail(save ? "save" : "restore", e.text);
    else if (!save)
        tandem_session_content_free(&content);
}

static void run_disk(void)
{
    tandem_options o;
    path_options(&o, true, true);
    tandem *t = open_path(&o);
    for (int k = 0; k < n_talks; k++)
        for (int m = 0; m < N_METHODS; m++) {
            first_turn(t, k, m);
            turn_session(t, k, m, true);
        }
    forget_when_stored(t);
    second_turns(t, DISK);
    tandem_close(t);
    path_options(&o, true, false);
    t = open_path(&o);
    second_turns(t, RESTART);
    tandem_close(t);
    path_options(&o, false, true);
    t = open_path(&o);
    for (int k = 0; k < n_talks; k++)
        for (int m = 0; m < N_METHODS; m++) {
            turn_session(t, k, m, false);
            second_turn(t, SNAPSHOT, k, m);
        }
    tandem_close(t);
}

static void run_warm(void)
{
    tandem_options o;
    path_options(&o, false, false);
    tandem *t = open_path(&o);
    for (int k = 0; k < n_talks; k++)
        for (int m = 0; m < N_METHODS; m++) {
            first_turn(t, k, m);
            second_turn(t, WARM, k, m);
        }
    tandem_close(t);
}

/* Runs other requests until the K/V cache has evicted more than it holds. */
static void fill_cache(tandem *t)
{
    static reply got;
    tandem_stats s;
    size_t       n = 0, enough;
    tandem_get_stats(t, &s);
    enough = (size_t)(s.kv_bytes / t->info.kv_bytes_per_token) * 2;
    for (int i = 0; n < enough; i++) {
        tandem_request    r;
        tandem_error      e = {0};
        char              tenant[32];
        const tandem_ids *p = &talks[i % n_talks].second;
        snprintf(tenant, sizeof tenant, "other %d", i);
        request_for(&r, t, p, 0, 0, 1);
        r.tenant = tenant;
        if (!reply_of(&got, t, &set, &r, &e)) fail("submit", e.text);
        n += p->n;
    }
}

/* The conversations are evicted by others. */
static void run_parked(void)
{
    tandem_options o;
    tandem_stats   s;
    path_options(&o, false, false);
    o.park_bytes = (uint64_t)1 << 30;
    tandem *t    = open_path(&o);
    first_turns(t);
    fill_cache(t);
    second_turns(t, PARKED);
    tandem_get_stats(t, &s);
    if (s.disk.hits < n_talks * N_METHODS) fail("parked", "not all came from host memory");
    tandem_close(t);
}

/* --- the table ------------------------------------------------------------------------------------*/
/* Returns whether the drafts of a method are the same whenever it runs, and there are some: n-grams of random weights do
 * not repeat themselves. */
static bool is_fixed(int m)
{
    return m != TANDEM_SPEC_OFF && m != TANDEM_SPEC_AUTO &&
           (m != TANDEM_SPEC_NGRAM || !stage_model || !stage_model->random);
}

static double acceptance(const cell *c) { return c->drafted ? (double)c->accepted / (double)c->drafted : 0; }

static void print_path(int path)
{
    printf("%-9s", path_names[path]);
    for (int m = 0; m < N_METHODS; m++) {
        const cell *c = &cells[path][m], *warm = &cells[WARM][m];
        bool        fixed = is_fixed(m);
        bool        ok    = !c->wrong && c->turns == n_talks && (!fixed || (warm->drafted > 0 && !c->other_drafts));
        if (m == TANDEM_SPEC_OFF)
            printf("  %9s", c->wrong ? "wrong" : "same");
        else
            printf("  %5.3f %ld %ld%s", acceptance(c), c->undrafted, c->other_drafts, ok ? "" : "!");
        failed |= !ok;
    }
    printf("\n");
}

static void run_types(const char *kv)
{
    double began = clock_s();
    char   command[4200];
    stage_kv = kv;
    n_ctx    = 0;
    memset(cells, 0, sizeof cells);
    snprintf(dir, sizeof dir, "%s/tandem-paths-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(dir)) exit(1);
    run_plain();
    run_warm();
    run_disk();
    run_parked();
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (system(command) != 0) exit(1);
    printf("%s, K/V %s, %d conversations, %.1f s, %d turns repeated; acceptance, first rounds without a draft, turns\n"
           "with other drafts than the warm one:\n%-9s",
           stage_model ? stage_model->name : "nano", kv ? kv : "f16", n_talks, clock_s() - began, n_repeated, "");
    for (int m = 0; m < N_METHODS; m++) printf("  %9s", tandem_method_name(m));
    printf("\n");
    for (int i = 0; i < PATHS; i++) print_path(i);
}

int main(int argc, char **argv)
{
    static const char *const all[] = {"f32", "f16", "q8_0", "q8_0/q4_0", "q4_0", "q8_0/tq3", "tq3", "f16/q4_0"};
    const char              *kv    = argc > 2 ? argv[2] : NULL;
    if (argc > 1) n_talks = atoi(argv[1]) < 1 ? 1 : atoi(argv[1]) > MAX_TALKS ? MAX_TALKS : atoi(argv[1]);
    if (argc > 3) stage_model = rig_find_model(argv[3]);
    prompts_open(&set, 8, 8);
    if (kv && !strcmp(kv, "all"))
        for (size_t i = 0; i < COUNT(all); i++) run_types(all[i]);
    else
        run_types(kv);
    prompts_close(&set);
    printf("%s\n", failed ? "FAILED" : "all paths passed");
    return failed;
}
