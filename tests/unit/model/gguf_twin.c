/* The golden models written as GGUF files, with GGUF's names and keys: the logits must be those of the directory, bit for
 * bit, so all that the golden vectors prove holds for GGUF too. */
#include "gguf/build_gguf.h"
#include "model/gemma4_config.h"
#include "model/model.h"
#include "model/open_target.h"
#include "test.h"

#include <stdlib.h>

static const char *const names[][2] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"router.proj.weight", "ffn_gate_inp.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
    {"per_layer_input_gate.weight", "inp_gate.weight"},
    {"per_layer_projection.weight", "proj.weight"},
    {"post_per_layer_input_norm.weight", "post_norm.weight"},
};

/* model.layers.3.X -> blk.3.Y, model.X -> Y */
static bool gguf_name(str hf, char out[128])
{
    const char *layer = "model.layers.";
    int         l = -1, used = 0;
    char        text[256];
    snprintf(text, sizeof text, "%.*s", (int)hf.n, hf.s);
    str tail = hf;
    if (str_starts(hf, layer)) {
        if (sscanf(text + strlen(layer), "%d.%n", &l, &used) != 1) return false;
        tail = (str){hf.s + strlen(layer) + (size_t)used, hf.n - strlen(layer) - (size_t)used};
    }
    for (size_t i = 0; i < COUNT(names); i++)
        if (str_is(tail, names[i][0])) {
            if (l < 0)
                snprintf(out, 128, "%s", names[i][1]);
            else
                snprintf(out, 128, "blk.%d.%s", l, names[i][1]);
            return true;
        }
    return false;
}

/* gate_up [E][2F][H] as two tensors [E][F][H] */
static void put_split_experts(gguf_builder *b, const tensor *x, const char *name)
{
    size_t half = x->bytes / (size_t)x->dim[2] / 2;
    char  *part = xalloc(x->bytes / 2), other[128];
    for (int k = 0; k < 2; k++) {
        for (int64_t e = 0; e < x->dim[2]; e++)
            memcpy(part + (size_t)e * half, (const char *)x->data + (size_t)(2 * e + k) * half, half);
        snprintf(other, sizeof other, "%.*s%s", (int)(strstr(name, "gate_up") - name), name,
                 k ? "up_exps.weight" : "gate_exps.weight");
        gguf_builder_tensor(b, other, x->type, 3, (int64_t[]){x->dim[0], x->dim[1] / 2, x->dim[2]}, part);
    }
    mem_free(part);
}

static void put_keys(gguf_builder *b, const gemma4_config *c, bool arrays)
{
    int32_t n_kv[64], n_ff[64];
    bool    sliding[64];
    int     full = 0, slide = 0;
    for (int l = 0; l < c->n_layers; l++) {
        n_kv[l]                           = c->n_kv_heads[l];
        n_ff[l]                           = c->n_ff[l];
        sliding[l]                        = c->sliding[l];
        *(c->sliding[l] ? &slide : &full) = c->head_dim[l];
    }
    gguf_builder_str(b, "general.architecture", "gemma4");
    gguf_builder_u32(b, "gemma4.block_count", (uint32_t)c->n_layers);
    gguf_builder_u32(b, "gemma4.context_length", (uint32_t)c->n_ctx);
    gguf_builder_u32(b, "gemma4.embedding_length", (uint32_t)c->n_embd);
    gguf_builder_u32(b, "gemma4.embedding_length_per_layer_input", (uint32_t)c->n_ple);
    if (arrays)
        gguf_builder_arr_i32(b, "gemma4.feed_forward_length", n_ff, (size_t)c->n_layers);
    else
        gguf_builder_u32(b, "gemma4.feed_forward_length", (uint32_t)n_ff[0]);
    gguf_builder_u32(b, "gemma4.attention.head_count", (uint32_t)c->n_heads);
    gguf_builder_arr_i32(b, "gemma4.attention.head_count_kv", n_kv, (size_t)c->n_layers);
    gguf_builder_u32(b, "gemma4.attention.key_length", (uint32_t)full);
    gguf_builder_u32(b, "gemma4.attention.key_length_swa", (uint32_t)slide);
    gguf_builder_f32(b, "gemma4.attention.layer_norm_rms_epsilon", c->eps);
    gguf_builder_u32(b, "gemma4.attention.sliding_window", (uint32_t)c->window);
    gguf_builder_arr_bool(b, "gemma4.attention.sliding_window_pattern", sliding, (size_t)c->n_layers);
    gguf_builder_u32(b, "gemma4.attention.shared_kv_layers", (uint32_t)c->n_kv_shared);
    gguf_builder_f32(b, "gemma4.rope.freq_base", (float)c->theta_full);
    gguf_builder_f32(b, "gemma4.rope.freq_base_swa", (float)c->theta_sliding);
    gguf_builder_f32(b, "gemma4.final_logit_softcapping", c->softcap);
    if (c->n_experts) {
        gguf_builder_u32(b, "gemma4.expert_count", (uint32_t)c->n_experts);
        gguf_builder_i32(b, "gemma4.expert_used_count", c->n_used);
        gguf_builder_u32(b, "gemma4.expert_feed_forward_length", (uint32_t)c->n_ff_expert);
    }
}

static void put_rope_freqs(gguf_builder *b, const gemma4_config *c)
{
    int   half = c->head_dim[c->n_layers - 1] / 2;
    float f[512];
    for (int i = 0; i < half; i++) f[i] = i < half / 4 ? 1.0f : 1e30f;
    gguf_builder_tensor(b, "rope_freqs.weight", QUANT_F32, 1, (int64_t[]){half}, f);
}

static const char *write_twin(test_case *t, const checkpoint *cp, bool split_experts, bool rope_freqs)
{
    gguf_builder  b;
    gemma4_config c;
    err           e = {0};
    CHECK_OK(gemma4_config_read(&c, cp, &e), e);
    gguf_builder_init(&b);
    put_keys(&b, &c, c.n_ple > 0);
    if (rope_freqs) put_rope_freqs(&b, &c);
    for (size_t i = 0; i < tensor_count(cp->tensors); i++) {
        const tensor *x = tensor_at(cp->tensors, i);
        char          name[128];
        if (!CHECK_MSG(gguf_name(x->name, name), "no GGUF name for %.*s", (int)x->name.n, x->name.s)) continue;
        if (split_experts && strstr(name, "gate_up_exps"))
            put_split_experts(&b, x, name);
        else
            gguf_builder_tensor(&b, name, x->type, x->n_dims, x->dim, x->data);
    }
    const char *path = gguf_builder_write(&b, "twin.gguf");
    gguf_builder_deinit(&b);
    return path;
}

static bool logits_of(test_case *t, const checkpoint *cp, float *out, int T, int V)
{
    target       *m;
    kv_pool      *kv;
    err           e   = {0};
    model_options opt = {.device = "cpu", .n_threads = 1};
    step         *s   = &(step){0};
    if (!CHECK_OK(model_open(&m, cp, &opt, &e), e)) return false;
    if (!test_open_pool(t, &kv, m, &(test_pool){.max_lanes = 1, .max_slots = T})) return false;
    kv_seq *seq = kv_seq_new(kv, 0);
    CHECK_OK(kv_seq_grow(seq, T, &e), e);
    step_init(s, T);
    for (int i = 0; i < T; i++) step_add(s, 0, i, (i * 37 + 11) % V, true);
    CHECK_OK(m->step(m, kv, s, &e), e);
    m->head(m, 0, T);
    m->o->download(m->q, out, m->logits, (size_t)T * (size_t)V * sizeof(float));
    m->o->sync(m->q);
    step_deinit(s);
    kv_seq_free(seq);
    kv_pool_free(kv);
    model_close(m);
    return true;
}

static void check_twin(test_case *t, const char *name, bool split_experts, bool rope_freqs)
{
    enum { T = 30, V = 512 };
    static float a[T * V], b[T * V];
    checkpoint  *hf, *twin;
    err          e = {0};
    char         rel[128];
    snprintf(rel, sizeof rel, "tests/golden/%s", name);
    if (!CHECK_OK(checkpoint_open(&hf, test_path(rel), &e), e)) return;
    const char *path = write_twin(t, hf, split_experts, rope_freqs);
    if (CHECK_OK(checkpoint_open(&twin, path, &e), e)) {
        memset(b, 0, sizeof b);
        if (logits_of(t, hf, a, T, V) && logits_of(t, twin, b, T, V)) CHECK(!memcmp(a, b, sizeof a));
        checkpoint_close(twin);
    }
    checkpoint_close(hf);
}

TEST(model_gguf_twin_dense) { check_twin(t, "gemma4-dense", false, true); }
TEST(model_gguf_twin_moe) { check_twin(t, "gemma4-moe", false, false); }
TEST(model_gguf_twin_moe_split_experts) { check_twin(t, "gemma4-moe", true, true); }
TEST(model_gguf_twin_ple) { check_twin(t, "gemma4-ple", false, true); }
