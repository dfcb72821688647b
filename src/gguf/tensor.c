#include "gguf/tensor.h"

#include "base/mem.h"
#include "gguf/names.h"

#include <inttypes.h>

bool tensor_size(tensor *t, err *e)
{
    size_t n     = 1;
    int    block = quant_block(t->type);
    for (int i = 0; i < t->n_dims; i++)
        if (!size_mul(&n, n, (size_t)t->dim[i]))
            return err_set(e, ERR_FORMAT, "tensor '%.*s' is too large: dimension %d of %d is %" PRId64,
                           STR_ARG(t->name), i, t->n_dims, t->dim[i]);
    if (t->dim[0] % block)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' has rows of %" PRId64 ", not a multiple of %s's block of %d",
                       STR_ARG(t->name), t->dim[0], quant_name(t->type), block);
    if (n > INT64_MAX || !quant_bytes(t->type, n, &t->bytes))
        return err_set(e, ERR_FORMAT, "tensor '%.*s' is too large: %zu elements", STR_ARG(t->name), n);
    return true;
}

bool tensor_is_ints(const tensor *t, int64_t n)
{
    return (t->type == QUANT_I64 || t->type == QUANT_I32) && t->dim[0] == n && t->dim[1] == 1;
}

int64_t tensor_int(const tensor *t, size_t i)
{
    int64_t wide;
    int32_t narrow;
    if (t->type == QUANT_I64) {
        memcpy(&wide, (const char *)t->data + i * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)t->data + i * sizeof narrow, sizeof narrow);
    return narrow;
}

struct tensor_table {
    tensor *item;
    size_t  cap, max;
    names   names; /* as many as tensors */
};

tensor_table *tensor_table_new(size_t max_tensors)
{
    tensor_table *t = mem_try(sizeof *t);
    if (t) t->max = max_tensors;
    return t;
}

void tensor_table_free(tensor_table *t)
{
    if (!t) return;
    names_deinit(&t->names);
    mem_free(t->item);
    mem_free(t);
}

static bool make_room(tensor_table *t)
{
    if (t->names.n < t->cap) return true;
    size_t  cap  = t->cap ? 2 * t->cap : 64, bytes;
    tensor *item = size_mul(&bytes, cap, sizeof *item) ? mem_try_resize(t->item, bytes) : NULL;
    if (!item) return false;
    t->item = item;
    t->cap  = cap;
    return true;
}

bool tensor_table_add(tensor_table *t, const tensor *x, err *e)
{
    size_t at = t->names.n;
    if (at == t->max) return err_set(e, ERR_LIMIT, "more than %zu tensors", t->max);
    names_result r = make_room(t) ? names_add(&t->names, x->name) : NAMES_NO_MEMORY;
    if (r == NAMES_NO_MEMORY) return err_set(e, ERR_UNAVAILABLE, "no memory for more than %zu tensors", at);
    if (r == NAMES_TWICE) return err_set(e, ERR_FORMAT, "tensor '%.*s' appears twice", STR_ARG(x->name));
    t->item[at] = *x;
    return true;
}

const tensor *tensor_find(const tensor_table *t, str name)
{
    size_t at;
    return names_find(&t->names, name, &at) ? &t->item[at] : NULL;
}

size_t        tensor_count(const tensor_table *t) { return t->names.n; }
const tensor *tensor_at(const tensor_table *t, size_t i) { return &t->item[i]; }
