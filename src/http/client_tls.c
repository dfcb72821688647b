/* OpenSSL, client side. */
#include "http/client_inside.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

bool http_tls_client_open(void **out, const http_client_options *o, err *e)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    *out         = ctx;
    if (!ctx) return err_set(e, ERR_UNAVAILABLE, "cannot initialize OpenSSL");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(ctx, o->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (o->insecure) return true;
    if (!o->ca_file)
        return SSL_CTX_set_default_verify_paths(ctx) == 1 || err_set(e, ERR_IO, "no certificates were found");
    bool ok = SSL_CTX_load_verify_locations(ctx, o->ca_file, NULL) == 1;
    ERR_clear_error();
    return ok || err_set(e, ERR_INPUT, "cannot use the certificates of '%s'", o->ca_file);
}

void http_tls_client_close(void *ctx) { SSL_CTX_free(ctx); }

static bool is_address(const char *host)
{
    uint8_t any[16];
    return inet_pton(AF_INET, host, any) == 1 || inet_pton(AF_INET6, host, any) == 1;
}

bool http_tls_client_attach(http_tls *t, void *ctx, int fd, const char *host)
{
    static const unsigned char ours[] = "\x08http/1.1";
    SSL                       *ssl    = SSL_new(ctx);
    t->ssl                            = ssl;
    if (!ssl || SSL_set_fd(ssl, fd) != 1 || SSL_set_alpn_protos(ssl, ours, sizeof ours - 1) != 0) return false;
    SSL_set_connect_state(ssl);
    if (is_address(host)) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    return SSL_set_tlsext_host_name(ssl, host) == 1 && SSL_set1_host(ssl, host) == 1;
}

bool http_tls_client_fail(const http_tls *t, err *e)
{
    unsigned long code = ERR_peek_error();
    long          why  = SSL_get_verify_result(t->ssl);
    const char   *text = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    if (why != X509_V_OK && SSL_get_verify_mode(t->ssl) != SSL_VERIFY_NONE)
        return err_set(e, ERR_IO, "the server's certificate is not trusted: %s", X509_verify_cert_error_string(why));
    return err_set(e, ERR_IO, "the TLS handshake failed: %s", text ? text : "the connection closed");
}
