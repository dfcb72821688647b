/* model/convert.h - converts a Hugging Face directory to a GGUF file with llama.cpp's names, keys and types. For
 * `tandem convert`.
 *
 * It converts Gemma 4 text models (of multimodal ones the text part), their assistants (MTP), and DFlash drafters. The
 * tokenizer, the chat template, the stop tokens and the sampling defaults of the directory go into the file. A file
 * without a tokenizer is marked as such; tandem and llama.cpp load it for token ids. */
#ifndef TANDEM_MODEL_CONVERT_H
#define TANDEM_MODEL_CONVERT_H
#include "gguf/recode.h"

typedef struct {
    bool           as_stored; /* matrices keep their type; false: `type` decides, by the rules of gguf/recode.h */
    quant_type     type;
    const char    *tokenizer; /* tokenizer.json to use instead of the directory's; NULL: the directory's own */
    recode_options recode;
} convert_options;

/* Converts the directory to the file `out`, or to several files if opt->recode.part_bytes is set. Logs which tensors
 * are left out. opt is not NULL. */
bool convert_dir(const char *dir, const char *out, const convert_options *opt, err *e);
#endif
