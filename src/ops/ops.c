#include "ops/ops.h"

#include "ops/cpu/cpu.h"
#include "ops/ref/ref.h"

#include <string.h>

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
