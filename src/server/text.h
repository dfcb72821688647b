/* server/text.h - endpoints that convert text: /tokenize, /detokenize and /apply-template of llama.cpp's server, and
 * the endpoints of Anthropic and OpenAI that count input tokens.
 *
 * The handlers are called on the I/O thread. The text functions run on a worker, since they may take seconds, and read
 * only constant data of the engine. They are refused when the memory of all requests exceeds half of max_held_bytes. */
#ifndef TANDEM_SERVER_TEXT_H
#define TANDEM_SERVER_TEXT_H
#include "server/inside.h"
#include "server/request.h"

enum { TEXT_MAX_BODY = 4 << 20, TEXT_MAX_REPLY = 64 << 20 }; /* bytes */

/* Handlers of routes. */
void endpoint_tokenize(server *s, server_call *c);
void endpoint_detokenize(server *s, server_call *c);
void endpoint_template(server *s, server_call *c);
void endpoint_count(server *s, server_call *c);      /* Anthropic's messages/count_tokens */
void endpoint_count_chat(server *s, server_call *c); /* llama.cpp's chat/completions/input_tokens */
void endpoint_ollama_show(server *s, server_call *c);
void endpoint_ollama_pull(server *s, server_call *c);
void endpoint_count_responses(server *s, server_call *c); /* OpenAI's responses/input_tokens */
void text_on_end(text_job *x);                            /* its call ended before it was answered; may free x */
#endif
