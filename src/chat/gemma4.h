/* chat/gemma4.h - Gemma 4's prompt format, as token ids: markers are looked up by name, text can never become one. */
#ifndef TANDEM_CHAT_GEMMA4_H
#define TANDEM_CHAT_GEMMA4_H
#include "tok/tok.h"

/* <bos><|turn>user\n TEXT <turn|>\n<|turn>model\n, the text trimmed; with empty_thought (the large models with thinking
 * off) also <|channel>thought\n<channel|>. Refused when the tokenizer lacks a marker. */
bool gemma4_user_prompt(tok_ids *out, const tok *t, str text, bool empty_thought, err *e);
#endif
