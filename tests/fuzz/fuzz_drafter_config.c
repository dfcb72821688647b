/* A drafter's config.json of any content: the numbers that are accepted are in range, and opening goes as far as it can
 * without weights. The tensors are those that the sizes of a DFlash drafter are read from; no drafter has only them. */
#include "model/dflash_config.h"
#include "model/drafter.h"
#include "model/gemma4_config.h"

#include <assert.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct {
    const char *name;
    int64_t     n_in, n_out;
} tensors[] = {
    {"fc.weight", 512, 128},
    {"hidden_norm.weight", 128, 1},
    {"layers.0.mlp.gate_proj.weight", 128, 256},
    {"layers.0.self_attn.q_norm.weight", 64, 1},
    {"layers.0.self_attn.q_proj.weight", 128, 256},
    {"layers.0.self_attn.k_proj.weight", 128, 128},
};

static tensor_table *make_table(void)
{
    tensor_table *all = tensor_table_new(sizeof tensors / sizeof *tensors);
    err           e   = {0};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        tensor x = {.name   = str_of(tensors[i].name),
                    .type   = QUANT_F32,
                    .n_dims = 2,
                    .dim    = {tensors[i].n_in, tensors[i].n_out, 1, 1}};
        if (!all || !tensor_table_add(all, &x, &e)) abort();
    }
    return all;
}

static void check_dflash(const dflash_config *c)
{
    assert(c->n_layers >= 1 && c->n_layers <= DFLASH_MAX_LAYERS && c->n_vocab >= 2 && c->n_ctx >= 0);
    assert(c->block >= 2 && c->block <= DFLASH_MAX_BLOCK && c->mask_id >= 0 && c->mask_id < c->n_vocab);
    assert(c->n_captures >= 0 && c->n_captures <= DFLASH_MAX_CAPTURES);
    for (int i = 0; i < c->n_captures; i++)
        assert(c->capture[i] >= (c->kind == DFLASH_SPARK ? -1 : 0) && c->capture[i] <= 1 << 16);
    for (int l = 0; l < c->n_layers; l++) assert(!c->sliding[l] || c->window >= 1);
    assert(c->rope_part >= 0 && c->rope_part <= 1 && c->embed_scale >= 0 && c->yarn.factor >= 0);
    assert(dflash_max_tokens(c) >= 1 && dflash_max_tokens(c) <= c->block && c->n_top <= 64);
    assert(c->theta >= 1 && c->eps >= 0 && c->eps <= 1 && (c->softcap == -1 || c->softcap >= 0));
}

static void check_assistant(const gemma4_config *c)
{
    assert(c->n_layers >= 1 && c->n_layers <= GEMMA4_MAX_LAYERS && c->n_embd >= 8 && c->n_vocab >= 2 && c->window >= 1);
    for (int l = 0; l < c->n_layers; l++)
        assert(c->head_dim[l] % 8 == 0 && c->n_kv_heads[l] >= 1 && c->n_heads % c->n_kv_heads[l] == 0 &&
               c->n_ff[l] >= 1);
}

static void read_both(const checkpoint *cp)
{
    static dflash_config d;
    static gemma4_config g;
    err                  e = {0}, f = {0};
    if (dflash_config_read(&d, cp, &e))
        check_dflash(&d);
    else
        assert(e.text[0]);
    if (gemma4_config_read(&g, cp, &f))
        check_assistant(&g);
    else
        assert(f.text[0]);
}

/* The check against the target comes last: there is no backend to load weights into. */
static void open_drafter(const checkpoint *cp)
{
    target          t   = {.scaled_embed = true, .n_layers = 6, .n_embd = 128, .n_vocab = 512, .n_ctx = 4096};
    drafter_options opt = {.max_lanes = 1};
    drafter        *d;
    err             e = {0};
    t.donor[0]        = (kv_donor){true, 0, 0, 1, 128, 0};
    t.donor[1]        = (kv_donor){true, 1, 0, 2, 64, 16};
    bool opened       = drafter_open(&d, &t, cp, &opt, &e);
    assert(!opened && !d && e.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    checkpoint    cp  = {0};
    err           e   = {0};
    json_limits   lim = {.max_memory = 64 << 20};
    tensor_table *all = make_table();
    arena_init(&cp.json, 64 << 20);
    cp.tensors = all;
    if (json_parse(&cp.config, &cp.json, (str){(const char *)data, size}, &lim, &e)) {
        read_both(&cp);
        open_drafter(&cp);
    }
    arena_deinit(&cp.json);
    tensor_table_free(all);
    return 0;
}
