/* server/completion.h - requests that generate text, from the body to the last byte. Called on the I/O thread. The list
 * server.first has all completions that have not ended; a completion frees itself. */
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

void completion_on_end(completion *x, bool delivered); /* its call ended: cancels its jobs; may free x */
/* Polls and sends; called when the client's buffer has room or tokens may be ready. May free x. */
void completion_pump(completion *x);
void completions_pump(server *s); /* pumps all of them */
void completions_tick(server *s); /* pumps all of them, and sends pings to idle streams */
/* Cancels the jobs of all of them; with s->cut also the work on requests that are still being read. */
void completions_cut(server *s);
/* Returns whether any of them uses the engine. cut: calls completions_cut, and disconnects clients that read too
 * slowly.
 */
bool completions_use_engine(server *s, bool cut);
/* Writes up to `max` responses that have a lane and returns their number. The ids are valid until a completion ends. */
size_t completions_slots(const server *s, slot_view *out, size_t max);
/* Sets the numbers of running and waiting responses of each tenant in the metrics. */
void completions_note_live(const server *s);
#endif
