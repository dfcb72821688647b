/* bench/prompt_set.h - the prompts of a comparison as token ids: texts of a file, built-in ones, or random ids. */
#ifndef TANDEM_BENCH_PROMPT_SET_H
#define TANDEM_BENCH_PROMPT_SET_H
#include "chat/prompts.h"

enum { PROMPT_SET_MAX = 256 };
typedef struct {
    chat_prompt prompt[PROMPT_SET_MAX];
    int         n;
} prompt_set; /* zeroed storage is an empty set */

typedef struct {
    const tok   *tok;      /* this and format: for texts; may be NULL for random ids */
    chat_options format;   /* each text is rendered as a user's message */
    const char  *file;     /* one prompt per line, empty lines are skipped; NULL: built-in ones */
    int          n_random; /* > 0: the number of prompts of n_tokens random ids to use instead, all different */
    int          n_tokens, n_vocab; /* for random ids: tokens of a prompt; ids are below n_vocab */
} prompt_source;

/* Fills an empty set. Fails on more than PROMPT_SET_MAX prompts, or none. After a failure, too, call
 * prompt_set_deinit. */
bool prompt_set_fill(prompt_set *s, const prompt_source *from, err *e);
void prompt_set_deinit(prompt_set *s); /* leaves an empty set */
#endif
