/* Configurations that are wrong, each refused with the sentence that names the number. */
#include "base/buf.h"
#include "base/fault.h"
#include "model/gemma4_config.h"
#include "model/model.h"
#include "test.h"
#include "tiny_model.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const tiny_model small = {.type = QUANT_F32, .n_embd = 32, .n_layers = 3, .n_vocab = 64};

/* Opens a tiny model after `change` was done to it; true when it loads. */
static bool load_gguf(void (*change)(gguf_builder *b), const tiny_model *m, err *e)
{
    gguf_builder  b;
    checkpoint   *c;
    target       *t   = NULL;
    model_options opt = {.device = "cpu", .n_threads = 1, .max_rows = 4};
    gguf_builder_init(&b);
    tiny_model_build(&b, m);
    if (change) change(&b);
    const char *path = gguf_builder_write(&b, "config.gguf");
    gguf_builder_deinit(&b);
    if (!checkpoint_open(&c, path, e)) return false;
    bool ok = model_open(&t, c, &opt, e);
    model_close(t);
    checkpoint_close(c);
    return ok;
}

/* Changes the 4 bytes of a scalar's value in place. */
static void patch(gguf_builder *b, const char *key, const void *value)
{
    size_t n = strlen(key);
    for (size_t i = 0; i + n + 8 <= b->kv.n; i++)
        if (!memcmp(b->kv.p + i, key, n)) {
            memcpy(b->kv.p + i + n + 4, value, 4);
            return;
        }
    abort();
}

static void nan_rope(gguf_builder *b) { patch(b, "gemma4.rope.freq_base", &(float){NAN}); }
static void inf_eps(gguf_builder *b) { patch(b, "layer_norm_rms_epsilon", &(float){INFINITY}); }
static void many_layers(gguf_builder *b) { patch(b, "gemma4.block_count", &(uint32_t){1000000}); }
static void one_more_layer(gguf_builder *b) { patch(b, "gemma4.block_count", &(uint32_t){4}); }
static void odd_heads(gguf_builder *b) { patch(b, "attention.head_count", &(uint32_t){5}); }
static void wide(gguf_builder *b) { patch(b, "gemma4.embedding_length", &(uint32_t){64}); }
static void no_window(gguf_builder *b) { patch(b, "gemma4.attention.sliding_window", &(uint32_t){0}); }
static void all_shared(gguf_builder *b) { patch(b, "shared_kv_layers", &(uint32_t){3}); }
static void odd_head_dim(gguf_builder *b) { patch(b, "gemma4.attention.key_length", &(uint32_t){20}); }

TEST(model_config_gguf_refuses_each_bad_number)
{
    err e = {0};
    CHECK_OK(load_gguf(NULL, &small, &e), e);
    CHECK_FAILS(load_gguf(nan_rope, &small, &e), e, "gemma4.rope.freq_base is nan");
    CHECK_FAILS(load_gguf(inf_eps, &small, &e), e, "rms_epsilon is inf");
    CHECK_FAILS(load_gguf(many_layers, &small, &e), e, "gemma4.block_count is 1000000, expected 1 to 256");
    CHECK_FAILS(load_gguf(one_more_layer, &small, &e), e, "has 3 entries for 4 layers");
    CHECK_FAILS(load_gguf(odd_heads, &small, &e), e, "5 query heads over 2 K/V heads");
    CHECK_FAILS(load_gguf(wide, &small, &e), e, "has shape [32, 64, 1, 1], expected [64, 64, 1, 1]");
    CHECK_FAILS(load_gguf(no_window, &small, &e), e, "sliding_window is 0");
    CHECK_FAILS(load_gguf(all_shared, &small, &e), e, "shared_kv_layers is 3, expected 0 to 2");
    CHECK_FAILS(load_gguf(odd_head_dim, &small, &e), e, "not a multiple of 8");
}

static void drop_experts(gguf_builder *b) { patch(b, "gemma4.expert_count", &(uint32_t){0}); }
static void drop_ple(gguf_builder *b) { patch(b, "embedding_length_per_layer_input", &(uint32_t){0}); }
static void stop_list(gguf_builder *b)
{
    gguf_builder_arr_i32(b, "tokenizer.ggml.eos_token_id", (int32_t[]){1, 7, 9, 1}, 4);
}
static void stop_number(gguf_builder *b) { gguf_builder_u32(b, "tokenizer.ggml.eos_token_id", 7); }
static void stop_text(gguf_builder *b) { gguf_builder_str(b, "tokenizer.ggml.eos_token_id", "7"); }

TEST(model_config_that_switches_off_what_the_file_holds_is_refused)
{
    err        e   = {0};
    tiny_model moe = small, ple = small;
    moe.n_experts = 4;
    ple.n_ple     = 32;
    ple.n_layers  = 6;
    CHECK_FAILS(load_gguf(drop_experts, &moe, &e), e, "the configuration has no experts");
    CHECK_FAILS(load_gguf(drop_ple, &ple, &e), e, "the configuration has no per-layer embeddings");
}

static int n_stops(test_case *t, void (*change)(gguf_builder *b))
{
    gguf_builder  b;
    checkpoint   *c   = NULL;
    target       *m   = NULL;
    err           e   = {0};
    model_options opt = {.device = "cpu", .n_threads = 1, .max_rows = 4};
    gguf_builder_init(&b);
    tiny_model_build(&b, &small);
    change(&b);
    CHECK_OK(checkpoint_open(&c, gguf_builder_write(&b, "stops.gguf"), &e) && model_open(&m, c, &opt, &e), e);
    int n = m ? m->n_stop_ids : -1;
    model_close(m);
    checkpoint_close(c);
    gguf_builder_deinit(&b);
    return n;
}

TEST(model_stop_ids_of_a_gguf_file_are_a_number_or_a_list)
{
    err e = {0};
    CHECK_INT(n_stops(t, stop_number), 1);
    CHECK_INT(n_stops(t, stop_list), 3);
    CHECK_FAILS(load_gguf(stop_text, &small, &e), e, "neither a number nor a list");
}

/* --- Hugging Face: the golden model's directory with another config.json ------------------------*/
static bool load_hf(const char *from, const char *to, err *e)
{
    static char   dir[256];
    char          path[512];
    file_map      m;
    checkpoint   *c;
    target       *t   = NULL;
    model_options opt = {.device = "cpu", .n_threads = 1, .max_rows = 4};
    snprintf(dir, sizeof dir, "%s/hf", test_tmp_dir());
    mkdir(dir, 0700);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (symlink(test_path("tests/golden/gemma4-dense/model.safetensors"), path)) abort();
    if (!file_map_open(&m, test_path("tests/golden/gemma4-dense/config.json"), e)) abort();
    const char *at = memmem(m.p, m.n, from, strlen(from));
    if (!at) abort();
    buf b;
    buf_init(&b, 1 << 16);
    buf_put(&b, m.p, (size_t)(at - m.p));
    buf_puts(&b, to);
    buf_put(&b, at + strlen(from), m.n - (size_t)(at - m.p) - strlen(from));
    test_tmp_file("hf/config.json", b.p, b.n);
    bool ok = checkpoint_open(&c, dir, e);
    if (ok) {
        ok = model_open(&t, c, &opt, e);
        model_close(t);
        checkpoint_close(c);
    }
    file_map_close(&m);
    buf_deinit(&b);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    rmdir(dir);
    return ok;
}

TEST(model_config_hf_refuses_each_bad_number)
{
    static const struct {
        const char *from, *to, *sentence;
    } bad[] = {
        {"\"hidden_size\": 128", "\"hidden_size\": 9223372036854775807", "hidden_size is 9223372036854775807"},
        {"\"hidden_size\": 128", "\"hidden_size\": 128.5", "hidden_size is not an integer"},
        {"\"hidden_size\": 128", "\"hidden_size\": null", "hidden_size is missing"},
        {"\"num_hidden_layers\": 6", "\"num_hidden_layers\": 0", "num_hidden_layers is 0"},
        {"\"num_hidden_layers\": 6", "\"num_hidden_layers\": 7", "layer_types is not a list of 7"},
        {"\"full_attention\"\n", "\"half_attention\"\n", "layer_types[5] is neither"},
        {"\"rope_theta\": 10000.0", "\"rope_theta\": -1", "rope_parameters.sliding_attention: rope_theta is -1"},
        {"\"rope_type\": \"proportional\"", "\"rope_type\": \"yarn\"", "rope_type of full_attention"},
        {"\"gelu_pytorch_tanh\"", "\"relu\"", "hidden_activation"},
        {"\"attention_bias\": false", "\"attention_bias\": true", "attention_bias"},
        {"\"model_type\": \"gemma4_text\"", "\"model_type\": \"llama\"", "'llama' are not supported"},
        {"\"model_type\": \"gemma4_text\"", "\"model_type\": \"gemma4_assistant\"", "is a drafter"},
        {"\"vocab_size\": 512", "\"vocab_size\": 4000000", "expected [128, 4000000, 1, 1]"},
        {"\"num_attention_heads\": 4", "\"num_attention_heads\": 3", "query heads over"},
        {"\"use_bidirectional_attention\": null", "\"use_bidirectional_attention\": \"all\"", "both directions"},
        {"\"attention_bias\": false", "\"quantization_config\": {}, \"attention_bias\": false", "quantization_config"},
        {"\"eos_token_id\": 1", "\"eos_token_id\": \"1\"", "eos_token_id is neither a number nor a list"},
        {"\"eos_token_id\": 1", "\"eos_token_id\": [1, null]", "eos_token_id[1] is not a number"},
        {"\"5\": {", "\"77\": {", "per_layer_config has no layer '77'"},
    };
    err e = {0};
    CHECK_OK(load_hf("\"attention_bias\": false", "\"attention_bias\": null", &e), e);
    CHECK_OK(load_hf("\"5\": {", "\"05\": {", &e), e);
    for (size_t i = 0; i < COUNT(bad); i++) CHECK_FAILS(load_hf(bad[i].from, bad[i].to, &e), e, bad[i].sentence);
}

TEST(model_load_survives_each_failed_allocation)
{
    static const tiny_model all[] = {
        {.type = QUANT_Q8_0, .n_embd = 32, .n_layers = 3, .n_vocab = 64, .n_experts = 4},
        {.type = QUANT_Q4_0, .n_embd = 64, .n_layers = 6, .n_vocab = 64, .n_ple = 32},
    };
    for (size_t k = 0; k < COUNT(all); k++) {
        char          path[512];
        err           e        = {0};
        int           n_failed = 0;
        model_options opt      = {.device = "cpu", .n_threads = 1, .max_rows = 4};
        snprintf(path, sizeof path, "%s", tiny_model_write(&all[k], "fault.gguf"));
        for (long n = 1;; n++) {
            checkpoint *c = NULL;
            target     *m = NULL;
            e.text[0]     = 0;
            fault_fail_nth(n);
            bool ok = checkpoint_open(&c, path, &e) && model_open(&m, c, &opt, &e);
            fault_fail_nth(0);
            model_close(m);
            checkpoint_close(c);
            if (ok) break;
            if (!CHECK_MSG(e.text[0], "allocation %ld failed without a sentence", n)) break;
            n_failed++;
        }
        CHECK_MSG(n_failed > 50, "only %d allocations may fail", n_failed);
    }
}

TEST(model_kv_donors_are_the_last_own_layers_of_their_kind)
{
    gemma4_config c = {.n_layers = 35, .n_kv_shared = 20};
    for (int l = 0; l < 35; l++) c.sliding[l] = (l + 1) % 5 != 0;
    CHECK_INT(gemma4_kv_donor(&c, 12), 12);
    CHECK_INT(gemma4_kv_donor(&c, 14), 14);
    CHECK_INT(gemma4_kv_donor(&c, 15), 13);
    CHECK_INT(gemma4_kv_donor(&c, 19), 14);
    CHECK_INT(gemma4_kv_donor(&c, 34), 14);
}
