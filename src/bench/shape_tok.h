/* bench/shape_tok.h - a real tokenizer and chat template for a generated model. */
#ifndef TANDEM_BENCH_SHAPE_TOK_H
#define TANDEM_BENCH_SHAPE_TOK_H
#include "model/convert_plan.h"

/* Puts the tokenizer's keys and the chat template of a GGUF file, a Hugging Face directory or a tokenizer.json into
 * p->w. p has n_vocab, to which the vocabulary is filled up, and mask_id; p->cp is set meanwhile. */
bool shape_put_tokenizer(convert_plan *p, const char *path, err *e);
#endif
