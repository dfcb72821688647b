/* http/client_inside.h - shared by the files of the client. */
#ifndef TANDEM_HTTP_CLIENT_INSIDE_H
#define TANDEM_HTTP_CLIENT_INSIDE_H
#include "http/client.h"
#include "http/inside.h"

/* Sets *out to an SSL_CTX, which the caller closes also after a failure. */
bool http_tls_client_open(void **out, const http_client_options *o, err *e);
void http_tls_client_close(void *ctx);
/* Prepares the handshake on a connected socket and checks the certificate for `host`. http_tls_detach frees *t, also
 * after a failure. */
bool http_tls_client_attach(http_tls *t, void *ctx, int fd, const char *host);
bool http_tls_client_fail(const http_tls *t, err *e); /* sets the error of a failed handshake; returns false */
#endif
