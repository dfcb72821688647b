/* bench/prompt_set.h - the prompts of a comparison as token ids: texts of a file, built-in ones, or random ids. Texts
 * may have classes, such as "code", which are reported apart. */
#ifndef TANDEM_BENCH_PROMPT_SET_H
#define TANDEM_BENCH_PROMPT_SET_H
#include "chat/prompts.h"

enum { PROMPT_SET_MAX = 256, PROMPT_CLASSES_MAX = 16, PROMPT_CLASS_NAME = 32 };
typedef struct {
    chat_prompt prompt[PROMPT_SET_MAX];
    int         class_of[PROMPT_SET_MAX]; /* below n_classes */
    int         n;
    char        class_name[PROMPT_CLASSES_MAX][PROMPT_CLASS_NAME]; /* "none" for prompts without one; cut */
    int         n_classes;
} prompt_set; /* zeroed storage is an empty set */

typedef struct {
    const tok   *tok;      /* this and format: for texts; may be NULL for random ids */
    chat_options format;   /* each text is rendered as a user's message */
    const char  *file;     /* a text per line, or a JSON file as load_prompts_read takes it; NULL: built-in ones */
    int          n_random; /* > 0: the number of prompts of n_tokens random ids to use instead, all different */
    int          n_tokens, n_vocab; /* for random ids: tokens of a prompt; ids are below n_vocab */
} prompt_source;

/* Fills an empty set. Fails on more than PROMPT_SET_MAX prompts or PROMPT_CLASSES_MAX classes, or no prompt. After a
 * failure, too, call prompt_set_deinit. */
bool prompt_set_fill(prompt_set *s, const prompt_source *from, err *e);
void prompt_set_deinit(prompt_set *s); /* leaves an empty set */
#endif
