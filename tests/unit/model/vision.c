/* The encoders of pictures: soft tokens and logits of Hugging Face transformers in float64, and promise 1. */
#include "backends.h"
#include "base/fault.h"
#include "golden_media.h"
#include "kv/lane.h"
#include "model/model.h"
#include "model/open_target.h"
#include "model/vision_inside.h"
#include "test.h"

enum { SLOTS = MEDIA_CASE_TOKENS };

typedef struct {
    target      *m;
    kv_pool     *kv;
    step         s;
    safetensors *ref;
    int          n_case;
    media_case   x; /* the prompt */
    float       *soft[MEDIA_CASE_SPANS];
    double       abs_tol, rel_tol;
} rig;

static const tensor *golden(const rig *g, const char *what) { return media_case_find(g->ref, g->n_case, what); }

static bool open_rig(test_case *t, rig *g, const media_set *x, const char *device)
{
    model_options opt = {.device = device, .n_threads = 2};
    char          dir[MEDIA_CASE_PATH], mmproj[MEDIA_CASE_PATH];
    bool          exact = !strcmp(device, "ref"), gpu = !strcmp(device, "cuda");
    *g = (rig){.abs_tol = exact ? 5e-4 : gpu ? 4e-3 : 2e-3, .rel_tol = exact ? 2e-4 : gpu ? 2e-3 : 1e-3};
    media_case_paths(x, dir, mmproj);
    if (mmproj[0]) opt.mmproj = mmproj;
    g->ref = media_case_open(t, x);
    if (!g->ref) return false;
    if (!test_open_target(t, &g->m, dir, &opt) || !CHECK(g->m->media && g->m->vision)) return false;
    target_set_kv(g->m, &(kv_types)KV_TYPES_ALL(CACHE_F32));
    if (!test_open_pool(t, &g->kv, g->m, &(test_pool){.max_lanes = 2, .max_slots = SLOTS, .max_kept_rows = 1}))
        return false;
    step_init(&g->s, g->m->max_rows);
    return true;
}

static void end_case(rig *g)
{
    for (int i = 0; i < MEDIA_CASE_SPANS; i++) {
        mem_free(g->soft[i]);
        g->soft[i] = NULL;
    }
    media_prompt_drop(g->x.media);
    g->x.media = NULL;
}

static void close_rig(rig *g)
{
    end_case(g);
    kv_pool_free(g->kv);
    step_deinit(&g->s);
    model_close(g->m);
    safetensors_close(g->ref);
}

static bool encode(test_case *t, rig *g)
{
    err e = {0};
    for (int i = 0; i < media_prompt_spans(g->x.media); i++) {
        const media_span *s = media_prompt_span(g->x.media, i);
        if (!g->soft[i]) g->soft[i] = xnew_n(float, (size_t)s->n *(size_t)g->m->n_embd);
        if (!CHECK_OK(target_encode(g->m, s, g->soft[i], &e), e)) return false;
    }
    return true;
}

/* --- comparing ----------------------------------------------------------------------------------*/
static void compare_row(test_case *t, const rig *g, const float *y, const char *want, size_t n, const char *what,
                        int row)
{
    for (size_t i = 0; i < n; i++) {
        float w;
        memcpy(&w, want + i * sizeof w, sizeof w);
        if (!CHECK_MSG(fabs((double)y[i] - (double)w) <= g->abs_tol + g->rel_tol * fabs((double)w),
                       "%s: %s of case %d, row %d, element %zu: %.9g, expected %.9g", g->m->o->name, what, g->n_case,
                       row, i, (double)y[i], (double)w))
            return;
    }
}

static const float *soft_row(const rig *g, bool video, int row)
{
    for (int i = 0; i < media_prompt_spans(g->x.media); i++) {
        const media_span *s = media_prompt_span(g->x.media, i);
        if (s->is_video != video) continue;
        if (row < s->n) return g->soft[i] + (size_t)row * (size_t)g->m->n_embd;
        row -= s->n;
    }
    return NULL;
}

static void check_soft(test_case *t, const rig *g, bool video)
{
    const tensor *want = golden(g, video ? "video_soft_tokens" : "soft_tokens");
    const tensor *rows = golden(g, video ? "video_soft_tokens_rows" : "soft_tokens_rows");
    if (!want) return;
    size_t H = (size_t)g->m->n_embd;
    for (int64_t i = 0; i < rows->dim[0]; i++) {
        int32_t row;
        memcpy(&row, (const char *)rows->data + 4 * i, 4);
        const float *y = soft_row(g, video, row);
        if (CHECK(y)) compare_row(t, g, y, (const char *)want->data + (size_t)i * H * 4, H, "soft tokens", row);
    }
}

static void check_logits(test_case *t, const rig *g, const float *y)
{
    const tensor *want = golden(g, "logits"), *rows = golden(g, "rows");
    size_t        V = (size_t)g->m->n_vocab;
    if (!want) return; /* the text model is that of another set */
    for (int64_t i = 0; i < rows->dim[0]; i++) {
        int32_t row;
        memcpy(&row, (const char *)rows->data + 4 * i, 4);
        compare_row(t, g, y + (size_t)row * V, (const char *)want->data + (size_t)i * V * 4, V, "logits", row);
    }
}

static void check_positions(test_case *t, const rig *g)
{
    const tensor *want = golden(g, "positions");
    for (int i = 0; want && i < g->x.T; i++) {
        int32_t at[3], w;
        media_prompt_place(g->x.media, g->m->media->image.cell, i, at);
        for (int k = 0; k < 3; k++) {
            memcpy(&w, (const char *)want->data + 4 * (k * g->x.T + i), 4);
            CHECK_INT(at[k], w);
        }
    }
}

/* --- steps --------------------------------------------------------------------------------------*/
/* Adds n rows of the prompt from `from` on. */
static void add_rows(rig *g, int lane, int from, int n)
{
    const target *m     = g->m;
    int           first = g->s.n_rows;
    for (int i = 0; i < n; i++) {
        step_add(&g->s, lane, from + i,
                 g->x.id[from + i] == m->media->image_id || g->x.id[from + i] == m->media->video_id ? 0
                                                                                                    : g->x.id[from + i],
                 true);
        media_prompt_place(g->x.media, m->media->image.cell, from + i, g->s.section + ROPE_SECTIONS * (first + i));
    }
    for (int k = 0; k < media_prompt_spans(g->x.media); k++) {
        const media_span *s = media_prompt_span(g->x.media, k);
        int a = s->first > from ? s->first : from, b = s->first + s->n < from + n ? s->first + s->n : from + n;
        if (a >= b) continue;
        step_embed(&g->s, first + a - from, b - a, g->soft[k] + (size_t)(a - s->first) * (size_t)m->n_embd);
        for (int p = a; m->sees_ahead && p < b; p++) step_see_ahead(&g->s, first + p - from, s->first + s->n - 1);
    }
}

/* Runs the prompt in chunks of at most `chunk` rows (a span whose rows see each other is not divided), after `others`
 * rows of another lane in every step. Returns the logits of all rows. */
static float *run_prompt(test_case *t, rig *g, int chunk, int others)
{
    target  *m    = g->m;
    size_t   V    = (size_t)m->n_vocab;
    float   *out  = xnew_n(float, (size_t)g->x.T *V);
    kv_lane *lane = kv_lane_new(g->kv), *other = kv_lane_new(g->kv);
    err      e = {0};
    for (int from = 0, n; from < g->x.T; from += n) {
        n = g->x.T - from < chunk ? g->x.T - from : chunk;
        while (m->sees_ahead && !media_prompt_chunk(g->x.media, from, n)) n++;
        if (m->sees_ahead) n = media_prompt_chunk(g->x.media, from, n);
        int before = others && kv_lane_len(other) + others <= 64 ? others : 0;
        kv_step_begin(g->kv);
        step_clear(&g->s);
        CHECK_OK(kv_lane_grow(lane, n, 0, &e), e);
        if (before) CHECK_OK(kv_lane_grow(other, before, 0, &e), e);
        for (int i = 0; i < before; i++) step_add(&g->s, kv_lane_index(other), kv_lane_len(other) + i, 7 + i, true);
        add_rows(g, kv_lane_index(lane), from, n);
        CHECK_OK(m->step(m, g->kv, &g->s, &e), e);
        kv_lane_commit(lane, NULL, 0);
        if (before) kv_lane_commit(other, NULL, 0);
        for (int first = 0; first < n; first += HEAD_ROWS) {
            int rows = n - first < HEAD_ROWS ? n - first : HEAD_ROWS;
            m->head(m, before + first, rows);
            m->o->download(m->q, out + (size_t)(from + first) * V, m->logits, (size_t)rows * V * sizeof(float));
            m->o->sync(m->q);
        }
    }
    kv_lane_free(other);
    kv_lane_free(lane);
    return out;
}

static void check_case(test_case *t, rig *g, const media_set *x)
{
    if (media_case_load(t, &g->x, g->ref, x, g->n_case, g->m->media) && encode(t, g)) {
        check_soft(t, g, false);
        check_soft(t, g, true);
        check_positions(t, g);
        float *whole = run_prompt(t, g, g->m->max_rows, 0);
        check_logits(t, g, whole);
        mem_free(whole);
        vision_set_exact(g->m->vision, false);
        if (g->m->o->f16_heads && encode(t, g)) {
            check_soft(t, g, false);
            check_soft(t, g, true);
        }
        vision_set_exact(g->m->vision, true);
    }
    end_case(g);
}

static void check_set(test_case *t, const media_set *x)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int d = 0, n = test_devices(device); d < n; d++) {
        rig g;
        if (open_rig(t, &g, x, device[d]))
            for (g.n_case = 0; g.n_case < 3 && x->kind[g.n_case]; g.n_case++)
                if (!g.n_case || test_full() || strcmp(device[d], "ref")) check_case(t, &g, x);
        close_rig(&g);
    }
}

TEST(vision_golden_tower) { check_set(t, &media_sets[0]); }
TEST(vision_golden_clipped) { check_set(t, &media_sets[1]); }
TEST(vision_golden_without_tower) { check_set(t, &media_sets[2]); }
TEST(vision_golden_merged) { check_set(t, &media_sets[3]); }

/* Promise 1: neither chunks nor other rows change a bit of the prompt's rows, and a picture encoded twice is equal. */
TEST(vision_rows_do_not_depend_on_the_step)
{
    static const int chunk[] = {1, 7, 64, 100};
    for (size_t k = 0; k < COUNT(media_sets); k++) {
        rig g;
        err e = {0};
        if (open_rig(t, &g, &media_sets[k], "cpu")) {
            g.n_case = media_sets[k].kind[1] ? 1 : 0;
            if (media_case_load(t, &g.x, g.ref, &media_sets[k], g.n_case, g.m->media) && encode(t, &g)) {
                const media_span *s     = media_prompt_span(g.x.media, 0);
                size_t            bytes = (size_t)s->n * (size_t)g.m->n_embd * sizeof(float);
                float            *again = xalloc(bytes), *whole = run_prompt(t, &g, g.m->max_rows, 0);
                CHECK_OK(target_encode(g.m, s, again, &e), e);
                CHECK(!memcmp(again, g.soft[0], bytes));
                for (size_t i = 0; i < COUNT(chunk); i++) {
                    float *y = run_prompt(t, &g, chunk[i], (int)(i % 2) * 5);
                    CHECK_MSG(!memcmp(y, whole, (size_t)g.x.T * (size_t)g.m->n_vocab * sizeof *y), "%s in chunks of %d",
                              media_sets[k].name, chunk[i]);
                    mem_free(y);
                }
                mem_free(whole);
                mem_free(again);
            }
        }
        close_rig(&g);
    }
}

/* A picture of cols x rows soft tokens. */
static media_span make_span(test_case *t, const rig *g, int cols, int rows, int seed)
{
    int        cell = g->m->media->image.cell;
    media_span s    = {.n = cols * rows, .width = cols * cell, .height = rows * cell};
    err        e    = {0};
    CHECK_OK(picture_new(&s.frames[0], s.width, s.height, &e), e);
    for (size_t i = 0; i < picture_bytes(&s.frames[0]); i++)
        s.frames[0].rgb[i] = (uint8_t)((i * 31 + i / 97 * (size_t)seed) % 251);
    return s;
}

/* Promise 1 for patches, on every backend: the soft tokens of a picture are the same bits after other pictures, larger
 * and smaller ones, with other numbers of patches in a pass, and when the encoder was loaded again. */
static void check_encoded(test_case *t, rig *g)
{
    bool       merged  = g->m->media->image.cell == 32;
    media_span other[] = {make_span(t, g, 1, 2, 3), make_span(t, g, 7, merged ? 8 : 4, 5)};
    media_span s       = merged ? make_span(t, g, 6, 6, 1) : make_span(t, g, 5, 3, 1); /* at least 128 patches */
    size_t     n = (size_t)s.n * (size_t)g->m->n_embd, most = (size_t)other[1].n * (size_t)g->m->n_embd;
    float     *want = xnew_n(float, n), *got = xnew_n(float, n), *rest = xnew_n(float, most);
    err        e = {0};
    CHECK_OK(target_encode(g->m, &s, want, &e), e);
    for (int turn = 0; turn < 4; turn++) {
        if (turn < 2) CHECK_OK(target_encode(g->m, &other[turn], rest, &e), e);
        if (turn == 2) g->m->vision->max_rows = VISION_UNIT;
        if (turn == 3) target_park_media(g->m);
        CHECK_OK(target_encode(g->m, &s, got, &e), e);
        CHECK_MSG(!memcmp(got, want, n * sizeof *want), "%s: another time, case %d", g->m->o->name, turn);
    }
    mem_free(want);
    mem_free(got);
    mem_free(rest);
    for (size_t i = 0; i < COUNT(other); i++) picture_free(&other[i].frames[0]);
    picture_free(&s.frames[0]);
}

TEST(vision_pictures_do_not_depend_on_each_other)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int d = 0, n = test_devices(device); d < n; d++)
        for (size_t k = 0; k < COUNT(media_sets); k++) {
            rig g;
            if (open_rig(t, &g, &media_sets[k], device[d])) {
                vision_set_exact(g.m->vision, false);
                check_encoded(t, &g);
            }
            close_rig(&g);
        }
}

TEST(vision_refuses_a_picture_that_does_not_fit)
{
    rig        g;
    err        e = {0};
    float      out[128];
    media_span s = {.n = 1, .width = 48, .height = 48};
    if (open_rig(t, &g, &media_sets[0], "cpu")) {
        CHECK(!target_encode(g.m, &s, out, &e)); /* no pixels */
        CHECK_OK(picture_new(&s.frames[0], 48, 48, &e), e);
        s.n = 2;
        CHECK(!target_encode(g.m, &s, out, &e));
        CHECK_INT(e.code, ERR_INPUT);
        picture_free(&s.frames[0]);
        int32_t wide = 48 * 30; /* 90 patches, and the table has 64 */
        CHECK_OK(picture_new(&s.frames[0], wide, 48, &e), e);
        s.n = 30, s.width = wide;
        float *rows = xnew_n(float, 30 * 128);
        CHECK_FAILS(target_encode(g.m, &s, rows, &e), e,
                    "the picture has 65 patches on a side, and the encoder accepts 64");
        mem_free(rows);
        picture_free(&s.frames[0]);
    }
    close_rig(&g);
}

/* Every allocation fails in turn, of the weights and of the first picture: the next attempt starts again. */
TEST(vision_loads_again_after_each_failed_allocation)
{
    for (size_t k = 0; k < COUNT(media_sets); k++) {
        rig g;
        err e = {0};
        if (open_rig(t, &g, &media_sets[k], "cpu") && media_case_load(t, &g.x, g.ref, &media_sets[k], 0, g.m->media)) {
            const media_span *s     = media_prompt_span(g.x.media, 0);
            int               tries = 0;
            g.soft[0]               = xnew_n(float, (size_t)s->n *(size_t)g.m->n_embd);
            for (bool ok = false; !ok && tries < 2000; tries++) {
                fault_fail_nth(tries + 1);
                ok = target_encode(g.m, s, g.soft[0], &e);
                fault_fail_nth(0);
                if (!ok) CHECK(e.code == ERR_UNAVAILABLE || e.code == ERR_LIMIT);
            }
            CHECK(tries > 20 && tries < 2000);
            check_soft(t, &g, false);
        }
        close_rig(&g);
    }
}

TEST(vision_refuses_the_encoder_of_another_family)
{
    err           e  = {0};
    checkpoint   *cp = NULL;
    target       *m  = NULL;
    char          dir[MEDIA_CASE_PATH], mmproj[MEDIA_CASE_PATH], unused[MEDIA_CASE_PATH];
    model_options opt = {.device = "cpu", .n_threads = 1, .mmproj = mmproj};
    media_case_paths(&media_sets[2], unused, mmproj);
    media_case_paths(&media_sets[3], dir, unused);
    if (!CHECK_OK(checkpoint_open(&cp, dir, &e), e)) return;
    CHECK_FAILS(model_open(&m, cp, &opt, &e), e, "mmproj.gguf: the projector is not one of this model's kind");
    opt.mmproj = "none";
    if (CHECK_OK(model_open(&m, cp, &opt, &e), e)) CHECK(!m->media && !m->sections);
    model_close(m);
    checkpoint_close(cp);
}
