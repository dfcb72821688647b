/* server/call.h - one HTTP request and its reply, on the I/O thread. Every reply carries the request id, and the
 * replica id, a warning and CORS headers where there are any. route.c creates a call with its head and frees it with
 * its end. */
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
    const route_info   *route;  /* NULL: there is none, and the call was refused */
    const reply_format *format; /* format of its response and errors; NULL: OpenAI's */
    char                id[REQUEST_ID_MAX + 1];
    char                tenant[KEY_NAME_MAX + 1]; /* name of its key; empty: none */
    bool                sees_all;                 /* as in access_grant */
    double              since;                    /* clock_s when its head arrived */
    completion         *completion;               /* NULL: it is no completion */
    text_job           *text;                     /* NULL: it is no text job, or that has replied */
    const char         *warning;     /* value of X-Tandem-Warning, valid until the reply begins; NULL: none */
    size_t              reply_bytes; /* counted in server.held_bytes until the call ends */
    /* Called with `owner` when the call ends. The owner sets it to NULL when it replies before that. NULL: none. */
    void (*on_end)(void *owner);
    void *owner;
};

/* Returns whether an id can be repeated unchanged in a header and in the log: 1 to REQUEST_ID_MAX letters, digits and
 * -_.:/+=@. */
bool call_id_is_valid(str id);
/* Writes the headers that every reply has, and returns their number, at most SERVER_MAX_FIELDS - 3. Their strings
 * belong to the call, the server and constants. */
int call_headers(server *s, server_call *c, http_field *out);
/* Send a complete reply: `body`, which is copied, or an error in the format of the call's API. Each call gets one. */
void call_reply(server *s, server_call *c, int status, const char *type, str body); /* type: Content-Type */
void call_refuse(server *s, server_call *c, const server_error *why);
/* As call_refuse, with one more header. */
void call_refuse_with(server *s, server_call *c, const server_error *why, http_field header);
/* As call_refuse, with the usage of its n choices; n 0: without. */
void call_refuse_begun(server *s, server_call *c, const server_error *why, const server_choice *all, int n);
void call_refuse_no_memory(server *s, server_call *c); /* with 503 */
/* Writes the headers of an error into f[SERVER_MAX_FIELDS] and appends its body. Returns the number of headers. */
int call_write_error(server *s, server_call *c, const server_error *why, http_field *f, buf *body);
/* Allocates zeroed memory, which the caller frees with mem_free. Without memory, refuses the call with 503 and returns
 * NULL. */
void *call_alloc(server *s, server_call *c, size_t bytes);
/* Begins a stream with status 200, in the type of the call's API. */
void call_begin_events(server *s, server_call *c);
#endif
