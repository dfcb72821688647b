/* model/convert.h - a Hugging Face directory becomes a GGUF file, with llama.cpp's names, keys and types.
 *
 * Known: Gemma 4 text models (of multimodal ones the text part), their assistants (MTP), and DFlash drafters. The
 * tokenizer, the chat template, the stop tokens and the sampling defaults of the directory go into the file. Without a
 * tokenizer the file says so, and both engines load it for token ids. */
#ifndef TANDEM_MODEL_CONVERT_H
#define TANDEM_MODEL_CONVERT_H
#include "gguf/recode.h"

typedef struct {
    bool           as_stored; /* matrices keep their type; else `type` */
    quant_type     type;
    const char    *tokenizer; /* tokenizer.json to use instead of the directory's; NULL: the directory's own */
    recode_options recode;
} convert_options;

bool convert_dir(const char *dir, const char *out, const convert_options *opt, err *e);
#endif
