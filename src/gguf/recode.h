/* gguf/recode.h - converts tensors to another type while writing a GGUF file.
 *
 * The type of a tensor follows llama.cpp's conventions (docs/quantisation.md). Vectors, norms, routers, scales and
 * per_layer_model_proj keep their type; other matrices get the requested type, with these exceptions for a quantised
 * one. The output matrix gets Q6_K or Q8_0: output.weight, or if there is none the two tables of token embeddings. For
 * Q4_K and Q5_K, attn_v and ffn_down of some layers get Q6_K. Rows that are not a multiple of the type's block get a
 * type with a smaller block, or F16 or BF16.
 *
 * About 4 million elements at a time are read, quantised by all threads and written; then their pages of the source are
 * released. So memory use stays within tens of megabytes for any file size. */
#ifndef TANDEM_GGUF_RECODE_H
#define TANDEM_GGUF_RECODE_H
#include "base/thread.h"
#include "gguf/gguf_write.h"

#include <signal.h>

enum { RECODE_FORMAT_VERSION = 2 }; /* the value of general.quantization_version for the blocks of gguf/quant.h */

typedef struct {
    quant_type want;     /* the requested type; quant_can_quantise must be true for it */
    int        n_layers; /* layers of the model; 0: not known, then attn_v and ffn_down get no more bits */
    bool       tied;     /* there is no output.weight */
} recode_rules;

/* Returns the new type of a tensor by its GGUF name, shape and present type. Returns the present type if the tensor is
 * not a matrix or if its type cannot be dequantised. */
quant_type recode_type(const recode_rules *r, const tensor *t);
bool       recode_is_matrix(const tensor *t); /* returns whether t, by name and shape, is a weight to convert */
/* Returns the value of general.file_type for a file with this requested type. */
uint32_t recode_file_type(quant_type want);

typedef struct {
    int n_threads; /* 0: as many as this process may use */
    /* Called on the calling thread after each piece that was written. done: bytes of source tensors so far. total: the
     * total_bytes of recoder_new; for recode_file the size of the input files, which `done` does not quite reach since
     * it does not count their headers. May be NULL. */
    void (*progress)(void *ctx, size_t done, size_t total);
    void    *progress_ctx;
    uint64_t part_bytes; /* only for recode_file: as for gguf_writer_begin */
    /* The number of a signal that ended the work, 0 while there is none: then recoder_put fails. May be NULL. */
    const volatile sig_atomic_t *stop;
} recode_options;

typedef struct recoder recoder;
/* Creates a recoder that writes through w. Borrows w until recoder_free; copies *opt. Call gguf_writer_begin before the
 * first recoder_put. total_bytes: bytes of all sources, for progress. drop is called with each piece of a source that
 * was written (its name, data and bytes), so that its pages can be released; may be NULL. Never returns NULL. */
recoder *recoder_new(gguf_writer *w, const recode_options *opt, size_t total_bytes,
                     void (*drop)(const void *ctx, const tensor *piece), const void *drop_ctx);
void     recoder_free(recoder *r); /* r may be NULL */
/* Converts src to type `to` and writes it as the data of the writer's next tensor, which must be declared with that
 * type. `to` is the type of src, whose bytes are then copied, or satisfies quant_can_quantise; then src must satisfy
 * quant_can_dequantise. Fails if `to` cannot represent a value (see quant_quantise), or if the write fails. */
bool recoder_put(recoder *r, const tensor *src, quant_type to, err *e);

/* Converts the GGUF file `in`, which may be split, and writes `out`, which appears only when it is complete and must
 * not be a file of `in`. Copies all keys except the split keys and two that it sets anew: general.file_type, and
 * general.quantization_version if a tensor of `out` is quantised. *n_lossy is set to the number of tensors that were
 * quantised already and were converted to another type, also to a float type. opt and n_lossy must not be NULL. */
bool recode_file(const char *in, const char *out, quant_type want, const recode_options *opt, size_t *n_lossy, err *e);
#endif
