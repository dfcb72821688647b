/* server/route.h - the table of routes: finds the handler of a call and checks who may make it. */
#ifndef TANDEM_SERVER_ROUTE_H
#define TANDEM_SERVER_ROUTE_H
#include "server/access.h"
#include "server/call.h"

struct route_info {
    /* GET also serves HEAD. Each path is also served below /v1. "*" stands for any text. The first match is taken. */
    const char  *method, *path;
    route_access access;
    void (*handle)(server *s, server_call *c); /* replies, now or later */
    size_t              max_body;              /* 0: no body is read, the handler runs when the head has arrived */
    const reply_format *format;                /* format of responses and errors; NULL: OpenAI's */
};

/* Returns the part of a call's path that matches the asterisk of its route; empty: it has none. */
str route_name(const server_call *c);

/* Callbacks of http_handler (http/http.h); ctx is the server. */
bool   route_on_head(void *ctx, http_call *c);
void   route_on_request(void *ctx, http_call *c);
void   route_on_done(void *ctx, http_call *c, bool delivered);
size_t route_on_refuse(void *ctx, http_call *c, int status, const char *why, http_field *fields, buf *body);
#endif
