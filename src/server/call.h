/* server/call.h - one HTTP request and its reply. Every reply carries the request id, the replica id and CORS
 * headers. */
#ifndef TANDEM_SERVER_CALL_H
#define TANDEM_SERVER_CALL_H
#include "http/http.h"
#include "server/keys.h"
#include "server/reply.h"

typedef struct server      server;
typedef struct server_call server_call;
typedef struct completion  completion;
typedef struct text_job    text_job;
typedef struct route_info  route_info;

enum { REQUEST_ID_MAX = 128, SERVER_MAX_FIELDS = HTTP_MAX_REFUSAL_FIELDS };

struct server_call {
    http_call          *http;
    const route_info   *route;  /* NULL: refused */
    const reply_format *format; /* format of its response and errors; NULL: OpenAI's */
    char                id[REQUEST_ID_MAX + 1];
    char                tenant[KEY_NAME_MAX + 1]; /* name of its key; empty: none */
    bool                sees_all;                 /* as in access_grant */
    double              since;                    /* clock_s when its head arrived */
    completion         *completion;
    text_job           *text;
    const char         *warning;     /* value of X-Tandem-Warning; NULL: none */
    size_t              reply_bytes; /* counted in server.held_bytes until the call ends */
    void (*on_end)(void *owner);     /* called when the call ends before it was answered; NULL: none */
    void *owner;
};

/* Returns whether an id can be repeated unchanged in a header and in the log. */
bool call_id_is_valid(str id);
/* Writes the headers that every reply has. Returns their number, less than SERVER_MAX_FIELDS. */
int  call_headers(server *s, server_call *c, http_field *out);
void call_reply(server *s, server_call *c, int status, const char *type, str body);
void call_refuse(server *s, server_call *c, const server_error *why);
/* As call_refuse, with one more header. */
void call_refuse_with(server *s, server_call *c, const server_error *why, http_field header);
/* As call_refuse, with the usage of its choices. */
void call_refuse_begun(server *s, server_call *c, const server_error *why, const server_choice *all, int n);
void call_refuse_no_memory(server *s, server_call *c);
/* Writes the headers and the body of an error. Returns the number of headers. */
int call_write_error(server *s, server_call *c, const server_error *why, http_field *f, buf *body);
/* Allocates zeroed memory for a call. Without memory, refuses the call with 503 and returns NULL. */
void *call_alloc(server *s, server_call *c, size_t bytes);
/* Begins an event stream with status 200. */
void call_begin_events(server *s, server_call *c);
#endif
