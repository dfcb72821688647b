/* tests/unit/http/client.h - a client that sends exactly the given bytes and reads responses with a timeout. */
#ifndef TANDEM_TEST_HTTP_CLIENT_H
#define TANDEM_TEST_HTTP_CLIENT_H
#include "base/buf.h"

typedef struct {
    int   fd;
    void *tls; /* SSL; NULL: plain */
    buf   in;  /* read, not used yet */
} client;

typedef struct {
    int  status;
    buf  head, body;
    bool whole; /* the body's end was there */
    int  n_chunks;
} client_reply;

bool client_open(client *c, int port);
bool client_open_small(client *c, int port, int receive_bytes); /* with a receive buffer of about receive_bytes */
bool client_open_from(client *c, int port, int last);           /* from 127.0.0.last */
bool client_open_unix(client *c, const char *path);
bool client_open_tls(client *c, int port, const char *alpn); /* alpn: "\x02h2", or NULL */
void client_close(client *c);                                /* a zeroed one is fine */
void client_reset(client *c);                                /* closes by RST */

bool client_send(client *c, str bytes);
bool client_say(client *c, const char *bytes);
long client_send_some(client *c, const void *p, size_t n); /* as many as the system takes at once; < 0: broken */
/* False: nothing came in time, or the connection closed before the head's end. */
bool client_read(client *c, client_reply *r, double seconds);
bool client_read_head(client *c, client_reply *r, double seconds);
/* At least one more byte into c->in; false: time is over or the connection is. */
bool client_more(client *c, double seconds);
bool client_closes(client *c, double seconds); /* the server closes it within; what comes first is thrown away */
str  client_field(const client_reply *r, const char *name);
void client_reply_deinit(client_reply *r);
#endif
