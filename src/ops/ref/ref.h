/* ops/ref/ref.h - the reference backend: the results that the other backends are compared with.
 *
 * One thread, no tiles, every sum in double and rounded to f32 once, at the end. Weights are kept as f32, so this is
 * for small models and for tests. Activations are not quantised. */
#ifndef TANDEM_OPS_REF_REF_H
#define TANDEM_OPS_REF_REF_H
#include "ops/ops.h"

bool ref_ops_open(ops **out, err *e); /* closed with ops_close; on failure *out is NULL */
#endif
