/* load/prompts.h - what a server is asked: lines of a JSONL file, texts made of random words, or some of our own.
 *
 * A line of the file is a JSON string, or an object with one of `messages` (a chat), `conversations` (ShareGPT: its first
 * human part), `turns` (MT-Bench: the first), `prompt` (HumanEval), `text`, `question`. A file that is one JSON array has
 * such items in it. */
#ifndef TANDEM_LOAD_PROMPTS_H
#define TANDEM_LOAD_PROMPTS_H
#include "base/file.h"
#include "json/json.h"

typedef struct {
    str               text;
    const json_value *messages; /* an array, in place of the text; NULL: none */
} load_prompt;

enum { LOAD_MAX_PROMPTS = 1 << 20 };
typedef struct {
    load_prompt *item;
    size_t       n, cap;
    arena        mem; /* of trees */
    file_map     file;
} load_prompts;

extern const char *const load_own_prompts[]; /* NULL at the end */

void load_prompts_init(load_prompts *p); /* our own */
bool load_prompts_read(load_prompts *p, const char *path, err *e);
bool load_prompts_parse(load_prompts *p, str text, err *e); /* borrows the text */
void load_prompts_deinit(load_prompts *p);
/* So many words, no two prompts alike, the same ones for the same seed and number. */
void load_prompt_make(buf *out, uint64_t seed, uint64_t number, int n_words);
#endif
