/* tests/unit/load/stub.h - a server that says what a function writes, right or wrong: a thread for each connection. */
#ifndef TANDEM_TEST_LOAD_STUB_H
#define TANDEM_TEST_LOAD_STUB_H
#include "base/buf.h"

typedef struct stub stub;
typedef struct {
    str path, head, body;
    int number;     /* index of this request over all connections, from 0 */
    int connection; /* from 0 */
} stub_request;

/* Writes all bytes of the reply; false: the connection then closes. */
typedef bool stub_reply(void *ctx, const stub_request *q, buf *out);

stub *stub_open(stub_reply *reply, void *ctx); /* on 127.0.0.1 */
void  stub_close(stub *s);                     /* waits for all connections to end */
int   stub_port(const stub *s);
int   stub_requests(stub *s);
int   stub_connections(stub *s);

/* A whole reply; an event stream, ended, of a few events that are one answer of n tokens. */
void stub_put(buf *out, int status, const char *type, const char *body);
void stub_put_stream(buf *out, int n_tokens, const char *more);
#endif
