/* Texts of the prefix cache that are stored and brought back: the continuation is the same bit by bit, from another
 * engine too, and drafts in its first round. */
#include "spec/image.h"

#include "base/mem.h"

#include "kv/inside.h"
#include "spec_rig.h"
#include "store/inside.h"

enum { CTX = 512, PROMPT = 150, ANSWER = 40 };
static int32_t prompt[PROMPT];

static void make_prompt(void)
{
    for (int i = 0; i < PROMPT; i++) prompt[i] = i < RIG_PROMPT ? rig_prompt[i] : 280 + i * 37 % 200;
}

typedef struct {
    const char *model, *drafters[2];
} rig_files;
static const rig_files nano    = {"models/nano/target.gguf", {"models/nano/dflash.gguf", "models/nano/mtp.gguf"}};
static const rig_files dspark  = {"tests/golden/gemma4-dense", {"tests/golden/gemma4-dense-dspark", NULL}};
static const rig_files dflash2 = {"tests/golden/gemma4-dense", {"tests/golden/gemma4-dense-dflash2", NULL}};

static const spec_options common = {
    .n_ctx = CTX, .max_lanes = 1, .kv_type = KV_TYPES_ALL(CACHE_F16), .fingerprint = "x"};

typedef struct {
    int32_t token[ANSWER];
    float   logprob[ANSWER];
    int     reused, first_drafted; /* prompt tokens found; draft tokens of the first round after the prompt */
    int64_t drafted, accepted;
} answer;

/* Runs a request for the prompt, with these images. */
static void ask(test_case *t, spec_lane *l, int method, const pack *const *images, int n_images, answer *a)
{
    err          e      = {0};
    size_t       reused = 0;
    lane_request r      = {.opt = spec_rig_options(method), .prompt = prompt, .n_prompt = PROMPT, .max_new = ANSWER};
    r.images            = images;
    r.n_images          = n_images;
    r.opt.n_top         = 0;
    *a                  = (answer){0};
    if (!CHECK_OK(spec_lane_begin(l, &r, &reused, &e), e)) return;
    a->reused = (int)reused;
    for (int n = 0; n < ANSWER;) {
        spec_lane_limit(l, ANSWER - n);
        if (!CHECK_OK(spec_step_alone(l->s, &l, 1, &e), e)) break;
        const spec_out *x = spec_lane_out(l);
        for (int k = 0; k < x->n; k++, n++) {
            a->token[n]   = x->token[k];
            a->logprob[n] = x->logprob[k][0].logprob;
        }
        spec_lane_keep(l, x->n);
        if (n > 1 && !a->first_drafted) a->first_drafted = (int)spec_lane_stats(l)->drafted;
    }
    a->drafted  = spec_lane_stats(l)->drafted;
    a->accepted = spec_lane_stats(l)->accepted;
    kv_pool_check(l->s->kv);
    spec_lane_end(l);
    kv_pool_check(l->s->kv);
}

static bool same(const answer *a, const answer *b)
{
    return !memcmp(a->token, b->token, sizeof a->token) && !memcmp(a->logprob, b->logprob, sizeof a->logprob);
}

/* Stores the pages [from, to) in pieces of max_bytes. Returns NULL on failure. */
static kv_export *store(test_case *t, spec *s, int32_t from, int32_t to, size_t max_bytes)
{
    err        e = {0};
    kv_export *x;
    kv_range   r    = {.text = prompt, .from = from, .to = to};
    bool       done = false, ok = CHECK_OK(spec_export_begin(s, &r, &x, &e), e);
    while (ok && !done) ok = CHECK_OK(spec_export_more(s, x, max_bytes, &done, &e), e);
    if (ok) return x;
    kv_export_free(x);
    return NULL;
}

/* Writes the image to a file and reads it back into *out. */
static bool through_file(test_case *t, kv_export *x, pack *out)
{
    err   e  = {0};
    FILE *f  = tmpfile();
    bool  ok = CHECK_OK(pack_write(kv_export_pack(x), fileno(f), &e), e) && CHECK_OK(pack_open(out, fileno(f), &e), e);
    for (int i = 0; ok && i < out->n; i++) ok = CHECK_OK(pack_load(out, fileno(f), i, &e), e);
    fclose(f);
    return ok;
}

static const int methods[] = {SPEC_OFF, SPEC_DFLASH, SPEC_TREE, SPEC_MTP, SPEC_NGRAM, SPEC_AUTO};

/* Two images of one prompt, made by one engine, let another one continue as if it had run the prompt. */
static void check_methods(test_case *t, const spec_options *o, const rig_files *f)
{
    enum { CUT = 64, END = (PROMPT - 1) / KV_PAGE * KV_PAGE };
    spec_rig a, b;
    make_prompt();
    for (int i = 0; i < PROMPT && f != &nano; i++) prompt[i] %= 512;
    bool ok = spec_rig_open_of(t, &a, o, f->model, f->drafters) & spec_rig_open_of(t, &b, o, f->model, f->drafters);
    for (size_t m = 0; ok && m < COUNT(methods); m++) {
        if (methods[m] == SPEC_MTP && !f->drafters[1]) continue;
        if (!test_full() && methods[m] != SPEC_DFLASH && methods[m] != SPEC_MTP) continue;
        answer cold, warm, back;
        pack   image[2] = {0};
        spec_forget(a.s);
        spec_forget(b.s);
        ask(t, a.l[0], methods[m], NULL, 0, &cold);
        ask(t, a.l[0], methods[m], NULL, 0, &warm);
        kv_export *x = store(t, a.s, 0, CUT, 1), *y = store(t, a.s, CUT, END, SIZE_MAX);
        if (x && y && through_file(t, x, &image[0]) && through_file(t, y, &image[1])) {
            const pack *both[] = {&image[0], &image[1]};
            ask(t, b.l[0], methods[m], both, 2, &back);
            CHECK_INT(back.reused, END);
            CHECK(same(&cold, &warm) && same(&cold, &back));
            CHECK_INT(back.first_drafted > 0, warm.first_drafted > 0);
            CHECK_MSG((double)back.accepted >= 0.9 * (double)warm.accepted, "%s: %d accepted, warm %d",
                      spec_method_names[methods[m] > 0 ? methods[m] : 0], (int)back.accepted, (int)warm.accepted);
            ask(t, b.l[0], methods[m], NULL, 0, &back); /* the pages stay */
            CHECK_INT(back.reused, END);
            spec_forget(b.s);
            ask(t, b.l[0], methods[m], both + 1, 1, &back); /* without the first part there is nothing to use */
            CHECK_INT(back.reused, 0);
            CHECK(same(&cold, &back));
        }
        pack_deinit(&image[0]);
        pack_deinit(&image[1]);
        kv_export_free(x);
        kv_export_free(y);
    }
    spec_rig_close(&a);
    spec_rig_close(&b);
}

TEST(spec_continues_from_an_image_with_every_method) { check_methods(t, &common, &nano); }
TEST(spec_continues_from_an_image_with_dspark) { check_methods(t, &common, &dspark); }
TEST(spec_continues_from_an_image_with_dflash2) { check_methods(t, &common, &dflash2); }

/* A drafter that is parked in the middle of a response starts a new context afterwards; the text stays. */
TEST(spec_parks_dspark_and_dflash2)
{
    static const rig_files *const all[] = {&dspark, &dflash2};
    for (size_t k = 0; k < COUNT(all); k++) {
        spec_rig g;
        answer   plain;
        err      e      = {0};
        size_t   reused = 0;
        make_prompt();
        for (int i = 0; i < PROMPT; i++) prompt[i] %= 512;
        if (spec_rig_open_of(t, &g, &common, all[k]->model, all[k]->drafters)) {
            lane_request r = {
                .opt = spec_rig_options(SPEC_DFLASH), .prompt = prompt, .n_prompt = PROMPT, .max_new = ANSWER};
            ask(t, g.l[0], SPEC_OFF, NULL, 0, &plain);
            CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
            int64_t drafted[3] = {0};
            for (int n = 0, round = 0; n < ANSWER; round++) {
                if (round == 6) CHECK_OK(spec_park(g.s, SPEC_DFLASH, &e), e);
                if (round == 12) CHECK_OK(spec_unpark(g.s, SPEC_DFLASH, &e), e);
                spec_lane_limit(g.l[0], ANSWER - n);
                if (!CHECK_OK(spec_step_alone(g.s, g.l, 1, &e), e)) break;
                const spec_out *x = spec_lane_out(g.l[0]);
                for (int i = 0; i < x->n; i++) CHECK_INT(x->token[i], plain.token[n++]);
                drafted[round < 6 ? 0 : round < 12 ? 1 : 2] += x->n_draft;
                spec_lane_keep(g.l[0], x->n);
            }
            CHECK(drafted[0] > 0 && drafted[1] == 0 && drafted[2] > 0);
        }
        spec_rig_close(&g);
    }
}

TEST_LONG(spec_continues_from_an_image_with_every_kv_type)
{
    static const cache_types types[] = {{CACHE_F32, CACHE_F32}, {CACHE_Q8_0, CACHE_Q4_0}, {CACHE_TQ3, CACHE_TQ3}};
    for (size_t i = 0; i < COUNT(types); i++) {
        spec_options o = common;
        o.kv_type      = kv_types_default(types[i]);
        check_methods(t, &o, &nano);
    }
}

/* When another drafter has the number of the class, the pages of the export are lost. */
TEST(spec_continues_no_export_of_a_class_that_was_replaced)
{
    spec_rig   g;
    answer     a;
    err        e    = {0};
    kv_export *x    = NULL;
    bool       done = false, ok = true;
    kv_range   r = {.text = prompt, .to = 64};
    make_prompt();
    if (spec_rig_open(t, &g, &common, true)) {
        ask(t, g.l[0], SPEC_DFLASH, NULL, 0, &a);
        kv_image_key key = spec_image_key(g.s);
        CHECK_OK(kv_export_begin(&x, g.s->tree, &key, &r, &e), e);
        for (int i = 0; i < KV_MAX_CLASSES; i++) key.added[i].lo ^= !hash128_is_zero(key.added[i]);
        while (x && ok && !done) ok = kv_export_more(x, g.s->tree, &key, 1, &done, &e);
        CHECK(!ok && e.code == ERR_NOT_FOUND);
        kv_export_free(x);
        kv_export_free(store(t, g.s, 0, 64, 1));
    }
    spec_rig_close(&g);
}

/* An image brings the drafter's pages back to a text whose other pages are cached. */
TEST(spec_continues_from_the_drafters_part_of_an_image)
{
    enum { END = (PROMPT - 1) / KV_PAGE * KV_PAGE };
    spec_rig a, b;
    answer   x;
    pack     image = {0};
    make_prompt();
    if (spec_rig_open(t, &a, &common, true) & spec_rig_open(t, &b, &common, true)) {
        ask(t, a.l[0], SPEC_DFLASH, NULL, 0, &x);
        ask(t, b.l[0], SPEC_OFF, NULL, 0, &x);
        kv_export  *out  = store(t, a.s, 0, END, SIZE_MAX);
        const pack *one  = &image;
        spec_images all  = {.text = prompt, .n = PROMPT, .images = &one, .n_images = 1};
        bool        done = false;
        if (out && through_file(t, out, &image)) {
            CHECK_INT(spec_usable_len(b.s, SPEC_OFF, 0, prompt, PROMPT), END);
            CHECK_INT(spec_usable_len(b.s, SPEC_DFLASH, 0, prompt, PROMPT), 0);
            CHECK_INT(spec_import(b.s, &all, SIZE_MAX, &done), END);
            CHECK(done);
            CHECK_INT(spec_usable_len(b.s, SPEC_DFLASH, 0, prompt, PROMPT), END);
        }
        kv_export_free(out);
    }
    pack_deinit(&image);
    spec_rig_close(&a);
    spec_rig_close(&b);
}

/* An import in pieces copies a little with each call, also when pages are evicted between the calls. */
TEST(spec_continues_from_an_image_in_pieces)
{
    enum { END = (PROMPT - 1) / KV_PAGE * KV_PAGE };
    spec_rig a, b;
    answer   cold, back;
    pack     image = {0};
    make_prompt();
    if (spec_rig_open(t, &a, &common, true) & spec_rig_open(t, &b, &common, true)) {
        ask(t, a.l[0], SPEC_DFLASH, NULL, 0, &cold);
        kv_export  *out    = store(t, a.s, 0, END, SIZE_MAX);
        const pack *one    = &image;
        spec_images all    = {.text = prompt, .n = PROMPT, .images = &one, .n_images = 1};
        int         pieces = 0;
        bool        done   = false;
        if (out && through_file(t, out, &image)) {
            while (!done && pieces < 1000) {
                int32_t reach = spec_import(b.s, &all, 1, &done);
                kv_pool_check(b.s->kv);
                CHECK(reach == END || !done);
                if (++pieces == 5) spec_forget(b.s);
            }
            CHECK_MSG(pieces > 5 + END / KV_PAGE && done, "%d pieces", pieces);
            ask(t, b.l[0], SPEC_DFLASH, NULL, 0, &back);
            CHECK_INT(back.reused, END);
            CHECK(same(&cold, &back));
            CHECK_INT(back.drafted, cold.drafted);
        }
        kv_export_free(out);
    }
    pack_deinit(&image);
    spec_rig_close(&a);
    spec_rig_close(&b);
}

/* Pages outside the text are refused, those of another drafter too. */
TEST(spec_refuses_images_with_pages_outside_the_text)
{
    enum { END = (PROMPT - 1) / KV_PAGE * KV_PAGE };
    static const int32_t wrong[][2] = {{-1, 1},        {0, -1},        {1, END / KV_PAGE}, {INT32_MAX, 1},
                                       {1, INT32_MAX}, {INT32_MIN, 1}, {0, INT32_MIN}};
    spec_rig             g;
    answer               a;
    err                  e = {0};
    make_prompt();
    if (spec_rig_open(t, &g, &common, true)) {
        ask(t, g.l[0], SPEC_DFLASH, NULL, 0, &a);
        kv_export *x = store(t, g.s, 0, END, SIZE_MAX);
        pack      *p = x ? kv_export_pack(x) : NULL;
        for (int i = 0; p && i < p->n; i++) {
            pack_section *s = &p->section[i], right = *s;
            if (s->kind != IMAGE_PAGES) continue;
            for (size_t k = 0; k < 2 * COUNT(wrong); k++) {
                s->first = wrong[k / 2][0];
                s->n     = wrong[k / 2][1];
                s->tag.lo ^= k % 2; /* 1: of another drafter */
                CHECK_FAILS(spec_image_check(g.s, p, &e), e, "does not fit this model");
                *s = right;
            }
        }
        CHECK(!p || spec_image_check(g.s, p, &e));
        kv_export_free(x);
    }
    spec_rig_close(&g);
}

/* Returns whether all of the pool's memory is zero. */
static bool is_wiped(const spec *s)
{
    const kv_pool *p     = s->kv;
    size_t         bytes = (size_t)p->n_slabs * p->slab_bytes, i = 0;
    char          *copy = xalloc(bytes);
    p->o->download(p->q, copy, p->memory, bytes);
    p->o->sync(p->q);
    while (i < bytes && !copy[i]) i++;
    mem_free(copy);
    return i == bytes;
}

TEST(spec_wipes_freed_pages)
{
    for (int wipe = 0; wipe < 2; wipe++) {
        spec_options o = common;
        spec_rig     g;
        answer       a;
        o.wipe = wipe;
        make_prompt();
        if (spec_rig_open(t, &g, &o, true)) {
            ask(t, g.l[0], SPEC_DFLASH, NULL, 0, &a);
            CHECK(!is_wiped(g.s)); /* the prefix cache has the text */
            spec_forget(g.s);
            CHECK_INT(is_wiped(g.s), wipe);
        }
        spec_rig_close(&g);
    }
}
