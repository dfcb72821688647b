/* OpenSSL for the server, and functions shared with the client. The I/O thread blocks SIGPIPE for its writes. */
#include "http/inside.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

/* Fails with the system error if there is one, else with the last error of OpenSSL. */
static bool fail_tls(err *e, const char *what, const char *path)
{
    const char   *why = NULL;
    unsigned long code;
    for (bool of_system = false; !of_system && (code = ERR_get_error());) {
        of_system = ERR_SYSTEM_ERROR(code);
        why       = of_system ? strerror(ERR_GET_REASON(code)) : ERR_reason_error_string(code);
    }
    ERR_clear_error();
    return err_set(e, ERR_INPUT, "%s '%s': %s", what, path, why ? why : "no reason given");
}

static int pick_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in,
                         unsigned int in_n, void *ctx)
{
    static const unsigned char ours[] = "\x08http/1.1";
    (void)ssl, (void)ctx;
    if (SSL_select_next_proto((unsigned char **)(uintptr_t)out, out_n, ours, sizeof ours - 1, in, in_n) ==
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_OK;
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

bool http_tls_open(http_server *s, err *e)
{
    SSL_CTX *ctx;
    if (!s->o.tls_cert && !s->o.tls_key) return true;
    if (!s->o.tls_cert || !s->o.tls_key) return err_set(e, ERR_INPUT, "TLS needs both a certificate and its key");
    s->tls = ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) return err_set(e, ERR_UNAVAILABLE, "cannot initialize OpenSSL");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(ctx,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(ctx, 1);
    SSL_CTX_set_alpn_select_cb(ctx, pick_protocol, NULL);
    if (SSL_CTX_use_certificate_chain_file(ctx, s->o.tls_cert) != 1)
        return fail_tls(e, "cannot use the certificate", s->o.tls_cert);
    if (SSL_CTX_use_PrivateKey_file(ctx, s->o.tls_key, SSL_FILETYPE_PEM) != 1)
        return fail_tls(e, "cannot use the key", s->o.tls_key);
    if (SSL_CTX_check_private_key(ctx) != 1)
        return fail_tls(e, "the certificate does not belong to the key", s->o.tls_key);
    return true;
}

void http_tls_close(http_server *s) { SSL_CTX_free(s->tls); }

bool http_tls_attach(conn *c)
{
    SSL *ssl   = SSL_new(c->s->tls);
    c->tls.ssl = ssl;
    if (!ssl || SSL_set_fd(ssl, c->fd) != 1) return false;
    SSL_set_accept_state(ssl);
    return true;
}

void http_tls_detach(http_tls *t)
{
    SSL_free(t->ssl);
    *t = (http_tls){0};
}

/* Clears old errors, which would be taken for errors of the next call. */
static SSL *clear_tls_errors(http_tls *t)
{
    ERR_clear_error();
    return t->ssl;
}

/* Returns `good`, or the reason why a call stopped. */
static ssize_t outcome(http_tls *t, int result, size_t good)
{
    int why      = result == 1 ? SSL_ERROR_NONE : SSL_get_error(t->ssl, result);
    t->wants_out = why == SSL_ERROR_WANT_WRITE;
    if (result == 1) return (ssize_t)good;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return IO_AGAIN;
    return why == SSL_ERROR_ZERO_RETURN ? 0 : IO_BROKEN;
}

ssize_t http_tls_shake(http_tls *t) { return outcome(t, SSL_do_handshake(clear_tls_errors(t)), 1); }

ssize_t http_tls_read(http_tls *t, void *p, size_t n, bool peek)
{
    size_t got = 0;
    int    r   = peek ? SSL_peek_ex(clear_tls_errors(t), p, n, &got) : SSL_read_ex(clear_tls_errors(t), p, n, &got);
    return outcome(t, r, got);
}

ssize_t http_tls_write(http_tls *t, const void *p, size_t n)
{
    size_t sent = 0;
    int    r    = SSL_write_ex(clear_tls_errors(t), p, n, &sent);
    return outcome(t, r, sent);
}

bool http_tls_pending(const http_tls *t) { return SSL_pending(t->ssl) > 0; }

void http_tls_send_end(http_tls *t) { SSL_shutdown(clear_tls_errors(t)); }
