/* Converts a config.json of any content to a GGUF file: keys and shapes of every kind of model that can be converted.
 * The tensors are those of a small drafter, so that a matching configuration reaches the header. */
#include "base/log.h"
#include "base/mem.h"
#include "model/convert_plan.h"

#include <assert.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WIDTH = 16, MAX_NAMES = 64 };

/* The tensors of a DFlash drafter of one layer: width 16, one head of 8. */
static tensor_table *make_tensors(float zeros[WIDTH * WIDTH * 2])
{
    static const struct {
        const char *name;
        int64_t     d0, d1;
    } all[] = {
        {"fc.weight", 16, 16},
        {"hidden_norm.weight", 16, 1},
        {"norm.weight", 16, 1},
        {"layers.0.input_layernorm.weight", 16, 1},
        {"layers.0.post_attention_layernorm.weight", 16, 1},
        {"layers.0.self_attn.q_proj.weight", 16, 8},
        {"layers.0.self_attn.k_proj.weight", 16, 8},
        {"layers.0.self_attn.v_proj.weight", 16, 8},
        {"layers.0.self_attn.o_proj.weight", 8, 16},
        {"layers.0.self_attn.q_norm.weight", 8, 1},
        {"layers.0.self_attn.k_norm.weight", 8, 1},
        {"layers.0.mlp.gate_proj.weight", 16, 16},
        {"layers.0.mlp.up_proj.weight", 16, 16},
        {"layers.0.mlp.down_proj.weight", 16, 16},
    };
    tensor_table *t = tensor_table_new(MAX_NAMES);
    for (size_t i = 0; t && i < COUNT(all); i++) {
        tensor x = {.name = str_of(all[i].name), .n_dims = 2, .dim = {all[i].d0, all[i].d1, 1, 1}, .data = zeros};
        err    e;
        if (!tensor_size(&x, &e) || !tensor_table_add(t, &x, &e)) break;
    }
    return t;
}

static void plan_with(bool (*plan)(convert_plan *p, err *e), const checkpoint *cp)
{
    err          e               = {0};
    bool         used[MAX_NAMES] = {0};
    convert_plan p               = {.cp = cp, .w = gguf_writer_new(), .mask_id = -1, .used = used};
    arena_init(&p.mem, 16 << 20);
    bool ok = plan(&p, &e) && plan_tokenizer(&p, NULL, &e);
    assert(ok || e.text[0]);
    if (ok) assert(p.n_layers >= 1 && p.n_vocab >= 2 && p.mask_id < p.n_vocab && p.n > 0);
    mem_free(p.item);
    arena_deinit(&p.mem);
    gguf_writer_free(p.w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    checkpoint    cp                       = {.path = "/nowhere"};
    err           e                        = {0};
    json_limits   lim                      = {.max_memory = 64 << 20};
    float         zeros[WIDTH * WIDTH * 2] = {0};
    tensor_table *t                        = make_tensors(zeros);
    log_setup(LOG_ERROR, false);
    arena_init(&cp.json, 64 << 20);
    cp.tensors = t;
    if (t && json_parse(&cp.config, &cp.json, (str){(const char *)data, size}, &lim, &e)) {
        cp.generation = cp.config;
        plan_with(plan_dflash, &cp);
        plan_with(plan_assistant, &cp);
        plan_with(plan_gemma4, &cp);
    }
    arena_deinit(&cp.json);
    tensor_table_free(t);
    return 0;
}
