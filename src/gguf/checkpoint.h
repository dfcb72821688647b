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
    file_map            image; /* of a file in memory: not ours */
    size_t              bytes; /* of all mapped files */
} checkpoint;

bool checkpoint_open(checkpoint **out, const char *path, err *e);
/* A GGUF file in memory, borrowed until the close: pages of a shared mapping, which come back after they were dropped. The
 * name is for messages. */
bool        checkpoint_open_bytes(checkpoint **out, const char *name, str bytes, err *e);
void        checkpoint_close(checkpoint *c);       /* NULL is fine */
const maps *checkpoint_files(const checkpoint *c); /* that hold the weights */
/* How most bytes of its tensors are stored. */
quant_type checkpoint_type(const checkpoint *c);
/* The tensor's pages are not needed soon: it was repacked. Reading it again is slow but right. */
void checkpoint_drop(const checkpoint *c, const tensor *t);
#endif
