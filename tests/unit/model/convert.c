/* Directories turned into GGUF files: the same numbers come out, keys and tensors are what llama.cpp looks for. */
#include "model/convert.h"

#include "base/fault.h"
#include "chat/gemma4_inside.h"
#include "chat/qwen35_inside.h"
#include "gguf/checkpoint.h"
#include "model/model.h"
#include "model/open_target.h"
#include "test.h"
#include "tok/inside.h"
#include "tok/tok.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { T = 30, V = 512 };

static const char *out_path(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/converted.gguf", test_tmp_dir());
    return path;
}

static const char *golden_dir(const char *name)
{
    char rel[128];
    snprintf(rel, sizeof rel, "tests/golden/%s", name);
    return test_path(rel);
}

/* type NULL: as stored */
static bool convert(const char *dir, const char *type, const char *tokenizer, err *e)
{
    convert_options opt = {.as_stored = !type, .tokenizer = tokenizer, .recode = {.n_threads = 2}};
    if (type && !quant_parse(type, &opt.type)) abort();
    return convert_dir(dir, out_path(), &opt, e);
}

static bool logits_of(test_case *t, const char *path, const char *device, float *out)
{
    target       *m;
    kv_pool      *kv;
    err           e   = {0};
    model_options opt = {.device = device, .n_threads = 1};
    step         *s   = &(step){0};
    if (!test_open_target(t, &m, path, &opt)) return false;
    for (int i = 0; i < m->n_kv_classes; i++) m->kv_class[i].types = cache_types_both(CACHE_F32);
    if (!test_open_pool(t, &kv, m, &(test_pool){.max_lanes = 1, .max_slots = T})) return false;
    kv_seq *seq = kv_seq_new(kv, 0);
    CHECK_OK(kv_seq_grow(seq, T, &e), e);
    step_init(s, T);
    for (int i = 0; i < T; i++) step_add(s, 0, i, (i * 37 + 11) % V, true);
    CHECK_OK(m->step(m, kv, s, &e), e);
    m->head(m, 0, T);
    m->o->download(m->q, out, m->logits, T * V * sizeof(float));
    m->o->sync(m->q);
    step_deinit(s);
    kv_seq_free(seq);
    kv_pool_free(kv);
    model_close(m);
    return true;
}

/* Root of the mean squared difference, over that of a's own spread. */
static double distance(const float *a, const float *b)
{
    double d = 0, s = 0;
    for (int i = 0; i < T * V; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)a[i] * a[i];
    }
    return sqrt(d / s);
}

/* Where experts are chosen, a small difference can become a large one: `chaos` widens what is allowed; logits that have
 * nothing to do with each other are 1.4 apart. */
static void check_logits(test_case *t, const char *name, double chaos)
{
    static const struct {
        const char *type;
        double      within;
    } types[] = {{NULL, 0},      {"bf16", 0},   {"f32", 1e-4},   {"f16", 1e-3},   {"q8_0", 0.08},
                 {"q6_k", 0.15}, {"q5_0", 0.4}, {"q5_k", 0.4},   {"q4_k", 0.5},   {"q4_0", 0.8},
                 {"q4_1", 0.8},  {"q5_1", 0.4}, {"iq4_nl", 0.8}, {"iq4_xs", 0.8}, {"mxfp4", 0.8}};
    static float a[T * V], b[T * V];
    char         dir[512];
    snprintf(dir, sizeof dir, "%s", golden_dir(name));
    if (!logits_of(t, dir, "cpu", a)) return;
    size_t n = chaos > 2 ? COUNT(types) - 1 : COUNT(types); /* MXFP4 sends these small experts' tokens elsewhere */
    for (size_t i = 0; i < n; i++) {
        err         e    = {0};
        const char *what = types[i].type ? types[i].type : "as stored";
        if (!CHECK_OK(convert(dir, types[i].type, NULL, &e), e) || !logits_of(t, out_path(), "cpu", b)) continue;
        if (types[i].within == 0)
            CHECK_MSG(!memcmp(a, b, sizeof a), "%s %s: logits are not those of the directory", name, what);
        else
            CHECK_MSG(distance(a, b) <= fmin(1, chaos * types[i].within), "%s %s: logits are %.4f away", name, what,
                      distance(a, b));
    }
}

TEST(convert_gemma4_dense_computes_the_same) { check_logits(t, "gemma4-dense", 1.5); }
TEST(convert_gemma4_moe_computes_the_same) { check_logits(t, "gemma4-moe", 5); }
TEST(convert_gemma4_ple_computes_the_same) { check_logits(t, "gemma4-ple", 1.5); }

/* --- keys and tensors --------------------------------------------------------------------------- */
typedef struct {
    const char *key;
    double      v; /* of a list: its first item */
} expected_key;
typedef struct {
    const char *name;
    quant_type  type;
    int64_t     d0, d1;
} expected_tensor;

static void check_key(test_case *t, const gguf *g, expected_key k)
{
    const gguf_value *v = gguf_find(g, k.key);
    int64_t           i = 0;
    double            d = NAN;
    bool              b;
    if (v && v->type == GGUF_ARRAY && gguf_item_int(v, 0, &i))
        d = (double)i;
    else if (gguf_bool(v, &b))
        d = b;
    else
        gguf_real(v, &d);
    CHECK_MSG(fabs(d - k.v) <= 1e-6 * fabs(k.v), "%s is %g, expected %g", k.key, d, k.v);
}

static void check_file(test_case *t, const char *arch, const expected_key *key, size_t n_keys, const expected_tensor *x,
                       size_t n_x, size_t n_tensors)
{
    gguf *g;
    err   e = {0};
    str   s = STR("");
    if (!CHECK_OK(gguf_open(&g, out_path(), &e), e)) return;
    gguf_str(gguf_find(g, "general.architecture"), &s);
    CHECK_STR(s, str_of(arch));
    CHECK_INT(tensor_count(gguf_tensors(g)), n_tensors);
    for (size_t i = 0; i < n_keys; i++) check_key(t, g, key[i]);
    for (size_t i = 0; i < n_x; i++) {
        const tensor *y = tensor_find(gguf_tensors(g), str_of(x[i].name));
        CHECK_MSG(y && y->type == x[i].type && y->dim[0] == x[i].d0 && y->dim[1] == x[i].d1, "%s is wrong: %s %d %d",
                  x[i].name, y ? quant_name(y->type) : "missing", y ? (int)y->dim[0] : 0, y ? (int)y->dim[1] : 0);
    }
    gguf_close(g);
}

TEST(convert_writes_the_keys_of_a_text_model)
{
    static const expected_key keys[] = {
        {"general.file_type", 15},
        {"general.quantization_version", 2},
        {"gemma4.block_count", 6},
        {"gemma4.vocab_size", 512},
        {"gemma4.context_length", 4096},
        {"gemma4.embedding_length", 128},
        {"gemma4.embedding_length_per_layer_input", 0},
        {"gemma4.feed_forward_length", 256},
        {"gemma4.attention.head_count", 4},
        {"gemma4.attention.head_count_kv", 2},
        {"gemma4.attention.key_length", 128},
        {"gemma4.attention.value_length", 128},
        {"gemma4.attention.key_length_swa", 64},
        {"gemma4.attention.value_length_swa", 64},
        {"gemma4.attention.layer_norm_rms_epsilon", 1e-6},
        {"gemma4.attention.sliding_window", 16},
        {"gemma4.attention.sliding_window_pattern", 1},
        {"gemma4.attention.shared_kv_layers", 0},
        {"gemma4.rope.freq_base", 1e6},
        {"gemma4.rope.freq_base_swa", 1e4},
        {"gemma4.rope.dimension_count", 128},
        {"gemma4.rope.dimension_count_swa", 64},
        {"gemma4.final_logit_softcapping", 30},
        {"gemma4.expert_count", 8},
        {"gemma4.expert_used_count", 2},
        {"gemma4.expert_feed_forward_length", 64},
        {"tokenizer.ggml.bos_token_id", 2},
        {"tokenizer.ggml.eos_token_id", 1},
    };
    static const expected_tensor x[] = {
        {"token_embd.weight", QUANT_Q8_0, 128, 512},
        {"rope_freqs.weight", QUANT_F32, 64, 1},
        {"output_norm.weight", QUANT_F32, 128, 1},
        {"blk.1.attn_q.weight", QUANT_Q5_0, 128, 256},
        {"blk.1.attn_output.weight", QUANT_Q4_K, 256, 128},
        {"blk.0.ffn_gate_inp.weight", QUANT_F32, 128, 8},
        {"blk.0.ffn_gate_inp.scale", QUANT_F32, 128, 1},
        {"blk.0.ffn_down_exps.scale", QUANT_F32, 8, 1},
        {"blk.0.ffn_gate_up_exps.weight", QUANT_Q5_0, 128, 128},
        {"blk.0.ffn_down_exps.weight", QUANT_Q5_0, 64, 128},
        {"blk.0.layer_output_scale.weight", QUANT_F32, 1, 1},
    };
    err e = {0};
    CHECK_OK(convert(golden_dir("gemma4-moe"), "q4_k", NULL, &e), e);
    check_file(t, "gemma4", keys, COUNT(keys), x, COUNT(x), 133);
}

TEST(convert_writes_an_assistant)
{
    static const expected_key keys[] = {
        {"general.file_type", 32},
        {"gemma4-assistant.block_count", 4},
        {"gemma4-assistant.embedding_length", 64},
        {"gemma4-assistant.embedding_length_out", 128},
        {"gemma4-assistant.nextn_predict_layers", 4},
        {"gemma4-assistant.attention.shared_kv_layers", 4},
        {"gemma4-assistant.embedding_length_per_layer_input", 0},
        {"gemma4-assistant.attention.key_length", 128},
        {"gemma4-assistant.attention.key_length_swa", 64},
    };
    static const expected_tensor x[] = {
        {"token_embd.weight", QUANT_BF16, 64, 512},
        {"nextn.pre_projection.weight", QUANT_BF16, 256, 64},
        {"nextn.post_projection.weight", QUANT_BF16, 64, 128},
        {"rope_freqs.weight", QUANT_F32, 64, 1},
        {"blk.3.attn_q.weight", QUANT_BF16, 64, 512},
        {"blk.3.layer_output_scale.weight", QUANT_F32, 1, 1},
    };
    static const char *const dirs[] = {"gemma4-moe-assistant", "gemma4-ple-assistant"};
    for (size_t i = 0; i < COUNT(dirs); i++) {
        err e = {0};
        CHECK_OK(convert(golden_dir(dirs[i]), NULL, NULL, &e), e);
        check_file(t, "gemma4-assistant", keys, COUNT(keys), x, COUNT(x), 49);
    }
}

TEST(convert_writes_a_dflash_drafter)
{
    static const expected_key keys[] = {
        {"dflash.block_count", 3},
        {"dflash.block_size", 8},
        {"dflash.target_layers", 1}, /* ids + 1 */
        {"dflash.attention.sliding_window", 24},
        {"dflash.attention.sliding_window_pattern", 1},
        {"dflash.attention.head_count", 4},
        {"dflash.attention.head_count_kv", 2},
        {"dflash.attention.key_length", 64},
        {"dflash.rope.freq_base", 1e6},
        {"dflash.context_length", 4096},
        {"dflash.vocab_size", 512},
        {"dflash.feed_forward_length", 256},
        {"tokenizer.ggml.mask_token_id", 4},
    };
    static const expected_tensor x[] = {
        {"fc.weight", QUANT_Q8_0, 512, 128},
        {"enc.output_norm.weight", QUANT_F32, 128, 1},
        {"output_norm.weight", QUANT_F32, 128, 1},
        {"blk.2.ffn_norm.weight", QUANT_F32, 128, 1},
        {"blk.2.attn_k_norm.weight", QUANT_F32, 64, 1},
        {"blk.2.attn_v.weight", QUANT_Q8_0, 128, 128},
        {"blk.2.ffn_down.weight", QUANT_Q8_0, 256, 128},
    };
    err e = {0};
    CHECK_OK(convert(golden_dir("gemma4-moe-dflash"), "q8_0", NULL, &e), e);
    check_file(t, "dflash", keys, COUNT(keys), x, COUNT(x), 36);
    CHECK_OK(convert(golden_dir("gemma4-dense-dflash"), NULL, NULL, &e), e);
}

/* --- the tokenizer ------------------------------------------------------------------------------ */
static void check_same_ids(test_case *t, const tok *a, const tok *b, str text, bool special)
{
    tok_ids x, y;
    err     e = {0};
    tok_ids_init(&x, 1 << 16);
    tok_ids_init(&y, 1 << 16);
    CHECK_OK(tok_encode(a, &x, text, special, &e) && tok_encode(b, &y, text, special, &e), e);
    CHECK_MSG(x.n == y.n && (!x.n || !memcmp(x.p, y.p, x.n * sizeof *x.p)), "other ids for '%.*s'", STR_ARG(text));
    tok_ids_deinit(&x);
    tok_ids_deinit(&y);
}

/* Compares the tokenizer of the converted file with the one it was made of. Other rows of the model are unused. */
static void check_same_tokenizer(test_case *t, const gguf *g, const char *path, const tok_family *f,
                                 const char *const *texts, size_t n)
{
    tok *json, *back;
    err  e = {0};
    if (!CHECK_OK(tok_from_json(&json, path, f, &e), e)) return;
    if (CHECK_OK(tok_from_gguf(&back, g, f, &e), e)) {
        CHECK_INT(tok_size(back), V);
        for (int i = 0; i < tok_size(json); i++) {
            CHECK_STR(tok_text(back, i), tok_text(json, i));
            CHECK_INT(tok_kind(back, i), tok_kind(json, i));
            CHECK_INT(tok_listed_kind(back, i), tok_listed_kind(json, i));
        }
        for (int i = tok_size(json); i < V; i++) CHECK_INT(tok_kind(back, i), TOK_UNUSED);
        CHECK(tok_bos(back) == tok_bos(json) && tok_eos(back) == tok_eos(json) && tok_pad(back) == tok_pad(json));
        for (size_t i = 0; i < 2 * n; i++) check_same_ids(t, json, back, str_of(texts[i / 2]), i % 2);
        tok_free(back);
    }
    tok_free(json);
}

TEST(convert_keeps_the_tokenizer)
{
    static const char *const texts[] = {"Hello, world! Gr\xC3\xBC\xC3\x9F"
                                        "e <bos><|turn>user\nhi<turn|>",
                                        "   three  spaces\n\n\t tabs \xE2\x96\x81\xE2\x96\x81 ",
                                        "<|tool_call><0x41>\x01\x02", ""};
    err                      e       = {0};
    gguf                    *g;
    char                     path[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", golden_dir("demo"));
    CHECK_OK(convert(golden_dir("demo"), "q8_0", NULL, &e), e);
    if (!CHECK_OK(gguf_open(&g, out_path(), &e), e)) return;
    check_same_tokenizer(t, g, path, &gemma4_tokens, texts, COUNT(texts));
    CHECK(gguf_find(g, "tokenizer.ggml.scores") && !gguf_find(g, "tokenizer.ggml.pre"));
    gguf_close(g);
}

/* The kind of tokenizer, its pre-tokenizer and NFC, for which GGUF has no key, go into the file. */
TEST(convert_keeps_a_byte_level_tokenizer)
{
    static const char *const texts[] = {"the the 12 it's", "e\xCC\x81 q\xCC\x87\xCC\xA3", "<think>x<|im_end|><x>", ""};
    err                      e       = {0};
    gguf                    *g;
    str                      model = {0}, pre = {0};
    bool                     add_bos = true, nfc = false;
    char                     path[512];
    snprintf(path, sizeof path, "%s", test_path("tests/fuzz/corpus/tokenizer_json/byte_level"));
    CHECK_OK(convert(golden_dir("qwen35-dense"), NULL, path, &e), e);
    if (!CHECK_OK(gguf_open(&g, out_path(), &e), e)) return;
    check_same_tokenizer(t, g, path, &qwen35_tokens, texts, COUNT(texts));
    CHECK(gguf_str(gguf_find(g, "tokenizer.ggml.model"), &model) && str_is(model, "gpt2"));
    CHECK(gguf_str(gguf_find(g, "tokenizer.ggml.pre"), &pre) && str_is(pre, "qwen35"));
    CHECK(gguf_bool(gguf_find(g, "tokenizer.ggml.add_bos_token"), &add_bos) && !add_bos);
    CHECK(gguf_bool(gguf_find(g, "tokenizer.ggml.normalizer.nfc"), &nfc) && nfc);
    CHECK(!gguf_find(g, "tokenizer.ggml.scores") && !gguf_find(g, "tokenizer.ggml.bos_token_id"));
    gguf_close(g);
}

/* --- directories made here ---------------------------------------------------------------------- */
static char made_dir[512];

static void put_file(const char *name, str text)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", made_dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(text.s, 1, text.n, f) != text.n) abort();
    fclose(f);
}

/* A directory with a copy of a golden one's config (one piece of text replaced) and a link to its weights. */
static void make_dir(const char *from, const char *old, const char *new)
{
    char     path[700], link[700];
    file_map config;
    err      e = {0};
    snprintf(made_dir, sizeof made_dir, "%s/XXXXXX", test_tmp_dir());
    if (!mkdtemp(made_dir)) abort();
    snprintf(path, sizeof path, "%s/config.json", golden_dir(from));
    if (!file_map_open(&config, path, &e)) abort();
    const char *at = memmem(config.p, config.n, old, strlen(old));
    if (!at) abort();
    buf b;
    buf_init(&b, 1 << 20);
    buf_put(&b, config.p, (size_t)(at - config.p));
    buf_puts(&b, new);
    buf_put(&b, at + strlen(old), (size_t)(config.p + config.n - at) - strlen(old));
    put_file("config.json", buf_str(&b));
    buf_deinit(&b);
    file_map_close(&config);
    snprintf(path, sizeof path, "%s/model.safetensors", golden_dir(from));
    snprintf(link, sizeof link, "%s/model.safetensors", made_dir);
    if (symlink(path, link)) abort();
}

static void remove_dir(void)
{
    static const char *const names[] = {"config.json", "model.safetensors", "generation_config.json",
                                        "chat_template.jinja", "tokenizer_config.json"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[700];
        snprintf(path, sizeof path, "%s/%s", made_dir, names[i]);
        unlink(path);
    }
    rmdir(made_dir);
}

TEST(convert_refuses_with_a_sentence)
{
    static const struct {
        const char *from, *old, *new, *want;
    } cases[] = {
        {"gemma4-dense", "gemma4_text", "llama", "models of kind 'llama' cannot be converted"},
        {"gemma4-dense", "\"num_hidden_layers\": 6", "\"num_hidden_layers\": 7", "layer_types"},
        {"gemma4-dense", "\"hidden_size\": 128", "\"hidden_size\": 64", "has shape"},
        {"gemma4-dense", "\"rope_type\": \"default\"", "\"rope_type\": \"default\", \"factor\": 2.0", "has no key"},
        {"gemma4-moe-assistant", "\"backbone_hidden_size\": 128", "\"backbone_hidden_size\": 130",
         "'pre_projection.weight' has shape [256, 64, 1, 1], expected [260, 64, 1, 1]"},
        {"gemma4-moe-assistant", "\"backbone_hidden_size\": 128,", "", "backbone_hidden_size is missing"},
        {"gemma4-moe-dflash", "DFlashDraftModel", "DFlash2DraftModel",
         "'candidate_selector.predecessor_codebook' is missing"},
        {"gemma4-moe-dflash", "\"mask_token_id\": 4", "\"mask_token_id\": 512", "mask_token_id is 512"},
        {"gemma4-moe-dflash", "\"target_layer_ids\": [", "\"target_layer_ids\": [-1,", "is -1, expected 0"},
        {"gemma4-moe-dflash", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2", "layer_types"},
        {"gemma4-moe-dflash", "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"",
         "factor of rope_type yarn is missing"},
        {"gemma4-moe-dflash", "\"intermediate_size\": 256", "\"intermediate_size\": 128", "intermediate_size is 128"},
    };
    unlink(out_path());
    for (size_t i = 0; i < COUNT(cases); i++) {
        err e = {0};
        make_dir(cases[i].from, cases[i].old, cases[i].new);
        CHECK_FAILS(convert(made_dir, NULL, NULL, &e), e, cases[i].want);
        CHECK(access(out_path(), F_OK) != 0);
        remove_dir();
    }
    err e = {0};
    CHECK_FAILS(convert("/nowhere/at/all", NULL, NULL, &e), e, "/nowhere/at/all");
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", golden_dir("demo"));
    CHECK_FAILS(convert(golden_dir("gemma4-moe"), NULL, test_path("README.md"), &e), e, "README.md");
}

static void check_template(test_case *t, const char *file, const char *text, const char *want)
{
    err   e = {0};
    str   s = STR("");
    gguf *g;
    make_dir("gemma4-dense", "\"use_cache\"", "\"use_cache\"");
    put_file(file, str_of(text));
    put_file("generation_config.json", STR("{\"do_sample\": true, \"temperature\": 0.7, \"top_k\": 64, \"top_p\": 0.95,"
                                           " \"eos_token_id\": [1, 106], \"suppress_tokens\": [7, 8]}"));
    CHECK_OK(convert(made_dir, NULL, NULL, &e), e);
    remove_dir();
    if (!CHECK_OK(gguf_open(&g, out_path(), &e), e)) return;
    gguf_str(gguf_find(g, "tokenizer.chat_template"), &s);
    CHECK_STR(s, str_of(want));
    check_key(t, g, (expected_key){"general.sampling.temp", 0.7});
    check_key(t, g, (expected_key){"general.sampling.top_k", 64});
    check_key(t, g, (expected_key){"general.sampling.top_p", 0.95});
    check_key(t, g, (expected_key){"tokenizer.ggml.eos_token_ids", 1});
    check_key(t, g, (expected_key){"tokenizer.ggml.suppress_tokens", 7});
    gguf_close(g);
}

TEST(convert_takes_template_sampling_and_stops_along)
{
    check_template(t, "chat_template.jinja", "{{ bos_token }}", "{{ bos_token }}");
    check_template(t, "tokenizer_config.json", "{\"chat_template\": \"a\\nb\"}", "a\nb");
    check_template(
        t, "tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": "
        "\"y\"}]}",
        "y");
    check_template(t, "tokenizer_config.json", "{}", "");
}

TEST(convert_survives_every_failing_allocation)
{
    err  e = {0};
    long n;
    fault_fail_nth(0);
    unlink(out_path());
    fault_fail_nth(1 << 30);
    CHECK_OK(convert(golden_dir("demo"), "q8_0", NULL, &e), e);
    n = fault_tries();
    unlink(out_path());
    for (long i = 1; i <= n; i += n > 300 ? n / 300 : 1) {
        fault_fail_nth(i);
        bool ok = convert(golden_dir("demo"), "q8_0", NULL, &e);
        fault_fail_nth(0);
        CHECK_MSG(ok || e.text[0], "allocation %ld of %ld failed without a sentence", i, n);
        if (!ok) CHECK(access(out_path(), F_OK) != 0);
        unlink(out_path());
    }
}

TEST(convert_writes_dspark_and_dflash2_drafters)
{
    static const expected_key    spark[]  = {{"dflash.block_size", 7},
                                             {"dflash.sample_from_anchor", 1},
                                             {"dflash.target_layers", 2},
                                             {"dflash.final_logit_softcapping", 30},
                                             {"dflash.rope.partial_rotary_factor", 0.25},
                                             {"dflash.attention.key_length", 128}};
    static const expected_key    second[] = {{"dflash.selector_top_k", 8}, {"dflash.logit_scale", 0.75}};
    static const expected_key    causal[] = {{"dflash.attention.sliding_causal", 1}};
    static const expected_tensor x[]      = {{"markov_w1.weight", QUANT_BF16, 16, 512},
                                             {"conf_proj.weight", QUANT_F32, 144, 1},
                                             {"blk.1.post_ffw_norm.weight", QUANT_F32, 128, 1}};
    static const expected_tensor pair[]   = {{"selector_predecessor.weight", QUANT_BF16, 16, 512},
                                             {"blk.0.attn_conv_base.weight", QUANT_F32, 128, 2},
                                             {"blk.1.ffn_conv_proj.weight", QUANT_BF16, 128, 32}};
    err                          e        = {0};
    CHECK_OK(convert(golden_dir("gemma4-dense-dspark"), NULL, NULL, &e), e);
    check_file(t, "dflash", spark, COUNT(spark), x, COUNT(x), 33);
    CHECK_OK(convert(golden_dir("gemma4-dense-dflash2"), NULL, NULL, &e), e);
    check_file(t, "dflash", second, COUNT(second), pair, COUNT(pair), 36);
    make_dir("gemma4-dense-dflash2", "\"is_causal\": false,", ""); /* then sliding layers are */
    CHECK_OK(convert(made_dir, NULL, NULL, &e), e);
    check_file(t, "dflash", causal, COUNT(causal), pair, COUNT(pair), 36);
    remove_dir();
}
