/* gguf/gguf_write.h - writes GGUF v3, as one file or split, tensor data streamed.
 *
 *   gguf_writer *w = gguf_writer_new();
 *   gguf_put_str(w, "general.architecture", STR("gemma4"));     keys
 *   gguf_put_tensor(w, &t);                                     name, type and shape of every tensor, in order
 *   gguf_writer_begin(w, "out.gguf", 0, e)                      writes the header
 *   gguf_writer_data(w, p, n, e)                                the tensors' bytes in order, in any pieces
 *   gguf_writer_end(w, e)                                       renames it to out.gguf
 *   gguf_writer_free(w);
 *
 * Files are written under temporary names in the target directory and renamed at the end. After a failure, or after
 * gguf_writer_free before the end, no file remains. Puts do not fail: gguf_writer_begin returns their first error,
 * such as a duplicate key or tensor. Data is aligned to general.alignment, by default 32 bytes. Thread: one. */
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
/* Puts an array. items: n values in the file's representation, a byte each for booleans. Not for strings. */
void gguf_put_array(gguf_writer *w, const char *key, gguf_type item, const void *items, size_t n);
/* Begins an array of strings. Its items are the calls of gguf_put_item that follow directly. */
void gguf_put_strings(gguf_writer *w, const char *key);
void gguf_put_item(gguf_writer *w, str v);
/* Copies a key and value of another file. */
void gguf_put_value(gguf_writer *w, const gguf_value *v);

/* --- tensors ------------------------------------------------------------------------------------ */
/* Declares a tensor by its name, type, n_dims and dim. Copies the name. */
void gguf_put_tensor(gguf_writer *w, const tensor *t);

/* Makes gguf_writer_begin refuse to replace a file of g. Borrows g until then. */
void gguf_writer_spare(gguf_writer *w, const gguf *g);

/* --- the file ----------------------------------------------------------------------------------- */
/* Writes the header. part_bytes > 0 limits the size of a file: a tensor that would exceed it starts a new part, and a
 * larger tensor has a part of its own. Parts are named out-00001-of-00003.gguf and so on, unless one file is enough. */
bool gguf_writer_begin(gguf_writer *w, const char *path, uint64_t part_bytes, err *e);
/* Appends the header to out, instead of writing a file. The data follows at the alignment. */
bool gguf_writer_header(gguf_writer *w, buf *out, err *e);
bool gguf_writer_data(gguf_writer *w, const void *p, size_t n, err *e);
bool gguf_writer_end(gguf_writer *w, err *e);
int  gguf_writer_parts(const gguf_writer *w); /* valid after gguf_writer_begin */
#endif
