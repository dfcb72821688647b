/* tests/unit/gguf/build_gguf.h - builds GGUF files in memory, right ones and wrong ones.
 *
 *   gguf_builder b;
 *   gguf_builder_init(&b);
 *   gguf_builder_str(&b, "general.architecture", "gemma4");
 *   gguf_builder_tensor(&b, "output_norm.weight", QUANT_F32, 1, (int64_t[]){64}, floats);
 *   const char *path = gguf_builder_write(&b, "tiny.gguf");
 *   gguf_builder_deinit(&b);
 *
 * For wrong files, version and the two counts may be changed before the bytes are taken, kv and infos are open to
 * raw bytes, and the result is only a buf. */
#ifndef TANDEM_TEST_BUILD_GGUF_H
#define TANDEM_TEST_BUILD_GGUF_H
#include "base/buf.h"
#include "gguf/gguf.h"

typedef struct {
    buf      kv, infos, data;
    uint64_t n_kv, n_tensors;
    uint32_t version;   /* 3 */
    size_t   alignment; /* 32; gguf_builder_align also writes the key */
} gguf_builder;

void gguf_builder_init(gguf_builder *b);
void gguf_builder_deinit(gguf_builder *b);

void gguf_builder_u16(gguf_builder *b, const char *key, uint16_t v);
void gguf_builder_u32(gguf_builder *b, const char *key, uint32_t v);
void gguf_builder_i32(gguf_builder *b, const char *key, int32_t v);
void gguf_builder_f32(gguf_builder *b, const char *key, float v);
void gguf_builder_bool(gguf_builder *b, const char *key, bool v);
void gguf_builder_str(gguf_builder *b, const char *key, const char *v);
void gguf_builder_arr_i32(gguf_builder *b, const char *key, const int32_t *v, size_t n);
void gguf_builder_arr_f32(gguf_builder *b, const char *key, const float *v, size_t n);
void gguf_builder_arr_bool(gguf_builder *b, const char *key, const bool *v, size_t n);
void gguf_builder_arr_str(gguf_builder *b, const char *key, const char *const *v, size_t n);
void gguf_builder_align(gguf_builder *b, uint32_t alignment);
/* Any scalar: its bytes as they are in the file. */
void gguf_builder_raw(gguf_builder *b, const char *key, uint32_t type, const void *bytes, size_t n);
/* Any array: its items' bytes as they are in the file. */
void gguf_builder_raw_arr(gguf_builder *b, const char *key, uint32_t item, uint64_t claim, const void *bytes, size_t n);

/* dim[0] is the contiguous one; data holds the tensor's bytes in its type, NULL gives zeros. */
void gguf_builder_tensor(gguf_builder *b, const char *name, quant_type type, int n_dims, const int64_t *dim,
                         const void *data);
/* Only the entry of the table, as claimed. */
void gguf_builder_info(gguf_builder *b, const char *name, uint32_t n_dims, const uint64_t *dim, uint32_t type,
                       uint64_t offset);

void        gguf_builder_bytes(const gguf_builder *b, buf *out);         /* the whole file; out is initialised here */
const char *gguf_builder_write(const gguf_builder *b, const char *name); /* as test_tmp_file */

/* Test data. Floats turned into a type's bytes: F32 F16 BF16 Q8_0 Q4_0 Q4_1. */
void test_quantise(quant_type type, const float *src, void *dst, size_t n);
/* Random blocks of any type that can be dequantised; values are finite and about `size` large. */
void test_random_blocks(quant_type type, uint64_t *seed, float size, void *dst, size_t n);
#endif
