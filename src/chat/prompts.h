/* chat/prompts.h - generates prompts of a given length, all different, the same in every run.
 *
 * A prompt is a list of generated records and an instruction to copy the last ones, in the model's chat format: text
 * that drafters predict partly well, like lists and copies, and partly not. For a model without a tokenizer it is
 * random ids. A prompt depends only on its number, counted from 0, its length and the arguments of prompts_init. A
 * prompt_maker belongs to one thread at a time. */
#ifndef TANDEM_CHAT_PROMPTS_H
#define TANDEM_CHAT_PROMPTS_H
#include "chat/chat.h"

typedef struct {
    const tok *tok;     /* borrowed; NULL: random ids */
    int32_t    n_vocab; /* random ids are below it */
    tok_ids    frame;   /* the chat format around the records; empty without a tokenizer */
    size_t     at;      /* where in it they go */
    uint64_t   next;    /* number of the next prompt */
} prompt_maker;

/* t: borrowed until prompts_deinit; NULL: random ids from 0 to n_vocab - 1, and format is not used. format: how to
 * render the chat, used only during the call. Call prompts_deinit also after a failure. */
bool prompts_init(prompt_maker *p, const tok *t, const chat_options *format, int32_t n_vocab, err *e);
void prompts_deinit(prompt_maker *p); /* a zeroed one is fine */
/* Replaces out, which is initialised, by the next prompt of exactly n_tokens ids. Fails if n_tokens is below
 * the length of the frame or out cannot hold as many. */
bool prompts_next(prompt_maker *p, tok_ids *out, int n_tokens, err *e);
#endif
