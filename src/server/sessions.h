/* server/sessions.h - the endpoints of saved sessions, ours and llama.cpp's. They run on a worker. */
#ifndef TANDEM_SERVER_SESSIONS_H
#define TANDEM_SERVER_SESSIONS_H
#include "server/call.h"

enum { SESSIONS_MAX_BODY = 1 << 16 };
void sessions_save(server *s, server_call *c);    /* POST /api/sessions/NAME/save */
void sessions_restore(server *s, server_call *c); /* POST /api/sessions/NAME/restore */
void sessions_delete(server *s, server_call *c);  /* POST /api/sessions/NAME/delete, DELETE /api/sessions/NAME */
void sessions_list(server *s, server_call *c);    /* GET /api/sessions */
void sessions_slot(server *s, server_call *c);    /* POST /slots/N?action=save|restore|erase */
#endif
