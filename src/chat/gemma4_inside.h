/* chat/gemma4_inside.h - parts of Gemma 4's chat format, for its tests. */
#ifndef TANDEM_CHAT_GEMMA4_INSIDE_H
#define TANDEM_CHAT_GEMMA4_INSIDE_H
#include "chat/gemma4.h"

extern const tok_family gemma4_tokens;
bool gemma4_render(const chat *c, const chat_options *o, const chat_sink *sink, err *e); /* gemma4_format.render */

/* Parse the text of one or more ordinary tokens, which may end within a character, and one marker token. */
void gemma4_parser_put_text(chat_parser *p, str text);
void gemma4_parser_put_marker(chat_parser *p, gemma4_marker m);
#endif
