/* gguf/checkpoint.h - a model on disk: a GGUF file (or split files), or a Hugging Face directory with config.json and
 * safetensors files.
 *
 * The loaders of models and drafters read it. All pointers into a checkpoint are valid until checkpoint_close. */
#ifndef TANDEM_GGUF_CHECKPOINT_H
#define TANDEM_GGUF_CHECKPOINT_H
#include "base/file.h"
#include "gguf/gguf.h"
#include "gguf/safetensors.h"
#include "json/json.h"

/* Callers only read the members. */
typedef struct {
    char                path[4096]; /* as given to checkpoint_open, or the name of checkpoint_open_bytes */
    gguf               *gguf;       /* NULL for a directory */
    safetensors        *st;         /* NULL for GGUF */
    const tensor_table *tensors;    /* all tensors, with the names of the files */
    const json_value   *config;     /* config.json, an object; NULL for GGUF */
    const json_value   *generation; /* generation_config.json, an object; NULL for GGUF or when there is none */
    arena               json;       /* owns the two trees */
    file_map            config_text, generation_text; /* the mapped JSON files; the trees point into them */
    file_map            image;                        /* the bytes of checkpoint_open_bytes, borrowed; else empty */
    size_t              bytes;                        /* bytes of all mapped files, or of the image */
} checkpoint;

/* On failure *out is NULL, here and below. */
bool checkpoint_open(checkpoint **out, const char *path, err *e);
/* Opens a GGUF file in memory, borrowed until checkpoint_close. The bytes must be in a mapping of a file or of shared
 * memory: checkpoint_drop releases its pages, which in private memory would lose their contents. name is used in
 * messages and cut to 4095 bytes. */
bool        checkpoint_open_bytes(checkpoint **out, const char *name, str bytes, err *e);
void        checkpoint_close(checkpoint *c);       /* c may be NULL */
const maps *checkpoint_files(const checkpoint *c); /* the files with the weights; none after checkpoint_open_bytes */

/* The paths and sizes of a checkpoint's files: config.json of a directory, then the files with the weights. */
typedef struct checkpoint_list checkpoint_list;
struct checkpoint_list {
    checkpoint_list *next; /* for the owner's use; NULL at first */
    size_t           n;    /* number of files; 0 after checkpoint_open_bytes */
    struct {
        const char *path; /* in the same allocation */
        size_t      bytes;
    } file[];
};
/* Returns a new list, never NULL, which one mem_free frees. It outlives the checkpoint. */
checkpoint_list *checkpoint_list_new(const checkpoint *c);
/* Returns whether the paths and sizes are equal and in the same order. Both may be NULL: NULL equals only NULL. */
bool checkpoint_list_same(const checkpoint_list *a, const checkpoint_list *b);
/* Returns the type that has the most bytes of the tensors. */
quant_type checkpoint_type(const checkpoint *c);
/* Releases the memory of the tensor's pages, after it was repacked. It can still be read: the kernel reads it again. */
void checkpoint_drop(const checkpoint *c, const tensor *t);
#endif
