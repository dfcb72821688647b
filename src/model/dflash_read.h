/* model/dflash_read.h - functions shared by the files that read the configuration of a drafter (dflash_config.h). */
#ifndef TANDEM_MODEL_DFLASH_READ_H
#define TANDEM_MODEL_DFLASH_READ_H
#include "model/dflash_config.h"

enum { DFLASH_MAX_CONTEXT = 1 << 24, DFLASH_MAX_VOCAB = 1 << 22, DFLASH_DEFAULT_BLOCK = 16 };

/* dflash_dir.c: reads a Hugging Face directory. */
bool dflash_read_dir(dflash_config *c, const checkpoint *cp, err *e);
/* dflash_config.c: reads the sizes, from the tensors. The kind, the layout and the number of layers are set. */
bool dflash_read_sizes(dflash_config *c, const checkpoint *cp, err *e);
#endif
