#include "ops/cpu/kernels.h"

#define CPU_STRING_(x)  #x
#define CPU_STRING(x)   CPU_STRING_(x)
#define CPU_ENTRY(name) .name = CPU_FN(name),

const cpu_kernels CPU_FN(kernels) = {.isa = CPU_STRING(CPU_ISA), CPU_KERNELS(CPU_ENTRY)};
