#include "spec/method.h"

#include <stddef.h>

const char *const spec_method_names[] = {[SPEC_OFF]     = "off",
                                         [SPEC_DFLASH]  = "dflash",
                                         [SPEC_TREE]    = "tree",
                                         [SPEC_MTP]     = "mtp",
                                         [SPEC_NGRAM]   = "ngram",
                                         [SPEC_METHODS] = "auto",
                                         NULL};
