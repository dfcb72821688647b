/* load/body.h - the body of a request. */
#ifndef TANDEM_LOAD_BODY_H
#define TANDEM_LOAD_BODY_H
#include "load/drive.h"

/* number: which prompt; they go round. n_words, max_tokens: in place of what the ask has, unless 0. */
bool load_body_put(buf *out, const load_ask *ask, const char *model, uint64_t number, int n_words, int max_tokens,
                   err *e);
#endif
