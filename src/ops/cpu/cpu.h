/* ops/cpu/cpu.h - the backend for processors: SIMD kernels on a thread pool. An op has run when its call returns. */
#ifndef TANDEM_OPS_CPU_CPU_H
#define TANDEM_OPS_CPU_CPU_H
#include "ops/ops.h"

/* Opens the backend; closed with ops_close. isa: the kernels "base", "avx2" or "vnni"; NULL: the best that the
 * processor supports. Fails with ERR_INPUT when the name is unknown or the processor does not support it; *out is then
 * NULL. n_threads 0: as many as this process may use. */
bool cpu_ops_open_isa(ops **out, const char *isa, int n_threads, err *e);
/* Returns the name, static, of the kernels that cpu_ops_open_isa would use; NULL when it would fail. */
const char *cpu_ops_isa(const char *isa, err *e);
#endif
