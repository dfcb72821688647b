/* gguf/recode.h - converts tensors to another type while writing a GGUF file.
 *
 * The type of a tensor follows llama.cpp's conventions (docs/quantisation.md). Vectors, norms, routers and scales
 * keep their type. Token tables, which are also the output matrix, get more bits than the rest. Rows that are not a
 * multiple of the type's block get a type with a smaller block.
 *
 * A slab at a time is read, quantised by all threads and written, and the source's pages are dropped. So memory use
 * stays within tens of megabytes for any file size. */
#ifndef TANDEM_GGUF_RECODE_H
#define TANDEM_GGUF_RECODE_H
#include "base/thread.h"
#include "gguf/gguf_write.h"

enum { RECODE_FORMAT_VERSION = 2 }; /* general.quantization_version: blocks have f16 scales */

typedef struct {
    quant_type want;     /* the requested type; quant_can_quantise */
    int        n_layers; /* 0: not known */
    bool       tied;     /* there is no output.weight */
} recode_rules;

/* Returns the new type of a tensor by its GGUF name, shape and present type. */
quant_type recode_type(const recode_rules *r, const tensor *t);
bool       recode_is_matrix(const tensor *t); /* returns whether t is a weight to quantise */
/* Returns the value of general.file_type. */
uint32_t recode_file_type(quant_type want);

typedef struct {
    int n_threads; /* 0: as many as this process may use */
    /* Called from time to time with the bytes of source done. May be NULL. */
    void (*progress)(void *ctx, size_t done, size_t total);
    void    *progress_ctx;
    uint64_t part_bytes; /* as gguf_writer_begin */
} recode_options;

typedef struct recoder recoder;
/* drop is called with each piece of a source that was written (its name, data and bytes). May be NULL. */
recoder *recoder_new(gguf_writer *w, const recode_options *opt, size_t total_bytes,
                     void (*drop)(const void *ctx, const tensor *piece), const void *drop_ctx);
void     recoder_free(recoder *r); /* NULL is fine */
/* Converts src to type `to` and writes it as the data of the writer's next tensor. */
bool recoder_put(recoder *r, const tensor *src, quant_type to, err *e);

/* Converts a GGUF file. Copies all keys except general.file_type, general.quantization_version and the split keys.
 * *n_lossy counts the tensors that were quantised already and are quantised again. */
bool recode_file(const char *in, const char *out, quant_type want, const recode_options *opt, size_t *n_lossy, err *e);
#endif
