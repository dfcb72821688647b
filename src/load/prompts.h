/* load/prompts.h - prompts of a load test: lines of a JSONL file, generated texts of random words, or built-in ones.
 *
 * A line of the file is a JSON string, or an object with one of `messages` (a chat), `conversations` (ShareGPT: the
 * first message of a human), `turns` (MT-Bench: the first), `prompt` (HumanEval), `text`, `question`. A file may also
 * be one JSON array of such items. */
#ifndef TANDEM_LOAD_PROMPTS_H
#define TANDEM_LOAD_PROMPTS_H
#include "base/file.h"
#include "json/json.h"

typedef struct {
    str               text;
    const json_value *messages; /* an array, used instead of the text; NULL: none */
} load_prompt;

enum { LOAD_MAX_PROMPTS = 1 << 20 };
typedef struct {
    load_prompt *item;
    size_t       n, cap;
    arena        mem; /* memory of JSON trees */
    file_map     file;
} load_prompts;

extern const char *const load_own_prompts[]; /* NULL at the end */

void load_prompts_init(load_prompts *p); /* the built-in prompts */
bool load_prompts_read(load_prompts *p, const char *path, err *e);
bool load_prompts_parse(load_prompts *p, str text, err *e); /* text must outlive p */
void load_prompts_deinit(load_prompts *p);
/* Writes a prompt of n_words random words. Prompts with different numbers differ; the same seed and number give the
 * same prompt. */
void load_prompt_make(buf *out, uint64_t seed, uint64_t number, int n_words);
#endif
