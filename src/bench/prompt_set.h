/* bench/prompt_set.h - the prompts of a comparison: texts of a file, some of our own, or random ids. */
#ifndef TANDEM_BENCH_PROMPT_SET_H
#define TANDEM_BENCH_PROMPT_SET_H
#include "chat/prompts.h"

enum { PROMPT_SET_MAX = 256 };
typedef struct {
    chat_prompt prompt[PROMPT_SET_MAX];
    int         n;
} prompt_set; /* zeroed storage is an empty one */

typedef struct {
    const tok   *tok;
    chat_options format;
    const char  *file;     /* a prompt a line; NULL: our own */
    int          n_random; /* more than 0: so many of n_tokens random ids instead, no two alike */
    int          n_tokens, n_vocab;
} prompt_source;

bool prompt_set_fill(prompt_set *s, const prompt_source *from, err *e);
void prompt_set_deinit(prompt_set *s);
#endif
