/* Any bytes as a GGUF file: what is accepted is walked to its last byte. */
#include "gguf/gguf.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t sum; /* sum of all bytes read, so that no read is optimised away */

static void walk_value(const gguf_value *v)
{
    int64_t     i;
    double      d;
    bool        b;
    str         s;
    const char *at = v->data;
    if (gguf_int(v, &i)) sum += (uint64_t)i;
    if (gguf_real(v, &d)) sum += d > 0;
    if (gguf_bool(v, &b)) sum += b;
    if (gguf_str(v, &s)) sum += str_hash(s);
    for (uint64_t k = 0; v->type == GGUF_ARRAY && k < v->n; k++) {
        if (gguf_item_int(v, k, &i)) sum += (uint64_t)i;
        if (v->item == GGUF_STRING) sum += str_hash(gguf_next_str(&at));
    }
}

static void walk_tensor(const tensor_table *tt, const tensor *t)
{
    float y[QK_K];
    if (tensor_find(tt, t->name) != t || !t->name.n) abort();
    for (size_t i = 0; i < t->bytes; i++) sum += ((const uint8_t *)t->data)[i];
    if (!quant_can_dequantise(t->type)) return;
    size_t block = (size_t)quant_block(t->type);
    quant_dequantise(t->type, t->data, y, block);
    quant_dequantise(t->type, (const char *)t->data + t->bytes - quant_block_bytes(t->type), y, block);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    err   e = {0};
    gguf *g;
    if (!gguf_open_bytes(&g, (str){(const char *)data, size}, &e)) {
        if (g || !e.text[0]) abort(); /* a refusal has a reason */
        return 0;
    }
    for (size_t i = 0; i < gguf_n_values(g); i++) walk_value(gguf_value_at(g, i));
    for (size_t i = 0; i < tensor_count(gguf_tensors(g)); i++)
        walk_tensor(gguf_tensors(g), tensor_at(gguf_tensors(g), i));
    gguf_close(g);
    return 0;
}
