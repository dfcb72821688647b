/* gguf/checkpoint.h - a model on disk: a GGUF file, or a Hugging Face directory of config.json and safetensors. */
#ifndef TANDEM_GGUF_CHECKPOINT_H
#define TANDEM_GGUF_CHECKPOINT_H
#include "base/file.h"
#include "gguf/gguf.h"
#include "gguf/safetensors.h"
#include "json/json.h"

typedef struct {
    char                path[4096];
    gguf               *gguf; /* NULL for a directory */
    safetensors        *st;   /* NULL for GGUF */
    const tensor_table *tensors;
    const json_value   *config;     /* directory only: config.json, an object */
    const json_value   *generation; /* generation_config.json, or NULL */
    arena               json;       /* owns the two trees */
    file_map            config_text, generation_text;
    file_map            image; /* a file in memory; borrowed */
    size_t              bytes; /* bytes of all mapped files */
} checkpoint;

bool checkpoint_open(checkpoint **out, const char *path, err *e);
/* Opens a GGUF file in memory, borrowed until checkpoint_close. Its pages belong to a shared mapping and can be read
 * again after they were dropped. name is used in messages. */
bool        checkpoint_open_bytes(checkpoint **out, const char *name, str bytes, err *e);
void        checkpoint_close(checkpoint *c);       /* NULL is fine */
const maps *checkpoint_files(const checkpoint *c); /* the files with the weights */
/* The files of a checkpoint: config.json of a directory, then those that hold the weights. One allocation. */
typedef struct checkpoint_list checkpoint_list;
struct checkpoint_list {
    checkpoint_list *next; /* the owner's */
    size_t           n;
    struct {
        const char *path;
        size_t      bytes;
    } file[];
};
/* Returns a new list, which mem_free frees; empty for a file in memory. */
checkpoint_list *checkpoint_list_new(const checkpoint *c);
bool             checkpoint_list_same(const checkpoint_list *a, const checkpoint_list *b); /* either may be NULL */
/* Returns the type of most bytes of the tensors. */
quant_type checkpoint_type(const checkpoint *c);
/* Drops the tensor's pages from memory, after it was repacked. It can still be read, slowly. */
void checkpoint_drop(const checkpoint *c, const tensor *t);
#endif
