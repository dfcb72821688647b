/* ops/cpu/cpu.h - the backend for processors: SIMD kernels on a thread pool. */
#ifndef TANDEM_OPS_CPU_CPU_H
#define TANDEM_OPS_CPU_CPU_H
#include "ops/ops.h"

bool cpu_ops_open(ops **out, int n_threads, err *e); /* n_threads 0: as many as this process may use */
/* The same with the kernels of one instruction set, "base", "avx2" or "vnni"; NULL: the best that the machine has. */
bool cpu_ops_open_isa(ops **out, const char *isa, int n_threads, err *e);
#endif
