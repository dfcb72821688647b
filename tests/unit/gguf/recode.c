/* Which type a tensor gets, and files turned into others. */
#include "gguf/recode.h"

#include "build_gguf.h"
#include "test.h"

#include <unistd.h>

static const struct {
    const char *name;
    int64_t     dim[2];
    quant_type  from, want, to;
} choices[] = {
    {"output_norm.weight", {512, 1}, QUANT_F32, QUANT_Q4_0, QUANT_F32},
    {"blk.0.attn_q_norm.weight", {512, 2}, QUANT_F32, QUANT_Q4_0, QUANT_F32},
    {"blk.0.ffn_gate_inp.weight", {512, 8}, QUANT_F32, QUANT_Q8_0, QUANT_F32},
    {"blk.0.ffn_gate_inp.scale", {512, 1}, QUANT_F32, QUANT_F16, QUANT_F32},
    {"per_layer_model_proj.weight", {512, 64}, QUANT_BF16, QUANT_Q4_K, QUANT_BF16},
    {"rope_freqs.weight", {256, 1}, QUANT_F32, QUANT_F16, QUANT_F32},
    {"blk.4.attn_q.weight", {512, 64}, QUANT_BF16, QUANT_Q4_K, QUANT_Q4_K},
    {"blk.4.attn_q.weight", {512, 64}, QUANT_BF16, QUANT_F32, QUANT_F32},
    {"blk.4.attn_q.weight", {704, 64}, QUANT_BF16, QUANT_Q4_K, QUANT_Q5_0},
    {"blk.4.attn_q.weight", {704, 64}, QUANT_BF16, QUANT_Q5_K, QUANT_Q5_1},
    {"blk.4.attn_q.weight", {704, 64}, QUANT_BF16, QUANT_Q6_K, QUANT_Q8_0},
    {"blk.4.attn_q.weight", {40, 64}, QUANT_BF16, QUANT_Q6_K, QUANT_BF16},
    {"blk.4.attn_q.weight", {40, 64}, QUANT_F32, QUANT_Q4_0, QUANT_F16},
    {"blk.4.attn_q.weight", {704, 64}, QUANT_BF16, QUANT_IQ4_XS, QUANT_IQ4_NL},
    {"blk.4.attn_q.weight", {704, 64}, QUANT_BF16, QUANT_MXFP4, QUANT_MXFP4},
    {"token_embd.weight", {512, 64}, QUANT_BF16, QUANT_Q4_0, QUANT_Q6_K},
    {"token_embd.weight", {512, 64}, QUANT_BF16, QUANT_Q4_K, QUANT_Q6_K},
    {"token_embd.weight", {512, 64}, QUANT_BF16, QUANT_Q8_0, QUANT_Q8_0},
    {"token_embd.weight", {704, 64}, QUANT_BF16, QUANT_Q4_K, QUANT_Q8_0},
    {"token_embd.weight", {704, 64}, QUANT_BF16, QUANT_Q4_0, QUANT_Q8_0},
    {"per_layer_token_embd.weight", {512, 64}, QUANT_BF16, QUANT_Q5_0, QUANT_Q6_K},
    {"blk.0.attn_v.weight", {512, 64}, QUANT_BF16, QUANT_Q4_K, QUANT_Q6_K},   /* the first eighth of 16 layers */
    {"blk.4.ffn_down.weight", {512, 64}, QUANT_BF16, QUANT_Q5_K, QUANT_Q6_K}, /* a third one between */
    {"blk.5.ffn_down.weight", {512, 64}, QUANT_BF16, QUANT_Q5_K, QUANT_Q5_K},
    {"blk.15.ffn_down_exps.weight", {704, 64}, QUANT_BF16, QUANT_Q4_K, QUANT_Q8_0},
    {"blk.0.attn_v.weight", {512, 64}, QUANT_BF16, QUANT_Q4_0, QUANT_Q4_0},
    {"masked_embd_ordering.weight", {512, 64}, QUANT_I64, QUANT_Q4_0, QUANT_I64},
};

TEST(recode_chooses_types_by_name_and_shape)
{
    for (size_t i = 0; i < COUNT(choices); i++) {
        recode_rules r = {.want = choices[i].want, .n_layers = 16, .tied = true};
        tensor       x = {.name = str_of(choices[i].name), .type = choices[i].from};
        int64_t     *d = x.dim;
        d[0]           = choices[i].dim[0];
        d[1]           = choices[i].dim[1];
        d[2] = d[3]    = 1;
        quant_type got = recode_type(&r, &x);
        CHECK_MSG(got == choices[i].to, "%s [%d] to %s: %s, expected %s", choices[i].name, (int)d[0],
                  quant_name(choices[i].want), quant_name(got), quant_name(choices[i].to));
    }
    tensor embed = {.name = STR("token_embd.weight"), .type = QUANT_BF16, .dim = {512, 64, 1, 1}};
    tensor head  = {.name = STR("output.weight"), .type = QUANT_BF16, .dim = {512, 64, 1, 1}};
    CHECK_INT(recode_type(&(recode_rules){.want = QUANT_Q4_0}, &embed), QUANT_Q4_0);
    CHECK_INT(recode_type(&(recode_rules){.want = QUANT_Q4_0}, &head), QUANT_Q6_K);
}

enum { ROWS = 300, COLS = 512 };

/* A file with a matrix, a vector and keys; large enough for several pieces. */
static const char *write_source(const float *x, quant_type type, const char *name)
{
    gguf_builder b;
    char        *bytes = xalloc((size_t)ROWS * COLS * sizeof(float));
    test_quantise(type, x, bytes, (size_t)ROWS * COLS);
    gguf_builder_init(&b);
    gguf_builder_str(&b, "general.architecture", "gemma4");
    gguf_builder_u32(&b, "general.file_type", 0);
    gguf_builder_u32(&b, "gemma4.block_count", 1);
    gguf_builder_align(&b, 64);
    gguf_builder_arr_str(&b, "tokenizer.ggml.tokens", (const char *const[]){"a", "", "ccc"}, 3);
    gguf_builder_tensor(&b, "blk.0.attn_q.weight", type, 2, (int64_t[]){COLS, ROWS}, bytes);
    gguf_builder_tensor(&b, "output_norm.weight", QUANT_F32, 1, (int64_t[]){COLS}, x);
    const char *path = gguf_builder_write(&b, name);
    gguf_builder_deinit(&b);
    mem_free(bytes);
    return path;
}

static float *normal_data(uint64_t seed)
{
    float *x = xnew_n(float, ROWS *COLS);
    for (int i = 0; i < ROWS * COLS; i++) x[i] = test_randn(&seed);
    return x;
}

static void check_recoded(test_case *t, const char *path, quant_type want, const float *x)
{
    gguf   *g;
    err     e = {0};
    int64_t n;
    size_t  bytes;
    char   *expected = xalloc((size_t)ROWS * COLS * sizeof(float));
    if (!CHECK_OK(gguf_open(&g, path, &e), e)) return;
    const tensor *m = tensor_find(gguf_tensors(g), STR("blk.0.attn_q.weight"));
    CHECK(m && m->type == want && quant_bytes(want, ROWS * COLS, &bytes) && m->bytes == bytes);
    CHECK(quant_quantise(want, x, expected, ROWS * COLS) && !memcmp(m->data, expected, bytes));
    const tensor *v = tensor_find(gguf_tensors(g), STR("output_norm.weight"));
    CHECK(v && v->type == QUANT_F32 && !memcmp(v->data, x, COLS * sizeof *x));
    CHECK(gguf_int(gguf_find(g, "general.file_type"), &n) && n == recode_file_type(want));
    CHECK(gguf_int(gguf_find(g, "general.alignment"), &n) && n == 64);
    CHECK(gguf_find(g, "tokenizer.ggml.tokens") && gguf_find(g, "tokenizer.ggml.tokens")->n == 3);
    CHECK((gguf_find(g, "general.quantization_version") != NULL) == !quant_is_float(want));
    gguf_close(g);
    mem_free(expected);
}

TEST(recode_files_with_any_number_of_threads_and_parts)
{
    static const quant_type types[] = {QUANT_F32, QUANT_F16, QUANT_BF16, QUANT_Q8_0, QUANT_Q4_K};
    float                  *x       = normal_data(5);
    char                    in[512], out[512], part[600];
    snprintf(in, sizeof in, "%s", write_source(x, QUANT_F32, "recode-in.gguf"));
    for (size_t i = 0; i < COUNT(types); i++)
        for (int threads = 1; threads <= 3; threads++) {
            err            e = {0};
            size_t         lossy;
            recode_options opt = {.n_threads = threads, .part_bytes = threads == 3 ? 1000 : 0};
            snprintf(out, sizeof out, "%s/recode-out", test_tmp_dir());
            snprintf(part, sizeof part, "%s%s", out, threads == 3 ? "-00001-of-00002.gguf" : "");
            CHECK_OK(recode_file(in, out, types[i], &opt, &lossy, &e), e);
            CHECK_INT(lossy, 0);
            check_recoded(t, part, types[i], x);
            unlink(part);
        }
    mem_free(x);
}

TEST(recode_counts_what_was_quantised_before)
{
    float         *x = normal_data(6);
    err            e = {0};
    size_t         lossy;
    char           in[512], out[512];
    recode_options opt = {.n_threads = 1};
    snprintf(in, sizeof in, "%s", write_source(x, QUANT_Q4_0, "recode-q4.gguf"));
    snprintf(out, sizeof out, "%s/recode-q8.gguf", test_tmp_dir());
    CHECK_OK(recode_file(in, out, QUANT_Q8_0, &opt, &lossy, &e), e);
    CHECK_INT(lossy, 1);
    CHECK_OK(recode_file(in, out, QUANT_Q4_0, &opt, &lossy, &e), e); /* a plain copy */
    CHECK_INT(lossy, 0);
    CHECK_FAILS(recode_file(in, in, QUANT_Q8_0, &opt, &lossy, &e), e, "being read");
    char link[512];
    snprintf(link, sizeof link, "%s/recode-link.gguf", test_tmp_dir());
    CHECK(symlink(in, link) == 0);
    CHECK_FAILS(recode_file(in, link, QUANT_Q8_0, &opt, &lossy, &e), e, "being read");
    mem_free(x);
}

TEST(recode_says_which_tensor_cannot_be_quantised)
{
    float         *x = normal_data(7);
    err            e = {0};
    size_t         lossy;
    char           in[512], out[512];
    recode_options opt = {.n_threads = 2};
    x[ROWS * COLS - 1] = NAN;
    snprintf(in, sizeof in, "%s", write_source(x, QUANT_F32, "recode-nan.gguf"));
    snprintf(out, sizeof out, "%s/recode-none.gguf", test_tmp_dir());
    CHECK_FAILS(recode_file(in, out, QUANT_Q8_0, &opt, &lossy, &e), e, "'blk.0.attn_q.weight' has NaN");
    CHECK(access(out, F_OK) != 0);
    CHECK_FAILS(recode_file("/nowhere.gguf", out, QUANT_Q8_0, &opt, &lossy, &e), e, "/nowhere.gguf");
    mem_free(x);
}
