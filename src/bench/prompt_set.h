/* bench/prompt_set.h - the prompts of a comparison: texts of a file, built-in ones, or random ids. */
#ifndef TANDEM_BENCH_PROMPT_SET_H
#define TANDEM_BENCH_PROMPT_SET_H
#include "chat/prompts.h"

enum { PROMPT_SET_MAX = 256 };
typedef struct {
    chat_prompt prompt[PROMPT_SET_MAX];
    int         n;
} prompt_set; /* zeroed storage is an empty set */

typedef struct {
    const tok   *tok;
    chat_options format;
    const char  *file;     /* one prompt per line; NULL: built-in ones */
    int          n_random; /* > 0: the number of prompts of n_tokens random ids to use instead, all different */
    int          n_tokens, n_vocab;
} prompt_source;

bool prompt_set_fill(prompt_set *s, const prompt_source *from, err *e);
void prompt_set_deinit(prompt_set *s);
#endif
