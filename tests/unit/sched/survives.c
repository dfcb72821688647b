/* A text continues with the same tokens whatever keeps its state meanwhile: nothing (cold), the prefix cache (warm), the
 * disk tier, the disk tier of an engine that ended, a session, host memory. For every model family, method of speculation
 * and K/V type; and what was kept is drafted from in the first round. */
#include "base/clock.h"
#include "engine_rig.h"
#include "kv/pages.h"
#include "sched/engine.h"

#include <stdio.h>
#include <string.h>

enum { CTX = 256, PROMPT = 80, BEFORE = 40, AFTER = 32, TEXT = PROMPT + BEFORE, FILLER = 130 };
enum { REUSED = (TEXT - 1) / KV_PAGE * KV_PAGE };

typedef enum { NANO, QWEN, MODELS } model_name;
typedef struct {
    model_name    model;
    const char   *kv;
    tandem_method method;
    float         temp;
} combination;

typedef struct {
    combination c;
    char        name[96]; /* for messages */
    int         n_vocab;
    int32_t     text[TEXT];
    nano_answer whole, warm;
} trial;

static const char *dir_of(const char *name, int number)
{
    static char path[2][4096];
    char       *p = path[!strcmp(name, "cache")];
    snprintf(p, sizeof path[0], "%s/%s-%d", test_tmp_dir(), name, number);
    return p;
}

/* Sets the options of the model, with room for few texts. */
static void set_options(const trial *x, tandem_options *o)
{
    static char           path[2][4096];
    static tandem_drafter drafters[2];
    nano_options(o);
    if (x->c.model == QWEN) {
        snprintf(path[0], sizeof path[0], "%s", test_path("tests/golden/qwen35-dense"));
        snprintf(path[1], sizeof path[1], "%s", test_path("tests/golden/qwen35-dense-dflash"));
        o->path     = path[0];
        drafters[0] = (tandem_drafter){.path = path[0]};
        drafters[1] = (tandem_drafter){.path = path[1]};
        o->drafters = drafters;
    }
    o->n_ctx     = CTX;
    o->max_lanes = 1;
    o->kv_bytes  = strstr(x->c.kv, "f32") ? 6 << 20 : 3 << 20;
    o->kv_type   = x->c.kv;
}

/* Asks for n tokens after the first n_ids of the text. */
static void ask(test_case *t, tandem *e, const trial *x, const int32_t *ids, int n_ids, int n, const char *tenant,
                nano_answer *out)
{
    tandem_request r;
    nano_request(e, &r, n);
    r.ids               = ids;
    r.n_ids             = (size_t)n_ids;
    r.n_continued       = n_ids == TEXT ? BEFORE : 0;
    r.tenant            = tenant;
    r.spec.method       = x->c.method;
    r.temp              = x->c.temp;
    r.has_seed          = true;
    r.seed              = 7;
    r.presence_penalty  = x->c.temp > 0 ? 1.5f : 0;
    r.frequency_penalty = x->c.temp > 0 ? 0.5f : 0;
    nano_ask(t, e, &r, out);
}

static void make_prompt(trial *x)
{
    for (int i = 0; i < PROMPT; i++)
        x->text[i] = i < NANO_PROMPT && x->c.model == NANO ? nano_prompt[i] : 280 + i * 37 % 200;
}

static double acceptance(const nano_answer *a)
{
    const tandem_spec_counts *c = &a->result.usage.spec;
    return c->drafted ? (double)c->accepted / (double)c->drafted : 0;
}

/* Checks the second part of the text, which continues from `reused` tokens. */
static void check_part(test_case *t, const trial *x, const char *way, const nano_answer *a, int reused)
{
    CHECK_MSG(a->n == AFTER && !memcmp(a->token, x->whole.token + BEFORE, sizeof(int32_t) * AFTER),
              "%s, %s: another text", x->name, way);
    CHECK_MSG(a->result.usage.cached_tokens == reused, "%s, %s: %d tokens were reused, expected %d", x->name, way,
              a->result.usage.cached_tokens, reused);
    if (!reused || a == &x->warm || x->c.method == TANDEM_SPEC_AUTO) return; /* its choice depends on measured times */
    const tandem_spec_counts *got = &a->result.usage.spec, *want = &x->warm.result.usage.spec;
    CHECK_MSG(acceptance(a) >= 0.9 * acceptance(&x->warm) && (got->drafted > 0) == (want->drafted > 0),
              "%s, %s: %d of %d draft tokens were accepted, warm %d of %d", x->name, way, (int)got->accepted,
              (int)got->drafted, (int)want->accepted, (int)want->drafted);
    CHECK_MSG(got->plain_rounds == want->plain_rounds, "%s, %s: %d rounds without drafts, warm %d", x->name, way,
              (int)got->plain_rounds, (int)want->plain_rounds);
}

/* One engine that never ends: all at once, in two parts, and the second part without the first. */
static bool run_reference(test_case *t, trial *x)
{
    tandem_options o;
    tandem        *e;
    nano_answer    first, cold;
    set_options(x, &o);
    if (!nano_open(t, &e, &o)) return false;
    ask(t, e, x, x->text, PROMPT, BEFORE + AFTER, "whole", &x->whole);
    ask(t, e, x, x->text, PROMPT, BEFORE, "parts", &first);
    CHECK_MSG(first.n == BEFORE && !memcmp(first.token, x->whole.token, sizeof(int32_t) * BEFORE), "%s: the first part",
              x->name);
    memcpy(x->text + PROMPT, first.token, sizeof(int32_t) * BEFORE);
    ask(t, e, x, x->text, TEXT, AFTER, "parts", &x->warm);
    ask(t, e, x, x->text, TEXT, AFTER, "cold", &cold);
    tandem_close(e);
    check_part(t, x, "warm", &x->warm, REUSED);
    check_part(t, x, "cold", &cold, 0);
    return true;
}

/* Other texts evict the first part from the prefix cache; the tier below brings it back. */
static void check_evicted(test_case *t, const trial *x, const char *way, const tandem_options *o)
{
    tandem      *e;
    nano_answer  a;
    tandem_stats st;
    int32_t      other[FILLER];
    double       end = clock_s() + 20;
    if (!nano_open(t, &e, o)) return;
    ask(t, e, x, x->text, PROMPT, BEFORE, NULL, &a);
    do tandem_get_stats(e, &st); /* until both parts are on the disk: pages that are evicted before are lost */
    while (o->cache_dir && st.disk.written < 2 && clock_s() < end);
    int n = 2 * (int)(st.kv_bytes / st.kv_cached_bytes) + 2;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < FILLER; k++) other[k] = 280 + (k * 31 + i * 7) % 200;
        ask(t, e, x, other, FILLER, 2, NULL, &a);
    }
    tandem_get_stats(e, &st);
    CHECK_MSG(st.prefix_evicted > 0, "%s, %s: nothing was evicted", x->name, way);
    ask(t, e, x, x->text, TEXT, AFTER, NULL, &a);
    tandem_get_stats(e, &st);
    CHECK_MSG(st.disk.hits > 0, "%s, %s: no hit", x->name, way);
    tandem_close(e);
    check_part(t, x, way, &a, REUSED);
}

/* An engine writes the first part and ends; others continue: from the disk tier, and from a session. */
static void check_ended(test_case *t, const trial *x, const char *cache, const char *sessions)
{
    tandem_options         o;
    tandem                *e;
    nano_answer            a;
    tandem_session_info    info;
    tandem_session_content content;
    tandem_error           why = {0};
    tandem_session         s   = {.name = "s", .ids = x->text, .n_ids = TEXT, .n_prompt = PROMPT};
    set_options(x, &o);
    o.cache_dir   = cache;
    o.session_dir = sessions;
    if (!nano_open(t, &e, &o)) return;
    ask(t, e, x, x->text, PROMPT, BEFORE, NULL, &a);
    CHECK_OK(tandem_session_save(e, &s, &info, &why), why);
    tandem_close(e);
    o.session_dir = NULL;
    if (!nano_open(t, &e, &o)) return;
    ask(t, e, x, x->text, TEXT, AFTER, NULL, &a);
    tandem_close(e);
    check_part(t, x, "restart", &a, REUSED);
    o.cache_dir   = NULL;
    o.session_dir = sessions;
    if (!nano_open(t, &e, &o)) return;
    CHECK_OK(tandem_session_restore(e, &s, &content, &info, &why), why);
    tandem_session_content_free(&content);
    ask(t, e, x, x->text, TEXT, AFTER, NULL, &a);
    tandem_close(e);
    check_part(t, x, "session", &a, REUSED);
}

static void check_combination(test_case *t, combination c)
{
    static int     number;
    static trial   x; /* large */
    tandem_options o;
    x = (trial){.c = c};
    snprintf(x.name, sizeof x.name, "%s, %s, %s, temperature %g", c.model == QWEN ? "qwen35" : "nano",
             tandem_method_name((int)c.method), c.kv, (double)c.temp);
    make_prompt(&x);
    number++;
    if (!run_reference(t, &x)) return;
    check_ended(t, &x, dir_of("cache", number), dir_of("sessions", number));
    set_options(&x, &o);
    if (test_full() || c.method % 2) {
        o.cache_dir = dir_of("cache", ++number);
        check_evicted(t, &x, "disk", &o);
    }
    if (!test_full() && c.method % 2) return;
    o.cache_dir  = NULL;
    o.park_bytes = 64 << 20;
    check_evicted(t, &x, "parked", &o);
}

static const char *const kv_types[] = {"f16", "f32", "q8_0", "q4_0", "tq3", "k=q8_0,v=q4_0"};

/* Every method and every K/V type once, with one of the models. */
TEST_LONG(state_survives_with_every_method_and_kv_type)
{
    for (int m = TANDEM_SPEC_OFF; m <= TANDEM_SPEC_AUTO; m++)
        check_combination(t, (combination){m % 2 ? NANO : QWEN, kv_types[(m + 5) % (int)COUNT(kv_types)],
                                           (tandem_method)m, m < 3 ? 0.9f : 0});
}

TEST_SLOW(state_survives_with_every_combination)
{
    for (int model = 0; model < MODELS; model++)
        for (int m = TANDEM_SPEC_OFF; m <= TANDEM_SPEC_AUTO; m++)
            for (size_t k = 0; k < COUNT(kv_types); k++)
                for (int sampled = 0; sampled < 2; sampled++)
                    check_combination(
                        t, (combination){(model_name)model, kv_types[k], (tandem_method)m, sampled ? 0.9f : 0});
}
