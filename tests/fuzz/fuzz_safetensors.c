/* Any bytes as a safetensors file: what is accepted covers the data exactly. */
#include "gguf/inside.h"
#include "gguf/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t sum; /* sum of all bytes read, so that no read is optimised away */

static void walk_tensor(const tensor_table *tt, const tensor *t)
{
    float y;
    if (tensor_find(tt, t->name) != t || !t->name.n || t->n_dims < 1 || t->n_dims > TENSOR_MAX_DIMS) abort();
    for (size_t i = 0; i < t->bytes; i++) sum += ((const uint8_t *)t->data)[i];
    if (quant_can_dequantise(t->type)) quant_dequantise(t->type, t->data, &y, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    err          e = {0};
    safetensors *s;
    uint64_t     header;
    size_t       bytes = 0;
    if (!safetensors_open_bytes(&s, (str){(const char *)data, size}, &e)) {
        if (s || !e.text[0]) abort(); /* a refusal has a reason */
        return 0;
    }
    const tensor_table *tt = safetensors_tensors(s);
    for (size_t i = 0; i < tensor_count(tt); i++) {
        walk_tensor(tt, tensor_at(tt, i));
        bytes += tensor_at(tt, i)->bytes;
    }
    memcpy(&header, data, sizeof header);
    if (sizeof header + header + bytes != size) abort();
    safetensors_close(s);
    return 0;
}
