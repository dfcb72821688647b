/* gguf/gguf_write.h - writes GGUF v3, as one file or split, tensor data streamed.
 *
 *   gguf_writer *w = gguf_writer_new();
 *   gguf_put_str(w, "general.architecture", STR("gemma4"));     keys
 *   gguf_put_tensor(w, &t);                                     name, type and shape of every tensor, in order
 *   gguf_writer_begin(w, "out.gguf", 0, e)                      writes the first header
 *   gguf_writer_data(w, p, n, e)                                the tensors' bytes in order, in any pieces
 *   gguf_writer_end(w, e)                                       renames the file to out.gguf
 *   gguf_writer_free(w);
 *
 * Files are written under temporary names in the target directory and renamed at the end, over old files of these
 * names. gguf_writer_free removes the temporary files if gguf_writer_end did not succeed. If a rename fails, parts that
 * were renamed already are removed. After a failure only gguf_writer_free may be called. Puts copy their arguments and
 * return no error: gguf_writer_begin and gguf_writer_header return the first one, such as a duplicate key or tensor, or
 * no memory. The writer pads each tensor to the alignment: 32 bytes, or a valid general.alignment given to
 * gguf_put_value (the other puts do not change it). One thread at a time. */
#ifndef TANDEM_GGUF_GGUF_WRITE_H
#define TANDEM_GGUF_GGUF_WRITE_H
#include "base/buf.h"
#include "gguf/gguf.h"

typedef struct gguf_writer gguf_writer;

gguf_writer *gguf_writer_new(void);            /* never NULL */
void         gguf_writer_free(gguf_writer *w); /* w may be NULL */

/* --- keys --------------------------------------------------------------------------------------- */
void gguf_put_u32(gguf_writer *w, const char *key, uint32_t v);
void gguf_put_i32(gguf_writer *w, const char *key, int32_t v);
void gguf_put_f32(gguf_writer *w, const char *key, float v);
void gguf_put_bool(gguf_writer *w, const char *key, bool v);
void gguf_put_str(gguf_writer *w, const char *key, str v);
/* Puts an array. items: n values in the file's representation, little endian, a byte each for booleans. Asserts that
 * item is not GGUF_STRING or GGUF_ARRAY. */
void gguf_put_array(gguf_writer *w, const char *key, gguf_type item, const void *items, size_t n);
/* Begins an array of strings. Its items are the calls of gguf_put_item that follow directly. */
void gguf_put_strings(gguf_writer *w, const char *key);
void gguf_put_item(gguf_writer *w, str v);
/* Puts a key and value of any type, such as one of another file. */
void gguf_put_value(gguf_writer *w, const gguf_value *v);

/* --- tensors ------------------------------------------------------------------------------------ */
/* Declares the next tensor by its name, type, n_dims and dim; data and bytes are not used. */
void gguf_put_tensor(gguf_writer *w, const tensor *t);

/* Makes gguf_writer_begin fail if an output file is a file of g. Borrows g until gguf_writer_begin returns. */
void gguf_writer_protect(gguf_writer *w, const gguf *g);

/* --- the file ----------------------------------------------------------------------------------- */
/* Opens the first file and writes its header; gguf_writer_data begins later parts. part_bytes > 0 limits the tensor
 * data of a part, in the first part together with the keys: a tensor that would exceed it starts a new part, unless the
 * part has no tensor yet. The tensor table is not counted. 0: one file. Parts are named out-00001-of-00003.gguf and so
 * on for the path out.gguf, unless one file is enough. */
bool gguf_writer_begin(gguf_writer *w, const char *path, uint64_t part_bytes, err *e);
/* Writes the header of a single file, with its padding, to out, which must be empty; used instead of gguf_writer_begin.
 * The caller writes the data and must not call gguf_writer_data or gguf_writer_end. */
bool gguf_writer_header(gguf_writer *w, buf *out, err *e);
/* Writes the next n bytes of the tensors; the writer adds the padding. Asserts that the tensors have as many bytes. */
bool gguf_writer_data(gguf_writer *w, const void *p, size_t n, err *e);
/* Closes and renames the files. Asserts that all bytes of all tensors were written. */
bool gguf_writer_end(gguf_writer *w, err *e);
#endif
