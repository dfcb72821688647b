/* server/admin.h - handlers of the administration endpoints (docs/admin.md).
 *
 *      GET  /api/models                    the model and its drafters
 *      GET  /api/models/ID[/settings]      one of them; its settings and the source of each value
 *      PUT  /api/models/ID/settings        changes settings, all or none
 *      POST /api/models/ID/park, unpark    frees its memory; loads it again (life.h)
 *      GET  /api/routing                   the last routing decisions
 *
 * Called on the I/O thread. Work that may wait for a disk or for the engine's next step runs on a worker. */
#ifndef TANDEM_SERVER_ADMIN_H
#define TANDEM_SERVER_ADMIN_H
#include "server/bench.h"
#include "server/inside.h"

enum { ADMIN_MAX_BODY = 64 << 10 }; /* bytes */

/* Handlers of routes. */
void admin_models(server *s, server_call *c);
void admin_model(server *s, server_call *c);
void admin_settings(server *s, server_call *c);
void admin_change_settings(server *s, server_call *c);
void admin_park(server *s, server_call *c);
void admin_unpark(server *s, server_call *c);
/* The measured costs of steps and drafts. */
void admin_costs(server *s, server_call *c);
void admin_routing(server *s, server_call *c);

/* Replies with the description of the model in /api/models. */
void admin_reply_model(server *s, server_call *c);
/* Returns false with 503 or 429 when no model is loaded, the server shuts down or the queue of slow work is full. */
bool admin_takes(const server *s, server_error *why);
/* Parses a body into the arena; *out borrows both. An empty body is an empty object; other values than objects are
 * refused. */
bool admin_read_body(str body, arena *mem, const json_value **out, server_error *why);
#endif
