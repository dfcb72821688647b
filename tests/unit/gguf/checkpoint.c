#include "gguf/checkpoint.h"

#include "base/fault.h"
#include "build_gguf.h"
#include "test.h"

#include <sys/stat.h>

#include <unistd.h>

static const char *tmp_path(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp_dir(), name);
    return path;
}

static void check_golden(test_case *t, const char *dir, size_t n_tensors)
{
    err         e = {0};
    checkpoint *c = NULL;
    if (!CHECK_OK(checkpoint_open(&c, test_path(dir), &e), e)) return;
    CHECK_INT(tensor_count(c->tensors), n_tensors);
    CHECK(c->st && !c->gguf && c->config && c->generation && c->bytes > 1000000);
    CHECK_INT(json_get(c->config, "hidden_size")->i, 128);
    CHECK_INT(json_get(c->generation, "eos_token_id")->i, 1);
    const tensor *x = tensor_find(c->tensors, STR("model.embed_tokens.weight"));
    if (CHECK(x != NULL)) {
        CHECK(x->type == QUANT_BF16 && x->n_dims == 2 && x->dim[0] == 128 && x->dim[1] == 512);
        float *row = xnew_n(float, 512 * 128), ss = 0;
        quant_dequantise(x->type, x->data, row, 512 * 128);
        for (int i = 0; i < 512 * 128; i++) ss += row[i] * row[i];
        CHECK_NEAR(sqrt(ss / (512 * 128)), 0.5 / sqrt(128), 1e-3); /* as the reference drew it */
        checkpoint_drop(c, x);
        mem_free(row);
    }
    checkpoint_close(c);
}

TEST(checkpoint_opens_the_golden_models)
{
    check_golden(t, "tests/golden/gemma4-dense", 85);
    check_golden(t, "tests/golden/gemma4-moe", 132);
    check_golden(t, "tests/golden/gemma4-ple", 98);
}

TEST(checkpoint_golden_results_open)
{
    static const char *const dirs[] = {"dense", "moe", "ple"};
    for (size_t i = 0; i < COUNT(dirs); i++) {
        char         rel[100];
        err          e = {0};
        safetensors *s = NULL;
        snprintf(rel, sizeof rel, "tests/golden/gemma4-%s/golden.safetensors", dirs[i]);
        if (!CHECK_OK(safetensors_open(&s, test_path(rel), &e), e)) continue;
        const tensor *x = tensor_find(safetensors_tensors(s), STR("case2.logits"));
        CHECK(x && x->type == QUANT_F32 && x->dim[0] == 512 && x->dim[1] == 70);
        safetensors_close(s);
    }
}

TEST(checkpoint_opens_a_gguf)
{
    gguf_builder b;
    err          e = {0};
    checkpoint  *c = NULL;
    gguf_builder_init(&b);
    gguf_builder_tensor(&b, "w", QUANT_F32, 1, (int64_t[]){4}, NULL);
    if (CHECK_OK(checkpoint_open(&c, gguf_builder_write(&b, "c.gguf"), &e), e)) {
        CHECK(c->gguf && !c->st && !c->config && !c->generation && c->bytes == gguf_bytes(c->gguf));
        CHECK(tensor_find(c->tensors, STR("w")) != NULL);
        checkpoint_drop(c, tensor_at(c->tensors, 0));
        CHECK(strstr(c->path, "c.gguf") != NULL);
    }
    checkpoint_close(c);
    checkpoint_close(NULL);
    gguf_builder_deinit(&b);
}

static void write_dir(const char *config, const char *generation)
{
    err         e       = {0};
    const float x       = 1;
    const char *path    = tmp_path("model.safetensors");
    bool        written = safetensors_write(path, &(safetensors_out){"w", QUANT_F32, 1, {1}, &x}, 1, &e);
    if (!written) printf("%s\n", e.text);
    unlink(tmp_path("config.json"));
    unlink(tmp_path("generation_config.json"));
    if (config) test_tmp_file("config.json", config, strlen(config));
    if (generation) test_tmp_file("generation_config.json", generation, strlen(generation));
}

TEST(checkpoint_refuses_wrong_directories)
{
    char        long_path[5000];
    err         e = {0};
    checkpoint *c = NULL;
    write_dir("{\"a\": 1}", NULL);
    CHECK_OK(checkpoint_open(&c, test_tmp_dir(), &e), e);
    CHECK(c && c->generation == NULL);
    checkpoint_close(c);
    write_dir(NULL, NULL);
    CHECK_FAILS(checkpoint_open(&c, test_tmp_dir(), &e), e, "config.json: No such file");
    CHECK(c == NULL && e.code == ERR_NOT_FOUND);
    write_dir("", NULL);
    CHECK_FAILS(checkpoint_open(&c, test_tmp_dir(), &e), e, "config.json: ");
    write_dir("[1]", NULL);
    CHECK_FAILS(checkpoint_open(&c, test_tmp_dir(), &e), e, "config.json: it is not an object");
    write_dir("{\"a\":", NULL);
    CHECK_FAILS(checkpoint_open(&c, test_tmp_dir(), &e), e, "config.json: line 1");
    write_dir("{}", "7");
    CHECK_FAILS(checkpoint_open(&c, test_tmp_dir(), &e), e, "generation_config.json: it is not an object");
    CHECK_FAILS(checkpoint_open(&c, tmp_path("model.safetensors"), &e), e, "expected its directory");
    CHECK_FAILS(checkpoint_open(&c, "/nonexistent", &e), e, "cannot open /nonexistent");
    memset(long_path, 'a', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = 0;
    CHECK_FAILS(checkpoint_open(&c, long_path, &e), e, "a path of more than 4095 bytes");
    long_path[4090] = 0;
    CHECK_FAILS(checkpoint_open(&c, long_path, &e), e, "cannot open");
}

TEST(checkpoint_every_failed_allocation_is_an_error)
{
    checkpoint *c  = NULL;
    bool        ok = false;
    long        n  = 0;
    write_dir("{\"a\": {\"b\": [1, \"\\u0041\", null]}}", "{\"c\": 1}");
    while (!ok && n < 200) {
        err e = {0};
        fault_fail_nth(++n);
        ok = checkpoint_open(&c, test_tmp_dir(), &e);
        fault_fail_nth(0);
        CHECK_MSG(ok || (!c && e.text[0]), "no sentence when allocation %ld fails", n);
    }
    CHECK(ok && n > 5);
    checkpoint_close(c);
}

/* A small file must not cost much memory: lists of small things grow many times over as trees. */
TEST(checkpoint_config_of_many_values_is_refused_before_it_fills_the_memory)
{
    size_t n    = (size_t)4 << 20;
    char  *text = xalloc(n), dir[256], name[64];
    err    e    = {0};
    memset(text, '1', n);
    for (size_t i = 1; i < n; i += 2) text[i] = ',';
    memcpy(text, "{\"a\":[", 6);
    memcpy(text + n - 4, ",1]}", 4);
    snprintf(dir, sizeof dir, "%s/fat", test_tmp_dir());
    mkdir(dir, 0700);
    snprintf(name, sizeof name, "fat/config.json");
    test_tmp_file(name, text, n);
    test_tmp_file("fat/model.safetensors", "", 0);
    checkpoint *c;
    CHECK_FAILS(checkpoint_open(&c, dir, &e), e, "config.json");
    mem_free(text);
}
