/* chat/prompts.h - generates prompts of a given length, all different, the same in every run.
 *
 * A prompt is a list of generated records and an instruction to copy the last ones, in the model's chat format: text
 * that drafters predict partly well, like lists and copies, and partly not. For a model without a tokenizer it is
 * random ids. */
#ifndef TANDEM_CHAT_PROMPTS_H
#define TANDEM_CHAT_PROMPTS_H
#include "chat/chat.h"

typedef struct {
    const tok *tok; /* NULL: random ids */
    int32_t    n_vocab;
    tok_ids    frame; /* the chat format around the records */
    size_t     at;    /* where in it they go */
    uint64_t   next;  /* number of the next prompt */
} prompt_maker;

bool prompts_init(prompt_maker *p, const tok *t, const chat_options *format, int32_t n_vocab, err *e);
void prompts_deinit(prompt_maker *p); /* a zeroed one is fine */
int  prompts_shortest(const prompt_maker *p);
/* Exactly n_tokens, at least prompts_shortest. */
bool prompts_next(prompt_maker *p, tok_ids *out, int n_tokens, err *e);
#endif
