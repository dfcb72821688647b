/* http/client_inside.h - what the files of the client share. */
#ifndef TANDEM_HTTP_CLIENT_INSIDE_H
#define TANDEM_HTTP_CLIENT_INSIDE_H
#include "http/client.h"
#include "http/inside.h"

/* *out is an SSL_CTX, also after a failure; NULL is fine to close. */
bool http_tls_client_open(void **out, const http_client_options *o, err *e);
void http_tls_client_close(void *ctx);
bool http_tls_client_attach(http_tls *t, void *ctx, int fd, const char *host);
bool http_tls_client_fail(const http_tls *t, err *e); /* why there is no TLS; returns false */
#endif
