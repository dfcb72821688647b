#include "tiny_model.h"

#include "test.h"

#include <stdlib.h>

typedef struct {
    gguf_builder     *b;
    const tiny_model *m;
    uint64_t          rand;
} maker;

static void put(maker *k, const char *name, quant_type type, int64_t d0, int64_t d1, int64_t d2, float size)
{
    size_t n = (size_t)(d0 * d1 * d2), bytes;
    if (!quant_bytes(type, n, &bytes)) abort();
    void *data = xalloc(bytes);
    test_random_blocks(type, &k->rand, size, data, n);
    gguf_builder_tensor(k->b, name, type, d2 > 1 ? 3 : d1 > 1 ? 2 : 1, (int64_t[]){d0, d1, d2}, data);
    mem_free(data);
}

static const char *layer_name(int l, const char *suffix)
{
    static char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, suffix);
    return name;
}

static void matrix(maker *k, int l, const char *suffix, int64_t n_in, int64_t n_out, int64_t n_mats)
{
    put(k, layer_name(l, suffix), k->m->type, n_in, n_out, n_mats, 1.5f / sqrtf((float)n_in));
}

static void vector(maker *k, const char *name, int n, float centre)
{
    float *v = xnew_n(float, (size_t)n);
    for (int i = 0; i < n; i++) v[i] = centre * (1 + 0.2f * test_randn(&k->rand));
    gguf_builder_tensor(k->b, name, QUANT_F32, 1, (int64_t[]){n}, v);
    mem_free(v);
}

static bool is_sliding(const tiny_model *m, int l) { return (l + 1) % 3 != 0 && l + 1 < m->n_layers; }

static void put_keys(maker *k)
{
    const tiny_model *m = k->m;
    gguf_builder     *b = k->b;
    bool              sliding[64];
    int32_t           n_kv[64];
    for (int l = 0; l < m->n_layers; l++) {
        sliding[l] = is_sliding(m, l);
        n_kv[l]    = sliding[l] ? 2 : 1;
    }
    gguf_builder_str(b, "general.architecture", "gemma4");
    gguf_builder_u32(b, "gemma4.block_count", (uint32_t)m->n_layers);
    gguf_builder_u32(b, "gemma4.context_length", 4096);
    gguf_builder_u32(b, "gemma4.embedding_length", (uint32_t)m->n_embd);
    gguf_builder_u32(b, "gemma4.embedding_length_per_layer_input", (uint32_t)m->n_ple);
    gguf_builder_u32(b, "gemma4.feed_forward_length", (uint32_t)m->n_embd);
    gguf_builder_u32(b, "gemma4.attention.head_count", 4);
    gguf_builder_arr_i32(b, "gemma4.attention.head_count_kv", n_kv, (size_t)m->n_layers);
    gguf_builder_u32(b, "gemma4.attention.key_length", (uint32_t)m->n_embd / 2);
    gguf_builder_u32(b, "gemma4.attention.key_length_swa", (uint32_t)m->n_embd / 4);
    gguf_builder_f32(b, "gemma4.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_builder_u32(b, "gemma4.attention.sliding_window", 24);
    gguf_builder_arr_bool(b, "gemma4.attention.sliding_window_pattern", sliding, (size_t)m->n_layers);
    gguf_builder_u32(b, "gemma4.attention.shared_kv_layers", m->n_ple ? 2 : 0);
    gguf_builder_f32(b, "gemma4.rope.freq_base", 1e6f);
    gguf_builder_f32(b, "gemma4.rope.freq_base_swa", 1e4f);
    gguf_builder_f32(b, "gemma4.final_logit_softcapping", 30);
    if (!m->n_experts) return;
    gguf_builder_u32(b, "gemma4.expert_count", (uint32_t)m->n_experts);
    gguf_builder_u32(b, "gemma4.expert_used_count", 2);
    gguf_builder_u32(b, "gemma4.expert_feed_forward_length", (uint32_t)m->n_embd);
}

static void put_experts(maker *k, int l)
{
    int H = k->m->n_embd, E = k->m->n_experts;
    put(k, layer_name(l, "ffn_gate_inp.weight"), QUANT_F32, H, E, 1, 2);
    vector(k, layer_name(l, "ffn_gate_inp.scale"), H, 1);
    vector(k, layer_name(l, "ffn_down_exps.scale"), E, 1);
    vector(k, layer_name(l, "pre_ffw_norm_2.weight"), H, 1);
    vector(k, layer_name(l, "post_ffw_norm_1.weight"), H, 1);
    vector(k, layer_name(l, "post_ffw_norm_2.weight"), H, 1);
    if (k->m->split_experts) {
        matrix(k, l, "ffn_gate_exps.weight", H, H, E);
        matrix(k, l, "ffn_up_exps.weight", H, H, E);
    } else {
        matrix(k, l, "ffn_gate_up_exps.weight", H, 2 * H, E);
    }
    matrix(k, l, "ffn_down_exps.weight", H, H, E);
}

static void put_layer(maker *k, int l)
{
    static const char *const norm[] = {"attn_norm.weight", "post_attention_norm.weight", "ffn_norm.weight",
                                       "post_ffw_norm.weight"};
    const tiny_model        *m      = k->m;
    int                      H = m->n_embd, D = is_sliding(m, l) ? H / 4 : H / 2, n_kv = is_sliding(m, l) ? 2 : 1;
    for (size_t i = 0; i < COUNT(norm); i++) vector(k, layer_name(l, norm[i]), H, 1);
    vector(k, layer_name(l, "attn_q_norm.weight"), D, 0.25f);
    matrix(k, l, "attn_q.weight", H, 4 * D, 1);
    matrix(k, l, "attn_output.weight", 4 * D, H, 1);
    if (!m->n_ple || l < m->n_layers - 2) {
        vector(k, layer_name(l, "attn_k_norm.weight"), D, 1);
        matrix(k, l, "attn_k.weight", H, n_kv * D, 1);
        if (is_sliding(m, l) || m->n_ple) matrix(k, l, "attn_v.weight", H, n_kv * D, 1);
    }
    matrix(k, l, "ffn_gate.weight", H, H, 1);
    matrix(k, l, "ffn_up.weight", H, H, 1);
    matrix(k, l, "ffn_down.weight", H, H, 1);
    vector(k, layer_name(l, "layer_output_scale.weight"), 1, 0.8f);
    if (m->n_experts) put_experts(k, l);
    if (m->n_ple) {
        matrix(k, l, "inp_gate.weight", H, m->n_ple, 1);
        matrix(k, l, "proj.weight", m->n_ple, H, 1);
        vector(k, layer_name(l, "post_norm.weight"), H, 1);
    }
}

void tiny_model_build(gguf_builder *b, const tiny_model *m)
{
    maker k = {b, m, m->seed + 1};
    int   H = m->n_embd, LP = m->n_layers * m->n_ple;
    put_keys(&k);
    put(&k, "token_embd.weight", m->type, H, m->n_vocab, 1, 0.6f / sqrtf((float)H));
    vector(&k, "output_norm.weight", H, 16);
    if (m->n_ple) {
        put(&k, "per_layer_token_embd.weight", m->type, LP, m->n_vocab, 1, 1);
        put(&k, "per_layer_model_proj.weight", m->type, H, LP, 1, 1.5f / sqrtf((float)H));
        vector(&k, "per_layer_proj_norm.weight", m->n_ple, 1);
    }
    for (int l = 0; l < m->n_layers; l++) put_layer(&k, l);
}

const char *tiny_model_write(const tiny_model *m, const char *name)
{
    gguf_builder b;
    gguf_builder_init(&b);
    tiny_model_build(&b, m);
    const char *path = gguf_builder_write(&b, name);
    gguf_builder_deinit(&b);
    return path;
}
