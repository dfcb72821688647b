/* gguf/gguf_write.h - writes GGUF v3, as one file or split, tensor data streamed.
 *
 *   gguf_writer *w = gguf_writer_new();
 *   gguf_put_str(w, "general.architecture", STR("gemma4"));     keys
 *   gguf_put_tensor(w, &t);                                     name, type and shape of every tensor, in order
 *   gguf_writer_begin(w, "out.gguf", 0, e)                      the header goes out
 *   gguf_writer_data(w, p, n, e)                                the tensors' bytes one after another, in any pieces
 *   gguf_writer_end(w, e)                                       now out.gguf is there
 *   gguf_writer_free(w);
 *
 * Files are written under temporary names beside their place and renamed at the end; after a failure, or gguf_writer_free
 * before the end, nothing is left behind. Puts do not fail: gguf_writer_begin tells what went wrong, such as a key or a
 * tensor named twice. Data is aligned to 32 bytes, or as the key general.alignment says. Thread: one. */
#ifndef TANDEM_GGUF_GGUF_WRITE_H
#define TANDEM_GGUF_GGUF_WRITE_H
#include "base/buf.h"
#include "gguf/gguf.h"

typedef struct gguf_writer gguf_writer;

gguf_writer *gguf_writer_new(void);
void         gguf_writer_free(gguf_writer *w); /* NULL is fine */

/* --- keys --------------------------------------------------------------------------------------- */
void gguf_put_u8(gguf_writer *w, const char *key, uint8_t v);
void gguf_put_i8(gguf_writer *w, const char *key, int8_t v);
void gguf_put_u16(gguf_writer *w, const char *key, uint16_t v);
void gguf_put_i16(gguf_writer *w, const char *key, int16_t v);
void gguf_put_u32(gguf_writer *w, const char *key, uint32_t v);
void gguf_put_i32(gguf_writer *w, const char *key, int32_t v);
void gguf_put_u64(gguf_writer *w, const char *key, uint64_t v);
void gguf_put_i64(gguf_writer *w, const char *key, int64_t v);
void gguf_put_f32(gguf_writer *w, const char *key, float v);
void gguf_put_f64(gguf_writer *w, const char *key, double v);
void gguf_put_bool(gguf_writer *w, const char *key, bool v);
void gguf_put_str(gguf_writer *w, const char *key, str v);
/* items: n of them as the file has them; of booleans a byte each. Not for strings. */
void gguf_put_array(gguf_writer *w, const char *key, gguf_type item, const void *items, size_t n);
/* An array of strings: as many items as come before the next put of another kind. */
void gguf_put_strings(gguf_writer *w, const char *key);
void gguf_put_item(gguf_writer *w, str v);
/* As it was read from another file. */
void gguf_put_value(gguf_writer *w, const gguf_value *v);

/* --- tensors ------------------------------------------------------------------------------------ */
/* Name, type, n_dims and dim count; the name is copied. */
void gguf_put_tensor(gguf_writer *w, const tensor *t);

/* No file of g is to be replaced: gguf_writer_begin refuses such a path. Borrowed until then. */
void gguf_writer_spare(gguf_writer *w, const gguf *g);

/* --- the file ----------------------------------------------------------------------------------- */
/* part_bytes > 0: a new part starts before the tensor that would make one larger, so a tensor larger than that has a
 * part of its own. out.gguf then becomes out-00001-of-00003.gguf and so on, unless all fits one file. */
bool gguf_writer_begin(gguf_writer *w, const char *path, uint64_t part_bytes, err *e);
/* Instead of a file: all that comes before the data, whose tensors follow at the alignment. */
bool gguf_writer_header(gguf_writer *w, buf *out, err *e);
bool gguf_writer_data(gguf_writer *w, const void *p, size_t n, err *e);
bool gguf_writer_end(gguf_writer *w, err *e);
int  gguf_writer_parts(const gguf_writer *w); /* after begin */
#endif
