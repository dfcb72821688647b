/* chat/prompts_inside.h - a limit of synthetic prompts, for their tests. */
#ifndef TANDEM_CHAT_PROMPTS_INSIDE_H
#define TANDEM_CHAT_PROMPTS_INSIDE_H
#include "chat/prompts.h"

int prompts_shortest(const prompt_maker *p); /* the smallest n_tokens for prompts_next */
#endif
