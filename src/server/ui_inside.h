/* server/ui_inside.h - for ui.c and its tests. */
#ifndef TANDEM_SERVER_UI_INSIDE_H
#define TANDEM_SERVER_UI_INSIDE_H
#include "server/ui.h"

/* Its Content-Security-Policy: scripts, styles and connections of this server only. */
#define UI_POLICY                                                                                                      \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "        \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

/* A file of the dashboard: constant data. */
typedef struct {
    const char *type, *etag; /* type NULL: there is no such file. etag: with its quotes */
    str         body;
    bool        is_page; /* the page itself */
} ui_file;
ui_file ui_find(str name); /* path below "/ui/"; empty: the page */
/* Returns whether a field If-None-Match lists the etag. */
bool ui_is_known(str if_none_match, const char *etag);
#endif
