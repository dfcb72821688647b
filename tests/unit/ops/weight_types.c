/* Types that files may have but kernels do not know: the processor's backend says so, the reference reads them. */
#include "gguf/build_gguf.h"
#include "ops/ops.h"
#include "test.h"

TEST(weights_of_types_without_kernels)
{
    static const quant_type types[] = {QUANT_Q2_K, QUANT_Q3_K};
    enum { IN = QK_K, OUT = 4 };
    char     bytes[IN * OUT];
    uint64_t seed = 11;
    for (size_t i = 0; i < COUNT(types); i++) {
        ops       *cpu, *ref;
        weight    *w;
        err        e   = {0};
        weight_src src = {types[i], IN, OUT, 1, .data = bytes};
        char       want[64];
        test_random_blocks(types[i], &seed, 1, bytes, IN * OUT);
        snprintf(want, sizeof want, "weights of type %s (%d) cannot be multiplied", quant_name(types[i]),
                 (int)types[i]);
        if (!CHECK_OK(ops_open(&cpu, "cpu", 1, &e), e) || !CHECK_OK(ops_open(&ref, "ref", 1, &e), e)) return;
        CHECK_FAILS(cpu->weight_load(cpu, &w, &src, &e), e, want);
        if (CHECK_OK(ref->weight_load(ref, &w, &src, &e), e)) ref->weight_free(ref, w);
        ops_close(cpu);
        ops_close(ref);
    }
}
