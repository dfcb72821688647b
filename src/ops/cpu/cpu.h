/* ops/cpu/cpu.h - the backend for processors: SIMD kernels on a thread pool. */
#ifndef TANDEM_OPS_CPU_CPU_H
#define TANDEM_OPS_CPU_CPU_H
#include "ops/ops.h"

/* isa: whose kernels, "base", "avx2" or "vnni"; NULL: the best that the machine has. n_threads 0: as many as this
 * process may use. */
bool cpu_ops_open_isa(ops **out, const char *isa, int n_threads, err *e);
/* The instruction set that this would use; NULL: none. */
const char *cpu_ops_isa(const char *isa, err *e);
#endif
