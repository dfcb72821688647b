/* tests/emu/cuda_fp16.h - f16 by gguf/quant.h. */
#ifndef TANDEM_EMU_CUDA_FP16_H
#define TANDEM_EMU_CUDA_FP16_H
#include <stdint.h>

extern "C" float    emu_from_f16(uint16_t h);
extern "C" uint16_t emu_to_f16(float f);

struct __half_raw {
    unsigned short x;
};
struct __half {
    unsigned short x;
    explicit __half(__half_raw r) : x(r.x) {}
    operator __half_raw() const { return {x}; }
};
static inline float  __half2float(__half h) { return emu_from_f16(h.x); }
static inline __half __float2half_rn(float f) { return __half(__half_raw{emu_to_f16(f)}); }
#endif
