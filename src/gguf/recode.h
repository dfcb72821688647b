/* gguf/recode.h - tensors turned into another type on their way into a GGUF file.
 *
 * Which type a tensor gets follows llama.cpp's conventions (docs/quantisation.md): vectors, norms, routers and scales keep
 * theirs; the tables of tokens, which are the output matrix too, get more bits than the rest; rows that a type's blocks do
 * not divide get a type that they do divide.
 *
 * Work goes slab by slab: read, quantised by all threads, written, and the source's pages dropped. So memory stays within
 * some tens of megabytes, whatever the file's size. */
#ifndef TANDEM_GGUF_RECODE_H
#define TANDEM_GGUF_RECODE_H
#include "base/thread.h"
#include "gguf/gguf_write.h"

enum { RECODE_FORMAT_VERSION = 2 }; /* general.quantization_version: since blocks have f16 scales */

typedef struct {
    quant_type want;     /* what was asked for; quant_can_quantise */
    int        n_layers; /* 0: not known */
    bool       tied;     /* there is no output.weight */
} recode_rules;

/* The type for a tensor of that GGUF name, shape and present type. */
quant_type recode_type(const recode_rules *r, const tensor *t);
bool       recode_is_matrix(const tensor *t); /* a weight that is quantised at all */
/* The number that general.file_type has for it. */
uint32_t recode_file_type(quant_type want);

typedef struct {
    int n_threads; /* 0: as many as this process may use */
    /* Told now and then: bytes of source done, of all. May be NULL. */
    void (*progress)(void *ctx, size_t done, size_t total);
    void    *progress_ctx;
    uint64_t part_bytes; /* as gguf_writer_begin */
} recode_options;

typedef struct recoder recoder;
/* drop is told which piece of a source is done with (name, data and bytes count); may be NULL. */
recoder *recoder_new(gguf_writer *w, const recode_options *opt, size_t total_bytes,
                     void (*drop)(const void *ctx, const tensor *piece), const void *drop_ctx);
void     recoder_free(recoder *r); /* NULL is fine */
/* The data of the writer's next tensor, from src's numbers. */
bool recoder_put(recoder *r, const tensor *src, quant_type to, err *e);

/* From a GGUF file to another one. All keys are copied but for general.file_type, general.quantization_version and those of
 * splitting. *n_lossy counts tensors that were quantised before and now again. */
bool recode_file(const char *in, const char *out, quant_type want, const recode_options *opt, size_t *n_lossy, err *e);
#endif
