/* server/text.h - text to tokens, tokens to text, conversations to prompts: the endpoints of llama.cpp's server of these names, and the counts of
 * Anthropic's and OpenAI's.
 *
 * They touch nothing of the engine but what does not change, and run on a worker: seconds may pass. What they
 * hold is bounded, and gives way to completions. */
#ifndef TANDEM_SERVER_TEXT_H
#define TANDEM_SERVER_TEXT_H
#include "server/inside.h"
#include "server/request.h"

enum { TEXT_MAX_BODY = 4 << 20, TEXT_MAX_REPLY = 64 << 20 };

/* The request's body to the reply's, appended; r was made for FIELD_TOKENIZE, FIELD_DETOKENIZE, FIELD_CHAT, FIELD_MESSAGES. */
typedef bool text_fn(server_request *r, const tandem *t, buf *out, server_error *why);
text_fn      text_tokenize;
text_fn      text_detokenize;
text_fn      text_template;
text_fn      text_count;

/* Handlers of routes, and what they are told when their call ends before they do. */
void endpoint_tokenize(server *s, server_call *c);
void endpoint_detokenize(server *s, server_call *c);
void endpoint_template(server *s, server_call *c);
void endpoint_count(server *s, server_call *c);      /* of Anthropic's messages/count_tokens */
void endpoint_count_chat(server *s, server_call *c); /* of llama.cpp's chat/completions/input_tokens */
void endpoint_ollama_show(server *s, server_call *c);
void endpoint_ollama_pull(server *s, server_call *c);
void endpoint_count_responses(server *s, server_call *c); /* of OpenAI's responses/input_tokens */
void text_on_end(text_job *x);
#endif
