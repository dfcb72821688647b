/* server/admin.h - what an operator looks at and changes while the server runs, as handlers of routes (docs/admin.md).
 *
 *      GET  /api/models                    the model and its drafters
 *      GET  /api/models/ID[/settings]      one of them; what can be set, and from where each value comes
 *      PUT  /api/models/ID/settings        some of that, all or nothing
 *      POST /api/models/ID/park, unpark    memory given back, and taken again (life.h)
 *      GET  /api/routing                   the last decisions on how requests were speculated
 *
 * What may wait, for a disk or for the engine's next step, is a worker's. */
#ifndef TANDEM_SERVER_ADMIN_H
#define TANDEM_SERVER_ADMIN_H
#include "server/bench.h"
#include "server/inside.h"

enum { ADMIN_MAX_BODY = 64 << 10 };

void admin_models(server *s, server_call *c);
void admin_model(server *s, server_call *c);
void admin_settings(server *s, server_call *c);
void admin_change_settings(server *s, server_call *c);
void admin_park(server *s, server_call *c);
void admin_unpark(server *s, server_call *c);
void admin_routing(server *s, server_call *c);

/* The model as /api/models has it. */
void admin_reply_model(server *s, server_call *c);
bool admin_takes(const server *s, server_error *why); /* the model is there, and a worker will come to it */
/* A body into its tree, in the arena; an empty one is an empty object. */
bool admin_read_body(str body, arena *mem, const json_value **out, server_error *why);
#endif
