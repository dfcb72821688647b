/* Models of random weights: the same every time, of the real sizes, sane numbers, experts drawn about evenly. */
#include "bench/shape.h"

#include "base/file.h"
#include "bench/experts.h"
#include "model/drafter.h"
#include "model/gemma4_config.h"
#include "test.h"

#include <unistd.h>

static int index_of(const char *const *names, const char *name)
{
    int i = 0;
    while (names[i] && strcmp(names[i], name) != 0) i++;
    return i;
}

static shape_spec mini(int n_layers, int quant)
{
    return (shape_spec){.shape = index_of(shape_names, "mini"), .n_layers = n_layers, .quant = quant, .seed = 1};
}

TEST(shape_is_decided_by_its_seed)
{
    err         e = {0};
    shape_image a = {0}, b = {0}, c = {0};
    shape_spec  s = mini(1, 0), other = s;
    other.seed = 2;
    if (CHECK_OK(shape_target(&a, &s, &e), e) && CHECK_OK(shape_target(&b, &s, &e), e) &&
        CHECK_OK(shape_target(&c, &other, &e), e)) {
        CHECK_INT(a.bytes.n, b.bytes.n);
        CHECK_INT(a.bytes.n, c.bytes.n);
        CHECK(memcmp(a.bytes.s, b.bytes.s, a.bytes.n) == 0);
        CHECK(memcmp(a.bytes.s, c.bytes.s, a.bytes.n) != 0);
    }
    shape_free(&a);
    shape_free(&b);
    shape_free(&c);
}

TEST(shape_as_a_file_is_the_image)
{
    err         e = {0};
    shape_image a = {0};
    shape_spec  s = mini(1, 0);
    file_map    m = {0};
    char        path[4096];
    snprintf(path, sizeof path, "%s/shape.gguf", test_tmp_dir());
    if (CHECK_OK(shape_drafter(&a, &s, &e), e) && CHECK_OK(shape_write(&a, path, NULL, &e), e) &&
        CHECK_OK(file_map_open(&m, path, &e), e)) {
        CHECK_INT(m.n, a.bytes.n);
        CHECK(memcmp(m.p, a.bytes.s, m.n) == 0);
    }
    file_map_close(&m);
    CHECK(!shape_write(&a, "/nowhere/shape.gguf", NULL, &e));

    sig_atomic_t stop = SIGINT;
    snprintf(path, sizeof path, "%s/stopped.gguf", test_tmp_dir());
    CHECK(!shape_write(&a, path, &stop, &e) && strstr(e.text, "signal"));
    CHECK(access(path, F_OK) != 0);
    shape_free(&a);
}

static int64_t count_numbers(const checkpoint *cp)
{
    int64_t sum = 0;
    for (size_t i = 0; i < tensor_count(cp->tensors); i++) {
        const tensor *x = tensor_at(cp->tensors, i);
        sum += x->dim[0] * x->dim[1] * x->dim[2];
    }
    return sum;
}

/* Parameters of the published models; layer scalars and the like are a millionth of them. */
TEST(shape_has_the_real_sizes)
{
    static const struct {
        const char *name;
        double      target, drafter; /* millions of numbers; 0: nobody says */
        int         n_layers, n_shared;
    } k[] = {{"26b-a4b", 25200, 430, 30, 0}, {"31b", 30700, 1535.967, 60, 0}, {"e2b", 0, 0, 35, 20}};
    for (size_t i = 0; i < COUNT(k); i++) {
        err           e     = {0};
        shape_image   image = {0};
        checkpoint   *cp    = NULL;
        gemma4_config c;
        shape_spec    s = {.shape = index_of(shape_names, k[i].name), .seed = 1};
        if (CHECK_OK(shape_target(&image, &s, &e), e) &&
            CHECK_OK(checkpoint_open_bytes(&cp, image.name, image.bytes, &e), e) &&
            CHECK_OK(gemma4_config_read(&c, cp, &e), e)) {
            CHECK_INT(c.n_layers, k[i].n_layers);
            CHECK_INT(c.n_kv_shared, k[i].n_shared);
            if (k[i].target > 0) CHECK_NEAR((double)count_numbers(cp) / 1e6, k[i].target, 50);
        }
        checkpoint_close(cp);
        cp = NULL;
        shape_free(&image);
        if (CHECK_OK(shape_drafter(&image, &s, &e), e) &&
            CHECK_OK(checkpoint_open_bytes(&cp, image.name, image.bytes, &e), e)) {
            CHECK(drafter_kind_of(cp) == DRAFTER_DFLASH);
            if (k[i].drafter > 0) CHECK_NEAR((double)count_numbers(cp) / 1e6, k[i].drafter, 0.5);
        }
        checkpoint_close(cp);
        shape_free(&image);
    }
}

/* Counts every number of a generated model. */
static double millions_of(test_case *t, bool (*make)(shape_image *, const shape_spec *, err *), const shape_spec *s)
{
    err         e     = {0};
    shape_image image = {0};
    checkpoint *cp    = NULL;
    double      n     = 0;
    if (CHECK_OK(make(&image, s, &e), e) && CHECK_OK(checkpoint_open_bytes(&cp, image.name, image.bytes, &e), e))
        n = (double)count_numbers(cp) / 1e6;
    checkpoint_close(cp);
    shape_free(&image);
    return n;
}

TEST(shape_has_the_real_sizes_of_qwen)
{
    static const struct {
        const char *name;
        double      target, drafter; /* millions of numbers, without the MTP head */
    } k[] = {{"35b-a3b", 34660.610688, 473.995264}, {"27b", 26895.998464, 1730.213120}};
    for (size_t i = 0; i < COUNT(k); i++) {
        shape_spec s = {.shape = index_of(shape_names, k[i].name), .seed = 1};
        CHECK_NEAR(millions_of(t, shape_target, &s), k[i].target, 1e-6);
        CHECK_NEAR(millions_of(t, shape_drafter, &s), k[i].drafter, 1e-6);
    }
}

TEST(shape_shares_kv_as_the_real_one)
{
    static const int layers[] = {1, 4, 5, 7, 10, 20, 35};
    for (size_t i = 0; i < COUNT(layers); i++) {
        int           n     = layers[i];
        err           e     = {0};
        shape_image   image = {0};
        checkpoint   *cp    = NULL;
        gemma4_config c;
        shape_spec    s = {.shape = index_of(shape_names, "e2b"), .n_layers = n, .seed = 1};
        if (CHECK_OK(shape_target(&image, &s, &e), e) &&
            CHECK_OK(checkpoint_open_bytes(&cp, image.name, image.bytes, &e), e) &&
            CHECK_OK(gemma4_config_read(&c, cp, &e), e)) { /* which refuses layers without a donor */
            CHECK_INT(c.n_kv_shared > 0, n > 5);
            CHECK_INT(c.n_ff[n - 1], n > 5 ? 12288 : 6144);
        }
        checkpoint_close(cp);
        shape_free(&image);
    }
}

/* On the processor, or where it cannot multiply the type, by the reference. */
static bool open_image(test_case *t, target **m, const shape_image *image, ops *(*wrap)(ops *))
{
    err           e   = {0};
    checkpoint   *cp  = NULL;
    model_options opt = {.device = "cpu", .n_threads = 1, .wrap = wrap}, ref = {.device = "ref"};
    bool          ok = CHECK_OK(checkpoint_open_bytes(&cp, image->name, image->bytes, &e), e) &&
              (model_open(m, cp, &opt, NULL) || CHECK_OK(model_open(m, cp, &ref, &e), e));
    checkpoint_close(cp);
    return ok;
}

static bool open_shape(test_case *t, target **m, const shape_spec *s, ops *(*wrap)(ops *))
{
    err         e     = {0};
    shape_image image = {0};
    bool        ok    = CHECK_OK(shape_target(&image, s, &e), e) && open_image(t, m, &image, wrap);
    shape_free(&image);
    return ok;
}

/* Rows of random tokens, in steps of 16; the logits of the last. */
static bool run_rows(test_case *t, target *m, int n_rows)
{
    err          e = {0};
    step         st;
    kv_pool     *kv;
    uint64_t     seed = 3;
    kv_pool_spec spec = {.classes = m->kv_class, .n_classes = m->n_kv_classes, .max_lanes = 1, .max_slots = n_rows};
    for (int i = 0; i < m->n_kv_classes; i++) m->kv_class[i].types = cache_types_both(CACHE_F16);
    if (!CHECK(kv_bytes_for(&spec, n_rows, &spec.max_bytes)) || !CHECK_OK(kv_pool_new(&kv, m->o, &spec, &e), e))
        return false;
    step_init(&st, 16);
    kv_seq *seq = kv_seq_new(kv, 0);
    bool    ok  = CHECK_OK(kv_seq_grow(seq, n_rows, &e), e);
    for (int at = 0; ok && at < n_rows; at += st.n_rows) {
        step_clear(&st);
        for (int i = 0; i < 16; i++)
            step_add(&st, kv_seq_lane(seq), at + i, (int32_t)(test_rand(&seed) % (uint64_t)m->n_vocab), i == 15);
        ok = CHECK_OK(m->step(m, kv, &st, &e), e);
    }
    if (ok) m->head(m, 0, 1);
    kv_seq_free(seq);
    kv_pool_free(kv);
    step_deinit(&st);
    return ok;
}

static float *logits_of(target *m)
{
    float *x = xnew_n(float, (size_t)m->n_vocab);
    m->o->download(m->q, x, m->logits, (size_t)m->n_vocab * sizeof *x);
    m->o->sync(m->q);
    return x;
}

/* Loading drops an image's pages, and they come back. */
TEST(shape_opens_twice)
{
    err         e     = {0};
    shape_image image = {0};
    shape_spec  spec  = mini(1, 0);
    float      *x[2]  = {0};
    int         n     = 0;
    CHECK_OK(shape_target(&image, &spec, &e), e);
    for (int i = 0; i < 2; i++) {
        target *m = NULL;
        if (open_image(t, &m, &image, NULL) && run_rows(t, m, 16)) x[i] = logits_of(m), n = m->n_vocab;
        model_close(m);
    }
    CHECK(x[0] && x[1] && memcmp(x[0], x[1], (size_t)n * sizeof **x) == 0);
    mem_free(x[0]);
    mem_free(x[1]);
    shape_free(&image);
}

/* Logits of about 1, whichever blocks the weights are made of. */
TEST_SLOW(shape_of_every_type_runs)
{
    for (int quant = 0; shape_quants[quant]; quant++) {
        target    *m    = NULL;
        double     sum  = 0;
        shape_spec spec = mini(1, quant);
        if (open_shape(t, &m, &spec, NULL) && run_rows(t, m, 16)) {
            float *x = logits_of(m);
            for (int i = 0; i < m->n_vocab; i++) sum += (double)x[i] * x[i];
            mem_free(x);
            CHECK_MSG(sum / m->n_vocab > 0.4 && sum / m->n_vocab < 2.5, "%s: logits of %g", shape_quants[quant],
                      sqrt(sum / m->n_vocab));
        }
        model_close(m);
    }
}

TEST(shape_routes_almost_evenly)
{
    target    *m    = NULL;
    shape_spec spec = mini(6, 0);
    if (open_shape(t, &m, &spec, experts_watch)) {
        experts_count_begin();
        run_rows(t, m, 256); /* steps of 16 */
        experts_touched x = experts_count_end();
        CHECK_INT(x.n_layers, 6 * 16);
        CHECK_MSG(fabs(x.distinct / x.uniform - 1) < 0.1, "%g experts of %d, evenly it would be %g", x.distinct,
                  x.n_experts, x.uniform);
    }
    model_close(m);
}
