#include "ops/ops.h"

#include "ops/cpu/cpu.h"
#include "ops/ref/ref.h"

#include <string.h>

static int max_int(int a, int b) { return a > b ? a : b; }

queue_limits queue_limits_max(const queue_limits *a, const queue_limits *b)
{
    return (queue_limits){max_int(a->max_rows, b->max_rows), max_int(a->max_in, b->max_in),
                          max_int(a->max_expert_slots, b->max_expert_slots), max_int(a->n_experts, b->n_experts),
                          max_int(a->max_vocab, b->max_vocab)};
}

bool ops_open(ops **out, const char *name, int n_threads, err *e)
{
    *out = NULL;
    if (!strcmp(name, "cpu") || !strcmp(name, "auto")) return cpu_ops_open(out, n_threads, e);
    if (!strcmp(name, "ref")) return ref_ops_open(out, e);
    return err_set(e, ERR_INPUT, "there is no device '%s': use auto, cpu or ref", name);
}

void ops_close(ops *o)
{
    if (o) o->close(o);
}
