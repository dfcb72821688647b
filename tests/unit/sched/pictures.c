/* Requests with pictures: the text does not depend on methods, steps, other requests or the cache. */
#include "engine_rig.h"
#include "golden_media.h"
#include "model/vision_inside.h"
#include "sched/engine.h"
#include "sched/inside.h"

#include <time.h>

enum { N_OUT = 24 };

typedef struct {
    tandem      *e;
    safetensors *ref;
    media_case   x;
} stage;

/* Opens a model of the reference vectors with drafters of other sets, whose drafts are mostly wrong. */
static bool open_stage(test_case *t, stage *g, const media_set *x, int n_case, tandem_options o)
{
    static char    path[3][MEDIA_CASE_PATH], mmproj[MEDIA_CASE_PATH];
    tandem_error   why     = {0};
    bool           merged  = !strncmp(x->name, "qwen", 4);
    const char    *names[] = {merged ? "qwen35-dense-dflash" : "gemma4-dense-dflash", merged ? "qwen35-dense"
                                                                                      : strstr(x->name, "ple")
                                                                                          ? "gemma4-ple-assistant"
                                                                                          : "gemma4-moe-assistant"};
    tandem_drafter d[2]    = {{.path = path[1], .required = true}, {.path = path[2], .required = true}};
    char           name[256];
    *g = (stage){0};
    media_case_paths(x, path[0], mmproj);
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "tests/golden/%s", names[i]);
        snprintf(path[1 + i], sizeof path[1 + i], "%s", test_path(name));
    }
    if (mmproj[0]) o.mmproj = mmproj;
    o.path       = path[0];
    o.device     = "cpu";
    o.n_threads  = 2;
    o.n_ctx      = 512;
    o.kv_type    = "f32";
    o.drafters   = d;
    o.n_drafters = 2;
    g->ref       = media_case_open(t, x);
    return g->ref && CHECK_OK(tandem_open(&g->e, &o, &why), why) && CHECK(engine_media(g->e)) &&
           media_case_load(t, &g->x, g->ref, x, n_case, engine_media(g->e));
}

static void close_stage(stage *g)
{
    tandem_close(g->e);
    media_prompt_drop(g->x.media);
    safetensors_close(g->ref);
}

static tandem_options default_options(void)
{
    tandem_options o;
    tandem_options_init(&o);
    o.max_lanes = 4;
    return o;
}

static tandem_job *submit(test_case *t, stage *g, tandem_method method)
{
    tandem_request r;
    tandem_job    *j   = NULL;
    err            why = {0};
    tandem_request_init(g->e, &r);
    r.ids = g->x.id, r.n_ids = (size_t)g->x.T;
    r.max_tokens      = N_OUT;
    r.ignore_stop_ids = true;
    r.temp            = 0;
    r.repeat_penalty  = 1.1f; /* penalties skip the rows of pictures */
    r.spec.method     = method;
    CHECK_OK(engine_submit(g->e, &r, g->x.media, NULL, &j, &why), why);
    return j;
}

static bool ask(test_case *t, stage *g, tandem_method method, nano_answer *out)
{
    tandem_job *j = submit(t, g, method);
    if (!j) return false;
    nano_collect(j, out);
    return CHECK_MSG(out->result.finish == TANDEM_FINISH_LENGTH, "%s", out->result.error.text);
}

static void check_methods(test_case *t, const media_set *x, int n_case)
{
    static const tandem_method methods[] = {TANDEM_SPEC_NGRAM, TANDEM_SPEC_MTP, TANDEM_SPEC_DFLASH, TANDEM_SPEC_TREE,
                                            TANDEM_SPEC_AUTO};
    tandem_options             o         = default_options();
    stage                      g;
    nano_answer                plain, y;
    o.no_prefix = true;
    if (open_stage(t, &g, x, n_case, o) && ask(t, &g, TANDEM_SPEC_OFF, &plain)) {
        for (size_t i = 0; i < COUNT(methods); i++) {
            if (!ask(t, &g, methods[i], &y)) break;
            nano_same(t, &plain, &y);
            CHECK_INT(y.result.usage.cached_tokens, 0);
            if (methods[i] != TANDEM_SPEC_NGRAM && methods[i] != TANDEM_SPEC_AUTO)
                CHECK_MSG(y.result.usage.spec.drafted > 0, "%s: method %d drafts", x->name, (int)methods[i]);
        }
    }
    close_stage(&g);
}

TEST(pictures_text_does_not_depend_on_the_method)
{
    check_methods(t, &media_sets[0], 2);
    check_methods(t, &media_sets[1], 0);
    check_methods(t, &media_sets[2], 0);
    check_methods(t, &media_sets[3], 1);
}

/* The greedy text of the reference, as far as its margins are clear: positions after pictures are right. */
TEST(pictures_greedy_text_is_that_of_the_reference)
{
    for (int n_case = 0; n_case < 2; n_case++) {
        stage          g;
        tandem_job    *j;
        tandem_request r;
        nano_answer    y;
        err            why = {0};
        if (open_stage(t, &g, &media_sets[3], n_case, default_options())) {
            const tensor *want   = media_case_find(g.ref, n_case, "greedy"),
                         *margin = media_case_find(g.ref, n_case, "greedy_margin");
            tandem_request_init(g.e, &r);
            r.ids = g.x.id, r.n_ids = (size_t)g.x.T, r.max_tokens = N_OUT, r.ignore_stop_ids = true, r.temp = 0;
            if (CHECK_OK(engine_submit(g.e, &r, g.x.media, NULL, &j, &why), why)) {
                nano_collect(j, &y);
                CHECK_INT(y.n, N_OUT);
                for (int i = 0; i < y.n; i++) {
                    float   gap;
                    int32_t w;
                    memcpy(&gap, (const char *)margin->data + 4 * i, 4);
                    memcpy(&w, (const char *)want->data + 4 * i, 4);
                    if (gap < 1e-2f) break;
                    CHECK_INT(y.token[i], w);
                }
            }
        }
        close_stage(&g);
    }
}

/* Steps of other sizes, and requests at the same time, in any order. */
static void check_company(test_case *t, const media_set *x, int n_case, int step_tokens)
{
    tandem_options o = default_options();
    stage          g, h;
    nano_answer    alone, y;
    bool           ok = open_stage(t, &g, x, n_case, o) && ask(t, &g, TANDEM_SPEC_OFF, &alone);
    o.step_tokens     = step_tokens;
    if (ok && open_stage(t, &h, x, n_case, o)) {
        tandem_job *j[6];
        for (int i = 0; i < 6; i++) j[i] = submit(t, &h, i % 2 ? TANDEM_SPEC_NGRAM : TANDEM_SPEC_OFF);
        for (int i = 0; i < 6; i++) {
            if (!j[i]) continue;
            nano_collect(j[i], &y);
            nano_same(t, &alone, &y);
        }
        close_stage(&h);
    }
    close_stage(&g);
}

TEST(pictures_text_does_not_depend_on_steps_or_company)
{
    check_company(t, &media_sets[0], 2, 67); /* 64 rows of a picture, and a row of each other lane */
    check_company(t, &media_sets[1], 1, 16);
    check_company(t, &media_sets[3], 1, 16);
}

/* The prefix cache knows pictures by their pixels. */
static void check_prefix(test_case *t, const media_set *x, int n_case)
{
    stage       g;
    nano_answer first, again, other;
    if (open_stage(t, &g, x, n_case, default_options()) && ask(t, &g, TANDEM_SPEC_OFF, &first) &&
        ask(t, &g, TANDEM_SPEC_OFF, &again)) {
        const media_span *s = media_prompt_span(g.x.media, 0);
        nano_same(t, &first, &again);
        CHECK_INT(first.result.usage.cached_tokens, 0);
        CHECK_MSG(again.result.usage.cached_tokens >= g.x.T - 2 * 16, "%d of %d tokens are cached",
                  again.result.usage.cached_tokens, g.x.T);    /* also where that ends inside a picture */
        ((media_span *)(uintptr_t)s)->frames[0].rgb[0] ^= 255; /* another picture, with ids of the same tokens */
        media_span changed[MEDIA_CASE_SPANS];
        int        n = media_prompt_spans(g.x.media);
        for (int i = 0; i < n; i++) {
            media_span *from = (media_span *)(uintptr_t)media_prompt_span(g.x.media, i);
            changed[i]       = *from;
            memset(from->frames, 0, sizeof from->frames);
        }
        media_prompt_drop(g.x.media);
        g.x.media = media_prompt_new(changed, n);
        s         = media_prompt_span(g.x.media, 0);
        if (ask(t, &g, TANDEM_SPEC_OFF, &other)) CHECK(other.result.usage.cached_tokens <= s->first);
    }
    close_stage(&g);
}

TEST(pictures_in_the_prefix_cache_are_told_apart)
{
    check_prefix(t, &media_sets[0], 2);
    check_prefix(t, &media_sets[1], 1);
    check_prefix(t, &media_sets[3], 1);
}

TEST(pictures_that_cannot_be_used_are_refused)
{
    tandem_options o = default_options();
    stage          g;
    tandem_request r;
    tandem_job    *j;
    err            why = {0};
    o.step_tokens      = 32;
    if (open_stage(t, &g, &media_sets[0], 0, o)) {
        tandem_request_init(g.e, &r);
        r.ids = g.x.id, r.n_ids = (size_t)g.x.T;
        CHECK_FAILS(engine_submit(g.e, &r, g.x.media, NULL, &j, &why), why,
                    "a picture has 60 tokens, which run in one step, and a step has room for 29 (--step-tokens)");
        g.x.id[media_prompt_span(g.x.media, 0)->first] = 5;
        CHECK_FAILS(engine_submit(g.e, &r, g.x.media, NULL, &j, &why), why, "expected 502 for a picture");
        r.n_ids = 8;
        CHECK_FAILS(engine_submit(g.e, &r, g.x.media, NULL, &j, &why), why, "of a prompt of 8");
        CHECK(!j);
    }
    close_stage(&g);
}

TEST(pictures_are_counted_in_the_usage)
{
    stage       g;
    nano_answer y;
    if (open_stage(t, &g, &media_sets[3], 1, default_options()) && ask(t, &g, TANDEM_SPEC_OFF, &y)) {
        CHECK_INT(y.result.usage.prompt_tokens, g.x.T);
        CHECK_INT(y.result.usage.image_tokens, 22);
        CHECK_INT(y.result.usage.video_tokens, 12);
    }
    close_stage(&g);
}

/* Texts with pictures come back from the disk after a restart. */
TEST(pictures_come_back_from_the_disk)
{
    static const int which[][2] = {{0, 2}, {1, 1}}; /* set, case: a short text is not stored */
    char             dir[512];
    snprintf(dir, sizeof dir, "%s/pictures", test_tmp_dir());
    for (size_t k = 0; k < COUNT(which); k++) {
        tandem_options   o = default_options();
        const media_set *x = &media_sets[which[k][0]];
        stage            g, h;
        nano_answer      first, again;
        o.cache_dir = dir;
        bool ok     = open_stage(t, &g, x, which[k][1], o) && ask(t, &g, TANDEM_SPEC_OFF, &first);
        close_stage(&g);
        if (ok && open_stage(t, &h, x, which[k][1], o) && ask(t, &h, TANDEM_SPEC_OFF, &again)) {
            nano_same(t, &first, &again);
            CHECK_MSG(again.result.usage.cached_tokens > h.x.T / 2, "%s: %d of %d tokens are cached", x->name,
                      again.result.usage.cached_tokens, h.x.T);
        }
        if (ok) close_stage(&h);
    }
    test_tmp_clear();
}

/* The encoder's memory is freed when no picture came for a while, and the text of later ones is the same. */
TEST(pictures_encoder_is_parked_when_idle)
{
    tandem_options o = default_options();
    stage          g;
    nano_answer    first, again;
    tandem_setting soon = {"encoder_idle_s", "0"};
    o.no_prefix         = true;
    o.settings          = &soon;
    o.n_settings        = 1;
    if (open_stage(t, &g, &media_sets[0], 2, o) && ask(t, &g, TANDEM_SPEC_OFF, &first)) {
        for (int i = 0; i < 1000 && atomic_load(&g.e->m.model->vision->loaded); i++)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        CHECK(!atomic_load(&g.e->m.model->vision->loaded));
        if (ask(t, &g, TANDEM_SPEC_OFF, &again)) nano_same(t, &first, &again);
    }
    close_stage(&g);
}
