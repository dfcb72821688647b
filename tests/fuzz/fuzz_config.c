/* A config.json of any content: the numbers that are accepted are in range, whatever was written. */
#include "model/gemma4_config.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_accepted(const gemma4_config *c)
{
    assert(c->n_layers >= 1 && c->n_layers <= GEMMA4_MAX_LAYERS && c->n_embd >= 8 && c->n_vocab >= 2 && c->window >= 1);
    assert(c->theta_full >= 1 && c->theta_sliding >= 1 && c->eps >= 0 && c->eps <= 1 && c->softcap >= 0);
    assert(c->n_kv_shared >= 0 && c->n_kv_shared < c->n_layers + c->assistant);
    for (int l = 0; l < c->n_layers; l++) {
        int d = gemma4_kv_donor(c, l);
        assert(d >= 0 || c->assistant);
        assert(d < 0 || (d <= l && c->sliding[d] == c->sliding[l]));
        assert(c->head_dim[l] % 8 == 0 && c->n_kv_heads[l] >= 1 && c->n_heads % c->n_kv_heads[l] == 0 &&
               c->n_ff[l] >= 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    checkpoint    cp   = {0};
    err           e    = {0};
    json_limits   lim  = {.max_memory = 64 << 20};
    tensor_table *none = tensor_table_new(0);
    gemma4_config c;
    arena_init(&cp.json, 64 << 20);
    cp.tensors = none;
    if (none && json_parse(&cp.config, &cp.json, (str){(const char *)data, size}, &lim, &e)) {
        if (gemma4_config_read(&c, &cp, &e))
            check_accepted(&c);
        else
            assert(e.text[0]);
    }
    arena_deinit(&cp.json);
    tensor_table_free(none);
    return 0;
}
