/* chat/gemma4_inside.h - the input of Gemma 4's stream parser without a tokenizer, for its tests. */
#ifndef TANDEM_CHAT_GEMMA4_INSIDE_H
#define TANDEM_CHAT_GEMMA4_INSIDE_H
#include "chat/gemma4.h"

/* Parse the text of one or more ordinary tokens, which may end within a character, and one marker token. */
void gemma4_parser_put_text(chat_parser *p, str text);
void gemma4_parser_put_marker(chat_parser *p, gemma4_marker m);
#endif
