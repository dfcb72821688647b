/* ops/cpu/cpu.h - the backend for processors: SIMD kernels on a thread pool. */
#ifndef TANDEM_OPS_CPU_CPU_H
#define TANDEM_OPS_CPU_CPU_H
#include "ops/ops.h"

/* Opens the backend. isa: "base", "avx2" or "vnni"; NULL: the best that the processor supports. n_threads 0: as many as
 * this process may use. */
bool cpu_ops_open_isa(ops **out, const char *isa, int n_threads, err *e);
/* Returns the instruction set that cpu_ops_open_isa would use; NULL: none. */
const char *cpu_ops_isa(const char *isa, err *e);
#endif
