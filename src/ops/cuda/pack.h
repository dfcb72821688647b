/* ops/cuda/pack.h - rows of a file into rows of layout.h, on the processor. */
#ifndef TANDEM_OPS_CUDA_PACK_H
#define TANDEM_OPS_CUDA_PACK_H
#include "ops/ops.h"

/* What rows of this type become: the type itself where there is a kernel for it, F16 where there is none. */
quant_type cuda_pack_form(quant_type type);
/* One row of n_in numbers; src may be unaligned. dst: layout_row_bytes(cuda_pack_form(type), n_in) bytes, aligned. */
void cuda_pack_row(quant_type type, int n_in, const char *src, char *dst);
#endif
