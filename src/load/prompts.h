/* load/prompts.h - prompts of a load test: lines of a JSONL file, generated texts of random words, or built-in ones.
 *
 * A line of the file is a JSON string, or an object. The first of these members that it has is used: `messages` (a
 * chat), `conversations` (ShareGPT: the first message from "human" or "user"), `turns` (MT-Bench: the first), `prompt`
 * (HumanEval), `text`, `question`. `class` or `category` names its class. Blank lines are skipped. A file may also be
 * one JSON array of such items. */
#ifndef TANDEM_LOAD_PROMPTS_H
#define TANDEM_LOAD_PROMPTS_H
#include "base/file.h"
#include "json/json.h"

typedef struct {
    str               text;     /* not empty without messages */
    const json_value *messages; /* array of objects with a role, used instead of the text; NULL: none */
    const json_value *turns;    /* array of texts, the first of which is `text`; NULL: there is one turn */
    str               kind;     /* its class; empty: none */
} load_prompt;

enum { LOAD_MAX_PROMPTS = 1 << 20, LOAD_MAX_TURNS = 16 };
typedef struct {
    load_prompt *item;   /* their texts point into file or mem */
    size_t       n, cap; /* prompts in use, allocated */
    arena        mem;    /* memory of JSON trees */
    file_map     file;   /* the mapped file of load_prompts_read */
} load_prompts;

/* The built-in prompts and their classes; the text is NULL at the end. */
typedef struct {
    const char *text, *kind;
} load_own_prompt;
extern const load_own_prompt load_own_prompts[];

/* Each of these two sets *p anew. At least one prompt is needed. Call load_prompts_deinit also after a failure. */
void load_prompts_init(load_prompts *p); /* the built-in prompts */
bool load_prompts_read(load_prompts *p, const char *path, err *e);
void load_prompts_deinit(load_prompts *p); /* p may be zeroed */
/* Appends a prompt of n_words words: the number, then random words. So prompts with different numbers differ; the same
 * seed and number give the same prompt. */
void load_prompt_make(buf *out, uint64_t seed, uint64_t number, int n_words);
#endif
