/* server/endpoints.h - handlers of the status endpoints. They reply at once, on the I/O thread. */
#ifndef TANDEM_SERVER_ENDPOINTS_H
#define TANDEM_SERVER_ENDPOINTS_H
#include "server/inside.h"

void endpoint_health(server *s, server_call *c);
void endpoint_ready(server *s, server_call *c);
void endpoint_version(server *s, server_call *c);
void endpoint_models(server *s, server_call *c);
void endpoint_model(server *s, server_call *c); /* one model by its name */
void endpoint_tokenizer(server *s, server_call *c);
void endpoint_props(server *s, server_call *c);
void endpoint_slots(server *s, server_call *c);
void endpoint_metrics(server *s, server_call *c);
/* POST refuses new requests, DELETE accepts them again, GET shows the state. */
void endpoint_drain(server *s, server_call *c);
void endpoint_page(server *s, server_call *c); /* the page at /, its style sheet and icon */
/* Refuses embeddings: 501 for Ollama's clients, 400 for OpenAI's, which retry after a 5xx. */
void endpoint_no_embeddings(server *s, server_call *c);
void endpoint_no_audio(server *s, server_call *c);
/* Replies 401 with a page that describes how to send a key. */
void endpoint_locked_page(server *s, server_call *c);
#endif
