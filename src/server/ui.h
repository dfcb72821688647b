/* server/ui.h - the dashboard below /ui/: files that `npm run build` in web/ wrote to web/dist (docs/dashboard.md). */
#ifndef TANDEM_SERVER_UI_H
#define TANDEM_SERVER_UI_H
#include "server/call.h"

void endpoint_ui(server *s, server_call *c); /* handler of /ui/ and of the files below it */
/* Redirects a browser from / to the dashboard. Returns false, and does nothing, for other clients. */
bool ui_redirect(server *s, server_call *c);
#endif
