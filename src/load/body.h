/* load/body.h - the body of a request. */
#ifndef TANDEM_LOAD_BODY_H
#define TANDEM_LOAD_BODY_H
#include "load/drive.h"

/* Writes the body of request `number`; prompts are used in turn. n_words and max_tokens override those of `ask`
 * unless 0. */
bool load_body_put(buf *out, const load_ask *ask, const char *model, uint64_t number, int n_words, int max_tokens,
                   err *e);
#endif
