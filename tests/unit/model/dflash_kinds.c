/* DSpark and DFlash-2: the reference's numbers, and the promises of a draft. */
#include "backends.h"
#include "model/convert.h"
#include "model/dflash_config.h"
#include "model/dflash_rig.h"
#include "ops/history.h"

#include <sys/stat.h>

static const char *const kinds[] = {"dspark", "dflash2"};

static const char *path_of(const char *kind)
{
    char dir[256];
    snprintf(dir, sizeof dir, "tests/golden/gemma4-dense-%s", kind);
    return test_path(dir);
}

static bool open_kind(test_case *t, rig *g, const char *kind, const char *device, const drafter_options *opt)
{
    return dflash_rig_target_of(t, g, "gemma4-dense", kind, device) && dflash_rig_drafter(t, g, path_of(kind), opt);
}

/* --- the reference ------------------------------------------------------------------------------*/
static void compare(test_case *t, const float *y, const tensor *want, const char *what, const char *device)
{
    for (size_t i = 0; want && i < want->bytes / sizeof(float); i++) {
        float w;
        memcpy(&w, (const char *)want->data + i * sizeof w, sizeof w);
        if (!CHECK_MSG(fabs((double)y[i] - (double)w) <= 2e-3 + 1e-3 * fabs((double)w),
                       "%s of %s, element %zu: %.9g, expected %.9g", what, device, i, (double)y[i], (double)w))
            return;
    }
}

static void check_tokens(test_case *t, const draft_job *job, const tensor *want)
{
    for (int i = 0; want && i < job->n; i++) {
        int32_t id;
        memcpy(&id, (const char *)want->data + (size_t)i * sizeof id, sizeof id);
        CHECK_INT(job->token[i], id);
    }
}

static void check_case(test_case *t, rig *g, int n_case)
{
    text x = dflash_rig_text(t, g, n_case);
    g->d->cut(g->d, g->lane[0], 0);
    dflash_rig_observe(t, g, 0, &x, 0, x.n - 1, MAX_TEXT);
    drafted r = dflash_rig_draft(t, g, 0, &x);
    CHECK_INT(r.job.n, 7);
    compare(t, r.hidden, dflash_rig_golden(t, g, n_case, "draft_hidden"), "hidden states", g->m->o->name);
    compare(t, r.logits, dflash_rig_golden(t, g, n_case, "draft_logits"), "logits", g->m->o->name);
    check_tokens(t, &r.job, dflash_rig_golden(t, g, n_case, "draft_tokens"));
    if (g->d->confident)
        compare(t, r.job.confidence, dflash_rig_golden(t, g, n_case, "confidence"), "confidence", g->m->o->name);
    dflash_rig_free(&r);
}

static void check_kind(test_case *t, const char *kind)
{
    const char *device[TEST_BACKENDS_MAX];
    for (int k = 0, n = test_devices(device); k < n; k++) {
        rig g;
        if (open_kind(t, &g, kind, device[k], &dflash_rig_exact)) {
            CHECK_INT(g.d->confident, !strcmp(kind, "dspark"));
            for (int i = 0; i < 3; i++) check_case(t, &g, i);
        }
        dflash_rig_close(&g);
    }
}

TEST(dspark_golden) { check_kind(t, "dspark"); }
TEST(dflash2_golden) { check_kind(t, "dflash2"); }

/* --- the promises of a draft --------------------------------------------------------------------*/
/* However the context came; and with a context that slides. */
TEST(dflash_kinds_chunks_do_not_matter)
{
    static const int chunk[] = {7, 1, 33}, ctx[] = {0, 32};
    for (size_t k = 0; k < COUNT(kinds) * COUNT(ctx); k++) {
        rig             g;
        drafter_options opt = dflash_rig_exact;
        opt.n_ctx           = ctx[k / COUNT(kinds)];
        if (open_kind(t, &g, kinds[k % COUNT(kinds)], "cpu", &opt)) {
            text x = dflash_rig_text(t, &g, 2);
            dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
            drafted whole = dflash_rig_draft(t, &g, 0, &x);
            for (size_t i = 0; i < COUNT(chunk); i++) {
                g.d->cut(g.d, g.lane[0], 0);
                dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, chunk[i]);
                drafted r = dflash_rig_draft(t, &g, 0, &x);
                dflash_rig_same(t, &g, &whole, &r, "another chunk");
            }
            dflash_rig_free(&whole);
        }
        dflash_rig_close(&g);
    }
}

/* Lanes that share passes and rounds, with different numbers of tokens, draft what they draft alone. The tokens may
 * stay on the device. */
TEST(dflash_kinds_lanes_do_not_matter)
{
    enum { MANY = 11 };
    for (size_t k = 0; k < COUNT(kinds); k++) {
        rig             g;
        err             e   = {0};
        drafter_options opt = dflash_rig_exact;
        opt.max_lanes       = MANY;
        if (open_kind(t, &g, kinds[k], "cpu", &opt)) {
            draft_job   job[MANY], *jobs[MANY];
            draft_lane *lane[MANY];
            text        x[2]  = {dflash_rig_text(t, &g, 1), dflash_rig_text(t, &g, 2)};
            dev         ids   = {0};
            int32_t     id[8] = {0};
            CHECK_OK(g.m->o->alloc(g.m->o, &ids, sizeof id, &e), e);
            for (int i = 0; i < MANY; i++) {
                if (i >= LANES) CHECK_OK(g.d->lane_new(g.d, &lane[i], &e), e);
                draft_lane *own = g.lane[0];
                g.lane[0]       = i < LANES ? g.lane[i] : lane[i];
                dflash_rig_observe(t, &g, 0, &x[i % 2], 0, x[i % 2].n - 1, 64);
                job[i]        = dflash_rig_job(&g, 0, &x[i % 2]);
                job[i].n_want = 1 + i % 7;
                if (i < LANES && i > 0) lane[i] = g.lane[0];
                g.lane[0] = own;
                jobs[i]   = &job[i];
            }
            job[5].device_tokens = ids;
            CHECK_OK(g.d->draft(g.d, g.kv, jobs, MANY, &e), e);
            CHECK(job[5].later);
            g.m->o->download(g.m->q, id, ids, sizeof id);
            g.m->o->sync(g.m->q);
            memcpy(job[5].token, id, sizeof id);
            for (int i = 0; i < 2; i++) {
                drafted alone = dflash_rig_draft(t, &g, i, &x[i]);
                for (int j = i; j < MANY; j += 2) {
                    CHECK_INT(job[j].n, job[j].n_want);
                    for (int n = 0; n < job[j].n; n++) {
                        CHECK_INT(job[j].token[n], alone.job.token[n]);
                        if (g.d->confident && j != 5)
                            CHECK(!memcmp(&job[j].confidence[n], &alone.job.confidence[n], sizeof(float)));
                    }
                }
                dflash_rig_free(&alone);
            }
            for (int i = LANES; i < MANY; i++) g.d->lane_free(g.d, lane[i]);
            g.m->o->free(g.m->o, ids);
        }
        dflash_rig_close(&g);
    }
}

/* Without kept rows, the processor scores the likeliest tokens alone. */
TEST(dspark_of_some_candidates)
{
    rig             g;
    drafter_options opt = dflash_rig_exact;
    opt.keep_rows       = false;
    if (open_kind(t, &g, "dspark", "cpu", &opt))
        for (int i = 0; i < 3; i++) {
            text      x   = dflash_rig_text(t, &g, i);
            err       e   = {0};
            draft_job job = dflash_rig_job(&g, 0, &x);
            g.d->cut(g.d, g.lane[0], 0);
            dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
            CHECK_OK(g.d->draft(g.d, g.kv, (draft_job *[]){&job}, 1, &e), e);
            CHECK_INT(job.n, 7);
            check_tokens(t, &job, dflash_rig_golden(t, &g, i, "draft_tokens"));
            compare(t, job.confidence, dflash_rig_golden(t, &g, i, "confidence"), "confidence", "cpu");
        }
    dflash_rig_close(&g);
}

/* Candidates start with the token of the chain; DFlash-2 has no others than its own. */
TEST(dflash_kinds_draft_candidates)
{
    for (size_t k = 0; k < COUNT(kinds); k++) {
        rig g;
        err e = {0};
        if (open_kind(t, &g, kinds[k], "cpu", &dflash_rig_exact)) {
            text x = dflash_rig_text(t, &g, 2);
            dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
            drafted   chain = dflash_rig_draft(t, &g, 0, &x);
            draft_job job = dflash_rig_job(&g, 0, &x), *jobs[] = {&job};
            job.n_top = DRAFT_TOP_MAX;
            job.soft  = 1;
            CHECK_OK(g.d->draft(g.d, g.kv, jobs, 1, &e), e);
            for (int i = 0; i < job.n; i++) {
                CHECK_INT(job.token[i], chain.job.token[i]);
                CHECK_INT(job.top[i][0].id, job.token[i]);
                for (int c = 1; c < DRAFT_TOP_MAX; c++)
                    CHECK_INT(job.top[i][c].id >= 0, c < 8 || !strcmp(kinds[k], "dspark"));
            }
            dflash_rig_free(&chain);
        }
        dflash_rig_close(&g);
    }
}

/* A bias that bans all candidates of a row leaves other tokens to draft. */
TEST(dflash_kinds_draft_with_a_bias)
{
    for (size_t k = 0; k < COUNT(kinds); k++) {
        rig g;
        err e = {0};
        if (open_kind(t, &g, kinds[k], "cpu", &dflash_rig_exact)) {
            text           x       = dflash_rig_text(t, &g, 2);
            history       *h       = NULL;
            penalty_params penalty = {.repeat = 1.3f, .presence = 0.5f};
            logit_bias     bias[16];
            draft_job      job = dflash_rig_job(&g, 0, &x), *jobs[] = {&job};
            dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
            job.n_top = DRAFT_TOP_MAX;
            job.soft  = 1;
            CHECK_OK(g.d->draft(g.d, g.kv, jobs, 1, &e), e);
            for (int i = 0; i < 16; i++) bias[i] = (logit_bias){job.top[0][i].id, -INFINITY};
            int n = 0;
            while (n < 16 && bias[n].token >= 0) n++;
            CHECK_OK(history_new(&h, g.m->n_vocab, &e), e);
            history_bias(h, bias, n);
            history_prompt(h, x.id, (size_t)x.n);
            job         = dflash_rig_job(&g, 0, &x);
            job.history = h;
            job.penalty = &penalty;
            CHECK_OK(g.d->draft(g.d, g.kv, jobs, 1, &e), e);
            CHECK_INT(job.n, 7);
            for (int i = 0; i < n; i++) CHECK(job.token[0] != bias[i].token);
            history_free(h);
        }
        dflash_rig_close(&g);
    }
}

/* --- GGUF ---------------------------------------------------------------------------------------*/
/* A converted drafter drafts the same, bit for bit. */
TEST(dflash_kinds_convert)
{
    for (size_t k = 0; k < COUNT(kinds); k++) {
        rig             g;
        err             e   = {0};
        convert_options opt = {.as_stored = true};
        char            out[300];
        snprintf(out, sizeof out, "%s/drafter.gguf", test_tmp_dir());
        if (CHECK_OK(convert_dir(path_of(kinds[k]), out, &opt, &e), e) &&
            open_kind(t, &g, kinds[k], "cpu", &dflash_rig_exact)) {
            text x = dflash_rig_text(t, &g, 2);
            dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
            drafted dir = dflash_rig_draft(t, &g, 0, &x);
            dflash_rig_drop(&g);
            if (dflash_rig_drafter(t, &g, out, &dflash_rig_exact)) {
                dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
                drafted file = dflash_rig_draft(t, &g, 0, &x);
                for (int i = 0; g.d->confident && i < file.job.n; i++)
                    CHECK(!memcmp(&file.job.confidence[i], &dir.job.confidence[i], sizeof(float)));
                dflash_rig_same(t, &g, &dir, &file, "converted");
            }
            dflash_rig_free(&dir);
        }
        dflash_rig_close(&g);
    }
}

/* --- context and window -------------------------------------------------------------------------*/
TEST(dflash_default_context)
{
    static const struct {
        dflash_config c;
        int           trained, ctx;
    } x[] = {
        {{.n_ctx = 4096}, 4096, 4096},
        {{.n_ctx = 32768}, 32768, 32768},
        {{.n_ctx = 40960}, 0, 4096},
        {{.n_ctx = 0}, 0, 4096},
        {{.kind = DFLASH_SPARK, .anchored = true, .n_ctx = 262144}, 0, 16384},
        {{.kind = DFLASH_SPARK, .anchored = true, .n_ctx = 262144, .window = 2048}, 0, 4096},
        {{.kind = DFLASH_SPARK, .n_ctx = 262144, .yarn = {.factor = 2, .original = 8192}}, 16384, 16384},
        {{.kind = DFLASH_SPARK, .n_ctx = 262144, .yarn = {.factor = 32, .original = 8192}}, 32768, 32768},
        {{.kind = DFLASH_SPARK, .n_ctx = 10000, .yarn = {.factor = 32, .original = 8192}}, 10000, 10000},
    };
    for (size_t i = 0; i < COUNT(x); i++) {
        CHECK_INT(dflash_trained_ctx(&x[i].c), x[i].trained);
        CHECK_INT(dflash_default_ctx(&x[i].c), x[i].ctx);
    }
}

/* A window as long as the context changes nothing, a short one does; layers that slide already keep their window. */
TEST(dflash_window_of_full_layers)
{
    static const int window[] = {200, 16};
    for (size_t k = 0; k < COUNT(kinds); k++) {
        rig g;
        if (open_kind(t, &g, kinds[k], "cpu", &dflash_rig_exact)) {
            text x = dflash_rig_text(t, &g, 2);
            dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
            drafted whole = dflash_rig_draft(t, &g, 0, &x);
            for (size_t i = 0; i < COUNT(window); i++) {
                drafter_options opt = dflash_rig_exact;
                opt.window          = window[i];
                dflash_rig_drop(&g);
                if (!dflash_rig_drafter(t, &g, path_of(kinds[k]), &opt)) continue;
                dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, MAX_TEXT);
                drafted r    = dflash_rig_draft(t, &g, 0, &x);
                bool    same = !memcmp(whole.logits, r.logits, 7 * (size_t)g.m->n_vocab * sizeof(float));
                CHECK_INT(same, i == 0 || !strcmp(kinds[k], "dflash2"));
                dflash_rig_free(&r);
            }
            dflash_rig_free(&whole);
        }
        dflash_rig_close(&g);
    }
}

/* --- tables of its own --------------------------------------------------------------------------*/
/* The DSpark drafter with these tables in its file. */
static const char *with_tables(test_case *t, const void *embed, const void *head)
{
    enum { MAX = 64 };
    static char     dir[300];
    char            file[400], name[MAX][96];
    safetensors_out out[MAX];
    checkpoint     *cp = NULL;
    err             e  = {0};
    size_t          n  = 0;
    snprintf(dir, sizeof dir, "%s/own", test_tmp_dir());
    mkdir(dir, 0700);
    if (!CHECK_OK(checkpoint_open(&cp, path_of("dspark"), &e), e)) return dir;
    test_tmp_file("own/config.json", cp->config_text.p, cp->config_text.n);
    for (; n < tensor_count(cp->tensors) && n < MAX - 2; n++) {
        const tensor *x = tensor_at(cp->tensors, n);
        snprintf(name[n], sizeof name[n], "%.*s", STR_ARG(x->name));
        out[n] = (safetensors_out){name[n], x->type, x->n_dims, {x->dim[0], x->dim[1], x->dim[2], 1}, x->data};
    }
    out[n++] = (safetensors_out){"embed_tokens.weight", QUANT_BF16, 2, {128, 512, 1, 1}, embed};
    out[n++] = (safetensors_out){"lm_head.weight", QUANT_BF16, 2, {128, 512, 1, 1}, head};
    snprintf(file, sizeof file, "%s/model.safetensors", dir);
    CHECK_OK(safetensors_write(file, out, n, &e), e);
    checkpoint_close(cp);
    return dir;
}

static bool draft_of(test_case *t, rig *g, const char *path, drafted *out)
{
    dflash_rig_drop(g);
    if (!dflash_rig_drafter(t, g, path, &dflash_rig_exact)) return false;
    text x = dflash_rig_text(t, g, 2);
    dflash_rig_observe(t, g, 0, &x, 0, x.n - 1, MAX_TEXT);
    *out = dflash_rig_draft(t, g, 0, &x);
    return true;
}

/* Copies of the target's tables are not loaded, others are. */
TEST(dspark_tables_are_shared)
{
    rig         g;
    checkpoint *cp = NULL;
    err         e  = {0};
    drafted     none, own;
    if (dflash_rig_target_of(t, &g, "gemma4-dense", "dspark", "cpu") &&
        CHECK_OK(checkpoint_open(&cp, test_path("tests/golden/gemma4-dense"), &e), e) &&
        draft_of(t, &g, path_of("dspark"), &none)) {
        const tensor *table = tensor_find(cp->tensors, STR("model.embed_tokens.weight"));
        uint16_t     *other = xalloc(table->bytes);
        size_t        bytes = g.d->weight_bytes;
        for (size_t i = 0; i < table->bytes / 2; i++) {
            memcpy(&other[i], (const char *)table->data + 2 * ((i + 128) % (table->bytes / 2)), 2); /* moved by a row */
        }
        if (draft_of(t, &g, with_tables(t, table->data, table->data), &own)) {
            CHECK_INT(g.d->weight_bytes, bytes);
            dflash_rig_same(t, &g, &none, &own, "with copies of the tables");
        }
        for (int i = 0; i < 2; i++)
            if (draft_of(t, &g, with_tables(t, i ? table->data : other, i ? other : table->data), &own)) {
                CHECK(g.d->weight_bytes >= bytes + table->bytes);
                CHECK(memcmp(own.logits, none.logits, 512 * sizeof(float)) != 0);
                dflash_rig_free(&own);
            }
        mem_free(other);
        dflash_rig_free(&none);
    }
    checkpoint_close(cp);
    dflash_rig_close(&g);
}
