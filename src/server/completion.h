/* server/completion.h - requests that generate text, from the body to the last byte. */
#ifndef TANDEM_SERVER_COMPLETION_H
#define TANDEM_SERVER_COMPLETION_H
#include "server/call.h"
#include "server/status.h"

/* Handlers of routes. */
void completion_chat(server *s, server_call *c);
void completion_text(server *s, server_call *c);
void completion_native(server *s, server_call *c);
void completion_responses(server *s, server_call *c);
void completion_messages(server *s, server_call *c);
void completion_ollama_chat(server *s, server_call *c);
void completion_ollama_generate(server *s, server_call *c);

void completion_on_end(completion *x, bool delivered); /* its call ended */
/* Polls and sends; called when the client's buffer has room or tokens may be ready. May free x. */
void completion_pump(completion *x);
void completions_pump(server *s);
void completions_tick(server *s);
void completions_cut(server *s); /* ends all of them when the grace period is over */
/* Returns whether any of them uses the engine. cut: cancels them, and disconnects clients that read too slowly. */
bool completions_use_engine(server *s, bool cut);
/* Writes up to `max` responses that have a lane and returns their number. The ids are valid until the next event. */
size_t completions_slots(const server *s, slot_view *out, size_t max);
/* Sets the numbers of running and waiting responses of each tenant in the metrics. */
void completions_note_live(const server *s);
#endif
